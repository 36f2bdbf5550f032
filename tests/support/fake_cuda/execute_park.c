/* The kernel that launches wait behind: kernels/sm90/park.h. */
#include "tests/support/fake_cuda/fake.h"

#define SPIN_NS UINT64_C(20000) /* polled without a pause at first */
#define POLL_NS UINT64_C(20000)

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static uint64_t load(uint64_t address)
{
    return __atomic_load_n((uint64_t *)at(address), __ATOMIC_ACQUIRE);
}

void fake_park_uses(struct fake_op *found, const struct mla_sm90_park *park)
{
    fake_op_use(found, park->jobs, park->n_jobs * sizeof(struct mla_abi_job), true);
    fake_op_use(found, park->abi_seqs, park->n_seqs * sizeof(struct mla_abi_seq), true);
    fake_op_use(found, park->seqs, park->n_seqs * sizeof(struct mla_sm90_seq), true);
    fake_op_use(found, park->order, sizeof(uint64_t), false);
    fake_op_use(found, park->verdict, sizeof(uint64_t), true);
    fake_op_use(found, park->ready, sizeof(uint64_t), false);
    fake_op_use(found, park->out, MLA_SM90_PARK_OUT_BYTES, true);
}

static void let_go(const struct mla_sm90_park *park)
{
    struct mla_abi_job *jobs = at(park->jobs);
    struct mla_abi_seq *abi_seqs = at(park->abi_seqs);
    struct mla_sm90_seq *seqs = at(park->seqs);
    for (uint32_t j = 0; j < park->n_jobs; j++) {
        jobs[j].o = (struct mla_abi_tensor){.base = park->out};
        jobs[j].lse.base = jobs[j].kv_len = jobs[j].visible = jobs[j].user_status = 0;
        jobs[j].mask = MLA_ABI_MASK_NONE;
    }
    for (uint32_t s = 0; s < park->n_seqs; s++) {
        seqs[s].kv_len_max = 0;
        abi_seqs[s].kv_len_max = 0;
    }
}

/* Nothing while the stream is stopped. */
void fake_park(CUstream stream, const struct mla_sm90_park *park)
{
    uint64_t begun = fake_now_ns(), run = MLA_SM90_PARK_WORD(park->number, MLA_SM90_PARK_RUN),
             leave = MLA_SM90_PARK_WORD(park->number, MLA_SM90_PARK_LEAVE), verdict = 0;
    while (verdict == 0 && !fake_stream_stopping(stream)) {
        uint64_t order = load(park->order), waited = fake_now_ns() - begun;
        if (order == leave)
            verdict = leave;
        else if (order == run ||
                 (park->ready != 0 && load(park->ready) - park->ready_value < MLA_SM90_PARK_ABORT_DISTANCE))
            verdict = run;
        else if (waited >= park->most_ns)
            verdict = leave;
        else if (waited > SPIN_NS)
            fake_sleep_ns(POLL_NS);
    }
    if (verdict == leave) { /* takes a while, in which the other order may come, too late */
        let_go(park);
        fake_sleep_ns(10 * POLL_NS);
    }
    if (verdict != 0)
        __atomic_store_n((uint64_t *)at(park->verdict), verdict, __ATOMIC_RELEASE);
}
