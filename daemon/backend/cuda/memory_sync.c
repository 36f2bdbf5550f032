/* Pages of words: sealed memfds that both processes map, pinned so that the stream can write them. */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/backend/memfd.h"

int cu_sync_map(struct backend *be, struct be_region *region, struct cu_mapping *m, struct mla_error *err)
{
    if (!region->sync)
        return mla_error_set(err, MLA_UNSUPPORTED, "kind",
                             "the CUDA backend takes memfds as sync pages only; data is device memory: CUDA_IPC for "
                             "cudaMalloc, CUDA_VMM for cuMemCreate and expandable segments");
    int rc = be_memfd_map(region, &m->host, err);
    if (rc != 0)
        return rc;
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    m->host_bytes = (region->size + page_bytes - 1) / page_bytes * page_bytes;
    CUresult r =
        be->cu.cuMemHostRegister(m->host, m->host_bytes, CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    const char *call = "cuMemHostRegister";
    m->registered = r == CUDA_SUCCESS;
    if (r == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        r = be->cu.cuMemHostGetDevicePointer(&m->device, m->host, 0);
    }
    if (r != CUDA_SUCCESS) {
        rc = cu_refuse(be, err, r, call, MLA_OUT_OF_MEMORY, "size", "the sync page cannot be pinned");
        struct mla_error ignored;
        cu_sync_unmap(be, m, &ignored);
        return rc;
    }
    region->host = m->host;
    region->address = (uint64_t)m->device;
    return 0;
}

int cu_sync_unmap(struct backend *be, struct cu_mapping *m, struct mla_error *err)
{
    int rc = 0;
    if (m->registered && !be->lost) {
        CUresult r = be->cu.cuMemHostUnregister(m->host);
        if (r != CUDA_SUCCESS)
            rc = cu_refuse(be, err, r, "cuMemHostUnregister", MLA_INTERNAL, NULL, "the sync page stays pinned");
    }
    /* Memory that is pinned still is not given back to the system under the driver's feet. */
    if (rc == 0 && !be->lost)
        munmap(m->host, m->host_bytes);
    return rc;
}

CUdeviceptr cu_sync_address(const struct backend *be, const uint64_t *word)
{
    uintptr_t at = (uintptr_t)word;
    list_for_each (node, &be->mappings) {
        const struct cu_mapping *m = list_entry(node, struct cu_mapping, node);
        uintptr_t begin = (uintptr_t)m->host;
        if (m->host && at >= begin && at - begin < m->host_bytes)
            return m->device + (at - begin);
    }
    return 0;
}
