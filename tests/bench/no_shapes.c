/* mla-bench shapes in a build without CUDA. */
#include <stdio.h>

#include "tests/bench/bench.h"

int bench_shapes(int argc, char **argv, struct bench_report *report)
{
    (void)argc, (void)argv, (void)report;
    fputs("mla-bench: skipped: this build has no CUDA kernels to measure\n", stderr);
    return BENCH_SKIPPED;
}
