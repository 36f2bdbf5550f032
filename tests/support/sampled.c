#include "tests/support/sampled.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fp8.h"

#define THREADS_MAX 64u
#define PAGE_BYTES  ((size_t)REF_PAGE_TOKENS * REF_QK_DIM)
#define SUMS        (1 + SAMPLED_ROUNDINGS) /* exact, and one for each rounding */

const double sampled_shift[SAMPLED_ROUNDINGS] = {0, 0.4, 2.6};

struct work {
    const uint8_t *kv;
    const int32_t *table;
    struct sampled_row *rows;
    double **score; /* of each row: keys */
    double *max;    /* of each row */
    size_t n_rows;
    double scale;
    bool roundings;
};

/* The pages [first, end) of all rows. */
struct part {
    const struct work *work;
    uint32_t first, end;
    double (*page)[REF_QK_DIM];
    /* second pass: of each row */
    double (*sum)[SUMS];
    double (*o)[SUMS][REF_V_DIM];
};

static void *take(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    if (p == NULL) {
        fprintf(stderr, "no memory for the reference\n");
        abort();
    }
    return p;
}

static void decode_page(const struct part *part, uint32_t page)
{
    const double *value = fp8_table();
    const uint8_t *bytes = part->work->kv + (size_t)part->work->table[page] * PAGE_BYTES;
    for (uint32_t k = 0; k < REF_PAGE_TOKENS; k++)
        for (uint32_t i = 0; i < REF_QK_DIM; i++)
            part->page[k][i] = value[bytes[(size_t)k * REF_QK_DIM + i]];
}

static uint32_t keys_of_page(const struct sampled_row *row, uint32_t page)
{
    uint32_t first = page * REF_PAGE_TOKENS;
    uint32_t left = row->keys > first ? row->keys - first : 0;
    return left < REF_PAGE_TOKENS ? left : REF_PAGE_TOKENS;
}

static double dot(const double *a, const double *b)
{
    double sum[8] = {0};
    for (uint32_t i = 0; i < REF_QK_DIM; i += 8)
        for (uint32_t k = 0; k < 8; k++)
            sum[k] += a[i + k] * b[i + k];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void *scores(void *arg)
{
    const struct part *part = arg;
    const struct work *w = part->work;
    for (uint32_t page = part->first; page < part->end; page++) {
        decode_page(part, page);
        for (size_t r = 0; r < w->n_rows; r++)
            for (uint32_t k = 0, n = keys_of_page(&w->rows[r], page); k < n; k++)
                w->score[r][(size_t)page * REF_PAGE_TOKENS + k] = w->scale * dot(w->rows[r].q, part->page[k]);
    }
    return NULL;
}

static void add(double p, const double *v, double *sum, double *o)
{
    if (p == 0)
        return;
    *sum += p;
    for (uint32_t i = 0; i < REF_V_DIM; i++)
        o[i] += p * v[i];
}

static void *values(void *arg)
{
    const struct part *part = arg;
    const struct work *w = part->work;
    for (uint32_t page = part->first; page < part->end; page++) {
        decode_page(part, page);
        for (size_t r = 0; r < w->n_rows; r++)
            for (uint32_t k = 0, n = keys_of_page(&w->rows[r], page); k < n; k++) {
                double s = w->score[r][(size_t)page * REF_PAGE_TOKENS + k] - w->max[r];
                add(exp(s), part->page[k], &part->sum[r][0], part->o[r][0]);
                for (uint32_t e = 0; w->roundings && e < SAMPLED_ROUNDINGS; e++) {
                    double p = exp(s) * exp2(8 - sampled_shift[e]);
                    add(fp8_decode(fp8_encode(p)), part->page[k], &part->sum[r][1 + e], part->o[r][1 + e]);
                }
            }
    }
    return NULL;
}

static void run(struct part *parts, size_t n, void *(*body)(void *))
{
    pthread_t threads[THREADS_MAX];
    fp8_table(); /* filled before it is shared */
    for (size_t i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, body, &parts[i]) != 0) {
            fprintf(stderr, "no thread for the reference\n");
            abort();
        }
    for (size_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void finish_row(const struct work *w, size_t r, const struct part *parts, size_t n)
{
    struct sampled_row *row = &w->rows[r];
    double sum[SUMS] = {0};
    memset(row->o, 0, sizeof(row->o));
    memset(row->rounded, 0, sizeof(row->rounded));
    for (size_t i = 0; i < n; i++)
        for (uint32_t e = 0; e < SUMS; e++) {
            double *o = e == 0 ? row->o : row->rounded[e - 1];
            sum[e] += parts[i].sum[r][e];
            for (uint32_t d = 0; d < REF_V_DIM; d++)
                o[d] += parts[i].o[r][e][d];
        }
    for (uint32_t e = 0; e < SUMS; e++) {
        double *o = e == 0 ? row->o : row->rounded[e - 1];
        for (uint32_t d = 0; d < REF_V_DIM && sum[e] != 0; d++)
            o[d] /= sum[e];
    }
    row->lse = w->max[r] + log(sum[0]);
}

static void make_parts(struct work *w, struct part *parts, size_t n, uint32_t pages)
{
    for (size_t i = 0; i < n; i++) {
        parts[i] = (struct part){
            .work = w, .first = (uint32_t)(pages * (uint64_t)i / n), .end = (uint32_t)(pages * (uint64_t)(i + 1) / n)};
        parts[i].page = take(REF_PAGE_TOKENS, sizeof(*parts[i].page));
        parts[i].sum = take(w->n_rows, sizeof(*parts[i].sum));
        parts[i].o = take(w->n_rows, sizeof(*parts[i].o));
    }
}

void sampled_decode(const uint8_t *kv, const int32_t *table, double softmax_scale, bool roundings,
                    struct sampled_row *rows, size_t n_rows)
{
    struct work w = {
        .kv = kv, .table = table, .rows = rows, .n_rows = n_rows, .scale = softmax_scale, .roundings = roundings};
    struct part parts[THREADS_MAX];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t pages = 0;
    w.score = take(n_rows, sizeof(*w.score));
    w.max = take(n_rows, sizeof(*w.max));
    for (size_t r = 0; r < n_rows; r++) {
        uint32_t own = (rows[r].keys + REF_PAGE_TOKENS - 1) / REF_PAGE_TOKENS;
        pages = own > pages ? own : pages;
        w.score[r] = take(rows[r].keys, sizeof(double));
    }
    size_t n = processors < 1 ? 1 : processors > (long)THREADS_MAX ? THREADS_MAX : (size_t)processors;
    n = n > pages ? pages : n;
    make_parts(&w, parts, n, pages);
    run(parts, n, scores);
    for (size_t r = 0; r < n_rows; r++) {
        w.max[r] = w.score[r][0];
        for (uint32_t k = 1; k < rows[r].keys; k++)
            w.max[r] = fmax(w.max[r], w.score[r][k]);
    }
    run(parts, n, values);
    for (size_t r = 0; r < n_rows; r++)
        finish_row(&w, r, parts, n);
    for (size_t i = 0; i < n; i++) {
        free(parts[i].page);
        free(parts[i].sum);
        free(parts[i].o);
    }
    for (size_t r = 0; r < n_rows; r++)
        free(w.score[r]);
    free(w.score);
    free(w.max);
}
