#include "tests/bench/serve/served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/gpu/times.h"
#include "tests/bench/gpu/work.h"
#include "tests/bench/serve/link.h"

#define COLD_BYTES      (UINT64_C(150) << 20) /* three times an H200's L2 */
#define COPIES_MAX      64u
#define BLOCK_PAGES     512u
#define WORKSPACE_BYTES (UINT64_C(256) << 20)

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
        struct work_options options = {.launches = work_rotation(s->copies[i])};
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
    if (s->graphs[command->which] == NULL)
        s->graphs[command->which] = work_capture(work, TAP_ALL);
    if (command->op == SERVED_PACED)
        return times_paced(&s->gpu, s->graphs[command->which], work->n_launches, command->period_us,
                           1e-6 * (double)(command->end_ns - command->start_ns));
    struct timed timed = {.graph = s->graphs[command->which],
                          .launches = work->n_launches,
                          .repeats = command->turns_max != 0 ? command->turns_max : 5};
    times_measure(&s->gpu, &timed, 1, &options);
    return timed.us.median;
}

/* ---- by daemons ---- */

static void open_connection(struct served *s, size_t d)
{
    struct mla_cache_desc desc;
    struct mla_decode_args args;
    struct connection *c = &s->connections[d];
    c->client = link_open(s->config->sockets[d], s->config->name, 0, s->config->spin_us[d]);
    link_args(c->client, &s->pool, s->config->heads, &args);
    mla_cache_desc_init(&desc);
    desc.region = link_pages(c->client, &s->pool);
    desc.num_pages = s->pool.pages;
    link_must(c->client, mla_cache_define(c->client, &desc, LINK_TIMEOUT_US, &args.cache), "define cache");
    for (size_t i = 0; i < s->config->n_shapes; i++) {
        c->args[i] = args;
        for (uint32_t copy = 0; copy < s->copies[i]; copy++)
            link_tables(c->client, i * COPIES_MAX + copy + 1, &s->shapes[i],
                        s->pool.entries + copy * s->shapes[i].pages);
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

static void turn_decode(void *arg, uint64_t i)
{
    struct mla_decode_args *args;
    struct connection *c = prepare(arg, i, &args);
    link_must(c->client, mla_decode(c->client, args, LINK_TIMEOUT_US, NULL), "decode");
}

/* Every daemon and shape once; there must be an output. */
static void try_all(struct served *s)
{
    for (uint32_t d = 0; d < s->config->n_sockets; d++)
        for (uint32_t i = 0; i < s->config->n_shapes; i++) {
            struct crew_command command = {.which = i, .daemon = d};
            s->command = &command;
            GPU(&s->gpu, cuMemsetD8Async(s->pool.o, 0, s->pool.o_bytes, s->gpu.stream));
            GPU(&s->gpu, cuStreamSynchronize(s->gpu.stream));
            turn_decode(s, 0);
            link_check(&s->pool, &s->shapes[i]);
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
        open_connection(&s, d);
    try_all(&s);
    while (crew_next(side, &command)) {
        s.command = &command;
        if (command.op != SERVED_RUN)
            side->result->value = kernel_us(&s, &command);
        else
            crew_turns(side, &command, direct ? turn_launch : turn_decode, &s);
    }
    close_all(&s);
    return 0;
}
