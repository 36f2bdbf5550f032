/* The next layer of the only step in flight, put on the stream before its word comes: a kernel of one warp waits there
 * for the worker's word, or for ours behind it, and lets the layer's kernels run. Neither the driver nor this thread is
 * then on the way between the worker's kernel and the layer.
 *
 * The stream stands still meanwhile, so whatever else wants it has the layer let go first. The waiting kernel alone
 * decides whether it runs or goes, and its verdict is waited for wherever something depends on it:
 * - We have seen the word: the layer is ordered to run. When it does, as it nearly always does already, its done word
 *   is put behind it; when it has let go by itself, because the word was too long in coming, it is launched anew.
 * - The stream is wanted, or the step is over: the layer is ordered to leave. Its kernels run through with nothing to
 * do. Should the word have come just before, they do it for real, and nobody is told: the layer comes to be launched
 * once more, which makes the same of the same, or its step is over, and what its outputs hold is nobody's concern.
 * Either way its kernels have ended when cu_unpark() returns. So no done word is written but behind kernels that are
 * known to run. A worker that plays with its words gets outputs of whatever its memory holds at some moment.
 *
 * The kernel waits cu_park_most_ns at most. So nothing on the device ever hangs on this process, and nothing that the
 * driver should want to wait for hangs for long. It takes time slices where the GPU is shared by those: parking is for
 * MPS. */
#include <string.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"
#include "kernels/host/park.h"

#define APART_NS     UINT64_C(2000000) /* no layer is parked so soon after one that had to be let go */
#define PINNED_BYTES 192u              /* a line each: the order, the verdict, the end of what was let go */

_Atomic uint64_t cu_park_most_ns = UINT64_C(20000000);

enum line { ORDER, VERDICT, END };

CUresult cu_park_open(struct backend *be)
{
    struct cu_park *park = &be->park;
    if (!be->options.parks)
        return CUDA_SUCCESS;
    CUresult r =
        be->cu.cuMemHostAlloc(&park->pinned, PINNED_BYTES, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (r == CUDA_SUCCESS) {
        memset(park->pinned, 0, PINNED_BYTES);
        r = be->cu.cuMemHostGetDevicePointer(&park->device, park->pinned, 0);
    }
    if (r == CUDA_SUCCESS)
        r = be->cu.cuMemAlloc(&park->out, MLA_SM90_PARK_OUT_BYTES);
    return r;
}

void cu_park_close(struct backend *be)
{
    struct cu_park *park = &be->park;
    if (be->lost)
        return;
    if (park->out)
        cu_ok(be, be->cu.cuMemFree(park->out), "cuMemFree");
    if (park->pinned)
        cu_ok(be, be->cu.cuMemFreeHost(park->pinned), "cuMemFreeHost");
}

static uint64_t *word(const struct backend *be, enum line line)
{
    return (uint64_t *)be->park.pinned + (size_t)line * 8;
}

static CUdeviceptr word_address(const struct backend *be, enum line line)
{
    return be->park.device + (CUdeviceptr)line * 64;
}

/* ---- parking ---- */

/* Nothing but layers of one step is here or on its way. */
static bool is_alone(const struct backend *be)
{
    if (!be->options.parks || !be->word_writes || be->steps.n != 1 || be->steps.n_ready != 0 || be->held ||
        be->watches.n != 0)
        return false;
    for (uint32_t i = 0; i < be->n_slots; i++)
        if (!be_steps_own(&be->steps, be->slots[(be->first_slot + i) % CU_SLOTS].request))
            return false;
    return true;
}

/* Kernels are loaded when they are first launched, for which a driver may wait for the stream. */
static bool has_run(struct backend *be, const struct plan *plan)
{
    const struct cu_ran *ran = cu_ran_of(be, plan);
    return plan->n_items != 0 && ran->kernels && (plan->n_reduces == 0 || ran->reducer);
}

static bool may_park(struct backend *be, const struct be_steps_batch *b)
{
    return !be->park.parked && b->prepared && is_alone(be) && b->batch.n_jobs == 1 &&
           kernels_can_park(cu_kernels_of(be, b->batch.plan)) && has_run(be, b->batch.plan) &&
           mla_now_ns() >= be->park.not_before_ns;
}

void cu_park(struct backend *be, struct be_steps_batch *b, uint32_t index)
{
    struct cu_park *park = &be->park;
    if (!may_park(be, b))
        return;
    const struct be_layer *layer = &b->set.members[0]->layers[b->set.layers[0]];
    struct kernels_park how = {.order = word_address(be, ORDER),
                               .verdict = word_address(be, VERDICT),
                               .ready = cu_sync_address(be, layer->ready),
                               .ready_value = layer->ready_value,
                               .number = ++park->number,
                               .out = park->out,
                               .most_ns = cu_park_most_ns};
    CUresult r = CUDA_SUCCESS;
    if (!cu_call_ok(be, be->cu.cuStreamWaitEvent(be->stream, be->ahead[index].copied, CU_EVENT_WAIT_DEFAULT),
                    "cuStreamWaitEvent"))
        return;
    const struct mla_kernels *kernels = cu_kernels_of(be, b->batch.plan);
    struct cu_ahead *ahead = &be->ahead[index];
    bool graph = cu_graph_ready(be, &ahead->graph, kernels, &ahead->launch, &(struct cu_copy){.bytes = 0});
    if (be->lost)
        return;
    if ((graph ? kernels_launch_park : kernels_launch_parked)(kernels, be->stream, &ahead->launch, &how, &r) != 0) {
        cu_lose(be, r, "cuLaunchKernelEx");
        return;
    }
    if (graph && !cu_graph_launch(be, &ahead->graph))
        return;
    park->parked = b;
    park->prepared_at = b->prepared_at;
}

/* ---- the verdict ---- */

/* Until a word of ours has been written by the device; false: the device is lost. */
static bool await(struct backend *be, enum line line, uint64_t least)
{
    while (!be->lost && __atomic_load_n(word(be, line), __ATOMIC_ACQUIRE) < least) {
        be_port_beat(&be->port);
        if (mla_now_ns() - be->last_query_ns >= CU_QUERY_NS)
            cu_query(be);
    }
    return !be->lost;
}

/* Whether the layer that is parked runs. It is parked no more, and what was written ahead is gone if it does not. */
static bool decide(struct backend *be, uint32_t order)
{
    struct cu_park *park = &be->park;
    struct be_steps_batch *b = park->parked;
    park->parked = NULL;
    __atomic_store_n(word(be, ORDER), MLA_SM90_PARK_WORD(park->number, order), __ATOMIC_RELEASE);
    if (!await(be, VERDICT, MLA_SM90_PARK_WORD(park->number, 0)))
        return false;
    if (__atomic_load_n(word(be, VERDICT), __ATOMIC_RELAXED) == MLA_SM90_PARK_WORD(park->number, MLA_SM90_PARK_RUN))
        return true;
    if (b->prepared_at == park->prepared_at)
        b->prepared = false;
    park->not_before_ns = mla_now_ns() + APART_NS;
    return false;
}

void cu_unpark(struct backend *be)
{
    if (!be->park.parked || be->lost)
        return;
    decide(be, MLA_SM90_PARK_LEAVE);
    if (be->lost || !cu_call_ok(be,
                                be->cu.cuStreamWriteValue64(be->stream, word_address(be, END), be->park.number,
                                                            CU_STREAM_WRITE_VALUE_DEFAULT),
                                "cuStreamWriteValue64"))
        return;
    await(be, END, be->park.number);
}

bool cu_park_go(struct backend *be, const struct be_request *request)
{
    const struct cu_park *park = &be->park;
    if (park->parked && request == &park->parked->request && park->parked->prepared_at == park->prepared_at &&
        park->parked->prepared)
        return decide(be, MLA_SM90_PARK_RUN);
    cu_unpark(be);
    return false;
}

static bool has_let_go(const struct backend *be)
{
    return __atomic_load_n(word(be, VERDICT), __ATOMIC_ACQUIRE) ==
           MLA_SM90_PARK_WORD(be->park.number, MLA_SM90_PARK_LEAVE);
}

/* Its step may have ended without this layer, with a second step its record may become another's at any time, and it
 * may have waited long enough. */
void cu_park_look(struct backend *be)
{
    const struct be_steps_batch *b = be->park.parked;
    if (b && (b->state != BE_STEPS_PREPARED || b->prepared_at != be->park.prepared_at || be->steps.n != 1 ||
              be->steps.n_expected != 0 || has_let_go(be)))
        cu_unpark(be);
}
