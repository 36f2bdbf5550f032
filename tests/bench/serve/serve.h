/* What the benchmarks of the daemon on a GPU share: options, where processes run, an MPS server, daemons. */
#ifndef MLA_TESTS_BENCH_SERVE_SERVE_H
#define MLA_TESTS_BENCH_SERVE_SERVE_H

#include "tests/bench/bench.h"
#include "tests/bench/daemon.h"
#include "tests/bench/serve/served.h"

#define SERVE_CPUS_MAX 1024

struct serve {
    char mlad_beside[1024];
    const char *mlad;
    const char *setting; /* "section.key=value" of all daemons; NULL: none */
    long ms, rounds;     /* of one way in one round; rounds */
    const struct bench_option *options;
    uint32_t heads;
    bool own_shapes; /* other than those that bars are for */
    int cpus[SERVE_CPUS_MAX];
    size_t n_cpus, n_daemon_cpus; /* the last ones are the daemons'; 0: nothing is pinned */
    struct bench_mps mps, none;   /* none: a pipe folder without a server: isolated */
    struct bench_report *report;
};

/* Of all of them: the first rows of their tables. */
#define SERVE_OPTIONS(ms, rounds)                                                                                      \
    {"--mlad", "PATH", "the daemon (the one beside this program, or of the same build)", 0, 0, 0},                     \
        {"--set", "SECTION.KEY=V", "a setting of all daemons", 0, 0, 0},                                               \
        {"--ms", "N", "of one way in one round", ms, 1, 60000},                                                        \
        {"--rounds", "N", "of all ways, in turn", rounds, 1, SERVE_ROUNDS_MAX},                                        \
    {                                                                                                                  \
        "--heads", "N", "of every decode", 96, 1, 128                                                                  \
    }
#define SERVE_ROUNDS_MAX 100

/* Takes those options, of s->options; makes the folders. with_mps: also starts a server. 0, or -1 or
 * BENCH_SKIPPED after a line. */
int serve_open(struct serve *s, int argc, char **argv, struct bench_report *report, bool with_mps);
void serve_close(struct serve *s);

/* Adds notes: CPUs, method. */
void serve_note(struct serve *s, const char *waits);

/* Daemons with the CUDA backend; more settings than those every one gets may be NULL. mps: s->mps.dir or s->none.dir.
 */
int serve_daemon(struct serve *s, struct bench_daemon *daemon, const char *mps, const char *const *settings);

/* CPU of worker i; -1 when nothing is pinned. */
int serve_cpu(const struct serve *s, size_t i);

/* Starts n members and waits until they are ready. Also BENCH_SKIPPED. */
int serve_crew(struct serve *s, struct crew_member *members, size_t n, const struct served_config *config,
               const char *mps);

/* Sample of a way over the rounds. */
struct serve_series {
    double values[SERVE_ROUNDS_MAX];
    size_t n;
};
void serve_add(struct serve_series *series, double value);
double serve_median(struct serve_series *series); /* sorts; NaN when empty */

/* "name" of a daemon's metrics without labels, by a connection of its own; NaN when there is none. */
double serve_metric(const char *socket, const char *name);

/* Seconds that jobs of a daemon spent on their way to each point of it (METRICS_STAGE_LIST of daemon/app/metrics.h), so
 * far, and how many jobs. */
#define SERVE_STAGES 8
struct serve_stages {
    double jobs, seconds[SERVE_STAGES];
};
/* 0, or -1 with a message. */
int serve_stages_read(const char *socket, struct serve_stages *out);

#endif
