/* Sweeps of the native variant: over rows at one length, over lengths, and batches of unlike sequences. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/modes.h"

#define BYTES_PER_US 4.6e6 /* read bandwidth of the H200, measured */
#define GRAPH_US     30000.0
#define WARMUP_MS    20.0

double roofline_us(const struct run *run, const struct shape *shape)
{
    double flop_us = shape->flop / run->rate_b64 * 1e-6, bytes_us = shape->bytes / BYTES_PER_US;
    return isnan(flop_us) || flop_us > bytes_us ? flop_us : bytes_us;
}

double sweep_shape(struct run *run, const char *table, const struct shape *shape)
{
    struct ways_rule rule = {
        .iterations = run->iterations, .graph_us = GRAPH_US, .repeats = run->repeats, .warmup_ms = WARMUP_MS};
    struct way way = {.variant = &run->variants[0], .shape = shape};
    ways_open(run, &way, 1, &rule);
    ways_measure(run, &way, 1, NULL, &rule, shape->name);
    times_progress_end();
    if (way.rc != 0) {
        printf("  %-28s no plan for it\n", shape->name);
        return (double)NAN;
    }
    double us = way.timed.us.median, share = roofline_us(run, shape) / us;
    struct bench_row *row = bench_row(run->report, "%s", shape->name);
    bench_label(row, "table", table);
    bench_label(row, "variant", way.variant->name);
    way_cells(row, &way);
    bench_cell(row, "roofline_us", roofline_us(run, shape), 1);
    bench_cell(row, "roofline_share", share, 4);
    printf("  %-28s %9.1f us [%.1f %.1f] %7.1f TFLOP/s %6.0f GB/s, %s, splits %u, units %u, model %.1f us", shape->name,
           us, way.timed.us.q1, way.timed.us.q3, way_tflops(&way), shape->bytes / us * 1e-3, work_section(&way.work),
           way.work.plan.max_splits, way.work.plan.item_units, (double)way.work.plan.predicted_ns * 1e-3);
    if (!isnan(share))
        printf(", %.1f %% of the roofline", 100 * share);
    printf("\n");
    fflush(stdout);
    ways_close(run, &way, 1);
    bench_save(run->report);
    return share;
}

/* ---- lists ---- */

/* The run's own lists where they were given, else the sweep's. */
static struct shape_lists rows_lists(const struct run *run)
{
    struct shape_lists l = run->lists;
    if (!run->own_q) {
        static const uint32_t q[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                     13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 56, 64};
        memcpy(l.q, q, sizeof q);
        l.n_q = sizeof q / sizeof q[0];
    }
    if (!run->own_batches) {
        l.batches[0] = 4;
        l.n_batches = 1;
    }
    if (!run->own_kv)
        l.n_kv = 1;
    return l;
}

static struct shape_lists kv_lists(const struct run *run)
{
    struct shape_lists l = run->lists;
    if (!run->own_kv) {
        l.n_kv = 0;
        for (uint32_t kv = 64; kv <= 1u << 20; kv *= 2)
            l.kv[l.n_kv++] = kv;
    }
    if (!run->own_batches) {
        l.batches[0] = 1;
        l.batches[1] = 8;
        l.n_batches = 2;
    }
    if (!run->own_q)
        l.n_q = 1;
    return l;
}

static void want(const struct run *run, const struct shape_lists *lists, struct pool_wants *wants)
{
    for (uint32_t i = 0; i < shape_count(lists); i++) {
        struct shape shape;
        shape_of_lists(&shape, lists, i);
        pool_want(wants, &shape, run->iterations);
        shape_free(&shape);
    }
}

static void sweep(struct run *run, const char *table, const struct shape_lists *lists)
{
    printf("%s, %s\n", table, run->variants[0].name);
    for (uint32_t i = 0; i < shape_count(lists); i++) {
        struct shape shape;
        shape_of_lists(&shape, lists, i);
        sweep_shape(run, table, &shape);
        shape_free(&shape);
    }
}

void rows_want(const struct run *run, struct pool_wants *wants)
{
    struct shape_lists lists = rows_lists(run);
    want(run, &lists, wants);
}

void rows_run(struct run *run)
{
    struct shape_lists lists = rows_lists(run);
    sweep(run, "rows", &lists);
}

void kv_want(const struct run *run, struct pool_wants *wants)
{
    struct shape_lists lists = kv_lists(run);
    want(run, &lists, wants);
}

void kv_run(struct run *run)
{
    struct shape_lists lists = kv_lists(run);
    sweep(run, "kv", &lists);
}

/* Sequences of 1 to the longest context, 1 to the most tokens, for each batch and context of the lists. */
static bool ragged_shape(const struct run *run, uint32_t i, struct shape *shape)
{
    const struct shape_lists *l = &run->lists;
    uint32_t q_max = 1, kv;
    if (i >= l->n_batches * l->n_kv)
        return false;
    for (uint32_t k = 0; k < l->n_q; k++)
        q_max = l->q[k] > q_max ? l->q[k] : q_max;
    kv = l->kv[i % l->n_kv];
    shape_ragged(shape, l->batches[i / l->n_kv], q_max, l->heads, q_max < kv ? q_max : kv, kv);
    return true;
}

void ragged_want(const struct run *run, struct pool_wants *wants)
{
    struct shape shape;
    for (uint32_t i = 0; ragged_shape(run, i, &shape); i++) {
        pool_want(wants, &shape, run->iterations);
        shape_free(&shape);
    }
}

void ragged_run(struct run *run)
{
    struct shape shape;
    printf("ragged, %s\n", run->variants[0].name);
    for (uint32_t i = 0; ragged_shape(run, i, &shape); i++) {
        sweep_shape(run, "ragged", &shape);
        shape_free(&shape);
    }
}
