#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"

pthread_mutex_t fake_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_done = PTHREAD_COND_INITIALIZER;
static _Atomic int initialised_in; /* pid; 0: not yet */
static _Atomic int lost;           /* CUresult */
static _Atomic bool leaving;

struct error_name {
    int result;
    const char *name;
    const char *text;
};
#define ERROR(name, text)                                                                                              \
    {                                                                                                                  \
        name, #name, text                                                                                              \
    }
static const struct error_name errors[] = {
    ERROR(CUDA_SUCCESS, "no error"),
    ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device is busy or unavailable"),
    ERROR(CUDA_ERROR_NO_DEVICE, "no device"),
    ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    ERROR(CUDA_ERROR_INVALID_IMAGE, "not a kernel image"),
    ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    ERROR(CUDA_ERROR_MAP_FAILED, "mapping failed"),
    ERROR(CUDA_ERROR_ALREADY_MAPPED, "already mapped"),
    ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device"),
    ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable memory error"),
    ERROR(CUDA_ERROR_INVALID_PTX, "a PTX compilation failed"),
    ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX of an unsupported toolchain"),
    ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    ERROR(CUDA_ERROR_ILLEGAL_STATE, "illegal state"),
    ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    ERROR(CUDA_ERROR_NOT_READY, "not ready"),
    ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access"),
    ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out"),
    ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is active"),
    ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the context is destroyed"),
    ERROR(CUDA_ERROR_ASSERT, "device-side assert"),
    ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory is already registered"),
    ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory is not registered"),
    ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready"),
    ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver and library do not match"),
    ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED, "no connection to the MPS server"),
    ERROR(CUDA_ERROR_MPS_RPC_FAILURE, "MPS call failed"),
    ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY, "the MPS server is not ready"),
    ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "the MPS client was terminated"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not permitted while a stream is capturing"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the capture was invalidated"),
    ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread"),
    ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these devices"),
    ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mappings are used up"),
    ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static const struct error_name *find_error(CUresult result)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].result == (int)result)
            return &errors[i];
    return NULL;
}

int fake_error_find(const char *name)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (!strcmp(errors[i].name, name) || !strcmp(errors[i].name + strlen("CUDA_ERROR_"), name))
            return errors[i].result;
    return -1;
}

void fake_abort(const char *fmt, ...)
{
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    dprintf(STDERR_FILENO, "libmla_fake_cuda: %s\n", text);
    abort();
}

uint64_t fake_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void fake_sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) != 0)
        continue;
}

void fake_lock(void)
{
    pthread_mutex_lock(&fake_mutex);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&fake_mutex);
}

CUresult fake_lost(void)
{
    return (CUresult)atomic_load(&lost);
}

void fake_lose(CUresult result)
{
    fake_lock();
    int none = 0;
    if (atomic_compare_exchange_strong(&lost, &none, (int)result))
        __atomic_store_n(&fake_report->lost, (uint64_t)result, __ATOMIC_RELAXED);
    pthread_cond_broadcast(&fake_done);
    fake_unlock();
}

bool fake_leaving(void)
{
    return atomic_load(&leaving);
}

CUresult fake_enter(enum mla_fake_call call, unsigned needs)
{
    fake_config();
    FAKE_COUNT(calls[call], 1);
    CUresult result = fake_inject(call);
    if (result != CUDA_SUCCESS)
        return result;
    if ((needs & FAKE_INIT) && atomic_load(&initialised_in) != getpid())
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((needs & FAKE_CONTEXT) == FAKE_CONTEXT) {
        result = fake_context_check();
        if (result != CUDA_SUCCESS)
            return result;
        if (fake_lost() != CUDA_SUCCESS)
            return fake_lost();
    }
    if (needs & FAKE_UNSAFE) {
        fake_lock();
        bool forbidden = fake_capture_forbids();
        fake_unlock();
        if (forbidden)
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuInit(unsigned int flags)
{
    FAKE_CALL(cuInit, FAKE_NOTHING);
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_config()->devices == 0)
        return CUDA_ERROR_NO_DEVICE;
    int none = 0;
    if (!atomic_compare_exchange_strong(&initialised_in, &none, getpid()) && none != getpid())
        return CUDA_ERROR_NOT_INITIALIZED; /* a child of the process that has called it */
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDriverGetVersion(int *version)
{
    FAKE_CALL(cuDriverGetVersion, FAKE_NOTHING);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = fake_config()->driver;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuGetErrorName(CUresult error, const char **text)
{
    FAKE_CALL(cuGetErrorName, FAKE_NOTHING);
    const struct error_name *found = find_error(error);
    *text = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKE_API CUresult cuGetErrorString(CUresult error, const char **text)
{
    FAKE_CALL(cuGetErrorString, FAKE_NOTHING);
    const struct error_name *found = find_error(error);
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* exit() and dlclose(): no thread of the library outlives it. */
__attribute__((destructor)) static void leave(void)
{
    atomic_store(&leaving, true);
    if (atomic_load(&initialised_in) == getpid())
        fake_streams_stop(NULL);
}
