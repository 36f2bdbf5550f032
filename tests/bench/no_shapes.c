/* Subcommands that need CUDA, in a build without it. */
#include <stdio.h>

#include "tests/bench/bench.h"

static int skip(void)
{
    fputs("mla-bench: skipped: this build has no CUDA kernels to measure\n", stderr);
    return BENCH_SKIPPED;
}

#define WITHOUT_CUDA(name)                                                                                             \
    int name(int argc, char **argv, struct bench_report *report)                                                       \
    {                                                                                                                  \
        (void)argc, (void)argv, (void)report;                                                                          \
        return skip();                                                                                                 \
    }                                                                                                                  \
    const struct bench_option name##_options[] = {{NULL, NULL, NULL, 0, 0, 0}};
WITHOUT_CUDA(bench_launch)
WITHOUT_CUDA(bench_mix)
WITHOUT_CUDA(bench_overhead)
WITHOUT_CUDA(bench_shapes)
WITHOUT_CUDA(bench_step)
WITHOUT_CUDA(bench_workers)
#define NO_OPTIONS "\nThis build has no CUDA kernels to measure: it takes no options.\n"
const char bench_launch_more[] = NO_OPTIONS;
const char bench_shapes_more[] = NO_OPTIONS;
