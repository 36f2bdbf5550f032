/* The scheduler's whole state, for whoever embeds it (the application, tests). Fields are private: use sched.h.
 * Not to be moved after sched_init(): it holds list heads. No need to destroy it. */
#ifndef MLA_DAEMON_SCHED_STATE_H
#define MLA_DAEMON_SCHED_STATE_H

#include "daemon/sched/sched.h"

/* sched_batch.state */
enum sched_slot {
    SCHED_SLOT_FREE = 0,
    SCHED_SLOT_FORMED,   /* jobs chosen, or taken out since: STAGE must be given */
    SCHED_SLOT_PLANNING, /* STAGE given, PLANNED awaited */
    SCHED_SLOT_PLANNED,  /* waits for a place on the device */
    SCHED_SLOT_RUNNING   /* LAUNCH given */
};

/* Pending actions are not queued: sched_next() derives each from this state, so none can be lost however many jobs one
 * event answers. */
struct sched {
    struct sched_config config;
    uint64_t now_ns;
    uint64_t n_submitted, n_ready;

    struct list to_watch; /* jobs in WAITING, WATCH not given yet */
    struct list waiting;  /* jobs in WAITING, WATCH given */
    struct list flows;    /* of jobs that have a part to give, smallest finish tag first */
    struct list answered; /* jobs in ANSWERED, REPLY not given yet */

    struct sched_job *deadlines; /* root of the heap, the earliest */
    struct sched_object *released,
        *released_tail; /* RELEASE not given yet, in order; the tail means nothing when there is none */

    struct sched_batch batches[SCHED_BATCHES];
    struct sched_batch *staged; /* the one batch in FORMED, PLANNING or PLANNED; NULL: none */
    uint32_t n_running;         /* launches on the device */

    uint64_t virtual_ns;                          /* the largest tag that was served in its turn */
    uint64_t n_formed;                            /* batches; sched_flow.scan */
    uint32_t plan_jobs_max;                       /* a batch takes at most so many jobs, since a larger one could not be
                                                     planned; UINT32_MAX: that was not so of late */
    uint64_t gather_since;                        /* when jobs began to wait for the next batch */
    uint64_t slot_since;                          /* when a slot became free, the last time */
    uint32_t n_parts;                             /* that the flows have to give; jobs count once */
    uint64_t past_predicted_ns, past_measured_ns; /* of late */
    uint64_t lag_ns;    /* of late: from when a batch was to be formed until the device had it */
    uint64_t ratio_q16; /* what launches took of late / what was predicted, times 2^16 */

    uint64_t backlog_ns;     /* sum over the peers */
    uint64_t backlog_weight; /* of the peers that have some */

    struct sched_counts counts;
    uint64_t armed_ns; /* time of the last SET_TIMER, 0 once a TIMER came */

    uint64_t drain_deadline_ns; /* 0: none */
    bool plan_alone; /* the next batch waits until nothing runs: a job could not be planned beside a launch */
    bool draining, drain_expired, fatal, exited;
};

#endif
