/* Primary contexts, and which is current on a thread. */
#include "tests/support/fake_cuda/fake.h"

static struct CUctx_st contexts[FAKE_DEVICES_MAX];
static __thread CUcontext current;

CUcontext fake_current(void)
{
    return current;
}

CUresult fake_context_check(void)
{
    if (!current)
        return CUDA_ERROR_INVALID_CONTEXT;
    fake_lock();
    bool alive = current->retained > 0;
    fake_unlock();
    return alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

FAKE_API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    FAKE_CALL(cuDevicePrimaryCtxRetain, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (fake_lost() != CUDA_SUCCESS)
        return fake_lost();
    fake_lock();
    contexts[device].device = device;
    contexts[device].retained++;
    fake_unlock();
    FAKE_COUNT(contexts, 1);
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

/* The last one ends what is queued and frees what the context owns. */
FAKE_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    FAKE_CALL(cuDevicePrimaryCtxRelease, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    CUcontext context = &contexts[device];
    fake_lock();
    if (context->retained == 0) {
        fake_unlock();
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    bool last = --context->retained == 0;
    fake_unlock();
    FAKE_COUNT(contexts, -1);
    if (!last)
        return CUDA_SUCCESS;
    fake_streams_stop(context);
    fake_lock();
    fake_graphs_free(context);
    fake_events_free(context);
    fake_modules_free(context);
    fake_ranges_free(context);
    context->flags = 0;
    fake_unlock();
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    FAKE_CALL(cuDevicePrimaryCtxSetFlags, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if ((flags & ~(unsigned)CU_CTX_FLAGS_MASK) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    fake_lock();
    contexts[device].flags = flags;
    fake_unlock();
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxGetCurrent(CUcontext *context)
{
    FAKE_CALL(cuCtxGetCurrent, FAKE_INIT);
    *context = current;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxSetCurrent(CUcontext context)
{
    FAKE_CALL(cuCtxSetCurrent, FAKE_INIT);
    if (context && (context < contexts || context >= contexts + FAKE_DEVICES_MAX))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (context) {
        fake_lock();
        bool alive = context->retained > 0;
        fake_unlock();
        if (!alive)
            return CUDA_ERROR_INVALID_CONTEXT;
    }
    current = context;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxGetDevice(CUdevice *device)
{
    FAKE_CALL(cuCtxGetDevice, FAKE_CONTEXT);
    *device = current->device;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuCtxSynchronize(void)
{
    FAKE_CALL(cuCtxSynchronize, FAKE_CONTEXT | FAKE_UNSAFE);
    fake_lock();
    CUresult result = CUDA_SUCCESS;
    for (CUstream s = fake_stream_first(); s && result == CUDA_SUCCESS; s = s->next)
        if (s->context == current)
            result = fake_drain(s);
    fake_unlock();
    return result;
}
