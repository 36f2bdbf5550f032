/* 64-bit words that the host and other contexts read. One instruction per function. */
#ifndef MLA_KERNELS_PTX_WORD_CUH
#define MLA_KERNELS_PTX_WORD_CUH

#include <stdint.h>

namespace mla
{

__device__ __forceinline__ void system_store(uint64_t address, uint64_t value)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

} // namespace mla

#endif
