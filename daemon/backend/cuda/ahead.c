/* Layers of steps ahead of their words: which launch comes next is mostly known, so its records are written before
 * the worker's stream says that it may begin. Where what its prepare kernel reads is known, too, as lengths and tables
 * that the worker has sent are, that kernel runs as well, and fetches them; else they are copied. */
#include "daemon/backend/cuda/gpu.h"

CUresult cu_ahead_open(struct backend *be, unsigned char *pinned, CUdeviceptr pinned_device, CUdeviceptr device)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < BE_STEPS_BATCHES && r == CUDA_SUCCESS; i++) {
        struct cu_ahead *ahead = &be->ahead[i];
        size_t at = i * CU_BLOB_BYTES;
        ahead->blob = pinned + at;
        ahead->blob_device = pinned_device + at;
        ahead->blob_device_copy = device + at;
        r = be->cu.cuEventCreate(&ahead->copied, CU_EVENT_DISABLE_TIMING);
        if (r == CUDA_SUCCESS)
            r = be->cu.cuEventCreate(&ahead->read, CU_EVENT_DISABLE_TIMING);
    }
    return r;
}

void cu_ahead_close(struct backend *be)
{
    for (size_t i = 0; i < BE_STEPS_BATCHES; i++) {
        cu_graph_close(be, &be->ahead[i].graph);
        cu_graph_close(be, &be->ahead[i].rest);
        const CUevent events[] = {be->ahead[i].copied, be->ahead[i].read};
        for (size_t k = 0; k < sizeof events / sizeof events[0]; k++)
            if (events[k] && !be->lost)
                cu_ok(be, be->cu.cuEventDestroy(events[k]), "cuEventDestroy");
    }
}

bool cu_ahead_is_copied(struct backend *be, struct cu_ahead *ahead)
{
    CUresult r = ahead->copying ? be->cu.cuEventQuery(ahead->copied) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        cu_call_ok(be, r, "cuEventQuery");
    ahead->copying = r != CUDA_SUCCESS;
    return r == CUDA_SUCCESS;
}

static bool copy_ahead(struct backend *be, struct cu_ahead *ahead)
{
    ahead->copying = true;
    return cu_call_ok(be, be->cu.cuMemcpyHtoDAsync(ahead->blob_device_copy, ahead->blob, ahead->bytes, be->copies),
                      "cuMemcpyHtoDAsync") &&
           cu_call_ok(be, be->cu.cuEventRecord(ahead->copied, be->copies), "cuEventRecord");
}

/* Maybe. */
static bool is_read(const struct backend *be, const struct cu_ahead *ahead)
{
    return be->ended_value < ahead->until;
}

static bool write_ahead(struct backend *be, const struct be_batch *batch, struct cu_ahead *ahead)
{
    size_t bytes = mla_kernels_blob_bytes(cu_kernels_of(be, batch->plan), batch->plan, batch->n_jobs, batch->n_seqs);
    bool in_place = be->options.blob_pinned;
    /* What is still copied or read was expected before, and did not come. */
    if (bytes > CU_BLOB_BYTES || is_read(be, ahead) || !cu_ahead_is_copied(be, ahead))
        return false;
    ahead->bytes = bytes;
    if (be->prepared == ahead)
        be->prepared = NULL;
    ahead->fetched = false;
    return cu_blob_write(be, batch, ahead->blob, in_place ? ahead->blob_device : ahead->blob_device_copy,
                         &ahead->plan_id, &ahead->launch);
}

struct cu_copy cu_ahead_copy(const struct cu_ahead *ahead)
{
    return (struct cu_copy){.to = ahead->blob_device_copy,
                            .from = ahead->blob,
                            .from_device = ahead->blob_device,
                            .bytes = ahead->bytes,
                            .with_launch = true};
}

/* ---- the prepare kernel ---- */

/* What the job's prepare kernel reads is the host's, and stays as it is; it writes nothing of the worker's. */
static bool is_known(const struct backend *be, const struct mla_abi_job *job)
{
    uint64_t arena = (uint64_t)(uintptr_t)be->arena_memory + (uint64_t)be->arena_offset;
    return job->kv_len == 0 && job->visible == 0 && job->user_status == 0 &&
           (job->table - arena < be->options.host_bytes || cu_mirror_has(be, job->table));
}

static bool all_known(const struct backend *be, const struct be_batch *batch)
{
    for (uint32_t j = 0; j < batch->n_jobs; j++)
        if (!is_known(be, &batch->jobs[j]))
            return false;
    return mla_kernels_facts(cu_kernels_of(be, batch->plan))->scratch && !be->options.blob_pinned;
}

/* Whether it will be the next to use the workspace, as far as can be known: of the one step that there is, with nothing
 * of others on the stream or waiting for it. */
static bool comes_next(struct backend *be, const struct be_steps_batch *b)
{
    const struct cu_slot *running = &be->slots[be->first_slot];
    return b->state == BE_STEPS_PREPARED && b->prepared && be->steps.n == 1 && !be->held && be_port_idle(&be->port) &&
           (be->n_slots == 0 || (be->n_slots == 1 && be_steps_own(&be->steps, running->request)));
}

/* Runs while the worker computes what the layer's word tells of. A launch of anything else in between takes the
 * workspace, and the kernel runs again. Whether it has been launched: it brings the records itself where they have not
 * been copied, since a copy may wait for the launch before it, and this kernel is to be right behind that. */
static bool prepare_ahead(struct backend *be, struct be_steps_batch *b, bool fetch)
{
    CUresult r = CUDA_ERROR_UNKNOWN;
    struct cu_ahead *ahead = &be->ahead[b - be->steps.batches];
    const struct mla_kernels *kernels = cu_kernels_of(be, b->batch.plan);
    if (!comes_next(be, b) || !all_known(be, &b->batch))
        return false;
    be->expected = NULL;
    int rc = fetch ? mla_kernels_launch_fetch(kernels, be->stream, &ahead->launch, ahead->blob_device, ahead->bytes,
                                              MLA_KERNELS_PREPARE, &r)
                   : mla_kernels_launch_some(kernels, be->stream, &ahead->launch, MLA_KERNELS_PREPARE, &r);
    if (rc != 0) {
        cu_lose(be, r, "cuLaunchKernelEx");
        return false;
    }
    ahead->fetched = fetch;
    ahead->until = be->last_value + 1;
    if (cu_call_ok(be, be->cu.cuEventRecord(ahead->read, be->stream), "cuEventRecord"))
        be->prepared = ahead;
    return true;
}

bool cu_ahead_write(struct backend *be)
{
    uint32_t index;
    struct be_steps_batch *b = be->lost ? NULL : be_steps_prepare(&be->steps);
    if (!b)
        return false;
    be_steps_batch_of(&be->steps, &b->request, &index);
    b->prepared = write_ahead(be, &b->batch, &be->ahead[index]);
    be->expected = NULL;
    if (!b->prepared || be->options.blob_pinned || (be->options.blob_inline && prepare_ahead(be, b, true)) || be->lost)
        return true;
    b->prepared = copy_ahead(be, &be->ahead[index]);
    be->expected = b->prepared ? b : NULL;
    return true;
}

/* While nothing else is to be done, so that the launch, which a worker waits for, has less to ask and to wait for. */
void cu_ahead_look(struct backend *be)
{
    for (size_t i = 0; i < BE_STEPS_BATCHES && !be->lost; i++)
        cu_ahead_is_copied(be, &be->ahead[i]);
    struct be_steps_batch *b = be->expected;
    if (b && !be->lost && !be->ahead[b - be->steps.batches].copying)
        prepare_ahead(be, b, false);
}

/* Rare: a step that ends in front of a layer that was expected. It waits for the launch that runs and for the kernel,
 * not for what others have put behind. */
void cu_ahead_settle(struct backend *be)
{
    be->expected = NULL;
    for (size_t i = 0; i < BE_STEPS_BATCHES; i++) {
        struct cu_ahead *ahead = &be->ahead[i];
        if (is_read(be, ahead) && !be->lost)
            cu_call_ok(be, be->cu.cuEventSynchronize(ahead->read), "cuEventSynchronize");
        ahead->until = 0;
    }
}
