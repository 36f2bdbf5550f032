#include "daemon/backend/cpu/launch.h"

#include "daemon/backend/cpu/reduce.h"

void cpu_launch_items(void *launch, uint32_t worker)
{
    struct cpu_launch *l = launch;
    uint32_t n = l->batch->plan->n_items;
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < n)
        cpu_item_run(l, (uint32_t)i, &l->scratch[worker]);
}

/* Reductions are cut into rows, since a plan may have few tiles with many partials each. */
void cpu_launch_reduces(void *launch, uint32_t worker)
{
    struct cpu_launch *l = launch;
    uint64_t chunks = CPU_TILE_ROWS / CPU_REDUCE_CHUNK_ROWS;
    uint64_t n = l->batch->plan->n_reduces * chunks;
    uint64_t i;
    while ((i = atomic_fetch_add_explicit(&l->next, 1, memory_order_relaxed)) < n)
        cpu_reduce_run(l, &l->batch->plan->reduces[i / chunks], (uint32_t)(i % chunks) * CPU_REDUCE_CHUNK_ROWS,
                       l->scratch[worker].o);
}

static uint64_t *status_word(uint64_t base, uint32_t seq_of_job)
{
    return (uint64_t *)(uintptr_t)base + seq_of_job;
}

void cpu_fault(const struct be_batch *batch, uint32_t seq, enum mla_status code, uint32_t index)
{
    const struct mla_abi_job *job = &batch->jobs[batch->seqs[seq].job];
    uint64_t *word = status_word(job->status, seq - job->first_seq);
    uint64_t fault = (uint64_t)code << 32 | index;
    uint64_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    while ((seen == 0 || fault < seen) &&
           !__atomic_compare_exchange_n(word, &seen, fault, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        continue;
}

void cpu_launch_finish(const struct be_batch *batch)
{
    for (uint32_t j = 0; j < batch->n_jobs; j++) {
        const struct mla_abi_job *job = &batch->jobs[j];
        for (uint32_t s = 0; job->user_status != 0 && s < job->n_seqs; s++)
            __atomic_store_n(status_word(job->user_status, s),
                             __atomic_load_n(status_word(job->status, s), __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    }
    for (uint32_t d = 0; d < batch->n_done; d++)
        __atomic_store_n(batch->done[d].word, batch->done[d].value, __ATOMIC_RELEASE);
}
