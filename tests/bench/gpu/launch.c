/* mla-bench launch: from before the first call of one launch on an idle GPU until the host sees its end, by several
 * ways that differ in one thing each from mlad's, against the same kernels in a graph of many; in this process, without
 * mlad.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/gpu/launch_ways.h"
#include "tests/bench/gpu/times.h"
#include "tests/bench/machine.h"

#define SHAPES          3
#define COLD_BYTES      (UINT64_C(150) << 20) /* as overhead's, and the next five */
#define COPIES_MAX      64
#define PACED_MS        100
#define BLOCK_PAGES     512u
#define WORKSPACE_BYTES (UINT64_C(256) << 20)
#define CPUS_MAX        1024
#define CPUS_LEAST      4
#define ROUNDS_MAX      10000
#define ROUNDS_A_SERIES 4  /* the series that say where time goes get one round of so many */
#define BLOCKS          10 /* of the rounds: graphs are timed behind each */

/* By the flags of a turn. */
#define LIVE       0u
#define SERIES     4u
#define HELD_TIMED (LAUNCH_HELD | LAUNCH_TIMED)

struct series {
    struct launch_times *times;
    size_t n;
};

struct launch {
    struct gpu gpu;
    struct variant variant;           /* not programmatic, as the reference method has it */
    struct mla_kernels *programmatic; /* as mlad has it */
    struct pool pool;
    struct shape shapes[SHAPES];
    struct bench_report *report;
    long rounds, pause_us;
    uint32_t copies; /* at most */

    /* Of the shape at hand. */
    struct work work;
    struct launch_bed bed;
    struct launch_way ways[LAUNCH_HOWS];
    struct series series[LAUNCH_HOWS][SERIES];
    CUgraphExec graph;
    double kernel[BLOCKS + 1], in_a_row[BLOCKS + 1]; /* microseconds of a launch */
    size_t n_blocks;
};

const struct bench_option bench_launch_options[] = {
    {"--batch", "N", "sequences of the third shape", 64, 1, 1024},
    {"--kv-len", "N", "keys of all three shapes, by default 65536, 4096 and 4096", 0, 64, 1 << 20},
    {"--q-len", "N", "queries of a sequence", 4, 1, 64},
    {"--heads", "N", "of every launch", 96, 1, 128},
    {"--rounds", "N", "of all ways, in turn; one of four also held and timed by events", 400, 1, ROUNDS_MAX},
    {"--copies", "N", "of the pages, at most, that launches rotate over; 1: they may be in L2", COPIES_MAX, 1,
     COPIES_MAX},
    {"--pause-us", "N", "of an idle GPU before each launch", 20, 0, 100000},
    {NULL, NULL, NULL, 0, 0, 0},
};

const char bench_launch_more[] =
    "\n"
    "p50_us is from before the first call of a launch until its end is seen, excess_us what that is more than "
    "kernel_us:\n"
    "a launch of a graph of 20 or more, at the same pace. in_a_row_us: as many on the stream, not in a graph.\n"
    "write_us, before that: the host writes the records. x_call_us: what calls take the host; wait_us: from the last\n"
    "one until the end is seen. timed_us: with events around copy and kernels, gpu_us between these. held_us: the\n"
    "stream waits until all is on it, so without the host's calls; held_gpu_us: the same with events, between these.\n"
    "All are medians but p99_us. \"as mlad\" is what mlad does when nothing runs: records with the launch where they\n"
    "fit, else fetched; block tables and status words in pinned memory; programmatic launches; a word as the end.\n";

/* ---- set-up ---- */

static int take_options(struct launch *l, int argc, char **argv)
{
    const struct bench_option *options = bench_launch_options;
    static const uint32_t lengths[SHAPES] = {65536, 4096, 4096};
    long batch = bench_number(options, argc, argv, "--batch"), kv = bench_number(options, argc, argv, "--kv-len");
    long q = bench_number(options, argc, argv, "--q-len"), heads = bench_number(options, argc, argv, "--heads");
    l->rounds = bench_number(options, argc, argv, "--rounds");
    l->pause_us = bench_number(options, argc, argv, "--pause-us");
    long copies = bench_number(options, argc, argv, "--copies");
    l->copies = (uint32_t)copies;
    if (copies < 0 || batch < 0 || kv < 0 || q < 0 || heads < 0 || l->rounds < 0 || l->pause_us < 0 ||
        bench_options_end(argc, argv) != 0)
        return -1;
    for (size_t i = 0; i < SHAPES; i++)
        shape_uniform(&l->shapes[i], i == 2 ? (uint32_t)batch : 1, (uint32_t)q, (uint32_t)heads,
                      kv != 0 ? (uint32_t)kv : lengths[i]);
    return 0;
}

static int open_kernels(struct launch *l)
{
    const struct cuda_driver *tapped = tap_open(&l->gpu.driver);
    struct mla_kernels_options options = {.size = sizeof options, .programmatic = true};
    char why[256] = "";
    variant_open(&l->variant, tapped, "", "");
    if (l->variant.kernels && mla_kernels_open(tapped, &options, &l->programmatic, why, sizeof why) == 0)
        return 0;
    fprintf(stderr, "mla-bench: %s\n", l->variant.kernels ? why : l->variant.why);
    return -1;
}

static void open_pool(struct launch *l)
{
    struct pool_wants wants = {
        .out_bytes = 1, .block_pages_most = BLOCK_PAGES, .workspace_bytes_most = WORKSPACE_BYTES};
    for (size_t i = 0; i < SHAPES; i++) {
        uint64_t copies = COLD_BYTES / (l->shapes[i].pages * SHAPE_PAGE_BYTES) + 1;
        pool_want(&wants, &l->shapes[i], copies < l->copies ? (uint32_t)copies : l->copies);
    }
    pool_open(&l->pool, &l->gpu, &wants);
    pool_fill(&l->pool, &data_sets[0]);
}

static void note_run(struct launch *l)
{
    int driver = l->gpu.driver.version;
    bench_note(l->report, "gpu", "%.60s, %d SMs, driver's CUDA %d.%d", l->gpu.name, l->gpu.sms, driver / 1000,
               driver % 1000 / 10);
    bench_note(l->report, "rounds", "%ld, interleaved; each launch %ld us behind the end of the one before", l->rounds,
               l->pause_us);
    bench_note(l->report, "cold_l2", "launches rotate over 150 MiB of pages and more, but at most %u times the shape's",
               l->copies);
    bench_note(
        l->report, "kernel_us",
        "prepare, split-KV and reducer, not programmatic, in graphs of 20 launches and more over all of the pages, "
        "at the pace of launches as mlad makes them");
}

/* Where mlad's are pinned, by overhead. Threads that fill memory are through by now. */
static void pin(struct launch *l)
{
    static int cpus[CPUS_MAX];
    size_t n = bench_cpus(cpus, CPUS_MAX);
    n = n < CPUS_MAX ? n : CPUS_MAX;
    if (n < CPUS_LEAST || bench_pin(cpus[n - 1]) != 0)
        bench_note(l->report, "cpus", "nothing is pinned");
    else
        bench_note(l->report, "cpus", "on CPU %d", cpus[n - 1]);
}

static int open_shape(struct launch *l, struct shape *shape)
{
    uint32_t copies = pool_copies(&l->pool, shape, l->copies);
    struct work_options options = {.launches = work_rotation(copies)};
    int rc = work_open(&l->work, &l->variant, &l->pool, shape, &options);
    if (rc != 0) {
        fprintf(stderr, "mla-bench: no plan of %s: %s\n", shape->name, strerror(-rc));
        return -1;
    }
    work_try(&l->work);
    l->graph = work_capture(&l->work, TAP_ALL);
    l->n_blocks = 0;
    launch_bed_open(&l->bed, &l->work, l->programmatic, copies);
    for (size_t i = 0; i < LAUNCH_HOWS; i++) {
        launch_way_open(&l->bed, &l->ways[i], &launch_hows[i]);
        for (unsigned s = 0; s < SERIES; s++)
            l->series[i][s] = (struct series){.times = gpu_array((size_t)l->rounds, sizeof(struct launch_times))};
    }
    return 0;
}

static void close_shape(struct launch *l)
{
    for (size_t i = 0; i < LAUNCH_HOWS; i++) {
        launch_way_close(&l->bed, &l->ways[i]);
        for (unsigned s = 0; s < SERIES; s++)
            free(l->series[i][s].times);
    }
    launch_bed_close(&l->bed);
    work_drop(&l->work, l->graph);
    work_close(&l->work);
}

/* Of a series' member at that offset. */
static double percentile(const struct series *series, size_t offset, double p)
{
    double *values = gpu_array(series->n, sizeof *values);
    for (size_t i = 0; i < series->n; i++)
        memcpy(&values[i], (const char *)&series->times[i] + offset, sizeof *values);
    (void)bench_stats(values, series->n);
    double value = bench_percentile(values, series->n, p);
    free(values);
    return value;
}
#define MEDIAN(series, member) percentile((series), offsetof(struct launch_times, member), 50)

/* ---- measuring ---- */

static void pause_us(long us)
{
    uint64_t from = bench_now_ns();
    while (bench_now_ns() - from < (uint64_t)us * 1000) {
    }
}

/* At the pace of launches as mlad makes them, so that the card's clock is the same. */
static void measure_many(struct launch *l)
{
    double period_us = MEDIAN(&l->series[0][LIVE], us) + (double)l->pause_us;
    l->kernel[l->n_blocks] = times_paced(&l->gpu, l->graph, l->work.n_launches, period_us, PACED_MS);
    l->in_a_row[l->n_blocks++] = launch_in_a_row(&l->bed, l->work.n_launches);
}

static void measure(struct launch *l)
{
    long block = (l->rounds + BLOCKS - 1) / BLOCKS;
    for (long round = 0; round < l->rounds; round++) {
        for (long k = 0; k < LAUNCH_HOWS; k++) {
            long i = (round + k) % LAUNCH_HOWS;
            for (unsigned s = 0; s < (round % ROUNDS_A_SERIES == 0 ? SERIES : LIVE + 1); s++) {
                struct series *series = &l->series[i][s];
                pause_us(l->pause_us);
                launch_turn(&l->bed, &l->ways[i], s, &series->times[series->n++]);
            }
        }
        if (round % block == block - 1 || round + 1 == l->rounds) {
            times_progress("%s: round %ld of %ld", l->work.shape->name, round + 1, l->rounds);
            measure_many(l);
        }
    }
    times_progress_end();
    launch_check_status(&l->bed);
}

/* ---- report ---- */

static void report_way(struct launch *l, size_t i, double kernel, double in_a_row)
{
    static const char *const records[] = {"as mlad", "inline", "copied", "fetched", "in place", "there", "none"};
    const struct launch_way *way = &l->ways[i];
    const struct shape *shape = l->work.shape;
    const struct series *live = &l->series[i][LIVE], *timed = &l->series[i][LAUNCH_TIMED];
    const struct series *held = &l->series[i][LAUNCH_HELD], *held_timed = &l->series[i][HELD_TIMED];
    double p50 = MEDIAN(live, us), p99 = percentile(live, offsetof(struct launch_times, us), 99);
    struct bench_row *row = bench_row(l->report, "%s, %s", shape->name, way->how->name);
    bench_label(row, "table", "launch");
    bench_label(row, "way", way->how->name);
    bench_label(row, "records", records[way->records]);
    bench_label(row, "section", work_section(&l->work));
    bench_cell(row, "b", shape->batch, 0);
    bench_cell(row, "q_len", shape->q_len, 0);
    bench_cell(row, "kv_len", shape->kv_len, 0);
    bench_cell(row, "heads", shape->heads, 0);
    bench_cell(row, "blob_bytes", (double)way->blob_bytes, 0);
    bench_cell(row, "kernel_us", kernel, 2);
    bench_cell(row, "in_a_row_us", in_a_row, 2);
    bench_cell(row, "p50_us", p50, 2);
    bench_cell(row, "p99_us", p99, 2);
    bench_cell(row, "excess_us", p50 - kernel, 2);
    bench_cell(row, "excess_p99_us", p99 - kernel, 2);
    bench_cell(row, "write_us", MEDIAN(live, write), 2);
    bench_cell(row, "copy_call_us", MEDIAN(live, copy), 2);
    bench_cell(row, "prepare_call_us", MEDIAN(live, prepare), 2);
    bench_cell(row, "decode_call_us", MEDIAN(live, decode), 2);
    bench_cell(row, "reduce_call_us", MEDIAN(live, reduce), 2);
    bench_cell(row, "launch_calls_us", MEDIAN(live, launch), 2);
    bench_cell(row, "end_call_us", MEDIAN(live, end), 2);
    bench_cell(row, "wait_us", MEDIAN(live, wait), 2);
    bench_cell(row, "timed_us", MEDIAN(timed, us), 2);
    bench_cell(row, "gpu_us", MEDIAN(timed, gpu), 2);
    bench_cell(row, "held_us", MEDIAN(held, us), 2);
    bench_cell(row, "held_gpu_us", MEDIAN(held_timed, gpu), 2);
    bench_cell(row, "launches", (double)live->n, 0);
    printf("  %-21s %-8s %8.1f %8.1f %8.1f %7.1f %7.1f %7.1f %7.1f %8.1f %8.1f %8.1f\n", way->how->name,
           records[way->records], p50, p99, p50 - kernel, MEDIAN(live, write), MEDIAN(live, copy), MEDIAN(live, launch),
           MEDIAN(live, end), MEDIAN(timed, gpu), MEDIAN(held, us), MEDIAN(held_timed, gpu));
}

static void report_shape(struct launch *l)
{
    double kernel = bench_stats(l->kernel, l->n_blocks).median;
    double in_a_row = bench_stats(l->in_a_row, l->n_blocks).median;
    printf("%s, %s: %.1f us a launch in graphs of %u, %.1f in a row; records of %zu bytes; us:\n", l->work.shape->name,
           work_section(&l->work), kernel, l->work.n_launches, in_a_row, l->ways[0].blob_bytes);
    printf("  %-21s %-8s %8s %8s %8s %7s %7s %7s %7s %8s %8s %8s\n", "way", "records", "p50", "p99", "excess", "write",
           "copy", "launch", "end", "gpu", "held", "held gpu");
    for (size_t i = 0; i < LAUNCH_HOWS; i++)
        report_way(l, i, kernel, in_a_row);
    fflush(stdout);
}

int bench_launch(int argc, char **argv, struct bench_report *report)
{
    static struct launch l;
    l.report = report;
    report->title = "launch";
    report->printed = true;
    if (take_options(&l, argc, argv) != 0)
        return -1;
    uint64_t start = bench_now_ns();
    if (gpu_open(&l.gpu) != 0)
        return BENCH_SKIPPED;
    if (open_kernels(&l) != 0)
        return -1;
    times_progress("random pages");
    open_pool(&l);
    times_progress_end();
    note_run(&l);
    pin(&l);
    for (size_t i = 0; i < SHAPES; i++) {
        if (open_shape(&l, &l.shapes[i]) != 0)
            return -1;
        measure(&l);
        report_shape(&l);
        close_shape(&l);
        if (bench_save(report) != 0)
            return -1;
    }
    bench_note(report, "seconds", "%.1f", 1e-9 * (double)(bench_now_ns() - start));
    pool_close(&l.pool);
    mla_kernels_close(l.programmatic);
    variant_close(&l.variant);
    gpu_close(&l.gpu);
    for (size_t i = 0; i < SHAPES; i++)
        shape_free(&l.shapes[i]);
    return 0;
}
