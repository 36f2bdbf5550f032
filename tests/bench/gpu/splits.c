/* The split choice against an exhaustive search: first all candidates with few repeats, then the best of them and the
 * policies again with all repeats, in turn. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/modes.h"

#define SPLITS_MOST    64u
#define WAVES_MOST     16u /* more uniform splits than fill so many waves are not tried, but always 12 */
#define UNIFORM_LEAST  12u
#define FIRST_REPEATS  3
#define AGAIN          5 /* of the best of the first round */
#define GRAPH_US       8000.0
#define WARMUP_MS      20.0
#define CHOICE_AT_MOST 1.03

/* Ways 0.. are the policies, AUTO first, then uniform splits. */
static const struct {
    enum plan_policy policy;
    const char *name;
} policies[] = {{PLAN_AUTO, "auto"}, {PLAN_BALANCED, "balanced"}, {PLAN_SEED, "seed"}};
#define POLICIES (sizeof policies / sizeof policies[0])

struct search {
    struct run *run;
    struct shape shape;
    struct way ways[POLICIES + SPLITS_MOST];
    size_t n;
    double first_us[POLICIES + SPLITS_MOST]; /* of the first round */
};

static const char *policy_name(enum plan_policy policy)
{
    return policy == PLAN_SEED       ? "seed"
           : policy == PLAN_BALANCED ? "balanced"
           : policy == PLAN_UNSPLIT  ? "unsplit"
                                     : "auto";
}

static void add_way(struct search *s, enum plan_policy policy, uint32_t splits, const struct ways_rule *rule)
{
    struct way *way = &s->ways[s->n];
    memset(way, 0, sizeof *way);
    way->variant = &s->run->variants[0];
    way->shape = &s->shape;
    way->options.policy = policy;
    way->options.splits = splits;
    way->options.own_kernels = true; /* whose costs are fitted to this */
    if (splits == 0)
        snprintf(way->label, sizeof way->label, "%s", policy_name(policy));
    else
        snprintf(way->label, sizeof way->label, "uniform %u", splits);
    ways_open(s->run, way, 1, rule);
    if (way->rc == 0)
        s->n++;
}

static uint32_t uniform_most(const struct search *s)
{
    const struct plan_device *device = &s->run->variants[0].facts->device;
    uint64_t rows_of_tile = s->run->variants[0].facts->tile_rows, need = 0, pages = 0;
    for (uint32_t i = 0; i < s->shape.n_seqs; i++) {
        uint64_t rows = (uint64_t)s->shape.seqs[i].q_len * s->shape.heads;
        uint64_t last = rows % rows_of_tile;
        need += rows / rows_of_tile * ((rows_of_tile + device->rows_per_unit - 1) / device->rows_per_unit) +
                (last + device->rows_per_unit - 1) / device->rows_per_unit;
        uint64_t of_seq = (s->shape.seqs[i].kv_len_max + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
        pages = of_seq > pages ? of_seq : pages;
    }
    uint64_t most = WAVES_MOST * device->resident_units / (need > 0 ? need : 1);
    most = most > UNIFORM_LEAST ? most : UNIFORM_LEAST;
    most = most < pages ? most : pages;
    return (uint32_t)(most < s->run->splits_max ? most : s->run->splits_max);
}

/* The policies, and the best others. */
static void select_again(const struct search *s, bool *select)
{
    for (size_t i = 0; i < s->n; i++)
        select[i] = s->ways[i].options.splits == 0;
    for (int k = 0; k < AGAIN; k++) {
        size_t best = s->n;
        for (size_t i = 0; i < s->n; i++)
            if (!select[i] && (best == s->n || s->first_us[i] < s->first_us[best]))
                best = i;
        if (best < s->n)
            select[best] = true;
    }
}

static void add_rows(const struct search *s, const bool *select, size_t best)
{
    for (size_t i = 0; i < s->n; i++) {
        const struct way *way = &s->ways[i];
        struct bench_row *row = bench_row(s->run->report, "%s %s", s->shape.name, way->label);
        bench_label(row, "table", "splits");
        bench_label(row, "variant", way->variant->name);
        bench_label(row, "way", way->label);
        bench_label(row, "cut_by", way->options.splits == 0 ? policy_name(way->work.plan.chosen) : "uniform");
        way_cells(row, way);
        bench_cell(row, "first_us", s->first_us[i], 1);
        bench_cell(row, "again", select[i], 0);
        bench_cell(row, "over_best", way->timed.us.median / s->ways[best].timed.us.median, 4);
    }
}

/* What AUTO's time is over the best one's. */
static double search_shape(struct search *s, const char *label)
{
    struct ways_rule rule = {
        .iterations = s->run->iterations, .graph_us = GRAPH_US, .repeats = s->run->repeats, .warmup_ms = WARMUP_MS};
    bool select[POLICIES + SPLITS_MOST] = {false};
    s->n = 0;
    times_progress("%s: plans", label);
    for (size_t i = 0; i < POLICIES; i++)
        add_way(s, policies[i].policy, 0, &rule);
    uint32_t most = uniform_most(s);
    for (uint32_t splits = 1; splits <= most; splits++)
        add_way(s, PLAN_AUTO, splits, &rule);
    rule.repeats = FIRST_REPEATS;
    ways_measure(s->run, s->ways, s->n, NULL, &rule, label);
    for (size_t i = 0; i < s->n; i++)
        s->first_us[i] = s->ways[i].timed.us.median;
    select_again(s, select);
    rule.repeats = s->run->repeats;
    ways_measure(s->run, s->ways, s->n, select, &rule, label);
    times_progress_end();

    size_t best = 0;
    for (size_t i = 0; i < s->n; i++)
        if (select[i] && s->ways[i].timed.us.median < s->ways[best].timed.us.median)
            best = i;
    double over = s->ways[0].timed.us.median / s->ways[best].timed.us.median;
    const struct plan *chosen = &s->ways[0].work.plan, *found = &s->ways[best].work.plan;
    printf("%s: chosen %s, %u splits, %u units: %.1f us (model %.1f); best %s, %u splits, %u units: %.1f us; "
           "%.2f %% above it\n ",
           s->shape.name, policy_name(chosen->chosen), chosen->max_splits, chosen->item_units,
           s->ways[0].timed.us.median, (double)chosen->predicted_ns * 1e-3, s->ways[best].label, found->max_splits,
           found->item_units, s->ways[best].timed.us.median, 100 * (over - 1));
    for (size_t i = 0; i < s->n; i++)
        printf(" %s%s %.1f", s->ways[i].options.splits != 0 ? s->ways[i].label + strlen("uniform ") : s->ways[i].label,
               select[i] ? ":" : "~", s->ways[i].timed.us.median);
    printf("\n");
    fflush(stdout);
    add_rows(s, select, best);
    ways_close(s->run, s->ways, s->n);
    return over;
}

void splits_run(struct run *run)
{
    struct search *s = gpu_array(1, sizeof *s);
    uint32_t n = shape_count(&run->lists);
    double worst = 0;
    s->run = run;
    printf("split choice of %s: us by policy and by uniform splits (: all repeats, ~ %d repeats)\n",
           run->variants[0].name, FIRST_REPEATS);
    for (uint32_t i = 0; i < n; i++) {
        char label[96];
        shape_of_lists(&s->shape, &run->lists, i);
        snprintf(label, sizeof label, "splits, shape %u of %u, %s", i + 1, n, s->shape.name);
        double over = search_shape(s, label);
        worst = over > worst ? over : worst;
        shape_free(&s->shape);
        bench_save(run->report);
    }
    printf("worst choice: %.2f %% above the best\n", 100 * (worst - 1));
    if (run->reference_lists)
        bench_bar_at_most(run->report, "chosen split over the best found, worst of 16", worst, CHOICE_AT_MOST);
    free(s);
}
