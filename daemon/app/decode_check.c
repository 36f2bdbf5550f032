/* DECODE against the objects it names: everything that can be wrong is found here, before the job exists for the
 * scheduler. What the kernel checks (page ids, device-resident lengths and counts) is left to it: one mechanism for
 * host and device tables alike. */
#include <math.h>
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/checked.h"

#define WORD_LINE_BYTES 64

/* Bytes [begin, end) of a region, as a job touches them. */
struct extent {
    const struct app_region *region; /* NULL: nothing */
    uint64_t begin, end;
    const char *field;
};

/* What one check works on. */
struct check {
    struct app_client *client;
    const struct mla_decode_request *d;
    struct app_job *job;
    struct mla_error *err;
    struct extent inputs[8];
    unsigned n_inputs;
    struct extent outputs[3];
    unsigned n_outputs;
};

static int refuse(struct check *c, enum mla_status code, const char *field, uint64_t value, uint64_t limit,
                  const char *text)
{
    mla_error_set(c->err, code, field, "%s", text);
    c->err->value = value;
    c->err->limit = limit;
    return (int)code;
}

static void pin(struct check *c, struct app_object *object)
{
    struct app_job *job = c->job;
    for (uint32_t i = 0; i < job->sched.n_pins; i++)
        if (job->pins[i] == &object->sched)
            return;
    job->pins[job->sched.n_pins++] = &object->sched;
}

static void pin_region(struct check *c, struct app_region *region)
{
    pin(c, &region->object);
    pin(c, &region->use);
}

/* ---- plain ranges: words, lengths, counts, tables, status words ---- */

struct range_fields {
    const char *whole, *region, *offset;
};
#define RANGE(name)                                                                                                    \
    {                                                                                                                  \
        name, name ".region", name ".offset"                                                                           \
    }

static int range(struct check *c, const struct mla_ref *ref, struct range_fields names, uint64_t bytes, uint64_t align,
                 bool write, struct extent *out)
{
    struct app_region *region = memory_find(c->client, ref->region, names.region, c->err);
    if (region == NULL)
        return (int)c->err->code;
    if (write && region->mem.access != MLA_ACCESS_READ_WRITE)
        return refuse(c, MLA_ACCESS_DENIED, names.region, ref->region, 0, "the region was registered for reading only");
    if (ref->offset % align != 0)
        return refuse(c, MLA_MISALIGNED, names.offset, ref->offset, align, "the offset is not aligned");
    if (!mla_range_fits(ref->offset, bytes, region->mem.size))
        return refuse(c, MLA_OUT_OF_BOUNDS, names.offset, ref->offset, region->mem.size, "the range leaves its region");
    pin_region(c, region);
    *out = (struct extent){region, ref->offset, ref->offset + bytes, names.whole};
    return 0;
}

static uint64_t address_of(const struct extent *e)
{
    return e->region->mem.address + e->begin;
}

static int word(struct check *c, const struct mla_ref *ref, struct range_fields names, uint64_t **out)
{
    struct extent e;
    int r = range(c, ref, names, sizeof(uint64_t), WORD_LINE_BYTES, true, &e);
    if (r != 0)
        return r;
    if (!e.region->mem.sync)
        return refuse(c, MLA_INVALID_ARGUMENT, names.region, ref->region, 0, "words live in sync pages");
    c->inputs[c->n_inputs++] = e; /* of what may not be overwritten */
    *out = (uint64_t *)(void *)((char *)e.region->mem.host + ref->offset);
    return 0;
}

/* ---- tensors ---- */

struct tensor_fields {
    const char *whole, *region, *offset, *seq_stride, *token_stride, *head_stride;
};
#define TENSOR(name)                                                                                                   \
    {                                                                                                                  \
        name, name ".region", name ".offset", name ".seq_stride", name ".token_stride", name ".head_stride"            \
    }

static void widen(__int128 at, __int128 *low, __int128 *high)
{
    if (at < *low)
        *low = at;
    if (at > *high)
        *high = at;
}

/* Offsets of the first bytes of all rows lie in [*low, *high]. Exact, since a tensor may end where its mapping ends. */
static void row_bounds(const struct check *c, const struct mla_tensor *t, __int128 *low, __int128 *high)
{
    const struct app_table_set *set = c->job->tables;
    __int128 head_span = (__int128)(c->d->heads - 1) * t->head_stride;
    *low = ((__int128)1 << 126);
    *high = -*low;
    for (uint32_t i = 0; i < set->n_corners; i++) {
        uint32_t s = set->corners[i];
        __int128 base = t->compact ? 0 : (__int128)s * t->seq_stride;
        __int128 tokens = t->compact ? (__int128)set->tokens : set->q_len[s];
        __int128 token_span = (tokens - 1) * t->token_stride;
        widen(base, low, high);
        widen(base + head_span, low, high);
        widen(base + token_span, low, high);
        widen(base + token_span + head_span, low, high);
        if (t->compact)
            return;
    }
}

/* Whether two rows of a written tensor can share bytes: each stride, from the smallest up, must clear what the smaller
 * ones span. Dimensions of length 1 have no stride. */
static bool rows_collide(const struct check *c, const struct mla_tensor *t, uint64_t row_bytes)
{
    const struct app_table_set *set = c->job->tables;
    struct {
        __int128 stride, n;
    } dims[3] = {
        {t->head_stride, c->d->heads},
        {t->token_stride, t->compact ? (__int128)set->tokens : set->max_q_len},
        {t->seq_stride, t->compact ? 1 : set->n_seqs_used},
    };
    for (unsigned i = 0; i < 3; i++) {
        if (dims[i].stride < 0)
            dims[i].stride = -dims[i].stride;
        for (unsigned k = i; k > 0 && dims[k].stride < dims[k - 1].stride; k--) {
            __int128 stride = dims[k].stride, n = dims[k].n;
            dims[k] = dims[k - 1];
            dims[k - 1].stride = stride;
            dims[k - 1].n = n;
        }
    }
    __int128 span = row_bytes;
    for (unsigned i = 0; i < 3; i++) {
        if (dims[i].n <= 1)
            continue;
        if (dims[i].stride < span)
            return true;
        span += (dims[i].n - 1) * dims[i].stride;
    }
    return false;
}

static int tensor(struct check *c, const struct mla_tensor *t, struct tensor_fields names, uint64_t row_bytes,
                  uint64_t align, bool write, struct mla_abi_tensor *abi)
{
    struct app_region *region = memory_find(c->client, t->region, names.region, c->err);
    if (region == NULL)
        return (int)c->err->code;
    if (region->mem.sync)
        return refuse(c, MLA_NOT_FOUND, names.region, t->region, 0, "no such region on this connection");
    if (write && region->mem.access != MLA_ACCESS_READ_WRITE)
        return refuse(c, MLA_ACCESS_DENIED, names.region, t->region, 0, "the region was registered for reading only");
    if (t->offset % align != 0)
        return refuse(c, MLA_MISALIGNED, names.offset, t->offset, align, "the offset is not aligned");
    const struct {
        int64_t stride;
        const char *name;
    } strides[] = {{t->compact ? 0 : t->seq_stride, names.seq_stride},
                   {t->token_stride, names.token_stride},
                   {t->head_stride, names.head_stride}};
    for (unsigned i = 0; i < 3; i++)
        if (strides[i].stride % (int64_t)align != 0)
            return refuse(c, MLA_MISALIGNED, strides[i].name, (uint64_t)strides[i].stride, align,
                          "the stride is not aligned");
    struct extent e = {NULL, 0, 0, names.whole};
    if (c->job->tables->tokens > 0) {
        __int128 low, high;
        row_bounds(c, t, &low, &high);
        low += t->offset;
        high += (__int128)t->offset + row_bytes;
        if (low < 0 || high > (__int128)region->mem.size)
            return refuse(c, MLA_OUT_OF_BOUNDS, names.offset, t->offset, region->mem.size,
                          "rows of the tensor leave its region");
        if (write && rows_collide(c, t, row_bytes))
            return refuse(c, MLA_OVERLAP, names.whole, 0, 0, "rows of the output overlap each other");
        e = (struct extent){region, (uint64_t)low, (uint64_t)high, names.whole};
    }
    pin_region(c, region);
    *abi = (struct mla_abi_tensor){.base = region->mem.address + t->offset,
                                   .seq_stride = t->seq_stride,
                                   .token_stride = t->token_stride,
                                   .head_stride = t->head_stride,
                                   .compact = t->compact};
    if (write)
        c->outputs[c->n_outputs++] = e;
    else
        c->inputs[c->n_inputs++] = e;
    return 0;
}

/* ---- the parts of a request ---- */

static int cache_and_tables(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    struct app_job *job = c->job;
    job->cache = cache_find(c->client, d->cache, c->err);
    if (job->cache == NULL)
        return (int)c->err->code;
    const struct app_cache *cache = job->cache;
    if (cache->region->state != REGION_MAPPED)
        return refuse(c, MLA_SUSPENDED, "cache", d->cache, 0, "its region is suspended");
    if (d->plane >= cache->n_planes)
        return refuse(c, MLA_OUT_OF_BOUNDS, "plane", d->plane, cache->n_planes - 1, "the cache has fewer planes");
    HASH_FIND(hh, c->client->table_sets, &d->table_set, sizeof(d->table_set), job->tables);
    const struct app_table_set *set = job->tables;
    if (set == NULL)
        return refuse(c, MLA_NOT_FOUND, "table_set", d->table_set, 0, "no table set of that id on this connection");
    if (set->tokens_per_entry != cache->tokens_per_entry)
        return refuse(c, MLA_INVALID_ARGUMENT, "table_set", set->tokens_per_entry, cache->tokens_per_entry,
                      "its tokens_per_entry is not the cache's");
    if (set->tokens * d->heads > MLA_ROWS_PER_JOB_MAX)
        return refuse(c, MLA_TOO_LARGE, "heads", set->tokens * d->heads, MLA_ROWS_PER_JOB_MAX,
                      "too many query rows for one job");
    pin(c, &job->cache->object);
    pin_region(c, cache->region);
    pin(c, &job->tables->object);

    struct mla_abi_job *abi = &job->abi;
    uint64_t plane = cache->offset + cache->plane_offset[d->plane];
    abi->kv = cache->region->mem.address + plane;
    abi->page_stride = cache->page_stride;
    abi->row_stride = cache->row_stride;
    abi->num_pages = cache->num_pages;
    abi->pages_per_entry = cache->tokens_per_entry / MLA_PAGE_TOKENS;
    abi->n_seqs = set->n_seqs;
    c->inputs[c->n_inputs++] = (struct extent){cache->region, plane,
                                               plane + (cache->num_pages - 1) * cache->page_stride +
                                                   (uint64_t)(MLA_PAGE_TOKENS - 1) * cache->row_stride + MLA_QK_DIM,
                                               "cache"};
    return 0;
}

static int table(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    const struct app_table_set *set = c->job->tables;
    if (set->pages != NULL) {
        if (d->table_ref.present)
            return refuse(c, MLA_INVALID_ARGUMENT, "table_ref", 0, 0, "the table set has pages of its own");
        c->job->abi.table = mirror_address(set);
        c->job->table_entries_per_seq = set->entries_per_seq;
        return 0;
    }
    if (!d->table_ref.present) {
        if (set->max_entries > 0)
            return refuse(c, MLA_INVALID_ARGUMENT, "table_ref", 0, 0,
                          "the table set has no pages, so this must be given");
        return 0;
    }
    if (d->table_entries_per_seq < set->max_entries)
        return refuse(c, MLA_OUT_OF_BOUNDS, "table_entries_per_seq", d->table_entries_per_seq, set->max_entries,
                      "a sequence needs more table entries");
    struct extent e;
    int r = range(c, &d->table_ref, (struct range_fields)RANGE("table_ref"),
                  (uint64_t)set->n_seqs * d->table_entries_per_seq * sizeof(int32_t), sizeof(int32_t), false, &e);
    if (r != 0)
        return r;
    c->inputs[c->n_inputs++] = e;
    c->job->abi.table = address_of(&e);
    c->job->table_entries_per_seq = d->table_entries_per_seq;
    return 0;
}

static int mask_and_lengths(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    const struct app_table_set *set = c->job->tables;
    struct mla_abi_job *abi = &c->job->abi;
    struct extent e;
    abi->mask = d->mask;
    bool host = d->n_visible > 0, device = d->visible_ref.present;
    if (d->mask != MLA_MASK_VISIBLE && (host || device))
        return refuse(c, MLA_INVALID_ARGUMENT, host ? "visible" : "visible_ref", 0, 0, "only mask VISIBLE has counts");
    if (d->mask == MLA_MASK_VISIBLE) {
        if (host && device)
            return refuse(c, MLA_INVALID_ARGUMENT, "visible_ref", 0, 0, "visible is given as well");
        if (!device && d->n_visible != set->tokens)
            return refuse(c, MLA_INVALID_ARGUMENT, "visible", d->n_visible, set->tokens,
                          "one count per query token is needed");
        if (device) {
            int r = range(c, &d->visible_ref, (struct range_fields)RANGE("visible_ref"), set->tokens * sizeof(int32_t),
                          sizeof(int32_t), false, &e);
            if (r != 0)
                return r;
            c->inputs[c->n_inputs++] = e;
            abi->visible = address_of(&e);
        }
    }
    if (d->kv_len_ref.present) {
        int r = range(c, &d->kv_len_ref, (struct range_fields)RANGE("kv_len_ref"),
                      (uint64_t)set->n_seqs * sizeof(int32_t), sizeof(int32_t), false, &e);
        if (r != 0)
            return r;
        c->inputs[c->n_inputs++] = e;
        abi->kv_len = address_of(&e);
    }
    return 0;
}

static uint64_t out_row_bytes(enum mla_dtype type)
{
    return (uint64_t)MLA_V_DIM * (type == MLA_DTYPE_F32 ? 4u : type == MLA_DTYPE_BF16 ? 2u : 1u);
}

static int tensors(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    struct mla_abi_job *abi = &c->job->abi;
    abi->heads = d->heads;
    abi->out_type = d->out_type;
    int r = tensor(c, &d->q, (struct tensor_fields)TENSOR("q"), d->q_rope.present ? MLA_V_DIM : MLA_QK_DIM,
                   MLA_ALIGN_BYTES, false, &abi->q);
    if (r == 0 && d->q_rope.present)
        r = tensor(c, &d->q_rope, (struct tensor_fields)TENSOR("q_rope"), MLA_ROPE_DIM, MLA_ALIGN_BYTES, false,
                   &abi->q_rope);
    if (r == 0)
        r = tensor(c, &d->o, (struct tensor_fields)TENSOR("o"), out_row_bytes(d->out_type), MLA_ALIGN_BYTES, true,
                   &abi->o);
    if (r == 0 && d->lse.present)
        r = tensor(c, &d->lse, (struct tensor_fields)TENSOR("lse"), sizeof(float), sizeof(float), true, &abi->lse);
    return r;
}

static int scales(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    struct mla_abi_job *abi = &c->job->abi;
    abi->kv_scale = d->kv_scale;
    abi->score_scale = d->softmax_scale * d->q_scale * d->kv_scale;
    abi->inv_out_scale = 1.0f / d->out_scale;
    if (!isfinite(abi->score_scale) || abi->score_scale == 0)
        return refuse(c, MLA_NON_FINITE, "softmax_scale", 0, 0,
                      "the product of softmax_scale, q_scale and kv_scale leaves float32");
    if (!isfinite(abi->inv_out_scale) || abi->inv_out_scale == 0)
        return refuse(c, MLA_NON_FINITE, "out_scale", 0, 0, "its inverse leaves float32");
    return 0;
}

static int words(struct check *c)
{
    const struct mla_decode_request *d = c->d;
    struct app_job *job = c->job;
    struct extent e;
    int r = 0;
    if (d->ready.present) {
        uint64_t *ready = NULL;
        r = word(c, &d->ready, (struct range_fields)RANGE("ready"), &ready);
        job->ready_word = ready;
        job->ready_value = d->ready_value;
    }
    if (r == 0 && d->done.present) {
        r = word(c, &d->done, (struct range_fields)RANGE("done"), &job->done_word);
        job->done_value = d->done_value;
        if (r == 0 && job->done_word == job->ready_word)
            r = refuse(c, MLA_OVERLAP, "done", 0, 0, "ready and done are the same word");
    }
    if (r == 0 && d->status_ref.present) {
        r = range(c, &d->status_ref, (struct range_fields)RANGE("status_ref"),
                  (uint64_t)job->tables->n_seqs * sizeof(uint64_t), sizeof(uint64_t), true, &e);
        if (r == 0) {
            c->outputs[c->n_outputs++] = e;
            job->abi.user_status = address_of(&e);
        }
    }
    return r;
}

static bool meet(const struct extent *a, const struct extent *b)
{
    return a->region != NULL && a->region == b->region && a->begin < b->end && b->begin < a->end;
}

static int overlaps(struct check *c)
{
    for (unsigned i = 0; i < c->n_outputs; i++) {
        for (unsigned k = 0; k < c->n_inputs; k++)
            if (meet(&c->outputs[i], &c->inputs[k]))
                return (int)mla_error_set(c->err, MLA_OVERLAP, c->outputs[i].field, "%s would overwrite %s",
                                          c->outputs[i].field, c->inputs[k].field);
        for (unsigned k = 0; k < i; k++)
            if (meet(&c->outputs[i], &c->outputs[k]))
                return (int)mla_error_set(c->err, MLA_OVERLAP, c->outputs[i].field, "%s would overwrite %s",
                                          c->outputs[i].field, c->outputs[k].field);
    }
    return 0;
}

int decode_check(struct app_client *client, const struct mla_decode_request *decode, struct app_job *job,
                 struct mla_error *err)
{
    struct check c = {.client = client, .d = decode, .job = job, .err = err};
    static int (*const parts[])(struct check *) = {cache_and_tables, table, mask_and_lengths, tensors,
                                                   scales,           words, overlaps};
    for (unsigned i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        int r = parts[i](&c);
        if (r != 0)
            return r;
    }
    job->batch_invariant = decode->batch_invariant;
    return 0;
}
