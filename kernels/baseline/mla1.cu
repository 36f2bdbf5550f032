/* The baseline mla1: as the Hopper kernel takes its launches, but scores and output products alternate, and V is
 * transposed through shared memory. See mla1_config.cuh. */
#include "kernels/baseline/mla1_feed.cuh"
#include "kernels/baseline/mla1_math.cuh"
#include "kernels/ptx/grid.cuh"

#ifdef MLA_MLA1_SHARED_BYTES
static_assert(mla::mla1::smem::dynamic == MLA_MLA1_SHARED_BYTES, "what the manifest says");
#endif

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(512, 1)
    mla_decode_sm90_mla1(const __grid_constant__ mla_sm90_launch launch)
{
    using namespace mla;
    using namespace mla::mla1;
    extern __shared__ uint8_t raw[];
    uint32_t s = shared_address(raw), role = threadIdx.x >> 7;
    if ((s & 1023) != 0)
        __trap();
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < kStages; stage++) {
            mbarrier_init(s + smem::k_full + 8 * stage, 1);
            mbarrier_init(s + smem::k_empty + 8 * stage, 10);
        }
        mbarrier_init(s + smem::v_full, 128);
        mbarrier_init(s + smem::v_empty, 2);
        mbarrier_init_fence();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    grid_wait();
    if (role < 2) {
        registers_grow<kRegistersMath>();
        math_role(launch, s);
    } else if (role == 2) {
        registers_shrink<kRegistersTranspose>();
        transpose_role(launch, s);
    } else {
        registers_shrink<kRegistersLoad>();
        if (threadIdx.x < 416)
            load_role(launch, s);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
