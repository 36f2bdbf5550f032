/* The shapes by the reference method: graphs of 20 launches, 15 repeats, every launch on pages that are not in L2, all
 * variants in turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/modes.h"
#include "tests/bench/gpu/published.h"

#define SHAPES_MAX 256

/* Medians, by variant and shape; NaN: not there. */
struct results {
    struct run *run;
    uint32_t n_shapes;
    double us[VARIANTS_MAX][SHAPES_MAX];
    double tflops[VARIANTS_MAX][SHAPES_MAX];
    struct {
        uint32_t n_seqs, q_len, kv_len;
        double flop, fp8_us, bf16_us; /* published; NaN */
    } shapes[SHAPES_MAX];
};

/* Columns for the ratio to each variant. */
static char ratio_columns[VARIANTS_MAX][80];

void reference_want(const struct run *run, struct pool_wants *wants)
{
    for (uint32_t i = 0; i < shape_count(&run->lists); i++) {
        struct shape shape;
        shape_of_lists(&shape, &run->lists, i);
        pool_want(wants, &shape, run->iterations);
        shape_free(&shape);
    }
}

static void print_way(const struct results *r, uint32_t i, size_t v, const struct way *way,
                      const double parts[TAP_PARTS])
{
    const struct run *run = r->run;
    const struct bench_stats *us = &way->timed.us;
    const struct plan *plan = &way->work.plan;
    printf("  %-16s %9.1f us [%.1f %.1f  %.1f %.1f] %7.1f TFLOP/s", way->variant->name, us->median, us->q1, us->q3,
           us->min, us->max, way_tflops(way));
    for (size_t k = 0; k < run->n_variants; k++)
        if (k != v && !isnan(r->us[k][i]))
            printf("  %.3fx %s", r->us[k][i] / us->median, run->variants[k].name);
    if (!isnan(r->shapes[i].fp8_us))
        printf("  %.3fx FP8 peer", r->shapes[i].fp8_us / us->median);
    if (!isnan(run->raw_tflops))
        printf("  %.1f %% of raw", 100 * way_tflops(way) / run->raw_tflops);
    printf("\n  %-16s tiles %u, rows %llu of %llu, splits %u, units %u, waves %u, %.0f GB/s", "", plan->n_tiles,
           (unsigned long long)way->shape->rows, (unsigned long long)plan->row_slots, plan->max_splits,
           plan->item_units, plan->waves, way->shape->bytes / us->median * 1e-3);
    if (!run->no_parts) {
        static const char *const names[TAP_PARTS] = {"prepare", "decode", "reduce", "adapters"};
        for (int p = 0; p < TAP_PARTS; p++)
            if (!isnan(parts[p]))
                printf(", %s %.1f us %.1f %%", names[p], parts[p], 100 * parts[p] / us->median);
    }
    if (way->timed.load.samples != 0)
        printf(", %.0f MHz, %.0f W, throttle 0x%llx", nvml_mean_mhz(&way->timed.load),
               nvml_mean_watts(&way->timed.load), (unsigned long long)way->timed.load.throttle);
    if (way->timed.repeats < run->repeats || way->timed.launches < run->iterations)
        printf(", only %u repeats of %u", way->timed.repeats, way->timed.launches);
    printf("\n");
}

static void add_row(struct results *r, uint32_t i, size_t v, const struct way *way, const double parts[TAP_PARTS])
{
    struct run *run = r->run;
    struct bench_row *row = bench_row(run->report, "%s %s", way->shape->name, way->variant->name);
    double us = way->timed.us.median;
    bench_label(row, "table", "reference");
    bench_label(row, "variant", way->variant->name);
    way_cells(row, way);
    if (!run->no_parts) {
        bench_cell(row, "prepare_us", parts[TAP_PREPARE], 1);
        bench_cell(row, "decode_us", parts[TAP_DECODE], 1);
        bench_cell(row, "reduce_us", parts[TAP_REDUCE], 1);
        bench_cell(row, "adapters_us", parts[TAP_OTHER], 1);
    }
    bench_cell(row, "of_raw_wgmma", way_tflops(way) / run->raw_tflops, 3);
    bench_cell(row, "fp8_peer_us", r->shapes[i].fp8_us, 1);
    bench_cell(row, "bf16_peer_us", r->shapes[i].bf16_us, 1);
    bench_cell(row, "over_fp8_peer", r->shapes[i].fp8_us / us, 3);
    bench_cell(row, "over_bf16_peer", r->shapes[i].bf16_us / us, 3);
    for (size_t k = 0; k < run->n_variants; k++)
        if (run->variants[k].kernels)
            bench_cell(row, ratio_columns[k], r->us[k][i] / us, 3);
    (void)v;
}

static void run_shape(struct results *r, uint32_t i, uint32_t of)
{
    struct run *run = r->run;
    struct shape shape;
    struct way ways[VARIANTS_MAX] = {0};
    double parts[VARIANTS_MAX][TAP_PARTS];
    struct ways_rule rule = {.iterations = run->iterations, .repeats = run->repeats, .warmup_ms = run->warmup_ms};
    char label[96];
    shape_of_lists(&shape, &run->lists, i);
    snprintf(label, sizeof label, "shape %u of %u, %s", i + 1, of, shape.name);
    times_progress("%s: set-up", label);
    const struct published *peers = published_find(shape.n_seqs, shape.q_len, shape.heads, shape.kv_len);
    r->shapes[i].n_seqs = shape.n_seqs;
    r->shapes[i].q_len = shape.q_len;
    r->shapes[i].kv_len = shape.kv_len;
    r->shapes[i].flop = shape.flop;
    r->shapes[i].fp8_us = peers ? peers->fp8_us : (double)NAN;
    r->shapes[i].bf16_us = peers ? peers->bf16_us : (double)NAN;
    for (size_t v = 0; v < run->n_variants; v++) {
        ways[v].variant = &run->variants[v];
        ways[v].shape = &shape;
        ways[v].rc = -1;
        if (run->variants[v].kernels)
            ways_open(run, &ways[v], 1, &rule);
    }
    ways_measure(run, ways, run->n_variants, NULL, &rule, label);
    for (size_t v = 0; v < run->n_variants; v++) {
        r->us[v][i] = ways[v].rc == 0 ? ways[v].timed.us.median : (double)NAN;
        r->tflops[v][i] = shape.flop / r->us[v][i] * 1e-6;
        if (ways[v].rc == 0 && !run->no_parts)
            way_parts(run, &ways[v], parts[v]);
    }
    times_progress_end();
    printf("%s\n", shape.name);
    for (size_t v = 0; v < run->n_variants; v++) {
        if (ways[v].rc != 0) {
            if (run->variants[v].kernels)
                printf("  %-16s no plan for it\n", run->variants[v].name);
            continue;
        }
        print_way(r, i, v, &ways[v], parts[v]);
        add_row(r, i, v, &ways[v], parts[v]);
    }
    fflush(stdout);
    ways_close(run, ways, run->n_variants);
    shape_free(&shape);
    bench_save(run->report);
}

/* ---- sums ---- */

/* Geometric mean of the shapes with that q_len (0: all) of a variant's rate, or of its rate over another's. */
static double mean_of(const struct results *r, size_t v, size_t over, uint32_t q_len)
{
    double values[SHAPES_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_shapes; i++)
        if (q_len == 0 || r->shapes[i].q_len == q_len)
            values[n++] = over == v ? r->tflops[v][i] : r->tflops[v][i] / r->tflops[over][i];
    return geomean(values, n);
}

/* Rate with one q_len over that with another, equal batch and context. */
static double mean_q_ratio(const struct results *r, size_t v, uint32_t q, uint32_t over)
{
    double values[SHAPES_MAX];
    size_t n = 0;
    for (uint32_t i = 0; i < r->n_shapes; i++)
        for (uint32_t k = 0; k < r->n_shapes; k++)
            if (r->shapes[i].q_len == q && r->shapes[k].q_len == over && r->shapes[i].n_seqs == r->shapes[k].n_seqs &&
                r->shapes[i].kv_len == r->shapes[k].kv_len)
                values[n++] = r->tflops[v][i] / r->tflops[v][k];
    return geomean(values, n);
}

static int find(const struct results *r, uint32_t n_seqs, uint32_t q_len, uint32_t kv_len)
{
    for (uint32_t i = 0; i < r->n_shapes; i++)
        if (r->shapes[i].n_seqs == n_seqs && r->shapes[i].q_len == q_len && r->shapes[i].kv_len == kv_len)
            return (int)i;
    return -1;
}

/* Time of batch 1 over its FLOP at the rate of batch 64, equal q_len and context; the worst q_len. */
static double worst_b1(const struct results *r, size_t v, uint32_t kv_len)
{
    double worst = (double)NAN;
    for (size_t k = 0; k < r->run->lists.n_q; k++) {
        int small = find(r, 1, r->run->lists.q[k], kv_len), large = find(r, 64, r->run->lists.q[k], kv_len);
        if (small >= 0 && large >= 0)
            worst = fmax(worst, r->tflops[v][large] / r->tflops[v][small]);
    }
    return worst;
}

static void sum_up(struct results *r)
{
    struct run *run = r->run;
    const struct shape_lists *lists = &run->lists;
    printf("geometric means, TFLOP/s\n");
    for (size_t v = 0; v < run->n_variants; v++) {
        if (!run->variants[v].kernels)
            continue;
        struct bench_row *row = bench_row(run->report, "geometric means, %s", run->variants[v].name);
        bench_label(row, "table", "geometric means");
        bench_label(row, "variant", run->variants[v].name);
        double all = mean_of(r, v, v, 0), q4 = mean_of(r, v, v, 4), q8 = mean_of(r, v, v, 8);
        double ratio = mean_q_ratio(r, v, 4, 8);
        bench_cell(row, "tflops", all, 1);
        bench_cell(row, "tflops_q4", q4, 1);
        bench_cell(row, "tflops_q8", q8, 1);
        bench_cell(row, "q4_over_q8", ratio, 3);
        printf("  %-16s %7.1f", run->variants[v].name, all);
        if (!isnan(ratio))
            printf(", Q4 %.1f, Q8 %.1f, Q4 over Q8 %.3f", q4, q8, ratio);
        for (uint32_t k = 0; k < lists->n_kv; k++) {
            double b1 = worst_b1(r, v, lists->kv[k]);
            if (!isnan(b1))
                printf(", B1 over ideal at KV%u %.3f", lists->kv[k], b1);
        }
        for (size_t k = 0; k < run->n_variants; k++)
            if (k != v && run->variants[k].kernels)
                printf(", %.3fx %s", mean_of(r, v, k, 0), run->variants[k].name);
        printf("\n");
    }
    /* The rate of the largest batch, for rooflines. */
    double rates[SHAPES_MAX];
    size_t n = 0;
    uint32_t most = 0;
    for (uint32_t i = 0; i < r->n_shapes; i++)
        most = r->shapes[i].n_seqs > most ? r->shapes[i].n_seqs : most;
    for (uint32_t i = 0; i < r->n_shapes; i++)
        if (r->shapes[i].n_seqs == most)
            rates[n++] = r->tflops[0][i];
    if (isnan(run->rate_b64))
        run->rate_b64 = geomean(rates, n);
}

/* ---- bars ---- */

static size_t variant_named(const struct run *run, const char *name)
{
    size_t v = 0;
    while (v < run->n_variants && (strcmp(run->variants[v].name, name) != 0 || !run->variants[v].kernels))
        v++;
    return v;
}

static double least_over_peer(const struct results *r)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < r->n_shapes; i++) {
        double ratio = r->shapes[i].fp8_us / r->us[0][i];
        if (!(ratio >= least))
            least = ratio;
    }
    return least;
}

static void add_bars(const struct results *r)
{
    struct bench_report *report = r->run->report;
    size_t mla1 = variant_named(r->run, "mla1"), h128 = variant_named(r->run, "h128"), none = r->run->n_variants;
    double nan = (double)NAN, faster = 0;
    for (uint32_t i = 0; mla1 != none && i < r->n_shapes; i++)
        faster += r->us[0][i] < r->us[mla1][i];
    bench_bar_at_least(report, "native, geometric mean of 16 shapes, TFLOP/s", mean_of(r, 0, 0, 0), 960);
    bench_bar_at_least(report, "native over the FP8 peer's figure, least of 16", least_over_peer(r), 1.15);
    bench_bar_at_least(report, "mla1, geometric mean, TFLOP/s", mla1 == none ? nan : mean_of(r, mla1, mla1, 0), 650);
    bench_bar_at_least(report, "native over mla1, geometric mean", mla1 == none ? nan : mean_of(r, 0, mla1, 0), 1.25);
    bench_bar_at_least(report, "native faster than mla1, shapes of 16", mla1 == none ? nan : faster, 16);
    bench_bar_at_least(report, "native over h128, geometric mean", h128 == none ? nan : mean_of(r, 0, h128, 0), 1.28);
    bench_bar_at_least(report, "native over h128, Q4", h128 == none ? nan : mean_of(r, 0, h128, 4), 1.28);
    bench_bar_at_least(report, "native over h128, Q8", h128 == none ? nan : mean_of(r, 0, h128, 8), 1.28);
    bench_bar_at_least(report, "rate of Q4 over Q8, geometric mean", mean_q_ratio(r, 0, 4, 8), 0.93);
    bench_bar_at_most(report, "B1 at 64K, time over ideal", worst_b1(r, 0, 65536), 1.40);
    bench_bar_at_most(report, "B1 at 128K, time over ideal", worst_b1(r, 0, 131072), 1.22);
}

void reference_run(struct run *run)
{
    struct results *r = gpu_array(1, sizeof *r);
    r->run = run;
    r->n_shapes = shape_count(&run->lists);
    if (r->n_shapes > SHAPES_MAX)
        r->n_shapes = SHAPES_MAX;
    for (size_t v = 0; v < run->n_variants; v++)
        snprintf(ratio_columns[v], sizeof ratio_columns[v], "over_%s", run->variants[v].name);
    for (uint32_t i = 0; i < r->n_shapes; i++)
        run_shape(r, i, r->n_shapes);
    sum_up(r);
    if (run->reference_lists)
        add_bars(r);
    free(r);
}
