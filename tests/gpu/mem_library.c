/* Memory of the library's rig: device memory with a copy here, and pinned host memory. */
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/rig_library.h"

/* Guarded memory ends where the mapped part of a reserved range does (mem->region.impl). */
struct guarded {
    CUdeviceptr range;
    size_t range_bytes;
    size_t mapped_bytes;
    CUmemGenericAllocationHandle handle;
};

static CUmemAllocationProp device_memory(void)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = lib.device}};
}

/* The last byte is the last one that is mapped; nothing is behind it. */
static void take_guarded(struct mem *mem)
{
    CUmemAllocationProp what = device_memory();
    struct guarded *g = calloc(1, sizeof(*g));
    size_t granularity;
    ck_assert_ptr_nonnull(g);
    LIB_OK(cuMemGetAllocationGranularity(&granularity, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    g->mapped_bytes = (mem->bytes + granularity - 1) / granularity * granularity;
    g->range_bytes = g->mapped_bytes + granularity;
    CUmemAccessDesc access = {.location = what.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    LIB_OK(cuMemCreate(&g->handle, g->mapped_bytes, &what, 0));
    LIB_OK(cuMemAddressReserve(&g->range, g->range_bytes, 0, 0, 0));
    LIB_OK(cuMemMap(g->range, g->mapped_bytes, 0, g->handle, 0));
    LIB_OK(cuMemSetAccess(g->range, g->mapped_bytes, &access, 1));
    mem->address = g->range + g->mapped_bytes - mem->bytes;
    mem->region.impl = g;
}

static void drop_guarded(struct guarded *g)
{
    LIB_OK(cuMemUnmap(g->range, g->mapped_bytes));
    LIB_OK(cuMemRelease(g->handle));
    LIB_OK(cuMemAddressFree(g->range, g->range_bytes));
    free(g);
}

static void device_take(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags)
{
    (void)rig;
    mem->host = calloc(bytes, 1);
    ck_assert_ptr_nonnull(mem->host);
    if (flags & MEM_GUARD) {
        take_guarded(mem);
        return;
    }
    CUdeviceptr address;
    LIB_OK(cuMemAlloc(&address, bytes));
    mem->address = address;
}

static void device_push(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    lib_upload(mem->address + offset, mem->host + offset, bytes);
}

static void device_pull(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    LIB_OK(cuMemcpyDtoH(mem->host + offset, mem->address + offset, bytes));
}

static void device_drop(struct rig *rig, struct mem *mem)
{
    (void)rig;
    if (mem->region.impl)
        drop_guarded(mem->region.impl);
    else
        LIB_OK(cuMemFree(mem->address));
    free(mem->host);
}

const struct mem_ops mem_cuda = {
    .name = "device", .take = device_take, .push = device_push, .pull = device_pull, .drop = device_drop};

static void pinned_take(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags)
{
    (void)rig;
    (void)flags;
    void *host;
    CUdeviceptr address;
    LIB_OK(cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
    LIB_OK(cuMemHostGetDevicePointer(&address, host, 0));
    memset(host, 0, bytes);
    mem->host = host;
    mem->address = address;
}

static void pinned_copy(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    ck_assert_uint_le(offset + bytes, mem->bytes);
}

static void pinned_drop(struct rig *rig, struct mem *mem)
{
    (void)rig;
    LIB_OK(cuMemFreeHost(mem->host));
}

const struct mem_ops mem_host = {
    .name = "pinned", .take = pinned_take, .push = pinned_copy, .pull = pinned_copy, .drop = pinned_drop};
