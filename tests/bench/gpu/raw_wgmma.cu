/* What the tensor cores give when nothing else happens: every SM runs two warpgroups of back-to-back FP8 products of
 * operands in shared memory, 64 x 128 x 32 each. */
#include "kernels/ptx/wgmma.cuh"
#include "tests/bench/gpu/raw_wgmma.h"

namespace mla
{

constexpr uint32_t kAtomRow = 128; /* bytes of a row of an operand: 4 steps of 32 */
constexpr uint32_t kGroup = 1024;  /* of 8 rows */
constexpr uint32_t kSteps = RAW_WGMMA_PRODUCTS;
constexpr uint32_t kBytes = RAW_WGMMA_SHARED_BYTES;

__device__ __forceinline__ void wgmma_m64n128k32_ss(float (&d)[64], uint64_t a, uint64_t b)
{
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
        "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
        "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
        "%57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
          "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
          "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b));
}

/* Random cache bytes go to shared memory as they are: any bytes are a swizzled operand. */
__device__ __forceinline__ void load_operands(unsigned char *shared, const unsigned char *from)
{
    const uint4 *source = reinterpret_cast<const uint4 *>(from + static_cast<uint64_t>(blockIdx.x) * kBytes);
    for (uint32_t i = threadIdx.x; i < kBytes / sizeof(uint4); i += blockDim.x)
        reinterpret_cast<uint4 *>(shared)[i] = source[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
}

} // namespace mla

extern "C" __global__ void __launch_bounds__(RAW_WGMMA_THREADS, 1)
    mla_bench_raw_wgmma(const __grid_constant__ struct raw_wgmma_launch launch)
{
    using namespace mla;
    extern __shared__ __align__(1024) unsigned char shared[];
    load_operands(shared, reinterpret_cast<const unsigned char *>(launch.operands));

    /* Each warpgroup has an A of its own; both share the Bs. */
    uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    uint32_t group = threadIdx.x / 128;
    uint64_t a = wgmma_descriptor(base + group * 64 * kAtomRow, kGroup, WGMMA_SWIZZLE_128);
    uint64_t b = wgmma_descriptor(base + 2 * 64 * kAtomRow, kGroup, WGMMA_SWIZZLE_128);
    float d[64];
#pragma unroll
    for (int i = 0; i < 64; i++)
        d[i] = 0;
    for (uint32_t i = 0; i < launch.loops; i++) {
        wgmma_fence();
#pragma unroll
        for (uint32_t step = 0; step < kSteps; step++)
            wgmma_m64n128k32_ss(d, a + 2 * (step % 4), b + 2 * (step % 4) + step / 4 % 4 * (128 * kAtomRow / 16));
        wgmma_commit();
        wgmma_wait<0>();
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 64; i++)
        sum += d[i];
    reinterpret_cast<float *>(launch.sums)[blockIdx.x * RAW_WGMMA_THREADS + threadIdx.x] = sum;
}
