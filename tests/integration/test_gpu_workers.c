/* The main job on a GPU: workers in processes of their own hand over device memory in every form and get right answers,
 * in the order of their streams. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/worker_cuda.h"

static struct daemon d;

/* ---- two workers ---- */

#define POOL_PAGES 48
#define POOL_SEED  7

static const struct worker_shape shapes[] = {
    {.heads = 96, .n_seqs = 1, .q_len = {1}, .kv_len = {1000}, .head_step = 5, .seed = 1},
    {.heads = 16, .n_seqs = 3, .q_len = {4, 0, 2}, .kv_len = {300, 0, 65}, .out_type = MLA_DTYPE_BF16, .seed = 2},
    {.heads = 12, .n_seqs = 2, .q_len = {8, 1}, .kv_len = {129, 640}, .out_type = MLA_DTYPE_E4M3, .seed = 3},
    {.heads = 8, .n_seqs = 1, .q_len = {2}, .kv_len = {64}, .mask = MLA_MASK_NONE, .kv_scale = 0.5f, .sync = true},
};

struct plan_of_worker {
    const char *name;
    enum worker_form form;
    bool owner; /* makes the cache, else attaches to it */
};

static void decode_all(struct mla_client *client, mla_cache_id cache, const uint8_t *pages)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct worker_job job;
        worker_job_new(client, &job, cache, pages, POOL_PAGES, &shapes[i]);
        for (uint64_t round = 1; round <= 3; round++) {
            job.args.ready_value = job.args.done_value = round;
            if (job.page != NULL)
                mla_word_store(mla_sync_word(job.page, 0), round);
            worker_job_run(&job);
            worker_job_check(&job);
            if (job.page != NULL)
                ck_assert_uint_eq(mla_word_load(mla_sync_word(job.page, 1)), round);
        }
        worker_job_free(client, &job);
    }
}

static int work(struct peer *parent, void *arg)
{
    const struct plan_of_worker *w = arg;
    static uint8_t pages[POOL_PAGES * WORKER_PAGE_BYTES];
    struct worker_pool pool;
    struct mla_cache_info attached = {0};
    worker_cuda_start();
    worker_cuda_form(w->form);
    struct mla_client *client = worker_open(d.socket, w->name);
    ck_assert_str_eq(mla_server(client)->backend, "cuda");
    ck_assert_str_eq(mla_server(client)->isolation, gpu_isolation());
    worker_fill(pages, sizeof(pages), POOL_SEED); /* the attacher knows what the owner's memory holds */
    if (w->owner) {
        worker_pool_new(client, &pool, POOL_PAGES, POOL_SEED);
        worker_ok(client, mla_cache_publish(client, pool.cache, "main", NULL, 0, WORKER_TIMEOUT_US));
    } else {
        worker_ok(client, mla_cache_attach(client, MLA_UID_SELF, "main", 20000000, WORKER_TIMEOUT_US, &attached));
    }
    decode_all(client, w->owner ? pool.cache : attached.cache, pages);
    if (w->owner) {
        peer_hear(parent, 'e'); /* the attacher has ended */
        worker_pool_free(client, &pool);
    } else {
        worker_ok(client, mla_cache_detach(client, attached.cache, WORKER_TIMEOUT_US));
    }
    mla_close(client);
    return 0;
}

/* The owner's memory in each form; the other's own (queries, outputs) in the next one. */
START_TEST(two_workers_share_a_cache)
{
    struct plan_of_worker owner = {.name = "owner", .form = (enum worker_form)_i, .owner = true};
    struct plan_of_worker other = {.name = "attacher", .form = (enum worker_form)((_i + 1) % WORKER_FORMS)};
    struct peer a, b;
    gpu_daemon_start(&d, "");
    struct mla_client *client = worker_open(d.socket, "reader");
    peer_start(&a, work, &owner);
    peer_start(&b, work, &other);
    peer_end(&b);
    peer_tell(&a, 'e');
    peer_end(&a);
    ck_assert_double_eq(worker_metric(client, "mlad_jobs_total", "status=\"OK\""), 24);
    WAIT_FOR(worker_metric(client, "mlad_mapped_bytes", "") == 0, 1000 * TEST_SLOW);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    mla_close(client);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- the order of streams ---- */

#define SPIN_NS UINT64_C(60000000)

/* Q comes to its place by the stream, behind a kernel that runs for long; the outputs leave by the stream, behind the
 * done word. Nothing but the stream is waited for. */
static void ordered_round(struct worker_cuda *cuda, struct mla_cuda_sync *words, struct worker_job *job,
                          CUdeviceptr fresh, uint64_t round)
{
    uint64_t q_bytes = job->o_at;
    CUdeviceptr memory = worker_cuda_address(job->device);
    job->args.ready_value = job->args.done_value = round;
    worker_fill(job->memory.addr, q_bytes, 100 + round); /* what Q will be: for the reference */
    CU_OK(cuda, cuMemcpyHtoDAsync(fresh, job->memory.addr, q_bytes, cuda->stream));
    CU_OK(cuda, cuMemsetD8Async(memory, 0, q_bytes, cuda->stream)); /* what Q is until then */
    CU_OK(cuda, cuMemsetD8Async(memory + q_bytes, WORKER_POISON, job->bytes - q_bytes, cuda->stream));
    CU_OK(cuda, cuStreamSynchronize(cuda->stream));

    mla_request_id request;
    worker_ok(job->client, mla_decode_submit(job->client, &job->args, NULL, NULL, &request));
    worker_expect(job->client, mla_dispatch(job->client, 0), MLA_PENDING);
    worker_cuda_spin(cuda, cuda->stream, SPIN_NS);
    CU_OK(cuda, cuMemcpyHtoDAsync(memory, job->memory.addr, q_bytes, cuda->stream));
    ck_assert_int_eq(mla_cuda_write_ready(words, 0, round, cuda->stream), MLA_OK);
    ck_assert_int_eq(mla_cuda_wait_done(words, 1, round, cuda->stream), MLA_OK);
    CU_OK(cuda, cuMemcpyDtoHAsync((uint8_t *)job->memory.addr + job->o_at, memory + job->o_at, job->bytes - job->o_at,
                                  cuda->stream));
    CU_OK(cuda, cuStreamSynchronize(cuda->stream));
    ck_assert(!mla_word_aborted(mla_word_load(mla_sync_word(job->page, 1)), round));
    worker_job_check(job); /* of what the stream has copied */
    worker_job_wait(job, request, MLA_OK);
    ck_assert_uint_ge(job->result.wait_us, SPIN_NS / 1000 / 2);
}

static int ordered(struct peer *parent, void *arg)
{
    (void)arg;
    struct worker_cuda *cuda = worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "ordered");
    struct worker_pool pool;
    struct worker_job job;
    struct mla_cuda_sync *words;
    CUdeviceptr fresh;
    worker_pool_new(client, &pool, POOL_PAGES, POOL_SEED);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, POOL_PAGES,
                   &(struct worker_shape){.heads = 16, .q_len = {4}, .kv_len = {500}, .seed = 9, .sync = true});
    worker_ok(client, mla_cuda_sync_attach(client, job.page, &words));
    CU_OK(cuda, cuMemAlloc(&fresh, job.o_at));
    worker_cuda_spin(cuda, cuda->stream, 1000); /* the module is loaded now */
    peer_tell(parent, 'r');
    for (uint64_t round = 1; round <= 5; round++)
        ordered_round(cuda, words, &job, fresh, round);
    peer_tell(parent, 'd');
    CU_OK(cuda, cuMemFree(fresh));
    ck_assert_int_eq(mla_cuda_sync_detach(words), MLA_OK);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

static int plain(struct peer *parent, void *arg)
{
    unsigned served = 0;
    (void)arg;
    worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "plain");
    struct worker_pool pool;
    struct worker_job job;
    worker_pool_new(client, &pool, POOL_PAGES, POOL_SEED + 1);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, POOL_PAGES,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {300}, .seed = 4});
    worker_job_run(&job);
    peer_tell(parent, 'r');
    for (; served < 20; served++) {
        worker_job_run(&job);
        worker_job_check(&job);
    }
    peer_tell(parent, 'd');
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

START_TEST(stream_order_with_work_in_flight)
{
    struct peer a, b;
    gpu_daemon_start(&d, "");
    peer_start(&a, ordered, NULL);
    peer_start(&b, plain, NULL);
    peer_hear(&a, 'r');
    peer_hear(&b, 'r');
    peer_hear(&b, 'd'); /* held up by nobody's words */
    peer_hear(&a, 'd');
    peer_end(&a);
    peer_end(&b);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- K9 ---- */

#define BIG_BYTES (UINT64_C(5) << 30)

/* The same data on pages on either side of 2^31 and 2^32 bytes, and on low ones. */
static int big_pool(struct peer *parent, void *arg)
{
    static const uint32_t high[] = {58254, 58255, 58256, 116508, 116509, 116510}, low[] = {0, 1, 2, 3, 4, 5};
    enum { N = 6 };
    (void)parent;
    (void)arg;
    worker_cuda_start();
    worker_cuda_form((enum worker_form) * (int *)arg);
    struct mla_client *client = worker_open(d.socket, "big");
    struct mla_memory memory;
    void *device;
    mla_region_id region;
    mla_cache_id cache;
    struct mla_cache_desc desc;
    worker_ops->create(BIG_BYTES, &memory, &device);
    for (unsigned i = 0; i < 2 * N; i++) {
        uint64_t at = (uint64_t)(i < N ? high : low)[i % N] * WORKER_PAGE_BYTES;
        worker_fill((uint8_t *)memory.addr + at, WORKER_PAGE_BYTES, 50 + i % N);
        worker_ops->push(&memory, device, at, WORKER_PAGE_BYTES);
    }
    worker_ok(client, worker_ops->share(client, &memory, device, MLA_ACCESS_READ, "big", &region));
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.num_pages = BIG_BYTES / WORKER_PAGE_BYTES;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    struct worker_job jobs[2];
    for (unsigned i = 0; i < 2; i++) {
        worker_job_new(
            client, &jobs[i], cache, memory.addr, (uint32_t)desc.num_pages,
            &(struct worker_shape){
                .heads = 32, .q_len = {4}, .kv_len = {N * 64 - 5}, .seed = 3, .page_ids = i == 0 ? high : low});
        jobs[i].args.batch_invariant = true;
        worker_job_run(&jobs[i]);
        worker_job_check(&jobs[i]);
    }
    ck_assert_mem_eq((uint8_t *)jobs[0].memory.addr + jobs[0].o_at, (uint8_t *)jobs[1].memory.addr + jobs[1].o_at,
                     jobs[0].status_at - jobs[0].o_at);
    worker_job_free(client, &jobs[0]);
    worker_job_free(client, &jobs[1]);
    mla_close(client);
    worker_ops->free(&memory, device);
    return 0;
}

START_TEST(k9_pool_of_five_gigabytes)
{
    int form = _i;
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, big_pool, &form);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* So that an engine on the same GPU can plan its own: the workspace of the fixture, and what a context takes. */
START_TEST(idle_memory_is_told)
{
    struct mla_daemon_info *info;
    gpu_daemon_start(&d, "");
    struct mla_client *client = worker_open(d.socket, "reader");
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    ck_assert_uint_ge(info->device_memory_bytes, UINT64_C(64) << 20);
    ck_assert_uint_lt(info->device_memory_bytes, UINT64_C(4) << 30);
    ck_assert_double_eq(worker_metric(client, "mlad_device_memory_bytes", ""), (double)info->device_memory_bytes);
    mla_free(info);
    mla_close(client);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_workers)
{
    TCase *tc = mla_tcase_timeout(suite, "workers", 60);
    tcase_add_loop_test(tc, two_workers_share_a_cache, 0, WORKER_FORMS);
    tcase_add_test(tc, stream_order_with_work_in_flight);
    tcase_add_loop_test(tc, k9_pool_of_five_gigabytes, 0, WORKER_FORMS);
    tcase_add_test(tc, idle_memory_is_told);
}
