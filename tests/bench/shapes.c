/* mla-bench shapes: the decode kernels on a GPU, through libmla-kernels. Here: options, and what all parts share. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/gpu/modes.h"
#include "tests/bench/gpu/raw_wgmma.h"
#include "tests/bench/machine.h"

const struct bench_option bench_shapes_options[] = {
    {"--reference", NULL,
     "part, taken where none is named: the shapes for all variants: time, TFLOP/s, ratios, prepare, decode, reduce; "
     "geometric means",
     0, 0, 0},
    {"--splits", NULL, "part: the planner's split choice against every uniform count and policy; native variant", 0, 0,
     0},
    {"--errors", NULL, "part: f32 output against float64 on sampled rows, five data sets, all variants", 0, 0, 0},
    {"--quick", NULL, "of --errors: B 1 and 4", 0, 0, 0},
    {"--ablate", NULL, "part: native with one thing changed at a time, first KV of the list; sections NATIVE-WHAT too",
     0, 0, 0},
    {"--second", NULL, "part: H 12,24,48,96, Q 1,4,8, KV 4K,32K,128K against the roofline", 0, 0, 0},
    {"--batch", "N", "of --second", 32, 1, 4096},
    {"--rate", "TFLOP/s", "of --second: the roof; 0: that of B 64, measured", 0, 0, 10000},
    {"--rows", NULL, "part: Q 1 to 64 with B 4", 0, 0, 0},
    {"--kv", NULL, "part: KV 64 to 1M with B 1 and 8", 0, 0, 0},
    {"--ragged", NULL, "part: sequences of 1 to KV tokens and 1 to Q queries", 0, 0, 0},
    {"--variants", "A,B,...",
     "sections of kernels.ini, the native one first (sm90,mla1,h128); missing ones are said. A section with few_rows "
     "leaves to that what the daemon would, save in --splits. h128: an adapter that pads the native one's heads to 128 "
     "and sends four tokens a request",
     0, 0, 0},
    {"--batches", "LIST", "sequences, with commas between (1,4,16,64)", 0, 0, 0},
    {"--q-len", "LIST", "queries of a sequence (4,8)", 0, 0, 0},
    {"--kv-len", "LIST", "its keys (65536,131072)", 0, 0, 0},
    {"--heads", "N", "by default 96", 0, 1, 128},
    {"--iterations", "N", "launches of a graph", 20, 1, 1000},
    {"--repeats", "N", "timed graphs", 15, 1, TIMES_REPEATS_MAX},
    {"--warmup", "MS", "of each reference shape", 100, 0, 10000},
    {"--raw", "MS", "of a launch of the raw-WGMMA loop; 0: not measured", 150, 0, 10000},
    {"--splits-max", "N", "uniform splits that --splits tries", 64, 1, 64},
    {"--own-kernels", NULL, "each variant by itself: the native one does not leave few rows to its few_rows", 0, 0, 0},
    {"--no-parts", NULL, "does not time prepare, reducer and adapters alone", 0, 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

const char bench_shapes_more[] =
    "\n"
    "Runs on this machine's first GPU, through libmla-kernels: e4m3 Q, KV and output, 64-token pages, causal, "
    "shuffled\n"
    "page tables and records in device memory, every launch on pages that are not in L2. Times are those of CUDA "
    "graphs\n"
    "of 20 launches, split-KV and reducer included, medians of 15 repeats, variants in turn. Several parts in one run\n"
    "share its memory.\n"
    "\n"
    "Prints us [q1 q3  min max]; \"1.2x A\" is this variant's rate over A's. Bars are for the 16 reference shapes and\n"
    "the whole second list. Files are written after every shape. Exit 77 without a GPU or a driver. mla-bench costs "
    "fits\n"
    "the planner's constants to the CSV of --splits.\n";

static const struct mode modes[] = {
    {"--reference", reference_want, reference_run},
    {"--splits", reference_want, splits_run},
    {"--ablate", reference_want, ablate_run},
    {"--second", second_want, second_run},
    {"--rows", rows_want, rows_run},
    {"--kv", kv_want, kv_run},
    {"--ragged", ragged_want, ragged_run},
    {"--errors", errors_want, errors_run}, /* the last: it refills the pool */
};
#define MODES (sizeof modes / sizeof modes[0])

#define LAUNCHES_OF_RAW 3

/* "1,4,16": numbers from 1 up. false after a line on stderr. */
static bool take_list(int argc, char **argv, const char *name, uint32_t *list, uint32_t *n, bool *given)
{
    const char *text = bench_text(bench_shapes_options, argc, argv, name);
    *given = text != NULL;
    if (!text)
        return true;
    *n = 0;
    for (const char *at = text; *n < SHAPE_LIST_MAX; at++) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || value < 1 || value > 1u << 24 || (*end != ',' && *end != '\0'))
            break;
        list[(*n)++] = (uint32_t)value;
        if (*end == '\0')
            return true;
        at = end;
    }
    fprintf(stderr, "mla-bench: %s wants numbers with commas between, at most %d\n", name, SHAPE_LIST_MAX);
    return false;
}

struct options {
    const char *variants;
    long iterations, repeats, warmup_ms, raw_ms, heads, splits_max, batch, rate;
    bool modes[MODES];
};

static bool take_options(int argc, char **argv, struct run *run, struct options *o)
{
    run->lists = shape_reference;
    if (!take_list(argc, argv, "--batches", run->lists.batches, &run->lists.n_batches, &run->own_batches) ||
        !take_list(argc, argv, "--q-len", run->lists.q, &run->lists.n_q, &run->own_q) ||
        !take_list(argc, argv, "--kv-len", run->lists.kv, &run->lists.n_kv, &run->own_kv))
        return false;
    o->variants = bench_text(bench_shapes_options, argc, argv, "--variants");
    if (!o->variants)
        o->variants = "sm90,mla1,h128";
    o->heads = bench_number(bench_shapes_options, argc, argv, "--heads");
    o->splits_max = bench_number(bench_shapes_options, argc, argv, "--splits-max");
    o->batch = bench_number(bench_shapes_options, argc, argv, "--batch");
    o->rate = bench_number(bench_shapes_options, argc, argv, "--rate");
    o->iterations = bench_number(bench_shapes_options, argc, argv, "--iterations");
    o->repeats = bench_number(bench_shapes_options, argc, argv, "--repeats");
    o->warmup_ms = bench_number(bench_shapes_options, argc, argv, "--warmup");
    o->raw_ms = bench_number(bench_shapes_options, argc, argv, "--raw");
    run->no_parts = bench_flag(bench_shapes_options, argc, argv, "--no-parts");
    run->own_kernels = bench_flag(bench_shapes_options, argc, argv, "--own-kernels");
    run->quick = bench_flag(bench_shapes_options, argc, argv, "--quick");
    bool any = false;
    for (size_t m = 0; m < MODES; m++)
        any |= o->modes[m] = bench_flag(bench_shapes_options, argc, argv, modes[m].flag);
    o->modes[0] |= !any;
    if (o->heads < 0 || o->iterations < 0 || o->repeats < 0 || o->warmup_ms < 0 || o->raw_ms < 0 || o->splits_max < 0 ||
        o->batch < 0 || o->rate < 0)
        return false;
    run->own_heads = o->heads != 0;
    run->lists.heads = o->heads != 0 ? (uint32_t)o->heads : shape_reference.heads;
    run->splits_max = (uint32_t)o->splits_max;
    run->batch = (uint32_t)o->batch;
    run->reference_lists = shape_lists_are_reference(&run->lists);
    run->iterations = (uint32_t)o->iterations;
    run->repeats = (uint32_t)o->repeats;
    run->warmup_ms = (double)o->warmup_ms;
    run->raw_tflops = (double)NAN;
    run->rate_b64 = o->rate != 0 ? (double)o->rate : (double)NAN;
    return bench_options_end(argc, argv) == 0;
}

static void note_variant(struct bench_report *report, const char *name, const char *text)
{
    char key[BENCH_TEXT_MAX];
    snprintf(key, sizeof key, "variant %.64s", name);
    bench_note(report, key, "%s", text);
}

static bool open_variants(struct run *run, const char *names)
{
    char *copy = strdup(names), *state = NULL;
    size_t there = 0;
    for (char *name = copy ? strtok_r(copy, ",", &state) : NULL; name && run->n_variants < VARIANTS_MAX;
         name = strtok_r(NULL, ",", &state)) {
        struct variant *v = &run->variants[run->n_variants++];
        variant_open(v, run->tapped, name, run->variants[0].name);
        if (!v->kernels) {
            note_variant(run->report, name, "missing");
            fprintf(stderr, "mla-bench: %s is missing: %s\n", name, v->why);
            continue;
        }
        char text[BENCH_TEXT_MAX];
        snprintf(text, sizeof text, "tiles of %u rows, %u units of %u", v->facts->tile_rows,
                 v->facts->device.resident_units, v->facts->device.rows_per_unit);
        note_variant(run->report, name, text);
        if (there++ == 0) {
            snprintf(run->kernels_folder, sizeof run->kernels_folder, "%s", v->facts->file);
            char *slash = strrchr(run->kernels_folder, '/');
            if (slash)
                *slash = '\0';
        }
    }
    free(copy);
    if (there == 0)
        fprintf(stderr, "mla-bench: no variant to measure\n");
    return there > 0;
}

static void measure_raw(struct run *run, const char *when, unsigned ms)
{
    char why[128] = "", key[32];
    snprintf(key, sizeof key, "raw_wgmma %s", when);
    if (ms == 0)
        return;
    double rate = raw_wgmma_rate(&run->gpu, run->kernels_folder, run->pool.kv, run->pool.pages * SHAPE_PAGE_BYTES, ms,
                                 LAUNCHES_OF_RAW, why, sizeof why);
    if (isnan(rate)) {
        bench_note(run->report, key, "not measured: %.100s", why);
        return;
    }
    bench_note(run->report, key, "%.1f TFLOP/s, m64n128k32 on all SMs, %u launches of %u ms", rate, LAUNCHES_OF_RAW,
               ms);
    struct bench_row *row = bench_row(run->report, "raw WGMMA, %s", when);
    bench_label(row, "table", "raw_wgmma");
    bench_cell(row, "tflops", rate, 1);
    printf("raw WGMMA, %s: %.1f TFLOP/s\n", when, rate);
    if (isnan(run->raw_tflops))
        run->raw_tflops = rate;
}

static void note_run(struct run *run)
{
    int driver = run->gpu.driver.version;
    bench_note(run->report, "gpu", "%.60s, %d SMs, driver's CUDA %d.%d", run->gpu.name, run->gpu.sms, driver / 1000,
               driver % 1000 / 10);
    bench_note(run->report, "method", "graphs of %u launches, %u repeats, variants in turn, no programmatic launches",
               run->iterations, run->repeats);
    bench_note(run->report, "cold_l2", "launches of a graph rotate over the pages of a plane of %.2f GB",
               (double)run->pool.pages * SHAPE_PAGE_BYTES * 1e-9);
    bench_note(run->report, "peers",
               "published measurements: FlashMLA BF16 and vLLM's FP8 kernel on one H200, 2026-11");
    bench_note(run->report, "clocks", "%s",
               run->nvml ? "NVML, sampled every 5 ms while a variant runs" : "not readable");
}

/* The one part that makes sense without a native variant. */
static bool only_reference(const struct options *o)
{
    for (size_t m = 1; m < MODES; m++)
        if (o->modes[m])
            return false;
    return true;
}

int bench_shapes(int argc, char **argv, struct bench_report *report)
{
    static struct run run;
    struct options o;
    struct pool_wants wants = {.out_bytes = 1};
    run.report = report;
    report->title = "shapes";
    report->printed = true;
    if (!take_options(argc, argv, &run, &o))
        return -1;
    uint64_t start = bench_now_ns();
    if (gpu_open(&run.gpu) != 0)
        return BENCH_SKIPPED;
    run.tapped = tap_open(&run.gpu.driver);
    run.nvml = nvml_open(run.gpu.uuid);
    if (!open_variants(&run, o.variants))
        return -1;
    if (!run.variants[0].kernels && !only_reference(&o)) {
        fprintf(stderr, "mla-bench: the native variant is missing\n");
        return -1;
    }
    times_progress("random pages");
    for (size_t m = 0; m < MODES; m++)
        if (o.modes[m])
            modes[m].want(&run, &wants);
    pool_open(&run.pool, &run.gpu, &wants);
    pool_fill(&run.pool, &data_sets[0]);
    times_progress_end();
    note_run(&run);
    printf("%s, set up in %.1f s\n", run.gpu.name, 1e-9 * (double)(bench_now_ns() - start));
    if (o.modes[0])
        measure_raw(&run, "before", (unsigned)o.raw_ms);
    for (size_t m = 0; m < MODES; m++) {
        if (!o.modes[m])
            continue;
        modes[m].run(&run);
        if (m == 0)
            measure_raw(&run, "after", (unsigned)o.raw_ms);
    }
    bench_note(report, "seconds", "%.1f", 1e-9 * (double)(bench_now_ns() - start));
    pool_close(&run.pool);
    for (size_t v = 0; v < run.n_variants; v++)
        variant_close(&run.variants[v]);
    nvml_close(run.nvml);
    gpu_close(&run.gpu);
    return 0;
}
