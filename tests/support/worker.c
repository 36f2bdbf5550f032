#include "tests/support/worker.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fp8.h"
#include "tests/support/prng.h"

#define Q_DIM 576u
#define V_DIM 512u

static void take_memfd(uint64_t bytes, struct mla_memory *memory, void **device)
{
    *device = NULL;
    ck_assert_int_eq(mla_memory_create(bytes, 0, memory), MLA_OK);
}

static enum mla_status share_memfd(struct mla_client *client, const struct mla_memory *memory, void *device,
                                   enum mla_access access, const char *label, mla_region_id *region)
{
    (void)device;
    return mla_memory_register(client, memory, access, label, WORKER_TIMEOUT_US, region);
}

static void same_memfd(const struct mla_memory *memory, void *device, uint64_t offset, uint64_t bytes)
{
    (void)memory;
    (void)device;
    (void)offset;
    (void)bytes;
}

static void free_memfd(struct mla_memory *memory, void *device)
{
    (void)device;
    mla_memory_free(memory);
}

static const struct worker_ops memfd_ops = {.create = take_memfd,
                                            .share = share_memfd,
                                            .push = same_memfd,
                                            .pull = same_memfd,
                                            .free = free_memfd,
                                            .accuracy = REF_ACCURACY_F32_P,
                                            .rel_l2 = 1e-5};
const struct worker_ops *worker_ops = &memfd_ops;

struct mla_client *worker_open(const char *socket, const char *name)
{
    struct mla_options options;
    struct mla_client *client = NULL;
    struct mla_error_info error;
    mla_options_init(&options);
    options.recover_us = 0;
    options.socket_path = socket;
    options.name = name;
    options.flags = MLA_OPEN_WAIT;
    options.timeout_us = WORKER_TIMEOUT_US;
    enum mla_status status = mla_open(&options, &client, &error);
    ck_assert_msg(status == MLA_OK, "mla_open: %s: %s", mla_errname(status), error.text);
    return client;
}

void worker_fill(uint8_t *bytes, size_t n, uint64_t seed)
{
    static uint8_t normal[4096];
    struct prng p = {1};
    for (size_t i = 0; normal[0] == 0 && i < sizeof(normal); i++)
        normal[sizeof(normal) - 1 - i] = fp8_encode(prng_normal(&p));
    p.state = seed;
    for (size_t i = 0; i < n; i++)
        bytes[i] = normal[prng_u64(&p) % sizeof(normal)];
}

void worker_pool_new(struct mla_client *client, struct worker_pool *pool, uint32_t num_pages, uint64_t seed)
{
    struct mla_cache_desc desc;
    memset(pool, 0, sizeof(*pool));
    pool->num_pages = num_pages;
    worker_ops->create((uint64_t)num_pages * WORKER_PAGE_BYTES, &pool->memory, &pool->device);
    worker_fill(pool->memory.addr, (size_t)num_pages * WORKER_PAGE_BYTES, seed);
    worker_ops->push(&pool->memory, pool->device, 0, (uint64_t)num_pages * WORKER_PAGE_BYTES);
    worker_ok(client, worker_ops->share(client, &pool->memory, pool->device, MLA_ACCESS_READ, "pool", &pool->region));
    mla_cache_desc_init(&desc);
    desc.region = pool->region;
    desc.num_pages = num_pages;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &pool->cache));
}

void worker_pool_free(struct mla_client *client, struct worker_pool *pool)
{
    if (client != NULL) {
        worker_ok(client, mla_cache_drop(client, pool->cache, WORKER_TIMEOUT_US));
        worker_ok(client, mla_region_unregister(client, pool->region, WORKER_TIMEOUT_US));
    }
    worker_ops->free(&pool->memory, pool->device);
}

static size_t out_bytes(enum mla_dtype type)
{
    return type == MLA_DTYPE_F32 ? 4 : type == MLA_DTYPE_BF16 ? 2 : 1;
}

static struct mla_view view(const struct worker_job *job, uint64_t at, uint64_t row_bytes)
{
    struct mla_view v;
    memset(&v, 0, sizeof(v));
    v.region = job->region;
    v.offset = at;
    v.head_stride = (int64_t)row_bytes;
    v.token_stride = (int64_t)(row_bytes * job->shape.heads);
    v.compact = true;
    return v;
}

static struct ref_tensor tensor(const struct worker_job *job, uint64_t at, uint64_t row_bytes)
{
    return (struct ref_tensor){.base = (uint8_t *)job->memory.addr + at,
                               .token_stride = (int64_t)(row_bytes * job->shape.heads),
                               .head_stride = (int64_t)row_bytes,
                               .compact = true};
}

/* Page ids of all sequences, packed. */
static void make_tables(struct worker_job *job, uint32_t num_pages)
{
    struct worker_shape *s = &job->shape;
    static mla_tables_id last = 100;
    size_t n = 0, at = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        n += (s->kv_len[i] + 63u) / 64u;
    job->entries = calloc(n + 1, sizeof(uint32_t));
    ck_assert_ptr_nonnull(job->entries);
    for (uint32_t i = 0; i < s->n_seqs; i++) {
        job->table_first[i] = at;
        for (uint32_t e = 0; e < (s->kv_len[i] + 63u) / 64u; e++)
            job->entries[at++] = (uint32_t)((i + e * UINT64_C(7)) % num_pages);
    }
    if (s->page_ids != NULL)
        memcpy(job->entries, s->page_ids, n * sizeof(uint32_t));
    mla_tables_init(&job->tables);
    job->tables.id = ++last;
    job->tables.n_seqs = s->n_seqs;
    job->tables.q_len = s->q_len;
    job->tables.kv_len_max = s->kv_len;
    job->tables.entries = job->entries;
    job->tables.n_entries = n;
    worker_ok(job->client, mla_tables_put(job->client, &job->tables, WORKER_TIMEOUT_US));
}

static void make_memory(struct worker_job *job)
{
    const struct worker_shape *s = &job->shape;
    uint64_t rows = 0;
    for (uint32_t i = 0; i < s->n_seqs; i++)
        rows += (uint64_t)s->q_len[i] * s->heads;
    job->o_at = (rows * Q_DIM + 63) & ~UINT64_C(63);
    job->lse_at = job->o_at + rows * V_DIM * out_bytes(s->out_type);
    job->status_at = (job->lse_at + rows * 4 + 7) & ~UINT64_C(7);
    job->bytes = job->status_at + 8 * WORKER_SEQS_MAX;
    worker_ops->create(job->bytes, &job->memory, &job->device);
    worker_fill(job->memory.addr, rows * Q_DIM, s->seed + 1000);
    worker_ok(job->client,
              worker_ops->share(job->client, &job->memory, job->device, MLA_ACCESS_READ_WRITE, "job", &job->region));
}

static void make_args(struct worker_job *job, mla_cache_id cache)
{
    struct mla_decode_args *a = &job->args;
    const struct worker_shape *s = &job->shape;
    uint64_t row = V_DIM * out_bytes(s->out_type);
    mla_decode_args_init(a);
    a->cache = cache;
    a->tables = job->tables.id;
    a->heads = s->heads;
    a->q = view(job, 0, Q_DIM);
    a->o = view(job, job->o_at, row);
    a->lse = view(job, job->lse_at, 4);
    a->out_type = s->out_type;
    a->mask = s->mask;
    a->softmax_scale = 1.0f / 24.0f;
    a->kv_scale = s->kv_scale;
    a->out_scale = 1.0f / 16.0f; /* of e4m3 only: keeps outputs among the normal numbers */
    if (s->sync) {
        worker_ok(job->client, mla_sync_create(job->client, 4, WORKER_TIMEOUT_US, &job->page));
        a->ready = mla_sync_location(job->page, 0);
        a->done = mla_sync_location(job->page, 1);
        a->status.region = job->region;
        a->status.offset = job->status_at;
    }
}

static void make_reference(struct worker_job *job, const uint8_t *pages, uint32_t num_pages)
{
    const struct worker_shape *s = &job->shape;
    job->ref = (struct ref_job){.heads = s->heads,
                                .n_seqs = s->n_seqs,
                                .q_len = s->q_len,
                                .kv_len_max = s->kv_len,
                                .q = tensor(job, 0, Q_DIM),
                                .kv = pages,
                                .page_stride = WORKER_PAGE_BYTES,
                                .row_stride = 576,
                                .num_pages = num_pages,
                                .pages_per_entry = 1,
                                .table = (const int32_t *)job->entries,
                                .table_first = job->table_first,
                                .mask = s->mask,
                                .softmax_scale = (double)job->args.softmax_scale,
                                .q_scale = 1,
                                .kv_scale = (double)s->kv_scale,
                                .head_step = s->head_step};
    job->out = (struct ref_output){.out_type = s->out_type,
                                   .o = tensor(job, job->o_at, V_DIM * out_bytes(s->out_type)),
                                   .lse = tensor(job, job->lse_at, 4),
                                   .out_scale = (double)job->args.out_scale,
                                   .accuracy = worker_ops->accuracy};
}

void worker_job_new(struct mla_client *client, struct worker_job *job, mla_cache_id cache, const uint8_t *pages,
                    uint32_t num_pages, const struct worker_shape *shape)
{
    memset(job, 0, sizeof(*job));
    job->client = client;
    job->shape = *shape;
    if (job->shape.n_seqs == 0)
        job->shape.n_seqs = 1;
    if (job->shape.mask == 0)
        job->shape.mask = MLA_MASK_CAUSAL;
    if (job->shape.out_type == 0)
        job->shape.out_type = MLA_DTYPE_F32;
    if (job->shape.kv_scale == 0)
        job->shape.kv_scale = 1;
    make_memory(job);
    make_tables(job, num_pages);
    make_args(job, cache);
    make_reference(job, pages, num_pages);
    worker_job_poison(job);
}

void worker_job_poison(struct worker_job *job)
{
    memset((uint8_t *)job->memory.addr + job->o_at, WORKER_POISON, job->bytes - job->o_at);
    worker_ops->push(&job->memory, job->device, 0, job->bytes);
}

void worker_job_pull(struct worker_job *job)
{
    worker_ops->pull(&job->memory, job->device, job->o_at, job->bytes - job->o_at);
}

bool worker_job_untouched(const struct worker_job *job)
{
    const uint8_t *bytes = job->memory.addr;
    worker_ops->pull(&job->memory, job->device, job->o_at, job->bytes - job->o_at);
    for (uint64_t i = job->o_at; i < job->bytes; i++)
        if (bytes[i] != WORKER_POISON)
            return false;
    return true;
}

mla_request_id worker_job_submit(struct worker_job *job)
{
    mla_request_id request;
    worker_job_poison(job);
    worker_ok(job->client, mla_decode_submit(job->client, &job->args, NULL, NULL, &request));
    worker_expect(job->client, mla_dispatch(job->client, 0), MLA_PENDING); /* on its way now */
    return request;
}

void worker_job_wait(struct worker_job *job, mla_request_id request, enum mla_status expected)
{
    mla_decode_result_init(&job->result);
    worker_expect(job->client, mla_wait(job->client, request, WORKER_TIMEOUT_US, &job->result), expected);
    if (expected != MLA_DISCONNECTED && expected != MLA_DEVICE_LOST) /* the device may be gone too */
        worker_job_pull(job);
}

void worker_job_run(struct worker_job *job)
{
    worker_job_wait(job, worker_job_submit(job), MLA_OK);
}

void worker_job_check(struct worker_job *job)
{
    uint64_t rows = ref_tokens(&job->ref) * job->shape.heads;
    double *o = calloc(rows * V_DIM + 1, sizeof(double)), *lse = calloc(rows + 1, sizeof(double));
    uint64_t status[WORKER_SEQS_MAX];
    ck_assert(o != NULL && lse != NULL);
    ck_assert_int_eq(ref_decode(&job->ref, o, lse, status), 0);
    bool good = ref_compare(&job->ref, o, lse, status, &job->out, &job->report);
    ck_assert_msg(good, "%s", job->report.text);
    ck_assert_uint_gt(job->report.rows, 0);
    double bound = job->shape.out_type == MLA_DTYPE_F32 ? 0 : job->shape.out_type == MLA_DTYPE_BF16 ? 3e-3 : 4e-2;
    bound += worker_ops->rel_l2;
    ck_assert_msg(job->report.rel_l2 <= bound, "relative L2 error %g", job->report.rel_l2);
    free(o);
    free(lse);
}

void worker_job_free(struct mla_client *client, struct worker_job *job)
{
    if (client != NULL) {
        worker_ok(client, mla_tables_drop(client, job->tables.id, WORKER_TIMEOUT_US));
        worker_ok(client, mla_region_unregister(client, job->region, WORKER_TIMEOUT_US));
        ck_assert_int_eq(mla_sync_destroy(job->page, WORKER_TIMEOUT_US), MLA_OK);
    }
    free(job->entries);
    worker_ops->free(&job->memory, job->device);
}

struct worker_shape worker_long_shape(struct mla_client *client, const struct worker_pool *pool, unsigned ms)
{
    struct worker_shape shape = {.heads = 64, .q_len = {8}, .kv_len = {8192}, .head_step = 63, .seed = 5};
    struct worker_job job;
    worker_job_new(client, &job, pool->cache, pool->memory.addr, pool->num_pages, &shape);
    worker_job_run(&job); /* first touch */
    worker_job_run(&job);
    uint64_t us = job.result.run_us > 0 ? job.result.run_us : 1;
    worker_job_free(client, &job);
    uint64_t keys = UINT64_C(8192) * ms * 1000 / us;
    shape.kv_len[0] = (uint32_t)(keys < 8192 ? 8192 : keys > (1u << 20) ? 1u << 20 : keys);
    return shape;
}

double worker_metric(struct mla_client *client, const char *name, const char *labels)
{
    struct mla_metrics_info *info = NULL;
    double value = 0;
    bool found = false;
    worker_ok(client, mla_read_metrics(client, WORKER_TIMEOUT_US, &info));
    for (size_t i = 0; i < info->n_families; i++)
        for (size_t k = 0; strcmp(info->families[i]->name, name) == 0 && k < info->families[i]->n_samples; k++)
            if (strcmp(info->families[i]->samples[k].labels, labels) == 0) {
                value = info->families[i]->samples[k].value;
                found = true;
            }
    mla_free(info);
    ck_assert_msg(found, "no series %s{%s}", name, labels);
    return value;
}
