/* Promotion: what the tensor cores have added up leaves their accumulators before they lose too much of it.
 *
 * These accumulators keep some 13 bits and cut the rest off, so that a sum of many pages loses what is small against
 * it. On each page a part of O therefore moves to f16 sums in memory (they stay in the L2 cache), which only this
 * thread touches: 1.5 times the value moves, half of it stays behind with the opposite sign, and so does what rounding
 * to f16 lost. An accumulator thus swings around zero, over the pages between two visits.
 *
 * The sums are those of O times a power of two (kSumScale) that keeps them below the largest f16 for any data; they are
 * in terms of the same references as O.
 */
#ifndef MLA_KERNELS_SM90_PROMOTE_CUH
#define MLA_KERNELS_SM90_PROMOTE_CUH

#include "kernels/sm90/place.cuh"

namespace mla::sm90
{

/* Of 8 values of O of a thread; as many of each of its two blocks of 64 channels. */
constexpr uint32_t kVectors = 8;
constexpr uint32_t kVectorsOfPage = kVectors / kWindow;
static_assert(kVectorsOfPage * kWindow == kVectors, "the same on each page of a window");

/* It moves on the pages of its number in a window. */
__host__ __device__ constexpr uint32_t page_of_vector(uint32_t v)
{
    return v / kVectorsOfPage;
}

__device__ __forceinline__ uint64_t sums_of_thread(const mla_sm90_launch &launch)
{
    return launch.sums + static_cast<uint64_t>(cta()) * MLA_SM90_SUMS_BYTES + (threadIdx.x & 255) * 16u;
}

/* From sums_of_thread(). A warp's vectors lie together. */
__device__ __forceinline__ constexpr uint32_t vector_at(uint32_t block, uint32_t v)
{
    return (block * kVectors + v) * (256 * 16);
}

__device__ __forceinline__ uint32_t f16x2_of(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ void f32_of(uint32_t pair, float &low, float &high)
{
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
}

__device__ __forceinline__ void add_in_memory(uint64_t to, const uint32_t (&h)[4])
{
    asm volatile("red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(h[0]), "r"(h[1]),
                 "r"(h[2]), "r"(h[3])
                 : "memory");
}

__device__ __forceinline__ void store_in_memory(uint64_t to, const uint32_t (&h)[4])
{
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(h[0]), "r"(h[1]), "r"(h[2]),
                 "r"(h[3])
                 : "memory");
}

__device__ __forceinline__ void move(float (&o)[64], int v, uint64_t to, bool is_long, bool first)
{
    const float scale = is_long ? 1.5f * kSumScaleLong : 1.5f * kSumScale;
    const float back = is_long ? -1.0f / kSumScaleLong : -1.0f / kSumScale;
    uint32_t h[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
        float &x = o[8 * v + 2 * e], &y = o[8 * v + 2 * e + 1], low, high;
        h[e] = f16x2_of(x * scale, y * scale);
        f32_of(h[e], low, high);
        x = fmaf(low, back, x);
        y = fmaf(high, back, y);
    }
    if (first)
        store_in_memory(to, h);
    else
        add_in_memory(to, h);
}

/* On page u of a window. is_long: kSumScaleLong. first: nothing of this unit is there yet. */
template <int u> __device__ __forceinline__ void promote(float (&o)[2][64], uint64_t sums, bool is_long, bool first)
{
#pragma unroll
    for (int v = u * kVectorsOfPage; v < static_cast<int>((u + 1) * kVectorsOfPage); v++)
#pragma unroll
        for (int m = 0; m < 2; m++)
            move(o[m], v, sums + vector_at(m, v), is_long, first);
}

/* The sums follow when references rise: blocks of 8 rows, of 64 from block `first` on, whose bits are set in changed.
 * done: pages of the unit whose vectors have moved. */
__device__ __forceinline__ void rescale_sums(uint64_t sums, uint32_t done, uint32_t factors, uint32_t changed,
                                             int first)
{
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t v = (first + i) >> 1;
        if ((changed >> ((i >> 1) * 8 + (i & 1)) & 1) && done > page_of_vector(v)) {
            float x, y;
            load_shared_f32x2(factors + i * 32, x, y);
            uint32_t f = f16x2_of(x, y), h[2][2];
#pragma unroll
            for (int m = 0; m < 2; m++)
                asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                             : "=r"(h[m][0]), "=r"(h[m][1])
                             : "l"(sums + vector_at(m, v) + (i & 1) * 8)
                             : "memory");
#pragma unroll
            for (int m = 0; m < 2; m++) {
                asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[m][0]) : "r"(f));
                asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[m][1]) : "r"(f));
                asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(sums + vector_at(m, v) + (i & 1) * 8),
                             "r"(h[m][0]), "r"(h[m][1])
                             : "memory");
            }
        }
    }
}

/* All of it back into O, at the end of a unit of `done` pages. */
__device__ __forceinline__ void collect(float (&o)[2][64], uint64_t sums, bool is_long, uint32_t done)
{
    const float back = is_long ? 1.0f / kSumScaleLong : 1.0f / kSumScale;
#pragma unroll
    for (int v0 = 0; v0 < static_cast<int>(kVectors); v0 += 4) {
        uint32_t h[8][4];
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (done > page_of_vector(v0 + k / 2))
                asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(h[k][0]), "=r"(h[k][1]), "=r"(h[k][2]), "=r"(h[k][3])
                             : "l"(sums + vector_at(k & 1, v0 + k / 2))
                             : "memory");
            else
                h[k][0] = h[k][1] = h[k][2] = h[k][3] = 0;
#pragma unroll
        for (int k = 0; k < 8; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float &x = o[k & 1][8 * (v0 + k / 2) + 2 * e], &y = o[k & 1][8 * (v0 + k / 2) + 2 * e + 1], low, high;
                f32_of(h[k][e], low, high);
                x = fmaf(low, back, x);
                y = fmaf(high, back, y);
            }
    }
}

} // namespace mla::sm90

#endif
