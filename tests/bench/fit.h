/* Constants of the planner's cost model from measured split choices. Pure: no I/O, no GPU. */
#ifndef MLA_TESTS_BENCH_FIT_H
#define MLA_TESTS_BENCH_FIT_H

#include "kernels/plan/plan.h"

/* A batch of equal sequences took so long, planned so. */
struct fit_sample {
    uint32_t n_seqs, q_len, kv_len, heads;
    uint32_t splits;         /* every tile cut into so many items; 0: by policy */
    enum plan_policy policy; /* 0: PLAN_AUTO */
    double us;
};

struct fit_device {
    struct plan_device device;
    uint32_t tile_rows;
};

/* Samples of a shape stand together. Those by PLAN_BALANCED are taken to have been cut as the constants that are tried
 * would cut them, which differs by a page or two. What matters is which split wins, so errors within a shape count
 * most, those of good splits more than those of bad ones, and what all times of a shape are off by (clocks differ
 * between short and long runs) a tenth. launch_ns and the reducer's constants are told apart by whether a split
 * happened; fill_ns keeps its share of fill_ns + drain_ns. costs: where the search starts, and the result. Returns the
 * weighted root mean square error of log(model / measured) within shapes. */
double fit_costs(const struct fit_device *device, const struct fit_sample *samples, size_t n, struct plan_costs *costs);

/* Model's microseconds of a sample. plan: where the plan's figures go, may be NULL; its
 * arrays are gone on return. NaN when there is no plan. */
double fit_model_us(const struct fit_device *device, const struct plan_costs *costs, const struct fit_sample *sample,
                    struct plan *plan);

#endif
