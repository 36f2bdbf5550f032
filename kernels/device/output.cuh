/* Output elements: four neighbours of a row at a time, scaled and rounded as the job asks for. */
#ifndef MLA_KERNELS_DEVICE_OUTPUT_CUH
#define MLA_KERNELS_DEVICE_OUTPUT_CUH

#include "kernels/abi/abi.h"
#include "kernels/device/numbers.h"

namespace mla
{

/* Partials in f16 are this many times O in units of V, of which 448 is the largest: neither overflow nor subnormals. */
constexpr float kPartialScale = 64.0f;

/* Elements column .. column + 3 (column a multiple of 4) of the output row at this address. v is normalised. */
__device__ __forceinline__ void store_output(const mla_abi_job &job, uint64_t row, uint32_t column, float4 v)
{
    v.x *= job.kv_scale;
    v.y *= job.kv_scale;
    v.z *= job.kv_scale;
    v.w *= job.kv_scale;
    if (job.out_type == MLA_ABI_OUT_E4M3) {
        uint32_t codes = f32_to_e4m3(v.x * job.inv_out_scale) | f32_to_e4m3(v.y * job.inv_out_scale) << 8 |
                         f32_to_e4m3(v.z * job.inv_out_scale) << 16 | f32_to_e4m3(v.w * job.inv_out_scale) << 24;
        *reinterpret_cast<uint32_t *>(row + column) = codes;
    } else if (job.out_type == MLA_ABI_OUT_BF16) {
        uint2 pairs = make_uint2(f32_to_bf16(v.x) | f32_to_bf16(v.y) << 16, f32_to_bf16(v.z) | f32_to_bf16(v.w) << 16);
        *reinterpret_cast<uint2 *>(row + 2ull * column) = pairs;
    } else {
        *reinterpret_cast<float4 *>(row + 4ull * column) = v;
    }
}

} // namespace mla

#endif
