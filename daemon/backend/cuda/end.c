/* How the end of what a slot has on the stream is told: done words of the batch, then the slot's completion word. By
 * the stream, which writes one after the other; or, for launches in a row, by a kernel that writes all of them. */
#include "daemon/backend/cuda/gpu.h"
#include "kernels/host/chain.h"

/* Words that the stream cannot write are stored by the GPU thread when the batch has ended. */
static bool stream_writes(const struct backend *be, const struct be_batch *batch)
{
    bool all = be->word_writes;
    for (uint32_t i = 0; i < batch->n_done && all; i++)
        all = cu_sync_address(be, batch->done[i].word) != 0;
    return all;
}

static bool write_word(struct backend *be, CUdeviceptr address, uint64_t value)
{
    return cu_call_ok(be, be->cu.cuStreamWriteValue64(be->stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue64");
}

static bool put_event(struct backend *be, struct cu_slot *slot)
{
    return !(slot->timed || !be->word_writes) ||
           cu_call_ok(be, be->cu.cuEventRecord(slot->ended, be->stream), "cuEventRecord");
}

static bool put_kernel(struct backend *be, struct cu_slot *slot, const struct mla_kernels *kernels,
                       const struct be_batch *batch)
{
    CUresult r = CUDA_ERROR_UNKNOWN;
    struct mla_sm90_end end = {.last = {slot->word_device, slot->value}, .n_words = batch->n_done};
    for (uint32_t i = 0; i < batch->n_done; i++)
        end.words[i] = (struct mla_sm90_word){cu_sync_address(be, batch->done[i].word), batch->done[i].value};
    if (!put_event(be, slot))
        return false;
    if (kernels_launch_end(kernels, be->stream, &end, &r) != 0)
        cu_lose(be, r, "cuLaunchKernelEx");
    return !be->lost;
}

bool cu_put_end(struct backend *be, struct cu_slot *slot, const struct be_batch *batch)
{
    slot->on_stream = true;
    slot->value = ++be->last_value;
    slot->host_words = batch && !stream_writes(be, batch);
    if (batch && !slot->host_words && be->options.chains && batch->n_done <= MLA_SM90_END_WORDS) {
        const struct mla_kernels *kernels = cu_kernels_of(be, batch->plan);
        if (kernels_can_chain(kernels))
            return put_kernel(be, slot, kernels, batch);
    }
    for (uint32_t i = 0; batch && i < batch->n_done && !slot->host_words; i++)
        if (!write_word(be, cu_sync_address(be, batch->done[i].word), batch->done[i].value))
            return false;
    return put_event(be, slot) && (!be->word_writes || write_word(be, slot->word_device, slot->value));
}
