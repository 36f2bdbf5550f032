/* What other kernels make of the reference shapes: FlashMLA's dense BF16 decode kernel and vLLM's FP8 one, both
 * measured on one H200 by the reference method (2026-11), not by this program.
 */
#ifndef MLA_TESTS_BENCH_GPU_PUBLISHED_H
#define MLA_TESTS_BENCH_GPU_PUBLISHED_H

#include <stdint.h>

struct published {
    uint32_t n_seqs, q_len, kv_len; /* 96 heads */
    double bf16_us;
    double fp8_us;
};

#define PUBLISHED_SHAPES 16
extern const struct published published[PUBLISHED_SHAPES];

/* NULL for another shape. */
const struct published *published_find(uint32_t n_seqs, uint32_t q_len, uint32_t heads, uint32_t kv_len);

#endif
