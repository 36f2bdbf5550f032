/* Prepare kernels that have the blob in their parameter: NAME_inline_BYTES takes a struct mla_sm90_inline and the blob.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

#define ANY_DRIVER_BYTES 4096 /* of parameters; more only from LARGE_DRIVER on, to LARGE_BYTES */
#define LARGE_DRIVER     12010
#define LARGE_BYTES      32764

size_t fake_inline_bytes(const struct CUfunc_st *function)
{
    const char *at = strstr(function->name, "_inline_");
    size_t bytes = at ? strtoul(at + strlen("_inline_"), NULL, 10) : 0;
    if (bytes > (fake_config()->driver < LARGE_DRIVER ? ANY_DRIVER_BYTES : LARGE_BYTES))
        fake_abort("%s: no driver for CUDA %d takes such a parameter", function->name, fake_config()->driver);
    return bytes;
}

static const struct mla_sm90_inline *head(const struct fake_op *op)
{
    return op->staged;
}

void fake_inline_take(struct fake_op *op, const void *parameter)
{
    op->staged_bytes = fake_inline_bytes(op->kernel.function);
    op->staged = malloc(op->staged_bytes);
    if (!op->staged)
        fake_abort("no memory");
    memcpy(op->staged, parameter, op->staged_bytes);
    memcpy(&op->kernel.units, &head(op)->launch, sizeof op->kernel.units);
    if (head(op)->n_vectors > (op->staged_bytes - sizeof *head(op)) / 16)
        fake_abort("%s: a blob of %u vectors", op->kernel.function->name, head(op)->n_vectors);
    FAKE_COUNT(inline_bytes, op->staged_bytes);
}

bool fake_inline_copy(const struct fake_op *op)
{
    uint64_t to = head(op)->launch.abi.jobs, bytes = head(op)->n_vectors * UINT64_C(16);
    fake_lock();
    bool fine = fake_range_covers(to, bytes, true);
    fake_unlock();
    if (fine)
        memcpy((void *)(uintptr_t)to, head(op) + 1, bytes);
    return fine;
}

const void *fake_inline_record(const struct fake_op *op, uint64_t address)
{
    if (!op->staged)
        return (const void *)(uintptr_t)address;
    uint64_t offset = address - head(op)->launch.abi.jobs;
    if (offset >= head(op)->n_vectors * UINT64_C(16))
        fake_abort("%s: a record beyond the blob", op->kernel.function->name);
    return (const char *)(head(op) + 1) + offset;
}
