#include "tests/bench/gpu/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gpu_must(const struct gpu *gpu, CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "\nmla-bench: %s: %s\n", call, cuda_driver_error(&gpu->driver, result));
    exit(2);
}

void *gpu_array(size_t n, size_t bytes)
{
    void *memory = calloc(n + 1, bytes);
    if (!memory) {
        fprintf(stderr, "\nmla-bench: no memory\n");
        exit(2);
    }
    return memory;
}

static void note_uuid(struct gpu *gpu, const CUuuid *uuid)
{
    size_t at = (size_t)snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-");
    for (size_t i = 0; i < sizeof uuid->bytes; i++)
        at += (size_t)snprintf(gpu->uuid + at, sizeof gpu->uuid - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", (unsigned char)uuid->bytes[i]);
}

int gpu_open(struct gpu *gpu)
{
    char why[512] = "";
    CUcontext context;
    CUuuid uuid;
    memset(gpu, 0, sizeof *gpu);
    int rc = cuda_driver_open(NULL, &gpu->driver, why, sizeof why);
    if (rc != 0) {
        fprintf(stderr, "mla-bench: skipped: %s\n", why);
        return -ENODEV;
    }
    GPU(gpu, cuDeviceGet(&gpu->device, 0));
    GPU(gpu, cuDevicePrimaryCtxRetain(&context, gpu->device));
    GPU(gpu, cuCtxSetCurrent(context));
    GPU(gpu, cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING));
    GPU(gpu, cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->device));
    GPU(gpu, cuDeviceGetUuid(&uuid, gpu->device));
    GPU(gpu, cuDeviceGetAttribute(&gpu->sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device));
    note_uuid(gpu, &uuid);
    return 0;
}

void gpu_upload(const struct gpu *gpu, CUdeviceptr to, const void *from, uint64_t bytes)
{
    GPU(gpu, cuMemcpyHtoD(to, from, bytes));
    GPU(gpu, cuCtxSynchronize());
}

void gpu_close(struct gpu *gpu)
{
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    GPU(gpu, cuStreamDestroy(gpu->stream));
    GPU(gpu, cuDevicePrimaryCtxRelease(gpu->device));
    cuda_driver_close(&gpu->driver);
}

CUdeviceptr gpu_alloc(const struct gpu *gpu, uint64_t bytes)
{
    CUdeviceptr memory = 0;
    GPU(gpu, cuMemAlloc(&memory, bytes != 0 ? bytes : 1));
    return memory;
}

void gpu_free(const struct gpu *gpu, CUdeviceptr memory)
{
    if (memory != 0)
        GPU(gpu, cuMemFree(memory));
}
