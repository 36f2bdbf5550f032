#include "client/cuda/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define PARTS_MAX 4096u /* of a region */

static CUresult attribute(const struct cuda_driver *cu, void *out, CUpointer_attribute which, CUdeviceptr at)
{
    return cu->cuPointerGetAttribute(out, which, at);
}

enum mla_status mlacu_memory_gpu(const struct cuda_driver *cu, CUdeviceptr address, char out[48])
{
    int ordinal = -1;
    CUdevice device;
    CUuuid uuid;
    CUresult r = attribute(cu, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
    if (r == CUDA_SUCCESS)
        r = cu->cuDeviceGet(&device, ordinal);
    if (r == CUDA_SUCCESS)
        r = cu->cuDeviceGetUuid(&uuid, device);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "the memory's GPU");
    const unsigned char *b = (const unsigned char *)uuid.bytes;
    int n = snprintf(out, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, 48 - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", b[i]);
    return MLA_OK;
}

/* ---- what it is ---- */

/* Memory of the device itself, whoever allocated it. */
static enum mla_status check_type(const struct cuda_driver *cu, CUdeviceptr address)
{
    unsigned type = 0;
    unsigned char managed = 0; /* the driver writes one byte */
    CUresult r = attribute(cu, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
    if (r == CUDA_ERROR_INVALID_VALUE)
        return mlacu_fail(MLA_INVALID_ARGUMENT, "address",
                          "this is not memory that CUDA knows; device memory comes from cudaMalloc or cuMemCreate");
    if (r == CUDA_SUCCESS)
        r = attribute(cu, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuPointerGetAttribute");
    if (managed)
        return mlacu_fail(MLA_UNSUPPORTED, "address",
                          "managed memory cannot be handed to another process; use cudaMalloc or cuMemCreate");
    if (type != CU_MEMORYTYPE_DEVICE)
        return mlacu_fail(MLA_UNSUPPORTED, "address",
                          "host memory, pinned or not, is not what the daemon decodes from; use cudaMalloc or "
                          "cuMemCreate, and a sync page for words");
    return MLA_OK;
}

/* Without a legacy handle, and without one of the virtual memory calls. */
static enum mla_status no_handle(const struct cuda_driver *cu, CUdeviceptr address)
{
    CUmemoryPool pool = NULL;
    if (attribute(cu, &pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS && pool)
        return mlacu_fail(MLA_UNSUPPORTED, "address",
                          "memory of a cudaMallocAsync pool has no handle of its own; use cudaMalloc, or cuMemCreate "
                          "with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    return mlacu_fail(
        MLA_UNSUPPORTED, "address",
        "this memory has neither a CUDA IPC handle nor one of cuMemCreate; use cudaMalloc, or cuMemCreate "
        "with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR where CUDA IPC is not available");
}

/* ---- cudaMalloc ---- */

static enum mla_status find_legacy(const struct cuda_driver *cu, CUdeviceptr address, uint64_t bytes,
                                   struct mlacu_memory *out)
{
    CUdeviceptr base = 0;
    size_t block_bytes = 0;
    CUresult r = cu->cuMemGetAddressRange(&base, &block_bytes, address);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuMemGetAddressRange");
    uint64_t there = base + block_bytes - address;
    if (bytes > there)
        return mlacu_out_of_range("bytes", bytes, there, "the range leaves its allocation");
    r = cu->cuIpcGetMemHandle(&out->handle, base);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuIpcGetMemHandle");
    out->kind = MLA_REGION_CUDA_IPC;
    out->offset = address - base;
    out->block_bytes = block_bytes;
    return MLA_OK;
}

/* ---- cuMemMap ---- */

/* The mapping at an address. Drivers that do not know its own attributes have one answer for both. */
static CUresult mapping_at(const struct cuda_driver *cu, CUdeviceptr at, CUdeviceptr *base, size_t *bytes)
{
    if (attribute(cu, base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at) == CUDA_SUCCESS &&
        attribute(cu, bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at) == CUDA_SUCCESS && *bytes != 0 &&
        at - *base < *bytes)
        return CUDA_SUCCESS;
    return cu->cuMemGetAddressRange(base, bytes, at);
}

static enum mla_status add_part(struct mlacu_memory *m, CUdeviceptr at, uint64_t offset, uint64_t bytes,
                                uint64_t mapped)
{
    if (m->n_parts == PARTS_MAX)
        return mlacu_fail(MLA_TOO_LARGE, "bytes", "the range covers more than %u allocations; register several regions",
                          PARTS_MAX);
    if ((m->n_parts & (m->n_parts - 1)) == 0) { /* the arrays double */
        size_t cap = m->n_parts ? 2 * m->n_parts : 1;
        struct mla_vmm_part *parts = realloc(m->parts, cap * sizeof(*parts));
        if (parts)
            m->parts = parts;
        CUdeviceptr *addresses = parts ? realloc(m->addresses, cap * sizeof(*addresses)) : NULL;
        if (!addresses)
            return mlacu_fail(MLA_OUT_OF_MEMORY, NULL, "no memory for the list of allocations");
        m->addresses = addresses;
    }
    m->addresses[m->n_parts] = at;
    m->parts[m->n_parts++] =
        (struct mla_vmm_part){.fd = -1, .offset = offset, .bytes = bytes, .allocation_bytes = mapped};
    return MLA_OK;
}

static enum mla_status find_parts(const struct cuda_driver *cu, CUdeviceptr address, uint64_t bytes,
                                  struct mlacu_memory *out)
{
    out->kind = MLA_REGION_CUDA_VMM;
    int first = -1;
    for (uint64_t done = 0; done < bytes;) {
        CUdeviceptr at = address + done, base = 0;
        size_t mapped = 0;
        int ordinal = -1;
        CUresult r = attribute(cu, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
        if (r == CUDA_SUCCESS)
            r = mapping_at(cu, at, &base, &mapped);
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_VALUE && r != CUDA_ERROR_NOT_FOUND)
            return mlacu_driver_error(cu, r, "the allocation's range");
        if (r != CUDA_SUCCESS || base > at || mapped <= at - base)
            return mlacu_out_of_range("bytes", bytes, done, "nothing is mapped behind part of the range");
        if (done && ordinal != first)
            return mlacu_fail(MLA_WRONG_DEVICE, "address", "the range lies on several GPUs");
        first = ordinal;
        uint64_t part = mapped - (at - base) < bytes - done ? mapped - (at - base) : bytes - done;
        enum mla_status status = add_part(out, at, at - base, part, mapped);
        if (status != MLA_OK)
            return status;
        done += part;
    }
    return MLA_OK;
}

/* Whether the virtual memory calls know it: it has a handle to export. */
static bool is_mapped(const struct cuda_driver *cu, CUdeviceptr address)
{
    CUmemGenericAllocationHandle handle;
    if (cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address) != CUDA_SUCCESS)
        return false;
    cu->cuMemRelease(handle);
    return true;
}

int mlacu_memory_open(void *memory, size_t part)
{
    const struct mlacu_memory *m = memory;
    const struct cuda_driver *cu = m->cu;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    int fd = -1;
    memset(&prop, 0, sizeof(prop));
    CUresult r = cu->cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)m->addresses[part]);
    if (r != CUDA_SUCCESS) {
        mlacu_driver_error(cu, r, "cuMemRetainAllocationHandle");
        return -EIO;
    }
    r = cu->cuMemGetAllocationPropertiesFromHandle(&prop, handle);
    if (r != CUDA_SUCCESS) {
        mlacu_driver_error(cu, r, "cuMemGetAllocationPropertiesFromHandle");
    } else if (!(prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)) {
        mlacu_fail(MLA_UNSUPPORTED, "address",
                   "allocation %zu of the range cannot be exported; cuMemCreate it with requestedHandleTypes = "
                   "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR",
                   part);
    } else {
        r = cu->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        if (r != CUDA_SUCCESS)
            mlacu_driver_error(cu, r, "cuMemExportToShareableHandle");
    }
    cu->cuMemRelease(handle);
    return fd >= 0 ? fd : -EIO;
}

/* ---- both ---- */

enum mla_status mlacu_memory_find(const struct cuda_driver *cu, CUdeviceptr address, uint64_t bytes,
                                  struct mlacu_memory *out)
{
    unsigned char legacy = 0;
    memset(out, 0, sizeof(*out));
    out->cu = cu;
    if (!bytes || bytes > UINT64_MAX - address)
        return mlacu_fail(MLA_INVALID_ARGUMENT, "bytes", "a region has at least one byte, and ends before 2^64");
    enum mla_status status = check_type(cu, address);
    if (status != MLA_OK)
        return status;
    CUresult r = attribute(cu, &legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuPointerGetAttribute");
    if (legacy)
        return find_legacy(cu, address, bytes, out);
    if (!is_mapped(cu, address))
        return no_handle(cu, address);
    status = find_parts(cu, address, bytes, out);
    if (status != MLA_OK)
        mlacu_memory_free(out);
    return status;
}

void mlacu_memory_free(struct mlacu_memory *memory)
{
    free(memory->parts);
    free(memory->addresses);
    memory->parts = NULL;
    memory->addresses = NULL;
}
