#include "tests/bench/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOOD_WITHIN    0.1 /* a split slower by this share than the shape's best weighs 1/e */
#define OFFSET_WEIGHT  0.1
#define WORKSPACE_MOST (UINT64_C(4) << 30)

static void *array(size_t n, size_t bytes)
{
    void *memory = calloc(n + 1, bytes);
    if (!memory) {
        fputs("mla-bench: no memory\n", stderr);
        exit(2);
    }
    return memory;
}

double fit_model_us(const struct fit_device *device, const struct plan_costs *costs, const struct fit_sample *sample,
                    struct plan *plan)
{
    struct plan p = {0};
    struct plan_job job = {.n_seqs = sample->n_seqs, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_seq *seqs = array(sample->n_seqs, sizeof *seqs);
    struct plan_request request = {.device = device->device,
                                   .costs = *costs,
                                   .policy = sample->policy != 0 ? sample->policy : PLAN_AUTO,
                                   .tile_rows = device->tile_rows,
                                   .heads = sample->heads,
                                   .splits = sample->splits,
                                   .workspace_bytes_max = WORKSPACE_MOST,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = sample->n_seqs};
    for (uint32_t s = 0; s < sample->n_seqs; s++)
        seqs[s] = (struct plan_seq){sample->q_len, sample->kv_len};
    double us = (double)NAN;
    if (plan_bound(&request, &p.capacity) == 0) {
        p.tiles = array(p.capacity.tiles, sizeof *p.tiles);
        p.items = array(p.capacity.items, sizeof *p.items);
        p.reduces = array(p.capacity.reduces, sizeof *p.reduces);
        p.scratch = array(p.capacity.scratch_bytes, 1);
        if (plan_build(&request, &p) == 0)
            us = 1e-3 * (double)p.predicted_ns;
        free(p.tiles);
        free(p.items);
        free(p.reduces);
        free(p.scratch);
    }
    free(seqs);
    if (plan)
        *plan = p;
    return us;
}

static bool same_shape(const struct fit_sample *a, const struct fit_sample *b)
{
    return a->n_seqs == b->n_seqs && a->q_len == b->q_len && a->kv_len == b->kv_len && a->heads == b->heads;
}

/* Of the samples [0, n) of one shape: weighted squares of what the logarithms are off by, less their mean; and the
 * mean. */
static double shape_loss(const struct fit_device *device, const struct plan_costs *costs,
                         const struct fit_sample *samples, size_t n, double *offset)
{
    double best = INFINITY, weights = 0, sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        best = fmin(best, samples[i].us);
    for (size_t i = 0; i < n; i++) {
        double off = log(fit_model_us(device, costs, &samples[i], NULL) / samples[i].us);
        double weight = exp(-(samples[i].us / best - 1) / GOOD_WITHIN);
        weights += weight;
        sum += weight * off;
        squares += weight * off * off;
    }
    *offset = sum / weights;
    return fmax(0, squares / weights - *offset * *offset);
}

static double loss(const struct fit_device *device, const struct plan_costs *costs, const struct fit_sample *samples,
                   size_t n, double *within)
{
    double total = 0;
    size_t shapes = 0;
    *within = 0;
    for (size_t i = 0, end; i < n; i = end, shapes++) {
        double offset;
        for (end = i + 1; end < n && same_shape(&samples[i], &samples[end]);)
            end++;
        double of_shape = shape_loss(device, costs, samples + i, end - i, &offset);
        *within += of_shape;
        total += of_shape + OFFSET_WEIGHT * offset * offset;
    }
    *within = sqrt(*within / (double)(shapes > 0 ? shapes : 1));
    return total;
}

/* What the search turns: nanoseconds of launch, hand-over (fill and drain), page, partial and reducer, and the
 * reducer's bytes per microsecond. */
enum { LAUNCH, HAND_OVER, PAGE, PARTIAL, REDUCE, REDUCE_BYTES, KNOBS };

static uint32_t rounded(double x)
{
    return x < 1 ? 1 : x > 4e9 ? 4000000000u : (uint32_t)(x + 0.5);
}

static struct plan_costs costs_of(const double *knobs, const struct plan_costs *start)
{
    double fill = start->fill_ns + start->drain_ns > 0
                      ? (double)start->fill_ns / ((double)start->fill_ns + start->drain_ns)
                      : 0.5;
    struct plan_costs c = *start;
    c.launch_ns = rounded(knobs[LAUNCH]);
    c.fill_ns = rounded(knobs[HAND_OVER] * fill);
    c.drain_ns = rounded(knobs[HAND_OVER] * (1 - fill));
    c.page_ns = rounded(knobs[PAGE]);
    c.partial_ns = rounded(knobs[PARTIAL]);
    c.reduce_fixed_ns = rounded(knobs[REDUCE]);
    c.reduce_bytes_per_us = rounded(knobs[REDUCE_BYTES]);
    return c;
}

double fit_costs(const struct fit_device *device, const struct fit_sample *samples, size_t n, struct plan_costs *costs)
{
    const struct plan_costs start = *costs;
    double knobs[KNOBS] = {[LAUNCH] = start.launch_ns,       [HAND_OVER] = (double)start.fill_ns + start.drain_ns,
                           [PAGE] = start.page_ns,           [PARTIAL] = start.partial_ns,
                           [REDUCE] = start.reduce_fixed_ns, [REDUCE_BYTES] = start.reduce_bytes_per_us};
    double within = 0, best = loss(device, costs, samples, n, &within);
    for (int k = 0; k < KNOBS; k++)
        knobs[k] = fmax(knobs[k], 50); /* steps are factors: nothing starts at 0 */
    for (double step = 1.6; step > 1.005;) {
        bool better = false;
        for (int k = 0; k < KNOBS; k++)
            for (int up = 0; up < 2; up++) {
                double old = knobs[k], tried;
                knobs[k] = up ? old * step : old / step;
                struct plan_costs c = costs_of(knobs, &start);
                double at = loss(device, &c, samples, n, &tried);
                if (at < best * (1 - 1e-6)) {
                    best = at;
                    within = tried;
                    better = true;
                } else {
                    knobs[k] = old;
                }
            }
        if (!better)
            step = sqrt(step);
    }
    *costs = costs_of(knobs, &start);
    return within;
}
