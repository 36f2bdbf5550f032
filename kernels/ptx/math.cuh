/* Arithmetic that has an instruction of its own. One instruction per function. */
#ifndef MLA_KERNELS_PTX_MATH_CUH
#define MLA_KERNELS_PTX_MATH_CUH

#include <stdint.h>

namespace mla
{

/* 2^x with a relative error of at most 2^-22; 0 for -infinity. */
__device__ __forceinline__ float ex2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* low in the lower half, high in the upper one, rounded to nearest even. */
__device__ __forceinline__ uint32_t f16x2_of(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float f32_of_f16(uint16_t half)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
}

#if __CUDA_ARCH__ >= 890
/* Two e4m3 codes as f16. Exact. */
__device__ __forceinline__ uint32_t f16x2_of_e4m3x2(uint16_t codes)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
}
#endif

} // namespace mla

#endif
