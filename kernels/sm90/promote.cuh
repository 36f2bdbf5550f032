/* Promotion: what the tensor cores have added up leaves their accumulators before they lose too much of it.
 *
 * These accumulators keep some 13 bits and cut the rest off, so that a sum of many pages loses what is small against
 * it. On each page a part of O therefore moves to f16 sums in memory (they stay in the L2 cache), which only this
 * thread touches (precision.h says how much); what rounding to f16 lost stays behind, too.
 *
 * The sums are those of O times a power of two (kSumScale) that keeps them below the largest f16 for any data; they are
 * in terms of the same references as O.
 */
#ifndef MLA_KERNELS_SM90_PROMOTE_CUH
#define MLA_KERNELS_SM90_PROMOTE_CUH

#include "kernels/sm90/place.cuh"

namespace mla::sm90
{

/* A vector is 8 values of O of a thread: 2 channels of 4 of its rows. A thread has kVectors of each of its blocks of 64
 * channels, kAllVectors together; of these v and v + kWindow, if there is such a one, move on page v of a window. */
constexpr int kVectors = kValues / 8, kAllVectors = kBlocks * kVectors;
static_assert(kAllVectors <= 2 * static_cast<int>(kWindow) && kValues % 8 == 0, "all have moved in a window");
__host__ __device__ constexpr int block_of(int index)
{
    return index / kVectors;
}

__host__ __device__ constexpr int vector_of(int index)
{
    return index % kVectors;
}

/* The page of a window on which a vector moves. */
__host__ __device__ constexpr int page_of(int block, int vector)
{
    return (block * kVectors + vector) % static_cast<int>(kWindow);
}

/* Those of vectors below kSharedSums, which take no way through L2. */
__device__ __forceinline__ uint32_t shared_sums_of_thread()
{
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return window_of_cta() + smem::sums_of_o + (t & 255) * 16u;
}

__device__ __forceinline__ uint64_t sums_of_thread(const mla_sm90_launch &launch)
{
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    uint64_t base = launch.sums + static_cast<uint64_t>(cta()) * MLA_SM90_SUMS_BYTES + (t & 255) * 16u;
    asm volatile("" : "+l"(base)); /* else all places in it are computed ahead, and spilled */
    return base;
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

/* Adds to what is there, or, when first, is all there is. */
__device__ __forceinline__ void add_in_memory(uint64_t to, const uint32_t (&h)[4], bool first)
{
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
                 "@p st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};\n"
                 "@!p red.relaxed.gpu.global.add.noftz.v4.f16x2 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                 "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3]), "r"(static_cast<int>(first))
                 : "memory");
}

__device__ __forceinline__ void add_shared(uint32_t to, const uint32_t (&h)[4], bool first)
{
    asm volatile("{.reg .pred p;\n.reg .b32 a, b, c, d;\nsetp.ne.b32 p, %5, 0;\n"
                 "ld.shared.v4.b32 {a, b, c, d}, [%0];\n"
                 "add.rn.f16x2 a, a, %1;\nadd.rn.f16x2 b, b, %2;\nadd.rn.f16x2 c, c, %3;\nadd.rn.f16x2 d, d, %4;\n"
                 "@p mov.b32 a, %1;\n@p mov.b32 b, %2;\n@p mov.b32 c, %3;\n@p mov.b32 d, %4;\n"
                 "st.shared.v4.b32 [%0], {a, b, c, d};}" ::"r"(to),
                 "r"(h[0]), "r"(h[1]), "r"(h[2]), "r"(h[3]), "r"(static_cast<int>(first))
                 : "memory");
}

/* On page v of a window. done: pages of the unit before this one. */
template <int v>
__device__ __forceinline__ void promote(const mla_sm90_launch &launch, float (&o)[kBlocks][kValues], uint32_t done)
{
    constexpr float kMove = (1 + MLA_SM90_CARRY) * kSumScale;
    const uint64_t sums = sums_of_thread(launch);
#pragma unroll
    for (int index = v; index < kAllVectors; index += kWindow) {
        const int m = block_of(index), i = vector_of(index);
        uint32_t h[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &x = o[m][8 * i + 2 * e], &y = o[m][8 * i + 2 * e + 1], low, high;
            h[e] = f16x2_of(x * kMove, y * kMove);
            f32_of(h[e], low, high); /* exact: what is left and what has moved are what there was */
            x = fmaf(low, -1.0f / kSumScale, x);
            y = fmaf(high, -1.0f / kSumScale, y);
        }
        if (index < kSharedSums)
            add_shared(shared_sums_of_thread() + index * kSumsVector, h, done <= v);
        else
            add_in_memory(sums + vector_at(m, i), h, done <= v);
    }
}

/* The sums follow when references rise: blocks of 8 rows, of kRows from block `first` on, whose bits are set in
 * changed. */
__device__ __forceinline__ void rescale_sums(uint64_t sums, uint32_t done, uint32_t factors, uint32_t changed,
                                             int first)
{
#pragma unroll
    for (int i = 0; i < static_cast<int>(kRows) / 8; i++)
        if (changed >> ((i >> 1) * 8 + (i & 1)) & 1) {
            const int vector = (first + i) >> 1;
            float x, y;
            load_shared_f32x2(factors + i * 32, x, y);
            const uint32_t f = f16x2_of(x, y);
#pragma unroll
            for (int m = 0; m < kBlocks; m++) {
                if (done <= static_cast<uint32_t>(page_of(m, vector)))
                    continue;
                uint32_t h[2];
                if (m * kVectors + vector < kSharedSums) {
                    uint32_t at = shared_sums_of_thread() + (m * kVectors + vector) * kSumsVector + (i & 1) * 8;
                    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(h[0]), "=r"(h[1]) : "r"(at) : "memory");
                    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[0]) : "r"(f));
                    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[1]) : "r"(f));
                    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(h[0]), "r"(h[1]) : "memory");
                    continue;
                }
                uint64_t at = sums + vector_at(m, vector) + (i & 1) * 8;
                asm volatile("ld.relaxed.gpu.global.v2.b32 {%0, %1}, [%2];"
                             : "=r"(h[0]), "=r"(h[1])
                             : "l"(at)
                             : "memory");
                asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[0]) : "r"(f));
                asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(h[1]) : "r"(f));
                asm volatile("st.relaxed.gpu.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(h[0]), "r"(h[1]) : "memory");
            }
        }
}

/* All of it back into O, at the end of a unit. */
__device__ __forceinline__ void collect(float (&o)[kBlocks][kValues], uint64_t sums, uint32_t done)
{
    constexpr float back = 1 / kSumScale;
#pragma unroll
    for (int v0 = 0; v0 < static_cast<int>(kWindow); v0 += 2) {
        __syncwarp(); /* loads do not move up across it */
        uint32_t h[4][4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int page = v0 + k / 2, index = page + k % 2 * static_cast<int>(kWindow);
            if (index < kSharedSums && done > static_cast<uint32_t>(page))
                load_shared_16(shared_sums_of_thread() + index * kSumsVector, h[k]);
            else if (index < kAllVectors && done > static_cast<uint32_t>(page))
                asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(h[k][0]), "=r"(h[k][1]), "=r"(h[k][2]), "=r"(h[k][3])
                             : "l"(sums + vector_at(block_of(index), vector_of(index)))
                             : "memory");
            else
                h[k][0] = h[k][1] = h[k][2] = h[k][3] = 0;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int index = v0 + k / 2 + k % 2 * static_cast<int>(kWindow);
            if (index >= kAllVectors)
                continue;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int m = block_of(index), i = vector_of(index);
                float &x = o[m][8 * i + 2 * e], &y = o[m][8 * i + 2 * e + 1], low, high;
                f32_of(h[k][e], low, high);
                x = fmaf(low, back, x);
                y = fmaf(high, back, y);
            }
        }
    }
}

} // namespace mla::sm90

#endif
