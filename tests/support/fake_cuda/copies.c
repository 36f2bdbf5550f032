/* Copies and fills. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

static bool is_device(uint64_t address, uint64_t bytes, bool write)
{
    fake_lock();
    bool fine = fake_range_covers(address, bytes, write);
    fake_unlock();
    return fine;
}

static bool is_pinned(const void *memory, uint64_t bytes)
{
    return is_device((uint64_t)(uintptr_t)memory, bytes, false);
}

static bool is_capturing(CUstream handle)
{
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    bool capturing = stream && stream->capture;
    fake_unlock();
    return capturing;
}

static CUresult drain(CUstream handle)
{
    fake_lock();
    CUstream stream = fake_stream_find(handle);
    CUresult result = stream ? fake_drain(stream) : CUDA_ERROR_INVALID_HANDLE;
    fake_unlock();
    return result;
}

/* A pageable source is taken before the call returns, as the driver does; a captured one is read when the graph runs.
 */
FAKE_API CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    FAKE_CALL(cuMemcpyHtoDAsync, FAKE_CONTEXT);
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!src || !is_device(dst, bytes, true))
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op *op = fake_op_new(MLA_FAKE_copy);
    op->copy.dst = dst;
    op->copy.src = (uint64_t)(uintptr_t)src;
    op->copy.bytes = bytes;
    if (!is_pinned(src, bytes) && !is_capturing(stream)) {
        op->staged = malloc(bytes);
        if (!op->staged)
            fake_abort("no memory");
        memcpy(op->staged, src, bytes);
    }
    return fake_enqueue(stream, op);
}

/* To pageable memory it returns when all is there, as the driver does. */
FAKE_API CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    FAKE_CALL(cuMemcpyDtoHAsync, FAKE_CONTEXT);
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!dst || !is_device(src, bytes, false))
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op *op = fake_op_new(MLA_FAKE_copy);
    op->copy.dst = (uint64_t)(uintptr_t)dst;
    op->copy.src = src;
    op->copy.bytes = bytes;
    bool wait = !is_pinned(dst, bytes) && !is_capturing(stream);
    CUresult result = fake_enqueue(stream, op);
    return result == CUDA_SUCCESS && wait ? drain(stream) : result;
}

FAKE_API CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream)
{
    FAKE_CALL(cuMemsetD8Async, FAKE_CONTEXT);
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!is_device(dst, bytes, true))
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_op *op = fake_op_new(MLA_FAKE_set);
    op->set.dst = dst;
    op->set.bytes = bytes;
    op->set.value = value;
    return fake_enqueue(stream, op);
}

/* On the legacy default stream: behind all that its blocking streams hold. */
static CUresult copy_now(void *dst, const void *src, size_t bytes)
{
    fake_lock();
    CUresult result = fake_drain_blocking(fake_current());
    fake_unlock();
    if (result == CUDA_SUCCESS)
        memmove(dst, src, bytes);
    return result;
}

FAKE_API CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    FAKE_CALL(cuMemcpyHtoD, FAKE_CONTEXT | FAKE_UNSAFE);
    if (bytes != 0 && (!src || !is_device(dst, bytes, true)))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_now((void *)(uintptr_t)dst, src, bytes);
}

FAKE_API CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    FAKE_CALL(cuMemcpyDtoH, FAKE_CONTEXT | FAKE_UNSAFE);
    if (bytes != 0 && (!dst || !is_device(src, bytes, false)))
        return CUDA_ERROR_INVALID_VALUE;
    return copy_now(dst, (const void *)(uintptr_t)src, bytes);
}
