/* One warp that waits for a launch's word: small enough to stand beside most of what others have on the SM meanwhile,
 * and alone, so that its verdict is the only one. See park.h. */
#ifndef MLA_KERNELS_SM90_PARK_CUH
#define MLA_KERNELS_SM90_PARK_CUH

#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/word.cuh"
#include "kernels/sm90/launch.h"
#include "kernels/sm90/park.h"

namespace mla::sm90
{

constexpr uint32_t kAll = 0xffffffffu;

/* Lane 0 reads the order, lane 1 the word, in one load: what is on its way over the bus is what the time is made of. An
 * order to leave wins over the word, the word over the end of time. */
__device__ __forceinline__ uint32_t wait(const mla_sm90_park &park)
{
    bool reads_ready = threadIdx.x == 1 && park.ready != 0;
    uint64_t begun = global_time();
    for (;;) {
        uint64_t word = system_load(reads_ready ? park.ready : park.order);
        bool leave = !reads_ready && word == MLA_SM90_PARK_WORD(park.number, MLA_SM90_PARK_LEAVE);
        bool run = reads_ready ? word - park.ready_value < MLA_SM90_PARK_ABORT_DISTANCE
                               : word == MLA_SM90_PARK_WORD(park.number, MLA_SM90_PARK_RUN);
        if (__any_sync(kAll, leave))
            return MLA_SM90_PARK_LEAVE;
        if (__any_sync(kAll, run))
            return MLA_SM90_PARK_RUN;
        if (__any_sync(kAll, global_time() - begun >= park.most_ns))
            return MLA_SM90_PARK_LEAVE;
    }
}

/* No keys, no words, all rows in one place. Whoever copies the records here again has them as they were. */
__device__ __forceinline__ void let_go(const mla_sm90_park &park)
{
    for (uint32_t j = threadIdx.x; j < park.n_jobs; j += 32) {
        mla_abi_job &job = reinterpret_cast<mla_abi_job *>(park.jobs)[j];
        job.o.base = park.out;
        job.o.seq_stride = job.o.token_stride = job.o.head_stride = 0;
        job.lse.base = job.kv_len = job.visible = job.user_status = 0;
        job.mask = MLA_ABI_MASK_NONE;
    }
    for (uint32_t s = threadIdx.x; s < park.n_seqs; s += 32) {
        mla_sm90_seq &seq = reinterpret_cast<mla_sm90_seq *>(park.seqs)[s];
        seq.unit.out = park.out;
        seq.unit.out_token = seq.unit.out_head = 0;
        seq.unit.lse = seq.kv_len = seq.visible = seq.user_status = 0;
        seq.kv_len_max = 0;
        seq.mask = MLA_ABI_MASK_NONE;
        reinterpret_cast<mla_abi_seq *>(park.abi_seqs)[s].kv_len_max = 0;
    }
}

} // namespace mla::sm90

/* The prepare kernel may begin before this one has quite ended, and waits for that itself. */
extern "C" __global__ void __launch_bounds__(32) mla_prepare_sm90_park(const __grid_constant__ mla_sm90_park park)
{
    using namespace mla;
    using namespace mla::sm90;
    uint32_t verdict = wait(park);
    system_fence();
    if (verdict == MLA_SM90_PARK_RUN)
        grid_launch_dependents();
    else
        let_go(park);
    if (threadIdx.x == 0)
        system_store(park.verdict, MLA_SM90_PARK_WORD(park.number, verdict));
}

#endif
