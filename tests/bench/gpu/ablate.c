/* What each idea is worth: the native variant as it is, and with one thing changed at a time. Plans are changed here;
 * kernels are changed by sections of the manifest named NATIVE-WHAT, as far as there are any. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/manifest.h"
#include "tests/bench/gpu/modes.h"

#define WAYS_MAX  (8 + VARIANTS_MAX)
#define GRAPH_US  30000.0
#define WARMUP_MS 50.0

struct ablation {
    struct run *run;
    struct shape shape, by_token;
    struct way ways[WAYS_MAX];
    size_t n;
    struct variant others[VARIANTS_MAX];
    size_t n_others;
};

/* Sections named after the native one. */
static void open_others(struct ablation *a)
{
    const struct run *run = a->run;
    const char *native = run->variants[0].name;
    size_t length = strlen(native);
    struct kernels_manifest *manifest = gpu_array(1, sizeof *manifest);
    char path[PATH_MAX], why[256];
    snprintf(path, sizeof path, "%s/%s", run->kernels_folder, KERNELS_MANIFEST_NAME);
    if (kernels_manifest_read(path, manifest, why, sizeof why) != 0) {
        fprintf(stderr, "mla-bench: %s\n", why);
        manifest->n_sections = 0;
    }
    for (uint32_t i = 0; i < manifest->n_sections && a->n_others < VARIANTS_MAX; i++) {
        const char *name = manifest->sections[i].name;
        if (strncmp(name, native, length) != 0 || name[length] != '-')
            continue;
        variant_open(&a->others[a->n_others], run->tapped, name, native);
        if (a->others[a->n_others].kernels)
            a->n_others++;
        else
            fprintf(stderr, "mla-bench: %s: %s\n", name, a->others[a->n_others].why);
    }
    free(manifest);
}

static void add_way(struct ablation *a, const char *label, const struct variant *variant, const struct shape *shape,
                    struct work_options options)
{
    struct way *way = &a->ways[a->n++];
    memset(way, 0, sizeof *way);
    snprintf(way->label, sizeof way->label, "%s", label);
    way->variant = variant;
    way->shape = shape;
    way->options = options;
}

static void add_ways(struct ablation *a)
{
    const struct variant *native = &a->run->variants[0];
    uint32_t full = native->facts->tile_rows;
    a->n = 0;
    add_way(a, "as it is", native, &a->shape, (struct work_options){0});
    for (uint32_t rows = full / 2; rows >= 64; rows /= 2) {
        char label[48];
        snprintf(label, sizeof label, "packing: tiles of %u rows", rows);
        add_way(a, label, native, &a->shape, (struct work_options){.tile_rows = rows});
    }
    add_way(a, "packing: a tile per query token", native, &a->by_token, (struct work_options){0});
    add_way(a, "splits: none", native, &a->shape, (struct work_options){.policy = PLAN_UNSPLIT});
    add_way(a, "splits: uniform", native, &a->shape, (struct work_options){.policy = PLAN_SEED});
    add_way(a, "splits: balanced", native, &a->shape, (struct work_options){.policy = PLAN_BALANCED});
    for (size_t i = 0; i < a->n_others; i++)
        add_way(a, a->others[i].name, &a->others[i], &a->shape, (struct work_options){0});
}

static void report_way(struct ablation *a, const struct way *way, double reduce_us)
{
    double base = a->ways[0].timed.us.median, us = way->timed.us.median;
    struct bench_row *row = bench_row(a->run->report, "%s %s", a->shape.name, way->label);
    bench_label(row, "table", "ablation");
    bench_label(row, "variant", way->variant->name);
    bench_label(row, "way", way->label);
    way_cells(row, way);
    bench_cell(row, "reduce_us", reduce_us, 1);
    bench_cell(row, "reduce_share", reduce_us / us, 4);
    bench_cell(row, "over_as_it_is", us / base, 4);
    printf("  %-34s %9.1f us %7.1f TFLOP/s, %+.1f %% time, tiles %u, rows %llu of %llu, splits %u, units %u",
           way->label, us, way_tflops(way), 100 * (us / base - 1), way->work.plan.n_tiles,
           (unsigned long long)a->shape.rows, (unsigned long long)way->work.plan.row_slots, way->work.plan.max_splits,
           way->work.plan.item_units);
    if (!isnan(reduce_us))
        printf(", reducer %.1f us %.1f %%", reduce_us, 100 * reduce_us / us);
    printf("\n");
}

static void run_shape(struct ablation *a, const char *label)
{
    struct ways_rule rule = {
        .iterations = a->run->iterations, .graph_us = GRAPH_US, .repeats = a->run->repeats, .warmup_ms = WARMUP_MS};
    shape_by_token(&a->by_token, &a->shape);
    add_ways(a);
    ways_open(a->run, a->ways, a->n, &rule);
    ways_measure(a->run, a->ways, a->n, NULL, &rule, label);
    times_progress_end();
    printf("%s\n", a->shape.name);
    for (size_t i = 0; i < a->n; i++) {
        double parts[TAP_PARTS];
        if (a->ways[i].rc != 0) {
            printf("  %-34s no plan\n", a->ways[i].label);
            continue;
        }
        way_parts(a->run, &a->ways[i], parts);
        report_way(a, &a->ways[i], parts[TAP_REDUCE]);
    }
    fflush(stdout);
    ways_close(a->run, a->ways, a->n);
    shape_free(&a->by_token);
}

void ablate_run(struct run *run)
{
    struct ablation *a = gpu_array(1, sizeof *a);
    uint32_t n = shape_count(&run->lists);
    a->run = run;
    open_others(a);
    printf("ablation of %s\n", run->variants[0].name);
    for (uint32_t i = 0; i < n; i++) {
        char label[96];
        shape_of_lists(&a->shape, &run->lists, i);
        snprintf(label, sizeof label, "ablation, shape %u of %u, %s", i + 1, n, a->shape.name);
        if (a->shape.kv_len == run->lists.kv[0]) /* the shortest context shows it */
            run_shape(a, label);
        shape_free(&a->shape);
        bench_save(run->report);
    }
    for (size_t i = 0; i < a->n_others; i++)
        variant_close(&a->others[i]);
    free(a);
}
