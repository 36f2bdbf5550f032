/* Asynchronous copies from global to shared memory, prefetches, and loads past L1. One instruction per function. */
#ifndef MLA_KERNELS_PTX_COPY_CUH
#define MLA_KERNELS_PTX_COPY_CUH

#include <stdint.h>

namespace mla
{

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* 16 bytes past L1; bytes < 16: only so many are read, the rest of the 16 becomes zeros. */
__device__ __forceinline__ void cp_async_16(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All of this thread's copies have arrived. */
__device__ __forceinline__ void cp_async_wait_all()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Whatever an earlier kernel has left of it in L1. */
__device__ __forceinline__ uint4 load_l2_16(const void *from)
{
    uint4 v;
    asm volatile("ld.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ void prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

} // namespace mla

#endif
