/* Words in memory that streams write and wait for. */
#include "tests/support/fake_cuda/fake.h"

#define SPIN_NS UINT64_C(20000) /* polled without a pause at first */
#define POLL_NS UINT64_C(20000)

static uint64_t *word(const struct fake_op *op)
{
    return (uint64_t *)(uintptr_t)op->word.address;
}

/* Whoever sees the value may give the memory up, so the operation names it no longer by then. */
CUresult fake_execute_write(struct fake_op *op)
{
    fake_lock();
    bool mapped = fake_range_covers(op->word.address, sizeof(uint64_t), true);
    if (mapped) {
        op->n_uses = 0;
        __atomic_store_n(word(op), op->word.value, __ATOMIC_RELEASE);
    }
    fake_unlock();
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static bool holds(uint64_t value, uint64_t wanted, unsigned flags)
{
    switch (flags & ~(unsigned)CU_STREAM_WAIT_VALUE_FLUSH) {
    case CU_STREAM_WAIT_VALUE_EQ:
        return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
        return (value & wanted) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
        return ~(value | wanted) != 0;
    default:
        return (int64_t)(value - wanted) >= 0;
    }
}

CUresult fake_execute_wait(CUstream stream, const struct fake_op *op)
{
    fake_lock();
    bool mapped = fake_range_covers(op->word.address, sizeof(uint64_t), false);
    fake_unlock();
    if (!mapped)
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    uint64_t begun = fake_now_ns();
    while (!holds(__atomic_load_n(word(op), __ATOMIC_ACQUIRE), op->word.value, op->word.flags)) {
        if (fake_stream_stopping(stream))
            return CUDA_SUCCESS;
        if (fake_now_ns() - begun > SPIN_NS)
            fake_sleep_ns(POLL_NS);
    }
    return CUDA_SUCCESS;
}

static CUresult enqueue(CUstream stream, enum mla_fake_call kind, CUdeviceptr address, uint64_t value, unsigned flags)
{
    fake_lock();
    bool mapped = fake_range_covers(address, sizeof(uint64_t), kind == MLA_FAKE_write);
    fake_unlock();
    if (address % sizeof(uint64_t) != 0 || !mapped)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op *op = fake_op_new(kind);
    op->word.address = address;
    op->word.value = value;
    op->word.flags = flags;
    return fake_enqueue(stream, op);
}

FAKE_API CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    FAKE_CALL(cuStreamWriteValue64, FAKE_CONTEXT);
    if ((flags & ~(unsigned)CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return enqueue(stream, MLA_FAKE_write, address, value, flags);
}

FAKE_API CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags)
{
    FAKE_CALL(cuStreamWaitValue64, FAKE_CONTEXT);
    if ((flags & ~3u) != 0)
        return CUDA_ERROR_INVALID_VALUE; /* FLUSH is for devices that report CAN_FLUSH_REMOTE_WRITES: not this one */
    return enqueue(stream, MLA_FAKE_wait, address, value, flags);
}
