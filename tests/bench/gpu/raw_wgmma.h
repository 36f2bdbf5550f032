/* The rate of back-to-back FP8 WGMMA on all SMs, for the ratio of a kernel's rate to it. The parameter block and the
 * numbers are the kernel's too; plain C11.
 */
#ifndef MLA_TESTS_BENCH_GPU_RAW_WGMMA_H
#define MLA_TESTS_BENCH_GPU_RAW_WGMMA_H

#include <stdint.h>

#define RAW_WGMMA_FILE     "bench-raw-wgmma.cubin" /* beside the kernels */
#define RAW_WGMMA_ENTRY    "mla_bench_raw_wgmma"
#define RAW_WGMMA_THREADS  256u /* two warpgroups */
#define RAW_WGMMA_PRODUCTS 32u  /* of a warpgroup in a loop: 64 x 128 x 32 each */
/* Two As of 64 rows and four Bs of 128, each row 128 bytes. */
#define RAW_WGMMA_SHARED_BYTES (2u * 64 * 128 + 4u * 128 * 128)
#define RAW_WGMMA_LOOP_FLOP    (2.0 * 64 * 128 * 32 * RAW_WGMMA_PRODUCTS * (RAW_WGMMA_THREADS / 128))

struct raw_wgmma_launch {
    uint64_t operands; /* random e4m3, RAW_WGMMA_SHARED_BYTES for each CTA */
    uint64_t sums;     /* float per thread */
    uint32_t loops;
    uint32_t reserved;
};

#ifndef __cplusplus
struct gpu;

/* TFLOP/s of `launches` launches of `ms` milliseconds each, the median. NaN, with a sentence in why, where the kernel's
 * file is not in the directory or does not run on this GPU. operands: device memory of random e4m3, `bytes` of it. */
double raw_wgmma_rate(const struct gpu *gpu, const char *directory, uint64_t operands, uint64_t bytes, unsigned ms,
                      unsigned launches, char *why, unsigned why_bytes);
#endif

#endif
