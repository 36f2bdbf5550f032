/* A worker on a GPU in one page: a KV cache in device memory, one decode that is ordered on the worker's own stream.
 *
 *     mla_example_worker_cuda [SOCKET]
 *     cc worker_cuda.c $(pkg-config --cflags --libs mla-cuda) -lm     # and -I, where cuda.h lies
 *
 * Two sequences of 300 and 64 keys, 16 heads, one query token each. Q is all zero, so every key weighs the same; V is
 * all ones: each output is 1 and each LSE the logarithm of the number of keys.
 *
 * The stream fills the cache and Q, writes the ready word, waits for the done word and copies the outputs: the program
 * waits for its stream only. A program that links libcuda calls it directly; this one opens it at run time, so that it
 * builds and starts anywhere. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <mla/cuda.h>

#define HEADS    16
#define SEQS     2
#define PAGES    8
#define ROW      576
#define V_DIM    512
#define O_ROW    INT64_C(2048) /* bytes: V_DIM floats */
#define E4M3_ONE 0x38
#define TIMEOUT  5000000 /* us */

/* ---- the driver's calls in use ---- */

#define CALLS(X)                                                                                                       \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamDestroy)

static struct {
#define MEMBER(name) __typeof__(&name) name;
    CALLS(MEMBER)
#undef MEMBER
} cu;

/* cuda.h maps names to the versions that it describes: cuMemAlloc to cuMemAlloc_v2. */
#define TEXT(name) #name
#define FIND(name) find(library, TEXT(name), &cu.name, sizeof(cu.name));

static void find(void *library, const char *name, void *entry, size_t size)
{
    void *symbol = dlsym(library, name);
    if (!symbol) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(77);
    }
    memcpy(entry, &symbol, size);
}

static void open_driver(void)
{
    const char *path = getenv("MLA_CUDA_DRIVER");
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(77);
    }
    CALLS(FIND)
}

static void must_cuda(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: CUDA error %d\n", what, (int)result);
    exit(1);
}

static void must(struct mla_client *client, enum mla_status status, const char *what)
{
    if (status == MLA_OK)
        return;
    const struct mla_error_info *e = mla_last_error(client);
    fprintf(stderr, "%s: %s: %s %s\n", what, mla_errname(status), e->text, e->field);
    exit(1);
}

/* ---- the work ---- */

/* Where the parts of the one region lie. */
enum { CACHE_AT = 0, Q_AT = CACHE_AT + PAGES * 64 * ROW, O_AT = Q_AT + SEQS * HEADS * ROW };
enum { LSE_AT = O_AT + SEQS * HEADS * (int)O_ROW, ALL_BYTES = LSE_AT + SEQS * HEADS * 4 };
enum { READY_WORD, DONE_WORD, STATUS_WORD, N_WORDS };

static struct mla_view view_of(mla_region_id region, uint64_t offset, int64_t row_bytes)
{
    struct mla_view v;
    memset(&v, 0, sizeof(v));
    v.region = region;
    v.offset = offset;
    v.head_stride = row_bytes;
    v.token_stride = HEADS * row_bytes;
    v.compact = true;
    return v;
}

static struct mla_client *connect_to(const char *socket)
{
    struct mla_options options;
    struct mla_client *client;
    struct mla_error_info error;
    mla_options_init(&options);
    options.socket_path = socket;
    options.name = "example-worker-cuda";
    options.flags = MLA_OPEN_WAIT;
    options.timeout_us = TIMEOUT;
    options.features = MLA_FEATURE_SYNC | MLA_FEATURE_CUDA_IPC;
    if (mla_open(&options, &client, &error) != MLA_OK) {
        fprintf(stderr, "mla_open: %s\n", error.text);
        exit(1);
    }
    printf("mlad %s, backend %s, %s, %s\n", mla_server(client)->version, mla_server(client)->backend,
           mla_server(client)->gpu_uuid, mla_server(client)->isolation);
    return client;
}

/* Cache and table set 1 of two sequences; what a worker does once. */
static mla_cache_id define(struct mla_client *client, mla_region_id region, const uint32_t kv_len[SEQS])
{
    static const uint32_t q_len[SEQS] = {1, 1};
    static const uint32_t entries[] = {7, 0, 5, 2, 1, 3}; /* five pages of the first sequence, one of the second */
    struct mla_cache_desc desc;
    struct mla_tables tables;
    mla_cache_id cache;
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.offset = CACHE_AT;
    desc.num_pages = PAGES;
    must(client, mla_cache_define(client, &desc, TIMEOUT, &cache), "define cache");
    mla_tables_init(&tables);
    tables.id = 1;
    tables.n_seqs = SEQS;
    tables.q_len = q_len;
    tables.kv_len_max = kv_len;
    tables.entries = entries;
    tables.n_entries = sizeof(entries) / sizeof(entries[0]);
    must(client, mla_tables_put(client, &tables, 0), "put tables");
    return cache;
}

static double worst_error(const float *o, const float *lse, const uint32_t kv_len[SEQS])
{
    double worst = 0.0;
    for (int s = 0; s < SEQS; s++) {
        for (int i = 0; i < HEADS * V_DIM; i++)
            worst = fmax(worst, fabs(o[s * HEADS * V_DIM + i] - 1.0));
        for (int h = 0; h < HEADS; h++)
            worst = fmax(worst, fabs(lse[s * HEADS + h] - log(kv_len[s])));
    }
    return worst;
}

int main(int argc, char **argv)
{
    static float o[SEQS * HEADS * V_DIM], lse[SEQS * HEADS];
    const uint32_t kv_len[SEQS] = {300, 64};
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    open_driver();
    must_cuda(cu.cuInit(0), "cuInit");
    must_cuda(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
    must_cuda(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must_cuda(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must_cuda(cu.cuMemAlloc(&memory, ALL_BYTES), "cuMemAlloc");
    must_cuda(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

    struct mla_client *client = connect_to(argc > 1 ? argv[1] : NULL);
    mla_region_id region;
    must(client,
         mla_cuda_region_register(client, memory, ALL_BYTES, MLA_ACCESS_READ_WRITE, "example", TIMEOUT, &region),
         "register");
    mla_cache_id cache = define(client, region, kv_len);

    struct mla_sync *sync;
    struct mla_cuda_sync *words;
    must(client, mla_sync_create(client, N_WORDS, TIMEOUT, &sync), "sync page");
    must(client, mla_cuda_sync_attach(client, sync, &words), "attach");

    struct mla_decode_args args;
    mla_request_id request;
    mla_decode_args_init(&args);
    args.cache = cache;
    args.tables = 1;
    args.heads = HEADS;
    args.q = view_of(region, Q_AT, ROW);
    args.o = view_of(region, O_AT, O_ROW);
    args.lse = view_of(region, LSE_AT, 4);
    args.out_type = MLA_DTYPE_F32;
    args.softmax_scale = 1.0f / 24.0f;
    args.ready = mla_sync_location(sync, READY_WORD);
    args.done = mla_sync_location(sync, DONE_WORD);
    args.status = mla_sync_location(sync, STATUS_WORD);
    args.n_status = SEQS;

    /* The job may be submitted before or behind the stream's work: it starts when the ready word has come. */
    must(client, mla_decode_submit(client, &args, NULL, NULL, &request), "submit");
    must_cuda(cu.cuMemsetD8Async(memory + CACHE_AT, E4M3_ONE, Q_AT - CACHE_AT, stream), "fill the cache");
    must_cuda(cu.cuMemsetD8Async(memory + Q_AT, 0, O_AT - Q_AT, stream), "fill Q");
    must(client, mla_cuda_write_ready(words, READY_WORD, args.ready_value, stream), "write ready");
    must(client, mla_cuda_wait_done(words, DONE_WORD, args.done_value, stream), "wait done");
    must_cuda(cu.cuMemcpyDtoHAsync(o, memory + O_AT, sizeof(o), stream), "copy O");
    must_cuda(cu.cuMemcpyDtoHAsync(lse, memory + LSE_AT, sizeof(lse), stream), "copy LSE");
    must_cuda(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");

    if (mla_word_aborted(mla_word_load(mla_sync_word(sync, DONE_WORD)), args.done_value)) {
        struct mla_decode_result result;
        mla_decode_result_init(&result);
        enum mla_status status = mla_wait(client, request, TIMEOUT, &result);
        fprintf(stderr, "the decode was aborted: %s: %s\n", mla_errname(status), result.error.text);
        return 1;
    }
    double worst = worst_error(o, lse, kv_len);
    printf("O[0] = %g, LSE[0] = %g, largest error %.2g\n", (double)o[0], (double)lse[0], worst);

    /* The answer is for the books: it says when and with whom the job ran. */
    struct mla_decode_result result;
    mla_decode_result_init(&result);
    must(client, mla_wait(client, request, TIMEOUT, &result), "wait");
    printf("batch %llu, %u tiles, %u items, %u splits, waited %llu us, queued %llu us, ran %llu us\n",
           (unsigned long long)result.batch, result.tiles, result.items, result.splits,
           (unsigned long long)result.wait_us, (unsigned long long)result.queue_us, (unsigned long long)result.run_us);

    must(client, mla_cache_drop(client, cache, TIMEOUT), "drop cache");
    must(client, mla_region_unregister(client, region, TIMEOUT), "unregister");
    must(client, mla_cuda_sync_detach(words), "detach");
    must(client, mla_sync_destroy(sync, TIMEOUT), "destroy the sync page");
    mla_close(client);
    must_cuda(cu.cuStreamDestroy(stream), "cuStreamDestroy");
    must_cuda(cu.cuMemFree(memory), "cuMemFree");
    return worst < 1e-2 ? 0 : 1;
}
