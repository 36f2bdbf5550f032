/* The next layer of the only step in flight, put on the stream before its word comes: its kernels stand behind a wait
 * for a word of our own, which is stored as soon as the worker's word is seen. What the driver's calls cost is then
 * spent while nobody waits.
 *
 * The stream stands still meanwhile, so whatever else wants it lets the layer go first: its records in device memory
 * are overwritten by those of a job of the same shape without keys, on memory of our own, and its kernels run through.
 * The done word is written when the layer is really launched, not here. */
#include <string.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"

/* Of dummies: lengths, which stay 0; status words; rows of the output. */
#define STATUS_AT    (CU_PARK_SEQS * UINT64_C(4))
#define OUT_AT       (STATUS_AT + CU_PARK_SEQS * UINT64_C(8))
#define DUMMY_BYTES  (OUT_AT + MLA_ABI_V_DIM * UINT64_C(4))
#define APART_NS     UINT64_C(2000000) /* no layer is parked so soon after one that had to be let go */
#define WORDS_BYTES  128u              /* a line for the word that is waited for, one for the end of a dummy */
#define PINNED_BYTES (WORDS_BYTES + CU_BLOB_BYTES)

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
        r = be->cu.cuMemAlloc(&park->dummy, DUMMY_BYTES);
    if (r == CUDA_SUCCESS)
        r = be->cu.cuMemsetD8Async(park->dummy, 0, DUMMY_BYTES, be->stream);
    if (r == CUDA_SUCCESS)
        r = be->cu.cuEventCreate(&park->copied, CU_EVENT_DISABLE_TIMING);
    return r;
}

void cu_park_close(struct backend *be)
{
    struct cu_park *park = &be->park;
    if (be->lost)
        return;
    if (park->copied)
        cu_ok(be, be->cu.cuEventDestroy(park->copied), "cuEventDestroy");
    if (park->dummy)
        cu_ok(be, be->cu.cuMemFree(park->dummy), "cuMemFree");
    if (park->pinned)
        cu_ok(be, be->cu.cuMemFreeHost(park->pinned), "cuMemFreeHost");
}

static uint64_t *word(const struct backend *be, size_t line)
{
    return (uint64_t *)be->park.pinned + line * 8;
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

void cu_park(struct backend *be, struct be_steps_batch *b, uint32_t index)
{
    struct cu_park *park = &be->park;
    if (park->parked || !b->prepared || !is_alone(be) || b->batch.n_jobs != 1 || b->batch.n_seqs > CU_PARK_SEQS ||
        !has_run(be, b->batch.plan) || mla_now_ns() < park->not_before_ns)
        return;
    CUresult r = CUDA_SUCCESS;
    park->value++;
    if (!cu_call_ok(be, be->cu.cuStreamWaitEvent(be->stream, be->ahead[index].copied, CU_EVENT_WAIT_DEFAULT),
                    "cuStreamWaitEvent") ||
        !cu_call_ok(be, be->cu.cuStreamWaitValue64(be->stream, park->device, park->value, CU_STREAM_WAIT_VALUE_GEQ),
                    "cuStreamWaitValue64"))
        return;
    if (mla_kernels_launch(cu_kernels_of(be, b->batch.plan), be->stream, &be->ahead[index].launch, &r) != 0) {
        cu_lose(be, r, "cuLaunchKernelEx");
        return;
    }
    park->parked = b;
    park->index = index;
    park->prepared_at = b->prepared_at;
    park->n_parked++;
}

/* The worker's word has come. */
bool cu_park_go(struct backend *be, const struct be_request *request)
{
    struct cu_park *park = &be->park;
    if (!park->parked || request != &park->parked->request || park->parked->prepared_at != park->prepared_at ||
        !park->parked->prepared)
        return false;
    __atomic_store_n(word(be, 0), park->value, __ATOMIC_RELEASE);
    park->parked = NULL;
    return true;
}

/* ---- letting go ---- */

/* The same shape, so that everything has the same places; no keys, no status words, one row for all outputs. */
static void make_dummy(const struct backend *be, const struct be_batch *batch, struct mla_abi_job *job)
{
    const struct mla_abi_job *of = &batch->jobs[0];
    *job = (struct mla_abi_job){.q = {.base = be->workspace},
                                .o = {.base = be->park.dummy + OUT_AT},
                                .page_stride = of->page_stride,
                                .row_stride = of->row_stride,
                                .table = be->workspace,
                                .kv_len = be->park.dummy,
                                .status = be->park.dummy + STATUS_AT,
                                .pages_per_entry = of->pages_per_entry,
                                .heads = of->heads,
                                .n_seqs = of->n_seqs,
                                .mask = MLA_ABI_MASK_NONE,
                                .out_type = MLA_ABI_OUT_F32,
                                .score_scale = 1,
                                .kv_scale = 1,
                                .inv_out_scale = 1};
}

/* Kernels read entries for kv_len_max tokens whatever the length is: of each sequence the workspace has room for those,
 * but not where a table with room between its rows would have them. */
static const struct mla_abi_seq *make_dummy_seqs(struct cu_park *park, const struct be_batch *batch)
{
    memcpy(park->seqs, batch->seqs, batch->n_seqs * sizeof park->seqs[0]);
    for (uint32_t s = 0; s < batch->n_seqs; s++)
        park->seqs[s].table_first = 0;
    return park->seqs;
}

/* The kernels have not begun, so nothing reads what is overwritten. */
static bool put_dummy(struct backend *be)
{
    struct cu_park *park = &be->park;
    const struct be_batch *batch = &park->parked->batch;
    unsigned char *blob = (unsigned char *)park->pinned + WORDS_BYTES;
    struct mla_kernels *kernels = cu_kernels_of(be, batch->plan);
    size_t bytes = mla_kernels_blob_bytes(kernels, batch->plan, 1, batch->n_seqs);
    struct cu_ahead *ahead = &be->ahead[park->index];
    bool in_place = be->options.blob_pinned;
    struct mla_abi_job job;
    struct mla_kernels_launch launch;
    make_dummy(be, batch, &job);
    if (mla_kernels_blob_write(kernels, batch->plan, &job, 1, make_dummy_seqs(park, batch), batch->n_seqs,
                               in_place ? ahead->blob : blob, in_place ? ahead->blob_device : ahead->blob_device_copy,
                               be->workspace, &launch) != 0) {
        cu_lose(be, CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled");
        return false;
    }
    if (in_place)
        return true;
    if (!cu_call_ok(be, be->cu.cuMemcpyHtoDAsync(ahead->blob_device_copy, blob, bytes, be->copies),
                    "cuMemcpyHtoDAsync") ||
        !cu_call_ok(be, be->cu.cuEventRecord(park->copied, be->copies), "cuEventRecord"))
        return false;
    CUresult r = CUDA_ERROR_NOT_READY;
    while (r == CUDA_ERROR_NOT_READY)
        r = be->cu.cuEventQuery(park->copied);
    return cu_call_ok(be, r, "cuEventQuery");
}

/* Waits for the kernels, which find nothing to do, behind at most a launch of the same step: then nothing that the
 * driver has of this layer names the worker's memory any more. */
void cu_unpark(struct backend *be)
{
    struct cu_park *park = &be->park;
    if (!park->parked || be->lost)
        return;
    bool put = put_dummy(be);
    if (park->parked->prepared_at == park->prepared_at)
        park->parked->prepared = false; /* what was written ahead is gone */
    park->parked = NULL;
    park->not_before_ns = mla_now_ns() + APART_NS;
    if (!put)
        return;
    __atomic_store_n(word(be, 0), park->value, __ATOMIC_RELEASE);
    if (!cu_call_ok(
            be, be->cu.cuStreamWriteValue64(be->stream, park->device + 64, park->value, CU_STREAM_WRITE_VALUE_DEFAULT),
            "cuStreamWriteValue64"))
        return;
    while (!be->lost && __atomic_load_n(word(be, 1), __ATOMIC_ACQUIRE) != park->value) {
        be_port_beat(&be->port);
        if (mla_now_ns() - be->last_query_ns >= CU_QUERY_NS)
            cu_query(be);
    }
}

/* Its step may have ended without this layer; and with a second step its record may become another's at any time. */
void cu_park_look(struct backend *be)
{
    const struct be_steps_batch *b = be->park.parked;
    if (b && (b->state != BE_STEPS_PREPARED || b->prepared_at != be->park.prepared_at || be->steps.n != 1 ||
              be->steps.n_expected != 0))
        cu_unpark(be);
}
