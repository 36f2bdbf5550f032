#include "tests/support/long_job.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/limits.h"

#include "tests/support/gpu_daemon.h"

#define KEYS     (LONG_JOB_PAGES * 64u)
#define Q_DIM    576u
#define V_DIM    512u
#define SEQS_MAX MLA_SEQS_PER_JOB_MAX

/* A kernel's unit of rows takes as long for one row as for all it has room for. So a GPU is kept busy with the least
 * memory by sequences of one row each: 11 KiB for a context of 131,072 keys, most of it the table. By the planner's
 * cost model for the H200, 15,000 of them take 600 ms. Longer contexts would all be cut, and need memory for the
 * results of the pieces. A processor of the fake driver computes no more than there is: it gets rows, and short
 * contexts. */
static uint32_t heads(void)
{
    return gpu_is_fake() ? 16 : 1;
}

static uint32_t repeats(void)
{
    return gpu_is_fake() ? 1 : 131072 / KEYS;
}

static struct worker_shape shape_once(void)
{
    struct worker_shape s = {.heads = heads(), .n_seqs = WORKER_SEQS_MAX, .mask = MLA_MASK_NONE, .seed = 5};
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.q_len[i] = 1;
        s.kv_len[i] = KEYS;
    }
    s.head_step = heads() - 1;
    return s;
}

/* Q, table, O and LSE in one region. */
static void make_memory(struct worker_job *job, const struct worker_job *once, uint32_t n_seqs, uint64_t *table_at)
{
    const uint64_t entries = (uint64_t)LONG_JOB_PAGES * repeats(), rows = (uint64_t)n_seqs * heads();
    const size_t q_bytes = (size_t)heads() * Q_DIM;
    *table_at = (rows * Q_DIM + 63) & ~UINT64_C(63);
    job->o_at = (*table_at + n_seqs * entries * sizeof(uint32_t) + 63) & ~UINT64_C(63);
    job->lse_at = job->o_at + rows * V_DIM * sizeof(float);
    job->bytes = job->lse_at + rows * sizeof(float);
    worker_ops->create(job->bytes, &job->memory, &job->device);
    uint8_t *q = job->memory.addr;
    uint32_t *table = (uint32_t *)(void *)(q + *table_at);
    for (uint32_t i = 0; i < n_seqs; i++) {
        memcpy(q + i * q_bytes, (const uint8_t *)once->memory.addr + i % WORKER_SEQS_MAX * q_bytes, q_bytes);
        for (uint64_t e = 0; e < entries; e++)
            table[i * entries + e] = (uint32_t)((i + e) % LONG_JOB_PAGES);
    }
    worker_ok(job->client,
              worker_ops->share(job->client, &job->memory, job->device, MLA_ACCESS_READ_WRITE, "long", &job->region));
}

/* Tables in a region: they are more than a message holds. */
static void make_tables(struct worker_job *job, uint32_t n_seqs)
{
    static mla_tables_id last = UINT32_MAX;
    uint32_t *lens = calloc(2 * (size_t)n_seqs, sizeof(uint32_t));
    ck_assert_ptr_nonnull(lens);
    for (uint32_t i = 0; i < n_seqs; i++) {
        lens[i] = 1;
        lens[n_seqs + i] = KEYS * repeats();
    }
    mla_tables_init(&job->tables);
    job->tables.id = ++last;
    job->tables.n_seqs = n_seqs;
    job->tables.q_len = lens;
    job->tables.kv_len_max = lens + n_seqs;
    worker_ok(job->client, mla_tables_put(job->client, &job->tables, WORKER_TIMEOUT_US));
    job->tables.q_len = job->tables.kv_len_max = NULL;
    free(lens);
}

static void make_job(struct worker_job *job, const struct worker_job *once, uint32_t n_seqs)
{
    uint64_t table_at;
    memset(job, 0, sizeof(*job));
    job->client = once->client;
    make_memory(job, once, n_seqs, &table_at);
    make_tables(job, n_seqs);
    job->args = once->args;
    job->args.tables = job->tables.id;
    job->args.table = (struct mla_location){.region = job->region, .offset = table_at};
    job->args.table_entries_per_seq = LONG_JOB_PAGES * repeats();
    job->args.q.region = job->args.o.region = job->args.lse.region = job->region;
    job->args.o.offset = job->o_at;
    job->args.lse.offset = job->lse_at;
    worker_job_poison(job);
}

static uint64_t measure(const struct worker_job *once, uint32_t n_seqs)
{
    struct worker_job job;
    make_job(&job, once, n_seqs);
    worker_job_run(&job); /* first touch */
    worker_job_run(&job);
    uint64_t us = job.result.run_us > 0 ? job.result.run_us : 1;
    worker_job_free(once->client, &job);
    return us;
}

static uint32_t seqs_for(unsigned ms, uint32_t some, uint64_t us)
{
    uint64_t n = some * UINT64_C(1000) * ms / us;
    return (uint32_t)(n < 1 ? 1 : n > SEQS_MAX ? SEQS_MAX : n);
}

void long_job_new(struct mla_client *client, struct long_job *l, mla_cache_id cache, const uint8_t *pages, unsigned ms)
{
    struct worker_shape s = shape_once();
    worker_job_new(client, &l->once, cache, pages, LONG_JOB_PAGES, &s);
    worker_job_run(&l->once);
    worker_job_check(&l->once);
    l->repeats = repeats();
    uint32_t some = gpu_is_fake() ? 16 : 512;
    l->n_seqs = seqs_for(ms, some, measure(&l->once, some));
    /* On a fast device the first measurement has much of what a launch costs; the second has not. */
    if (l->n_seqs > 4 * some)
        l->n_seqs = seqs_for(ms, l->n_seqs / 4, measure(&l->once, l->n_seqs / 4));
    make_job(&l->job, &l->once, l->n_seqs);
}

static const float *floats(const struct worker_job *job, uint64_t at)
{
    return (const float *)(const void *)((const uint8_t *)job->memory.addr + at);
}

void long_job_check(struct long_job *l)
{
    const float *o = floats(&l->job, l->job.o_at), *lse = floats(&l->job, l->job.lse_at);
    const float *o1 = floats(&l->once, l->once.o_at), *lse1 = floats(&l->once, l->once.lse_at);
    const uint64_t once_rows = (uint64_t)WORKER_SEQS_MAX * heads(), rows = (uint64_t)l->n_seqs * heads();
    const double bound = 2e-3 + 2 * worker_ops->rel_l2;
    double all_error = 0, all = 0;
    for (uint64_t i = 0; i < rows; i++) {
        const uint64_t k = i % once_rows;
        double row_error = 0, row = 0;
        for (uint64_t v = 0; v < V_DIM; v++) {
            double a = (double)o[i * V_DIM + v], b = (double)o1[k * V_DIM + v];
            row_error += (a - b) * (a - b);
            row += b * b;
        }
        ck_assert_msg(sqrt(row_error / row) <= 2 * bound, "relative L2 error of row %llu: %g", (unsigned long long)i,
                      sqrt(row_error / row));
        ck_assert_msg(fabs((double)lse[i] - (double)lse1[k] - log(l->repeats)) < 0.02, "LSE of row %llu: %g, not %g",
                      (unsigned long long)i, (double)lse[i], (double)lse1[k] + log(l->repeats));
        all_error += row_error;
        all += row;
    }
    ck_assert_msg(sqrt(all_error / all) <= bound, "relative L2 error %g", sqrt(all_error / all));
}

void long_job_free(struct mla_client *client, struct long_job *l)
{
    worker_job_free(client, &l->once);
    worker_job_free(client, &l->job);
}
