/* mla-bench workers: N workers with a decode each, over and over, four ways: through mlad; each launching in its own
 * process, which share the GPU by time slices; the same under an MPS server; and one process that launches a batch of
 * N, the ideal. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/serve/serve.h"
#include "tests/bench/stats.h"

#define WORKERS_MAX      16
#define IDEAL_AT_LEAST   0.9
#define MPS_AT_LEAST     1.0
#define SLICING_AT_LEAST 2.0

enum way { IDEAL, MLAD, SLICES, MPS, WAYS };
static const char *const way_names[WAYS] = {"one process, batch N", "mlad", "time slicing", "MPS"};
static const uint32_t counts[] = {1, 2, 4, 8, 16};
#define COUNTS (sizeof counts / sizeof counts[0])

struct cell {
    struct serve_series tokens_per_s, p50_us, p99_us;
};

struct workers {
    struct serve serve;
    uint32_t q_len, kv_len, most;
    struct served_config ideal, direct, client;
    struct bench_daemon daemon;
    struct crew_member members[WAYS][WORKERS_MAX];
    bool has[WAYS];
    struct cell cells[COUNTS][WAYS];
    struct serve_series busy[COUNTS], gap_us[COUNTS], jobs[COUNTS];
};

static int start_way(struct workers *w, enum way way, const struct served_config *config, const char *mps)
{
    int rc = serve_crew(&w->serve, w->members[way], way == IDEAL ? 1 : w->most, config, mps);
    w->has[way] = rc == 0;
    return rc;
}

static int start_all(struct workers *w)
{
    const char *isolated = w->serve.none.dir;
    int rc = start_way(w, IDEAL, &w->ideal, isolated);
    if (rc == 0)
        rc = serve_daemon(&w->serve, &w->daemon, isolated, NULL);
    w->client.sockets[0] = w->daemon.socket;
    w->client.n_sockets = 1;
    if (rc == 0)
        rc = start_way(w, MLAD, &w->client, isolated);
    if (rc == 0)
        rc = start_way(w, SLICES, &w->direct, isolated);
    if (rc == 0 && w->serve.mps.running)
        rc = start_way(w, MPS, &w->direct, w->serve.mps.dir);
    return rc;
}

struct counters {
    double busy_s, gap_s, gaps, batches, jobs;
};

static struct counters read_counters(const struct workers *w)
{
    const char *s = w->daemon.socket;
    return (struct counters){.busy_s = serve_metric(s, "mlad_launch_seconds_total"),
                             .gap_s = serve_metric(s, "mlad_batch_gap_seconds_sum"),
                             .gaps = serve_metric(s, "mlad_batch_gap_seconds_count"),
                             .batches = serve_metric(s, "mlad_batches_total"),
                             .jobs = serve_metric(s, "mlad_batch_jobs_sum")};
}

static int run_cell(struct workers *w, size_t count, enum way way)
{
    struct cell *cell = &w->cells[count][way];
    uint32_t n = counts[count];
    struct crew_command command = {.op = SERVED_RUN, .which = way == IDEAL ? (uint32_t)count : 0};
    struct crew_member *members = w->members[way];
    size_t running = way == IDEAL ? 1 : n;
    struct counters before = {0};
    if (way == MLAD)
        before = read_counters(w);
    if (crew_command(members, running, command, w->serve.ms) != 0)
        return -1;
    double *us;
    size_t samples = crew_samples(members, running, &us);
    double per_turn = (double)w->q_len * (way == IDEAL ? n : 1);
    serve_add(&cell->tokens_per_s, per_turn * crew_rate(members, running));
    serve_add(&cell->p50_us, samples > 0 ? bench_percentile(us, samples, 50) : (double)NAN);
    serve_add(&cell->p99_us, samples > 0 ? bench_percentile(us, samples, 99) : (double)NAN);
    free(us);
    if (way == MLAD) {
        struct counters after = read_counters(w);
        double seconds = 1e-9 * (double)(members[0].result->end_ns - members[0].result->start_ns);
        serve_add(&w->busy[count], (after.busy_s - before.busy_s) / seconds);
        serve_add(&w->gap_us[count], 1e6 * (after.gap_s - before.gap_s) / (after.gaps - before.gaps));
        serve_add(&w->jobs[count], (after.jobs - before.jobs) / (after.batches - before.batches));
    }
    return 0;
}

static int measure(struct workers *w)
{
    for (long round = 0; round < w->serve.rounds; round++)
        for (size_t c = 0; c < COUNTS && counts[c] <= w->most; c++)
            for (int k = 0; k < WAYS; k++) {
                enum way way = (enum way)((round + k) % WAYS);
                if (w->has[way] && run_cell(w, c, way) != 0)
                    return -1;
            }
    return 0;
}

static void bar(struct workers *w, uint32_t n, const char *over, double value, double least)
{
    char name[BENCH_TEXT_MAX];
    snprintf(name, sizeof name, "%u workers: tokens per second through mlad over %s", n, over);
    bench_bar_at_least(w->serve.report, name, value, least);
}

static void report_count(struct workers *w, size_t c)
{
    double rate[WAYS];
    uint32_t n = counts[c];
    for (int way = 0; way < WAYS; way++)
        rate[way] = serve_median(&w->cells[c][way].tokens_per_s);
    for (int way = 0; way < WAYS; way++) {
        if (!w->has[way])
            continue;
        struct bench_row *row = bench_row(w->serve.report, "%u workers, %s", n, way_names[way]);
        bench_label(row, "table", "workers");
        bench_label(row, "way", way_names[way]);
        bench_cell(row, "workers", n, 0);
        bench_cell(row, "tokens_per_s", rate[way], 0);
        bench_cell(row, "of_ideal", rate[way] / rate[IDEAL], 4);
        bench_cell(row, "p50_us", serve_median(&w->cells[c][way].p50_us), 1);
        bench_cell(row, "p99_us", serve_median(&w->cells[c][way].p99_us), 1);
        bench_cell(row, "gpu_busy", way == MLAD ? serve_median(&w->busy[c]) : (double)NAN, 4);
        bench_cell(row, "gap_us", way == MLAD ? serve_median(&w->gap_us[c]) : (double)NAN, 2);
        bench_cell(row, "jobs_per_batch", way == MLAD ? serve_median(&w->jobs[c]) : (double)NAN, 2);
    }
    if (w->serve.own_shapes)
        return;
    if (n >= 8)
        bar(w, n, "the ideal", rate[MLAD] / rate[IDEAL], IDEAL_AT_LEAST);
    if (n >= 4)
        bar(w, n, "MPS", rate[MLAD] / rate[MPS], MPS_AT_LEAST);
    if (n == 8)
        bar(w, n, "time slicing", rate[MLAD] / rate[SLICES], SLICING_AT_LEAST);
    if (n == WORKERS_MAX)
        bench_bar_at_most(w->serve.report, "16 workers: GPU idle between batches that follow each other, mean, us",
                          serve_median(&w->gap_us[c]), 5);
}

const struct bench_option bench_workers_options[] = {
    SERVE_OPTIONS(200, 3),
    {"--kv-len", "N", "keys of every decode", 65536, 64, 1 << 20},
    {"--workers", "N", "at most", WORKERS_MAX, 1, WORKERS_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

static int take_shapes(struct workers *w, int argc, char **argv)
{
    long kv = bench_number(bench_workers_options, argc, argv, "--kv-len");
    long most = bench_number(bench_workers_options, argc, argv, "--workers");
    if (kv < 0 || most < 0)
        return -1;
    w->q_len = 4;
    w->kv_len = (uint32_t)kv;
    w->most = (uint32_t)most;
    w->serve.own_shapes = kv != 65536;
    return 0;
}

static void make_configs(struct workers *w)
{
    w->client.heads = w->serve.heads;
    w->client.shapes[0] = (struct served_shape){1, w->q_len, w->kv_len};
    w->client.n_shapes = 1;
    w->direct = w->ideal = w->client;
    w->ideal.n_shapes = 0;
    for (size_t c = 0; c < COUNTS && counts[c] <= w->most; c++)
        w->ideal.shapes[w->ideal.n_shapes++] = (struct served_shape){counts[c], w->q_len, w->kv_len};
}

int bench_workers(int argc, char **argv, struct bench_report *report)
{
    static struct workers w = {.serve = {.options = bench_workers_options}, .client = {.name = "bench-worker"}};
    report->title = "workers";
    int rc = take_shapes(&w, argc, argv);
    if (rc == 0)
        rc = serve_open(&w.serve, argc, argv, report, true);
    if (rc != 0)
        return rc;
    make_configs(&w);
    rc = start_all(&w);
    if (rc == 0)
        rc = measure(&w);
    if (rc == 0) {
        serve_note(&w.serve, "every worker for each decode, in every way");
        bench_note(report, "shape", "B1 Q%u H%u KV%u of each worker", w.q_len, w.serve.heads, w.kv_len);
        if (!w.serve.mps.running)
            bench_note(report, "mps", "not measured: %s", w.serve.mps.why);
        for (size_t c = 0; c < COUNTS && counts[c] <= w.most; c++)
            report_count(&w, c);
    }
    bool failed = false;
    for (int way = 0; way < WAYS; way++)
        failed |= crew_stop(w.members[way], WORKERS_MAX) != 0;
    failed |= bench_daemon_stop(&w.daemon) != 0;
    serve_close(&w.serve);
    return rc != 0 ? rc : failed ? -1 : 0;
}
