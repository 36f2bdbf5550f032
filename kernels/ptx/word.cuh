/* 64-bit words that the host and other contexts write and read, and the time of the device. One instruction per
 * function. */
#ifndef MLA_KERNELS_PTX_WORD_CUH
#define MLA_KERNELS_PTX_WORD_CUH

#include <stdint.h>

namespace mla
{

/* Nothing is ordered by it: system_fence() behind the value that was waited for. */
__device__ __forceinline__ uint64_t system_load(uint64_t address)
{
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

__device__ __forceinline__ void system_store(uint64_t address, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

__device__ __forceinline__ void system_fence()
{
    asm volatile("fence.acq_rel.sys;" ::: "memory");
}

/* Nanoseconds, in steps of up to a microsecond or so. */
__device__ __forceinline__ uint64_t global_time()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

} // namespace mla

#endif
