/* cuMemAlloc, host memory, and what is known of an address. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/support/fake_cuda/fake.h"

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

bool fake_memory_take(CUcontext context, uint64_t bytes)
{
    fake_lock();
    bool fits = bytes <= fake_config()->memory_bytes && context->used_bytes <= fake_config()->memory_bytes - bytes;
    if (fits)
        context->used_bytes += bytes;
    fake_unlock();
    return fits;
}

FAKE_API CUresult cuMemAlloc(CUdeviceptr *out, size_t bytes)
{
    FAKE_CALL(cuMemAlloc, FAKE_CONTEXT | FAKE_UNSAFE);
    CUcontext context = fake_current();
    struct fake_block *block;
    if (!out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_memory_take(context, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *base = fake_space_reserve(bytes, 0);
    if (!base || fake_block_create(FAKE_LEGACY, bytes, context->device, 0, &block) != 0)
        fake_abort("cuMemAlloc of %zu bytes: %s", bytes, strerror(errno));
    if (fake_block_map(block, base, bytes, PROT_READ | PROT_WRITE) != 0)
        fake_abort("cuMemAlloc of %zu bytes: %s", bytes, strerror(errno));
    fake_lock();
    fake_range_add(FAKE_DEVICE, (uint64_t)(uintptr_t)base, bytes, block);
    fake_unlock();
    FAKE_COUNT(allocations, 1);
    FAKE_COUNT(allocated_bytes, bytes);
    *out = (CUdeviceptr)(uintptr_t)base;
    return CUDA_SUCCESS;
}

static void release_device(struct fake_range *range)
{
    range->context->used_bytes -= range->kind == FAKE_DEVICE ? range->bytes : 0;
    fake_space_release(pointer(range->base), range->bytes);
    fake_block_free(range->block);
    fake_range_remove(range);
}

FAKE_API CUresult cuMemFree(CUdeviceptr address)
{
    FAKE_CALL(cuMemFree, FAKE_CONTEXT | FAKE_UNSAFE);
    if (address == 0)
        return CUDA_SUCCESS;
    fake_lock();
    struct fake_range *range = fake_range_find(address);
    if (!range || range->kind != FAKE_DEVICE || range->base != address) {
        fake_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_must_be_idle("cuMemFree", range->base, range->bytes);
    FAKE_COUNT(allocations, -1);
    FAKE_COUNT(allocated_bytes, -range->bytes);
    release_device(range);
    fake_unlock();
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    FAKE_CALL(cuMemGetInfo, FAKE_CONTEXT);
    fake_lock();
    *free_bytes = fake_config()->memory_bytes - fake_current()->used_bytes;
    *total = fake_config()->memory_bytes;
    fake_unlock();
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    FAKE_CALL(cuMemGetAddressRange, FAKE_CONTEXT);
    fake_lock();
    const struct fake_range *range = fake_range_find(address);
    bool device = range && range->block;
    if (device && base)
        *base = range->base;
    if (device && bytes)
        *bytes = range->bytes;
    fake_unlock();
    return device ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* From the heap, so that AddressSanitizer sees its ends; full of what is not zero. */
FAKE_API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    FAKE_CALL(cuMemHostAlloc, FAKE_CONTEXT | FAKE_UNSAFE);
    if (!out || bytes == 0 || (flags & ~7u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = NULL;
    if (posix_memalign(&memory, FAKE_PAGE, bytes) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    fake_lock();
    fake_range_add(FAKE_HOST, (uint64_t)(uintptr_t)memory, bytes, NULL);
    fake_unlock();
    FAKE_COUNT(host_allocations, 1);
    *out = memory;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemFreeHost(void *memory)
{
    FAKE_CALL(cuMemFreeHost, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    struct fake_range *range = fake_range_find((uint64_t)(uintptr_t)memory);
    if (!range || range->kind != FAKE_HOST || pointer(range->base) != memory) {
        fake_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    fake_must_be_idle("cuMemFreeHost", range->base, range->bytes);
    fake_range_remove(range);
    fake_unlock();
    free(memory);
    FAKE_COUNT(host_allocations, -1);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemHostGetDevicePointer(CUdeviceptr *out, void *memory, unsigned int flags)
{
    FAKE_CALL(cuMemHostGetDevicePointer, FAKE_CONTEXT);
    fake_lock();
    const struct fake_range *range = fake_range_find((uint64_t)(uintptr_t)memory);
    bool host = range && !range->block;
    fake_unlock();
    if (!out || !host || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

static bool is_mapped(const void *memory, size_t bytes)
{
    uint64_t first = (uint64_t)(uintptr_t)memory / FAKE_PAGE;
    uint64_t last = ((uint64_t)(uintptr_t)memory + bytes - 1) / FAKE_PAGE;
    unsigned char in_core;
    for (uint64_t page = first; page <= last; page++)
        if (mincore(pointer(page * FAKE_PAGE), FAKE_PAGE, &in_core) != 0)
            return false;
    return true;
}

FAKE_API CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    FAKE_CALL(cuMemHostRegister, FAKE_CONTEXT | FAKE_UNSAFE);
    if (!memory || bytes == 0 || (flags & ~15u) != 0 || !is_mapped(memory, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t base = (uint64_t)(uintptr_t)memory;
    fake_lock();
    for (const struct fake_range *r = fake_range_first(); r; r = r->next)
        if (base < r->base + r->bytes && r->base < base + bytes) {
            fake_unlock();
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
        }
    fake_range_add(FAKE_REGISTERED, base, bytes, NULL)->writable = (flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
    fake_unlock();
    FAKE_COUNT(host_registrations, 1);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemHostUnregister(void *memory)
{
    FAKE_CALL(cuMemHostUnregister, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    struct fake_range *range = fake_range_find((uint64_t)(uintptr_t)memory);
    bool found = range && range->kind == FAKE_REGISTERED && pointer(range->base) == memory;
    if (found) {
        fake_must_be_idle("cuMemHostUnregister", range->base, range->bytes);
        fake_range_remove(range);
        FAKE_COUNT(host_registrations, -1);
    }
    fake_unlock();
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

/* Counters stay: what is still there has been leaked. VMM memory is not the context's. */
void fake_ranges_free(CUcontext context)
{
    struct fake_range *next;
    for (struct fake_range *r = fake_range_first(); r; r = next) {
        next = r->next;
        if (r->context != context || r->kind == FAKE_MAPPING)
            continue;
        if (r->block) {
            release_device(r);
            continue;
        }
        if (r->kind == FAKE_HOST)
            free(pointer(r->base));
        fake_range_remove(r);
    }
}
