#include "tests/support/reference.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp8.h"

/* Most of the time of the tests goes into these loops. */
#if defined(__x86_64__)
#define REF_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define REF_CLONES
#endif

bool ref_wants_head(const struct ref_job *job, uint32_t head)
{
    return job->head_step <= 1 || head % job->head_step == 0 || head == job->heads - 1;
}

uint64_t ref_tokens(const struct ref_job *job)
{
    uint64_t n = 0;
    for (uint32_t s = 0; s < job->n_seqs; s++)
        n += job->q_len[s];
    return n;
}

const uint8_t *ref_at(const struct ref_tensor *tensor, uint32_t s, uint64_t first_token, uint32_t t, uint32_t h)
{
    int64_t offset = (int64_t)h * tensor->head_stride;
    if (tensor->compact)
        offset += (int64_t)(first_token + t) * tensor->token_stride;
    else
        offset += (int64_t)s * tensor->seq_stride + (int64_t)t * tensor->token_stride;
    return (const uint8_t *)tensor->base + offset;
}

/* Keys that a token sees, from the mask's definition. */
static uint32_t visible_keys(const struct ref_job *job, uint32_t s, uint64_t first_token, uint32_t t, uint32_t kv_len)
{
    int64_t n = kv_len;
    if (job->mask == MLA_MASK_CAUSAL)
        n = (int64_t)kv_len - job->q_len[s] + t + 1;
    else if (job->mask == MLA_MASK_VISIBLE)
        n = job->visible[first_token + t];
    return n < 0 ? 0 : (uint32_t)n;
}

static uint64_t page_of(const struct ref_job *job, uint32_t s, uint32_t page)
{
    uint64_t entry = page / job->pages_per_entry;
    uint32_t id = (uint32_t)job->table[job->table_first[s] + entry];
    return (uint64_t)id * job->pages_per_entry + page % job->pages_per_entry;
}

static uint64_t fault(enum mla_status code, uint32_t index)
{
    return (uint64_t)code << 32 | index;
}

static uint64_t check_seq(const struct ref_job *job, uint32_t s, uint64_t first_token, uint32_t *kv_len)
{
    *kv_len = job->kv_len_max[s];
    if (job->q_len[s] == 0)
        return 0; /* no row, nothing needed */
    if (job->kv_len != NULL) {
        if (job->kv_len[s] < 0 || (uint32_t)job->kv_len[s] > job->kv_len_max[s])
            return fault(MLA_KV_LEN_OUT_OF_RANGE, 0);
        *kv_len = (uint32_t)job->kv_len[s];
    }
    uint32_t needed = *kv_len; /* keys that some token sees: the last one sees all, but under VISIBLE */
    if (job->mask == MLA_MASK_VISIBLE) {
        needed = 0;
        for (uint32_t t = 0; t < job->q_len[s]; t++) {
            int32_t n = job->visible[first_token + t];
            if (n < 0 || (uint32_t)n > *kv_len)
                return fault(MLA_VISIBLE_OUT_OF_RANGE, t);
            needed = (uint32_t)n > needed ? (uint32_t)n : needed;
        }
    }
    uint32_t pages = (needed + REF_PAGE_TOKENS - 1) / REF_PAGE_TOKENS;
    for (uint32_t p = 0; p < pages; p++)
        if (page_of(job, s, p) >= job->num_pages)
            return fault(MLA_PAGE_OUT_OF_RANGE, p / job->pages_per_entry);
    return 0;
}

struct row {
    uint32_t t;
    uint32_t h;
    uint32_t visible;
    double q[REF_QK_DIM];
    double *score; /* kv_len */
    double *o;
};

static void load_q(const struct ref_job *job, uint32_t s, uint64_t first_token, struct row *row)
{
    const double *value = fp8_table();
    const uint8_t *q = ref_at(&job->q, s, first_token, row->t, row->h);
    uint32_t n = job->q_rope.base != NULL ? REF_V_DIM : REF_QK_DIM;
    for (uint32_t i = 0; i < n; i++)
        row->q[i] = value[q[i]];
    if (n == REF_QK_DIM)
        return;
    q = ref_at(&job->q_rope, s, first_token, row->t, row->h);
    for (uint32_t i = n; i < REF_QK_DIM; i++)
        row->q[i] = value[q[i - n]];
}

REF_CLONES static double dot(const double *a, const double *b)
{
    double sum[16] = {0};
    for (uint32_t i = 0; i < REF_QK_DIM; i += 16)
        for (uint32_t k = 0; k < 16; k++)
            sum[k] += a[i + k] * b[i + k];
    for (uint32_t n = 8; n > 0; n /= 2)
        for (uint32_t k = 0; k < n; k++)
            sum[k] += sum[k + n];
    return sum[0];
}

REF_CLONES static void add_weighted(double *o, double p, const double *v)
{
    for (uint32_t i = 0; i < REF_V_DIM; i++)
        o[i] += p * v[i];
}

/* Scores become exp(score - max), as double; returns their sum and gives max. */
static double weights(double *score, uint32_t n, double *max)
{
    double m = -INFINITY;
    for (uint32_t k = 0; k < n; k++)
        if (!(score[k] <= m))
            m = score[k]; /* NaN, once there, stays: no comparison with it holds, and the next one replaces it */
    double sum = 0;
    for (uint32_t k = 0; k < n; k++) {
        score[k] = exp(score[k] - m);
        sum += score[k];
    }
    *max = m;
    return sum;
}

/* One pass over the keys that any row sees, decoded page by page: fills the rows' scores, or adds the weighted values.
 */
static void pass(const struct ref_job *job, uint32_t s, struct row *rows, size_t n_rows, bool values,
                 double (*page)[REF_QK_DIM])
{
    uint32_t seen = 0;
    for (size_t r = 0; r < n_rows; r++)
        seen = rows[r].visible > seen ? rows[r].visible : seen;
    const double *value = fp8_table();
    double scale = job->softmax_scale * job->q_scale * job->kv_scale;
    for (uint32_t first = 0; first < seen; first += REF_PAGE_TOKENS) {
        const uint8_t *bytes = job->kv + page_of(job, s, first / REF_PAGE_TOKENS) * job->page_stride;
        uint32_t n = seen - first < REF_PAGE_TOKENS ? seen - first : REF_PAGE_TOKENS;
        for (uint32_t k = 0; k < n; k++)
            for (uint32_t i = 0; i < REF_QK_DIM; i++)
                page[k][i] = value[bytes[(size_t)k * job->row_stride + i]];
        for (size_t r = 0; r < n_rows; r++) {
            for (uint32_t k = 0; k < n && first + k < rows[r].visible; k++) {
                if (values)
                    add_weighted(rows[r].o, rows[r].score[first + k], page[k]);
                else
                    rows[r].score[first + k] = scale * dot(rows[r].q, page[k]);
            }
        }
    }
}

static int decode_seq(const struct ref_job *job, uint32_t s, uint64_t first_token, uint32_t kv_len, double *o,
                      double *lse)
{
    size_t n_rows = 0;
    size_t rows_max = (size_t)job->q_len[s] * job->heads;
    struct row *rows = calloc(rows_max + 1, sizeof(*rows));
    double *score = calloc(rows_max * kv_len + 1, sizeof(*score));
    double(*page)[REF_QK_DIM] = calloc(REF_PAGE_TOKENS, sizeof(*page));
    int result = -ENOMEM;
    if (rows == NULL || score == NULL || page == NULL)
        goto out;
    for (uint32_t t = 0; t < job->q_len[s]; t++) {
        for (uint32_t h = 0; h < job->heads; h++) {
            if (!ref_wants_head(job, h))
                continue;
            struct row *row = &rows[n_rows];
            row->t = t;
            row->h = h;
            row->visible = visible_keys(job, s, first_token, t, kv_len);
            row->score = score + n_rows * kv_len;
            row->o = o + ((first_token + t) * job->heads + h) * REF_V_DIM;
            memset(row->o, 0, REF_V_DIM * sizeof(double));
            load_q(job, s, first_token, row);
            n_rows++;
        }
    }
    pass(job, s, rows, n_rows, false, page);
    for (size_t r = 0; r < n_rows; r++) {
        double max;
        double sum = weights(rows[r].score, rows[r].visible, &max);
        for (uint32_t k = 0; k < rows[r].visible; k++)
            rows[r].score[k] *= job->kv_scale / sum;
        if (lse != NULL)
            lse[(first_token + rows[r].t) * job->heads + rows[r].h] = sum == 0 ? -INFINITY : max + log(sum);
    }
    pass(job, s, rows, n_rows, true, page);
    result = 0;
out:
    free(rows);
    free(score);
    free(page);
    return result;
}

int ref_decode(const struct ref_job *job, double *o, double *lse, uint64_t *status)
{
    uint64_t first_token = 0;
    for (uint32_t s = 0; s < job->n_seqs; s++) {
        uint32_t kv_len;
        uint64_t bad = check_seq(job, s, first_token, &kv_len);
        if (status != NULL)
            status[s] = bad;
        if (bad == 0 && job->q_len[s] > 0) {
            int result = decode_seq(job, s, first_token, kv_len, o, lse);
            if (result < 0)
                return result;
        }
        first_token += job->q_len[s];
    }
    return 0;
}

double ref_element(enum mla_dtype out_type, const void *row, uint32_t i)
{
    if (out_type == MLA_DTYPE_E4M3)
        return fp8_decode(((const uint8_t *)row)[i]);
    if (out_type == MLA_DTYPE_BF16) {
        uint16_t bits;
        memcpy(&bits, (const uint8_t *)row + 2 * (size_t)i, sizeof(bits));
        return bf16_decode(bits);
    }
    float f;
    memcpy(&f, (const uint8_t *)row + 4 * (size_t)i, sizeof(f));
    return f;
}

/* Largest error that rounding want to out_type may make. */
static double rounding(enum mla_dtype out_type, double want)
{
    if (out_type == MLA_DTYPE_E4M3)
        return fp8_half_ulp(want);
    return out_type == MLA_DTYPE_BF16 ? bf16_half_ulp(want) : 0;
}

struct place {
    uint32_t s, t, h;
};

static void note(struct ref_report *report, const char *what, struct place at, uint32_t i, double got, double want)
{
    if (report->bad++ == 0)
        snprintf(report->text, sizeof(report->text), "%s[%u] of sequence %u token %u head %u is %.9g, right is %.9g",
                 what, i, at.s, at.t, at.h, got, want);
}

static void compare_row(const struct ref_output *out, const double *o, const void *row, struct place at,
                        struct ref_report *report, double *error2, double *norm2)
{
    double scale = out->out_type == MLA_DTYPE_E4M3 ? out->out_scale : 1.0;
    double mean2 = 0;
    for (uint32_t i = 0; i < REF_V_DIM; i++)
        mean2 += o[i] * o[i] / REF_V_DIM;
    double rms = sqrt(mean2);
    for (uint32_t i = 0; i < REF_V_DIM; i++) {
        double got = ref_element(out->out_type, row, i);
        double want = o[i] / scale;
        if (isnan(want) || isnan(got)) {
            if (!isnan(want) || !isnan(got))
                note(report, "O", at, i, got, want);
            continue;
        }
        if (out->out_type == MLA_DTYPE_E4M3)
            want = fmin(fmax(want, -FP8_MAX), FP8_MAX);
        double error = fabs(got - want);
        if (!(error <= rounding(out->out_type, want) * (1 + 1e-9) + out->accuracy * rms / fabs(scale) + 1e-30))
            note(report, "O", at, i, got, want);
        *error2 += error * scale * error * scale;
        *norm2 += want * scale * want * scale;
        if (rms > 0)
            report->max_error = fmax(report->max_error, error * fabs(scale) / rms);
    }
}

static void compare_lse(const struct ref_output *out, double want, float got, uint32_t keys, struct place at,
                        struct ref_report *report)
{
    if (isnan(want) || isnan(got) || isinf(want)) {
        if (!(isnan(want) && isnan(got)) && !((double)got == want))
            note(report, "LSE", at, 0, got, want);
        return;
    }
    double error = fabs(got - want) / fmax(1.0, fabs(want));
    report->max_lse = fmax(report->max_lse, error);
    bool short_sums = out->accuracy >= REF_ACCURACY_E4M3_P;
    if (!(error <= (short_sums ? REF_LSE_E4M3_P + REF_SCORE_E4M3 / sqrt(fmax(1, keys)) : out->accuracy)))
        note(report, "LSE", at, 0, got, want);
}

bool ref_compare(const struct ref_job *job, const double *o, const double *lse, const uint64_t *skip,
                 const struct ref_output *out, struct ref_report *report)
{
    double error2 = 0;
    double norm2 = 0;
    uint64_t first_token = 0;
    memset(report, 0, sizeof(*report));
    for (uint32_t s = 0; s < job->n_seqs; first_token += job->q_len[s++]) {
        if (skip != NULL && skip[s] != 0)
            continue;
        for (uint32_t t = 0; t < job->q_len[s]; t++) {
            for (uint32_t h = 0; h < job->heads; h++) {
                if (!ref_wants_head(job, h))
                    continue;
                size_t row = (first_token + t) * job->heads + h;
                struct place at = {s, t, h};
                report->rows++;
                compare_row(out, o + row * REF_V_DIM, ref_at(&out->o, s, first_token, t, h), at, report, &error2,
                            &norm2);
                if (out->lse.base == NULL)
                    continue;
                float got;
                memcpy(&got, ref_at(&out->lse, s, first_token, t, h), sizeof(got));
                uint32_t kv_len = job->kv_len != NULL ? (uint32_t)job->kv_len[s] : job->kv_len_max[s];
                compare_lse(out, lse[row], got, visible_keys(job, s, first_token, t, kv_len), at, report);
            }
        }
    }
    report->rel_l2 = norm2 > 0 ? sqrt(error2 / norm2) : sqrt(error2);
    double most = out->out_type == MLA_DTYPE_E4M3 ? REF_L2_E4M3_P_OUT : REF_L2_E4M3_P;
    if (out->accuracy >= REF_ACCURACY_E4M3_P && report->rel_l2 > most && report->bad++ == 0)
        snprintf(report->text, sizeof(report->text), "relative L2 error %.4g instead of at most %g", report->rel_l2,
                 most);
    return report->bad == 0;
}
