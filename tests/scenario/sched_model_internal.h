/* The model's records, shared by its two halves: events and what they must lead to (sched_model.c), and actions
 * (sched_model_actions.c). */
#ifndef MLA_TESTS_SCHED_MODEL_INTERNAL_H
#define MLA_TESTS_SCHED_MODEL_INTERNAL_H

#include "daemon/sched/sched_state.h"
#include "tests/scenario/sched_model.h"

#define MODEL_JOBS    160
#define MODEL_PEERS   6
#define MODEL_OBJECTS 12
#define MODEL_PINS    3

enum model_state { M_WAITING, M_QUEUED, M_STAGED, M_RUNNING, M_DUE };

struct model_thing {
    struct sched_object object; /* first */
    uint32_t pins, own_pins;    /* of jobs and ours; ours alone */
    bool leaving;
};

struct model_peer {
    struct sched_peer peer; /* first */
    uint32_t in_flight, weight;
    bool gone;
    uint64_t start[SCHED_PRIORITIES]; /* tag of the flow's next part */
};

struct model_job {
    struct sched_job job; /* first */
    struct sched_object *pins[MODEL_PINS];
    struct model_peer *peer;
    enum model_state state;
    enum mla_status code;    /* once DUE */
    enum mla_status stopped; /* why no further part may run */
    bool watched, cancelled, late, gone, looked;
    uint32_t taken, launched, running; /* parts */
    uint64_t queue_order;
};

struct model_batch {
    enum { M_FREE, M_FORMED, M_PLANNING, M_PLANNED, M_LAUNCHED } state;
    struct model_job *jobs[MODEL_JOBS];
    uint32_t index[MODEL_JOBS]; /* which part of it */
    uint64_t start[MODEL_JOBS]; /* tag of its flow before it was taken */
    uint32_t n;
    uint32_t generation;
};

struct model {
    struct sched sched;
    struct sched_config config;
    struct model_source source;
    struct model_stats *stats;
    uint64_t now, armed, drain_deadline, launches, answered;
    struct model_job *jobs[MODEL_JOBS];
    size_t n_jobs;
    struct model_peer *peers[MODEL_PEERS];
    struct model_thing *objects[MODEL_OBJECTS];
    struct model_batch batches[SCHED_BATCHES];
    uint64_t queue_order, virtual_ns;
    bool plan_alone;        /* a job could not be planned beside a launch: the next batch waits for its end */
    uint32_t plan_jobs_max; /* halved when a plan fails, doubled when one succeeds; 0: no limit */
    bool draining, drain_expired, fatal, exited;
    bool quiet; /* no further events of their own accord */
};

#define MUST(m, condition, what)                                                                                       \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            model_fail(m, what, __FILE__, __LINE__);                                                                   \
    } while (0)

_Noreturn void model_fail(const struct model *m, const char *what, const char *file, int line);
uint32_t model_below(struct model *m, uint32_t n);
uint32_t model_count(const struct model *m, enum model_state state);
uint32_t model_parts(const struct model_job *j);
bool model_queued(const struct model_job *j); /* it has a part to give */
uint64_t model_weight(const struct model_peer *p);
uint32_t model_running(const struct model *m); /* launches */
uint64_t model_scaled(const struct model *m, uint64_t ns);
/* Out of all batches and into DUE. */
void model_due(struct model *m, struct model_job *j, enum mla_status code);
/* No further part; DUE when none runs. */
void model_stop(struct model *m, struct model_job *j, enum mla_status code);
void model_give(struct model *m, struct sched_event event);
void model_random_event(struct model *m);
void model_plan_answer(struct model *m, int slot, uint32_t generation, enum mla_status code);
void model_batch_done(struct model *m, int slot, enum mla_status code);
void model_carry_out(struct model *m); /* all actions, then checks that nothing is left undone */

#endif
