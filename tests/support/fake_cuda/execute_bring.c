/* Prepare kernels that bring the blob: NAME_inline takes a struct mla_sm90_fetch and the blob behind it, of
 * MLA_SM90_INLINE_BYTES in all; NAME_fetch the struct alone, which says where the blob is. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

size_t fake_bring_bytes(const struct CUfunc_st *function)
{
    return ends_with(function->name, "_inline")  ? MLA_SM90_INLINE_BYTES
           : ends_with(function->name, "_fetch") ? sizeof(struct mla_sm90_fetch)
                                                 : 0;
}

static const struct mla_sm90_fetch *head(const struct fake_op *op)
{
    return op->staged;
}

static uint64_t blob_bytes(const struct fake_op *op)
{
    return head(op)->n_vectors * UINT64_C(16);
}

static const void *blob(const struct fake_op *op)
{
    return head(op)->from != 0 ? (const void *)(uintptr_t)head(op)->from : head(op) + 1;
}

void fake_bring_take(struct fake_op *op, const void *parameter)
{
    const char *name = op->kernel.function->name;
    op->staged_bytes = fake_bring_bytes(op->kernel.function);
    op->staged = malloc(op->staged_bytes);
    if (!op->staged)
        fake_abort("no memory");
    memcpy(op->staged, parameter, op->staged_bytes);
    memcpy(&op->kernel.units, &head(op)->launch, sizeof op->kernel.units);
    size_t with_it = op->staged_bytes - sizeof *head(op);
    if ((with_it == 0) != (head(op)->from != 0) || head(op)->from % 16 != 0)
        fake_abort("%s: a blob at %llx", name, (unsigned long long)head(op)->from);
    if (with_it != 0 && blob_bytes(op) > with_it)
        fake_abort("%s: a blob of %u vectors", name, head(op)->n_vectors);
    if (with_it != 0)
        FAKE_COUNT(inline_bytes, op->staged_bytes);
    else
        FAKE_COUNT(fetched_bytes, blob_bytes(op));
}

void fake_bring_uses(struct fake_op *found, const struct fake_op *op)
{
    if (op->staged && head(op)->from != 0)
        fake_op_use(found, head(op)->from, blob_bytes(op), false);
}

bool fake_bring_blob(const struct fake_op *op)
{
    uint64_t to = head(op)->launch.abi.jobs, from = head(op)->from;
    fake_lock();
    bool fine =
        fake_range_covers(to, blob_bytes(op), true) && (from == 0 || fake_range_covers(from, blob_bytes(op), false));
    fake_unlock();
    if (!fine)
        return false;
    memcpy((void *)(uintptr_t)to, blob(op), blob_bytes(op));
    /* The real one brings what the others read, which is nothing of a sequence's tables. */
    struct mla_sm90_seq *seqs = (struct mla_sm90_seq *)(uintptr_t)head(op)->launch.seqs;
    for (uint32_t s = 0; s < head(op)->launch.abi.n_seqs; s++)
        seqs[s].table = FAKE_NOT_BROUGHT;
    return true;
}

void fake_bring_check(const struct fake_op *op)
{
    const struct mla_sm90_launch *l = &op->kernel.units;
    const struct mla_sm90_seq *seqs = (const struct mla_sm90_seq *)(uintptr_t)l->seqs;
    for (uint32_t s = 0; !op->staged && s < l->abi.n_seqs; s++)
        if (seqs[s].table == FAKE_NOT_BROUGHT)
            fake_abort("%s: records that have not been copied", op->kernel.function->name);
}

const void *fake_bring_record(const struct fake_op *op, uint64_t address)
{
    if (!op->staged)
        return (const void *)(uintptr_t)address;
    uint64_t offset = address - head(op)->launch.abi.jobs;
    if (offset >= blob_bytes(op))
        fake_abort("%s: a record beyond the blob", op->kernel.function->name);
    return (const char *)blob(op) + offset;
}
