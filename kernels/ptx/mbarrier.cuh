/* Transaction barriers in shared memory. Addresses are of the shared window; _cluster ones come from map_shared(). One
 * instruction per function (the waits are loops around one). */
#ifndef MLA_KERNELS_PTX_MBARRIER_CUH
#define MLA_KERNELS_PTX_MBARRIER_CUH

#include <stdint.h>

namespace mla
{

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/* Initialised barriers become visible to the cluster. */
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Of this CTA. */
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/* Also of another CTA of the cluster. Orders nothing of the other CTA's: for "empty" signals only. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Until the phase of this parity has ended. A fresh barrier's phase before the first counts as ended (parity 1). */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=:\n}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

} // namespace mla

#endif
