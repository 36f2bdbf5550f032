/* Workers on a GPU and daemons that die: what is theirs goes, in time and without harm to others. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/long_job.h"
#include "tests/support/worker_cuda.h"

#define BIG_BYTES (UINT64_C(1) << 30)
#define SLACK     (UINT64_C(64) << 20) /* of GPU memory: the driver's own stock */

static struct daemon d;

/* ---- a worker that stays ---- */

/* Decodes when told 'g' and says 's' (sent) and 'd' (done); 'f': remembers the free memory of the GPU, 'F': waits until
 * as much is free again; 'e': ends. */
static int other_worker(struct peer *parent, void *arg)
{
    struct worker_pool pool;
    struct worker_job job;
    size_t before = 0, now = 0, total;
    (void)arg;
    struct worker_cuda *cuda = worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "other");
    worker_pool_new(client, &pool, 8, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 32, .q_len = {4}, .kv_len = {400}, .head_step = 3, .seed = 8});
    worker_job_run(&job);
    peer_tell(parent, 'r');
    for (char word; (word = peer_next(parent)) != 'e';) {
        if (word == 'g') {
            mla_request_id request = worker_job_submit(&job);
            peer_tell(parent, 's');
            worker_job_wait(&job, request, MLA_OK);
            worker_job_check(&job);
        } else if (word == 'f') {
            CU_OK(cuda, cuMemGetInfo(&before, &total));
        } else {
            ck_assert_int_eq(word, 'F');
            for (unsigned ms = 0; ms < 2000; ms += 10) {
                CU_OK(cuda, cuMemGetInfo(&now, &total));
                if (now + SLACK >= before)
                    break;
                test_sleep_us(10000);
            }
            ck_assert_msg(now + SLACK >= before, "%zu bytes of the GPU are free, of %zu before", now, before);
        }
        peer_tell(parent, 'd');
    }
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

static void ask(struct peer *peer, char word)
{
    peer_tell(peer, word);
    if (word == 'g')
        peer_hear(peer, 's');
    peer_hear(peer, 'd');
}

/* ---- D1 ---- */

/* 1 GiB registered with a cache in it; told 'g', a long job in flight; then waits to be killed. */
static int big_worker(struct peer *parent, void *arg)
{
    struct mla_memory memory;
    void *device;
    mla_region_id region;
    mla_cache_id cache;
    struct mla_cache_desc desc;
    struct long_job l;
    worker_cuda_start();
    worker_cuda_form(*(const enum worker_form *)arg);
    struct mla_client *client = worker_open(d.socket, "big");
    worker_ops->create(BIG_BYTES, &memory, &device);
    worker_fill(memory.addr, (size_t)LONG_JOB_PAGES * WORKER_PAGE_BYTES, 3);
    worker_ops->push(&memory, device, 0, (uint64_t)LONG_JOB_PAGES * WORKER_PAGE_BYTES);
    worker_ok(client, worker_ops->share(client, &memory, device, MLA_ACCESS_READ, "big", &region));
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.num_pages = BIG_BYTES / WORKER_PAGE_BYTES;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    long_job_new(client, &l, cache, memory.addr, 300);
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    worker_job_submit(&l.job);
    for (;;)
        pause();
    return 0;
}

START_TEST(d1_killed_with_a_batch_in_flight)
{
    enum worker_form form = (enum worker_form)_i;
    struct peer other, big;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&other, other_worker, NULL);
    peer_hear(&other, 'r');
    ask(&other, 'g');
    ask(&other, 'f');
    double before = worker_metric(reader, "mlad_mapped_bytes", "");
    peer_start(&big, big_worker, &form);
    peer_hear(&big, 'r');
    ck_assert_double_ge(worker_metric(reader, "mlad_mapped_bytes", ""), before + BIG_BYTES);
    peer_tell(&big, 'g');
    WAIT_FOR(gpu_jobs_running(reader) == 1, 5000 * TEST_SLOW);
    peer_tell(&other, 'g'); /* waits behind that batch */
    peer_hear(&other, 's');
    peer_kill(&big);
    uint64_t killed = test_now_us();
    WAIT_FOR(worker_metric(reader, "mlad_mapped_bytes", "") == before && gpu_clients(reader) == 2, 5000 * TEST_SLOW);
    uint64_t took = test_now_us() - killed;
    ck_assert_msg(took < 1000000 * TEST_SLOW, "unmapped after %llu us", (unsigned long long)took);
    peer_hear(&other, 'd'); /* its outputs are right */
    ask(&other, 'F');
    ask(&other, 'g');
    peer_tell(&other, 'e');
    peer_end(&other);
    ck_assert_double_eq(worker_metric(reader, "mlad_mapped_bytes", ""), 0);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D2 ---- */

static int short_life(struct peer *parent, void *arg)
{
    unsigned round = *(const unsigned *)arg;
    struct worker_pool pool;
    struct worker_job job;
    worker_cuda_start();
    worker_cuda_form((enum worker_form)(round % WORKER_FORMS));
    struct mla_client *client = worker_open(d.socket, "mayfly");
    worker_pool_new(client, &pool, 16, 3);
    worker_ok(client, mla_cache_publish(client, pool.cache, "mayfly", NULL, 0, WORKER_TIMEOUT_US));
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 16,
                   &(struct worker_shape){.heads = 16, .q_len = {4}, .kv_len = {1000}, .sync = true});
    mla_word_store(mla_sync_word(job.page, 0), 1);
    if (round / WORKER_FORMS % 2 == 1)
        worker_job_submit(&job); /* killed with a decode under way */
    else
        worker_job_run(&job);
    peer_tell(parent, 'x');
    for (;;)
        pause();
    return 0;
}

static void rounds(struct mla_client *reader, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct peer peer;
        peer_start(&peer, short_life, &i);
        peer_hear(&peer, 'x');
        peer_kill(&peer);
    }
    WAIT_FOR(gpu_clients(reader) == 2, 3000 * TEST_SLOW); /* the reader and the other */
}

START_TEST(d2_fifty_short_lives)
{
    struct peer other;
    unsigned maps, maps_after;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&other, other_worker, NULL);
    peer_hear(&other, 'r');
    double mapped = worker_metric(reader, "mlad_mapped_bytes", "");
    rounds(reader, 12);
    unsigned fds = daemon_fds(&d);
    uint64_t rss = daemon_rss_bytes(&d);
    daemon_mapped_bytes(&d, "", &maps);
    char memory[256];
    snprintf(memory, sizeof(memory), "%s", gpu_daemon_memory(&d));
    ask(&other, 'f');
    rounds(reader, 50);
    ask(&other, 'F');
    ask(&other, 'g');
    ck_assert_str_eq(gpu_daemon_memory(&d), memory);
    ck_assert_double_eq(worker_metric(reader, "mlad_mapped_bytes", ""), mapped);
    ck_assert_uint_eq(daemon_fds(&d), fds);
#if TEST_SLOW == 1 /* sanitizers keep freed memory aside */
    daemon_mapped_bytes(&d, "", &maps_after);
    ck_assert_uint_le(maps_after, maps + 8);
    ck_assert_msg(daemon_rss_bytes(&d) <= rss + (8u << 20), "resident memory grew from %llu to %llu bytes",
                  (unsigned long long)rss, (unsigned long long)daemon_rss_bytes(&d));
#else
    (void)maps_after;
    (void)rss;
#endif
    static const char *const gauges[] = {"mlad_published_caches", "mlad_attachments"};
    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        ck_assert_msg(worker_metric(reader, gauges[i], "") == 0, "%s is not 0", gauges[i]);
    peer_tell(&other, 'e');
    peer_end(&other);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D3 ---- */

static int unregisters(struct peer *parent, void *arg)
{
    struct worker_pool pool;
    struct long_job l;
    (void)parent;
    worker_cuda_start();
    worker_cuda_form(*(const enum worker_form *)arg);
    struct mla_client *client = worker_open(d.socket, "worker"), *reader = worker_open(d.socket, "reader");
    worker_pool_new(client, &pool, LONG_JOB_PAGES, 3);
    long_job_new(client, &l, pool.cache, pool.memory.addr, 300);
    worker_job_free(client, &l.once);
    mla_request_id request = worker_job_submit(&l.job);
    WAIT_FOR(gpu_jobs_running(reader) == 1, 1000);
    /* All of these are asked for while the batch reads what they are about; none may be answered yet. */
    worker_expect(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US), MLA_BUSY); /* its cache */
    worker_expect(client, mla_cache_drop(client, pool.cache, 0), MLA_PENDING);
    worker_expect(client, mla_region_unregister(client, l.job.region, 0), MLA_PENDING);
    worker_expect(client, mla_region_unregister(client, pool.region, 0), MLA_PENDING);
    ck_assert_uint_eq(gpu_jobs_running(reader), 1);

    worker_ok(client, mla_region_unregister(client, l.job.region, WORKER_TIMEOUT_US));
    ck_assert_uint_eq(gpu_jobs_running(reader), 0);
    worker_job_wait(&l.job, request, MLA_OK); /* answered before */
    worker_ok(client, mla_cache_drop(client, pool.cache, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US));
    ck_assert_double_eq(worker_metric(reader, "mlad_mapped_bytes", ""), 0);
    ck_assert_str_eq(gpu_daemon_memory(&d), "");
    worker_job_free(NULL, &l.job);
    worker_pool_free(NULL, &pool);
    mla_close(client);
    mla_close(reader);
    return 0;
}

START_TEST(d3_unregister_while_read)
{
    enum worker_form form = (enum worker_form)_i;
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, unregisters, &form);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D5: the library does not reconnect by itself ---- */

#define REQUESTS 40

static struct answers {
    unsigned of[REQUESTS]; /* answers of each request */
    unsigned disconnected, ok;
} answers;

static void on_answer(struct mla_client *client, const struct mla_decode_result *result, void *user)
{
    (void)client;
    ++*(unsigned *)user;
    answers.disconnected += result->status == MLA_DISCONNECTED;
    answers.ok += result->status == MLA_OK;
}

/* One answered, then the long job alone, seen to run, then the rest behind it: when the daemon is killed, none of the
 * rest can have been computed, however fast the device is. Submitted together, the long job, which waits for no word,
 * would run first. */
static void load_daemon(struct mla_client *client, struct long_job *l, struct worker_job *job)
{
    struct mla_client *reader = worker_open(d.socket, "reader");
    for (unsigned i = 0; i < REQUESTS; i++) {
        job->args.done_value = i + 1;
        worker_ok(client,
                  mla_decode_submit(client, i == 1 ? &l->job.args : &job->args, on_answer, &answers.of[i], NULL));
        while (i == 0 && answers.ok == 0)
            worker_ok(client, mla_dispatch(client, WORKER_TIMEOUT_US));
        if (i == 1) {
            worker_expect(client, mla_dispatch(client, 0), MLA_PENDING); /* on its way now */
            WAIT_FOR(gpu_jobs_running(reader) == 1, 1000 * TEST_SLOW);
        }
    }
    worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    mla_close(reader);
}

static int loaded_worker(struct peer *parent, void *arg)
{
    struct worker_pool pool;
    struct worker_job job, again;
    struct mla_cuda_sync *words;
    mla_region_id region;
    mla_cache_id cache;
    struct mla_cache_desc desc;
    (void)arg;
    struct worker_cuda *cuda = worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "loaded");
    uint64_t nonce = mla_server(client)->boot_nonce;
    struct long_job l;
    worker_pool_new(client, &pool, LONG_JOB_PAGES, 3);
    long_job_new(client, &l, pool.cache, pool.memory.addr, 500);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, LONG_JOB_PAGES,
                   &(struct worker_shape){.heads = 16, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
    worker_ok(client, mla_cuda_sync_attach(client, job.page, &words));
    mla_word_store(mla_sync_word(job.page, 0), 1);
    load_daemon(client, &l, &job);
    ck_assert_int_eq(mla_cuda_wait_done(words, 1, REQUESTS, cuda->stream), MLA_OK);
    peer_tell(parent, 'l');
    enum mla_status status;
    while ((status = mla_dispatch(client, WORKER_TIMEOUT_US)) == MLA_OK)
        ;
    ck_assert_int_eq(status, MLA_DISCONNECTED);
    for (unsigned i = 0; i < REQUESTS; i++)
        ck_assert_msg(answers.of[i] == 1, "request %u was answered %u times", i, answers.of[i]);
    ck_assert_uint_eq(answers.ok, 1);
    ck_assert_uint_eq(answers.disconnected, REQUESTS - 1);
    CU_OK(cuda, cuStreamSynchronize(cuda->stream)); /* a stream that waits for the done word goes on */
    ck_assert(mla_word_aborted(mla_word_load(mla_sync_word(job.page, 1)), REQUESTS));
    ck_assert_int_eq(mla_cuda_sync_detach(words), MLA_OK);
    mla_close(client);

    /* The memory is still there: the next daemon gets it, and what was lost is asked for again. */
    peer_hear(parent, 'a');
    client = worker_open(d.socket, "again");
    ck_assert_uint_ne(mla_server(client)->boot_nonce, nonce);
    worker_ok(client, worker_ops->share(client, &pool.memory, pool.device, MLA_ACCESS_READ, "again", &region));
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.num_pages = pool.num_pages;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    worker_job_new(client, &again, cache, pool.memory.addr, LONG_JOB_PAGES, &job.shape);
    for (unsigned i = 0; i < answers.disconnected; i++) {
        mla_word_store(mla_sync_word(again.page, 0), i + 1);
        again.args.ready_value = again.args.done_value = i + 1;
        worker_job_run(&again);
        worker_job_check(&again);
    }
    worker_job_free(client, &again);
    mla_close(client);
    ck_assert_int_eq(mla_sync_destroy(job.page, 0), MLA_OK);
    return 0;
}

START_TEST(d5_daemon_killed_under_load)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, loaded_worker, NULL);
    peer_hear(&peer, 'l');
    daemon_kill(&d);
    gpu_daemon_start_again(&d);
    peer_tell(&peer, 'a');
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_deaths)
{
    TCase *tc = mla_tcase_timeout(suite, "deaths", 120);
    tcase_add_loop_test(tc, d1_killed_with_a_batch_in_flight, 0, WORKER_FORMS);
    tcase_add_test(tc, d2_fifty_short_lives);
    tcase_add_loop_test(tc, d3_unregister_while_read, 0, WORKER_FORMS);
    tcase_add_test(tc, d5_daemon_killed_under_load);
}
