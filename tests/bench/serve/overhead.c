/* mla-bench overhead: what a client of mlad sees of a decode, against the time that the kernels take for it, which a
 * process of its own measures: in graphs, at the pace of the client that spins, so that the card's clock is the same.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/serve/serve.h"
#include "tests/bench/stats.h"

#define KERNEL_GRAPHS  5
#define CLIENT_SPIN_US 10000
#define TURNS_OF_ROUND 2000
#define SHAPES         3
#define B1_US_MAX      20.0
#define B64_US_MAX     35.0
#define P99_US_MAX     60.0

enum mode { BLOCKING, SPINNING, MODES };

static const char *const spin_settings[] = {"daemon.spin_us=1000", NULL};

struct overhead {
    struct serve serve;
    struct served_config direct, client;
    struct bench_daemon daemons[MODES]; /* one that sleeps, one that spins */
    struct crew_member members[2];      /* the one that launches itself, the client */
    struct serve_series kernel[SHAPES], rested[SHAPES];
    double *us[SHAPES][MODES]; /* samples of all rounds */
    size_t n[SHAPES][MODES];
    struct serve_stages stages[SHAPES][MODES]; /* of all rounds */
};

/* p50_us: of this round. */
static int keep(struct overhead *o, size_t shape, enum mode mode, double *p50_us)
{
    double *us;
    size_t n = crew_samples(&o->members[1], 1, &us);
    double *all = realloc(o->us[shape][mode], (o->n[shape][mode] + n) * sizeof *all);
    if (n == 0 || !us || !all) {
        fputs("mla-bench: no decode ended in time: --ms is too short\n", stderr);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        all[o->n[shape][mode]++] = us[i];
    o->us[shape][mode] = all;
    *p50_us = bench_stats(us, n).median;
    free(us);
    return 0;
}

static int run(struct overhead *o, uint32_t shape, enum mode mode, double *p50_us)
{
    const char *socket = o->daemons[mode].socket;
    struct crew_command command = {.op = SERVED_RUN, .which = shape, .daemon = mode, .turns_max = TURNS_OF_ROUND};
    struct serve_stages *sum = &o->stages[shape][mode], before, after;
    if (serve_stages_read(socket, &before) != 0 || crew_command(&o->members[1], 1, command, o->serve.ms) != 0 ||
        serve_stages_read(socket, &after) != 0)
        return -1;
    sum->jobs += after.jobs - before.jobs;
    for (size_t i = 0; i < SERVE_STAGES; i++)
        sum->seconds[i] += after.seconds[i] - before.seconds[i];
    return keep(o, shape, mode, p50_us);
}

static int kernels(struct overhead *o, struct serve_series *series, struct crew_command command, long ms)
{
    if (crew_command(&o->members[0], 1, command, ms) != 0)
        return -1;
    serve_add(&series[command.which], o->members[0].result->value);
    return 0;
}

static int measure(struct overhead *o)
{
    for (long round = 0; round < o->serve.rounds; round++)
        for (uint32_t i = 0; i < SHAPES; i++) {
            struct crew_command rested = {.op = SERVED_KERNEL, .which = i, .turns_max = KERNEL_GRAPHS};
            struct crew_command paced = {.op = SERVED_PACED, .which = i};
            double p50_us[MODES];
            if (kernels(o, o->rested, rested, 0) != 0)
                return -1;
            for (int k = 0; k < MODES; k++) {
                enum mode mode = (enum mode)((round + k) % MODES);
                if (run(o, i, mode, &p50_us[mode]) != 0)
                    return -1;
            }
            paced.period_us = p50_us[SPINNING];
            if (kernels(o, o->kernel, paced, o->serve.ms) != 0)
                return -1;
        }
    return 0;
}

/* Means, while the others are percentiles: where the time goes, from the daemon's taking a frame to its reply. */
static void report_stages(struct bench_row *row, const struct serve_stages *stages)
{
    static const char *const keys[SERVE_STAGES] = {"until_checked_us", "until_staged_us",    "until_planned_us",
                                                   "until_taken_us",   "until_submitted_us", "until_ended_us",
                                                   "until_heard_us",   "until_answered_us"};
    double sum = 0;
    for (size_t i = 0; i < SERVE_STAGES; i++) {
        double us = 1e6 * stages->seconds[i] / stages->jobs;
        bench_cell(row, keys[i], us, 2);
        sum += us;
    }
    bench_cell(row, "in_daemon_us", sum, 2);
}

static void report_shape(struct overhead *o, size_t i)
{
    const struct served_shape *shape = &o->client.shapes[i];
    double kernel = serve_median(&o->kernel[i]), rested = serve_median(&o->rested[i]);
    for (int mode = 0; mode < MODES; mode++) {
        struct bench_stats stats = bench_stats(o->us[i][mode], o->n[i][mode]);
        double p99 = bench_percentile(o->us[i][mode], o->n[i][mode], 99);
        const char *name = mode == SPINNING ? "spinning" : "blocking";
        struct bench_row *row =
            bench_row(o->serve.report, "B%u Q%u KV%u, client %s", shape->batch, shape->q_len, shape->kv_len, name);
        bench_label(row, "table", "overhead");
        bench_label(row, "mode", name);
        bench_cell(row, "b", shape->batch, 0);
        bench_cell(row, "q_len", shape->q_len, 0);
        bench_cell(row, "kv_len", shape->kv_len, 0);
        bench_cell(row, "kernel_us", kernel, 2);
        bench_cell(row, "kernel_rested_us", rested, 2);
        bench_cell(row, "p50_us", stats.median, 2);
        bench_cell(row, "p99_us", p99, 2);
        bench_cell(row, "p99.9_us", bench_percentile(o->us[i][mode], o->n[i][mode], 99.9), 2);
        bench_cell(row, "added_p50_us", stats.median - kernel, 2);
        bench_cell(row, "added_p99_us", p99 - kernel, 2);
        bench_cell(row, "decodes", (double)o->n[i][mode], 0);
        report_stages(row, &o->stages[i][mode]);
        if (o->serve.own_shapes || mode != SPINNING)
            continue;
        char bar[BENCH_TEXT_MAX];
        snprintf(bar, sizeof bar, "B%u KV%u, spinning: added to the kernels, p50, us", shape->batch, shape->kv_len);
        bench_bar_at_most(o->serve.report, bar, stats.median - kernel, shape->batch == 1 ? B1_US_MAX : B64_US_MAX);
        snprintf(bar, sizeof bar, "B%u KV%u, spinning: added to the kernels, p99, us", shape->batch, shape->kv_len);
        bench_bar_at_most(o->serve.report, bar, p99 - kernel, P99_US_MAX);
    }
}

const struct bench_option bench_overhead_options[] = {
    SERVE_OPTIONS(200, 5),
    {"--kv-len", "N", "keys of all three shapes, by default 65536, 4096 and 4096", 0, 64, 1 << 20},
    {"--batch", "N", "sequences of the third", 64, 1, 1024},
    {NULL, NULL, NULL, 0, 0, 0},
};

static int take_shapes(struct overhead *o, int argc, char **argv)
{
    long kv = bench_number(bench_overhead_options, argc, argv, "--kv-len");
    long batch = bench_number(bench_overhead_options, argc, argv, "--batch");
    if (kv < 0 || batch < 0)
        return -1;
    o->serve.own_shapes = kv != 0 || batch != 64;
    uint32_t lengths[SHAPES] = {65536, 4096, 4096};
    for (size_t i = 0; i < SHAPES; i++)
        o->client.shapes[i] =
            (struct served_shape){i == 2 ? (uint32_t)batch : 1, 4, kv != 0 ? (uint32_t)kv : lengths[i]};
    o->client.n_shapes = SHAPES;
    return 0;
}

int bench_overhead(int argc, char **argv, struct bench_report *report)
{
    static struct overhead o = {.serve = {.options = bench_overhead_options}, .client = {.name = "bench-overhead"}};
    report->title = "overhead";
    int rc = take_shapes(&o, argc, argv);
    if (rc == 0)
        rc = serve_open(&o.serve, argc, argv, report, false);
    if (rc != 0)
        return rc;
    o.client.heads = o.serve.heads;
    o.direct = o.client;
    rc = serve_crew(&o.serve, &o.members[0], 1, &o.direct, o.serve.none.dir);
    if (rc == 0)
        rc = serve_daemon(&o.serve, &o.daemons[BLOCKING], o.serve.none.dir, NULL);
    if (rc == 0)
        rc = serve_daemon(&o.serve, &o.daemons[SPINNING], o.serve.none.dir, spin_settings);
    for (int mode = 0; mode < MODES; mode++)
        o.client.sockets[mode] = o.daemons[mode].socket;
    o.client.n_sockets = MODES;
    o.client.spin_us[SPINNING] = CLIENT_SPIN_US;
    if (rc == 0)
        rc = serve_crew(&o.serve, &o.members[1], 1, &o.client, o.serve.none.dir);
    if (rc == 0)
        rc = measure(&o);
    if (rc == 0) {
        serve_note(&o.serve, "the client for each decode; its table sets were put beforehand");
        bench_note(report, "spinning", "client %d us, %s", CLIENT_SPIN_US, spin_settings[0]);
        bench_note(report, "until_x_us",
                   "means, from the point before: job checked, batch formed, planned, taken by the GPU thread, ...");
        bench_note(
            report, "kernel_us",
            "prepare, split-KV and reducer in graphs of 20 launches and more over all of the pages, in another "
            "process, at the pace of the client that spins; rested: five such graphs in a row, which a card that "
            "has rested runs at a higher clock");
        for (size_t i = 0; i < SHAPES; i++)
            report_shape(&o, i);
    }
    bool failed = crew_stop(o.members, 2) != 0;
    for (int mode = 0; mode < MODES; mode++)
        failed |= bench_daemon_stop(&o.daemons[mode]) != 0;
    serve_close(&o.serve);
    return rc != 0 ? rc : failed ? -1 : 0;
}
