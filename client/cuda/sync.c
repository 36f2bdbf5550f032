/* Words of a sync page, for streams. */
#include <stdlib.h>

#include "client/cuda/driver.h"

struct mla_cuda_sync {
    void *host;
    CUdeviceptr device;
    size_t n_words;
    CUcontext context; /* the one that it is pinned in */
};

static enum mla_status can_wait(const struct cuda_driver *cu)
{
    CUdevice device;
    int able = 0;
    CUresult r = cu->cuCtxGetDevice(&device);
    if (r == CUDA_SUCCESS)
        r = cu->cuDeviceGetAttribute(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, device);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuDeviceGetAttribute");
    if (!able)
        return mlacu_fail(MLA_UNSUPPORTED, NULL,
                          "this device's streams cannot wait for 64-bit words; wait for the answers instead");
    return MLA_OK;
}

static enum mla_status pin(const struct cuda_driver *cu, struct mla_cuda_sync *s)
{
    const char *call = "cuMemHostRegister";
    CUresult r = cu->cuMemHostRegister(s->host, s->n_words * MLA_WORD_BYTES,
                                       CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_PORTABLE);
    if (r == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        r = cu->cuMemHostGetDevicePointer(&s->device, s->host, 0);
        if (r != CUDA_SUCCESS)
            cu->cuMemHostUnregister(s->host);
    }
    if (r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        return mlacu_fail(MLA_ALREADY_EXISTS, "sync", "the sync page is attached already; several threads share that");
    return r == CUDA_SUCCESS ? MLA_OK : mlacu_driver_error(cu, r, call);
}

static enum mla_status attach(const struct mla_sync *sync, struct mla_cuda_sync **out)
{
    const struct cuda_driver *cu = mlacu_ready();
    if (!cu)
        return mla_cuda_last_error()->status;
    enum mla_status status = can_wait(cu);
    if (status != MLA_OK)
        return status;
    struct mla_cuda_sync *s = calloc(1, sizeof(*s));
    if (!s)
        return mlacu_fail(MLA_OUT_OF_MEMORY, NULL, "no memory for a sync page");
    s->host = mla_sync_word(sync, 0);
    s->n_words = mla_sync_words(sync);
    CUresult r = cu->cuCtxGetCurrent(&s->context);
    status = r == CUDA_SUCCESS ? pin(cu, s) : mlacu_driver_error(cu, r, "cuCtxGetCurrent");
    if (status != MLA_OK) {
        free(s);
        return status;
    }
    *out = s;
    return MLA_OK;
}

enum mla_status mla_cuda_sync_attach(struct mla_client *client, struct mla_sync *sync, struct mla_cuda_sync **out)
{
    if (out)
        *out = NULL;
    if (!client || !sync || !out) {
        mlacu_fail(MLA_INVALID_ARGUMENT, !client ? "client" : !sync ? "sync" : "out", "an argument is missing");
        return mlacu_tell(client);
    }
    enum mla_status status = mla_watch_start(client);
    if (status != MLA_OK)
        return status;
    return attach(sync, out) == MLA_OK ? MLA_OK : mlacu_tell(client);
}

enum mla_status mla_cuda_sync_detach(struct mla_cuda_sync *words)
{
    if (!words)
        return MLA_OK;
    const struct cuda_driver *cu = mlacu_driver();
    CUcontext before = NULL;
    CUresult r = cu->cuCtxGetCurrent(&before);
    if (r == CUDA_SUCCESS && before != words->context)
        r = cu->cuCtxSetCurrent(words->context);
    if (r == CUDA_SUCCESS)
        r = cu->cuMemHostUnregister(words->host);
    if (before != words->context)
        cu->cuCtxSetCurrent(before);
    if (r != CUDA_SUCCESS)
        return mlacu_driver_error(cu, r, "cuMemHostUnregister");
    free(words);
    return MLA_OK;
}

uint64_t mla_cuda_word(const struct mla_cuda_sync *words, size_t index)
{
    return words && index < words->n_words ? words->device + index * MLA_WORD_BYTES : 0;
}

static enum mla_status no_word(const struct mla_cuda_sync *words, size_t index)
{
    return words ? mlacu_out_of_range("index", index, words->n_words - 1, "the sync page has fewer words")
                 : mlacu_fail(MLA_INVALID_ARGUMENT, "words", "an argument is missing");
}

enum mla_status mla_cuda_write_ready(const struct mla_cuda_sync *words, size_t index, uint64_t value,
                                     struct CUstream_st *stream)
{
    uint64_t at = mla_cuda_word(words, index);
    if (!at)
        return no_word(words, index);
    const struct cuda_driver *cu = mlacu_driver();
    /* DEFAULT: with the barrier that makes earlier writes visible before the word. */
    CUresult r = cu->cuStreamWriteValue64(stream, at, value, CU_STREAM_WRITE_VALUE_DEFAULT);
    return r == CUDA_SUCCESS ? MLA_OK : mlacu_driver_error(cu, r, "cuStreamWriteValue64");
}

enum mla_status mla_cuda_wait_done(const struct mla_cuda_sync *words, size_t index, uint64_t value,
                                   struct CUstream_st *stream)
{
    uint64_t at = mla_cuda_word(words, index);
    if (!at)
        return no_word(words, index);
    const struct cuda_driver *cu = mlacu_driver();
    CUresult r = cu->cuStreamWaitValue64(stream, at, value, CU_STREAM_WAIT_VALUE_GEQ);
    return r == CUDA_SUCCESS ? MLA_OK : mlacu_driver_error(cu, r, "cuStreamWaitValue64");
}
