#include "tests/bench/gpu/weights.h"

namespace mla
{

/* Of two bf16 in a word: the numbers are the upper halves of floats. */
__device__ __forceinline__ float dot2(uint32_t a, uint32_t b, float sum)
{
    sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
    return fmaf(__uint_as_float(a & 0xffff0000u), __uint_as_float(b & 0xffff0000u), sum);
}

__device__ __forceinline__ float dot8(uint4 a, uint4 b, float sum)
{
    return dot2(a.w, b.w, dot2(a.z, b.z, dot2(a.y, b.y, dot2(a.x, b.x, sum))));
}

} // namespace mla

/* A warp per row; four loads of 16 bytes of each thread are under way at a time. */
extern "C" __global__ void __launch_bounds__(WEIGHTS_THREADS)
    mla_bench_weights(const __grid_constant__ struct weights_launch launch)
{
    constexpr uint32_t kVectors = WEIGHTS_COLUMNS * 2 / sizeof(uint4);
    uint32_t row = blockIdx.x * (WEIGHTS_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= launch.rows)
        return;
    const uint4 *w = reinterpret_cast<const uint4 *>(launch.w) + static_cast<uint64_t>(row) * kVectors;
    const uint4 *x = reinterpret_cast<const uint4 *>(launch.x);
    float sum = 0;
#pragma unroll 4
    for (uint32_t i = lane; i < kVectors; i += 32)
        sum = mla::dot8(__ldcs(w + i), x[i], sum);
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0)
        reinterpret_cast<float *>(launch.y)[row] = sum;
}
