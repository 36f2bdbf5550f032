#include <stdio.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/log.h"

/* Whether nothing in this context can work after such a result. */
static bool is_sticky(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_RPC_FAILURE:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_KEY_ROTATION:
    case CUDA_ERROR_UNKNOWN:
        return true;
    default:
        return false;
    }
}

/* Whether the context is gone. A worker's junk handle or descriptor can make a call fail with a result that a broken
 * context gives too (CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_CONTEXT); only the broken one goes on failing. */
static bool context_is_lost(struct backend *be, CUresult result)
{
    if (!is_sticky(result))
        return false;
    CUresult now = be->cu.cuStreamQuery(be->stream);
    return now != CUDA_SUCCESS && now != CUDA_ERROR_NOT_READY;
}

void cu_lose(struct backend *be, CUresult result, const char *what)
{
    if (be->lost)
        return;
    be->lost = true;
    mla_error_set(&be->lost_error, MLA_DEVICE_LOST, NULL, "the GPU is lost: %s: %s", what,
                  cuda_driver_error(&be->cu, result));
    be->lost_error.value = (uint64_t)result;
    mla_log(MLA_LOG_ERROR, "device_lost", "call=%s result=%d error=%s", what, (int)result,
            cuda_driver_error(&be->cu, result));
}

bool cu_call_ok(struct backend *be, CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS)
        cu_lose(be, result, call);
    return result == CUDA_SUCCESS;
}

bool cu_ok(struct backend *be, CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return true;
    if (context_is_lost(be, result))
        cu_lose(be, result, what);
    return false;
}

int cu_refuse(struct backend *be, struct mla_error *err, CUresult result, const char *what, enum mla_status code,
              const char *field, const char *text)
{
    if (context_is_lost(be, result)) {
        cu_lose(be, result, what);
        *err = be->lost_error;
        return MLA_DEVICE_LOST;
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY && code != MLA_INTERNAL)
        code = MLA_OUT_OF_MEMORY;
    mla_error_set(err, code, field, "%s (%s: %s)", text, what, cuda_driver_error(&be->cu, result));
    err->value = (uint64_t)result;
    return (int)code;
}
