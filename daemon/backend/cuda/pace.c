/* When the GPU thread looks for the end of a launch without pausing: late enough to sleep through most of a long one,
 * early enough to see its end at once, since the next batch, and whoever waits, hang on it. */
#include "daemon/backend/cuda/gpu.h"

#define EARLY_NS    UINT64_C(60000)     /* a wake-up may take this long */
#define EARLY_PART  8u                  /* and a launch be shorter than expected by this part of it */
#define PAST_NS     (UINT64_C(1) << 25) /* so much of what was predicted, 33 ms, counts in full */
#define RATIO_LEAST 4u                  /* a launch takes at least a quarter of what is predicted */
#define RATIO_MOST  16u

void cu_pace_ended(struct backend *be, const struct be_batch *batch)
{
    uint64_t predicted = batch->plan->predicted_ns, took = batch->ended_ns - batch->started_ns;
    if (predicted == 0 || predicted > PAST_NS)
        return;
    be->predicted_ns += predicted;
    be->took_ns += took / RATIO_MOST < predicted ? took : predicted * RATIO_MOST;
    while (be->predicted_ns > PAST_NS) {
        be->predicted_ns /= 2;
        be->took_ns /= 2;
    }
}

static uint64_t expected(const struct backend *be, uint64_t predicted)
{
    if (be->predicted_ns == 0 || predicted > UINT64_MAX / (PAST_NS * RATIO_MOST))
        return predicted / RATIO_LEAST;
    uint64_t ns = (uint64_t)((double)predicted * ((double)be->took_ns / (double)be->predicted_ns));
    return ns > predicted / RATIO_LEAST ? ns : predicted / RATIO_LEAST;
}

bool cu_pace_look(const struct backend *be, uint64_t *from_ns, uint64_t *until_ns)
{
    const struct cu_slot *slot = &be->slots[be->first_slot];
    if (be->n_slots == 0 || slot->request->op != BE_LAUNCH || !slot->on_stream)
        return false;
    const struct be_batch *batch = slot->request->batch;
    uint64_t begun = batch->started_ns > be->last_ended_ns ? batch->started_ns : be->last_ended_ns;
    uint64_t ns = expected(be, batch->plan->predicted_ns), early = EARLY_NS + ns / EARLY_PART;
    *from_ns = ns > early ? begun + ns - early : begun;
    *until_ns = begun + ns + early;
    return true;
}

uint64_t cu_pace_free_ns(const struct backend *be)
{
    uint64_t at = be->last_ended_ns;
    for (uint32_t i = 0; i < be->n_slots; i++) {
        const struct cu_slot *slot = &be->slots[(be->first_slot + i) % CU_SLOTS];
        if (slot->request->op != BE_LAUNCH || !slot->on_stream)
            continue;
        const struct be_batch *batch = slot->request->batch;
        at = (batch->started_ns > at ? batch->started_ns : at) + expected(be, batch->plan->predicted_ns);
    }
    return at;
}
