/* Q and pages into shared memory. Four threads share a row: thread t of the four copies chunks t, t + 4, ... and later
 * looks through what it copied itself. */
#ifndef MLA_KERNELS_GENERIC_LOAD_CUH
#define MLA_KERNELS_GENERIC_LOAD_CUH

#include "kernels/device/records.cuh"
#include "kernels/generic/shared.cuh"
#include "kernels/ptx/copy.cuh"

namespace mla
{

/* This thread's first chunk in an array of 64 rows; the others are 64 bytes apart. */
__device__ __forceinline__ uint32_t own_chunk()
{
    return generic_chunk(threadIdx.x / 4, threadIdx.x % 4);
}

__device__ __forceinline__ void load_q(Shared &s, const View &v)
{
    uint32_t to = shared_address(s.q) + own_chunk();
    uint32_t row = threadIdx.x / 4;
    uint32_t part = threadIdx.x % 4 * 16;
    uint32_t bytes = row < v.rows ? 16 : 0; /* rows that are not there: zeros, and nothing is read */
    Row at(s.job, v.tile.first_row + v.first + min(row, v.rows - 1));
    uint64_t latent = row_address(s.job.q, v.seq_of_job, v.seq.first_token, at.token, at.head);
    uint64_t rope = latent + MLA_ABI_V_DIM;
    if (s.job.q_rope.base != 0)
        rope = row_address(s.job.q_rope, v.seq_of_job, v.seq.first_token, at.token, at.head);
#pragma unroll
    for (uint32_t i = 0; i < GENERIC_CHUNKS - 1; i++)
        cp_async_16(to + i * 64, reinterpret_cast<const void *>(latent + part + i * 64), bytes);
    cp_async_16(to + (GENERIC_CHUNKS - 1) * 64, reinterpret_cast<const void *>(rope + part), bytes);
}

/* Keys from the limit on become zeros and are not read. */
__device__ __forceinline__ void load_page(const Shared &s, uint8_t *stage, uint64_t page_address, int32_t keys)
{
    uint32_t to = shared_address(stage) + own_chunk();
    uint32_t row = threadIdx.x / 4;
    bool there = static_cast<int32_t>(row) < keys;
    uint32_t bytes = there ? 16 : 0;
    uint64_t from = page_address + static_cast<uint64_t>(there ? row : 0) * s.job.row_stride + threadIdx.x % 4 * 16;
#pragma unroll
    for (uint32_t i = 0; i < GENERIC_CHUNKS; i++)
        cp_async_16(to + i * 64, reinterpret_cast<const void *>(from + i * 64), bytes);
}

/* Asks for the lines of the page's first `keys` rows. */
__device__ __forceinline__ void prefetch_page(const Shared &s, uint64_t page_address, int32_t keys)
{
    uint32_t row = threadIdx.x / 4;
    if (static_cast<int32_t>(row) >= keys)
        return;
    uint64_t from = page_address + static_cast<uint64_t>(row) * s.job.row_stride + threadIdx.x % 4 * 128;
    prefetch_l2(reinterpret_cast<const void *>(from));
    if (threadIdx.x % 4 == 0)
        prefetch_l2(reinterpret_cast<const void *>(from + 512));
}

/* True when what this thread copied into array (Q or a stage) holds a NaN code; each becomes a zero, so that no
 * arithmetic ever meets one: rows that must become NaN are marked instead. After cp_async_wait_all(). */
__device__ __forceinline__ bool clear_nan(uint8_t *array)
{
    uint8_t *own = array + own_chunk();
    bool found = false;
#pragma unroll
    for (uint32_t i = 0; i < GENERIC_CHUNKS; i++) {
        uint4 *chunk = reinterpret_cast<uint4 *>(own + i * 64);
        uint4 w = *chunk;
        uint4 nan = make_uint4(e4m3_nan_bits(w.x), e4m3_nan_bits(w.y), e4m3_nan_bits(w.z), e4m3_nan_bits(w.w));
        if ((nan.x | nan.y | nan.z | nan.w) != 0) {
            found = true;
            *chunk = make_uint4(e4m3_without_nan(w.x, nan.x), e4m3_without_nan(w.y, nan.y),
                                e4m3_without_nan(w.z, nan.z), e4m3_without_nan(w.w, nan.w));
        }
    }
    return found;
}

/* Walks the pages of an item. Table entries are read ahead, each once, and checked before any page of them is used. */
class Pages
{
  public:
    __device__ __forceinline__ Pages(const Shared &s, const View &v) : end_(v.end)
    {
        entry_ = v.begin / s.job.pages_per_entry;
        sub_ = v.begin - entry_ * s.job.pages_per_entry;
        first_ = entry_;
    }

    /* Reads entries from the current one on. False after a fault. All threads; what was read before is no longer in
     * use. */
    __device__ __forceinline__ bool refill(Shared &s, const View &v)
    {
        uint32_t per_entry = s.job.pages_per_entry;
        uint32_t entry = entry_ + threadIdx.x;
        first_ = entry_;
        uint64_t first_page = static_cast<uint64_t>(entry) * per_entry;
        if (threadIdx.x < kEntries && first_page < end_) {
            int32_t value = read_once(s.job.table, v.seq.table_first + entry);
            uint64_t last_sub = min(static_cast<uint64_t>(end_) - first_page, static_cast<uint64_t>(per_entry)) - 1;
            s.entries[threadIdx.x] = value;
            if (value < 0 ||
                static_cast<uint64_t>(static_cast<uint32_t>(value)) * per_entry + last_sub >= s.job.num_pages)
                atomicMin(&s.fault_index, entry);
        }
        __syncthreads();
        if (s.fault_index == kNoFault)
            return true;
        if (threadIdx.x == 0)
            report(s.job, v.seq_of_job, kPageOutOfRange, s.fault_index);
        return false;
    }

    /* The current page's address. */
    __device__ __forceinline__ uint64_t address(const Shared &s) const
    {
        uint64_t value = static_cast<uint32_t>(s.entries[entry_ - first_]);
        return s.job.kv + (value * s.job.pages_per_entry + sub_) * s.job.page_stride;
    }

    /* To the next page; false after a fault. All threads. */
    __device__ __forceinline__ bool advance(Shared &s, const View &v)
    {
        if (++sub_ < s.job.pages_per_entry)
            return true;
        sub_ = 0;
        return ++entry_ - first_ < kEntries || refill(s, v);
    }

  private:
    uint32_t end_;
    uint32_t entry_;
    uint32_t sub_;   /* page within the entry */
    uint32_t first_; /* entry in entries[0] */
};

} // namespace mla

#endif
