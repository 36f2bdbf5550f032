/* Bulk copies by the copy engine. One instruction per function. */
#ifndef MLA_KERNELS_PTX_TMA_CUH
#define MLA_KERNELS_PTX_TMA_CUH

#include <stdint.h>

namespace mla
{

/* A box of a 3-d tensor map to the same shared address, and barrier, of every CTA in mask. */
__device__ __forceinline__ void tma_load_3d_multicast(uint32_t to, uint64_t map, int x, int y, int z, uint32_t barrier,
                                                      uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(mask)
                 : "memory");
}

/* The same to this CTA alone, of what nobody else reads: it leaves the L2 cache before anything else does. */
__device__ __forceinline__ void tma_load_3d_once(uint32_t to, uint64_t map, int x, int y, int z, uint32_t barrier)
{
    asm volatile("{.reg .b64 p;\ncreatepolicy.fractional.L2::evict_first.b64 p, 1.0;\n"
                 "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], p;}" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

/* Shared memory of this CTA to shared memory of another one of the cluster. bytes: a multiple of 16. */
__device__ __forceinline__ void bulk_copy_to_peer(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "r"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* A tensor map that an earlier kernel or copy wrote to global memory may be used by this thread from here on. */
__device__ __forceinline__ void tensormap_acquire(uint64_t map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* Shared memory written by ordinary stores may be read by the copy engine and the tensor cores. */
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

} // namespace mla

#endif
