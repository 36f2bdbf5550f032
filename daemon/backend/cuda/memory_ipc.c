/* cudaMalloc memory of other processes. A handle stands for a whole allocation and may be opened once per process, so
 * that regions in the same allocation share the mapping. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cuda/gpu.h"

_Static_assert(sizeof(CUipcMemHandle) == 64, "the protocol carries 64 bytes");

/* What the driver's refusal of a handle means, and what would work. */
static int refuse_handle(struct backend *be, CUresult r, struct mla_error *err)
{
    const char *call = "cuIpcOpenMemHandle";
    switch (r) {
    case CUDA_ERROR_INVALID_CONTEXT:
        /* Not the loss of ours: the driver answers so for a handle of the process itself. */
        mla_error_set(err, MLA_BAD_HANDLE, "cuda_ipc",
                      "the handle was made by the daemon's own process; only memory of another process can be opened");
        err->value = (uint64_t)r;
        return MLA_BAD_HANDLE;
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED:
    case CUDA_ERROR_TOO_MANY_PEERS:
    case CUDA_ERROR_INVALID_DEVICE:
        return cu_refuse(be, err, r, call, MLA_WRONG_DEVICE, "cuda_ipc",
                         "the allocation lives on another GPU than the daemon's; allocate it on that one");
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_NOT_PERMITTED:
        return cu_refuse(be, err, r, call, MLA_UNSUPPORTED, "cuda_ipc",
                         "CUDA IPC is not available here (MIG devices and some containers forbid it); "
                         "offer cuMemCreate memory as CUDA_VMM");
    default:
        return cu_refuse(be, err, r, call, MLA_BAD_HANDLE, "cuda_ipc",
                         "no allocation can be opened by this handle: its process may be gone, or it is not "
                         "cudaMalloc memory; offer cuMemCreate memory as CUDA_VMM");
    }
}

static void close_handle(struct backend *be, CUdeviceptr address)
{
    if (!be->lost)
        cu_ok(be, be->cu.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle");
}

/* Which device the memory is on, and how far it reaches. */
static int examine(struct backend *be, struct cu_ipc *ipc, struct mla_error *err)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    int ordinal = -1;
    CUresult r = be->cu.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ipc->address);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuPointerGetAttribute", MLA_BAD_HANDLE, "cuda_ipc",
                         "the allocation's device cannot be told");
    if (ordinal != (int)be->device)
        return mla_error_set(err, MLA_WRONG_DEVICE, "cuda_ipc",
                             "the allocation lives on GPU %d, the daemon serves %s; allocate it there", ordinal,
                             be->facts.gpu_uuid);
    r = be->cu.cuMemGetAddressRange(&base, &bytes, ipc->address);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemGetAddressRange", MLA_BAD_HANDLE, "cuda_ipc",
                         "the allocation's size cannot be told");
    ipc->bytes = base + bytes - ipc->address;
    return 0;
}

static int open_handle(struct backend *be, const CUipcMemHandle *handle, struct cu_ipc **out, struct mla_error *err)
{
    struct cu_ipc *ipc = calloc(1, sizeof *ipc);
    if (!ipc)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the region");
    ipc->handle = *handle;
    CUresult r = be->cu.cuIpcOpenMemHandle(&ipc->address, *handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS) {
        free(ipc);
        return refuse_handle(be, r, err);
    }
    int rc = examine(be, ipc, err);
    if (rc != 0) {
        close_handle(be, ipc->address);
        free(ipc);
        return rc;
    }
    HASH_ADD(hh, be->ipc, handle, sizeof ipc->handle, ipc);
    *out = ipc;
    return 0;
}

static int drop(struct backend *be, struct cu_ipc *ipc, struct mla_error *err)
{
    if (--ipc->uses != 0)
        return 0;
    HASH_DELETE(hh, be->ipc, ipc);
    CUdeviceptr address = ipc->address;
    free(ipc);
    if (be->lost)
        return 0;
    CUresult r = be->cu.cuIpcCloseMemHandle(address);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuIpcCloseMemHandle", MLA_INTERNAL, NULL, "the allocation stays open");
    return 0;
}

/* What was declared against what is there. */
static int check(const struct be_region *region, const struct cu_ipc *ipc, struct mla_error *err)
{
    const char *field = NULL;
    uint64_t value = 0, limit = 0;
    if (region->block_size > ipc->bytes) {
        field = "block_size";
        value = region->block_size;
        limit = ipc->bytes;
        mla_error_set(err, MLA_OUT_OF_BOUNDS, field, "the allocation behind the handle has %" PRIu64 " bytes only",
                      limit);
    } else if (region->offset > region->block_size || region->size > region->block_size - region->offset) {
        field = "size";
        value = region->size;
        limit = region->offset > region->block_size ? 0 : region->block_size - region->offset;
        mla_error_set(err, MLA_OUT_OF_BOUNDS, field,
                      "the region leaves its allocation, which ends %" PRIu64 " bytes behind the offset", limit);
    }
    if (!field)
        return 0;
    err->value = value;
    err->limit = limit;
    return MLA_OUT_OF_BOUNDS;
}

int cu_ipc_map(struct backend *be, struct be_region *region, struct cu_mapping *m, struct mla_error *err)
{
    CUipcMemHandle handle;
    struct cu_ipc *ipc = NULL;
    if (!(be->facts.features & MLA_FEATURE_CUDA_IPC))
        return mla_error_set(err, MLA_UNSUPPORTED, "kind",
                             "this GPU does not share memory by CUDA IPC; offer cuMemCreate memory as CUDA_VMM");
    if (!region->ipc_handle)
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "cuda_ipc", "the region has no handle");
    if (region->size == 0)
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "size", "a region has at least one byte");
    memcpy(&handle, region->ipc_handle, sizeof handle);
    HASH_FIND(hh, be->ipc, &handle, sizeof handle, ipc);
    int rc = ipc ? 0 : open_handle(be, &handle, &ipc, err);
    if (rc != 0)
        return rc;
    ipc->uses++;
    rc = check(region, ipc, err);
    if (rc != 0) {
        struct mla_error ignored;
        drop(be, ipc, &ignored);
        return rc;
    }
    m->ipc = ipc;
    region->address = (uint64_t)ipc->address + region->offset;
    return 0;
}

int cu_ipc_unmap(struct backend *be, struct cu_mapping *m, struct mla_error *err)
{
    return drop(be, m->ipc, err);
}
