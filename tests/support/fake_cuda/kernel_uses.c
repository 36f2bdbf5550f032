/* Which memory a launch names. */
#include <stdlib.h>

#include "tests/support/fake_cuda/fake.h"

static void use_tensor(struct fake_op *op, const struct mla_abi_tensor *tensor, uint64_t bytes, bool write)
{
    fake_op_use(op, tensor->base, bytes, write);
}

/* Extents as far as they follow from the records alone; where lengths are in the sequences, the first element. */
static void use_job(struct fake_op *op, const struct mla_abi_job *job)
{
    bool any = job->n_seqs > 0;
    uint64_t o_bytes = job->out_type == MLA_ABI_OUT_E4M3 ? 1 : job->out_type == MLA_ABI_OUT_BF16 ? 2 : 4;
    uint64_t kv = job->num_pages > 0 && job->num_pages < (UINT32_C(1) << 30)
                      ? (job->num_pages - 1) * job->page_stride +
                            (MLA_ABI_PAGE_TOKENS - 1) * (uint64_t)job->row_stride + MLA_ABI_QK_DIM
                      : 0;
    use_tensor(op, &job->q, any ? 1 : 0, false);
    use_tensor(op, &job->q_rope, any ? 1 : 0, false);
    use_tensor(op, &job->o, any ? o_bytes : 0, true);
    use_tensor(op, &job->lse, any ? sizeof(float) : 0, true);
    fake_op_use(op, job->kv, kv, false);
    fake_op_use(op, job->kv_len, job->n_seqs * sizeof(int32_t), false);
    fake_op_use(op, job->visible, 0, false);
    fake_op_use(op, job->status, job->n_seqs * sizeof(uint64_t), true);
    fake_op_use(op, job->user_status, job->n_seqs * sizeof(uint64_t), true);
}

/* What kernels may read of a sequence's arrays, however long it is now: entries for kv_len_max tokens, and the counts
 * of its query tokens. */
static void use_seq(struct fake_op *op, const struct mla_abi_job *job, const struct mla_abi_seq *seq)
{
    uint64_t entry_tokens = (uint64_t)job->pages_per_entry * MLA_ABI_PAGE_TOKENS;
    uint64_t entries = entry_tokens > 0 ? (seq->kv_len_max + entry_tokens - 1) / entry_tokens : 0;
    if (seq->q_len == 0)
        return;
    if (entries > 0)
        fake_op_use(op, job->table + seq->table_first * sizeof(int32_t), entries * sizeof(int32_t), false);
    if (job->mask == MLA_ABI_MASK_VISIBLE)
        fake_op_use(op, job->visible + seq->first_token * sizeof(int32_t), seq->q_len * sizeof(int32_t), false);
}

static bool is_readable(const struct fake_op *op, uint64_t address, uint64_t bytes, bool executing)
{
    if (op->staged)
        return true;
    fake_lock();
    const struct fake_range *range = fake_range_find(address);
    bool fine = range && (executing || !range->block) && fake_range_covers(address, bytes, false);
    fake_unlock();
    return fine;
}

static void count_tables(const struct mla_abi_job *job)
{
    fake_lock();
    const struct fake_range *range = job->table != 0 ? fake_range_find(job->table) : NULL;
    if (range && range->block)
        FAKE_COUNT(device_tables, 1);
    else if (range)
        FAKE_COUNT(host_tables, 1);
    fake_unlock();
}

static bool is_decode(enum fake_kernel kernel)
{
    return kernel == FAKE_DECODE || kernel == FAKE_DECODE_UNITS;
}

/* Private until the end, since others look through the op's uses under the lock. */
void fake_kernel_uses(struct fake_op *op, bool executing)
{
    struct fake_op found = {0};
    const struct mla_abi_launch *l = &op->kernel.launch;
    if (op->kernel.function->kernel == FAKE_READ)
        fake_op_use(&found, op->kernel.number, 1, false);
    if (fake_is_h128(op->kernel.function->kernel)) {
        fake_h128_uses(&found, &op->kernel.h128);
    } else if (op->kernel.function->kernel != FAKE_READ && op->kernel.function->kernel != FAKE_SPIN &&
               op->kernel.function->kernel != FAKE_EMPTY) {
        uint64_t jobs_bytes = l->n_jobs * sizeof(struct mla_abi_job);
        uint64_t seqs_bytes = l->n_seqs * sizeof(struct mla_abi_seq);
        fake_bring_uses(&found, op);
        fake_op_use(&found, l->jobs, jobs_bytes, false);
        fake_op_use(&found, l->seqs, seqs_bytes, false);
        fake_op_use(&found, l->tiles, 0, false);
        fake_op_use(&found, l->items, l->n_items * sizeof(struct mla_abi_item), false);
        fake_op_use(&found, l->reduces, l->n_reduces * sizeof(struct mla_abi_reduce), false);
        if (op->kernel.function->kernel == FAKE_PREPARE || op->kernel.function->kernel == FAKE_DECODE_UNITS)
            fake_op_use(&found, op->kernel.units.units, op->kernel.units.n_units * sizeof(struct mla_sm90_unit), true);
        if (op->kernel.function->kernel == FAKE_REDUCE_UNITS)
            fake_op_use(&found, op->kernel.units.reduces, l->n_reduces * sizeof(struct mla_sm90_reduce), false);
        if (l->n_reduces > 0) {
            fake_op_use(&found, l->partial_o, 1, true);
            fake_op_use(&found, l->partial_lse, 1, true);
        }
        const struct mla_abi_job *jobs = fake_bring_record(op, l->jobs);
        const struct mla_abi_seq *seqs = fake_bring_record(op, l->seqs);
        bool known = l->n_jobs > 0 && is_readable(op, l->jobs, jobs_bytes, executing);
        for (uint32_t j = 0; known && j < l->n_jobs; j++)
            use_job(&found, &jobs[j]);
        for (uint32_t j = 0; known && executing && is_decode(op->kernel.function->kernel) && j < l->n_jobs; j++)
            count_tables(&jobs[j]);
        known = known && l->n_seqs > 0 && is_readable(op, l->seqs, seqs_bytes, executing);
        for (uint32_t s = 0; known && s < l->n_seqs; s++)
            if (seqs[s].job < l->n_jobs)
                use_seq(&found, &jobs[seqs[s].job], &seqs[s]);
    }
    fake_lock();
    free(op->uses);
    op->uses = found.uses;
    op->n_uses = found.n_uses;
    fake_unlock();
}
