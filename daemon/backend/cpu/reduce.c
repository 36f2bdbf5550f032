#include "daemon/backend/cpu/reduce.h"

#include <math.h>
#include <string.h>

#include "daemon/backend/cpu/output.h"
#include "daemon/backend/cpu/vec.h"

#define V_DIM MLA_ABI_V_DIM

/* o = sum(w_i * o_i) / sum(w_i) with w_i = exp(lse_i - max); returns the LSE of the whole. A partial without keys has
 * weight 0 and is skipped; a NaN in any partial makes the row NaN. */
static float combine(const struct cpu_launch *launch, const struct mla_abi_reduce *reduce, uint32_t row, float *o)
{
    memset(o, 0, V_DIM * sizeof *o);
    float top = -INFINITY;
    for (uint32_t i = 0; i < reduce->n_partials; i++) {
        float lse = launch->partial_lse[(size_t)reduce->partial_row + (size_t)i * reduce->rows + row];
        if (lse > top || isnan(lse))
            top = lse;
        if (isnan(top))
            break;
    }
    if (isnan(top)) {
        for (uint32_t i = 0; i < V_DIM; i++)
            o[i] = NAN;
        return NAN;
    }
    if (top == -INFINITY)
        return -INFINITY;

    double sum = 0.0;
    for (uint32_t i = 0; i < reduce->n_partials; i++) {
        size_t partial = (size_t)reduce->partial_row + (size_t)i * reduce->rows + row;
        float lse = launch->partial_lse[partial];
        if (lse == -INFINITY)
            continue;
        double weight = exp((double)lse - (double)top);
        sum += weight;
        vec_add_scaled(o, launch->partial_o + partial * V_DIM, V_DIM, (float)weight);
    }
    vec_scale(o, V_DIM, (float)(1.0 / sum));
    return (float)((double)top + log(sum));
}

void cpu_reduce_run(const struct cpu_launch *launch, const struct mla_abi_reduce *reduce, uint32_t first_row, float *o)
{
    const struct be_batch *batch = launch->batch;
    const struct mla_abi_tile *tile = &batch->plan->tiles[reduce->tile];
    const struct mla_abi_seq *seq = &batch->seqs[tile->seq];
    const struct mla_abi_job *job = &batch->jobs[seq->job];
    uint32_t seq_of_job = tile->seq - job->first_seq;
    if (first_row >= reduce->rows ||
        __atomic_load_n((const uint64_t *)(uintptr_t)job->status + seq_of_job, __ATOMIC_RELAXED) != 0)
        return;
    uint32_t end = first_row + CPU_REDUCE_CHUNK_ROWS < reduce->rows ? first_row + CPU_REDUCE_CHUNK_ROWS : reduce->rows;
    for (uint32_t row = first_row; row < end; row++) {
        float lse = combine(launch, reduce, row, o);
        cpu_output_row(job, seq, seq_of_job, tile->first_row + row, o, lse);
    }
}
