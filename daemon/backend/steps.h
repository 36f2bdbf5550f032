/* The steps of a device thread: their words, what is launched of them when, and the plans of the layers that share a
 * launch. Device thread only, but for the calls before it starts.
 *
 * Of those that are ready the client whose turn it is goes first (fair.h), and takes along whoever may share its
 * launch, each of whom pays for that. Batches that are no step's take turns with them. A layer whose turn it is goes
 * out at once, as a worker's stream stands still for it. One whose client has had more than its share waits for a batch
 * that waits, too; and, while one runs, until shortly before the device has nothing more to do, when the next one will
 * have come. A batch waits as long for a layer whose turn it is and which only has to wait for other layers. A device
 * that would be idle takes whatever there is.
 *
 * A layer that is ready goes out at once while no launch of steps is under way, else when the one under way is expected
 * to end within BE_STEPS_LEAD_NS: until then layers of other steps may join it. At most BE_STEPS_LAUNCHES of such
 * launches are under way, whatever else the device does.
 *
 * What is launched next is mostly known before its words come: the layers after those of the launch before. A backend
 * that has something to gain from it asks for such launches while it is idle, and writes their records ahead. */
#ifndef MLA_DAEMON_BACKEND_STEPS_H
#define MLA_DAEMON_BACKEND_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/backend/backend.h"
#include "daemon/backend/fair.h"

#define BE_STEPS_LAUNCHES UINT32_C(2)
#define BE_STEPS_LEAD_NS  UINT64_C(20000) /* a launch on its way and the records of it: seen on an H200 */
#define BE_STEPS_JOIN_MAX 64u             /* layers of one launch */
#define BE_STEPS_PLANS    32u             /* kept; by the shapes of those that met */
#define BE_STEPS_BATCHES  8u              /* under way, and prepared */
#define BE_STEPS_EXPECTED 4u              /* sets of steps that may be prepared */

/* Plan and shape of one set of steps. */
struct be_steps_plan {
    uint64_t shapes[BE_STEPS_JOIN_MAX];
    uint32_t parts[BE_STEPS_JOIN_MAX];
    uint32_t n; /* 0: free */
    uint32_t uses;
    uint64_t id;      /* be_batch.plan_id; of numbers that nobody else gives */
    uint64_t used_at; /* for the choice of which goes */
    struct plan plan;
    struct plan_capacity cap; /* of its arrays */
    struct be_step_work work; /* of a launch of it, but run_ns */
};

enum be_steps_state { BE_STEPS_FREE, BE_STEPS_PREPARED, BE_STEPS_UNDER_WAY };

/* Layers, or parts of them, that a launch is for. */
struct be_steps_set {
    struct be_step *members[BE_STEPS_JOIN_MAX];
    uint32_t layers[BE_STEPS_JOIN_MAX];
    uint32_t parts[BE_STEPS_JOIN_MAX]; /* of those layers */
    uint32_t n;
};

struct be_steps_batch {
    enum be_steps_state state;
    bool prepared; /* came from be_steps_prepare() */
    uint64_t prepared_at;
    struct be_request request; /* LAUNCH of batch */
    struct be_batch batch;
    struct be_steps_plan *plan;
    struct be_steps_set set;
    struct mla_abi_job jobs[BE_STEPS_JOIN_MAX];
    struct be_done_word done[BE_STEPS_JOIN_MAX];
    struct mla_abi_seq *seqs;
    size_t seqs_cap;
};

/* What is there beside the steps. */
struct be_steps_others {
    bool waiting;     /* a batch has not begun */
    bool under_way;   /* one is on the device */
    uint64_t free_ns; /* when the device is expected to have nothing more to do */
};

struct be_steps {
    const struct be_facts *facts;
    const struct backend *backend; /* for scratch_bytes */
    uint64_t (*scratch_bytes)(const struct backend *backend, const struct plan_request *request); /* may be NULL */
    void (*fit)(const struct backend *backend, struct plan_request *request);   /* be_ops'; set after be_steps_init() */
    void (*done)(void *context, struct be_request *step, enum mla_status code); /* the step is the loop's again */
    void *context;

    struct be_fair fair;
    struct list active; /* struct be_step, in order of their beginning */
    uint32_t n;
    uint32_t n_ready; /* of them, waiting for their launch */
    uint32_t n_launches;
    uint64_t expected_end_ns; /* of the last launch */
    struct be_steps_batch batches[BE_STEPS_BATCHES];
    struct be_steps_set ready_set;                   /* of the launch in the making */
    struct be_steps_set expected[BE_STEPS_EXPECTED]; /* oldest first */
    uint32_t n_expected;
    uint64_t n_prepared;
    struct be_steps_plan plans[BE_STEPS_PLANS];
    uint64_t n_planned;
    struct plan_job jobs[BE_STEPS_JOIN_MAX];
    struct plan_seq *seqs; /* of a request in the making */
    size_t seqs_cap;
    void *scratch;
    size_t scratch_cap;
};

void be_steps_init(struct be_steps *steps, const struct be_facts *facts, const struct backend *backend,
                   uint64_t (*scratch_bytes)(const struct backend *, const struct plan_request *),
                   void (*done)(void *, struct be_request *, enum mla_status), void *context);
/* Steps that have not ended end silently. Also for one that is all zero. */
void be_steps_free(struct be_steps *steps);

/* BE_STEP and BE_STEP_END. The second has been carried out when it returns. */
void be_steps_begin(struct be_steps *steps, struct be_request *request);
void be_steps_end(struct be_steps *steps, const struct be_request *request);

/* Looks at words and deadlines; true when anything has come of it. */
bool be_steps_poll(struct be_steps *steps, uint64_t now_ns);

/* A LAUNCH to be begun now, or NULL. It is under way when this returns. others: NULL: there is nothing. */
struct be_request *be_steps_launch(struct be_steps *steps, uint64_t now_ns, const struct be_steps_others *others);
/* Whether what waits of the others is to wait for a layer, when there is no LAUNCH to be begun now. */
bool be_steps_go_first(const struct be_steps *steps, uint64_t now_ns, const struct be_steps_others *others);
/* A batch of the others has begun. */
void be_steps_others_begin(struct be_steps *steps, const struct be_batch *batch);

/* A launch that is expected, so that the backend may write its records ahead; be_steps_launch() gives its request when
 * it has come to that. NULL: none. It may be dropped, and its record be used for another, in any later call. */
struct be_steps_batch *be_steps_prepare(struct be_steps *steps);

/* Whether a LAUNCH is one of these; nobody else is told of its events. */
bool be_steps_own(const struct be_steps *steps, const struct be_request *request);
/* Of such a one, and its place among batches[]. */
struct be_steps_batch *be_steps_batch_of(struct be_steps *steps, const struct be_request *request, uint32_t *index);
/* A LAUNCH has ended; its batch has started_ns and ended_ns. */
void be_steps_launch_ended(struct be_steps *steps, const struct be_request *request);

#endif
