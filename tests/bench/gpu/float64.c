#include "tests/bench/gpu/float64.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/threads.h"
#include "tests/support/fp8.h"

#define SCORE_SCALE (1.0 / 24)
#define CHUNK_PAGES 16u

/* A value for each of the rows: what vectors of the CPU hold. Q and O stand with rows innermost for it. */
typedef double rows_of __attribute__((vector_size(FLOAT64_ROWS * sizeof(double))));

/* What a thread has summed up, relative to its largest score. */
struct partial {
    rows_of top, sum;
    rows_of o[MLA_ABI_V_DIM];
    double k[MLA_ABI_PAGE_TOKENS][MLA_ABI_QK_DIM];
};

struct attend {
    const struct pool *pool;
    const struct mla_abi_seq *seq;
    const double *values; /* of the 256 codes */
    uint32_t pages;
    uint32_t limit[FLOAT64_ROWS]; /* keys that a row sees */
    rows_of q[MLA_ABI_QK_DIM];
    struct partial *partials; /* of each thread */
};

static void rescale(struct partial *p, const rows_of *top)
{
    rows_of factor;
    for (int r = 0; r < FLOAT64_ROWS; r++)
        factor[r] = p->top[r] == (*top)[r] ? 1 : exp(p->top[r] - (*top)[r]);
    p->sum *= factor;
    for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++)
        p->o[c] *= factor;
    p->top = *top;
}

static void attend_page(const struct attend *a, struct partial *p, uint32_t page)
{
    const uint8_t *bytes = pool_page(a->pool, a->seq->table_first + page);
    rows_of scores[MLA_ABI_PAGE_TOKENS], top = p->top;
    uint32_t first = page * MLA_ABI_PAGE_TOKENS;
    uint32_t keys = a->seq->kv_len_max - first < MLA_ABI_PAGE_TOKENS ? a->seq->kv_len_max - first : MLA_ABI_PAGE_TOKENS;
    for (uint32_t i = 0; i < keys; i++) {
        double *k = p->k[i];
        rows_of dot = {0};
        for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c++) {
            k[c] = a->values[bytes[i * MLA_ABI_QK_DIM + c]];
            dot += a->q[c] * k[c];
        }
        scores[i] = dot * SCORE_SCALE;
        for (int r = 0; r < FLOAT64_ROWS; r++) {
            if (first + i >= a->limit[r])
                scores[i][r] = -INFINITY;
            top[r] = fmax(top[r], scores[i][r]);
        }
    }
    for (int r = 0; r < FLOAT64_ROWS; r++)
        if (top[r] > p->top[r]) {
            rescale(p, &top);
            break;
        }
    for (uint32_t i = 0; i < keys; i++) {
        rows_of weight;
        for (int r = 0; r < FLOAT64_ROWS; r++)
            weight[r] = scores[i][r] == -INFINITY ? 0 : exp(scores[i][r] - p->top[r]);
        p->sum += weight;
        for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++)
            p->o[c] += weight * p->k[i][c];
    }
}

static void attend_chunk(void *argument, size_t chunk, size_t thread)
{
    const struct attend *a = argument;
    uint32_t page = (uint32_t)chunk * CHUNK_PAGES;
    uint32_t end = page + CHUNK_PAGES < a->pages ? page + CHUNK_PAGES : a->pages;
    for (; page < end; page++)
        attend_page(a, &a->partials[thread], page);
}

static void load_rows(struct attend *a, const struct shape *shape, const struct float64_rows *rows)
{
    for (int r = 0; r < FLOAT64_ROWS; r++) {
        uint64_t token = (uint64_t)a->seq->first_token + rows->rows[r].token;
        const uint8_t *q = a->pool->q_rows + (token * shape->heads + rows->rows[r].head) * MLA_ABI_QK_DIM;
        for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c++)
            a->q[c][r] = a->values[q[c]];
        a->limit[r] = a->seq->kv_len_max - a->seq->q_len + rows->rows[r].token + 1;
    }
}

void float64_attend(const struct pool *pool, const struct shape *shape, struct float64_rows *rows)
{
    size_t n_threads = threads_count();
    struct attend *a = aligned_alloc(sizeof(rows_of), sizeof *a);
    struct partial *partials = aligned_alloc(sizeof(rows_of), n_threads * sizeof *partials);
    if (!a || !partials)
        abort();
    memset(a, 0, sizeof *a);
    memset(partials, 0, n_threads * sizeof *partials);
    a->pool = pool;
    a->seq = &shape->seqs[rows->seq];
    a->values = fp8_table();
    a->pages = (a->seq->kv_len_max + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
    a->partials = partials;
    load_rows(a, shape, rows);
    for (size_t t = 0; t < n_threads; t++)
        for (int r = 0; r < FLOAT64_ROWS; r++)
            partials[t].top[r] = -INFINITY;
    threads_each((a->pages + CHUNK_PAGES - 1) / CHUNK_PAGES, attend_chunk, a);

    for (int r = 0; r < FLOAT64_ROWS; r++) {
        double top = -INFINITY, sum = 0;
        for (size_t t = 0; t < n_threads; t++)
            top = fmax(top, partials[t].top[r]);
        memset(rows->o[r], 0, sizeof rows->o[r]);
        for (size_t t = 0; t < n_threads; t++) {
            double weight = partials[t].sum[r] > 0 ? exp(partials[t].top[r] - top) : 0;
            sum += weight * partials[t].sum[r];
            for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++)
                rows->o[r][c] += weight * partials[t].o[c][r];
        }
        for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++)
            rows->o[r][c] /= sum;
    }
    free(partials);
    free(a);
}
