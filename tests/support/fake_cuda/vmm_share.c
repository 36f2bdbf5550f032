/* VMM memory across processes: the descriptor is the memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>

#include "tests/support/fake_cuda/fake.h"

FAKE_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                               CUmemAllocationHandleType type, unsigned long long flags)
{
    FAKE_CALL(cuMemExportToShareableHandle, FAKE_CONTEXT);
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    const struct fake_block *block = fake_handle_find(handle);
    int fd = -1;
    if (block && (block->handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        fd = fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
    fake_unlock();
    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

/* The descriptor stays the caller's. */
FAKE_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *descriptor,
                                                 CUmemAllocationHandleType type)
{
    FAKE_CALL(cuMemImportFromShareableHandle, FAKE_CONTEXT);
    if (!fake_config()->vmm)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    struct fake_block *block;
    int rc = fake_block_adopt((int)(intptr_t)descriptor, FAKE_VMM, &block);
    if (rc == -ENODEV)
        return CUDA_ERROR_INVALID_DEVICE;
    if (rc != 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_handle_keep(block, out);
    return CUDA_SUCCESS;
}
