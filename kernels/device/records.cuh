/* What every kernel does with the records of abi.h: addresses of rows, single reads of what the caller may change, and
 * reports of faults. */
#ifndef MLA_KERNELS_DEVICE_RECORDS_CUH
#define MLA_KERNELS_DEVICE_RECORDS_CUH

#include "kernels/abi/abi.h"

namespace mla
{

/* Status codes of single sequences, as in proto/status.h. */
constexpr uint32_t kPageOutOfRange = 401;
constexpr uint32_t kKvLenOutOfRange = 402;
constexpr uint32_t kVisibleOutOfRange = 403;

template <typename T> __device__ __forceinline__ const T &record(uint64_t base, uint32_t index)
{
    return reinterpret_cast<const T *>(base)[index];
}

/* Address of the first element of (s, t, h). */
__device__ __forceinline__ uint64_t row_address(const mla_abi_tensor &x, uint32_t seq_of_job, uint32_t first_token,
                                                uint32_t token, uint32_t head)
{
    int64_t offset = static_cast<int64_t>(head) * x.head_stride;
    if (x.compact)
        offset += (static_cast<int64_t>(first_token) + token) * x.token_stride;
    else
        offset += static_cast<int64_t>(seq_of_job) * x.seq_stride + static_cast<int64_t>(token) * x.token_stride;
    return x.base + static_cast<uint64_t>(offset);
}

/* One load: the owner of the memory may write it at any time, and what was checked must be what is used. */
__device__ __forceinline__ int32_t read_once(uint64_t base, uint64_t index)
{
    return reinterpret_cast<const volatile int32_t *>(base)[index];
}

__device__ __forceinline__ int32_t clamp(int64_t value, int64_t most)
{
    return static_cast<int32_t>(value < 0 ? 0 : value > most ? most : value);
}

/* The smallest code << 32 | index of all that are reported to a status word stays, whatever the order; 0 means none so
 * far. */
__device__ __forceinline__ void report(uint64_t status_word, uint32_t code, uint32_t index)
{
    auto *word = reinterpret_cast<unsigned long long *>(status_word);
    unsigned long long fault = static_cast<unsigned long long>(code) << 32 | index;
    unsigned long long seen = atomicCAS(word, 0ull, fault);
    while (seen != 0 && fault < seen) {
        unsigned long long found = atomicCAS(word, seen, fault);
        if (found == seen)
            break;
        seen = found;
    }
}

__device__ __forceinline__ void report(const mla_abi_job &job, uint32_t seq_of_job, uint32_t code, uint32_t index)
{
    report(job.status + 8ull * seq_of_job, code, index);
}

/* Row of a sequence -> token and head. */
struct Row {
    uint32_t token;
    uint32_t head;
    __device__ __forceinline__ Row(const mla_abi_job &job, uint32_t row) : token(row / job.heads)
    {
        head = row - token * job.heads;
    }
};

} // namespace mla

#endif
