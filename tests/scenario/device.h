/* A device and its clients in virtual time, under the scheduler: nothing is compared event by event, latencies are.
 * Each launch takes what its parts take together plus a fixed cost, exactly or by a factor that the scheduler does not
 * know.
 */
#ifndef MLA_TESTS_DEVICE_H
#define MLA_TESTS_DEVICE_H

#include "daemon/sched/sched_state.h"

#define DEVICE_CLIENTS 64

/* A client that sends jobs of one kind: again think_us after each answer, from in_flight places, or, period_us not 0,
 * every period_us whatever becomes of them. After OVERLOADED it waits as long as it was told. */
struct device_client {
    uint64_t load_us; /* of a part */
    uint32_t parts;
    uint32_t priority, weight;
    uint64_t compat;
    uint32_t in_flight;
    uint64_t think_us, period_us;
    uint64_t start_us, stop_us; /* 0: to the end */
    /* Results. */
    uint32_t answered, refused;
    uint64_t served_us;              /* load of what was answered OK */
    uint64_t p50_us, p99_us, max_us; /* of what was answered OK, from SUBMIT */
};

struct device_run {
    struct sched_config config;
    uint32_t slower_percent; /* launches take that much more than predicted */
    uint64_t fixed_us;       /* of each launch */
    uint64_t timer_late_us;  /* how late threads wake up: for the timer, */
    uint64_t launch_us;      /* from LAUNCH until the device has it, */
    uint64_t hiccup_us;      /* for each hiccup_every-th launch that much longer, */
    uint64_t hiccup_every;
    uint64_t hiccups;  /* of the first so many launches; 0: of all */
    uint64_t hear_us;  /* from the end of a launch until the scheduler is told, with the time of the end */
    uint64_t until_us; /* no job is sent past it; all that was accepted ends */
    uint64_t warm_us;  /* what was sent before it counts for nothing */
    uint32_t n_clients;
    struct device_client clients[DEVICE_CLIENTS];
    /* Results. */
    uint64_t busy_us, longest_us, ended_us;
    uint64_t launches;
};

void device_run(struct device_run *run);

#endif
