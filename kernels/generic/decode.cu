/* The plain split-KV decode kernel: one CTA per 64 rows of an item, for every part from compute capability 8.0 on. */
#include "kernels/device/output.cuh"
#include "kernels/generic/attend.cuh"
#include "kernels/generic/load.cuh"
#include "kernels/generic/setup.cuh"

namespace mla
{

/* Sums of the quads and halves, then the rows' factors and LSE. */
__device__ __forceinline__ void finish_rows(const mla_abi_launch &launch, Shared &s, const View &v,
                                            const Softmax &softmax)
{
    uint32_t warp = threadIdx.x / 32;
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t row = warp % 4 * 16 + lane / 4 + i * 8;
        float sum = softmax.sum[i];
        float rounded = softmax.rounded[i];
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            sum += __shfl_xor_sync(~0u, sum, step);
            rounded += __shfl_xor_sync(~0u, rounded, step);
        }
        if (lane % 4 == 0) {
            bool poisoned = softmax.poisoned[i] || (s.nan_rows >> row & 1) != 0;
            s.row_sum[warp / 4][0][row] = sum;
            s.row_sum[warp / 4][1][row] = rounded;
            if (warp < 4)
                s.row_max[0][row] = poisoned ? NAN : softmax.top[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < kRows) {
        uint32_t row = threadIdx.x;
        float top = s.row_max[0][row];
        float sum = s.row_sum[0][0][row] + s.row_sum[1][0][row];
        float rounded = s.row_sum[0][1][row] + s.row_sum[1][1][row];
        float lse = -INFINITY;
        float scale = 0;
        if (sum != 0) { /* a row that sees a key has a weight of 2^15 */
            lse = top * kLn2 + logf(sum * kPUnit);
            scale = (top == top ? 1.0f : NAN) / (rounded * kCodeScale);
        }
        s.row_scale[row] = scale;
        if (row < v.rows) {
            uint32_t in_tile = v.first + row;
            if (v.item.partial_row != MLA_ABI_NO_PARTIAL) {
                reinterpret_cast<float *>(launch.partial_lse)[static_cast<uint64_t>(v.item.partial_row) + in_tile] =
                    lse;
            } else if (s.job.lse.base != 0) {
                Row at(s.job, v.tile.first_row + in_tile);
                *reinterpret_cast<float *>(row_address(s.job.lse, v.seq_of_job, v.seq.first_token, at.token, at.head)) =
                    lse;
            }
        }
    }
    __syncthreads();
}

__device__ __forceinline__ void write_output(const Shared &s, const View &v, const Output &o)
{
    uint32_t lane = threadIdx.x % 32;
    uint32_t first_column = threadIdx.x / 32 * 64 + lane % 4 * 4;
    bool partial = v.item.partial_row != MLA_ABI_NO_PARTIAL;
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t row = m * 16 + i * 8 + lane / 4;
            uint64_t to = s.out_row[row];
            float scale = s.row_scale[row];
            if (to == 0)
                continue;
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float4 value = make_float4(o[m][c][0][2 * i] * scale, o[m][c][1][2 * i] * scale,
                                           o[m][c][0][2 * i + 1] * scale, o[m][c][1][2 * i + 1] * scale);
                uint32_t column = first_column + c * 16;
                if (partial)
                    *reinterpret_cast<float4 *>(to + 4ull * column) = value;
                else
                    store_output(Elements(s.job), to, column, value);
            }
        }
    }
}

} // namespace mla

extern "C" __global__ void __launch_bounds__(GENERIC_THREADS, 1)
    mla_generic_decode(const __grid_constant__ mla_abi_launch launch)
{
    using namespace mla;
    extern __shared__ __align__(16) uint8_t memory[];
    Shared &s = *reinterpret_cast<Shared *>(memory);
    View v;
    if (!read_records(launch, s, v) || !read_length(s, v) || !read_mask(s, v))
        return;
    find_outputs(launch, s, v);

    Output o;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int e = 0; e < 2; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    o[m][c][e][i] = 0;
    Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}, {0, 0}, {false, false}};
    float scale = s.job.score_scale * (kLog2E / (kCodeScale * kCodeScale));

    if (v.begin < v.end) {
        Pages pages(s, v);
        if (!pages.refill(s, v))
            return;
        load_q(s, v);
        load_page(s, s.k[0], pages.address(s), s.limit - static_cast<int32_t>(v.begin * MLA_ABI_PAGE_TOKENS));
        cp_async_commit();
        uint32_t row = threadIdx.x / 4;
        for (uint32_t page = v.begin; page < v.end; page++) {
            uint32_t parity = (page - v.begin) & 1;
            uint8_t *stage = s.k[kStages == 2 ? parity : 0];
            cp_async_wait_all();
            if (clear_nan(stage))
                atomicOr(&s.nan_keys[parity], 1ull << row);
            if (page == v.begin && clear_nan(s.q))
                atomicOr(&s.nan_rows, 1ull << row);
            __syncthreads(); /* the page and Q are here; with two stages, the last page is no longer needed */

            bool more = page + 1 < v.end;
            uint64_t next = 0;
            int32_t next_keys = s.limit - static_cast<int32_t>((page + 1) * MLA_ABI_PAGE_TOKENS);
            if (more) {
                if (!pages.advance(s, v))
                    return;
                next = pages.address(s);
                if (kStages == 2) {
                    load_page(s, s.k[parity ^ 1], next, next_keys);
                    cp_async_commit();
                } else {
                    prefetch_page(s, next, next_keys);
                }
            }

            float score[4][4];
            page_scores(s.q, stage, score);
            mask_scores(s, page, scale, score, softmax, s.nan_keys[parity]);
            if (threadIdx.x == 0)
                s.nan_keys[parity ^ 1] = 0;
            __syncthreads(); /* maxima of both halves */
            page_weights(s, score, softmax);
            __syncthreads(); /* P and factors */
            add_page(s, stage, o);
            if (kStages == 1 && more) {
                __syncthreads(); /* the page is no longer needed */
                load_page(s, stage, next, next_keys);
                cp_async_commit();
            }
        }
        __syncthreads();
    }
    finish_rows(launch, s, v, softmax);
    write_output(s, v, o);
}
