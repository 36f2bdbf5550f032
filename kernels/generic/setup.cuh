/* Before the first page: records, the length, the mask. */
#ifndef MLA_KERNELS_GENERIC_SETUP_CUH
#define MLA_KERNELS_GENERIC_SETUP_CUH

#include "kernels/device/records.cuh"
#include "kernels/generic/shared.cuh"

namespace mla
{

/* False when this CTA has no rows. */
__device__ __forceinline__ bool read_records(const mla_abi_launch &launch, Shared &s, View &v)
{
    constexpr uint32_t groups = MLA_ABI_TILE_ROWS / kRows;
    v.item = record<mla_abi_item>(launch.items, blockIdx.x / groups);
    v.tile = record<mla_abi_tile>(launch.tiles, v.item.tile);
    v.first = blockIdx.x % groups * kRows;
    if (v.first >= v.tile.rows)
        return false;
    v.rows = min(kRows, v.tile.rows - v.first);
    v.seq = record<mla_abi_seq>(launch.seqs, v.tile.seq);
    const uint32_t *job = reinterpret_cast<const uint32_t *>(&record<mla_abi_job>(launch.jobs, v.seq.job));
    static_assert(sizeof(mla_abi_job) / 4 <= kThreads, "one word a thread");
    if (threadIdx.x < sizeof(mla_abi_job) / 4)
        reinterpret_cast<uint32_t *>(&s.job)[threadIdx.x] = job[threadIdx.x];
    if (threadIdx.x == 0) {
        s.nan_keys[0] = 0;
        s.nan_keys[1] = 0;
        s.nan_rows = 0;
        s.fault_index = kNoFault;
        s.limit = 0;
    }
    __syncthreads();
    v.seq_of_job = v.tile.seq - s.job.first_seq;
    return true;
}

/* The length, read once. False after a fault. */
__device__ __forceinline__ bool read_length(Shared &s, const View &v)
{
    if (threadIdx.x == 0) {
        s.kv_len = static_cast<int32_t>(v.seq.kv_len_max);
        if (s.job.kv_len != 0)
            s.kv_len = read_once(s.job.kv_len, v.seq_of_job);
    }
    __syncthreads();
    if (s.kv_len >= 0 && static_cast<uint32_t>(s.kv_len) <= v.seq.kv_len_max)
        return true;
    if (threadIdx.x == 0)
        report(s.job, v.seq_of_job, kKvLenOutOfRange, 0);
    return false;
}

/* Counts of mask VISIBLE for the tokens of the whole tile: whichever CTA of the tile it is, all of them are checked, so
 * that a tile with a bad count is not worked on at all. False after a fault. */
__device__ __forceinline__ bool read_counts(Shared &s, const View &v)
{
    uint32_t first_token = v.tile.first_row / s.job.heads;
    uint32_t tokens = (v.tile.first_row + v.tile.rows - 1) / s.job.heads - first_token + 1;
    if (threadIdx.x < tokens) {
        uint32_t token = first_token + threadIdx.x;
        int32_t count = read_once(s.job.visible, static_cast<uint64_t>(v.seq.first_token) + token);
        s.token_visible[threadIdx.x] = count;
        if (count < 0 || count > s.kv_len)
            atomicMin(&s.fault_index, token);
    }
    __syncthreads();
    if (s.fault_index == kNoFault)
        return true;
    if (threadIdx.x == 0)
        report(s.job, v.seq_of_job, kVisibleOutOfRange, s.fault_index);
    return false;
}

/* Keys that each row sees, and the pages of this CTA. False after a fault. */
__device__ __forceinline__ bool read_mask(Shared &s, View &v)
{
    static_assert(MLA_ABI_TILE_ROWS <= kThreads && kEntries <= kThreads, "one a thread");
    if (s.job.mask == MLA_ABI_MASK_VISIBLE && !read_counts(s, v))
        return false;
    if (threadIdx.x < kRows) {
        int32_t visible = 0;
        if (threadIdx.x < v.rows) {
            uint32_t token = Row(s.job, v.tile.first_row + v.first + threadIdx.x).token;
            visible = s.kv_len;
            if (s.job.mask == MLA_ABI_MASK_CAUSAL)
                visible = clamp(static_cast<int64_t>(s.kv_len) - v.seq.q_len + token + 1, s.kv_len);
            else if (s.job.mask == MLA_ABI_MASK_VISIBLE)
                visible = s.token_visible[token - v.tile.first_row / s.job.heads];
        }
        s.visible[threadIdx.x] = visible;
        atomicMax(&s.limit, visible);
    }
    __syncthreads();
    v.begin = v.item.page_begin;
    v.end = min(v.item.page_end, (static_cast<uint32_t>(s.limit) + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS);
    return true;
}

/* Where each row of the CTA goes. */
__device__ __forceinline__ void find_outputs(const mla_abi_launch &launch, Shared &s, const View &v)
{
    if (threadIdx.x >= kRows)
        return;
    uint64_t address = 0;
    if (threadIdx.x < v.rows) {
        uint32_t in_tile = v.first + threadIdx.x;
        if (v.item.partial_row == MLA_ABI_NO_PARTIAL) {
            Row row(s.job, v.tile.first_row + in_tile);
            address = row_address(s.job.o, v.seq_of_job, v.seq.first_token, row.token, row.head);
        } else {
            address = launch.partial_o + (static_cast<uint64_t>(v.item.partial_row) + in_tile) * (MLA_ABI_V_DIM * 4u);
        }
    }
    s.out_row[threadIdx.x] = address;
}

} // namespace mla

#endif
