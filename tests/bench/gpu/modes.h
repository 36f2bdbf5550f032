/* The parts of mla-bench shapes. Each says what the pool must hold, then measures, prints, and adds rows and bars. */
#ifndef MLA_TESTS_BENCH_GPU_MODES_H
#define MLA_TESTS_BENCH_GPU_MODES_H

#include "tests/bench/gpu/run.h"

/* reference.c: the shapes of the lists for all variants; bars where they are the reference ones. Sets rate_b64. */
void reference_want(const struct run *run, struct pool_wants *wants);
void reference_run(struct run *run);

#endif
