/* The parts of mla-bench shapes. Each says what the pool must hold, then measures, prints, and adds rows and bars. */
#ifndef MLA_TESTS_BENCH_GPU_MODES_H
#define MLA_TESTS_BENCH_GPU_MODES_H

#include "tests/bench/gpu/run.h"

struct mode {
    const char *flag;
    void (*want)(const struct run *run, struct pool_wants *wants);
    void (*run)(struct run *run);
};

/* reference.c: the shapes of the lists for all variants; bars where they are the reference ones. Sets rate_b64. */
void reference_want(const struct run *run, struct pool_wants *wants);
void reference_run(struct run *run);

/* splits.c: for every shape of the lists the native variant with every uniform split count and every policy; how far
 * the policy that mlad plans with is from the best one. */
void splits_run(struct run *run);

/* errors.c: relative L2 error of f32 output against float64 on sampled rows, the five data sets, all variants. Leaves
 * the last data set in the pool. */
void errors_want(const struct run *run, struct pool_wants *wants);
void errors_run(struct run *run);

/* ablate.c: the native variant with one thing changed at a time. */
void ablate_run(struct run *run);

/* second.c: few heads, few tokens, short contexts, against the lower of two rooflines. */
void second_want(const struct run *run, struct pool_wants *wants);
void second_run(struct run *run);

/* sweeps.c: over rows, over lengths, ragged batches. */
void rows_want(const struct run *run, struct pool_wants *wants);
void rows_run(struct run *run);
void kv_want(const struct run *run, struct pool_wants *wants);
void kv_run(struct run *run);
void ragged_want(const struct run *run, struct pool_wants *wants);
void ragged_run(struct run *run);

/* sweeps.c: times the native variant on a shape, prints a line and adds a row of that table with what it is of the
 * roofline. Returns the share of the roofline, NaN while no rate is known. */
double sweep_shape(struct run *run, const char *table, const struct shape *shape);

/* Microseconds that a shape takes at the least: its FLOP at the rate of the largest batch, its bytes at 4.6 TB/s. */
double roofline_us(const struct run *run, const struct shape *shape);

#endif
