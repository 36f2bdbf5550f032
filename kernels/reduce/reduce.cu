/* Combines the partials of split tiles, and copies status words to where the callers want them. A warp has one row;
 * four rows a CTA, then CTAs for the status words of all sequences (mla_abi_launch.flags). */
#include "kernels/device/output.cuh"
#include "kernels/device/records.cuh"

namespace mla
{

constexpr uint32_t kThreads = 128;
constexpr uint32_t kRowsOfCta = kThreads / 32;
constexpr uint32_t kCtasOfTile = MLA_ABI_TILE_ROWS / kRowsOfCta;

__device__ __forceinline__ void copy_status(const mla_abi_launch &launch, uint32_t index)
{
    if (index >= launch.n_seqs)
        return;
    const mla_abi_job &job = record<mla_abi_job>(launch.jobs, record<mla_abi_seq>(launch.seqs, index).job);
    uint32_t s = index - job.first_seq;
    if (job.user_status != 0)
        reinterpret_cast<uint64_t *>(job.user_status)[s] = reinterpret_cast<const uint64_t *>(job.status)[s];
}

/* The largest LSE of a row's partials, or NaN when one of them is. */
__device__ __forceinline__ float top_lse(const float *lse, uint32_t stride, uint32_t n)
{
    float top = -INFINITY;
    bool nan = false;
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        float value = lse[static_cast<uint64_t>(i) * stride];
        nan |= value != value;
        top = fmaxf(top, value);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    return __any_sync(~0u, nan) ? NAN : top;
}

/* Adds weight * partial to the lane's 16 columns: 4 * lane ... of every 128. */
__device__ __forceinline__ void add_partial(float4 (&o)[4], const float *partial, float weight)
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        float4 value = *reinterpret_cast<const float4 *>(partial + k * 128 + threadIdx.x % 32 * 4);
        o[k].x += weight * value.x;
        o[k].y += weight * value.y;
        o[k].z += weight * value.z;
        o[k].w += weight * value.w;
    }
}

__device__ __forceinline__ void reduce_row(const mla_abi_launch &launch, const mla_abi_reduce &reduce, uint32_t row)
{
    uint32_t lane = threadIdx.x % 32;
    const mla_abi_tile &tile = record<mla_abi_tile>(launch.tiles, reduce.tile);
    const mla_abi_seq &seq = record<mla_abi_seq>(launch.seqs, tile.seq);
    const mla_abi_job &job = record<mla_abi_job>(launch.jobs, seq.job);
    uint32_t seq_of_job = tile.seq - job.first_seq;
    if (reinterpret_cast<const uint64_t *>(job.status)[seq_of_job] != 0)
        return;

    const float *lse = reinterpret_cast<const float *>(launch.partial_lse) + reduce.partial_row + row;
    const float *partial = reinterpret_cast<const float *>(launch.partial_o) +
                           (static_cast<uint64_t>(reduce.partial_row) + row) * MLA_ABI_V_DIM;
    float top = top_lse(lse, reduce.rows, reduce.n_partials);
    float4 o[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        o[k] = make_float4(0, 0, 0, 0);
    float sum = 0;
    float result = top; /* NaN, or -infinity: no partial saw a key */
    float scale = top == top ? 0.0f : NAN;
    if (top == top && top != -INFINITY) {
        for (uint32_t first = 0; first < reduce.n_partials; first += 32) {
            uint32_t n = min(32u, reduce.n_partials - first);
            float weight = 0;
            if (lane < n)
                weight = expf(lse[static_cast<uint64_t>(first + lane) * reduce.rows] - top);
            sum += weight;
            const float *from = partial + static_cast<uint64_t>(first) * reduce.rows * MLA_ABI_V_DIM;
            for (uint32_t i = 0; i < n; i++) {
                float w = __shfl_sync(~0u, weight, i);
                if (w != 0)
                    add_partial(o, from + static_cast<uint64_t>(i) * reduce.rows * MLA_ABI_V_DIM, w);
            }
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            sum += __shfl_xor_sync(~0u, sum, step);
        scale = 1.0f / sum;
        result = top + logf(sum);
    }

    Row at(job, tile.first_row + row);
    uint64_t to = row_address(job.o, seq_of_job, seq.first_token, at.token, at.head);
#pragma unroll
    for (int k = 0; k < 4; k++)
        store_output(job, to, k * 128 + lane * 4,
                     make_float4(o[k].x * scale, o[k].y * scale, o[k].z * scale, o[k].w * scale));
    if (lane == 0 && job.lse.base != 0)
        *reinterpret_cast<float *>(row_address(job.lse, seq_of_job, seq.first_token, at.token, at.head)) = result;
}

} // namespace mla

extern "C" __global__ void __launch_bounds__(128) mla_reduce(const __grid_constant__ mla_abi_launch launch)
{
    using namespace mla;
    uint32_t tile_ctas = launch.n_reduces * kCtasOfTile;
    if (blockIdx.x >= tile_ctas) {
        copy_status(launch, (blockIdx.x - tile_ctas) * kThreads + threadIdx.x);
        return;
    }
    const mla_abi_reduce &reduce = record<mla_abi_reduce>(launch.reduces, blockIdx.x / kCtasOfTile);
    uint32_t row = blockIdx.x % kCtasOfTile * kRowsOfCta + threadIdx.x / 32;
    if (row < reduce.rows)
        reduce_row(launch, reduce, row);
}
