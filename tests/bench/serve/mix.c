/* mla-bench mix: eight workers with small decodes beside one with large ones: what the small ones wait, alone, beside
 * the large one as mlad is by default, and beside it without fairness, in two ways. Launches of any length: what is in
 * front runs whole, as in a queue in the order of coming. Cut as by default, but the large one has the largest weight
 * that there is: turns are then by decodes, whatever they cost. The scheduler has no other order to be set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/serve/serve.h"
#include "tests/bench/stats.h"

#define SMALL         8
#define MAX_LAUNCH_US 2000 /* scheduler.max_launch_us as it comes */

enum way { ALONE, FAIR, UNCUT, WEIGHTY, WAYS };
static const char *const way_names[WAYS] = {"alone", "beside the large one", "beside it, launches of any length",
                                            "beside it, its weight 1000"};
enum { FAIR_DAEMON, UNCUT_DAEMON, WEIGHTY_DAEMON, DAEMONS };
static const int daemon_of[WAYS] = {
    [ALONE] = FAIR_DAEMON, [FAIR] = FAIR_DAEMON, [UNCUT] = UNCUT_DAEMON, [WEIGHTY] = WEIGHTY_DAEMON};

static const char *const settings[DAEMONS][2] = {
    [UNCUT_DAEMON] = {"scheduler.max_launch_us=0"}, [WEIGHTY_DAEMON] = {"weights.clients=large:1000"}};

struct mix {
    struct serve serve;
    struct served_config small, large;
    struct bench_daemon daemons[DAEMONS];
    struct crew_member members[SMALL + 1]; /* the large one last */
    double *us[WAYS];
    size_t n[WAYS];
    struct serve_series small_rate[WAYS], large_p50[WAYS], large_rate[WAYS];
};

static int keep(struct mix *m, enum way way)
{
    double *us;
    size_t n = crew_samples(m->members, SMALL, &us);
    double *all = realloc(m->us[way], (m->n[way] + n) * sizeof *all);
    if (n == 0 || !us || !all) {
        fputs("mla-bench: no decode ended in time: --ms is too short\n", stderr);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        all[m->n[way]++] = us[i];
    m->us[way] = all;
    free(us);
    serve_add(&m->small_rate[way], crew_rate(m->members, SMALL));
    if (way == ALONE)
        return 0;
    n = crew_samples(&m->members[SMALL], 1, &us);
    serve_add(&m->large_rate[way], crew_rate(&m->members[SMALL], 1));
    serve_add(&m->large_p50[way], n > 0 ? bench_percentile(us, n, 50) : (double)NAN);
    free(us);
    return 0;
}

static int measure(struct mix *m)
{
    for (long round = 0; round < m->serve.rounds; round++)
        for (int k = 0; k < WAYS; k++) {
            enum way way = (enum way)((round + k) % WAYS);
            struct crew_command run = {.op = SERVED_RUN, .daemon = (uint32_t)daemon_of[way]};
            if (crew_command(m->members, way == ALONE ? SMALL : SMALL + 1, run, m->serve.ms) != 0 || keep(m, way) != 0)
                return -1;
        }
    return 0;
}

static void fill_report(struct mix *m)
{
    double p50[WAYS], p99[WAYS];
    for (int way = 0; way < WAYS; way++) {
        p50[way] = bench_stats(m->us[way], m->n[way]).median;
        p99[way] = bench_percentile(m->us[way], m->n[way], 99);
        struct bench_row *row = bench_row(m->serve.report, "small decodes %s", way_names[way]);
        bench_label(row, "table", "mix");
        bench_label(row, "way", way_names[way]);
        bench_cell(row, "p50_us", p50[way], 1);
        bench_cell(row, "p99_us", p99[way], 1);
        bench_cell(row, "p99.9_us", bench_percentile(m->us[way], m->n[way], 99.9), 1);
        bench_cell(row, "max_us", m->us[way][m->n[way] - 1], 1);
        bench_cell(row, "decodes", (double)m->n[way], 0);
        bench_cell(row, "small_per_s", serve_median(&m->small_rate[way]), 0);
        bench_cell(row, "large_p50_us", serve_median(&m->large_p50[way]), 1);
        bench_cell(row, "large_per_s", serve_median(&m->large_rate[way]), 1);
    }
    if (!m->serve.own_shapes)
        bench_bar_at_most(m->serve.report, "small decodes beside a large one, p99 less their p50 alone, us",
                          p99[FAIR] - p50[ALONE], 2 * MAX_LAUNCH_US);
}

static int start_all(struct mix *m)
{
    const char *isolated = m->serve.none.dir;
    int rc = 0;
    for (size_t d = 0; d < DAEMONS && rc == 0; d++)
        rc = serve_daemon(&m->serve, &m->daemons[d], isolated, settings[d]);
    for (size_t d = 0; d < DAEMONS; d++)
        m->small.sockets[d] = m->large.sockets[d] = m->daemons[d].socket;
    m->small.n_sockets = m->large.n_sockets = DAEMONS;
    if (rc == 0)
        rc = serve_crew(&m->serve, m->members, SMALL, &m->small, isolated);
    if (rc == 0)
        rc = serve_crew(&m->serve, &m->members[SMALL], 1, &m->large, isolated);
    return rc;
}

const struct bench_option bench_mix_options[] = {
    SERVE_OPTIONS(500, 4),
    {"--small-kv", "N", "keys of the small decodes", 4096, 64, 1 << 20},
    {"--large-kv", "N", "keys of the large one", 131072, 64, 1 << 20},
    {"--large-batch", "N", "its sequences", 64, 1, 1024},
    {NULL, NULL, NULL, 0, 0, 0},
};

static int take_shapes(struct mix *m, int argc, char **argv)
{
    long small_kv = bench_number(bench_mix_options, argc, argv, "--small-kv");
    long large_kv = bench_number(bench_mix_options, argc, argv, "--large-kv");
    long large_batch = bench_number(bench_mix_options, argc, argv, "--large-batch");
    if (small_kv < 0 || large_kv < 0 || large_batch < 0)
        return -1;
    m->serve.own_shapes = small_kv != 4096 || large_kv != 131072 || large_batch != 64;
    m->small.shapes[0] = (struct served_shape){1, 4, (uint32_t)small_kv};
    m->large.shapes[0] = (struct served_shape){(uint32_t)large_batch, 4, (uint32_t)large_kv};
    m->small.n_shapes = m->large.n_shapes = 1;
    return 0;
}

int bench_mix(int argc, char **argv, struct bench_report *report)
{
    static struct mix m = {
        .serve = {.options = bench_mix_options}, .small = {.name = "small"}, .large = {.name = "large"}};
    report->title = "mix";
    int rc = take_shapes(&m, argc, argv);
    if (rc == 0)
        rc = serve_open(&m.serve, argc, argv, report, false);
    if (rc != 0)
        return rc;
    m.small.heads = m.large.heads = m.serve.heads;
    rc = start_all(&m);
    if (rc == 0)
        rc = measure(&m);
    if (rc == 0) {
        serve_note(&m.serve, "every worker for each decode");
        bench_note(report, "shapes", "%d workers B1 Q4 H%u KV%u, one B%u Q4 H%u KV%u", SMALL, m.serve.heads,
                   m.small.shapes[0].kv_len, m.large.shapes[0].batch, m.serve.heads, m.large.shapes[0].kv_len);
        bench_note(report, "fairness", "all weights 1, scheduler.max_launch_us %d", MAX_LAUNCH_US);
        bench_note(report, "without_cuts", "%s", "max_launch_us 0: what is in front runs whole, as in a plain queue");
        bench_note(report, "without_cost", "%s", "weights.clients large:1000: turns by decodes, whatever they cost");
        fill_report(&m);
    }
    bool failed = crew_stop(m.members, SMALL + 1) != 0;
    for (size_t d = 0; d < DAEMONS; d++)
        failed |= bench_daemon_stop(&m.daemons[d]) != 0;
    serve_close(&m.serve);
    return rc != 0 ? rc : failed ? -1 : 0;
}
