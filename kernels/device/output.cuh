/* Output elements: four neighbours of a row at a time, scaled and rounded as the job asks for. */
#ifndef MLA_KERNELS_DEVICE_OUTPUT_CUH
#define MLA_KERNELS_DEVICE_OUTPUT_CUH

#include "kernels/abi/abi.h"
#include "kernels/device/numbers.h"

namespace mla
{

/* Partials in f16 are this many times O in units of V, of which 448 is the largest: neither overflow nor subnormals. */
constexpr float kPartialScale = 64.0f;

__device__ __forceinline__ uint32_t e4m3x4_of(float a, float b, float c, float d)
{
#if __CUDA_ARCH__ >= 890
    uint32_t codes;
    asm("{.reg .b16 l, h;\ncvt.rn.satfinite.e4m3x2.f32 l, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 h, %4, %3;\n"
        "mov.b32 %0, {l, h};}"
        : "=r"(codes)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return codes;
#else
    return f32_to_e4m3(a) | f32_to_e4m3(b) << 8 | f32_to_e4m3(c) << 16 | f32_to_e4m3(d) << 24;
#endif
}

/* What a job's output elements are like. */
struct Elements {
    uint32_t type; /* MLA_ABI_OUT_* */
    float kv_scale;
    float inv_out_scale;

    Elements() = default;
    __device__ __forceinline__ explicit Elements(const mla_abi_job &job)
        : type(job.out_type), kv_scale(job.kv_scale), inv_out_scale(job.inv_out_scale)
    {
    }
};

/* Elements column .. column + 3 (column a multiple of 4) of the output row at this address. v is normalised. */
__device__ __forceinline__ void store_output(const Elements &as, uint64_t row, uint32_t column, float4 v)
{
    v.x *= as.kv_scale;
    v.y *= as.kv_scale;
    v.z *= as.kv_scale;
    v.w *= as.kv_scale;
    if (as.type == MLA_ABI_OUT_E4M3) {
        const float s = as.inv_out_scale;
        *reinterpret_cast<uint32_t *>(row + column) = e4m3x4_of(v.x * s, v.y * s, v.z * s, v.w * s);
    } else if (as.type == MLA_ABI_OUT_BF16) {
        uint2 pairs = make_uint2(f32_to_bf16(v.x) | f32_to_bf16(v.y) << 16, f32_to_bf16(v.z) | f32_to_bf16(v.w) << 16);
        *reinterpret_cast<uint2 *>(row + 2ull * column) = pairs;
    } else {
        *reinterpret_cast<float4 *>(row + 4ull * column) = v;
    }
}

} // namespace mla

#endif
