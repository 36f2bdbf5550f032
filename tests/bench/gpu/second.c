/* The second list: what ranks of a tensor-parallel group see. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/modes.h"

#define SHARE_AT_LEAST 0.70
#define JUDGED_KV      32768u /* and longer */

struct second_lists {
    struct shape_lists lists; /* without heads */
    uint32_t heads[4];
    uint32_t n_heads;
    bool standard;
};

static struct second_lists second_lists(const struct run *run)
{
    struct second_lists s = {.lists = run->lists, .heads = {12, 24, 48, 96}, .n_heads = 4};
    s.standard = !run->own_q && !run->own_kv && !run->own_heads;
    if (!run->own_q) {
        static const uint32_t q[] = {1, 4, 8};
        memcpy(s.lists.q, q, sizeof q);
        s.lists.n_q = 3;
    }
    if (!run->own_kv) {
        static const uint32_t kv[] = {4096, 32768, 131072};
        memcpy(s.lists.kv, kv, sizeof kv);
        s.lists.n_kv = 3;
    }
    if (run->own_heads) {
        s.heads[0] = run->lists.heads;
        s.n_heads = 1;
    }
    s.lists.batches[0] = run->batch;
    s.lists.n_batches = 1;
    return s;
}

static void shape_of(struct shape *shape, const struct second_lists *s, uint32_t i)
{
    struct shape_lists lists = s->lists;
    lists.heads = s->heads[i / shape_count(&lists)];
    shape_of_lists(shape, &lists, i % shape_count(&lists));
}

/* The batch whose rate the rooflines are drawn with, when nothing else has told it. */
static void rate_shape(struct shape *shape)
{
    shape_uniform(shape, 64, 8, 96, 65536);
}

void second_want(const struct run *run, struct pool_wants *wants)
{
    struct second_lists s = second_lists(run);
    struct shape shape;
    for (uint32_t i = 0; i < s.n_heads * shape_count(&s.lists); i++) {
        shape_of(&shape, &s, i);
        pool_want(wants, &shape, run->iterations);
        shape_free(&shape);
    }
    if (isnan(run->rate_b64) && s.standard) {
        rate_shape(&shape);
        pool_want(wants, &shape, 1);
        shape_free(&shape);
    }
}

static void measure_rate(struct run *run)
{
    struct shape shape;
    struct ways_rule rule = {.iterations = 4, .repeats = run->repeats, .warmup_ms = run->warmup_ms};
    struct way way = {.variant = &run->variants[0], .shape = &shape};
    rate_shape(&shape);
    ways_open(run, &way, 1, &rule);
    ways_measure(run, &way, 1, NULL, &rule, shape.name);
    times_progress_end();
    if (way.rc == 0)
        run->rate_b64 = way_tflops(&way);
    ways_close(run, &way, 1);
    shape_free(&shape);
}

void second_run(struct run *run)
{
    struct second_lists s = second_lists(run);
    double least = INFINITY;
    if (isnan(run->rate_b64) && s.standard)
        measure_rate(run);
    printf("second list, %s, rooflines of %.1f TFLOP/s and 4.6 TB/s\n", run->variants[0].name, run->rate_b64);
    for (uint32_t i = 0; i < s.n_heads * shape_count(&s.lists); i++) {
        struct shape shape;
        shape_of(&shape, &s, i);
        double share = sweep_shape(run, "second", &shape);
        if (shape.kv_len >= JUDGED_KV && !(share >= least))
            least = share;
        shape_free(&shape);
    }
    if (s.standard)
        bench_bar_at_least(run->report, "second list, KV 32K and 128K, least share of the roofline", least,
                           SHARE_AT_LEAST);
}
