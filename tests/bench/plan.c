/* mla-bench plan: how long planning a launch takes, on this CPU, for an H200: what the daemon's loop does for every
 * launch whose plan it has not made before. Shapes take turns; each sample is one plan_build(). */
#include <stdlib.h>
#include <string.h>

#include "kernels/plan/plan.h"
#include "tests/bench/bench.h"
#include "tests/bench/machine.h"
#include "tests/bench/stats.h"
#include "tests/support/prng.h"

#define HEADS       96u
#define SEQS_MAX    1024u
#define SAMPLES_MAX 100000
#define LONG_TOKENS 131072u

static const struct shape {
    const char *name;
    uint32_t n_seqs, q_len;
    bool ragged;    /* contexts of 1 to LONG_TOKENS, else all of LONG_TOKENS */
    uint32_t jobs;  /* that the sequences are of */
    double most_us; /* bar on the median; 0: none */
} shapes[] = {
    {"64 sequences of 128K", 64, 1, false, 1, 20},
    {"64 sequences of 128K, 4 tokens", 64, 4, false, 1, 20},
    {"64 jobs of one sequence of 128K", 64, 1, false, 64, 20},
    {"1,024 sequences up to 128K", 1024, 1, true, 1, 300},
    {"1,024 sequences up to 128K, 4 tokens", 1024, 4, true, 1, 300},
    {"1,024 jobs of one sequence up to 128K", 1024, 1, true, 1024, 300},
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

struct planning {
    struct plan_seq seqs[SEQS_MAX];
    struct plan_job jobs[SEQS_MAX];
    struct plan_request request;
    struct plan plan;
    double us[SAMPLES_MAX];
};

static void describe(struct planning *p, const struct shape *s)
{
    struct prng prng = {7};
    memset(&p->request, 0, sizeof(p->request));
    plan_device_preset("h200", &p->request.device, &p->request.costs);
    for (uint32_t i = 0; i < s->n_seqs; i++)
        p->seqs[i] = (struct plan_seq){s->q_len, s->ragged ? 1 + prng_below(&prng, LONG_TOKENS) : LONG_TOKENS};
    for (uint32_t j = 0; j < s->jobs; j++)
        p->jobs[j] = (struct plan_job){
            .first_seq = j * (s->n_seqs / s->jobs), .n_seqs = s->n_seqs / s->jobs, .mask = MLA_ABI_MASK_CAUSAL};
    p->request.policy = PLAN_AUTO;
    p->request.tile_rows = MLA_ABI_TILE_ROWS;
    p->request.heads = HEADS;
    p->request.jobs = p->jobs;
    p->request.n_jobs = s->jobs;
    p->request.seqs = p->seqs;
    p->request.n_seqs = s->n_seqs;
    p->request.workspace_bytes_max = UINT64_C(256) << 20;
}

static int take_memory(struct plan *plan)
{
    plan->tiles = calloc(plan->capacity.tiles + 1, sizeof(*plan->tiles));
    plan->items = calloc(plan->capacity.items + 1, sizeof(*plan->items));
    plan->reduces = calloc(plan->capacity.reduces + 1, sizeof(*plan->reduces));
    plan->scratch = calloc(1, plan->capacity.scratch_bytes + 1);
    return plan->tiles && plan->items && plan->reduces && plan->scratch ? 0 : -1;
}

static void give_memory(struct plan *plan)
{
    free(plan->tiles);
    free(plan->items);
    free(plan->reduces);
    free(plan->scratch);
}

static int begin(struct planning *p, const struct shape *s)
{
    describe(p, s);
    if (plan_bound(&p->request, &p->plan.capacity) != 0 || take_memory(&p->plan) != 0)
        return -1;
    return plan_build(&p->request, &p->plan); /* warm */
}

static void report_shape(struct bench_report *report, const struct shape *s, struct planning *p, long n)
{
    struct bench_stats stats = bench_stats(p->us, (size_t)n);
    struct bench_row *row = bench_row(report, "%s", s->name);
    bench_cell(row, "tiles", p->plan.n_tiles, 0);
    bench_cell(row, "items", p->plan.n_items, 0);
    bench_cell(row, "min_us", stats.min, 1);
    bench_cell(row, "p50_us", stats.median, 1);
    bench_cell(row, "p99_us", bench_percentile(p->us, (size_t)n, 99), 1);
    if (s->most_us > 0)
        bench_bar_at_most(report, s->name, stats.median, s->most_us);
}

const struct bench_option bench_plan_options[] = {
    {"--samples", "N", "of each shape", 2000, 1, SAMPLES_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

int bench_plan(int argc, char **argv, struct bench_report *report)
{
    long n = bench_number(bench_plan_options, argc, argv, "--samples");
    if (n < 0 || bench_options_end(argc, argv) != 0)
        return -1;
    report->title = "plan";
    struct planning *all = calloc(N_SHAPES, sizeof(*all));
    int rc = all == NULL ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < N_SHAPES; i++)
        rc = begin(&all[i], &shapes[i]);
    for (long k = 0; rc == 0 && k < n; k++) {
        for (size_t i = 0; i < N_SHAPES; i++) {
            uint64_t from = bench_now_ns();
            rc |= plan_build(&all[i].request, &all[i].plan);
            all[i].us[k] = (double)(bench_now_ns() - from) / 1e3;
        }
    }
    bench_note(report, "samples", "%ld of each, in turn; bars: medians", n);
    bench_note(report, "shapes", "%u heads, policy auto, an H200's facts and costs", HEADS);
    for (size_t i = 0; rc == 0 && i < N_SHAPES; i++)
        report_shape(report, &shapes[i], &all[i], n);
    for (size_t i = 0; all != NULL && i < N_SHAPES; i++)
        give_memory(&all[i].plan);
    free(all);
    return rc;
}
