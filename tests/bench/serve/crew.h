/* Worker processes of a benchmark. The process that starts them calls no CUDA: what has called it cannot fork what
 * does. Each member runs its function, is told commands and leaves what it measured in memory that both see. Functions
 * return 0, or -1 after a line on stderr.
 */
#ifndef MLA_TESTS_BENCH_SERVE_CREW_H
#define MLA_TESTS_BENCH_SERVE_CREW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CREW_SAMPLES_MAX 65536

struct crew_command {
    uint32_t op;        /* of the members' own */
    uint32_t which;     /* shape, ... */
    uint32_t daemon;    /* of those a member is connected to */
    uint32_t turns_max; /* 0: CREW_SAMPLES_MAX */
    uint64_t start_ns, end_ns;
    double period_us; /* of commands that have a pace */
};

/* What a command came to; written by the member. */
struct crew_result {
    uint64_t turns;
    uint64_t start_ns, end_ns; /* of the first turn and of the last */
    double value;              /* of commands that measure one */
    float us[CREW_SAMPLES_MAX];
};

struct crew_member {
    pid_t pid; /* 0: not running */
    int sock;
    struct crew_result *result;
};

/* A member's end. */
struct crew_side {
    int sock;
    struct crew_result *result;
};

/* Ends the process with what it returns; 77: this machine lacks what is needed. */
typedef int (*crew_fn)(struct crew_side *side, const void *arg);

/* mps: pipe folder, of a server or empty; cpu: -1: anywhere. */
int crew_start(struct crew_member *member, crew_fn fn, const void *arg, const char *mps, int cpu);
/* Waits until it is ready for commands, up to a minute: also BENCH_SKIPPED. */
int crew_ready(struct crew_member *member);
/* Tells one; crew_ready() waits for it. */
int crew_tell(struct crew_member *member, const struct crew_command *command);
/* Tells all, waits for all. run_ms: start_ns lies some milliseconds ahead and end_ns so much later. */
int crew_command(struct crew_member *members, size_t n, struct crew_command command, long run_ms);
int crew_stop(struct crew_member *members, size_t n);

/* A member: says that it is ready, or done, and takes the next command; false when it is to end. */
bool crew_next(struct crew_side *side, struct crew_command *command);
/* Between start_ns and end_ns: turn(arg, i) over and over, each timed. */
void crew_turns(struct crew_side *side, const struct crew_command *command, void (*turn)(void *arg, uint64_t i),
                void *arg);

/* Of the members' turns together, per second; their samples, sorted, in *us (free() it): how many. */
double crew_rate(const struct crew_member *members, size_t n);
size_t crew_samples(const struct crew_member *members, size_t n, double **us);

#endif
