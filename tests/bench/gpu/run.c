#include "tests/bench/gpu/run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_US_MOST   1e6
#define REPEATS_US_MOST 8e6
#define REPEATS_LEAST   3
#define PART_REPEATS    5

static uint32_t fewer(double most, uint32_t least, uint32_t wanted)
{
    if (most >= wanted)
        return wanted;
    return most > least ? (uint32_t)most : least < wanted ? least : wanted;
}

static void open_way(struct run *run, struct way *way, const struct ways_rule *rule)
{
    way->options.launches = rule->iterations;
    way->options.own_kernels |= run->own_kernels;
    way->rc = work_open(&way->work, way->variant, &run->pool, way->shape, &way->options);
    if (way->rc != 0)
        return;
    double us = work_try(&way->work);
    us = us > 0.01 ? us : 0.01;
    uint32_t n = fewer(GRAPH_US_MOST / us, 1, rule->iterations);
    if (rule->graph_us > 0)
        n = fewer(ceil(rule->graph_us / us), 2, n);
    way->work.n_launches = n;
    way->timed = (struct timed){.graph = work_capture(&way->work, TAP_ALL),
                                .launches = n,
                                .repeats = fewer(REPEATS_US_MOST / (us * n), REPEATS_LEAST, rule->repeats)};
}

void ways_open(struct run *run, struct way *ways, size_t n, const struct ways_rule *rule)
{
    for (size_t i = 0; i < n; i++)
        open_way(run, &ways[i], rule);
}

void ways_measure(struct run *run, struct way *ways, size_t n, const bool *select, const struct ways_rule *rule,
                  const char *label)
{
    struct timed *timed = gpu_array(n, sizeof *timed);
    size_t *of = gpu_array(n, sizeof *of), m = 0;
    struct times_options options = {.warmup_ms = rule->warmup_ms, .nvml = run->nvml, .label = label};
    for (size_t i = 0; i < n; i++) {
        if (ways[i].rc != 0 || (select && !select[i]))
            continue;
        timed[m] = ways[i].timed;
        timed[m].repeats = timed[m].repeats < rule->repeats ? timed[m].repeats : rule->repeats;
        of[m++] = i;
    }
    if (m > 0)
        times_measure(&run->gpu, timed, m, &options);
    for (size_t i = 0; i < m; i++) {
        uint32_t repeats = ways[of[i]].timed.repeats;
        work_check_status(&ways[of[i]].work);
        ways[of[i]].timed = timed[i];
        ways[of[i]].timed.repeats = repeats;
    }
    free(timed);
    free(of);
}

void ways_close(struct run *run, struct way *ways, size_t n)
{
    GPU(&run->gpu, cuStreamSynchronize(run->gpu.stream));
    for (size_t i = 0; i < n; i++) {
        if (ways[i].rc != 0)
            continue;
        work_drop(&ways[i].work, ways[i].timed.graph);
        work_close(&ways[i].work);
    }
}

void way_parts(struct run *run, struct way *way, double us[TAP_PARTS])
{
    struct timed timed[TAP_PARTS];
    enum tap_part part_of[TAP_PARTS];
    struct times_options options = {.warmup_ms = 0};
    size_t n = 0;
    double rest = way->timed.us.median;
    for (unsigned part = 0; part < TAP_PARTS; part++) {
        us[part] = (double)NAN;
        if (part == TAP_DECODE)
            continue;
        timed[n] = (struct timed){
            .graph = work_capture(&way->work, 1u << part), .launches = way->work.n_launches, .repeats = PART_REPEATS};
        part_of[n] = (enum tap_part)part;
        n += timed[n].graph != NULL;
    }
    if (n > 0)
        times_measure(&run->gpu, timed, n, &options);
    for (size_t i = 0; i < n; i++) {
        us[part_of[i]] = timed[i].us.median;
        rest -= timed[i].us.median;
        work_drop(&way->work, timed[i].graph);
    }
    us[TAP_DECODE] = rest;
}

void way_cells(struct bench_row *row, const struct way *way)
{
    const struct bench_stats *us = &way->timed.us;
    const struct shape *shape = way->shape;
    const struct plan *plan = &way->work.plan;
    bench_label(row, "section", work_section(&way->work));
    bench_cell(row, "b", shape->batch, 0);
    bench_cell(row, "q_len", shape->q_len, 0);
    bench_cell(row, "kv_len", shape->kv_len, 0);
    bench_cell(row, "heads", shape->heads, 0);
    bench_cell(row, "us", us->median, 1);
    bench_cell(row, "us_q1", us->q1, 1);
    bench_cell(row, "us_q3", us->q3, 1);
    bench_cell(row, "us_min", us->min, 1);
    bench_cell(row, "us_max", us->max, 1);
    bench_cell(row, "tflops", way_tflops(way), 1);
    bench_cell(row, "bytes_read", shape->bytes, 0);
    bench_cell(row, "gb_per_s", shape->bytes / us->median * 1e-3, 0);
    bench_cell(row, "launches", way->timed.launches, 0);
    bench_cell(row, "repeats", way->timed.repeats, 0);
    bench_cell(row, "tiles", plan->n_tiles, 0);
    bench_cell(row, "items", plan->n_items, 0);
    bench_cell(row, "units", plan->item_units, 0);
    bench_cell(row, "waves", plan->waves, 0);
    bench_cell(row, "splits", plan->max_splits, 0);
    bench_cell(row, "useful_rows", (double)shape->rows, 0);
    bench_cell(row, "row_slots", (double)plan->row_slots, 0);
    bench_cell(row, "predicted_us", (double)plan->predicted_ns * 1e-3, 1);
    bench_cell(row, "sm_mhz", nvml_mean_mhz(&way->timed.load), 0);
    bench_cell(row, "watts", nvml_mean_watts(&way->timed.load), 0);
    bench_cell(row, "throttle_bits", way->timed.load.samples ? (double)way->timed.load.throttle : (double)NAN, 0);
}

double geomean(const double *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += log(values[i]);
    return n > 0 ? exp(sum / (double)n) : (double)NAN;
}
