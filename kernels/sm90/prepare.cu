/* One CTA per sequence: reads what device memory decides (once), checks it, resolves page ids and limits, and writes
 * the records of the sequence's units. */
#include "kernels/device/records.cuh"
#include "kernels/sm90/launch.h"

namespace mla::sm90
{

constexpr uint32_t kPrepareThreads = 128;
constexpr uint32_t kNone = 0xffffffffu;
constexpr uint32_t kMapBytes = 256; /* of a job */

struct Sequence {
    const mla_abi_job &job;
    const mla_abi_seq &seq;
    uint32_t of_job; /* index within the job */
    uint32_t kv_len;
    uint32_t pages; /* that some query sees, see resolve_limits() */
};

/* The length, the same for all threads. A length out of range is reported and counts as 0. */
__device__ __forceinline__ uint32_t read_length(const mla_abi_job &job, const mla_abi_seq &seq, uint32_t of_job)
{
    __shared__ int32_t length;
    if (threadIdx.x == 0) {
        length = static_cast<int32_t>(seq.kv_len_max);
        if (job.kv_len != 0)
            length = read_once(job.kv_len, of_job);
        if (length < 0 || static_cast<uint32_t>(length) > seq.kv_len_max) {
            report(job, of_job, kKvLenOutOfRange, 0);
            length = 0;
        }
    }
    __syncthreads();
    return static_cast<uint32_t>(length);
}

/* Keys that each query sees. Returns the most, the same for all threads. */
__device__ __forceinline__ uint32_t resolve_limits(const Sequence &s, uint32_t *limits)
{
    __shared__ uint32_t most;
    if (threadIdx.x == 0)
        most = 0;
    __syncthreads();
    for (uint32_t token = threadIdx.x; token < s.seq.q_len; token += kPrepareThreads) {
        int32_t visible = static_cast<int32_t>(s.kv_len);
        if (s.job.mask == MLA_ABI_MASK_CAUSAL)
            visible = clamp(static_cast<int64_t>(s.kv_len) - s.seq.q_len + token + 1, s.kv_len);
        else if (s.job.mask == MLA_ABI_MASK_VISIBLE) {
            visible = read_once(s.job.visible, static_cast<uint64_t>(s.seq.first_token) + token);
            if (visible < 0 || static_cast<uint32_t>(visible) > s.kv_len) {
                report(s.job, s.of_job, kVisibleOutOfRange, token);
                visible = 0;
            }
        }
        limits[token] = static_cast<uint32_t>(visible);
        atomicMax(&most, static_cast<uint32_t>(visible));
    }
    __syncthreads();
    return most;
}

/* The maps of a job without pages are of one page, so that this is past those, too. */
__device__ __forceinline__ uint32_t page_beyond(const mla_abi_job &job)
{
    return max(job.num_pages, 1u);
}

/* Pages that some query of the sequence sees. A bad entry becomes page_beyond(), for which the copy engine gives zeros.
 */
__device__ __forceinline__ void resolve_pages(const Sequence &s, uint32_t *ids)
{
    uint32_t per_entry = s.job.pages_per_entry;
    uint32_t entries = (s.pages + per_entry - 1) / per_entry;
    /* An entry is good when the pages that it is needed for exist: of the last one, fewer. */
    uint32_t bound = s.job.num_pages / per_entry, last = entries == 0 ? 0 : s.pages - (entries - 1) * per_entry;
    uint32_t last_bound = s.job.num_pages < last ? 0 : (s.job.num_pages - last) / per_entry + 1;
    constexpr uint32_t at_once = 4; /* tables may be in host memory, far away */
    for (uint32_t first = threadIdx.x; first < entries; first += at_once * kPrepareThreads) {
        uint32_t entry[at_once];
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            uint32_t e = first + i * kPrepareThreads;
            entry[i] = e < entries ? static_cast<uint32_t>(read_once(s.job.table, s.seq.table_first + e)) : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < at_once; i++) {
            uint32_t e = first + i * kPrepareThreads;
            if (e >= entries)
                break;
            bool good = entry[i] < (e + 1 == entries ? last_bound : bound);
            if (!good)
                report(s.job, s.of_job, kPageOutOfRange, e);
            for (uint32_t k = 0; k < per_entry && e * per_entry + k < s.pages; k++)
                ids[e * per_entry + k] = good ? entry[i] * per_entry + k : page_beyond(s.job);
        }
    }
}

/* First page (of the sequence) that one of the unit's rows does not see whole. Limits need not be monotone. */
__device__ __forceinline__ uint32_t mask_from(const Sequence &s, const uint32_t *limits, uint32_t row0, uint32_t rows)
{
    uint32_t first = row0 / s.job.heads, last = (row0 + rows - 1) / s.job.heads;
    uint32_t least = kNone;
    for (uint32_t token = first; token <= last; token++)
        least = min(least, limits[token]);
    return least / MLA_ABI_PAGE_TOKENS;
}

__device__ __forceinline__ void place(const mla_abi_tensor &x, const Sequence &s, uint64_t *base, int64_t *token,
                                      int64_t *head)
{
    *base = x.base == 0 ? 0 : row_address(x, s.of_job, s.seq.first_token, 0, 0);
    *token = x.token_stride;
    *head = x.head_stride;
}

__device__ void write_unit(const mla_sm90_launch &launch, const Sequence &s, const uint32_t *limits,
                           const uint32_t *ids, const mla_abi_tile &tile, const mla_abi_item &item, uint32_t half,
                           mla_sm90_unit *out)
{
    mla_sm90_unit u;
    uint32_t end = min(item.page_end, s.pages);
    u.map = launch.map_copies + static_cast<uint64_t>(s.seq.job) * kMapBytes;
    u.first_page = item.page_begin;
    u.n_pages = end > item.page_begin ? end - item.page_begin : 1;
    u.row0 = tile.first_row + half * MLA_SM90_UNIT_ROWS;
    u.rows = min(tile.rows - half * MLA_SM90_UNIT_ROWS, MLA_SM90_UNIT_ROWS);
    uint32_t from = mask_from(s, limits, u.row0, u.rows);
    u.mask_from = from > item.page_begin ? from - item.page_begin : 0;
    u.pages = reinterpret_cast<uint64_t>(ids + item.page_begin);
    if (end <= item.page_begin) { /* nothing to see: one page beyond the plane, masked for all rows */
        u.mask_from = 0;
        u.pages = 0;
    }
    u.limits = reinterpret_cast<uint64_t>(limits);
    place(s.job.q, s, &u.q, &u.q_token, &u.q_head);
    if (s.job.q_rope.base != 0) {
        place(s.job.q_rope, s, &u.q_rope, &u.q_rope_token, &u.q_rope_head);
    } else {
        u.q_rope = u.q + MLA_ABI_V_DIM;
        u.q_rope_token = u.q_token;
        u.q_rope_head = u.q_head;
    }
    u.heads = s.job.heads;
    u.score_scale = s.job.score_scale * 1.4426950408889634f;
    u.beyond = page_beyond(s.job);
    if (item.partial_row == MLA_ABI_NO_PARTIAL) {
        place(s.job.o, s, &u.out, &u.out_token, &u.out_head);
        place(s.job.lse, s, &u.lse, &u.lse_token, &u.lse_head);
        u.out_type = s.job.out_type;
        u.out_scale = s.job.out_type == MLA_ABI_OUT_E4M3 ? s.job.kv_scale * s.job.inv_out_scale : s.job.kv_scale;
    } else {
        /* Row r of the sequence is partial row partial_row + r - first_row. */
        int64_t at = static_cast<int64_t>(item.partial_row) - tile.first_row;
        u.out_head = MLA_ABI_V_DIM * 4;
        u.out_token = u.out_head * s.job.heads;
        u.out = launch.abi.partial_o + static_cast<uint64_t>(at * u.out_head);
        u.lse_head = 4;
        u.lse_token = 4ll * s.job.heads;
        u.lse = launch.abi.partial_lse + static_cast<uint64_t>(at * 4);
        u.out_type = MLA_ABI_OUT_F32;
        u.out_scale = 1.0f;
    }
    *out = u;
}

} // namespace mla::sm90

extern "C" __global__ void __launch_bounds__(128) mla_prepare_sm90(const __grid_constant__ mla_sm90_launch launch)
{
    using namespace mla;
    using namespace mla::sm90;
    uint32_t index = blockIdx.x;
    const mla_abi_seq &seq = record<mla_abi_seq>(launch.abi.seqs, index);
    const mla_abi_job &job = record<mla_abi_job>(launch.abi.jobs, seq.job);
    uint32_t of_job = index - job.first_seq;
    Sequence s{job, seq, of_job, 0, 0};
    uint32_t *ids = reinterpret_cast<uint32_t *>(launch.page_ids) + record<uint32_t>(launch.seq_pages, index);
    uint32_t *limits = reinterpret_cast<uint32_t *>(launch.limits) + record<uint32_t>(launch.seq_tokens, index);
    if (of_job == 0 && threadIdx.x < kMapBytes / 16) {
        uint64_t at = static_cast<uint64_t>(seq.job) * kMapBytes + threadIdx.x * 16;
        *reinterpret_cast<uint4 *>(launch.map_copies + at) = *reinterpret_cast<const uint4 *>(launch.maps + at);
    }
    if (seq.q_len != 0) { /* else nothing of the caller's is read */
        s.kv_len = read_length(job, seq, of_job);
        s.pages = (resolve_limits(s, limits) + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
        resolve_pages(s, ids);
        __syncthreads();
    }
    uint32_t end = record<uint32_t>(launch.seq_tiles, index + 1);
    for (uint32_t t = record<uint32_t>(launch.seq_tiles, index); t < end; t++) {
        const mla_abi_tile &tile = record<mla_abi_tile>(launch.abi.tiles, t);
        uint32_t halves = (tile.rows + MLA_SM90_UNIT_ROWS - 1) / MLA_SM90_UNIT_ROWS;
        for (uint32_t i = threadIdx.x; i < tile.n_items * halves; i += kPrepareThreads) {
            uint32_t item = tile.first_item + i / halves;
            uint32_t unit = record<uint32_t>(launch.item_units, item) + i % halves;
            write_unit(launch, s, limits, ids, tile, record<mla_abi_item>(launch.abi.items, item), i % halves,
                       reinterpret_cast<mla_sm90_unit *>(launch.units) + unit);
        }
    }
    __syncthreads();
    if (threadIdx.x == 0 && job.user_status != 0)
        reinterpret_cast<volatile uint64_t *>(job.user_status)[of_job] =
            reinterpret_cast<volatile uint64_t *>(job.status)[of_job];
}
