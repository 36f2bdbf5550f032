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
    grid_wait();
    Cursor &cursor = *reinterpret_cast<Cursor *>(raw + (smem::cursor - smem::base));
    if (tid == 256) {
        cursor.unit = first_unit(launch, 0);
        cursor.end = first_unit(launch, 1);
        cursor.map = cursor.unit != cursor.end ? unit_at(launch, cursor.unit).map : 0; /* acquired below */
        enter(launch, cursor);
    }
    /* Page ids are asked for before Q, which the scores need no sooner than the first page. */
    bool reads_ids = tid >= 256 && tid < 288, works = first_unit(launch, 0) != first_unit(launch, 1);
    if (reads_ids) {
        __syncwarp();
        refill(launch, cursor, 0, 2 * kRefill, tid - 256);
    }
    if (tid >= 256 && works)
        begin_unit(unit_at(launch, first_unit(launch, 0)), 0);
    if (reads_ids)
        cp_async_wait_all();
    else if ((tid == 288 || tid == 320) && works)
        tensormap_acquire(unit_at(launch, first_unit(launch, 0)).map + (tid == 288 ? 0 : 128));
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    if (tid < 256) {
        registers_grow<kRegistersPv>();
        pv_role(launch);
    } else {
        registers_shrink<kRegistersQk>();
        qk_role(launch, cursor);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
