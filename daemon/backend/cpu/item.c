#include "daemon/backend/cpu/item.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cpu/launch.h"
#include "daemon/backend/cpu/output.h"
#include "daemon/backend/cpu/vec.h"

#define PAGE    MLA_ABI_PAGE_TOKENS
#define QK_DIM  MLA_ABI_QK_DIM
#define V_DIM   MLA_ABI_V_DIM
#define ROPE    (QK_DIM - V_DIM)
#define ROWS    CPU_TILE_ROWS
#define NO_WORD UINT64_MAX

int cpu_scratch_open(struct cpu_scratch *x)
{
    const size_t sizes[] = {
        sizeof *x->q * ROWS * QK_DIM, sizeof *x->k * PAGE * QK_DIM, sizeof *x->s * ROWS * PAGE,
        sizeof *x->o * ROWS * V_DIM,  sizeof *x->m * ROWS,          sizeof *x->l * ROWS,
        sizeof *x->visible * ROWS,    sizeof *x->seen * ROWS,       sizeof *x->q_nan * ROWS,
        sizeof *x->poisoned * ROWS,
    };
    enum { N = sizeof sizes / sizeof sizes[0] };
    size_t total = 0;
    for (size_t i = 0; i < N; i++)
        total += sizes[i];
    char *memory = aligned_alloc(64, total);
    if (!memory)
        return -ENOMEM;
    memset(memory, 0, total);
    char *part[N];
    for (size_t i = 0, at = 0; i < N; at += sizes[i++])
        part[i] = memory + at;
    x->q = (float *)part[0];
    x->k = (float *)part[1];
    x->s = (float *)part[2];
    x->o = (float *)part[3];
    x->m = (float *)part[4];
    x->l = (double *)part[5];
    x->visible = (int32_t *)part[6];
    x->seen = (int32_t *)part[7];
    x->q_nan = (bool *)part[8];
    x->poisoned = (bool *)part[9];
    x->memory = memory;
    return 0;
}

void cpu_scratch_close(struct cpu_scratch *x)
{
    free(x->memory);
    x->memory = NULL;
}

/* What an item works on. */
struct view {
    struct cpu_launch *launch;
    const struct mla_abi_job *job;
    const struct mla_abi_seq *seq;
    const struct mla_abi_tile *tile;
    const struct mla_abi_item *item;
    uint32_t seq_index;  /* in the launch */
    uint32_t seq_of_job; /* in the job */
    int32_t kv_len;
    int32_t limit;       /* the most keys that any row of the tile sees */
    uint64_t table_word; /* index of the table entry read last, or NO_WORD */
    int32_t table_value;
};

static void fault(const struct view *v, enum mla_status code, uint32_t index)
{
    cpu_fault(v->launch->batch, v->seq_index, code, index);
}

/* One load, whatever the alignment: the owner of the memory may write it at any time, and what was checked must be what
 * is used. */
static int32_t read_once(uint64_t base, uint64_t index)
{
    struct unaligned {
        int32_t value;
    } __attribute__((packed));
    return ((const volatile struct unaligned *)(uintptr_t)base)[index].value;
}

static bool read_kv_len(struct view *v)
{
    v->kv_len = (int32_t)v->seq->kv_len_max;
    if (v->job->kv_len == 0)
        return true;
    v->kv_len = read_once(v->job->kv_len, v->seq_of_job);
    if (v->kv_len >= 0 && (uint32_t)v->kv_len <= v->seq->kv_len_max)
        return true;
    fault(v, MLA_KV_LEN_OUT_OF_RANGE, 0);
    return false;
}

static int32_t clamp(int64_t value, int64_t most)
{
    return (int32_t)(value < 0 ? 0 : value > most ? most : value);
}

/* Keys that a token sees; false after a fault. */
static bool token_visible(struct view *v, uint32_t token, int32_t *visible)
{
    switch (v->job->mask) {
    case MLA_ABI_MASK_CAUSAL:
        *visible = clamp((int64_t)v->kv_len - v->seq->q_len + token + 1, v->kv_len);
        return true;
    case MLA_ABI_MASK_VISIBLE:
        *visible = read_once(v->job->visible, (uint64_t)v->seq->first_token + token);
        if (*visible >= 0 && *visible <= v->kv_len)
            return true;
        fault(v, MLA_VISIBLE_OUT_OF_RANGE, token);
        return false;
    default:
        *visible = v->kv_len;
        return true;
    }
}

/* Fills visible[] for all rows of the tile (0 for padding) and the limit. */
static bool read_mask(struct view *v, struct cpu_scratch *x, uint32_t padded_rows)
{
    uint32_t heads = v->job->heads;
    uint32_t r = 0;
    v->limit = 0;
    while (r < v->tile->rows) {
        uint32_t token = (v->tile->first_row + r) / heads;
        uint32_t end = (token + 1) * heads - v->tile->first_row;
        int32_t visible;
        if (!token_visible(v, token, &visible))
            return false;
        if (visible > v->limit)
            v->limit = visible;
        for (; r < end && r < v->tile->rows; r++)
            x->visible[r] = visible;
    }
    for (; r < padded_rows; r++)
        x->visible[r] = 0;
    return true;
}

/* Q as floats. A row with a NaN is computed as zeros and made NaN at the end: the sgemm never sees one. */
static void read_q(const struct view *v, struct cpu_scratch *x, uint32_t padded_rows)
{
    for (uint32_t r = 0; r < padded_rows; r++) {
        float *q = x->q + (size_t)r * QK_DIM;
        x->q_nan[r] = false;
        if (r >= v->tile->rows) {
            memset(q, 0, QK_DIM * sizeof *q);
            continue;
        }
        uint32_t token = (v->tile->first_row + r) / v->job->heads;
        uint32_t head = (v->tile->first_row + r) % v->job->heads;
        const uint8_t *latent = cpu_tensor_row(&v->job->q, v->seq_of_job, v->seq->first_token, token, head);
        const uint8_t *rope = latent + V_DIM;
        if (v->job->q_rope.base != 0)
            rope = cpu_tensor_row(&v->job->q_rope, v->seq_of_job, v->seq->first_token, token, head);
        if (vec_e4m3_has_nan(latent, V_DIM) || vec_e4m3_has_nan(rope, ROPE)) {
            x->q_nan[r] = true;
            memset(q, 0, QK_DIM * sizeof *q);
            continue;
        }
        vec_e4m3_to_f32(latent, q, V_DIM);
        vec_e4m3_to_f32(rope, q + V_DIM, ROPE);
    }
}

/* Address of a page of the sequence; NULL after a fault. Each table entry is read once. */
static const uint8_t *find_page(struct view *v, uint32_t page)
{
    uint32_t per_entry = v->job->pages_per_entry;
    uint32_t entry = page / per_entry;
    if (v->table_word != entry) {
        v->table_value = read_once(v->job->table, v->seq->table_first + entry);
        v->table_word = entry;
    }
    uint64_t physical = (uint64_t)(uint32_t)v->table_value * per_entry + page % per_entry;
    if (v->table_value < 0 || physical >= v->job->num_pages) {
        fault(v, MLA_PAGE_OUT_OF_RANGE, entry);
        return NULL;
    }
    return (const uint8_t *)(uintptr_t)(v->job->kv + physical * v->job->page_stride);
}

/* A page as floats. Keys beyond the limit become zeros, and so do keys with a NaN, each once for the whole tile: rows
 * that see such a key are marked and made NaN at the end, all others multiply exact zeros and stay as they were. */
static void read_page(const struct view *v, struct cpu_scratch *x, const uint8_t *src, uint32_t page)
{
    int64_t first_key = (int64_t)page * PAGE;
    for (uint32_t t = 0; t < PAGE; t++, src += v->job->row_stride) {
        float *k = x->k + (size_t)t * QK_DIM;
        if (first_key + t >= v->limit) {
            memset(k, 0, sizeof *k * (PAGE - t) * QK_DIM);
            return;
        }
        if (!vec_e4m3_has_nan(src, QK_DIM)) {
            vec_e4m3_to_f32(src, k, QK_DIM);
            continue;
        }
        memset(k, 0, QK_DIM * sizeof *k);
        for (uint32_t r = 0; r < v->tile->rows; r++)
            if (x->visible[r] > first_key + t)
                x->poisoned[r] = true;
    }
}

static void attend_page(const struct view *v, struct cpu_scratch *x, uint32_t padded_rows, uint32_t page)
{
    int rows = (int)padded_rows;
    for (uint32_t r = 0; r < padded_rows; r++)
        x->seen[r] = clamp((int64_t)x->visible[r] - (int64_t)page * PAGE, PAGE);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, PAGE, QK_DIM, v->job->score_scale, x->q, QK_DIM, x->k,
                QK_DIM, 0.0f, x->s, PAGE);
    vec_softmax_page(x->s, padded_rows, x->seen, x->m, x->l, x->o);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, V_DIM, PAGE, 1.0f, x->s, PAGE, x->k, QK_DIM, 1.0f,
                x->o, V_DIM);
}

static void write_rows(const struct view *v, struct cpu_scratch *x)
{
    for (uint32_t r = 0; r < v->tile->rows; r++) {
        float *o = x->o + (size_t)r * V_DIM;
        bool empty = x->l[r] == 0.0;
        float lse = empty ? -INFINITY : (float)((double)x->m[r] + log(x->l[r]));
        if (!empty && (x->q_nan[r] || x->poisoned[r])) {
            lse = NAN;
            for (uint32_t i = 0; i < V_DIM; i++)
                o[i] = NAN;
        } else if (!empty) {
            vec_scale(o, V_DIM, (float)(1.0 / x->l[r]));
        }
        if (v->item->partial_row == MLA_ABI_NO_PARTIAL) {
            cpu_output_row(v->job, v->seq, v->seq_of_job, v->tile->first_row + r, o, lse);
        } else {
            size_t partial = (size_t)v->item->partial_row + r;
            memcpy(v->launch->partial_o + partial * V_DIM, o, V_DIM * sizeof *o);
            v->launch->partial_lse[partial] = lse;
        }
    }
}

void cpu_item_run(struct cpu_launch *launch, uint32_t index, struct cpu_scratch *x)
{
    const struct be_batch *batch = launch->batch;
    struct view v = {.launch = launch, .item = &batch->plan->items[index], .table_word = NO_WORD};
    v.tile = &batch->plan->tiles[v.item->tile];
    v.seq_index = v.tile->seq;
    v.seq = &batch->seqs[v.seq_index];
    v.job = &batch->jobs[v.seq->job];
    v.seq_of_job = v.seq_index - v.job->first_seq;

    uint32_t padded_rows = v.tile->rows <= 64 ? 64 : v.tile->rows <= 128 ? 128 : ROWS;
    if (!read_kv_len(&v) || !read_mask(&v, x, padded_rows))
        return;
    uint32_t end = ((uint32_t)v.limit + PAGE - 1) / PAGE;
    if (end > v.item->page_end)
        end = v.item->page_end;

    for (uint32_t r = 0; r < padded_rows; r++) {
        x->m[r] = -INFINITY;
        x->l[r] = 0.0;
        x->poisoned[r] = false;
    }
    memset(x->o, 0, (size_t)padded_rows * V_DIM * sizeof *x->o);
    if (v.item->page_begin < end)
        read_q(&v, x, padded_rows);
    for (uint32_t page = v.item->page_begin; page < end; page++) {
        const uint8_t *src = find_page(&v, page);
        if (!src)
            return;
        read_page(&v, x, src, page);
        attend_page(&v, x, padded_rows, page);
    }
    write_rows(&v, x);
}
