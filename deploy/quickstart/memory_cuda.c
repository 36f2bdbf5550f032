/* Device memory of this process's GPU, as an engine has it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mla/cuda.h>

#include "deploy/quickstart/memory.h"
#include "kernels/host/cuda_driver.h"

static struct cuda_driver cu;

static int failed(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return 0;
    fprintf(stderr, "%s: %s\n", call, cuda_driver_error(&cu, result));
    return -1;
}
#define FAILED(call) (failed(cu.call, #call) != 0)

static void drop(struct shared *memory)
{
    if (memory->device != 0)
        (void)failed(cu.cuMemFree(memory->device), "cuMemFree");
    free(memory->host.addr);
    memset(memory, 0, sizeof(*memory));
}

static int create(uint64_t bytes, struct shared *memory)
{
    CUdeviceptr device = 0;
    memset(memory, 0, sizeof(*memory));
    memory->host.fd = -1;
    memory->host.addr = calloc(1, bytes);
    if (memory->host.addr == NULL) {
        perror("calloc");
        return -1;
    }
    memory->host.size = bytes;
    if (FAILED(cuMemAlloc(&device, bytes)))
        return -1;
    memory->device = device;
    return 0;
}

static enum mla_status share(struct mla_client *client, const struct shared *memory, enum mla_access access,
                             const char *label, uint64_t timeout_us, mla_region_id *region)
{
    return mla_cuda_region_register(client, memory->device, memory->host.size, access, label, timeout_us, region);
}

static int push(const struct shared *memory)
{
    if (FAILED(cuMemcpyHtoD(memory->device, memory->host.addr, memory->host.size)))
        return -1;
    /* A small copy from pageable memory may still be under way when the call returns; the daemon is on no stream that
     * waits for it. */
    return failed(cu.cuCtxSynchronize(), "cuCtxSynchronize");
}

static int pull(const struct shared *memory)
{
    return failed(cu.cuMemcpyDtoH(memory->host.addr, memory->device, memory->host.size), "cuMemcpyDtoH");
}

/* The kernels round P to e4m3 or finer. */
static const struct memory device = {
    .name = "device", .accuracy = 5e-2, .create = create, .share = share, .push = push, .pull = pull, .drop = drop};

const struct memory *memory_cuda(void)
{
    char why[256];
    CUdevice gpu;
    CUcontext context;
    if (cuda_driver_open(NULL, &cu, why, sizeof(why)) != 0) {
        fprintf(stderr, "%s\n", why);
        return NULL;
    }
    if (FAILED(cuDeviceGet(&gpu, 0)) || FAILED(cuDevicePrimaryCtxRetain(&context, gpu)) ||
        FAILED(cuCtxSetCurrent(context)))
        return NULL;
    return &device;
}
