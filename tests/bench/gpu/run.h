/* One run of mla-bench shapes: what is open, and the step that all its parts are made of: several ways to decode a
 * shape, timed interleaved.
 */
#ifndef MLA_TESTS_BENCH_GPU_RUN_H
#define MLA_TESTS_BENCH_GPU_RUN_H

#include "tests/bench/gpu/nvml.h"
#include "tests/bench/gpu/times.h"
#include "tests/bench/gpu/work.h"
#include "tests/bench/report.h"

struct run {
    struct gpu gpu;
    const struct cuda_driver *tapped;
    struct variant variants[VARIANTS_MAX]; /* the first is the native one */
    size_t n_variants;
    char kernels_folder[512];
    struct pool pool;
    struct nvml *nvml;
    struct bench_report *report;
    struct shape_lists lists;
    bool reference_lists; /* they are the 16 reference shapes */
    uint32_t iterations;  /* launches of a graph */
    uint32_t repeats;
    double warmup_ms;
    double raw_tflops; /* NaN: not measured */
    double rate_b64;   /* TFLOP/s of the largest batch: from this run or an option; NaN: unknown */
    bool no_parts;
    bool own_kernels;                           /* variants by themselves */
    bool quick;                                 /* --errors: small batches alone */
    uint32_t splits_max;                        /* --splits: the most that a tile is cut into */
    uint32_t batch;                             /* --second */
    bool own_batches, own_q, own_kv, own_heads; /* these lists were given */
};

struct way {
    const struct variant *variant;
    const struct shape *shape;
    struct work_options options; /* launches: set by ways_open() */
    char label[48];
    struct work work;
    struct timed timed;
    int rc; /* of work_open(): not 0: there is no such plan; it is left out */
};

struct ways_rule {
    uint32_t iterations; /* at most so many launches in a graph ... */
    double graph_us;     /* ... and, unless 0, no more than take so long (but two) */
    uint32_t repeats;
    double warmup_ms;
};

/* Plans, tries and captures. A way so slow that a graph would take more than a second gets fewer launches, one whose
 * repeats would take more than eight gets fewer repeats. */
void ways_open(struct run *run, struct way *ways, size_t n, const struct ways_rule *rule);

/* Times those that are there. select: NULL, or which ones. */
void ways_measure(struct run *run, struct way *ways, size_t n, const bool *select, const struct ways_rule *rule,
                  const char *label);
void ways_close(struct run *run, struct way *ways, size_t n);

static inline double way_tflops(const struct way *way)
{
    return way->shape->flop / way->timed.us.median * 1e-6;
}

/* Microseconds of a launch's kernels of one kind, in a graph of those alone; NaN where there is none. The decode is
 * what is left of the whole. */
void way_parts(struct run *run, struct way *way, double us[TAP_PARTS]);

/* Cells that every table of times has. */
void way_cells(struct bench_row *row, const struct way *way);

double geomean(const double *values, size_t n); /* NaN when one is, or n is 0 */

#endif
