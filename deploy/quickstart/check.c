#include "deploy/quickstart/check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/reference.h"

static struct ref_tensor packed(const void *base, uint32_t heads, uint32_t row_bytes)
{
    return (struct ref_tensor){
        .base = base, .token_stride = (int64_t)heads * row_bytes, .head_stride = row_bytes, .compact = true};
}

static uint32_t element_bytes(uint32_t out_type)
{
    return out_type == MLA_DTYPE_F32 ? 4 : out_type == MLA_DTYPE_BF16 ? 2 : 1;
}

static int compare(const struct check_job *job, const struct ref_job *ref, struct check_result *result)
{
    size_t rows = (size_t)job->n_seqs * job->q_len * job->heads;
    double *o = calloc(rows * REF_V_DIM, sizeof(*o));
    double *lse = calloc(rows, sizeof(*lse));
    int r = o == NULL || lse == NULL ? -ENOMEM : ref_decode(ref, o, lse, NULL);
    if (r == 0) {
        struct ref_output out = {.out_type = (enum mla_dtype)job->out_type,
                                 .o = packed(job->o, job->heads, REF_V_DIM * element_bytes(job->out_type)),
                                 .lse = packed(job->lse, job->heads, sizeof(float)),
                                 .out_scale = job->out_scale,
                                 .accuracy = job->accuracy};
        struct ref_report report;
        result->right = ref_compare(ref, o, lse, NULL, &out, &report);
        result->rows = report.rows;
        result->error = report.rel_l2;
        result->lse_error = report.max_lse;
        snprintf(result->text, sizeof(result->text), "%s", report.text);
    }
    free(o);
    free(lse);
    return r;
}

int check_answer(const struct check_job *job, struct check_result *result)
{
    uint32_t *q_len = calloc(job->n_seqs, sizeof(*q_len));
    uint64_t *table_first = calloc(job->n_seqs, sizeof(*table_first));
    int r = -ENOMEM;
    if (q_len != NULL && table_first != NULL) {
        for (uint32_t s = 0; s < job->n_seqs; s++) {
            q_len[s] = job->q_len;
            table_first[s] = (uint64_t)s * job->entries_per_seq;
        }
        struct ref_job ref = {.heads = job->heads,
                              .n_seqs = job->n_seqs,
                              .q_len = q_len,
                              .kv_len_max = job->kv_len,
                              .q = packed(job->q, job->heads, REF_QK_DIM),
                              .kv = job->kv,
                              .page_stride = (uint64_t)REF_PAGE_TOKENS * REF_QK_DIM,
                              .row_stride = REF_QK_DIM,
                              .num_pages = job->num_pages,
                              .pages_per_entry = 1,
                              .table = (const int32_t *)(const void *)job->entries,
                              .table_first = table_first,
                              .mask = MLA_MASK_CAUSAL,
                              .softmax_scale = job->softmax_scale,
                              .q_scale = job->q_scale,
                              .kv_scale = job->kv_scale};
        r = compare(job, &ref, result);
    }
    free(q_len);
    free(table_first);
    return r;
}
