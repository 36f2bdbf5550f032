/* Scores, the running reference, P. A thread has two rows (g and g + 8 of its warp's 16) and, of
 * each, the keys 8 i + 2 q and 8 i + 2 q + 1. Scores are in log2 units. */
#ifndef MLA_KERNELS_BASELINE_MLA1_SOFTMAX_CUH
#define MLA_KERNELS_BASELINE_MLA1_SOFTMAX_CUH

#include "kernels/baseline/mla1_config.cuh"
#include "kernels/device/output.cuh"
#include "kernels/ptx/math.cuh"

namespace mla::mla1
{

struct RowState {
    float reference[2]; /* that the sums are in */
    float rounded[2];   /* sums of P as rounded to e4m3: what O is divided by */
    float exact[2];     /* sums of P before rounding: what the LSE is made of */
};

__device__ __forceinline__ void reset(RowState &s)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s.reference[r] = -1e30f;
        s.rounded[r] = 0;
        s.exact[r] = 0;
    }
}

/* Keys at or past a row's limit are not seen: -inf whatever was computed for them. */
__device__ __forceinline__ void mask_scores(float (&S)[32], int limit0, int limit1, int q)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int key = 8 * i + 2 * q + e;
            if (key >= limit0)
                S[4 * i + e] = -INFINITY;
            if (key >= limit1)
                S[4 * i + 2 + e] = -INFINITY;
        }
}

__device__ __forceinline__ void row_maxima(const float (&S)[32], float (&top)[2])
{
    top[0] = S[0];
    top[1] = S[2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        top[0] = fmaxf(top[0], fmaxf(S[4 * i], S[4 * i + 1]));
        top[1] = fmaxf(top[1], fmaxf(S[4 * i + 2], S[4 * i + 3]));
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
}

__device__ __forceinline__ float sum_of_e4m3x4(uint32_t codes)
{
    float s0, s1;
    asm("{.reg .b16 l, h, a, b;\n.reg .b32 x, y;\nmov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 x, l;\n"
        "cvt.rn.f16x2.e4m3x2 y, h;\nadd.rn.f16x2 x, x, y;\nmov.b32 {a, b}, x;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;}"
        : "=f"(s0), "=f"(s1)
        : "r"(codes));
    return s0 + s1;
}

/* 16 keys of two rows: word of row g and word of row g + 8 in the order that the products expect. */
__device__ __forceinline__ void exponentials(const float (&S)[32], float c, const float (&offset)[2], RowState &state,
                                             int pair, uint32_t &w0, uint32_t &w1)
{
    float p[8];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            p[e * 4 + k] = ex2(fmaf(S[(2 * pair + e) * 4 + k], c, offset[k >> 1]));
    state.exact[0] += (p[0] + p[1]) + (p[4] + p[5]);
    state.exact[1] += (p[2] + p[3]) + (p[6] + p[7]);
    w0 = e4m3x4_of(p[0], p[1], p[4], p[5]);
    w1 = e4m3x4_of(p[2], p[3], p[6], p[7]);
    state.rounded[0] += sum_of_e4m3x4(w0);
    state.rounded[1] += sum_of_e4m3x4(w1);
}

} // namespace mla::mla1

#endif
