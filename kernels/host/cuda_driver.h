/* The CUDA driver, opened at run time, so that one binary runs with and without a GPU. A table of the entry points in
 * use: all of them or none. Nothing in the tree links libcuda.
 *
 * Threads: the table is constant once opened and may be used from any thread, as the driver itself.
 */
#ifndef MLA_KERNELS_CUDA_DRIVER_H
#define MLA_KERNELS_CUDA_DRIVER_H

#include <cuda.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name): member cuName of the table; the symbol is what cuda.h maps the name to (cuMemAlloc -> cuMemAlloc_v2). */
#define CUDA_DRIVER_LIST(X)                                                                                            \
    X(cuInit)                                                                                                          \
    X(cuDriverGetVersion)                                                                                              \
    X(cuGetErrorName)                                                                                                  \
    X(cuGetErrorString)                                                                                                \
    X(cuDeviceGet)                                                                                                     \
    X(cuDeviceGetCount)                                                                                                \
    X(cuDeviceGetName)                                                                                                 \
    X(cuDeviceGetUuid)                                                                                                 \
    X(cuDeviceGetAttribute)                                                                                            \
    X(cuDeviceTotalMem)                                                                                                \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuDevicePrimaryCtxRelease)                                                                                       \
    X(cuDevicePrimaryCtxSetFlags)                                                                                      \
    X(cuCtxGetCurrent)                                                                                                 \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuCtxGetDevice)                                                                                                  \
    X(cuCtxSynchronize)                                                                                                \
    X(cuModuleLoadData)                                                                                                \
    X(cuModuleLoadDataEx)                                                                                              \
    X(cuModuleUnload)                                                                                                  \
    X(cuModuleGetFunction)                                                                                             \
    X(cuFuncSetAttribute)                                                                                              \
    X(cuFuncGetAttribute)                                                                                              \
    X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                                                                     \
    X(cuOccupancyMaxActiveClusters)                                                                                    \
    X(cuLaunchKernelEx)                                                                                                \
    X(cuTensorMapEncodeTiled)                                                                                          \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemGetInfo)                                                                                                    \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemFreeHost)                                                                                                   \
    X(cuMemHostGetDevicePointer)                                                                                       \
    X(cuMemHostRegister)                                                                                               \
    X(cuMemHostUnregister)                                                                                             \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemcpyHtoD)                                                                                                    \
    X(cuMemcpyDtoH)                                                                                                    \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuPointerGetAttribute)                                                                                           \
    X(cuIpcGetMemHandle)                                                                                               \
    X(cuIpcOpenMemHandle)                                                                                              \
    X(cuIpcCloseMemHandle)                                                                                             \
    X(cuMemCreate)                                                                                                     \
    X(cuMemRelease)                                                                                                    \
    X(cuMemAddressReserve)                                                                                             \
    X(cuMemAddressFree)                                                                                                \
    X(cuMemMap)                                                                                                        \
    X(cuMemUnmap)                                                                                                      \
    X(cuMemSetAccess)                                                                                                  \
    X(cuMemGetAllocationGranularity)                                                                                   \
    X(cuMemGetAllocationPropertiesFromHandle)                                                                          \
    X(cuMemRetainAllocationHandle)                                                                                     \
    X(cuMemExportToShareableHandle)                                                                                    \
    X(cuMemImportFromShareableHandle)                                                                                  \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamQuery)                                                                                                   \
    X(cuStreamWriteValue64)                                                                                            \
    X(cuStreamWaitValue64)                                                                                             \
    X(cuStreamWaitEvent)                                                                                               \
    X(cuStreamBeginCapture)                                                                                            \
    X(cuStreamEndCapture)                                                                                              \
    X(cuGraphInstantiate)                                                                                              \
    X(cuGraphLaunch)                                                                                                   \
    X(cuGraphExecDestroy)                                                                                              \
    X(cuGraphDestroy)                                                                                                  \
    X(cuEventCreate)                                                                                                   \
    X(cuEventDestroy)                                                                                                  \
    X(cuEventRecord)                                                                                                   \
    X(cuEventQuery)                                                                                                    \
    X(cuEventSynchronize)                                                                                              \
    X(cuEventElapsedTime)

struct cuda_driver {
    void *library;
    int version; /* cuDriverGetVersion: 1000 * major + 10 * minor */
#define CUDA_DRIVER_MEMBER(name) __typeof__(&name) name;
    CUDA_DRIVER_LIST(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
};

/* Opens path (NULL: $MLA_CUDA_DRIVER, else libcuda.so.1), resolves every entry point, checks that the driver's version
 * is at least that of the headers' major, and calls cuInit. 0; -ENOENT: no such library (no GPU driver on this
 * machine); -ENOSYS: an entry point is missing or the driver is too old; -ENODEV: cuInit found no device; why says
 * which. */
int cuda_driver_open(const char *path, struct cuda_driver *driver, char *why, size_t why_bytes);
void cuda_driver_close(struct cuda_driver *driver);

/* "CUDA_ERROR_INVALID_VALUE: invalid argument"; good until this thread's next call. Never NULL. */
const char *cuda_driver_error(const struct cuda_driver *driver, CUresult result);

#ifdef __cplusplus
}
#endif

#endif
