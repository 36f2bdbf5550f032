#include "tests/support/decode_case.h"

#include <stdlib.h>
#include <string.h>

#define MEM_ROUND 4096u
#define MEM_LEAD  256u /* canary in front of what is not guarded */
#define NORMALS   4096u

static void *zalloc(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    ck_assert_ptr_nonnull(p);
    return p;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Memory for `bytes`, its last byte at the end when guarded, else with canaries around; gives the offset. */
static size_t take(struct dc_job *job, struct mem *mem, const struct mem_ops *ops, size_t bytes, unsigned flags)
{
    struct rig *rig = job->c->rig;
    if (ops == &mem_host) {
        mem_take(rig, mem, ops, bytes + MEM_LEAD, flags);
        return 0;
    }
    if (job->shape.guard) {
        size_t size = round_up(bytes + 1, MEM_ROUND);
        mem_take(rig, mem, ops, size, flags | MEM_GUARD);
        return size - bytes;
    }
    mem_take(rig, mem, ops, round_up(bytes + 2 * MEM_LEAD, MEM_ROUND), flags);
    return MEM_LEAD;
}

/* Strides of a layout for rows of row_bytes; the bytes it spans. */
static size_t lay_out(const struct dc_job *job, enum dc_layout layout, int64_t row_bytes, struct ref_tensor *t)
{
    int64_t heads = job->shape.heads;
    int64_t tokens = job->tokens;
    int64_t q_max = 0;
    for (uint32_t s = 0; s < job->shape.n_seqs; s++)
        q_max = job->q_len[s] > q_max ? job->q_len[s] : q_max;
    t->compact = layout != DC_STHD && layout != DC_SHTD;
    t->head_stride = row_bytes;
    t->token_stride = heads * row_bytes;
    switch (layout) {
    case DC_HTD:
        t->token_stride = row_bytes;
        t->head_stride = tokens * row_bytes;
        break;
    case DC_SHTD:
        t->token_stride = row_bytes;
        t->head_stride = q_max * row_bytes;
        break;
    case DC_PADDED:
        t->head_stride = row_bytes + 32;
        t->token_stride = heads * t->head_stride + 64;
        break;
    default:
        break;
    }
    t->seq_stride = t->compact ? 0 : q_max * heads * row_bytes + 48;
    if (tokens == 0)
        return 0;
    if (t->compact)
        return (size_t)((tokens - 1) * t->token_stride + (heads - 1) * t->head_stride + row_bytes);
    return (size_t)((job->shape.n_seqs - 1) * t->seq_stride + (q_max - 1) * t->token_stride +
                    (heads - 1) * t->head_stride + row_bytes);
}

static void make_tensor(struct dc_job *job, struct mem *mem, enum dc_layout layout, int64_t row_bytes, unsigned flags,
                        struct ref_tensor *view, struct mla_abi_tensor *record)
{
    size_t bytes = lay_out(job, layout, row_bytes, view);
    size_t offset = take(job, mem, job->c->rig->shared, bytes, flags);
    view->base = mem->host + offset;
    record->base = mem->address + offset;
    record->seq_stride = view->seq_stride;
    record->token_stride = view->token_stride;
    record->head_stride = view->head_stride;
    record->compact = view->compact;
}

/* int32 array of n in host memory or a region. */
static int32_t *make_array(struct dc_job *job, struct mem *mem, enum dc_place place, size_t n)
{
    size_t offset = take(job, mem, place == DC_HOST ? &mem_host : job->c->rig->shared, n * sizeof(int32_t), 0);
    return (int32_t *)(void *)(mem->host + offset);
}

static uint8_t *random_bytes(double mean, double std)
{
    struct prng prng = {42};
    uint8_t *table = zalloc(NORMALS, 1);
    for (uint32_t i = 0; i < NORMALS; i++)
        table[i] = fp8_encode(mean + std * prng_normal(&prng));
    return table;
}

/* Pool and queries are megabytes: sanitizers need not look at each byte of them. */
__attribute__((no_sanitize("thread", "address", "undefined"))) static void
draw(struct prng *prng, const uint8_t *table, uint8_t row[static MLA_ABI_QK_DIM], uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint64_t r = prng_u64(prng);
        for (uint32_t k = 0; k < 4; k++)
            row[i + k] = table[r >> (16 * k) & (NORMALS - 1)];
    }
}

static void fill_row(struct prng *prng, const uint8_t *table, uint8_t *to, uint32_t n)
{
    uint8_t row[MLA_ABI_QK_DIM];
    draw(prng, table, row, n);
    memcpy(to, row, n);
}

static uint32_t entries_for(const struct dc_job *job, uint32_t kv_len)
{
    uint32_t tokens = MLA_ABI_PAGE_TOKENS * job->shape.pages_per_entry;
    return (kv_len + tokens - 1) / tokens;
}

static void set_defaults(struct dc_shape *shape)
{
    shape->mask = shape->mask ? shape->mask : MLA_MASK_CAUSAL;
    shape->out_type = shape->out_type ? shape->out_type : MLA_DTYPE_F32;
    shape->softmax_scale = shape->softmax_scale != 0 ? shape->softmax_scale : 1.0f / 24;
    shape->q_scale = shape->q_scale != 0 ? shape->q_scale : 1;
    shape->kv_scale = shape->kv_scale != 0 ? shape->kv_scale : 1;
    shape->out_scale = shape->out_scale != 0 ? shape->out_scale : 1;
    shape->row_stride = shape->row_stride ? shape->row_stride : MLA_ABI_QK_DIM;
    shape->page_stride = shape->page_stride ? shape->page_stride : (uint64_t)MLA_ABI_PAGE_TOKENS * shape->row_stride;
    shape->pages_per_entry = shape->pages_per_entry ? shape->pages_per_entry : 1;
    shape->q_std = shape->q_std != 0 ? shape->q_std : 1;
    shape->kv_std = shape->kv_std != 0 ? shape->kv_std : 1;
    shape->table = shape->table ? shape->table : DC_HOST;
    shape->visible = shape->visible ? shape->visible : DC_HOST;
}

static void make_lengths(struct dc_job *job)
{
    uint32_t n = job->shape.n_seqs;
    struct dc_seq *seqs = zalloc(n, sizeof(*seqs));
    if (n > 0)
        memcpy(seqs, job->shape.seqs, n * sizeof(*seqs));
    job->shape.seqs = seqs;
    job->q_len = zalloc(n, sizeof(uint32_t));
    job->kv_len_max = zalloc(n, sizeof(uint32_t));
    job->first_token = zalloc(n, sizeof(uint32_t));
    job->table_first = zalloc(n + 1u, sizeof(uint64_t));
    for (uint32_t s = 0; s < n; s++) {
        seqs[s].kv_len_max = seqs[s].kv_len_max ? seqs[s].kv_len_max : seqs[s].kv_len;
        ck_assert(job->shape.kv_len != DC_ABSENT || seqs[s].kv_len_max == seqs[s].kv_len);
        job->q_len[s] = seqs[s].q_len;
        job->kv_len_max[s] = seqs[s].kv_len_max;
        job->first_token[s] = job->tokens;
        job->tokens += seqs[s].q_len;
        job->table_first[s + 1] = job->table_first[s] + entries_for(job, seqs[s].kv_len_max) + 1;
    }
}

static void make_table(struct dc_job *job)
{
    const struct dc_shape *shape = &job->shape;
    uint64_t total = job->table_first[shape->n_seqs];
    uint32_t needed = 0;
    for (uint32_t s = 0; s < shape->n_seqs; s++)
        needed += entries_for(job, shape->seqs[s].kv_len);
    if (shape->num_pages == 0)
        job->shape.num_pages = (needed + 2) * shape->pages_per_entry;
    uint32_t ids = shape->num_pages / shape->pages_per_entry;
    uint32_t *order = zalloc(ids, sizeof(*order));
    struct prng prng = {shape->seed ^ 0x7ab1e};
    for (uint32_t i = 0; i < ids; i++) {
        uint32_t k = shape->pages == DC_SHUFFLED ? prng_below(&prng, i + 1) : i;
        order[i] = order[k];
        order[k] = i;
    }
    job->table = make_array(job, &job->table_mem, shape->table, total);
    for (uint64_t i = 0; i < total; i++)
        job->table[i] = DC_ENTRY_UNUSED;
    uint32_t next = 0;
    for (uint32_t s = 0; s < shape->n_seqs; s++) {
        for (uint32_t e = 0; e < entries_for(job, shape->seqs[s].kv_len); e++, next++) {
            int32_t *entry = &job->table[job->table_first[s] + e];
            if (shape->page_ids != NULL)
                *entry = shape->page_ids[next];
            else if (shape->pages == DC_ALIAS)
                *entry = (int32_t)(e % ids);
            else
                *entry = (int32_t)order[next];
        }
    }
    free(order);
}

static void make_pool(struct dc_job *job)
{
    const struct dc_shape *shape = &job->shape;
    uint64_t span = 0;
    if (shape->num_pages > 0)
        span = (shape->num_pages - 1) * shape->page_stride + (uint64_t)63 * shape->row_stride + MLA_ABI_QK_DIM;
    if (shape->pool_of != NULL) {
        job->pool_host = shape->pool_of->pool_host;
        job->kv = job->pool_host + shape->plane_offset;
        job->kv_address = shape->pool_of->kv_address - shape->pool_of->shape.plane_offset + shape->plane_offset;
        return;
    }
    uint64_t bytes = shape->plane_offset + span;
    bytes = shape->pool_bytes > bytes ? shape->pool_bytes : bytes;
    size_t offset = take(job, &job->pool, job->c->rig->shared, bytes, 0);
    if (!shape->sparse)
        memset(job->pool.host, FP8_NAN, job->pool.bytes);
    job->pool_host = job->pool.host + offset;
    job->kv = job->pool_host + shape->plane_offset;
    job->kv_address = job->pool.address + offset + shape->plane_offset;
}

static void fill_inputs(struct dc_job *job)
{
    const struct dc_shape *shape = &job->shape;
    struct prng prng = {shape->seed};
    bool aliased = shape->pages == DC_ALIAS && shape->page_ids == NULL;
    uint64_t filled = 0; /* keys of the pages that all sequences have */
    uint8_t *q_bytes = random_bytes(0, shape->q_std);
    uint8_t *kv_bytes = random_bytes(shape->kv_mean, shape->kv_std);
    for (uint32_t s = 0; s < shape->n_seqs; s++) {
        for (uint32_t t = 0; t < job->q_len[s]; t++) {
            for (uint32_t h = 0; h < shape->heads; h++) {
                fill_row(&prng, q_bytes, dc_q(job, s, t, h, 0), MLA_ABI_V_DIM);
                fill_row(&prng, q_bytes, dc_q(job, s, t, h, MLA_ABI_V_DIM), MLA_ABI_QK_DIM - MLA_ABI_V_DIM);
            }
        }
        /* Aliased pages need one round only, of all sequences. */
        uint64_t keys = shape->seqs[s].kv_len;
        uint64_t round = (uint64_t)shape->num_pages * MLA_ABI_PAGE_TOKENS;
        uint64_t end = keys < round ? keys : round;
        for (uint64_t k = aliased ? filled : 0; !shape->own_keys && k < end; k++)
            fill_row(&prng, kv_bytes, dc_key(job, s, (uint32_t)k), MLA_ABI_QK_DIM);
        filled = end > filled ? end : filled;
    }
    free(q_bytes);
    free(kv_bytes);
}

static void make_visible(struct dc_job *job)
{
    const struct dc_shape *shape = &job->shape;
    struct prng prng = {shape->seed ^ 0x5ee};
    job->visible = make_array(job, &job->visible_mem, shape->visible, job->tokens);
    for (uint32_t s = 0; s < shape->n_seqs; s++) {
        for (uint32_t t = 0; t < job->q_len[s]; t++) {
            uint32_t i = job->first_token[s] + t;
            job->visible[i] = shape->visible_counts != NULL ? shape->visible_counts[i]
                                                            : (int32_t)prng_below(&prng, shape->seqs[s].kv_len + 1);
        }
    }
}

struct dc_job *dc_add(struct dc *c, const struct dc_shape *shape)
{
    struct dc_job *job = zalloc(1, sizeof(*job));
    ck_assert_uint_lt(c->n_jobs, DC_JOBS_MAX);
    c->jobs[c->n_jobs++] = job;
    job->c = c;
    job->shape = *shape;
    set_defaults(&job->shape);
    shape = &job->shape;
    make_lengths(job);
    job->first_seq = c->n_seqs;
    c->n_seqs += shape->n_seqs;

    int64_t q_bytes = shape->split_rope ? MLA_ABI_V_DIM : MLA_ABI_QK_DIM;
    int64_t element = shape->out_type == MLA_DTYPE_E4M3 ? 1 : shape->out_type == MLA_DTYPE_BF16 ? 2 : 4;
    make_tensor(job, &job->q_mem, shape->q_layout, q_bytes, 0, &job->ref.q, &job->q);
    if (shape->split_rope)
        make_tensor(job, &job->rope_mem, shape->q_layout, MLA_ABI_QK_DIM - MLA_ABI_V_DIM, 0, &job->ref.q_rope,
                    &job->rope);
    make_tensor(job, &job->o_mem, shape->o_layout, MLA_ABI_V_DIM * element, MEM_WRITE, &job->out.o, &job->o);
    if (!shape->no_lse)
        make_tensor(job, &job->lse_mem, shape->lse_layout, sizeof(float), MEM_WRITE, &job->out.lse, &job->lse);
    make_table(job);
    make_pool(job);
    if (shape->kv_len != DC_ABSENT) {
        job->kv_len = make_array(job, &job->kv_len_mem, shape->kv_len, shape->n_seqs);
        for (uint32_t s = 0; s < shape->n_seqs; s++)
            job->kv_len[s] = (int32_t)shape->seqs[s].kv_len;
    }
    if (shape->mask == MLA_MASK_VISIBLE)
        make_visible(job);
    mem_take(c->rig, &job->status_mem, &mem_host, (shape->n_seqs + 1) * sizeof(uint64_t), 0);
    job->status = (uint64_t *)(void *)job->status_mem.host;
    if (shape->user_status) {
        size_t offset = take(job, &job->user_status_mem, c->rig->shared, shape->n_seqs * sizeof(uint64_t), MEM_WRITE);
        job->user_status = (uint64_t *)(void *)(job->user_status_mem.host + offset);
    }

    struct ref_job *ref = &job->ref;
    ref->heads = shape->heads;
    ref->n_seqs = shape->n_seqs;
    ref->q_len = job->q_len;
    ref->kv_len_max = job->kv_len_max;
    ref->kv_len = job->kv_len;
    ref->kv = job->kv;
    ref->page_stride = shape->page_stride;
    ref->row_stride = shape->row_stride;
    ref->num_pages = shape->num_pages;
    ref->pages_per_entry = shape->pages_per_entry;
    ref->table = job->table;
    ref->table_first = job->table_first;
    ref->mask = (enum mla_mask)shape->mask;
    ref->visible = job->visible;
    ref->softmax_scale = shape->softmax_scale;
    ref->q_scale = shape->q_scale;
    ref->kv_scale = shape->kv_scale;
    ref->head_step = shape->ref_head_step;
    job->out.out_type = (enum mla_dtype)shape->out_type;
    job->out.out_scale = shape->out_scale;
    job->out.accuracy = c->rig->accuracy;
    fill_inputs(job);
    return job;
}

uint8_t *dc_q(struct dc_job *job, uint32_t s, uint32_t t, uint32_t h, uint32_t element)
{
    const struct ref_tensor *tensor = &job->ref.q;
    if (element >= MLA_ABI_V_DIM && job->shape.split_rope) {
        tensor = &job->ref.q_rope;
        element -= MLA_ABI_V_DIM;
    }
    return (uint8_t *)(uintptr_t)ref_at(tensor, s, job->first_token[s], t, h) + element;
}

uint8_t *dc_key(struct dc_job *job, uint32_t s, uint32_t key)
{
    uint32_t per_entry = MLA_ABI_PAGE_TOKENS * job->shape.pages_per_entry;
    uint64_t page = (uint64_t)job->table[job->table_first[s] + key / per_entry] * job->shape.pages_per_entry +
                    key % per_entry / MLA_ABI_PAGE_TOKENS;
    if (page >= job->shape.num_pages)
        ck_abort_msg("key %u of sequence %u has no page", key, s);
    return job->kv + page * job->shape.page_stride + (size_t)(key % MLA_ABI_PAGE_TOKENS) * job->shape.row_stride;
}

void dc_fill_q(struct dc_job *job, uint8_t byte)
{
    for (uint32_t s = 0; s < job->shape.n_seqs; s++)
        for (uint32_t t = 0; t < job->q_len[s]; t++)
            for (uint32_t h = 0; h < job->shape.heads; h++) {
                memset(dc_q(job, s, t, h, 0), byte, MLA_ABI_V_DIM);
                memset(dc_q(job, s, t, h, MLA_ABI_V_DIM), byte, MLA_ABI_QK_DIM - MLA_ABI_V_DIM);
            }
}

void dc_fill_keys(struct dc_job *job, uint8_t byte)
{
    for (uint32_t s = 0; s < job->shape.n_seqs; s++)
        for (uint32_t k = 0; k < job->shape.seqs[s].kv_len; k++)
            memset(dc_key(job, s, k), byte, MLA_ABI_QK_DIM);
}
