/* D15: the end of a daemon that is asked to end. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker.h"

static struct daemon d;
static struct mla_client *client;
static struct worker_pool pool;
static struct worker_job busy, job;

static struct seen {
    unsigned goaways;
    uint64_t deadline_us;
    enum mla_goaway reason;
} seen;

static void on_event(struct mla_client *c, const struct mla_event *event, void *user)
{
    (void)c;
    (void)user;
    if (event->kind != MLA_EVENT_GOAWAY)
        return;
    seen.goaways++;
    seen.deadline_us = event->deadline_us;
    seen.reason = event->goaway;
}

static void setup(unsigned busy_ms, const char *extra)
{
    struct mla_options options;
    daemon_start(&d, "device.cpu_threads=1", extra, NULL);
    mla_options_init(&options);
    options.recover_us = 0;
    options.socket_path = d.socket;
    options.on_event = on_event;
    ck_assert_int_eq(mla_open(&options, &client, NULL), MLA_OK);
    worker_pool_new(client, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(client, &pool, busy_ms);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
}

/* The daemon has gone by itself: only this side is left to free. */
static void teardown(int exit_code)
{
    worker_job_free(NULL, &busy);
    worker_job_free(NULL, &job);
    worker_pool_free(NULL, &pool);
    mla_close(client);
    ck_assert_int_eq(mla_sync_destroy(job.page, 0), MLA_OK);
    ck_assert(daemon_ended(&d, 5000 * TEST_SLOW));
    daemon_stop(&d, 0, exit_code);
}

static enum mla_health health(struct mla_client *c)
{
    struct mla_health_info *info = NULL;
    worker_ok(c, mla_read_health(c, WORKER_TIMEOUT_US, &info));
    enum mla_health state = info->state;
    mla_free(info);
    return state;
}

START_TEST(sigterm_with_jobs_in_flight)
{
    setup(400, NULL);
    struct worker_job queued;
    worker_job_new(client, &queued, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {3}, .kv_len = {300}, .seed = 9});
    mla_request_id running = worker_job_submit(&busy), waiting = worker_job_submit(&job),
                   behind = worker_job_submit(&queued);
    ck_assert_int_eq(health(client), MLA_HEALTH_READY);
    kill(d.pid, SIGTERM);
    struct mla_client *late;
    WAIT_FOR(health(client) == MLA_HEALTH_DRAINING, 1000 * TEST_SLOW);
    WAIT_FOR(mla_dispatch(client, 0) == MLA_OK, 1000 * TEST_SLOW);
    ck_assert_uint_eq(seen.goaways, 1);
    ck_assert_int_eq(seen.reason, MLA_GOAWAY_DRAINING);
    ck_assert_uint_eq(seen.deadline_us, 10000000);

    /* No new work; what only reads is still answered, also to somebody new. */
    mla_decode_result_init(&queued.result);
    struct mla_decode_args again = queued.args;
    worker_expect(client, mla_decode(client, &again, WORKER_TIMEOUT_US, &queued.result), MLA_DRAINING);
    late = worker_open(d.socket, "late");
    ck_assert_int_eq(health(late), MLA_HEALTH_DRAINING);
    ck_assert_double_eq(worker_metric(late, "mlad_ready", ""), 0);
    mla_close(late);

    worker_job_wait(&busy, running, MLA_OK);
    worker_job_wait(&queued, behind, MLA_OK);
    worker_job_check(&queued);
    ck_assert(!daemon_ended(&d, 100)); /* one still waits for its word */
    mla_word_store(mla_sync_word(job.page, 0), 1);
    worker_job_wait(&job, waiting, MLA_OK);
    worker_job_check(&job);
    worker_job_check(&busy);
    worker_job_free(NULL, &queued);
    teardown(0);
}
END_TEST

START_TEST(drained_by_request)
{
    setup(200, NULL);
    mla_request_id running = worker_job_submit(&busy);
    uint64_t in_flight = 99;
    worker_ok(client, mla_drain(client, NULL, WORKER_TIMEOUT_US, &in_flight));
    ck_assert_uint_eq(in_flight, 1);
    worker_job_wait(&busy, running, MLA_OK);
    teardown(0);
}
END_TEST

START_TEST(nothing_in_flight)
{
    setup(1, NULL);
    uint64_t in_flight = 99, deadline_us = 60000000;
    uint64_t start = test_now_us();
    worker_ok(client, mla_drain(client, &deadline_us, WORKER_TIMEOUT_US, &in_flight));
    ck_assert_uint_eq(in_flight, 0);
    ck_assert(daemon_ended(&d, 2000 * TEST_SLOW));
    ck_assert_uint_lt(test_now_us() - start, 1000000 * TEST_SLOW);
    teardown(0);
}
END_TEST

/* At the deadline what has not been launched is answered; the exit code says that jobs were cut off. */
START_TEST(deadline_with_a_job_that_waits)
{
    setup(1, NULL);
    mla_request_id waiting = worker_job_submit(&job);
    uint64_t deadline_us = 100000;
    worker_ok(client, mla_drain(client, &deadline_us, WORKER_TIMEOUT_US, NULL));
    worker_job_wait(&job, waiting, MLA_DRAINING);
    ck_assert(mla_word_aborted(mla_word_load(mla_sync_word(job.page, 1)), 1));
    WAIT_FOR(mla_dispatch(client, 0) == MLA_DISCONNECTED, 2000 * TEST_SLOW);
    teardown(4);
}
END_TEST

/* A launch outlives the deadline: the clients see the end, and the exit code says why. On a GPU status words of what
 * has not been launched are written behind the launch, so the end is all that such a job sees. */
START_TEST(deadline_with_a_job_that_runs)
{
    setup(2000, "daemon.drain_timeout_ms=100");
    mla_request_id running = worker_job_submit(&busy), waiting = worker_job_submit(&job);
    ck_assert_int_eq(health(client), MLA_HEALTH_READY);
    uint64_t start = test_now_us();
    kill(d.pid, SIGTERM);
    worker_job_wait(&job, waiting, daemon_backend == NULL ? MLA_DRAINING : MLA_DISCONNECTED);
    worker_job_wait(&busy, running, MLA_DISCONNECTED);
    ck_assert(daemon_ended(&d, 5000 * TEST_SLOW));
    uint64_t took = test_now_us() - start;
    ck_assert_msg(took >= 100000 && took < 1000000 * TEST_SLOW, "the deadline of 100 ms was kept at %llu us",
                  (unsigned long long)took);
    teardown(4);
}
END_TEST

/* Every request is answered, not only decodes. */
START_TEST(requests_that_wait)
{
    struct ground g;
    struct mla_message m;
    daemon_start(&d, NULL);
    ground_open(&g, d.socket);
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = "never";
    m.attach_cache.wait_us = 60000000;
    raw_send(&g.r, &m, 500, NULL, 0);
    ground_decode(&g, &m);
    m.decode.ready = ground_ref(g.sync, 0);
    raw_send(&g.r, &m, 501, NULL, 0);
    mla_message_init(&m, MLA_MSG_UNREGISTER_REGION);
    m.unregister_region.region = g.io_region;
    raw_send(&g.r, &m, 502, NULL, 0);
    mla_message_init(&m, MLA_MSG_HEALTH);
    raw_expect(&g.r, &m, MLA_OK, NULL);
    kill(d.pid, SIGTERM);
    const struct mla_message *reply = raw_wait(&g.r, 500);
    ck_assert_str_eq(mla_status_name(reply->reply.status.code), "DRAINING");
    ck_assert_uint_eq(g.r.notices, 1);
    ck_assert_uint_eq(g.r.notice.type, MLA_NOTICE_GOAWAY);
    /* A wait that begins now would not end well either. */
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = "never";
    m.attach_cache.wait_us = 60000000;
    raw_expect(&g.r, &m, MLA_DRAINING, NULL);
    __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(raw_wait(&g.r, 501)->reply.status.code, MLA_OK);
    ck_assert(daemon_ended(&d, 5000 * TEST_SLOW));
    ground_close(&g);
    daemon_stop(&d, 0, 0);
}
END_TEST

MLA_SUITE(mlad_drain)
{
    TCase *tc = mla_tcase(suite, "drain");
    tcase_add_test(tc, sigterm_with_jobs_in_flight);
    tcase_add_test(tc, drained_by_request);
    tcase_add_test(tc, nothing_in_flight);
    tcase_add_test(tc, deadline_with_a_job_that_waits);
    tcase_add_test(tc, deadline_with_a_job_that_runs);
    if (daemon_backend == NULL) /* with memfds; on_cuda.c */
        tcase_add_test(tc, requests_that_wait);
}
