/* Combines the partials of split tiles, and copies status words to where the callers want them.
 *
 * Grid: x a tile's record, then CTAs for the status words of all sequences (mla_abi_launch.flags); y and every y-th
 * group of rows from there on of the tile are a CTA's. A warp has half of a row's columns and asks nobody: what takes
 * time here is one load behind the other, so many rows have to be on their way. Partials of a row are added in their
 * order, whatever the grid.
 */
#include "kernels/device/output.cuh"
#include "kernels/device/records.cuh"
#include "kernels/ptx/grid.cuh"
#include "kernels/sm90/launch.h"

namespace mla
{

constexpr uint32_t kThreads = 128;
constexpr uint32_t kHalf = MLA_ABI_V_DIM / 2; /* columns of a warp, 8 of a lane */
constexpr uint32_t kRowsAtOnce = kThreads / 32 / 2;

/* Eight columns of a partial as a lane has them: of its half those from column(0) and column(1) on, four each. How many
 * partials are on their way at a time, and what they are times O. */
struct InF32 {
    struct Columns {
        float4 v[2];
    };
    static constexpr uint32_t in_flight = 3;
    static constexpr float scale = 1.0f;
    static __device__ __forceinline__ uint32_t column(uint32_t quad)
    {
        return quad * (kHalf / 2) + threadIdx.x % 32 * 4;
    }
    static __device__ __forceinline__ Columns load(uint64_t half)
    {
        return {__ldcs(reinterpret_cast<const float4 *>(half + 4 * column(0))),
                __ldcs(reinterpret_cast<const float4 *>(half + 4 * column(1)))};
    }
    static __device__ __forceinline__ float4 quad(const Columns &c, uint32_t quad)
    {
        return c.v[quad];
    }
    static constexpr uint32_t bytes = 4;
};

struct InF16 {
    struct Columns {
        uint4 v;
    };
    static constexpr uint32_t in_flight = 8;
    static constexpr float scale = kPartialScale;
    static __device__ __forceinline__ uint32_t column(uint32_t quad)
    {
        return threadIdx.x % 32 * 8 + quad * 4;
    }
    static __device__ __forceinline__ Columns load(uint64_t half)
    {
        return {__ldcs(reinterpret_cast<const uint4 *>(half + 2 * column(0)))};
    }
    static __device__ __forceinline__ float4 quad(const Columns &c, uint32_t quad)
    {
        float4 f;
        const uint32_t low = quad == 0 ? c.v.x : c.v.z, high = quad == 0 ? c.v.y : c.v.w;
        asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}"
            : "=f"(f.x), "=f"(f.y)
            : "r"(low));
        asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;}"
            : "=f"(f.z), "=f"(f.w)
            : "r"(high));
        return f;
    }
    static constexpr uint32_t bytes = 2;
};

/* Rows of a tensor of a sequence: of token t and head h at base + t * token + h * head. */
struct Rows {
    uint64_t base; /* 0: none are wanted */
    int64_t token;
    int64_t head;

    Rows() = default;
    __device__ __forceinline__ Rows(const mla_abi_tensor &x, uint32_t seq_of_job, uint32_t first_token)
        : base(x.base == 0 ? 0 : row_address(x, seq_of_job, first_token, 0, 0)), token(x.token_stride),
          head(x.head_stride)
    {
    }
    __device__ __forceinline__ uint64_t at(uint32_t t, uint32_t h) const
    {
        return base + static_cast<uint64_t>(t * token + h * head);
    }
};

/* Where the rows of a tile go, and as what. */
struct Output {
    Rows o;
    Rows lse;
    uint32_t first_row;
    uint32_t heads;
    Elements elements;
    bool fault; /* of the sequence: nothing is written */
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

/* What a CTA has of its tile: abi, and reduce, whose partial_row, n_partials and rows say where its partials are. */
struct AbiTile {
    const mla_abi_launch &abi;
    mla_abi_reduce reduce;

    /* In one load: what follows from a part of it would wait for another. */
    __device__ __forceinline__ AbiTile(const mla_abi_launch &of, uint32_t index) : abi(of)
    {
        uint4 v = record<uint4>(abi.reduces, index);
        reduce = {v.x, v.y, v.z, v.w};
    }
    /* One load after the other, while the first partials are on their way. */
    __device__ __forceinline__ Output output() const
    {
        const mla_abi_tile &tile = record<mla_abi_tile>(abi.tiles, reduce.tile);
        const mla_abi_seq &seq = record<mla_abi_seq>(abi.seqs, tile.seq);
        const mla_abi_job &job = record<mla_abi_job>(abi.jobs, seq.job);
        uint32_t s = tile.seq - job.first_seq;
        Output to;
        to.o = Rows(job.o, s, seq.first_token);
        to.lse = Rows(job.lse, s, seq.first_token);
        to.first_row = tile.first_row;
        to.heads = job.heads;
        to.elements = Elements(job);
        to.fault = record<uint64_t>(job.status, s) != 0;
        return to;
    }
};

/* All in one record. */
struct Sm90Tile {
    const mla_sm90_launch &launch;
    const mla_abi_launch &abi;
    union {
        mla_sm90_reduce reduce;
        uint4 vectors[sizeof(mla_sm90_reduce) / sizeof(uint4)];
    };

    __device__ __forceinline__ Sm90Tile(const mla_sm90_launch &of, uint32_t index) : launch(of), abi(of.abi)
    {
        const uint4 *from = reinterpret_cast<const uint4 *>(&record<mla_sm90_reduce>(launch.reduces, index));
#pragma unroll
        for (uint32_t i = 0; i < sizeof(vectors) / sizeof(uint4); i++)
            vectors[i] = from[i];
    }
    __device__ __forceinline__ Output output() const
    {
        Output to;
        to.o.base = reduce.out;
        to.o.token = reduce.out_token;
        to.o.head = reduce.out_head;
        to.lse.base = reduce.lse;
        to.lse.token = reduce.lse_token;
        to.lse.head = reduce.lse_head;
        to.first_row = reduce.first_row;
        to.heads = reduce.heads;
        to.elements.type = reduce.out_type;
        to.elements.kv_scale = reduce.kv_scale;
        to.elements.inv_out_scale = reduce.inv_out_scale;
        to.fault = record<uint64_t>(launch.faults, reduce.seq) != 0;
        return to;
    }
};

/* Partials of a row, the lane's columns of one half of them. */
template <class Format> struct Partials {
    typedef typename Format::Columns Columns;
    static constexpr uint32_t in_flight = Format::in_flight;
    uint64_t o;
    const float *lse;
    uint32_t rows; /* of the tile: rows between two partials */
    uint32_t n;

    template <class Tile>
    __device__ __forceinline__ Partials(const Tile &tile, uint32_t row, uint32_t half)
        : rows(tile.reduce.rows), n(tile.reduce.n_partials)
    {
        uint64_t first = static_cast<uint64_t>(tile.reduce.partial_row) + row;
        o = tile.abi.partial_o + (first * MLA_ABI_V_DIM + half * kHalf) * Format::bytes;
        lse = reinterpret_cast<const float *>(tile.abi.partial_lse) + first;
    }

    __device__ __forceinline__ float lse_of(uint32_t i) const
    {
        return i < n ? lse[static_cast<uint64_t>(i) * rows] : -INFINITY;
    }

    __device__ __forceinline__ void load(uint32_t first, Columns (&v)[in_flight]) const
    {
#pragma unroll
        for (uint32_t k = 0; k < in_flight; k++) {
            if (first + k >= n)
                break;
            v[k] = Format::load(o + static_cast<uint64_t>(first + k) * rows * (MLA_ABI_V_DIM * Format::bytes));
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

/* Returns the row's LSE; o: the lane's columns, normalised. v: the first partials, which are on their way; mine: the
 * LSE of partial `lane`. */
template <class Format>
__device__ __forceinline__ float reduce_row(const Partials<Format> &p, typename Format::Columns (&v)[Format::in_flight],
                                            float mine, float4 (&o)[2])
{
    uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t in_flight = Format::in_flight;
    float top = top_lse(p, mine);
    o[0] = o[1] = make_float4(0, 0, 0, 0);
    if (top != top || top == -INFINITY) { /* NaN, or no partial saw a key */
        float all = top != top ? NAN : 0.0f;
        o[0] = o[1] = make_float4(all, all, all, all);
        return top;
    }
    float sum = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < p.n; first += 32) { /* a weight for each lane */
        uint32_t n = min(32u, p.n - first);
        if (first != 0)
            mine = p.lse_of(first + lane);
        float weight = lane < n ? expf(mine - top) : 0.0f;
        sum += weight;
#pragma unroll 1
        for (uint32_t i = 0; i < n; i += in_flight) {
            if (first + i != 0)
                p.load(first + i, v);
#pragma unroll
            for (uint32_t k = 0; k < in_flight; k++) {
                if (i + k >= n)
                    break;
                float w = __shfl_sync(~0u, weight, i + k);
                if (w != 0) { /* else it may be no number, of a partial that saw no key */
                    add(o[0], Format::quad(v[k], 0), w);
                    add(o[1], Format::quad(v[k], 1), w);
                }
            }
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(~0u, sum, step);
    float scale = 1.0f / (sum * Format::scale);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        o[q].x *= scale;
        o[q].y *= scale;
        o[q].z *= scale;
        o[q].w *= scale;
    }
    return top + logf(sum);
}

template <class Format>
__device__ __forceinline__ void write_row(const Output &to, uint32_t row, uint32_t half, const float4 (&o)[2],
                                          float lse)
{
    row += to.first_row;
    uint32_t token = row / to.heads, head = row - token * to.heads;
    uint64_t out = to.o.at(token, head);
#pragma unroll
    for (int q = 0; q < 2; q++)
        store_output(to.elements, out, half * kHalf + Format::column(q), o[q]);
    if (half == 0 && threadIdx.x % 32 == 0 && to.lse.base != 0)
        *reinterpret_cast<float *>(to.lse.at(token, head)) = lse;
}

template <class Format, class Tile> __device__ __forceinline__ void reduce(const Tile &tile)
{
    uint32_t warp = threadIdx.x / 32, half = warp % 2;
    Output to;
    bool found = false;
#pragma unroll 1
    for (uint32_t row = blockIdx.y * kRowsAtOnce + warp / 2; row < tile.reduce.rows; row += gridDim.y * kRowsAtOnce) {
        Partials<Format> p(tile, row, half);
        typename Format::Columns v[Format::in_flight];
        float mine = p.lse_of(threadIdx.x % 32);
        p.load(0, v);
        if (!found)
            to = tile.output();
        found = true;
        if (to.fault)
            return;
        float4 o[2];
        float lse = reduce_row<Format>(p, v, mine, o);
        write_row<Format>(to, row, half, o, lse);
    }
}

} // namespace mla

/* Of partials in f32. */
extern "C" __global__ void __launch_bounds__(128, 6) mla_reduce(const __grid_constant__ mla_abi_launch launch)
{
    mla::grid_wait();
    if (blockIdx.x < launch.n_reduces)
        mla::reduce<mla::InF32>(mla::AbiTile(launch, blockIdx.x));
    else if (blockIdx.y == 0)
        mla::copy_status(launch, (blockIdx.x - launch.n_reduces) * mla::kThreads + threadIdx.x);
}

/* In f16, behind the prepare kernel of sm90, which copies status words. */
extern "C" __global__ void __launch_bounds__(128, 6) mla_reduce_f16(const __grid_constant__ mla_sm90_launch launch)
{
    mla::grid_wait();
    mla::reduce<mla::InF16>(mla::Sm90Tile(launch, blockIdx.x));
}
