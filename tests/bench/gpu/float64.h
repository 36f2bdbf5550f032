/* Attention of sampled rows in float64 on the CPUs, over the bytes that the pool holds. */
#ifndef MLA_TESTS_BENCH_GPU_FLOAT64_H
#define MLA_TESTS_BENCH_GPU_FLOAT64_H

#include "tests/bench/gpu/pool.h"

#define FLOAT64_ROWS 8

struct float64_rows {
    uint32_t seq;
    struct {
        uint32_t token, head;
    } rows[FLOAT64_ROWS];
    double o[FLOAT64_ROWS][MLA_ABI_V_DIM]; /* the result */
};

/* Causal, score scale 1/24, unit scales; rows of one sequence of the shape. */
void float64_attend(const struct pool *pool, const struct shape *shape, struct float64_rows *rows);

#endif
