/* Scores, softmax and P * V of one page. Eight warps: for the scores warp w has rows 16 * (w % 4) ... and keys
 * 32 * (w / 4) ...; for P * V it has all rows and columns 64 * w ... */
#ifndef MLA_KERNELS_GENERIC_ATTEND_CUH
#define MLA_KERNELS_GENERIC_ATTEND_CUH

#include "kernels/generic/shared.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"

namespace mla
{

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

/* P is 2^(score - maximum) * 2^15: the largest weight is 32,768, and weights down to 2^-29 of it stay normal numbers.
 */
constexpr float kPShift = 15.0f;
constexpr float kPUnit = 1.0f / (1 << 15);

#if __CUDA_ARCH__ >= 890
constexpr float kCodeScale = 1.0f; /* of the numbers that halves of words become */
#else
constexpr float kCodeScale = 1.0f / (1 << MLA_E4M3_F16_SHIFT);
#endif

/* The four codes of a word as two f16 pairs: bytes 0, 2 and bytes 1, 3. */
__device__ __forceinline__ void f16_of_codes(uint32_t codes, uint32_t &even, uint32_t &odd)
{
#if __CUDA_ARCH__ >= 890
    uint32_t ordered = __byte_perm(codes, 0, 0x3120);
    even = f16x2_of_e4m3x2(static_cast<uint16_t>(ordered));
    odd = f16x2_of_e4m3x2(static_cast<uint16_t>(ordered >> 16));
#else
    even = e4m3_even_f16x2(codes);
    odd = e4m3_odd_f16x2(codes);
#endif
}

/* The same where any order will do, as long as both factors have it: here and in the scores alone. */
__device__ __forceinline__ void f16_of_codes_any(uint32_t codes, uint32_t &a, uint32_t &b)
{
#if __CUDA_ARCH__ >= 890
    a = f16x2_of_e4m3x2(static_cast<uint16_t>(codes));
    b = f16x2_of_e4m3x2(static_cast<uint16_t>(codes >> 16));
#else
    f16_of_codes(codes, a, b);
#endif
}

/* State of the two rows of a thread in the softmax: lane / 4 and 8 more of its warp's 16. Sums are of this thread's
 * columns only until the end. */
struct Softmax {
    float top[2];     /* largest score so far, in octaves */
    float sum[2];     /* of unrounded P */
    float rounded[2]; /* of what is multiplied with V */
    bool poisoned[2]; /* sees a key with a NaN, or has one in Q */
};

__device__ __forceinline__ void page_scores(const uint8_t *q, const uint8_t *k, float (&score)[4][4])
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t offset = generic_score_offset(threadIdx.x % 32);
    const uint8_t *q_rows = q + (warp % 4) * 16 * GENERIC_ROW_BYTES + offset;
    const uint8_t *k_rows = k + (warp / 4) * 32 * GENERIC_ROW_BYTES + offset;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[n][i] = 0;
#pragma unroll 3
    for (uint32_t c = 0; c < GENERIC_CHUNKS; c++) {
        uint4 q_words[2];
        uint4 k_words[4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            q_words[i] = *reinterpret_cast<const uint4 *>(q_rows + i * 8 * GENERIC_ROW_BYTES + c * 64);
#pragma unroll
        for (int n = 0; n < 4; n++)
            k_words[n] = *reinterpret_cast<const uint4 *>(k_rows + n * 8 * GENERIC_ROW_BYTES + c * 64);
#pragma unroll
        for (int w = 0; w < 4; w++) {
            uint32_t a[4];
            f16_of_codes_any((&q_words[0].x)[w], a[0], a[2]);
            f16_of_codes_any((&q_words[1].x)[w], a[1], a[3]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                uint32_t b0;
                uint32_t b1;
                f16_of_codes_any((&k_words[n].x)[w], b0, b1);
                mma_16816(score[n], a, b0, b1);
            }
        }
    }
}

/* Octaves, -infinity where the row does not see the key, and each row's maximum over this warp's half of the page. */
__device__ __forceinline__ void mask_scores(Shared &s, uint32_t page, float scale, float (&score)[4][4],
                                            Softmax &softmax, unsigned long long nan_keys)
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = warp % 4 * 16 + lane / 4 + i * 8;
        int32_t seen = s.visible[row] - static_cast<int32_t>(page * MLA_ABI_PAGE_TOKENS);
        if (nan_keys != 0 && seen > 0)
            softmax.poisoned[i] |= (nan_keys & (~0ull >> (64 - min(seen, 64)))) != 0;
        int32_t first = static_cast<int32_t>(warp / 4 * 32 + lane % 4 * 2);
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float value = first + n * 8 + j < seen ? __fmul_rn(score[n][2 * i + j], scale) : -INFINITY;
                score[n][2 * i + j] = value;
                top = fmaxf(top, value);
            }
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (lane % 4 == 0)
            s.row_max[warp / 4][row] = top;
    }
}

/* P of the page into shared memory, and what O so far is to be multiplied by. */
__device__ __forceinline__ void page_weights(Shared &s, const float (&score)[4][4], Softmax &softmax)
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = warp % 4 * 16 + lane / 4 + i * 8;
        float top = fmaxf(softmax.top[i], fmaxf(s.row_max[0][row], s.row_max[1][row]));
        bool nothing = top == -INFINITY; /* no key seen so far */
        float factor = nothing ? 1.0f : ex2(softmax.top[i] - top);
        float base = nothing ? 0.0f : top;
        float sum = 0;
        float rounded = 0;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            float p0 = ex2((score[n][2 * i] - base) + kPShift);
            float p1 = ex2((score[n][2 * i + 1] - base) + kPShift);
            uint32_t pair = f16x2_of(p0, p1);
            sum += p0 + p1;
            rounded += f32_of_f16(static_cast<uint16_t>(pair)) + f32_of_f16(static_cast<uint16_t>(pair >> 16));
            *reinterpret_cast<uint32_t *>(s.p + generic_p_pair(row, warp / 4 * 32 + n * 8 + lane % 4 * 2)) = pair;
        }
        softmax.top[i] = top;
        softmax.sum[i] = softmax.sum[i] * factor + sum;
        softmax.rounded[i] = softmax.rounded[i] * factor + rounded;
        if (warp < 4 && lane % 4 == 0)
            s.row_scale[row] = factor;
    }
}

/* O of a warp: [16 rows][16 columns][even or odd columns][mma's four]. */
typedef float Output[4][4][2][4];

/* O = O * row_scale + P * V. */
__device__ __forceinline__ void add_page(const Shared &s, const uint8_t *v, Output &o)
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
    float scale[4][2];
    bool changed = false;
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            scale[m][i] = s.row_scale[m * 16 + i * 8 + lane / 4];
            changed |= scale[m][i] != 1.0f;
        }
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int c = 0; c < 4; c++)
#pragma unroll
                for (int e = 0; e < 2; e++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        o[m][c][e][i] *= scale[m][i / 2];
    }
    uint32_t p_from = shared_address(s.p) + generic_p_offset(lane);
    uint32_t v_from = shared_address(v) + warp * 64;
    uint32_t v_offset[2] = {generic_v_offset(lane, 0), generic_v_offset(lane, 1)};
#pragma unroll
    for (uint32_t step = 0; step < 4; step++) {
        uint32_t p[4][4];
#pragma unroll
        for (int m = 0; m < 4; m++)
            ldmatrix_x4(p[m], p_from + m * 16 * GENERIC_P_BYTES + step * 32);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            uint32_t raw[4];
            ldmatrix_x4_trans(raw, v_from + v_offset[c] + step * 16 * GENERIC_ROW_BYTES);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t even[2];
                uint32_t odd[2];
                f16_of_codes(raw[2 * half], even[0], odd[0]);
                f16_of_codes(raw[2 * half + 1], even[1], odd[1]);
#pragma unroll
                for (int m = 0; m < 4; m++) {
                    mma_16816(o[m][2 * c + half][0], p[m], even[0], even[1]);
                    mma_16816(o[m][2 * c + half][1], p[m], odd[0], odd[1]);
                }
            }
        }
    }
}

} // namespace mla

#endif
