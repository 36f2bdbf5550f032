#include "tests/support/decode_case.h"

#include <stdlib.h>
#include <string.h>

uint64_t dc_fault(enum mla_status code, uint32_t index)
{
    return (uint64_t)code << 32 | index;
}

static const uint8_t *o_row(const struct dc_job *job, uint32_t s, uint32_t t, uint32_t h)
{
    return ref_at(&job->out.o, s, job->first_token[s], t, h);
}

static size_t o_bytes(const struct dc_job *job)
{
    return MLA_ABI_V_DIM * (job->shape.out_type == MLA_DTYPE_E4M3   ? 1u
                            : job->shape.out_type == MLA_DTYPE_BF16 ? 2u
                                                                    : 4u);
}

double dc_o(const struct dc_job *job, uint32_t s, uint32_t t, uint32_t h, uint32_t element)
{
    return ref_element(job->out.out_type, o_row(job, s, t, h), element);
}

float dc_lse(const struct dc_job *job, uint32_t s, uint32_t t, uint32_t h)
{
    float lse;
    memcpy(&lse, ref_at(&job->out.lse, s, job->first_token[s], t, h), sizeof(lse));
    return lse;
}

static void make_reference(struct dc_job *job)
{
    if (job->keep_reference && job->ref_o != NULL)
        return;
    size_t rows = (size_t)job->tokens * job->shape.heads;
    free(job->ref_o);
    free(job->ref_lse);
    free(job->ref_status);
    job->ref_o = calloc(rows * MLA_ABI_V_DIM + 1, sizeof(double));
    job->ref_lse = calloc(rows + 1, sizeof(double));
    job->ref_status = calloc(job->shape.n_seqs + 1u, sizeof(uint64_t));
    ck_assert(job->ref_o != NULL && job->ref_lse != NULL && job->ref_status != NULL);
    ck_assert_int_eq(ref_decode(&job->ref, job->ref_o, job->ref_lse, job->ref_status), 0);
}

bool dc_compare(struct dc_job *job, struct ref_report *report)
{
    make_reference(job);
    return ref_compare(&job->ref, job->ref_o, job->ref_lse, job->ref_status, &job->out, report);
}

/* Bytes of mem outside [row, row + bytes) of every row must be as they were poisoned. */
static void check_canary(const struct dc_job *job, const struct mem *mem, const struct ref_tensor *tensor, size_t bytes,
                         const char *what)
{
    if (mem->host == NULL)
        return;
    uint8_t *rest = malloc(mem->bytes); /* rows are poisoned in it, too */
    ck_assert_ptr_nonnull(rest);
    memcpy(rest, mem->host, mem->bytes);
    for (uint32_t s = 0; s < job->shape.n_seqs; s++)
        for (uint32_t t = 0; t < job->q_len[s]; t++)
            for (uint32_t h = 0; h < job->shape.heads; h++)
                memset(rest + (ref_at(tensor, s, job->first_token[s], t, h) - mem->host), DC_POISON, bytes);
    if (rest[0] != DC_POISON || memcmp(rest, rest + 1, mem->bytes - 1) != 0) {
        size_t i = 0;
        while (rest[i] == DC_POISON)
            i++;
        ck_abort_msg("byte %zu of the memory of %s, which belongs to no row, was written", i, what);
    }
    free(rest);
}

void dc_check_canaries(const struct dc_job *job)
{
    check_canary(job, &job->o_mem, &job->out.o, o_bytes(job), "O");
    check_canary(job, &job->lse_mem, &job->out.lse, sizeof(float), "LSE");
}

void dc_check(struct dc_job *job)
{
    struct ref_report report;
    bool good = dc_compare(job, &report);
    for (uint32_t s = 0; s < job->shape.n_seqs; s++) {
        if (job->status[s] != job->ref_status[s])
            ck_abort_msg("status of sequence %u is %#llx, right is %#llx", s, (unsigned long long)job->status[s],
                         (unsigned long long)job->ref_status[s]);
        if (job->user_status != NULL && job->user_status[s] != job->status[s])
            ck_abort_msg("the caller's status word of sequence %u is %#llx, the daemon's %#llx", s,
                         (unsigned long long)job->user_status[s], (unsigned long long)job->status[s]);
    }
    ck_assert_msg(good, "backend %s: %llu wrong, first: %s (relative L2 %.3g, max %.3g, LSE %.3g)",
                  job->c->rig->facts->name, (unsigned long long)report.bad, report.text, report.rel_l2,
                  report.max_error, report.max_lse);
    dc_check_canaries(job);
}

void dc_check_all(struct dc *c)
{
    for (uint32_t i = 0; i < c->n_jobs; i++)
        dc_check(c->jobs[i]);
}

struct dc_bits dc_bits(const struct dc_job *job)
{
    uint32_t n = job->shape.n_seqs;
    size_t row_bytes = o_bytes(job) + sizeof(float);
    struct dc_bits bits = {.n_seqs = n, .row_bytes = (uint32_t)row_bytes};
    bits.first_row = calloc(n + 1u, sizeof(uint64_t));
    bits.bytes = calloc((size_t)job->tokens * job->shape.heads + 1, row_bytes);
    ck_assert(bits.first_row != NULL && bits.bytes != NULL);
    uint64_t row = 0;
    for (uint32_t s = 0; s < n; s++) {
        bits.first_row[s] = row;
        for (uint32_t t = 0; t < job->q_len[s]; t++) {
            for (uint32_t h = 0; h < job->shape.heads; h++, row++) {
                uint8_t *to = bits.bytes + row * row_bytes;
                memcpy(to, o_row(job, s, t, h), o_bytes(job));
                if (job->out.lse.base != NULL)
                    memcpy(to + o_bytes(job), ref_at(&job->out.lse, s, job->first_token[s], t, h), sizeof(float));
            }
        }
    }
    bits.first_row[n] = row;
    return bits;
}

void dc_bits_free(struct dc_bits *bits)
{
    free(bits->first_row);
    free(bits->bytes);
    memset(bits, 0, sizeof(*bits));
}

bool dc_bits_same_seq(const struct dc_bits *a, uint32_t sa, const struct dc_bits *b, uint32_t sb)
{
    uint64_t rows = a->first_row[sa + 1] - a->first_row[sa];
    if (a->row_bytes != b->row_bytes || rows != b->first_row[sb + 1] - b->first_row[sb])
        return false;
    return memcmp(a->bytes + a->first_row[sa] * a->row_bytes, b->bytes + b->first_row[sb] * b->row_bytes,
                  rows * a->row_bytes) == 0;
}

void dc_assert_same(const struct dc_bits *a, const struct dc_bits *b, const uint64_t *skip, const char *what)
{
    ck_assert_uint_eq(a->n_seqs, b->n_seqs);
    for (uint32_t s = 0; s < a->n_seqs; s++)
        if ((skip == NULL || skip[s] == 0) && !dc_bits_same_seq(a, s, b, s))
            ck_abort_msg("%s: sequence %u is not bit-equal", what, s);
}
