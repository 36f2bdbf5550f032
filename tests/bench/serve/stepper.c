#include "tests/bench/serve/stepper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/gpu/times.h"
#include "tests/bench/gpu/weights.h"
#include "tests/bench/gpu/work.h"
#include "tests/bench/machine.h"
#include "tests/bench/serve/link.h"

#define BLOCK_PAGES     512u
#define WORKSPACE_BYTES (UINT64_C(64) << 20)
#define WEIGHTS_SETS    2 /* layers use them in turn: none finds its weights in L2 */

struct stepper {
    const struct stepper_config *config;
    struct gpu gpu;
    struct variant variant;
    struct pool pool;
    struct weights weights[WEIGHTS_SETS];
    struct shape shapes[STEPPER_LENGTHS_MAX];
    struct work works[STEPPER_LENGTHS_MAX]; /* of one that launches itself: a launch per layer */
    struct mla_client *client;
    struct mla_sync *sync; /* words of length i, layer l: 2 * (i * layers + l), and the next */
    struct mla_cuda_sync *words;
    struct mla_template *templates[STEPPER_LENGTHS_MAX];
    CUgraphExec graphs[STEPPER_LENGTHS_MAX], products;
    uint32_t which;
};

static void open_pool(struct stepper *s)
{
    const struct stepper_config *c = s->config;
    struct pool_wants wants = {
        .out_bytes = 1, .block_pages_most = BLOCK_PAGES, .workspace_bytes_most = WORKSPACE_BYTES};
    for (size_t i = 0; i < c->n_lengths; i++) {
        shape_uniform(&s->shapes[i], 1, c->q_len, c->heads, c->lengths[i]);
        pool_want(&wants, &s->shapes[i], c->layers);
    }
    pool_open(&s->pool, &s->gpu, &wants);
    pool_fill(&s->pool, &data_sets[0]);
    for (size_t i = 0; i < WEIGHTS_SETS; i++)
        weights_open(&s->weights[i], &s->gpu, s->variant.facts->file, c->weight_rows);
}

/* ---- the attention of a layer ---- */

static void open_works(struct stepper *s)
{
    for (size_t i = 0; i < s->config->n_lengths; i++) {
        struct work_options options = {.launches = s->config->layers};
        int rc = work_open(&s->works[i], &s->variant, &s->pool, &s->shapes[i], &options);
        if (rc != 0) {
            fprintf(stderr, "mla-bench: no plan of %s: %s\n", s->shapes[i].name, strerror(-rc));
            exit(2);
        }
    }
}

static size_t word_of(const struct stepper *s, size_t length, uint32_t layer)
{
    return 2 * (length * s->config->layers + layer);
}

/* A layer's pages are a plane of their own, whose table names them all in a mixed order. */
static void open_template(struct stepper *s, size_t i, mla_region_id pages, const struct mla_decode_args *common)
{
    const struct shape *shape = &s->shapes[i];
    uint32_t layers = s->config->layers, copies = pool_copies(&s->pool, shape, layers);
    struct mla_decode_args args[STEPPER_LAYERS_MAX];
    uint64_t planes[STEPPER_LAYERS_MAX];
    int32_t *entries = gpu_array(shape->pages, sizeof *entries);
    struct mla_cache_desc desc;
    mla_cache_id cache;
    mla_cache_desc_init(&desc);
    desc.region = pages;
    desc.num_pages = shape->pages;
    desc.plane_offset = planes;
    desc.n_planes = layers;
    for (uint32_t l = 0; l < layers; l++)
        planes[l] = l % copies * shape->pages * SHAPE_PAGE_BYTES;
    link_must(s->client, mla_cache_define(s->client, &desc, LINK_TIMEOUT_US, &cache), "define cache");
    data_permute(entries, (uint32_t)shape->pages, (uint32_t)shape->pages);
    link_tables(s->client, i + 1, shape, entries);
    free(entries);
    for (uint32_t l = 0; l < layers; l++) {
        args[l] = *common;
        args[l].cache = cache;
        args[l].plane = l;
        args[l].tables = i + 1;
        args[l].ready = mla_sync_location(s->sync, word_of(s, i, l));
        args[l].done = mla_sync_location(s->sync, word_of(s, i, l) + 1);
    }
    link_must(s->client, mla_template_open(s->client, args, layers, LINK_TIMEOUT_US, &s->templates[i]),
              "open template");
}

static void open_link(struct stepper *s)
{
    const struct stepper_config *c = s->config;
    struct mla_decode_args args;
    s->client = link_open(c->socket, c->name, MLA_FEATURE_STEP | MLA_FEATURE_SYNC, c->spin_us);
    link_args(s->client, &s->pool, c->heads, &args);
    mla_region_id pages = link_pages(s->client, &s->pool);
    size_t n = 2 * c->n_lengths * c->layers;
    link_must(s->client, mla_sync_create(s->client, n, LINK_TIMEOUT_US, &s->sync), "sync page");
    link_must(s->client, mla_cuda_sync_attach(s->client, s->sync, &s->words), "attach");
    for (size_t i = 0; i < c->n_lengths; i++)
        open_template(s, i, pages, &args);
}

/* ---- graphs ---- */

static CUgraphExec capture(struct stepper *s, size_t length, bool attention)
{
    CUgraph graph;
    CUgraphExec exec;
    CUstream stream = s->gpu.stream;
    GPU(&s->gpu, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (uint32_t l = 0; l < s->config->layers; l++) {
        weights_launch(&s->weights[l % WEIGHTS_SETS]);
        if (attention && !s->client) {
            work_launch(&s->works[length], l % s->works[length].n_launches);
        } else if (attention) {
            size_t word = word_of(s, length, l);
            link_must(s->client, mla_cuda_write_ready(s->words, word, 1, stream), "write ready");
            link_must(s->client, mla_cuda_wait_done(s->words, word + 1, 1, stream), "wait done");
        }
    }
    GPU(&s->gpu, cuStreamEndCapture(stream, &graph));
    GPU(&s->gpu, cuGraphInstantiate(&exec, graph, 0));
    GPU(&s->gpu, cuGraphDestroy(graph));
    return exec;
}

static double products_us(struct stepper *s, uint32_t repeats)
{
    struct times_options options = {.warmup_ms = 1};
    struct timed timed = {.graph = s->products, .launches = s->config->layers, .repeats = repeats != 0 ? repeats : 5};
    times_measure(&s->gpu, &timed, 1, &options);
    return timed.us.median;
}

/* One step: for mlad the message, so that it is there before the first layer's word; the graph. */
static void turn(void *arg, uint64_t i)
{
    struct stepper *s = arg;
    (void)i;
    mla_request_id request = 0;
    enum mla_status status = s->client ? mla_step_submit(s->templates[s->which], NULL, NULL, NULL, &request) : MLA_OK;
    GPU(&s->gpu, cuGraphLaunch(s->graphs[s->which], s->gpu.stream));
    if (s->client && status == MLA_OK)
        status = mla_step_wait(s->client, request, LINK_TIMEOUT_US, NULL);
    GPU(&s->gpu, cuStreamSynchronize(s->gpu.stream));
    if (status != MLA_OK)
        link_must(s->client, status, "step");
}

static uint64_t abandoned(struct stepper *s)
{
    GPU(&s->gpu, cuGraphLaunch(s->graphs[0], s->gpu.stream));
    GPU(&s->gpu, cuStreamSynchronize(s->gpu.stream));
    return bench_now_ns();
}

/* ---- the process ---- */

static void close_all(struct stepper *s)
{
    for (size_t i = 0; i < s->config->n_lengths; i++) {
        work_drop(&(struct work){.pool = &s->pool}, s->graphs[i]);
        if (s->client)
            link_must(s->client, mla_template_close(s->templates[i], LINK_TIMEOUT_US), "close template");
        else
            work_close(&s->works[i]);
        shape_free(&s->shapes[i]);
    }
    work_drop(&(struct work){.pool = &s->pool}, s->products);
    if (s->client) {
        link_must(s->client, mla_cuda_sync_detach(s->words), "detach");
        link_must(s->client, mla_sync_destroy(s->sync, LINK_TIMEOUT_US), "destroy the sync page");
        mla_close(s->client);
    }
    for (size_t i = 0; i < WEIGHTS_SETS; i++)
        weights_close(&s->weights[i]);
    pool_close(&s->pool);
    variant_close(&s->variant);
    gpu_close(&s->gpu);
}

int stepper_main(struct crew_side *side, const void *config)
{
    static struct stepper s;
    struct crew_command command;
    s.config = config;
    if (gpu_open(&s.gpu) != 0)
        return BENCH_SKIPPED;
    variant_open(&s.variant, tap_open(&s.gpu.driver), "", "");
    if (!s.variant.kernels) {
        fprintf(stderr, "mla-bench: %s\n", s.variant.why);
        return 2;
    }
    open_pool(&s);
    if (s.config->socket)
        open_link(&s);
    else
        open_works(&s);
    s.products = capture(&s, 0, false);
    for (s.which = 0; s.which < s.config->n_lengths; s.which++) {
        s.graphs[s.which] = capture(&s, s.which, true);
        GPU(&s.gpu, cuMemsetD8Async(s.pool.o, 0, s.pool.o_bytes, s.gpu.stream));
        turn(&s, 0);
        link_check(&s.pool, &s.shapes[s.which]);
    }
    while (crew_next(side, &command)) {
        s.which = command.which;
        if (command.op == STEPPER_ABANDON)
            side->result->end_ns = abandoned(&s);
        else if (command.op == STEPPER_WEIGHTS)
            side->result->value = products_us(&s, command.turns_max);
        else
            crew_turns(side, &command, turn, &s);
    }
    close_all(&s);
    return 0;
}
