/* Times of graphs, interleaved: a round runs each graph once, and begins with another one than the round before. All
 * rounds are queued at once and an event stands between any two graphs, so the GPU never waits for the host and a
 * graph's time is that between its events.
 */
#ifndef MLA_TESTS_BENCH_GPU_TIMES_H
#define MLA_TESTS_BENCH_GPU_TIMES_H

#include "tests/bench/gpu/gpu.h"
#include "tests/bench/gpu/nvml.h"
#include "tests/bench/stats.h"

#define TIMES_REPEATS_MAX 200

struct timed {
    CUgraphExec graph;
    uint32_t launches;     /* in it */
    uint32_t repeats;      /* 1..TIMES_REPEATS_MAX; rounds behind that leave it out */
    struct bench_stats us; /* of one launch */
    struct nvml_load load;
};

struct times_options {
    double warmup_ms; /* whole rounds are run until so much time has passed, at least one */
    struct nvml *nvml;
    const char *label; /* for the progress line; NULL: none */
};

void times_measure(const struct gpu *gpu, struct timed *timed, size_t n, const struct times_options *options);

/* Microseconds of one of the graph's launches, when the graph begins anew every launches * period_us, or at once where
 * it takes longer: median of the second half of so many milliseconds. A card lowers its clock after some milliseconds
 * of work, by how much of the time it works (B64 Q4 4K on an H200: 223 us rested, 247 without pauses), so what is
 * compared with kernels by themselves is compared with kernels that leave it as much rest. */
double times_paced(const struct gpu *gpu, CUgraphExec graph, uint32_t launches, double period_us, double ms);

/* One line on stderr that the next one replaces, where that is a terminal. */
void times_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void times_progress_end(void);

#endif
