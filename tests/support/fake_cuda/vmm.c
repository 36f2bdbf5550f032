/* Virtual memory management: physical handles, reserved addresses, mappings. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"

struct reservation {
    uint64_t base;
    uint64_t bytes;
    struct reservation *next;
};

/* Under the lock. Handles that the application can name, or that are still mapped. */
static struct fake_block *handles;
static struct reservation *reservations;

struct fake_block *fake_handle_find(CUmemGenericAllocationHandle handle)
{
    for (struct fake_block *b = handles; b; b = b->next)
        if ((CUmemGenericAllocationHandle)(uintptr_t)b == handle && b->references > 0)
            return b;
    return NULL;
}

void fake_handle_keep(struct fake_block *block, CUmemGenericAllocationHandle *out)
{
    fake_lock();
    block->references = 1;
    block->next = handles;
    handles = block;
    fake_unlock();
    FAKE_COUNT(vmm_handles, 1);
    *out = (CUmemGenericAllocationHandle)(uintptr_t)block;
}

/* The memory goes with its last reference and its last mapping. */
static void drop_if_unused(struct fake_block *block)
{
    if (block->references > 0 || block->mappings > 0)
        return;
    for (struct fake_block **at = &handles; *at; at = &(*at)->next)
        if (*at == block) {
            *at = block->next;
            break;
        }
    if (block->own) {
        block->owner->used_bytes -= block->bytes;
        FAKE_COUNT(allocated_bytes, -block->bytes);
    }
    fake_block_free(block);
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
    if (!fake_config()->vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
        prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return fake_device_ok(prop->location.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

FAKE_API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                                CUmemAllocationGranularity_flags option)
{
    FAKE_CALL(cuMemGetAllocationGranularity, FAKE_CONTEXT);
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return result;
    if (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = FAKE_GRANULE;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                              unsigned long long flags)
{
    FAKE_CALL(cuMemCreate, FAKE_CONTEXT | FAKE_UNSAFE);
    CUresult result = check_prop(prop);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out || bytes == 0 || bytes % FAKE_GRANULE != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUcontext context = fake_current();
    if (!fake_memory_take(context, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct fake_block *block;
    int rc = fake_block_create(FAKE_VMM, bytes, prop->location.id, (uint32_t)prop->requestedHandleTypes, &block);
    if (rc != 0)
        fake_abort("cuMemCreate of %zu bytes: %s", bytes, strerror(-rc));
    block->owner = context;
    FAKE_COUNT(allocated_bytes, bytes);
    fake_handle_keep(block, out);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    FAKE_CALL(cuMemRelease, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    struct fake_block *block = fake_handle_find(handle);
    if (block) {
        block->references--;
        FAKE_COUNT(vmm_handles, -1);
        drop_if_unused(block);
    }
    fake_unlock();
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr hint,
                                      unsigned long long flags)
{
    FAKE_CALL(cuMemAddressReserve, FAKE_CONTEXT);
    (void)hint; /* only a wish */
    if (!out || bytes == 0 || bytes % FAKE_GRANULE != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *base = fake_space_reserve(bytes, alignment);
    struct reservation *r = calloc(1, sizeof *r);
    if (!base || !r) {
        free(r);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *r = (struct reservation){.base = (uint64_t)(uintptr_t)base, .bytes = bytes};
    fake_lock();
    r->next = reservations;
    reservations = r;
    fake_unlock();
    FAKE_COUNT(vmm_reservations, 1);
    *out = r->base;
    return CUDA_SUCCESS;
}

static bool anything_mapped(uint64_t base, uint64_t bytes)
{
    for (const struct fake_range *r = fake_range_first(); r; r = r->next)
        if (r->base < base + bytes && base < r->base + r->bytes)
            return true;
    return false;
}

FAKE_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    FAKE_CALL(cuMemAddressFree, FAKE_CONTEXT);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    for (struct reservation **at = &reservations; *at; at = &(*at)->next) {
        struct reservation *r = *at;
        if (r->base != address || r->bytes != bytes || anything_mapped(address, bytes))
            continue;
        *at = r->next;
        fake_space_release((void *)(uintptr_t)r->base, r->bytes);
        free(r);
        FAKE_COUNT(vmm_reservations, -1);
        result = CUDA_SUCCESS;
        break;
    }
    fake_unlock();
    return result;
}

static bool is_reserved(uint64_t address, uint64_t bytes)
{
    for (const struct reservation *r = reservations; r; r = r->next)
        if (address >= r->base && bytes <= r->bytes && address - r->base <= r->bytes - bytes)
            return true;
    return false;
}

/* From the allocation's beginning, as the driver wants it; no access until cuMemSetAccess. */
FAKE_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags)
{
    FAKE_CALL(cuMemMap, FAKE_CONTEXT);
    fake_lock();
    struct fake_block *block = fake_handle_find(handle);
    bool fine = block && bytes > 0 && bytes <= block->bytes && bytes % FAKE_GRANULE == 0 && offset == 0 && flags == 0 &&
                address % FAKE_GRANULE == 0 && is_reserved(address, bytes) && !anything_mapped(address, bytes);
    bool part = fine && bytes < block->bytes; /* the driver maps whole allocations only */
    fine = fine && !part;
    if (fine) {
        if (fake_block_map(block, (void *)(uintptr_t)address, bytes, PROT_NONE) != 0)
            fake_abort("cuMemMap: %s", strerror(errno));
        block->mappings++;
        fake_range_add(FAKE_MAPPING, address, bytes, block);
        FAKE_COUNT(vmm_mappings, 1);
    }
    fake_unlock();
    return fine ? CUDA_SUCCESS : part ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
}

/* Whether [address, address + bytes) is whole mappings side by side. */
static bool whole_mappings(uint64_t address, uint64_t bytes)
{
    uint64_t end = address + bytes;
    while (address < end) {
        const struct fake_range *r = fake_range_find(address);
        if (!r || r->kind != FAKE_MAPPING || r->base != address || r->bytes > end - address)
            return false;
        address += r->bytes;
    }
    return bytes > 0;
}

FAKE_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    FAKE_CALL(cuMemUnmap, FAKE_CONTEXT);
    fake_lock();
    bool fine = whole_mappings(address, bytes);
    if (fine)
        fake_must_be_idle("cuMemUnmap", address, bytes);
    for (uint64_t at = address; fine && at < address + bytes;) {
        struct fake_range *r = fake_range_find(at);
        struct fake_block *block = r->block;
        at += r->bytes;
        fake_block_unmap((void *)(uintptr_t)r->base, r->bytes);
        fake_range_remove(r);
        block->mappings--;
        drop_if_unused(block);
        FAKE_COUNT(vmm_mappings, -1);
    }
    fake_unlock();
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    FAKE_CALL(cuMemSetAccess, FAKE_CONTEXT);
    if (!desc || count != 1 || desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !fake_device_ok(desc->location.id))
        return CUDA_ERROR_INVALID_VALUE;
    bool readable = desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE;
    bool writable = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    int access = writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE;
    fake_lock();
    bool fine = whole_mappings(address, bytes);
    for (uint64_t at = address; fine && at < address + bytes;) {
        struct fake_range *r = fake_range_find(at);
        if (mprotect((void *)(uintptr_t)r->base, r->bytes, access) != 0)
            fake_abort("cuMemSetAccess: %s", strerror(errno));
        r->readable = readable;
        r->writable = writable;
        at += r->bytes;
    }
    fake_unlock();
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    FAKE_CALL(cuMemGetAllocationPropertiesFromHandle, FAKE_CONTEXT);
    fake_lock();
    const struct fake_block *block = fake_handle_find(handle);
    if (block && prop) {
        memset(prop, 0, sizeof *prop);
        prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop->requestedHandleTypes = (CUmemAllocationHandleType)block->handle_types;
        prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop->location.id = block->device;
    }
    fake_unlock();
    return block && prop ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    FAKE_CALL(cuMemRetainAllocationHandle, FAKE_CONTEXT);
    fake_lock();
    const struct fake_range *range = fake_range_find((uint64_t)(uintptr_t)address);
    bool fine = out && range && range->kind == FAKE_MAPPING;
    if (fine) {
        range->block->references++;
        FAKE_COUNT(vmm_handles, 1);
        *out = (CUmemGenericAllocationHandle)(uintptr_t)range->block;
    }
    fake_unlock();
    return fine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
