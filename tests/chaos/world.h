/* The process that starts the others and does bad things to them. */
#ifndef MLA_TESTS_CHAOS_WORLD_H
#define MLA_TESTS_CHAOS_WORLD_H

#include <sys/types.h>

#include "tests/chaos/chaos.h"
#include "tests/support/prng.h"

struct options {
    unsigned seconds, workers;
    uint64_t seed;
    bool cuda;
    const char *mlad, *commit;
};

enum event {
    KILL_DAEMON,
    DRAIN_DAEMON, /* SIGTERM */
    STOP_DAEMON,  /* SIGSTOP, later SIGCONT */
    KILL_WORKER,
    STOP_WORKER,
    CUT,   /* shutdown(2) of a worker's socket */
    EVICT, /* by an administrator */
    FAULT, /* of the fake device */
    EVENTS
};
extern const char *const event_names[EVENTS];

struct process {
    pid_t pid;         /* 0: none */
    bool stopped;      /* by SIGSTOP */
    bool killed;       /* its end is ours */
    uint64_t start_us; /* when it is to be started; 0: not */
    uint64_t wake_us;  /* when it is to go on */
};

struct world {
    const struct options *o;
    struct prng random;
    char dir[64], socket[96], log[96], rules[96];
    struct process daemon, workers[WORKERS_MAX];
    unsigned lives; /* of workers, for their seeds */
    uint64_t events[EVENTS];
    uint64_t daemon_crashes, worker_crashes;
    char first_fault[256];
};

/* 0; or 1 when it could not begin. */
int world_run(struct world *w, const struct options *o);

#endif
