/* Counters and histograms of the daemon, and their rendering as families of Prometheus' exposition format. Every series
 * exists from the start, at 0. Loop thread only. */
#ifndef MLA_DAEMON_APP_METRICS_H
#define MLA_DAEMON_APP_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/app/health.h"
#include "daemon/backend/backend.h"
#include "proto/arena.h"
#include "proto/codec.h"

#define METRICS_REQUESTS 24 /* entries of MLA_REQUEST_LIST; checked in metrics.c */
#define METRICS_CODES    64 /* at least the entries of MLA_STATUS_LIST */
#define METRICS_BUCKETS  40

struct metrics_histogram {
    uint64_t buckets[METRICS_BUCKETS]; /* not cumulative; the last real one is followed by +Inf */
    uint64_t count;
    double sum;
};

/* A job's way, for jobs of one part that ended well: METRICS_STAGE_x is what came before that point. */
#define METRICS_STAGE_LIST(X)                                                                                          \
    X(checked) /* its frame was taken from the socket; until the scheduler has it */                                   \
    X(staged)  /* until its batch was formed */                                                                        \
    X(planned)                                                                                                         \
    X(taken)     /* until the device thread began with it */                                                           \
    X(submitted) /* until the device had all of it */                                                                  \
    X(ended)     /* until its end was seen */                                                                          \
    X(heard)     /* until the loop heard of it */                                                                      \
    X(answered)  /* until its reply was ready to be sent */

enum metrics_stage {
#define METRICS_STAGE(name) METRICS_STAGE_##name,
    METRICS_STAGE_LIST(METRICS_STAGE)
#undef METRICS_STAGE
        METRICS_STAGES
};

struct metrics {
    uint64_t requests[METRICS_REQUESTS]; /* by type */
    uint64_t replies[METRICS_CODES];     /* by status */
    uint64_t jobs[METRICS_CODES];        /* decodes, by status of the answer */
    uint64_t faults[METRICS_CODES];      /* single sequences, by status */
    uint64_t steps[METRICS_CODES];       /* captured steps, by status of the answer */
    uint64_t step_layers;                /* of them that have run */
    struct metrics_histogram wait_seconds, queue_seconds, run_seconds, batch_jobs;
    struct metrics_histogram job_seconds; /* from arrival to answer, in finer steps */
    struct metrics_histogram prediction_ratio, gap_seconds;
    struct metrics_histogram turn_seconds;    /* of the loop: what others waited for one turn */
    struct metrics_histogram taken_seconds;   /* until the device thread began with a launch */
    struct metrics_histogram release_seconds; /* from a client's end until nothing of it was left */
    uint64_t batches, tiles, items, reduces, useful_rows, row_slots, item_units, unit_slots, pages, waves;
    uint64_t few_rows_batches;       /* by other kernels than be_facts tells of: be_fit() */
    uint64_t launch_ns, step_run_ns; /* of ended launches of jobs; of layers of steps */
    uint64_t step_launches, step_launches_ahead, step_launch_ns, step_predicted_ns; /* of launches of layers */
    uint64_t stage_ns[METRICS_STAGES];                                              /* of stage_jobs jobs */
    uint64_t stage_jobs;
    uint64_t mirror_uses; /* decodes and steps that named a copy of their page tables */
    uint64_t stages;      /* plans made; more than batches when a job left one that was staged */
    uint64_t plans_failed;
};

/* A client that is connected or still being released. */
struct metrics_client {
    uint64_t id, mapped_bytes;
    const char *name;
};

/* Values that others own, read when rendering. */
struct metrics_gauges {
    uint64_t clients, regions, mapped_bytes, caches, published, attachments, table_sets, mirror_bytes;
    uint64_t jobs_waiting, jobs_queued, jobs_staged, jobs_running;
    uint64_t uptime_us, workspace_bytes, device_memory_bytes, units;
    uint64_t accepted, refused, closed, frames_in, frames_out, bytes_in, bytes_out;
    uint64_t protocol_errors, malformed_bodies, slow_peers, accept_pauses;
    const char *version, *backend, *gpu_uuid;
    int ready; /* 1 while new work is taken */
    enum mla_health health;
    const struct metrics_client *per_client;
    size_t n_per_client;
    const struct health *checks; /* NULL: nothing has been found */
};

/* Memory that rendering takes, with this many clients. */
#define METRICS_ARENA_BYTES(clients) ((256u << 10) + (size_t)(clients)*256u)

void metrics_count_request(struct metrics *m, uint16_t type);
void metrics_count_reply(struct metrics *m, enum mla_status code);
void metrics_count_job(struct metrics *m, enum mla_status code);
void metrics_count_fault(struct metrics *m, enum mla_status code);
/* Of one of the arrays by status. */
uint64_t metrics_of_code(const uint64_t *counts, enum mla_status code);
void metrics_count_step(struct metrics *m, enum mla_status code, uint32_t layers_done);
void metrics_count_step_work(struct metrics *m, const struct be_step_work *work);
void metrics_observe_us(struct metrics_histogram *h, uint64_t us);     /* of a _seconds histogram */
void metrics_observe_ns(struct metrics_histogram *h, uint64_t ns);     /* the same in nanoseconds */
void metrics_observe_job_us(struct metrics_histogram *h, uint64_t us); /* of job_seconds */
void metrics_observe_jobs(struct metrics_histogram *h, uint64_t jobs);

/* The end of a launch of jobs: what it took, against what was predicted for it; gap_ns: between the end of the launch
 * before, behind which it was queued, and its beginning; UINT64_MAX: not known. */
void metrics_launch_end(struct metrics *m, uint64_t gap_ns, uint64_t started_ns, uint64_t ended_ns,
                        uint64_t predicted_ns);

/* A job's points in time, from that of its frame on: METRICS_STAGES + 1 of them. Nothing when one is missing (0) or
 * before the one before it. */
void metrics_observe_stages(struct metrics *m, const uint64_t *points_ns);

/* Builds a METRICS reply in the arena. 0, or -ENOMEM. */
int metrics_render(const struct metrics *m, const struct metrics_gauges *gauges, struct mla_arena *arena,
                   struct mla_metrics_reply *reply);

#endif
