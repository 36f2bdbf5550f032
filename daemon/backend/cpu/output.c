#include "daemon/backend/cpu/output.h"

#include <string.h>

#include "daemon/backend/cpu/vec.h"

#define V_DIM MLA_ABI_V_DIM

void *cpu_tensor_row(const struct mla_abi_tensor *tensor, uint32_t seq_of_job, uint32_t first_token, uint32_t token,
                     uint32_t head)
{
    /* Modulo 2^64: of strides that were checked only the sum is sure to fit (a first sequence may be empty). */
    uint64_t offset = head * (uint64_t)tensor->head_stride;
    if (tensor->compact)
        offset += ((uint64_t)first_token + token) * (uint64_t)tensor->token_stride;
    else
        offset += seq_of_job * (uint64_t)tensor->seq_stride + token * (uint64_t)tensor->token_stride;
    return (void *)(uintptr_t)(tensor->base + offset);
}

void cpu_output_row(const struct mla_abi_job *job, const struct mla_abi_seq *seq, uint32_t seq_of_job, uint32_t row,
                    float *o, float lse)
{
    uint32_t token = row / job->heads;
    uint32_t head = row % job->heads;
    void *out = cpu_tensor_row(&job->o, seq_of_job, seq->first_token, token, head);
    vec_scale(o, V_DIM, job->kv_scale);
    switch (job->out_type) {
    case MLA_ABI_OUT_E4M3:
        vec_scale(o, V_DIM, job->inv_out_scale);
        vec_f32_to_e4m3(o, out, V_DIM);
        break;
    case MLA_ABI_OUT_BF16:
        vec_f32_to_bf16(o, out, V_DIM);
        break;
    default:
        memcpy(out, o, V_DIM * sizeof *o);
    }
    if (job->lse.base != 0)
        memcpy(cpu_tensor_row(&job->lse, seq_of_job, seq->first_token, token, head), &lse, sizeof lse);
}
