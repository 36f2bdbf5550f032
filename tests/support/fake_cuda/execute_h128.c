/* The kernels of kernels/baseline/h128.cu, a row at a time. */
#include <string.h>

#include "proto/status.h"
#include "tests/support/fake_cuda/fake.h"

static char *at(uint64_t address)
{
    return (char *)(uintptr_t)address;
}

/* Of the job's token number index. */
static char *row_of(const struct h128_args *a, const struct mla_abi_tensor *x, uint32_t index, uint32_t head)
{
    const struct h128_token *t = (const struct h128_token *)(void *)at(a->tokens) + index;
    int64_t offset = (int64_t)head * x->head_stride;
    if (x->compact)
        offset += (int64_t)index * x->token_stride;
    else
        offset += (int64_t)t->seq * x->seq_stride + (int64_t)t->token * x->token_stride;
    return at(x->base + (uint64_t)offset);
}

void fake_h128_uses(struct fake_op *found, const struct h128_args *a)
{
    uint64_t rows = (uint64_t)a->n_tokens * H128_HEADS;
    fake_op_use(found, a->q.base, 1, false);
    fake_op_use(found, a->q_rope.base, a->q_rope.base != 0 ? 1 : 0, false);
    fake_op_use(found, a->o.base, a->out_bytes, true);
    fake_op_use(found, a->lse.base, a->lse.base != 0 ? sizeof(float) : 0, true);
    fake_op_use(found, a->status, a->n_seqs * sizeof(uint64_t), true);
    fake_op_use(found, a->padded_q, rows * MLA_ABI_QK_DIM, true);
    fake_op_use(found, a->padded_o, rows * MLA_ABI_V_DIM * a->out_bytes, true);
    fake_op_use(found, a->padded_lse, a->lse.base != 0 ? rows * sizeof(float) : 0, true);
    fake_op_use(found, a->padded_status, a->n_requests * sizeof(uint64_t), true);
    fake_op_use(found, a->tokens, a->n_tokens * sizeof(struct h128_token), false);
    fake_op_use(found, a->first_request, (a->n_seqs + UINT64_C(1)) * sizeof(uint32_t), false);
}

void fake_h128_pack(const struct h128_args *a)
{
    memset(at(a->padded_status), 0, a->n_requests * sizeof(uint64_t));
    for (uint32_t row = 0; row < a->n_tokens * H128_HEADS; row++) {
        uint32_t token = row / H128_HEADS, head = row % H128_HEADS % a->heads;
        char *to = at(a->padded_q + (uint64_t)row * MLA_ABI_QK_DIM);
        const char *from = row_of(a, &a->q, token, head);
        const char *rope = a->q_rope.base != 0 ? row_of(a, &a->q_rope, token, head) : from + MLA_ABI_V_DIM;
        memcpy(to, from, MLA_ABI_V_DIM);
        memcpy(to + MLA_ABI_V_DIM, rope, MLA_ABI_QK_DIM - MLA_ABI_V_DIM);
    }
}

static void merge_status(const struct h128_args *a, uint32_t seq)
{
    const uint32_t *first = (const uint32_t *)(void *)at(a->first_request);
    const uint64_t *padded = (const uint64_t *)(void *)at(a->padded_status);
    uint64_t *status = (uint64_t *)(void *)at(a->status) + seq;
    for (uint32_t r = first[seq]; r < first[seq + 1]; r++) {
        uint64_t fault = padded[r];
        if (fault >> 32 == MLA_VISIBLE_OUT_OF_RANGE)
            fault += (uint64_t)H128_TOKENS * (r - first[seq]);
        if (fault != 0 && (*status == 0 || fault < *status))
            *status = fault;
    }
}

void fake_h128_unpack(const struct h128_args *a)
{
    uint64_t row_bytes = (uint64_t)MLA_ABI_V_DIM * a->out_bytes;
    for (uint32_t s = 0; s < a->n_seqs; s++)
        merge_status(a, s);
    for (uint32_t token = 0; token < a->n_tokens; token++)
        for (uint32_t head = 0; head < a->heads; head++) {
            uint64_t padded = (uint64_t)token * H128_HEADS + head;
            memcpy(row_of(a, &a->o, token, head), at(a->padded_o + padded * row_bytes), row_bytes);
            if (a->lse.base != 0)
                memcpy(row_of(a, &a->lse, token, head), at(a->padded_lse + padded * sizeof(float)), sizeof(float));
        }
}
