/* A matrix product as a worker's own kernel of a decode step: y = W x, W in bf16, as large as the weights of a layer.
 * It reads W once, which is what it takes time for. */
#ifndef MLA_TESTS_BENCH_GPU_WEIGHTS_H
#define MLA_TESTS_BENCH_GPU_WEIGHTS_H

#include <stdint.h>

#define WEIGHTS_FILE    "bench-weights.cubin" /* beside the kernels */
#define WEIGHTS_ENTRY   "mla_bench_weights"
#define WEIGHTS_THREADS 256u  /* eight warps, a row each */
#define WEIGHTS_COLUMNS 7168u /* of W */
#define WEIGHTS_ROWS    4608u /* 66 MB: more than L2 holds */

struct weights_launch {
    uint64_t w; /* bf16, rows of WEIGHTS_COLUMNS */
    uint64_t x; /* bf16 */
    uint64_t y; /* float per row */
    uint32_t rows;
    uint32_t reserved;
};

#ifndef __cplusplus
#include "tests/bench/gpu/gpu.h"

struct weights {
    const struct gpu *gpu;
    CUmodule module;
    CUfunction function;
    CUdeviceptr memory;
    struct weights_launch launch;
};

/* Ends the program where the kernel's file is not in the folder of the kernels (that of file) or does not load. rows:
 * of W, which is zeros. */
void weights_open(struct weights *weights, const struct gpu *gpu, const char *file, uint32_t rows);
void weights_close(struct weights *weights);

/* On the GPU's stream. */
void weights_launch(struct weights *weights);
#endif

#endif
