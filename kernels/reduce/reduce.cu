/* Combines the partials of split tiles, and copies status words to where the callers want them.
 *
 * Grid: x a tile's record, then CTAs for the status words of all sequences (mla_abi_launch.flags); y and every y-th row
 * from there on of the tile are a CTA's. Four warps add, 128 columns each; a fifth fetches meanwhile what the output
 * needs, which is one load after the other. Partials of a row are added in their order, whatever the grid.
 */
#include "kernels/device/output.cuh"
#include "kernels/device/records.cuh"
#include "kernels/ptx/grid.cuh"

namespace mla
{

constexpr uint32_t kThreads = 160;
constexpr uint32_t kAdders = 128;

/* Four columns of a partial as they lie, how many a thread has on their way at a time, and what they are times O. */
struct InF32 {
    typedef float4 Columns;
    static constexpr uint32_t in_flight = 8;
    static constexpr float scale = 1.0f;
};

struct InF16 {
    typedef uint2 Columns;
    static constexpr uint32_t in_flight = 16;
    static constexpr float scale = kPartialScale;
};

__device__ __forceinline__ float4 columns(const float4 &v)
{
    return v;
}

__device__ __forceinline__ float4 columns(const uint2 &v)
{
    float4 f;
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}"
        : "=f"(f.x), "=f"(f.y)
        : "r"(v.x));
    asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}"
        : "=f"(f.z), "=f"(f.w)
        : "r"(v.y));
    return f;
}

/* Where the rows of a tile go. */
struct Output {
    mla_abi_job job;
    uint64_t fault; /* status word of the sequence */
    uint32_t first_row;
    uint32_t first_token;
    uint32_t seq_of_job;
};

__device__ __forceinline__ void copy_status(const mla_abi_launch &launch, uint32_t index)
{
    if (index >= launch.n_seqs)
        return;
    const mla_abi_job &job = record<mla_abi_job>(launch.jobs, record<mla_abi_seq>(launch.seqs, index).job);
    uint32_t s = index - job.first_seq;
    if (job.user_status != 0)
        reinterpret_cast<uint64_t *>(job.user_status)[s] = reinterpret_cast<const uint64_t *>(job.status)[s];
}

/* In one load: what follows from a part of it would wait for another. */
__device__ __forceinline__ mla_abi_reduce read_reduce(const mla_abi_launch &launch, uint32_t index)
{
    uint4 v = record<uint4>(launch.reduces, index);
    return {v.x, v.y, v.z, v.w};
}

/* A warp. */
__device__ __forceinline__ void fetch_output(const mla_abi_launch &launch, const mla_abi_reduce &reduce, Output &to)
{
    uint32_t lane = threadIdx.x % 32;
    mla_abi_tile tile = record<mla_abi_tile>(launch.tiles, reduce.tile);
    mla_abi_seq seq = record<mla_abi_seq>(launch.seqs, tile.seq);
    const mla_abi_job &job = record<mla_abi_job>(launch.jobs, seq.job);
    for (uint32_t i = lane; i < sizeof job / 8; i += 32)
        reinterpret_cast<uint64_t *>(&to.job)[i] = reinterpret_cast<const uint64_t *>(&job)[i];
    if (lane == 0) {
        to.seq_of_job = tile.seq - job.first_seq;
        to.fault = reinterpret_cast<const uint64_t *>(job.status)[to.seq_of_job];
        to.first_row = tile.first_row;
        to.first_token = seq.first_token;
    }
}

/* Partials of a row, the thread's four columns of them. */
template <class Format> struct Partials {
    typedef typename Format::Columns Columns;
    static constexpr uint32_t in_flight = Format::in_flight;
    const Columns *o;
    const float *lse;
    uint32_t rows; /* of the tile: rows between two partials */
    uint32_t n;

    __device__ __forceinline__ Partials(const mla_abi_launch &launch, const mla_abi_reduce &reduce, uint32_t row)
        : rows(reduce.rows), n(reduce.n_partials)
    {
        uint64_t first = static_cast<uint64_t>(reduce.partial_row) + row;
        o = reinterpret_cast<const Columns *>(launch.partial_o) + first * (MLA_ABI_V_DIM / 4) + threadIdx.x;
        lse = reinterpret_cast<const float *>(launch.partial_lse) + first;
    }

    __device__ __forceinline__ float lse_of(uint32_t i) const
    {
        return i < n ? lse[static_cast<uint64_t>(i) * rows] : -INFINITY;
    }

    __device__ __forceinline__ void load(uint32_t first, Columns (&v)[in_flight]) const
    {
#pragma unroll
        for (uint32_t k = 0; k < in_flight; k++) {
            v[k] = Columns{};
            if (first + k < n)
                v[k] = __ldcs(o + static_cast<uint64_t>(first + k) * rows * (MLA_ABI_V_DIM / 4));
        }
    }
};

/* The largest LSE of a row's partials, or NaN when one of them is. mine: the lane's first. */
template <class Format> __device__ __forceinline__ float top_lse(const Partials<Format> &p, float mine)
{
    float top = mine;
    bool nan = mine != mine;
    for (uint32_t i = 32 + threadIdx.x % 32; i < p.n; i += 32) {
        float value = p.lse_of(i);
        nan |= value != value;
        top = fmaxf(top, value);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, step));
    return __any_sync(~0u, nan) ? NAN : top;
}

__device__ __forceinline__ void add(float4 &o, const float4 &v, float weight)
{
    o.x += weight * v.x;
    o.y += weight * v.y;
    o.z += weight * v.z;
    o.w += weight * v.w;
}

/* Returns the row's LSE; o: its four columns, normalised. A warp. */
template <class Format> __device__ __forceinline__ float reduce_row(const Partials<Format> &p, float4 &o)
{
    uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t in_flight = Format::in_flight;
    typename Format::Columns v[in_flight];
    float value = p.lse_of(lane);
    p.load(0, v); /* on their way while the weights are made */
    float top = top_lse(p, value);
    o = make_float4(0, 0, 0, 0);
    if (top != top || top == -INFINITY) { /* NaN, or no partial saw a key */
        o.x = o.y = o.z = o.w = top != top ? NAN : 0.0f;
        return top;
    }
    float sum = 0;
    for (uint32_t first = 0; first < p.n; first += 32) {
        if (first != 0)
            value = p.lse_of(first + lane);
        float weight = first + lane < p.n ? expf(value - top) : 0.0f;
        sum += weight;
        for (uint32_t i = 0; i < 32 && first + i < p.n; i += in_flight) {
            if (first + i != 0)
                p.load(first + i, v);
#pragma unroll
            for (uint32_t k = 0; k < in_flight; k++) {
                float w = __shfl_sync(~0u, weight, i + k);
                if (w != 0)
                    add(o, columns(v[k]), w);
            }
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    float scale = 1.0f / (sum * Format::scale);
    o.x *= scale;
    o.y *= scale;
    o.z *= scale;
    o.w *= scale;
    return top + logf(sum);
}

__device__ __forceinline__ void write_row(const Output &to, uint32_t row, const float4 &o, float lse)
{
    Row at(to.job, to.first_row + row);
    uint64_t out = row_address(to.job.o, to.seq_of_job, to.first_token, at.token, at.head);
    store_output(to.job, out, threadIdx.x * 4, o);
    if (threadIdx.x == 0 && to.job.lse.base != 0)
        *reinterpret_cast<float *>(row_address(to.job.lse, to.seq_of_job, to.first_token, at.token, at.head)) = lse;
}

template <class Format> __device__ __forceinline__ void reduce(const mla_abi_launch &launch)
{
    __shared__ Output to;
    grid_wait();
    if (blockIdx.x >= launch.n_reduces) {
        if (blockIdx.y == 0)
            copy_status(launch, (blockIdx.x - launch.n_reduces) * kThreads + threadIdx.x);
        return;
    }
    mla_abi_reduce reduce = read_reduce(launch, blockIdx.x);
    uint32_t row = blockIdx.y;
    if (row >= reduce.rows)
        return;
    bool adds = threadIdx.x < kAdders;
    float4 o = make_float4(0, 0, 0, 0);
    float lse = 0;
    if (adds)
        lse = reduce_row(Partials<Format>(launch, reduce, row), o);
    else
        fetch_output(launch, reduce, to);
    __syncthreads();
    if (!adds || to.fault != 0)
        return;
    write_row(to, row, o, lse);
    for (row += gridDim.y; row < reduce.rows; row += gridDim.y) {
        lse = reduce_row(Partials<Format>(launch, reduce, row), o);
        write_row(to, row, o, lse);
    }
}

} // namespace mla

/* Of partials in f32 and in f16. */
extern "C" __global__ void __launch_bounds__(160, 6) mla_reduce(const __grid_constant__ mla_abi_launch launch)
{
    mla::reduce<mla::InF32>(launch);
}

extern "C" __global__ void __launch_bounds__(160, 6) mla_reduce_f16(const __grid_constant__ mla_abi_launch launch)
{
    mla::reduce<mla::InF16>(launch);
}
