/* A worker whose whole decode step is one CUDA graph: 24 layers, each a kernel of its own and an attention by mlad.
 *
 *     mla_example_worker_step [SOCKET [REPLAYS]]
 *     cc worker_step.c $(pkg-config --cflags --libs mla-cuda) -lm     # and -I, where cuda.h lies
 *
 * Two sequences, 16 heads, one query token each. Q is all zero, so every key weighs the same; V is all ones: each
 * output is 1 and each LSE the logarithm of the number of keys. The sequences grow by a key or more with every replay,
 * to lengths that only the device knows: the daemon is told once how long they may become.
 *
 * The graph is captured once. For every layer it makes Q (here a memset; a model has kernels there), writes the layer's
 * ready word and waits for its done word. A replay needs one message, whatever the number of layers. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <mla/cuda.h>

#define LAYERS   24
#define HEADS    16
#define SEQS     2
#define PAGES    32
#define KV_MAX   1024 /* keys that a sequence may have: 16 table entries of 64 */
#define ENTRIES  (KV_MAX / 64)
#define ROW      576
#define V_DIM    512
#define O_ROW    INT64_C(2048) /* bytes: V_DIM floats */
#define E4M3_ONE 0x38
#define TIMEOUT  10000000 /* us */

/* ---- the driver's calls in use ---- */

#define CALLS(X)                                                                                                       \
    X(cuInit)                                                                                                          \
    X(cuDeviceGet)                                                                                                     \
    X(cuDevicePrimaryCtxRetain)                                                                                        \
    X(cuCtxSetCurrent)                                                                                                 \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemFree)                                                                                                       \
    X(cuMemHostAlloc)                                                                                                  \
    X(cuMemFreeHost)                                                                                                   \
    X(cuMemsetD8Async)                                                                                                 \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuStreamCreate)                                                                                                  \
    X(cuStreamSynchronize)                                                                                             \
    X(cuStreamDestroy)                                                                                                 \
    X(cuStreamBeginCapture)                                                                                            \
    X(cuStreamEndCapture)                                                                                              \
    X(cuGraphInstantiate)                                                                                              \
    X(cuGraphLaunch)                                                                                                   \
    X(cuGraphExecDestroy)                                                                                              \
    X(cuGraphDestroy)

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

/* ---- memory ---- */

/* Where the parts of the one region lie. All layers share the queries and the outputs; a model keeps what it needs. */
enum { CACHE_AT = 0, LEN_AT = CACHE_AT + PAGES * 64 * ROW, TABLE_AT = LEN_AT + 64 };
enum { Q_AT = TABLE_AT + SEQS * ENTRIES * 4, O_AT = Q_AT + SEQS * HEADS * ROW };
enum { LSE_AT = O_AT + SEQS * HEADS * (int)O_ROW, ALL_BYTES = LSE_AT + SEQS * HEADS * 4 };

/* Pinned: what goes to the device in front of a step, and what comes back behind it. */
struct host {
    int32_t kv_len[SEQS];
    int32_t table[SEQS * ENTRIES];
    float o[SEQS * HEADS * V_DIM];
    float lse[SEQS * HEADS];
};

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
    options.name = "example-worker-step";
    options.flags = MLA_OPEN_WAIT;
    options.timeout_us = TIMEOUT;
    options.features = MLA_FEATURE_STEP | MLA_FEATURE_SYNC | MLA_FEATURE_CUDA_IPC;
    if (mla_open(&options, &client, &error) != MLA_OK) {
        fprintf(stderr, "mla_open: %s\n", error.text);
        exit(1);
    }
    printf("mlad %s, backend %s, %s, %s\n", mla_server(client)->version, mla_server(client)->backend,
           mla_server(client)->gpu_uuid, mla_server(client)->isolation);
    return client;
}

/* A cache, and table set 1: two sequences of up to KV_MAX keys, whose tables are in the region. */
static mla_cache_id define(struct mla_client *client, mla_region_id region)
{
    static const uint32_t q_len[SEQS] = {1, 1}, kv_len_max[SEQS] = {KV_MAX, KV_MAX};
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
    tables.kv_len_max = kv_len_max;
    must(client, mla_tables_put(client, &tables, 0), "put tables");
    return cache;
}

/* Every layer's decode, once. Layer l has words 2 l (ready) and 2 l + 1 (done). */
static struct mla_template *open_template(struct mla_client *client, const struct mla_sync *sync, mla_region_id region,
                                          mla_cache_id cache)
{
    struct mla_decode_args layers[LAYERS];
    struct mla_template *tmpl;
    for (int l = 0; l < LAYERS; l++) {
        struct mla_decode_args *a = &layers[l];
        mla_decode_args_init(a);
        a->cache = cache; /* a model has a plane per layer: a->plane = l */
        a->tables = 1;
        a->heads = HEADS;
        a->q = view_of(region, Q_AT, ROW);
        a->o = view_of(region, O_AT, O_ROW);
        a->lse = view_of(region, LSE_AT, 4);
        a->out_type = MLA_DTYPE_F32;
        a->softmax_scale = 1.0f / 24.0f;
        a->kv_len.region = region;
        a->kv_len.offset = LEN_AT;
        a->table.region = region;
        a->table.offset = TABLE_AT;
        a->table_entries_per_seq = ENTRIES;
        a->ready = mla_sync_location(sync, 2 * (size_t)l);
        a->done = mla_sync_location(sync, 2 * (size_t)l + 1);
    }
    must(client, mla_template_open(client, layers, LAYERS, TIMEOUT, &tmpl), "open template");
    return tmpl;
}

/* ---- the step ---- */

static CUgraphExec capture(struct mla_client *client, const struct mla_cuda_sync *words, CUdeviceptr memory,
                           struct host *host, CUstream stream)
{
    CUgraph graph;
    CUgraphExec exec;
    must_cuda(cu.cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "begin capture");
    must_cuda(cu.cuMemcpyHtoDAsync(memory + LEN_AT, host->kv_len, sizeof(host->kv_len), stream), "copy lengths");
    must_cuda(cu.cuMemcpyHtoDAsync(memory + TABLE_AT, host->table, sizeof(host->table), stream), "copy tables");
    for (size_t l = 0; l < LAYERS; l++) {
        must_cuda(cu.cuMemsetD8Async(memory + Q_AT, 0, O_AT - Q_AT, stream), "make Q");
        must(client, mla_cuda_write_ready(words, 2 * l, 1, stream), "write ready");
        must(client, mla_cuda_wait_done(words, 2 * l + 1, 1, stream), "wait done");
    }
    must_cuda(cu.cuMemcpyDtoHAsync(host->o, memory + O_AT, sizeof(host->o), stream), "copy O");
    must_cuda(cu.cuMemcpyDtoHAsync(host->lse, memory + LSE_AT, sizeof(host->lse), stream), "copy LSE");
    must_cuda(cu.cuStreamEndCapture(stream, &graph), "end capture");
    must_cuda(cu.cuGraphInstantiate(&exec, graph, 0), "instantiate");
    must_cuda(cu.cuGraphDestroy(graph), "destroy graph");
    return exec;
}

static void grow(struct host *host, int replay)
{
    for (int s = 0; s < SEQS; s++)
        host->kv_len[s] = 1 + (replay * (s + 1) + 40 * s) % KV_MAX;
    for (int e = 0; e < SEQS * ENTRIES; e++)
        host->table[e] = (e * 7 + replay) % PAGES;
}

static double worst_error(const struct host *host)
{
    double worst = 0.0;
    for (int i = 0; i < SEQS * HEADS * V_DIM; i++)
        worst = fmax(worst, fabs(host->o[i] - 1.0));
    for (int s = 0; s < SEQS; s++)
        for (int h = 0; h < HEADS; h++)
            worst = fmax(worst, fabs(host->lse[s * HEADS + h] - log(host->kv_len[s])));
    return worst;
}

/* False: a step has failed, or its results are not right. */
static bool replay_all(struct mla_client *client, struct mla_template *tmpl, CUgraphExec exec, struct host *host,
                       CUstream stream, int replays)
{
    struct mla_step_result result;
    mla_request_id request;
    double worst = 0.0;
    unsigned long long queue_us = 0, run_us = 0, shared = 0;
    for (int i = 0; i < replays; i++) {
        grow(host, i);
        mla_step_result_init(&result);
        /* First: the daemon has it when the first layer's word comes. */
        enum mla_status status = mla_step_submit(tmpl, NULL, NULL, NULL, &request);
        must_cuda(cu.cuGraphLaunch(exec, stream), "launch graph");
        if (status == MLA_OK)
            status = mla_step_wait(client, request, TIMEOUT, &result);
        must_cuda(cu.cuStreamSynchronize(stream), "cuStreamSynchronize"); /* goes through whatever the status */
        if (status != MLA_OK) {
            fprintf(stderr, "replay %d: %s: %s\n", i, mla_errname(status), result.error.text);
            return false;
        }
        worst = fmax(worst, worst_error(host));
        queue_us += result.queue_us;
        run_us += result.run_us;
        shared += result.layers_shared;
    }
    double layers = (double)replays * LAYERS;
    printf("%d replays of %d layers: largest error %.2g; per layer queued %.1f us, ran %.1f us; %.0f %% shared\n",
           replays, LAYERS, worst, (double)queue_us / layers, (double)run_us / layers, 100 * (double)shared / layers);
    return worst < 1e-2;
}

int main(int argc, char **argv)
{
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    CUstream stream;
    struct host *host;
    void *pinned;
    open_driver();
    must_cuda(cu.cuInit(0), "cuInit");
    must_cuda(cu.cuDeviceGet(&device, 0), "cuDeviceGet");
    must_cuda(cu.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must_cuda(cu.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must_cuda(cu.cuMemAlloc(&memory, ALL_BYTES), "cuMemAlloc");
    must_cuda(cu.cuMemHostAlloc(&pinned, sizeof(*host), 0), "cuMemHostAlloc");
    must_cuda(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    host = pinned;
    must_cuda(cu.cuMemsetD8Async(memory + CACHE_AT, E4M3_ONE, LEN_AT - CACHE_AT, stream), "fill the cache");
    must_cuda(cu.cuStreamSynchronize(stream), "cuStreamSynchronize");

    struct mla_client *client = connect_to(argc > 1 ? argv[1] : NULL);
    struct mla_sync *sync;
    struct mla_cuda_sync *words;
    mla_region_id region;
    must(client, mla_cuda_region_register(client, memory, ALL_BYTES, MLA_ACCESS_READ_WRITE, "step", TIMEOUT, &region),
         "register");
    mla_cache_id cache = define(client, region);
    must(client, mla_sync_create(client, (size_t)2 * LAYERS, TIMEOUT, &sync), "sync page");
    must(client, mla_cuda_sync_attach(client, sync, &words), "attach");
    struct mla_template *tmpl = open_template(client, sync, region, cache);
    CUgraphExec exec = capture(client, words, memory, host, stream);

    bool good = replay_all(client, tmpl, exec, host, stream, argc > 2 ? (int)strtol(argv[2], NULL, 10) : 100);

    must_cuda(cu.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    must(client, mla_template_close(tmpl, TIMEOUT), "close template");
    must(client, mla_cache_drop(client, cache, TIMEOUT), "drop cache");
    must(client, mla_region_unregister(client, region, TIMEOUT), "unregister");
    must(client, mla_cuda_sync_detach(words), "detach");
    must(client, mla_sync_destroy(sync, TIMEOUT), "destroy the sync page");
    mla_close(client);
    must_cuda(cu.cuStreamDestroy(stream), "cuStreamDestroy");
    must_cuda(cu.cuMemFreeHost(pinned), "cuMemFreeHost");
    must_cuda(cu.cuMemFree(memory), "cuMemFree");
    return good ? 0 : 1;
}
