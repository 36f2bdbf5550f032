/* The QK warpgroups: scores, the running reference, P. A thread has two rows (g and g + 8 of its warp's 16) and, of
 * each, the keys 8 i + 2 q and 8 i + 2 q + 1. Scores are in log2 units. */
#ifndef MLA_KERNELS_SM90_SOFTMAX_CUH
#define MLA_KERNELS_SM90_SOFTMAX_CUH

#include "kernels/device/output.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/sm90/config.cuh"

namespace mla::sm90
{

struct RowState {
    float reference[2];   /* that the sums are in */
    float rounded[2];     /* sums of P as rounded to e4m3: what O is divided by */
    float exact[2];       /* sums of P before rounding: what the LSE is made of */
    uint32_t codes[2][4]; /* P of the group's last page: added to rounded under the products of its next one */
};

__device__ __forceinline__ void reset(RowState &s)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s.reference[r] = kNoReference;
        s.rounded[r] = 0;
        s.exact[r] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.codes[r][i] = 0;
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

/* Of the keys that this thread has. */
__device__ __forceinline__ void thread_maxima(const float (&S)[32], float (&top)[2])
{
    top[0] = fmaxf(S[0], S[1]);
    top[1] = fmaxf(S[2], S[3]);
#pragma unroll
    for (int i = 1; i < 8; i++) {
        top[0] = fmaxf(top[0], fmaxf(S[4 * i], S[4 * i + 1]));
        top[1] = fmaxf(top[1], fmaxf(S[4 * i + 2], S[4 * i + 3]));
    }
}

/* Of rows, for all threads that have keys of them. */
__device__ __forceinline__ void row_maxima(float (&top)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
}

__device__ __forceinline__ float sum_of_e4m3x16(const uint32_t (&codes)[4])
{
    float s0, s1;
    asm("{.reg .b16 l, h, a, b;\n.reg .b32 x0, x1, x2, x3, x4, x5, x6, x7;\n"
        "mov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 x0, l;\ncvt.rn.f16x2.e4m3x2 x1, h;\n"
        "mov.b32 {l, h}, %3;\ncvt.rn.f16x2.e4m3x2 x2, l;\ncvt.rn.f16x2.e4m3x2 x3, h;\n"
        "mov.b32 {l, h}, %4;\ncvt.rn.f16x2.e4m3x2 x4, l;\ncvt.rn.f16x2.e4m3x2 x5, h;\n"
        "mov.b32 {l, h}, %5;\ncvt.rn.f16x2.e4m3x2 x6, l;\ncvt.rn.f16x2.e4m3x2 x7, h;\n"
        "add.rn.f16x2 x0, x0, x1;\nadd.rn.f16x2 x2, x2, x3;\nadd.rn.f16x2 x4, x4, x5;\nadd.rn.f16x2 x6, x6, x7;\n"
        "add.rn.f16x2 x0, x0, x2;\nadd.rn.f16x2 x4, x4, x6;\nadd.rn.f16x2 x0, x0, x4;\n"
        "mov.b32 {a, b}, x0;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;}"
        : "=f"(s0), "=f"(s1)
        : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]));
    return s0 + s1;
}

/* 16 keys of two rows: a word of codes of each, in the order that the products expect. */
__device__ __forceinline__ void exponentials(const float (&S)[32], float c, const float (&offset)[2], RowState &state,
                                             int pair)
{
    float p[8];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            p[e * 4 + k] = ex2(fmaf(S[(2 * pair + e) * 4 + k], c, offset[k >> 1]));
    state.exact[0] += (p[0] + p[1]) + (p[4] + p[5]);
    state.exact[1] += (p[2] + p[3]) + (p[6] + p[7]);
    state.codes[0][pair] = e4m3x4_of(p[0], p[1], p[4], p[5]);
    state.codes[1][pair] = e4m3x4_of(p[2], p[3], p[6], p[7]);
}

/* The last page's codes into the sums of rounded P. Their sums fit f16 (8 keys of at most 448), and what rounding them
 * costs is as often up as down. */
__device__ __forceinline__ void add_codes(RowState &state)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        state.rounded[r] += sum_of_e4m3x16(state.codes[r]);
}

} // namespace mla::sm90

#endif
