/* Where a CTA and a thread are. Read anew by every caller, behind the compiler's back: registers are scarcer than
 * special ones, and what it hoists out of the loops it has to spill. */
#ifndef MLA_KERNELS_SM90_PLACE_CUH
#define MLA_KERNELS_SM90_PLACE_CUH

#include "kernels/sm90/config.cuh"
#include "kernels/sm90/launch.h"

namespace mla::sm90
{

__device__ __forceinline__ uint32_t cta()
{
    uint32_t c;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(c));
    return c;
}

/* Units cluster, cluster + clusters, ... of the launch are this cluster's. */
__device__ __forceinline__ uint32_t cluster_of_cta()
{
    return cta() >> 1;
}

__device__ __forceinline__ uint32_t rank_of_cta()
{
    return cta() & 1;
}

/* Shared addresses are those of the cluster's window, in which CTA r's memory begins at r << 24: what is added to a
 * place of config.cuh. Operand descriptors hold 18 bits only and do without. */
__device__ __forceinline__ uint32_t window_of_cta()
{
    return (cta() & 1) << 24;
}

__device__ __forceinline__ uint32_t clusters()
{
    uint32_t n;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(n));
    return n >> 1;
}

__device__ __forceinline__ const mla_sm90_unit &unit_at(const mla_sm90_launch &launch, uint32_t unit)
{
    return reinterpret_cast<const mla_sm90_unit *>(launch.units)[unit];
}

/* Of its warpgroup. */
__device__ __forceinline__ uint32_t thread_of_group()
{
    uint32_t t;
    t = threadIdx.x;
    asm volatile("" : "+r"(t)); /* what follows from it is computed where it is used, not kept */
    return t & 127;
}

} // namespace mla::sm90

#endif
