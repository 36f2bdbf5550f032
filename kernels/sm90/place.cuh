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

/* Units lists[cluster] to lists[cluster + 1] of the launch are this cluster's. */
__device__ __forceinline__ uint32_t cluster_of_cta()
{
    return cta() / kCtas;
}

__device__ __forceinline__ uint32_t rank_of_cta()
{
    return cta() % kCtas;
}

/* Shared addresses are those of the cluster's window, in which CTA r's memory begins at r << 24: what is added to a
 * place of config.cuh. Operand descriptors hold 18 bits only and do without. */
__device__ __forceinline__ uint32_t window_of_cta()
{
    return rank_of_cta() << 24;
}

/* The first unit of cluster_of_cta() + next. */
__device__ __forceinline__ uint32_t first_unit(const mla_sm90_launch &launch, uint32_t next)
{
    return reinterpret_cast<const uint32_t *>(launch.lists)[cluster_of_cta() + next];
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

/* Of the two groups of a role. Both run the same code: four copies of it do not fit the instruction cache. */
__device__ __forceinline__ uint32_t group()
{
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t >> 7 & 1;
}

/* A page of the stream, for the QK groups. */
struct PageOfUnit {
    uint32_t g;
    bool masked;
    uint32_t flags;
};

/* What they have of a row at the end of a unit, in terms of reference. */
struct RowSums {
    float rounded;   /* sum of P as rounded to e4m3: what O is divided by */
    float exact;     /* and before rounding: what the LSE is made of */
    float reference; /* log2 units */
};

/* A thread finds its first row's float in an array of 64 of its QK group's rows here; its second row's 8 further on. */
__device__ __forceinline__ uint32_t place_of_row(uint32_t array)
{
    uint32_t t = thread_of_group();
    return array + ((t >> 5) * 16 + (t >> 2 & 7)) * 4;
}

} // namespace mla::sm90

#endif
