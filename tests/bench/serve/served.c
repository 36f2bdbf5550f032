#include "tests/bench/serve/served.h"

#include "proto/enums.h"
#include "proto/status.h"

#include <mla/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/gpu/times.h"
#include "tests/bench/gpu/work.h"

#define COLD_BYTES      (UINT64_C(150) << 20) /* three times an H200's L2 */
#define COPIES_MAX      64u
#define LAUNCHES_MAX    20u /* of a graph */
#define BLOCK_PAGES     512u
#define WORKSPACE_BYTES (UINT64_C(256) << 20)
#define TIMEOUT_US      UINT64_C(60000000)
#define OPEN_US         UINT64_C(20000000) /* a daemon is there by then, or will not come */
#define SOFTMAX_SCALE   (1.0f / 24)
#define OUT_SCALE       (1.0f / 32)

struct connection {
    struct mla_client *client;
    struct mla_decode_args args[SERVED_SHAPES_MAX];
};

struct served {
    const struct served_config *config;
    struct gpu gpu;
    struct variant variant;
    struct pool pool;
    struct shape shapes[SERVED_SHAPES_MAX];
    uint32_t copies[SERVED_SHAPES_MAX];
    struct work works[SERVED_SHAPES_MAX]; /* of those that launch themselves */
    CUgraphExec graphs[SERVED_SHAPES_MAX];
    struct connection connections[SERVED_DAEMONS_MAX];
    const struct crew_command *command;
};

static void must(struct mla_client *client, enum mla_status status, const char *what)
{
    if (status == MLA_OK)
        return;
    const struct mla_error_info *e = mla_last_error(client);
    fprintf(stderr, "mla-bench: %s: %s %s %s\n", what, mla_errname(status), e->field, e->text);
    exit(2);
}

/* ---- memory ---- */

static void open_pool(struct served *s)
{
    struct pool_wants wants = {
        .out_bytes = 1, .block_pages_most = BLOCK_PAGES, .workspace_bytes_most = WORKSPACE_BYTES};
    for (size_t i = 0; i < s->config->n_shapes; i++) {
        const struct served_shape *of = &s->config->shapes[i];
        struct shape *shape = &s->shapes[i];
        shape_uniform(shape, of->batch, of->q_len, s->config->heads, of->kv_len);
        uint64_t copies = COLD_BYTES / (shape->pages * SHAPE_PAGE_BYTES) + 1;
        pool_want(&wants, shape, copies < COPIES_MAX ? (uint32_t)copies : COPIES_MAX);
    }
    pool_open(&s->pool, &s->gpu, &wants);
    pool_fill(&s->pool, &data_sets[0]);
    for (size_t i = 0; i < s->config->n_shapes; i++)
        s->copies[i] = pool_copies(&s->pool, &s->shapes[i], COPIES_MAX);
}

/* ---- by itself ---- */

static void open_works(struct served *s)
{
    for (size_t i = 0; i < s->config->n_shapes; i++) {
        struct work_options options = {.launches = s->copies[i]};
        int rc = work_open(&s->works[i], &s->variant, &s->pool, &s->shapes[i], &options);
        if (rc != 0) {
            fprintf(stderr, "mla-bench: no plan of %s: %s\n", s->shapes[i].name, strerror(-rc));
            exit(2);
        }
        work_try(&s->works[i]);
    }
}

static void turn_launch(void *arg, uint64_t i)
{
    struct served *s = arg;
    struct work *work = &s->works[s->command->which];
    work_launch(work, (uint32_t)(i % work->n_launches));
    GPU(&s->gpu, cuStreamSynchronize(s->gpu.stream));
}

static double kernel_us(struct served *s, const struct crew_command *command)
{
    struct work *work = &s->works[command->which];
    struct times_options options = {.warmup_ms = 1};
    uint32_t all = work->n_launches;
    if (s->graphs[command->which] == NULL) {
        work->n_launches = all < LAUNCHES_MAX ? all : LAUNCHES_MAX;
        s->graphs[command->which] = work_capture(work, TAP_ALL);
        work->n_launches = all;
    }
    struct timed timed = {.graph = s->graphs[command->which],
                          .launches = all < LAUNCHES_MAX ? all : LAUNCHES_MAX,
                          .repeats = command->turns_max != 0 ? command->turns_max : 5};
    times_measure(&s->gpu, &timed, 1, &options);
    return timed.us.median;
}

/* ---- by daemons ---- */

static struct mla_view view_of(mla_region_id region, uint32_t heads, int64_t row_bytes)
{
    return (struct mla_view){
        .region = region, .head_stride = row_bytes, .token_stride = heads * row_bytes, .compact = true};
}

static mla_region_id share(struct mla_client *client, CUdeviceptr memory, uint64_t bytes, enum mla_access access)
{
    mla_region_id region;
    must(client, mla_cuda_region_register(client, memory, bytes, access, "bench", TIMEOUT_US, &region), "register");
    return region;
}

static void put_tables(struct served *s, struct mla_client *client, size_t i)
{
    const struct shape *shape = &s->shapes[i];
    uint32_t *lengths = gpu_array(2 * (size_t)shape->n_seqs, sizeof *lengths);
    struct mla_tables tables;
    mla_tables_init(&tables);
    tables.n_seqs = shape->n_seqs;
    tables.q_len = lengths;
    tables.kv_len_max = lengths + shape->n_seqs;
    tables.n_entries = shape->pages;
    for (uint32_t k = 0; k < shape->n_seqs; k++) {
        lengths[k] = shape->seqs[k].q_len;
        lengths[shape->n_seqs + k] = shape->seqs[k].kv_len_max;
    }
    for (uint32_t copy = 0; copy < s->copies[i]; copy++) {
        tables.id = i * COPIES_MAX + copy + 1;
        tables.entries = (const uint32_t *)(const void *)(s->pool.entries + copy * shape->pages);
        must(client, mla_tables_put(client, &tables, TIMEOUT_US), "table set");
    }
    free(lengths);
}

static void open_connection(struct served *s, struct connection *c, const char *socket)
{
    struct mla_options options;
    struct mla_error_info error;
    struct mla_cache_desc desc;
    struct mla_decode_args args;
    mla_options_init(&options);
    options.socket_path = socket;
    options.name = s->config->name;
    options.timeout_us = OPEN_US;
    options.flags = MLA_OPEN_WAIT;
    options.features = MLA_FEATURE_CUDA_IPC;
    if (mla_open(&options, &c->client, &error) != MLA_OK) {
        fprintf(stderr, "mla-bench: %s\n", error.text);
        exit(2);
    }
    mla_cache_desc_init(&desc);
    mla_decode_args_init(&args);
    desc.region = share(c->client, s->pool.kv, s->pool.pages * SHAPE_PAGE_BYTES, MLA_ACCESS_READ);
    desc.num_pages = s->pool.pages;
    must(c->client, mla_cache_define(c->client, &desc, TIMEOUT_US, &args.cache), "define cache");
    uint64_t q_bytes = s->pool.rows * MLA_ABI_QK_DIM;
    args.q = view_of(share(c->client, s->pool.q, q_bytes, MLA_ACCESS_READ), s->config->heads, MLA_ABI_QK_DIM);
    args.o =
        view_of(share(c->client, s->pool.o, s->pool.o_bytes, MLA_ACCESS_READ_WRITE), s->config->heads, MLA_ABI_V_DIM);
    args.heads = s->config->heads;
    args.out_type = MLA_DTYPE_E4M3;
    args.out_scale = OUT_SCALE;
    args.softmax_scale = SOFTMAX_SCALE;
    for (size_t i = 0; i < s->config->n_shapes; i++) {
        put_tables(s, c->client, i);
        c->args[i] = args;
    }
}

static struct connection *prepare(struct served *s, uint64_t i, struct mla_decode_args **args)
{
    struct connection *c = &s->connections[s->command->daemon];
    uint32_t which = s->command->which;
    *args = &c->args[which];
    (*args)->tables = which * COPIES_MAX + i % s->copies[which] + 1;
    return c;
}

static void turn_blocking(void *arg, uint64_t i)
{
    struct mla_decode_args *args;
    struct connection *c = prepare(arg, i, &args);
    must(c->client, mla_decode(c->client, args, TIMEOUT_US, NULL), "decode");
}

static void turn_spinning(void *arg, uint64_t i)
{
    struct mla_decode_args *args;
    struct connection *c = prepare(arg, i, &args);
    mla_request_id request;
    enum mla_status status;
    must(c->client, mla_decode_submit(c->client, args, NULL, NULL, &request), "submit");
    while ((status = mla_wait(c->client, request, 0, NULL)) == MLA_PENDING)
        continue;
    must(c->client, status, "decode");
}

/* Every daemon and shape once; there must be an output. */
static void try_all(struct served *s)
{
    for (uint32_t d = 0; d < s->config->n_sockets; d++)
        for (uint32_t i = 0; i < s->config->n_shapes; i++) {
            struct crew_command command = {.which = i, .daemon = d};
            uint8_t row[MLA_ABI_V_DIM];
            unsigned zeros = 0, nans = 0;
            s->command = &command;
            GPU(&s->gpu, cuMemsetD8Async(s->pool.o, 0, s->pool.o_bytes, s->gpu.stream));
            GPU(&s->gpu, cuStreamSynchronize(s->gpu.stream));
            turn_blocking(s, 0);
            GPU(&s->gpu, cuMemcpyDtoH(row, s->pool.o + (s->shapes[i].rows - 1) * MLA_ABI_V_DIM, sizeof row));
            for (size_t k = 0; k < sizeof row; k++) {
                zeros += (row[k] & 0x7f) == 0;
                nans += (row[k] & 0x7f) == 0x7f;
            }
            if (zeros > sizeof row / 2 || nans > 0) {
                fprintf(stderr, "mla-bench: %s: %u zeros and %u NaN in the last row\n", s->shapes[i].name, zeros, nans);
                exit(2);
            }
        }
}

/* ---- the process ---- */

static void close_all(struct served *s)
{
    for (size_t d = 0; d < s->config->n_sockets; d++)
        mla_close(s->connections[d].client);
    for (size_t i = 0; i < s->config->n_shapes; i++) {
        if (s->graphs[i])
            work_drop(&s->works[i], s->graphs[i]);
        if (s->works[i].pool)
            work_close(&s->works[i]);
        shape_free(&s->shapes[i]);
    }
    pool_close(&s->pool);
    variant_close(&s->variant);
    gpu_close(&s->gpu);
}

int served_main(struct crew_side *side, const void *config)
{
    static struct served s;
    struct crew_command command;
    s.config = config;
    bool direct = s.config->n_sockets == 0;
    if (gpu_open(&s.gpu) != 0)
        return BENCH_SKIPPED;
    if (direct) {
        variant_open(&s.variant, tap_open(&s.gpu.driver), "", "");
        if (!s.variant.kernels) {
            fprintf(stderr, "mla-bench: %s\n", s.variant.why);
            return 2;
        }
    }
    open_pool(&s);
    if (direct)
        open_works(&s);
    for (size_t d = 0; d < s.config->n_sockets; d++)
        open_connection(&s, &s.connections[d], s.config->sockets[d]);
    try_all(&s);
    while (crew_next(side, &command)) {
        s.command = &command;
        if (command.op == SERVED_KERNEL)
            side->result->value = kernel_us(&s, &command);
        else
            crew_turns(side, &command, direct ? turn_launch : command.spinning ? turn_spinning : turn_blocking, &s);
    }
    close_all(&s);
    return 0;
}
