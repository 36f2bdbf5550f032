/* cuMemCreate memory of other processes: allocations by descriptor, mapped one behind the other into one range of
 * addresses, with no more access than the region declares. */
#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cuda/gpu.h"

static int refuse_part(struct mla_error *err, enum mla_status code, const char *field, size_t index, uint64_t value,
                       uint64_t limit, const char *text)
{
    mla_error_set(err, code, field, "%s", text);
    err->index = index;
    err->value = value;
    err->limit = limit;
    return (int)code;
}

/* Bytes that are mapped for a part: the whole allocation, since the driver maps no other way (a smaller range is
 * CUDA_ERROR_NOT_SUPPORTED). */
static uint64_t span(const struct be_part *part, uint64_t granularity)
{
    uint64_t end = part->allocation_size > 0 ? part->allocation_size : part->offset + part->size;
    return (end + granularity - 1) / granularity * granularity;
}

static int check_parts(const struct be_region *region, uint64_t granularity, size_t *total, struct mla_error *err)
{
    uint64_t declared = 0, sum = 0;
    for (size_t i = 0; i < region->n_parts; i++) {
        const struct be_part *part = &region->parts[i];
        bool last = i + 1 == region->n_parts;
        uint64_t end;
        if (part->size == 0)
            return refuse_part(err, MLA_INVALID_ARGUMENT, "parts.size", i, 0, 1, "a part has at least one byte");
        if (__builtin_add_overflow(part->offset, part->size, &end) || end > (UINT64_C(1) << 48))
            return refuse_part(err, MLA_OUT_OF_BOUNDS, "parts.size", i, part->size, UINT64_C(1) << 48,
                               "no allocation is that large");
        if (i > 0 && part->offset != 0)
            return refuse_part(err, MLA_INVALID_ARGUMENT, "parts.offset", i, part->offset, 0,
                               "only the first part of a region may begin inside its allocation; register two regions");
        if (part->allocation_size > (UINT64_C(1) << 48) || (part->allocation_size > 0 && part->allocation_size < end))
            return refuse_part(err, MLA_OUT_OF_BOUNDS, "parts.allocation_size", i, part->allocation_size, end,
                               "the allocation must hold offset + size");
        if (!last && (end % granularity != 0 || span(part, granularity) != end))
            return refuse_part(err, MLA_MISALIGNED, "parts.size", i, end, granularity,
                               "a part that another one follows ends where its allocation does, at a multiple of the "
                               "device's granularity");
        declared += part->size;
        sum += span(part, granularity);
    }
    if (region->n_parts == 0 || declared != region->size)
        return refuse_part(err, MLA_INVALID_ARGUMENT, "parts", region->n_parts, declared, region->size,
                           "the parts together must have the region's size");
    *total = (size_t)sum;
    return 0;
}

static int check_allocation(struct backend *be, CUmemGenericAllocationHandle handle, size_t index, uint64_t granularity,
                            struct mla_error *err)
{
    CUmemAllocationProp prop;
    size_t own = 0;
    memset(&prop, 0, sizeof prop);
    CUresult r = be->cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemGetAllocationPropertiesFromHandle", MLA_BAD_HANDLE, "parts.fd",
                         "the allocation cannot be examined");
    if (prop.type != CU_MEM_ALLOCATION_TYPE_PINNED || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return refuse_part(err, MLA_UNSUPPORTED, "parts.fd", index, (uint64_t)prop.location.type,
                           CU_MEM_LOCATION_TYPE_DEVICE,
                           "the allocation is not device memory; offer memory that cuMemCreate made on the GPU");
    if (prop.location.id != (int)be->device) {
        mla_error_set(err, MLA_WRONG_DEVICE, "parts.fd",
                      "the allocation lives on GPU %d, the daemon serves %s; allocate it there", prop.location.id,
                      be->facts.gpu_uuid);
        err->index = index;
        return MLA_WRONG_DEVICE;
    }
    r = be->cu.cuMemGetAllocationGranularity(&own, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemGetAllocationGranularity", MLA_BAD_HANDLE, "parts.fd",
                         "the allocation's granularity cannot be told");
    if (own > granularity)
        return refuse_part(err, MLA_MISALIGNED, "parts.fd", index, own, granularity,
                           "the allocation has a coarser granularity than others on this GPU; offer a plain one");
    return 0;
}

static int map_part(struct backend *be, const struct be_region *region, size_t index, uint64_t granularity,
                    struct cu_mapping *m, struct mla_error *err)
{
    const struct be_part *part = &region->parts[index];
    CUmemGenericAllocationHandle handle = 0;
    /* The driver takes a descriptor as a pointer-sized number. */
    CUresult r = be->cu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)(unsigned)part->fd,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r != CUDA_SUCCESS) {
        bool elsewhere = r == CUDA_ERROR_INVALID_DEVICE;
        int rc = cu_refuse(be, err, r, "cuMemImportFromShareableHandle", elsewhere ? MLA_WRONG_DEVICE : MLA_BAD_HANDLE,
                           "parts.fd",
                           elsewhere ? "the allocation lives on another GPU than the daemon's; allocate it on that one"
                                     : "the descriptor is not a CUDA allocation that can be imported here; export "
                                       "cuMemCreate memory as POSIX_FILE_DESCRIPTOR");
        err->index = index;
        return rc;
    }
    int rc = check_allocation(be, handle, index, granularity, err);
    size_t bytes = (size_t)span(part, granularity);
    if (rc == 0) {
        r = be->cu.cuMemMap(m->va + m->mapped_bytes, bytes, 0, handle, 0);
        if (r == CUDA_SUCCESS) {
            m->mapped_bytes += bytes;
            m->part_bytes[m->n_mapped++] = bytes;
        } else {
            rc = cu_refuse(be, err, r, "cuMemMap", MLA_OUT_OF_BOUNDS, "parts.size",
                           "the allocation cannot be mapped as declared: offset + size must lie inside it, and "
                           "allocation_size must be its own");
            err->index = index;
        }
    }
    /* A mapping keeps its allocation; the handle is of no use afterwards. */
    if (!be->lost)
        cu_ok(be, be->cu.cuMemRelease(handle), "cuMemRelease");
    return rc != 0 || !be->lost ? rc : (int)MLA_DEVICE_LOST;
}

static int give_access(struct backend *be, const struct be_region *region, struct cu_mapping *m, struct mla_error *err)
{
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = (int)be->device;
    access.flags =
        region->access == MLA_ACCESS_READ_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
    CUresult r = be->cu.cuMemSetAccess(m->va, m->va_bytes, &access, 1);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemSetAccess", MLA_ACCESS_DENIED, "access",
                         "the GPU does not get that access to the allocation");
    return 0;
}

static int granularity_of(struct backend *be, size_t *granularity, struct mla_error *err)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = (int)be->device;
    CUresult r = be->cu.cuMemGetAllocationGranularity(granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (r != CUDA_SUCCESS || *granularity == 0)
        return cu_refuse(be, err, r, "cuMemGetAllocationGranularity", MLA_UNSUPPORTED, "kind",
                         "this GPU does not map memory by descriptors");
    return 0;
}

int cu_vmm_map(struct backend *be, struct be_region *region, struct cu_mapping *m, struct mla_error *err)
{
    size_t granularity = 0;
    if (!(be->facts.features & MLA_FEATURE_CUDA_VMM))
        return mla_error_set(err, MLA_UNSUPPORTED, "kind",
                             "this GPU does not map memory by descriptors; offer cudaMalloc memory as CUDA_IPC");
    int rc = granularity_of(be, &granularity, err);
    if (rc == 0)
        rc = check_parts(region, granularity, &m->va_bytes, err);
    if (rc != 0)
        return rc;
    m->part_bytes = calloc(region->n_parts, sizeof *m->part_bytes);
    if (!m->part_bytes)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the region");
    CUresult r = be->cu.cuMemAddressReserve(&m->va, m->va_bytes, granularity, 0, 0);
    if (r != CUDA_SUCCESS) {
        free(m->part_bytes);
        return cu_refuse(be, err, r, "cuMemAddressReserve", MLA_OUT_OF_MEMORY, "size",
                         "no range of addresses for the region");
    }
    for (size_t i = 0; i < region->n_parts && rc == 0; i++)
        rc = map_part(be, region, i, granularity, m, err);
    if (rc == 0)
        rc = give_access(be, region, m, err);
    if (rc != 0) {
        struct mla_error ignored;
        cu_vmm_unmap(be, m, &ignored);
        return rc;
    }
    region->address = (uint64_t)m->va + region->parts[0].offset;
    return 0;
}

int cu_vmm_unmap(struct backend *be, struct cu_mapping *m, struct mla_error *err)
{
    int rc = 0;
    CUdeviceptr at = m->va;
    for (size_t i = 0; i < m->n_mapped && !be->lost; i++) {
        CUresult r = be->cu.cuMemUnmap(at, m->part_bytes[i]);
        if (r != CUDA_SUCCESS)
            rc = cu_refuse(be, err, r, "cuMemUnmap", MLA_INTERNAL, NULL, "an allocation stays mapped");
        at += m->part_bytes[i];
    }
    free(m->part_bytes);
    m->part_bytes = NULL;
    if (rc != 0 || be->lost)
        return rc;
    CUresult r = be->cu.cuMemAddressFree(m->va, m->va_bytes);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemAddressFree", MLA_INTERNAL, NULL, "the range of addresses stays reserved");
    return 0;
}
