/* The tuned split-KV kernel of Hopper. See config.cuh for its shape, kernels/NOTES.md for its figures. */
#include "kernels/ptx/grid.cuh"
#include "kernels/sm90/pv.cuh"
#include "kernels/sm90/qk.cuh"

#ifdef MLA_SM90_SHARED_BYTES
static_assert(mla::sm90::smem::dynamic == MLA_SM90_SHARED_BYTES, "what the manifest says");
#endif

extern "C" __global__ void __cluster_dims__(MLA_SM90_CLUSTER, 1, 1) __launch_bounds__(mla::sm90::kThreads, 1)
    mla_decode_sm90(const __grid_constant__ mla_sm90_launch launch)
{
    using namespace mla;
    using namespace mla::sm90;
    extern __shared__ uint8_t raw[];
    if ((shared_address(raw) & 0xffffffu) != smem::base)
        __trap();
    int tid = threadIdx.x;
    uint32_t window = window_of_cta();
    if (tid == 0) {
        for (uint32_t s = 0; s < kStages; s++) {
            mbarrier_init(window + smem::k_full + 8 * s, 1);
            mbarrier_init(window + smem::k_empty + 8 * s, 3 * kCtas); /* of a CTA: a QK thread and both PV groups */
            mbarrier_init(window + smem::p_full + 8 * s, 1);
            mbarrier_init(window + smem::p_empty + 8 * s, 2 * kCtas);
        }
        mbarrier_init(window + smem::scale_full, 1);
        mbarrier_init(window + smem::scale_empty, 2 * kCtas);
        if (kFew)
            for (uint32_t i = 0; i < 3; i++)
                store_shared_u32(window + smem::raises + 4 * i, 0);
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    grid_wait();
    /* Pages and Q are asked for at the same time, and who needs them waits for them. */
    Cursor &cursor = *reinterpret_cast<Cursor *>(raw + (smem::cursor - smem::base));
    if (tid < 32) {
        begin_loads(launch, cursor, tid);
    } else {
        if (tid >= 256 && first_unit(launch, 0) != first_unit(launch, 1))
            begin_unit(unit_at(launch, first_unit(launch, 0)), 0);
        __syncwarp();
        cluster_wait();
    }
    if (tid < 256) {
        registers_grow<kRegistersPv>();
        named_sync(kBarPvAll, 256); /* the load ring is there */
        pv_role(launch);
    } else {
        registers_shrink<kRegistersQk>();
        qk_role(launch, cursor);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
