/* Legacy IPC: a handle names the exporter's descriptor of the memory. An importer opens that through /proc once and
 * keeps it, so its mapping outlives the exporter. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"

#define MAGIC UINT32_C(0x6370696d)

struct handle {
    uint32_t magic;
    int32_t pid;
    int32_t fd;
    uint32_t reserved;
    uint64_t serial; /* of the allocation: another one at the same address has another handle */
    uint64_t bytes;
    unsigned char uuid[16];
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

FAKE_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    FAKE_CALL(cuIpcGetMemHandle, FAKE_CONTEXT);
    if (!fake_config()->ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct handle handle = {.magic = MAGIC, .pid = getpid()};
    fake_lock();
    const struct fake_range *range = fake_range_find(address);
    bool capable = out && range && range->kind == FAKE_DEVICE;
    if (capable) {
        handle.fd = range->block->fd;
        handle.serial = range->block->serial;
        handle.bytes = range->bytes;
        fake_device_uuid(range->block->device, handle.uuid);
    }
    fake_unlock();
    if (!capable)
        return CUDA_ERROR_INVALID_VALUE;
    memset(out, 0, sizeof *out);
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

/* The block behind a handle; CUDA_ERROR_INVALID_VALUE when the exporter is gone or has freed it. */
static CUresult adopt(const struct handle *handle, struct fake_block **out)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int rc = fake_block_adopt(fd, FAKE_LEGACY, out);
    close(fd);
    if (rc != 0)
        return rc == -ENODEV ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    if ((*out)->serial == handle->serial)
        return CUDA_SUCCESS;
    fake_block_free(*out);
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult open_block(const struct handle *handle, struct fake_range **out)
{
    struct fake_block *block;
    CUresult result = adopt(handle, &block);
    if (result != CUDA_SUCCESS)
        return result;
    void *base = fake_space_reserve(block->bytes, 0);
    if (base && fake_block_map(block, base, block->bytes, PROT_READ | PROT_WRITE) == 0) {
        *out = fake_range_add(FAKE_IPC, (uint64_t)(uintptr_t)base, block->bytes, block);
        FAKE_COUNT(ipc_mappings, 1);
        return CUDA_SUCCESS;
    }
    if (base)
        fake_space_release(base, block->bytes);
    fake_block_free(block);
    return CUDA_ERROR_MAP_FAILED;
}

static struct fake_range *find_open(uint64_t serial)
{
    for (struct fake_range *r = fake_range_first(); r; r = r->next)
        if (r->kind == FAKE_IPC && r->block->serial == serial)
            return r;
    return NULL;
}

FAKE_API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle bytes, unsigned int flags)
{
    FAKE_CALL(cuIpcOpenMemHandle, FAKE_CONTEXT | FAKE_UNSAFE);
    struct handle handle;
    memcpy(&handle, &bytes, sizeof handle);
    if (!fake_config()->ipc)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!out || handle.magic != MAGIC || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;

    fake_lock();
    struct fake_range *range = find_open(handle.serial);
    CUresult result = range ? CUDA_SUCCESS : open_block(&handle, &range);
    if (result == CUDA_SUCCESS) {
        range->opens++;
        FAKE_COUNT(ipc_opens, 1);
        *out = range->base;
    }
    fake_unlock();
    return result;
}

FAKE_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    FAKE_CALL(cuIpcCloseMemHandle, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    struct fake_range *range = fake_range_find(address);
    if (!range || range->kind != FAKE_IPC || range->base != address) {
        fake_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    FAKE_COUNT(ipc_opens, -1);
    if (--range->opens == 0) {
        fake_must_be_idle("cuIpcCloseMemHandle", range->base, range->bytes);
        fake_space_release((void *)(uintptr_t)range->base, range->bytes);
        fake_block_free(range->block);
        fake_range_remove(range);
        FAKE_COUNT(ipc_mappings, -1);
    }
    fake_unlock();
    return CUDA_SUCCESS;
}
