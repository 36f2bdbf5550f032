#include "client/cuda/driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct cuda_driver driver; /* constant once opened */
static bool opened;
static char why_not[MLA_ERROR_BYTES];

static _Thread_local struct mla_error_info last;

static void open_driver(void)
{
    opened = cuda_driver_open(NULL, &driver, why_not, sizeof(why_not)) == 0;
}

const struct cuda_driver *mlacu_driver(void)
{
    pthread_once(&once, open_driver);
    if (!opened)
        mlacu_fail(MLA_UNSUPPORTED, NULL, "%s", why_not);
    return opened ? &driver : NULL;
}

const struct cuda_driver *mlacu_ready(void)
{
    const struct cuda_driver *cu = mlacu_driver();
    CUcontext context = NULL;
    if (!cu)
        return NULL;
    CUresult r = cu->cuCtxGetCurrent(&context);
    if (r != CUDA_SUCCESS) {
        mlacu_driver_error(cu, r, "cuCtxGetCurrent");
        return NULL;
    }
    if (!context) {
        mlacu_fail(MLA_INVALID_ARGUMENT, NULL,
                   "no CUDA context is current in this thread; cudaSetDevice or cuCtxSetCurrent makes one so");
        return NULL;
    }
    return cu;
}

enum mla_status mlacu_fail(enum mla_status status, const char *field, const char *fmt, ...)
{
    va_list args;
    memset(&last, 0, sizeof(last));
    last.status = status;
    if (field)
        snprintf(last.field, sizeof(last.field), "%s", field);
    va_start(args, fmt);
    vsnprintf(last.text, sizeof(last.text), fmt, args);
    va_end(args);
    return status;
}

enum mla_status mlacu_out_of_range(const char *field, uint64_t value, uint64_t limit, const char *text)
{
    mlacu_fail(MLA_OUT_OF_BOUNDS, field, "%s", text);
    last.value = value;
    last.limit = limit;
    return MLA_OUT_OF_BOUNDS;
}

enum mla_status mlacu_driver_error(const struct cuda_driver *cu, CUresult result, const char *call)
{
    enum mla_status status = result == CUDA_ERROR_OUT_OF_MEMORY ? MLA_OUT_OF_MEMORY : MLA_SYSTEM_ERROR;
    mlacu_fail(status, NULL, "%s: %s", call, cuda_driver_error(cu, result));
    last.value = (uint64_t)result;
    return status;
}

const struct mla_error_info *mla_cuda_last_error(void)
{
    return &last;
}

enum mla_status mlacu_tell(struct mla_client *client)
{
    if (client)
        mla_set_error(client, &last);
    return last.status;
}
