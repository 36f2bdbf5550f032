/* Decodes that cannot be planned, for want of pinned memory: alone, or only beside others. Those that can be are
 * answered as if alone, whoever came with them. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/worker_cuda.h"

/* A mebibyte holds the records of some 8,000 sequences of one row; decodes wait so long for each other. */
static const char *const sets[3] = {"device.host_bytes=1M", "scheduler.gather_us=100000",
                                    "scheduler.batch_seqs=200000"};
#define SMALL 2000u
#define LARGE 16000u /* these outputs are never written */

#define JOBS_MAX     12u
#define O_BYTES(n)   ((n)*UINT64_C(1024)) /* bf16 */
#define OUT_BYTES(n) ((n)*UINT64_C(1028)) /* O, LSE */
#define ONE_E4M3     0x38
#define ONE_BF16     0x3f80

struct plan_of_worker {
    const char *jobs; /* a letter each: s fits, alone and beside few others; L does not */
    unsigned batch_jobs_most;
};

static struct daemon d;

struct memory {
    struct mla_memory memory;
    void *device;
    mla_region_id region;
};

static void memory_of(struct mla_client *client, struct memory *m, uint64_t bytes, enum mla_access access)
{
    worker_ops->create(bytes, &m->memory, &m->device);
    memset(m->memory.addr, 0, bytes);
    worker_ok(client, worker_ops->share(client, &m->memory, m->device, access, "m", &m->region));
}

static bool sees(uint32_t seq)
{
    return seq % 100 == 7;
}

/* n_seqs sequences, of which some see the one page and the others nothing. */
static void put_tables(struct mla_client *client, mla_tables_id id, uint32_t n_seqs)
{
    static uint32_t q_len[LARGE], kv_len[LARGE], entries[LARGE];
    struct mla_tables t;
    size_t n_entries = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        q_len[i] = 1;
        kv_len[i] = sees(i) ? 64 : 0;
        n_entries += sees(i);
    }
    mla_tables_init(&t);
    t.id = id;
    t.n_seqs = n_seqs;
    t.q_len = q_len;
    t.kv_len_max = kv_len;
    t.entries = entries;
    t.n_entries = n_entries;
    worker_ok(client, mla_tables_put(client, &t, WORKER_TIMEOUT_US));
}

static struct mla_view view(mla_region_id region, uint64_t at, int64_t stride)
{
    return (struct mla_view){
        .region = region, .offset = at, .head_stride = stride, .token_stride = stride, .compact = true};
}

/* Queries of zero and values of one: a row of O is one, and LSE the logarithm of 64. */
static void check_rows(const struct memory *out, unsigned job)
{
    const uint8_t *at = (const uint8_t *)out->memory.addr + job * OUT_BYTES(SMALL);
    const uint16_t *o = (const void *)at;
    const float *lse = (const void *)(at + O_BYTES(SMALL));
    unsigned wrong = 0;
    for (uint32_t i = 0; i < SMALL * 512u; i++)
        wrong += o[i] != (sees(i / 512) ? ONE_BF16 : 0);
    for (uint32_t i = 0; i < SMALL; i++)
        wrong += sees(i) ? !(lse[i] > 4.15887f && lse[i] < 4.15890f) : lse[i] != -INFINITY;
    ck_assert_msg(wrong == 0, "job %u: %u elements are wrong", job, wrong);
}

static int work(struct peer *parent, void *arg)
{
    const struct plan_of_worker *p = arg;
    struct memory pool, q, out;
    struct mla_cache_desc desc;
    mla_cache_id cache;
    mla_request_id requests[JOBS_MAX];
    unsigned n = (unsigned)strlen(p->jobs);
    (void)parent;
    worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "planned");
    memory_of(client, &pool, WORKER_PAGE_BYTES, MLA_ACCESS_READ);
    memory_of(client, &q, LARGE * 576, MLA_ACCESS_READ);
    memory_of(client, &out, n * OUT_BYTES(SMALL) + OUT_BYTES(LARGE), MLA_ACCESS_READ_WRITE);
    memset(pool.memory.addr, ONE_E4M3, WORKER_PAGE_BYTES);
    worker_ops->push(&pool.memory, pool.device, 0, WORKER_PAGE_BYTES);
    worker_ops->push(&q.memory, q.device, 0, LARGE * 576);
    mla_cache_desc_init(&desc);
    desc.region = pool.region;
    desc.num_pages = 1;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    put_tables(client, 1, SMALL);
    put_tables(client, 2, LARGE);
    for (unsigned i = 0; i < n; i++) {
        struct mla_decode_args a;
        bool large = p->jobs[i] == 'L';
        mla_decode_args_init(&a);
        a.cache = cache;
        a.tables = large ? 2 : 1;
        a.heads = 1;
        a.q = view(q.region, 0, 576);
        a.o = view(out.region, large ? n * OUT_BYTES(SMALL) : i * OUT_BYTES(SMALL), 1024);
        a.lse = view(out.region, a.o.offset + O_BYTES(large ? LARGE : SMALL), 4);
        a.softmax_scale = 1.0f / 24.0f;
        worker_ok(client, mla_decode_submit(client, &a, NULL, NULL, &requests[i]));
    }
    bool good[JOBS_MAX];
    for (unsigned i = 0; i < n; i++) {
        struct mla_decode_result result;
        mla_decode_result_init(&result);
        enum mla_status status = mla_wait(client, requests[i], WORKER_TIMEOUT_US, &result);
        good[i] = p->jobs[i] != 'L';
        worker_expect(client, status, good[i] ? MLA_OK : MLA_OUT_OF_MEMORY);
        if (good[i])
            ck_assert_uint_le(result.batch_jobs, p->batch_jobs_most);
    }
    worker_ops->pull(&out.memory, out.device, 0, n * OUT_BYTES(SMALL));
    for (unsigned i = 0; i < n; i++)
        if (good[i])
            check_rows(&out, i);
    ck_assert_double_gt(worker_metric(client, "mlad_plans_failed_total", ""), 0);
    mla_close(client);
    return 0;
}

static const struct plan_of_worker plans[] = {
    {"L", 1},        /* alone */
    {"Ls", 1},       /* before one that fits, */
    {"sssL", 4},     /* behind some, */
    {"ssLss", 4},    /* between them, */
    {"LsLsL", 1},    /* several, */
    {"LLLL", 0},     /* nothing else */
    {"ssssssss", 4}, /* nobody's fault: too many at once */
};

START_TEST(those_that_can_be_planned_are)
{
    struct peer peer;
    gpu_daemon_start_with(&d, "", sets);
    peer_start(&peer, work, (void *)(uintptr_t)&plans[_i]);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_plans)
{
    TCase *tc = mla_tcase_timeout(suite, "plans", 60);
    tcase_add_loop_test(tc, those_that_can_be_planned_are, 0, (int)(sizeof(plans) / sizeof(plans[0])));
}
