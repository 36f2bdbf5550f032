/* Workers and daemons that die: what is theirs goes, in time and without harm to others. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker.h"

static struct daemon d;

static uint64_t running(struct mla_client *client)
{
    struct mla_daemon_info *info = NULL;
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    uint64_t n = info->jobs_running;
    mla_free(info);
    return n;
}

static uint64_t clients(struct mla_client *client)
{
    struct mla_daemon_info *info = NULL;
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    uint64_t n = info->clients;
    mla_free(info);
    return n;
}

/* ---- D1 ---- */

#define BIG_BYTES (UINT64_C(1) << 30)

static struct worker_shape long_shape;

/* 1 GiB registered with a cache in it, a long job in flight; then waits to be killed. */
static int big_worker(void *arg)
{
    (void)arg;
    struct mla_client *client = worker_open(d.socket, "big");
    struct mla_memory memory;
    mla_region_id region;
    mla_cache_id cache;
    struct mla_cache_desc desc;
    struct worker_job job;
    ck_assert_int_eq(mla_memory_create(BIG_BYTES, 0, &memory), MLA_OK);
    worker_ok(client, mla_memory_register(client, &memory, MLA_ACCESS_READ, "big", WORKER_TIMEOUT_US, &region));
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.num_pages = BIG_BYTES / WORKER_PAGE_BYTES;
    worker_ok(client, mla_cache_define(client, &desc, WORKER_TIMEOUT_US, &cache));
    worker_job_new(client, &job, cache, memory.addr, 8, &long_shape);
    worker_job_submit(&job);
    for (;;)
        pause();
    return 0;
}

START_TEST(d1_killed_with_a_batch_in_flight)
{
    daemon_start(&d, NULL);
    struct mla_client *client = worker_open(d.socket, "other");
    struct worker_pool pool;
    struct worker_job job;
    worker_pool_new(client, &pool, 8, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 32, .q_len = {4}, .kv_len = {400}, .seed = 8});
    long_shape = worker_long_shape(client, &pool, 400);
    unsigned maps_before;
    uint64_t mapped_before = daemon_mapped_bytes(&d, "memfd:", &maps_before);

    pid_t child = child_start(big_worker, NULL);
    WAIT_FOR(running(client) == 1, 10000 * TEST_SLOW);
    ck_assert_uint_ge(daemon_mapped_bytes(&d, "memfd:", NULL), mapped_before + BIG_BYTES);
    mla_request_id request = worker_job_submit(&job); /* waits behind that batch */
    child_kill(child);
    uint64_t killed = test_now_us();
    WAIT_FOR(daemon_mapped_bytes(&d, "memfd:", NULL) == mapped_before, 5000 * TEST_SLOW);
    uint64_t took = test_now_us() - killed;
    ck_assert_msg(took < 1000000 * TEST_SLOW, "unmapped after %llu us", (unsigned long long)took);
    worker_job_wait(&job, request, MLA_OK);
    worker_job_check(&job);
    unsigned maps_after;
    daemon_mapped_bytes(&d, "memfd:", &maps_after);
    ck_assert_uint_eq(maps_after, maps_before);
    WAIT_FOR(clients(client) == 1, 1000 * TEST_SLOW);
    ck_assert_double_eq(worker_metric(client, "mlad_regions", ""), 2);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D2 ---- */

struct round {
    int pipes[2];
    bool in_flight; /* killed with a decode under way */
};

static int short_life(void *arg)
{
    struct round *round = arg;
    struct mla_client *client = worker_open(d.socket, "mayfly");
    struct worker_pool pool;
    struct worker_job job;
    char c = 'x';
    worker_pool_new(client, &pool, 16, 3);
    worker_ok(client, mla_cache_publish(client, pool.cache, "mayfly", NULL, 0, WORKER_TIMEOUT_US));
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 16,
                   &(struct worker_shape){.heads = 16, .q_len = {4}, .kv_len = {2000}, .sync = true});
    mla_word_store(mla_sync_word(job.page, 0), 1);
    if (round->in_flight)
        worker_job_submit(&job);
    else
        worker_job_run(&job);
    ck_assert_int_eq(write(round->pipes[1], &c, 1), 1);
    for (;;)
        pause();
    return 0;
}

struct footprint {
    uint64_t rss, mapped;
    unsigned maps, memfds, fds;
};

static struct footprint look(struct mla_client *client)
{
    struct footprint f;
    WAIT_FOR(clients(client) == 1, 2000 * TEST_SLOW);
    f.mapped = daemon_mapped_bytes(&d, "memfd:", &f.memfds);
    daemon_mapped_bytes(&d, "", &f.maps);
    f.rss = daemon_rss_bytes(&d);
    f.fds = daemon_fds(&d);
    return f;
}

static void rounds(unsigned n)
{
    struct round round;
    char c;
    ck_assert_int_eq(pipe(round.pipes), 0);
    for (unsigned i = 0; i < n; i++) {
        round.in_flight = i % 2;
        pid_t child = child_start(short_life, &round);
        ck_assert_int_eq(read(round.pipes[0], &c, 1), 1);
        child_kill(child);
    }
    close(round.pipes[0]);
    close(round.pipes[1]);
}

START_TEST(d2_fifty_short_lives)
{
    daemon_start(&d, NULL);
    struct mla_client *client = worker_open(d.socket, "other");
    rounds(10);
    struct footprint before = look(client);
    rounds(50);
    struct footprint after = look(client);
    ck_assert_uint_eq(after.mapped, 0);
    ck_assert_uint_eq(after.memfds, before.memfds);
    ck_assert_uint_eq(after.fds, before.fds);
#if TEST_SLOW == 1 /* sanitizers keep freed memory aside */
    ck_assert_uint_le(after.maps, before.maps + 2);
    ck_assert_msg(after.rss <= before.rss + (2u << 20), "resident memory grew from %llu to %llu bytes",
                  (unsigned long long)before.rss, (unsigned long long)after.rss);
#endif
    static const char *const gauges[] = {"mlad_regions",          "mlad_mapped_bytes", "mlad_caches",
                                         "mlad_published_caches", "mlad_attachments",  "mlad_table_sets"};
    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        ck_assert_msg(worker_metric(client, gauges[i], "") == 0, "%s is not 0", gauges[i]);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D3 ---- */

START_TEST(d3_unregister_while_read)
{
    daemon_start(&d, NULL);
    struct mla_client *client = worker_open(d.socket, "worker");
    struct worker_pool pool;
    struct worker_job job;
    worker_pool_new(client, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(client, &pool, 300);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8, &shape);
    unsigned maps;
    daemon_mapped_bytes(&d, "memfd:", &maps);
    mla_request_id request = worker_job_submit(&job);
    WAIT_FOR(running(client) == 1, 10000);
    /* All of these are asked for while the batch reads what they are about; none may be answered yet. */
    worker_expect(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US), MLA_BUSY); /* its cache */
    worker_expect(client, mla_cache_drop(client, pool.cache, 0), MLA_PENDING);
    worker_ok(client, mla_tables_drop(client, job.tables.id, WORKER_TIMEOUT_US)); /* the job keeps its own */
    worker_expect(client, mla_region_unregister(client, job.region, 0), MLA_PENDING);
    worker_expect(client, mla_region_unregister(client, pool.region, 0), MLA_PENDING);
    ck_assert_uint_eq(running(client), 1);
    unsigned maps_running;
    daemon_mapped_bytes(&d, "memfd:", &maps_running);
    ck_assert_uint_eq(maps_running, maps);
    /* New work cannot name them any more. */
    mla_decode_result_init(&job.result);
    worker_expect(client, mla_decode(client, &job.args, WORKER_TIMEOUT_US, &job.result), MLA_NOT_FOUND);
    ck_assert_uint_eq(running(client), 1);

    worker_ok(client, mla_region_unregister(client, job.region, WORKER_TIMEOUT_US));
    worker_job_wait(&job, request, MLA_OK); /* answered before */
    worker_ok(client, mla_cache_drop(client, pool.cache, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_unregister(client, pool.region, WORKER_TIMEOUT_US));
    daemon_mapped_bytes(&d, "memfd:", &maps);
    ck_assert_uint_eq(maps, 0);
    worker_job_check(&job);
    worker_job_free(NULL, &job);
    worker_pool_free(NULL, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* ---- D5: in so far as this version's client goes, which does not reconnect ---- */

#define REQUESTS 40

static struct answers {
    unsigned of[REQUESTS]; /* answers of each request */
    unsigned disconnected, ok;
    unsigned events; /* DISCONNECTED events */
} answers;

static void on_answer(struct mla_client *client, const struct mla_decode_result *result, void *user)
{
    (void)client;
    ++*(unsigned *)user;
    answers.disconnected += result->status == MLA_DISCONNECTED;
    answers.ok += result->status == MLA_OK;
}

static void on_event(struct mla_client *client, const struct mla_event *event, void *user)
{
    (void)client;
    (void)user;
    answers.events += event->kind == MLA_EVENT_DISCONNECTED;
}

START_TEST(d5_daemon_killed_under_load)
{
    daemon_start(&d, NULL);
    struct mla_options options;
    struct mla_client *client, *next;
    mla_options_init(&options);
    options.recover_us = 0;
    options.socket_path = d.socket;
    options.on_event = on_event;
    ck_assert_int_eq(mla_open(&options, &client, NULL), MLA_OK);
    struct worker_pool pool;
    struct worker_job busy, job;
    worker_pool_new(client, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(client, &pool, 500);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 32, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
    uint64_t nonce = mla_server(client)->boot_nonce;
    mla_word_store(mla_sync_word(job.page, 0), 1);

    for (unsigned i = 0; i < REQUESTS; i++) {
        job.args.done_value = i + 1;
        worker_ok(client, mla_decode_submit(client, i == 2 ? &busy.args : &job.args, on_answer, &answers.of[i], NULL));
    }
    WAIT_FOR(answers.ok > 0 || mla_dispatch(client, 0) == MLA_OK, 10000 * TEST_SLOW);
    daemon_kill(&d);
    enum mla_status status;
    while ((status = mla_dispatch(client, 1000000)) == MLA_OK)
        ;
    ck_assert_int_eq(status, MLA_DISCONNECTED);
    for (unsigned i = 0; i < REQUESTS; i++)
        ck_assert_msg(answers.of[i] == 1, "request %u was answered %u times", i, answers.of[i]);
    ck_assert_uint_eq(answers.disconnected + answers.ok, REQUESTS);
    ck_assert_uint_gt(answers.ok, 0);
    ck_assert_uint_gt(answers.disconnected, 0);
    ck_assert_uint_eq(answers.events, 1);
    ck_assert_uint_eq(mla_in_flight(client), 0);
    /* A stream that waits for the done word goes on. */
    ck_assert(mla_word_aborted(mla_word_load(mla_sync_word(job.page, 1)), REQUESTS));
    worker_expect(client, mla_decode(client, &job.args, 0, NULL), MLA_DISCONNECTED);

    /* The file of the dead one is in the way of nobody. */
    ck_assert_int_eq(access(d.socket, F_OK), 0);
    options.flags = 0;
    ck_assert_int_eq(mla_open(&options, &next, NULL), MLA_DISCONNECTED);
    daemon_start_again(&d, NULL);
    next = worker_open(d.socket, "again");
    ck_assert_uint_ne(mla_server(next)->boot_nonce, nonce);
    struct worker_pool pool2;
    struct worker_job job2;
    worker_pool_new(next, &pool2, 8, 3);
    worker_job_new(next, &job2, pool2.cache, pool2.memory.addr, 8, &job.shape);
    mla_word_store(mla_sync_word(job2.page, 0), 1);
    worker_job_run(&job2);
    worker_job_check(&job2);
    worker_job_free(next, &job2);
    worker_pool_free(next, &pool2);
    mla_close(next);
    worker_job_free(NULL, &job);
    worker_job_free(NULL, &busy);
    worker_pool_free(NULL, &pool);
    ck_assert_int_eq(mla_sync_destroy(job.page, 0), MLA_OK);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

START_TEST(one_daemon_per_socket)
{
    daemon_start(&d, NULL);
    char out[2048];
    const char *const argv[] = {MLAD_PROGRAM, "--config", "/dev/null", "--socket", d.socket, NULL};
    ck_assert_int_eq(run_program(argv, out, sizeof(out)), 1);
    ck_assert_msg(strstr(out, "event=start_failed") != NULL && strstr(out, "ALREADY_EXISTS") != NULL, "%s", out);
    struct mla_client *client = worker_open(d.socket, "a"); /* the first one is none the worse */
    mla_close(client);
    daemon_stop(&d, SIGINT, 0);
}
END_TEST

MLA_SUITE(mlad_deaths)
{
    TCase *tc = mla_tcase_timeout(suite, "deaths", 60);
    tcase_add_test(tc, d1_killed_with_a_batch_in_flight);
    tcase_add_test(tc, d2_fifty_short_lives);
    tcase_add_test(tc, d3_unregister_while_read);
    tcase_add_test(tc, d5_daemon_killed_under_load);
    tcase_add_test(tc, one_daemon_per_socket);
}
