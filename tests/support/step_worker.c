#include "tests/support/step_worker.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define TABLES   900
#define ROW      576
#define V_DIM    512
#define WAIT_US  (UINT64_C(20000000) * TEST_SLOW)
#define POOL_PGS (STEP_PAGES + STEP_LAYERS) /* plane l begins with page l */

static const uint32_t q_len[STEP_SEQS] = {1, 1}, kv_len_max[STEP_SEQS] = {STEP_KV_MAX, STEP_KV_MAX};
/* Some are shorter than a page, one is nothing. */
static const int32_t lengths[STEP_VARIANTS][STEP_SEQS] = {{200, 63}, {64, 0}, {129, 180}};

static struct mla_view view(const struct step_worker *w, uint64_t at, uint64_t row_bytes)
{
    struct mla_view v;
    memset(&v, 0, sizeof(v));
    v.region = w->region;
    v.offset = at;
    v.head_stride = (int64_t)row_bytes;
    v.token_stride = (int64_t)(row_bytes * STEP_HEADS);
    v.compact = true;
    return v;
}

static void make_cache(struct step_worker *w, uint64_t seed)
{
    struct mla_cache_desc desc;
    uint64_t planes[STEP_LAYERS];
    for (uint32_t i = 0; i < w->n_layers; i++)
        planes[i] = (uint64_t)i * WORKER_PAGE_BYTES;
    worker_ops->create((uint64_t)POOL_PGS * WORKER_PAGE_BYTES, &w->pages, &w->pages_device);
    worker_fill(w->pages.addr, (size_t)POOL_PGS * WORKER_PAGE_BYTES, seed);
    worker_ops->push(&w->pages, w->pages_device, 0, (uint64_t)POOL_PGS * WORKER_PAGE_BYTES);
    worker_ok(w->client,
              worker_ops->share(w->client, &w->pages, w->pages_device, MLA_ACCESS_READ, "planes", &w->pages_region));
    mla_cache_desc_init(&desc);
    desc.region = w->pages_region;
    desc.num_pages = STEP_PAGES;
    desc.plane_offset = planes;
    desc.n_planes = w->n_layers;
    worker_ok(w->client, mla_cache_define(w->client, &desc, WORKER_TIMEOUT_US, &w->cache));
}

static void make_memory(struct step_worker *w)
{
    w->q_at = STEP_INPUTS;
    w->o_at = w->q_at + w->n_layers * STEP_Q_BYTES;
    w->lse_at = w->o_at + w->n_layers * STEP_O_BYTES;
    w->status_at = w->lse_at + w->n_layers * STEP_LSE_BYTES;
    w->bytes = w->status_at + w->n_layers * STEP_STATUS_BYTES;
    worker_ops->create(w->bytes, &w->memory, &w->device);
    memset(w->memory.addr, 0, w->bytes);
    worker_ops->push(&w->memory, w->device, 0, w->bytes);
    worker_ok(w->client,
              worker_ops->share(w->client, &w->memory, w->device, MLA_ACCESS_READ_WRITE, "step", &w->region));
}

static void make_args(struct step_worker *w)
{
    struct mla_tables tables;
    mla_tables_init(&tables);
    tables.id = TABLES;
    tables.n_seqs = STEP_SEQS;
    tables.q_len = q_len;
    tables.kv_len_max = kv_len_max;
    worker_ok(w->client, mla_tables_put(w->client, &tables, WORKER_TIMEOUT_US));
    for (uint32_t i = 0; i < w->n_layers; i++) {
        struct mla_decode_args *a = &w->args[i];
        mla_decode_args_init(a);
        a->cache = w->cache;
        a->plane = i;
        a->tables = TABLES;
        a->heads = STEP_HEADS;
        a->q = view(w, w->q_at + i * STEP_Q_BYTES, ROW);
        a->o = view(w, w->o_at + i * STEP_O_BYTES, 4 * V_DIM);
        a->lse = view(w, w->lse_at + i * STEP_LSE_BYTES, 4);
        a->out_type = MLA_DTYPE_F32;
        a->softmax_scale = 1.0f / 24.0f;
        a->kv_len = (struct mla_location){w->region, STEP_KV_LEN_AT};
        a->table = (struct mla_location){w->region, STEP_TABLE_AT};
        a->table_entries_per_seq = STEP_ENTRIES;
        a->ready = mla_sync_location(w->words, 2 * i);
        a->done = mla_sync_location(w->words, 2 * i + 1);
        a->status = (struct mla_location){w->region, w->status_at + i * STEP_STATUS_BYTES};
    }
}

static void make_variants(struct step_worker *w)
{
    for (uint32_t v = 0; v < STEP_VARIANTS; v++) {
        memcpy(w->variants[v].kv_len, lengths[v], sizeof(lengths[v]));
        for (uint32_t e = 0; e < STEP_SEQS * STEP_ENTRIES; e++)
            w->variants[v].table[e] = (int32_t)((e * 5 + v * 3) % STEP_PAGES);
    }
}

void step_worker_new(struct mla_client *client, struct step_worker *w, uint32_t n_layers, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    w->client = client;
    w->n_layers = n_layers;
    make_cache(w, seed);
    make_memory(w);
    worker_ok(client, mla_sync_create(client, 2 * n_layers, WORKER_TIMEOUT_US, &w->words));
    make_args(w);
    make_variants(w);
    worker_fill((uint8_t *)w->memory.addr + w->q_at, n_layers * STEP_Q_BYTES, seed + 1);
    step_worker_open(w);
}

void step_worker_open(struct step_worker *w)
{
    worker_ok(w->client, mla_template_open(w->client, w->args, w->n_layers, WORKER_TIMEOUT_US, &w->tmpl));
}

void step_worker_free(struct mla_client *client, struct step_worker *w)
{
    ck_assert_int_eq(mla_template_close(w->tmpl, WORKER_TIMEOUT_US), MLA_OK);
    if (client != NULL) {
        worker_ok(client, mla_tables_drop(client, TABLES, WORKER_TIMEOUT_US));
        worker_ok(client, mla_cache_drop(client, w->cache, WORKER_TIMEOUT_US));
        worker_ok(client, mla_region_unregister(client, w->region, WORKER_TIMEOUT_US));
        worker_ok(client, mla_region_unregister(client, w->pages_region, WORKER_TIMEOUT_US));
    }
    ck_assert_int_eq(mla_sync_destroy(w->words, WORKER_TIMEOUT_US), MLA_OK);
    worker_ops->free(&w->memory, w->device);
    worker_ops->free(&w->pages, w->pages_device);
    for (uint32_t v = 0; v < STEP_VARIANTS; v++) {
        for (uint32_t i = 0; i < STEP_LAYERS; i++) {
            free(w->variants[v].o[i]);
            free(w->variants[v].lse[i]);
        }
    }
}

void step_worker_fill(struct step_worker *w, uint32_t variant)
{
    uint8_t *at = w->memory.addr;
    memcpy(at + STEP_KV_LEN_AT, w->variants[variant].kv_len, sizeof(w->variants[variant].kv_len));
    memcpy(at + STEP_TABLE_AT, w->variants[variant].table, sizeof(w->variants[variant].table));
    memset(at + w->o_at, WORKER_POISON, w->bytes - w->o_at);
}

/* ---- checking ---- */

static struct ref_tensor tensor(const struct step_worker *w, uint64_t at, uint64_t row_bytes)
{
    return (struct ref_tensor){.base = (uint8_t *)w->memory.addr + at,
                               .token_stride = (int64_t)(row_bytes * STEP_HEADS),
                               .head_stride = (int64_t)row_bytes,
                               .compact = true};
}

static void check_layer(struct step_worker *w, uint32_t variant, uint32_t i)
{
    static const uint64_t table_first[STEP_SEQS] = {0, STEP_ENTRIES};
    const struct ref_job job = {.heads = STEP_HEADS,
                                .n_seqs = STEP_SEQS,
                                .q_len = q_len,
                                .kv_len_max = kv_len_max,
                                .kv_len = w->variants[variant].kv_len,
                                .q = tensor(w, w->q_at + i * STEP_Q_BYTES, ROW),
                                .kv = (const uint8_t *)w->pages.addr + (uint64_t)i * WORKER_PAGE_BYTES,
                                .page_stride = WORKER_PAGE_BYTES,
                                .row_stride = ROW,
                                .num_pages = STEP_PAGES,
                                .pages_per_entry = 1,
                                .table = w->variants[variant].table,
                                .table_first = table_first,
                                .mask = MLA_MASK_CAUSAL,
                                .softmax_scale = (double)(1.0f / 24.0f),
                                .q_scale = 1,
                                .kv_scale = 1};
    const struct ref_output out = {.out_type = MLA_DTYPE_F32,
                                   .o = tensor(w, w->o_at + i * STEP_O_BYTES, 4 * V_DIM),
                                   .lse = tensor(w, w->lse_at + i * STEP_LSE_BYTES, 4),
                                   .out_scale = 1,
                                   .accuracy = worker_ops->accuracy};
    double **o = &w->variants[variant].o[i], **lse = &w->variants[variant].lse[i];
    struct ref_report report;
    if (*o == NULL) {
        *o = calloc(STEP_SEQS * STEP_HEADS * V_DIM, sizeof(double));
        *lse = calloc(STEP_SEQS * STEP_HEADS, sizeof(double));
        ck_assert(*o != NULL && *lse != NULL);
        ck_assert_int_eq(ref_decode(&job, *o, *lse, NULL), 0);
    }
    bool good = ref_compare(&job, *o, *lse, NULL, &out, &report);
    ck_assert_msg(good, "variant %u, layer %u: %s", variant, i, report.text);
    ck_assert_msg(report.rel_l2 <= worker_ops->rel_l2 + 1e-5, "variant %u, layer %u: relative L2 error %g", variant, i,
                  report.rel_l2);
}

void step_worker_check(struct step_worker *w, uint32_t variant)
{
    for (uint32_t i = 0; i < w->n_layers; i++)
        check_layer(w, variant, i);
}

/* ---- words ---- */

uint64_t *step_ready(const struct step_worker *w, uint32_t layer)
{
    return mla_sync_word(w->words, 2 * layer);
}

uint64_t *step_done(const struct step_worker *w, uint32_t layer)
{
    return mla_sync_word(w->words, 2 * layer + 1);
}

bool step_worker_stream(struct step_worker *w, uint32_t first, uint32_t end)
{
    bool good = true;
    for (uint32_t i = first; i < end; i++) {
        mla_word_store(step_ready(w, i), 1);
        uint64_t until = test_now_us() + WAIT_US, now;
        while (!mla_word_reached(now = mla_word_load(step_done(w, i)), 1)) {
            ck_assert_msg(test_now_us() < until, "the done word of layer %u does not come", i);
            sched_yield();
        }
        good &= !mla_word_aborted(now, 1);
    }
    return good;
}

void step_worker_wait(struct step_worker *w, mla_request_id request, enum mla_status expected)
{
    mla_step_result_init(&w->result);
    worker_expect(w->client, mla_step_wait(w->client, request, WORKER_TIMEOUT_US, &w->result), expected);
}
