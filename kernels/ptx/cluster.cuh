/* Clusters, named barriers and register budgets. One instruction per function. */
#ifndef MLA_KERNELS_PTX_CLUSTER_CUH
#define MLA_KERNELS_PTX_CLUSTER_CUH

#include <stdint.h>

namespace mla
{

/* The address of the same shared variable in CTA rank of the cluster. */
__device__ __forceinline__ uint32_t map_shared(uint32_t address, uint32_t rank)
{
    uint32_t mapped;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}

__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
}

/* Where nothing but barriers that mbarrier_init_fence() made visible is for the other CTAs. */
__device__ __forceinline__ void cluster_arrive_relaxed()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* And whether it holds for any of them. */
__device__ __forceinline__ bool named_sync_or(int id, int threads, bool holds)
{
    uint32_t any;
    asm volatile("{.reg .pred p, q;\nsetp.ne.u32 p, %3, 0;\nbar.red.or.pred q, %1, %2, p;\nselp.u32 %0, 1, 0, q;}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(holds))
                 : "memory");
    return any != 0;
}

__device__ __forceinline__ void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int N> __device__ __forceinline__ void registers_grow()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ __forceinline__ void registers_shrink()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

} // namespace mla

#endif
