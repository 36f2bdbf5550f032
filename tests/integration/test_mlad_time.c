/* Time: what is answered while the backend is busy, deadlines, cancellation, and buffers that are used again. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker.h"

static struct daemon d;
static struct mla_client *client;
static struct worker_pool pool;
static struct worker_job busy, job;

static void setup(unsigned busy_ms)
{
    daemon_start(&d, "device.cpu_threads=1", "scheduler.max_launch_us=0", NULL);
    client = worker_open(d.socket, "worker");
    worker_pool_new(client, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(client, &pool, busy_ms);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
}

static void teardown(void)
{
    worker_job_free(client, &busy);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t running(void)
{
    struct mla_daemon_info *info = NULL;
    worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
    uint64_t n = info->jobs_running;
    mla_free(info);
    return n;
}

START_TEST(d4_health_while_the_backend_is_busy)
{
    enum { PINGS = 40 };
    uint64_t us[PINGS];
    struct raw raw;
    struct mla_message health;
    setup(800);
    raw_open(&raw, d.socket);
    mla_message_init(&health, MLA_MSG_HEALTH);
    mla_request_id request = worker_job_submit(&busy);
    WAIT_FOR(running() == 1, 10000);
    for (unsigned i = 0; i < PINGS; i++) {
        uint64_t start = test_now_us();
        const struct mla_message *m = raw_call(&raw, &health);
        us[i] = test_now_us() - start;
        ck_assert_int_eq(m->health_reply.state, MLA_HEALTH_READY);
        test_sleep_us(5000);
    }
    ck_assert_uint_eq(running(), 1); /* all that was beside the one batch */
    qsort(us, PINGS, sizeof(us[0]), by_value);
    /* The median, so that a neighbour of this machine does not fail the test; and no single one near the batch. */
    ck_assert_msg(us[PINGS / 2] < 10000 * TEST_SLOW, "the median health took %llu us",
                  (unsigned long long)us[PINGS / 2]);
    ck_assert_msg(us[PINGS - 1] < 200000 * TEST_SLOW, "the slowest health took %llu us",
                  (unsigned long long)us[PINGS - 1]);
    worker_job_wait(&busy, request, MLA_OK);
    raw_close(&raw);
    teardown();
}
END_TEST

START_TEST(d14_the_ready_word_never_comes)
{
    setup(1);
    struct worker_job other;
    worker_job_new(client, &other, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {2}, .kv_len = {300}, .seed = 4});
    job.args.deadline_us = 300000;
    uint64_t start = test_now_us();
    mla_request_id request = worker_job_submit(&job);
    unsigned served = 0;
    mla_decode_result_init(&job.result);
    while (mla_wait(client, request, 0, &job.result) == MLA_PENDING) {
        worker_job_run(&other); /* others are served in between */
        ck_assert_uint_eq(other.result.batch_jobs, 1);
        served++;
    }
    uint64_t took = test_now_us() - start;
    ck_assert_int_eq(job.result.status, MLA_TIMED_OUT);
    ck_assert_uint_ge(took, 300000);
    ck_assert_msg(took < 300000 + 200000 * TEST_SLOW, "the deadline of 300000 us was kept at %llu",
                  (unsigned long long)took);
    ck_assert_uint_ge(served, 3);
    worker_job_check(&other);
    /* It never ran: its done word has the abort value, its status words the reason, its outputs nothing. */
    ck_assert_uint_eq(mla_word_load(mla_sync_word(job.page, 1)), 1 + MLA_ABORT_OFFSET);
    const uint64_t *status = (const uint64_t *)(const void *)((uint8_t *)job.memory.addr + job.status_at);
    ck_assert_uint_eq(status[0], (uint64_t)MLA_TIMED_OUT << 32);
    worker_job_poison(&job);
    mla_word_store(mla_sync_word(job.page, 0), 1); /* too late: nothing starts */
    worker_job_run(&other);
    ck_assert(worker_job_untouched(&job));
    ck_assert_uint_eq(job.result.batch, 0);
    worker_job_free(client, &other);
    teardown();
}
END_TEST

/* The daemon's own deadline holds for jobs that name none. */
START_TEST(default_deadline)
{
    daemon_start(&d, "scheduler.default_timeout_ms=150", NULL);
    client = worker_open(d.socket, "worker");
    worker_pool_new(client, &pool, 8, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
    uint64_t start = test_now_us();
    worker_job_wait(&job, worker_job_submit(&job), MLA_TIMED_OUT);
    ck_assert_uint_ge(test_now_us() - start, 150000);
    job.args.deadline_us = 1; /* passed by the time it is looked at, or soon after */
    worker_job_wait(&job, worker_job_submit(&job), MLA_TIMED_OUT);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* 0: the deadline passes while it runs; 1: it is cancelled while it runs. Answered when its batch has ended; from then
 * on its buffers are the worker's alone, inputs and outputs. */
START_TEST(d20_buffers_used_again)
{
    setup(250);
    bool cancel = _i == 1;
    busy.args.deadline_us = cancel ? 0 : 60000;
    uint64_t start = test_now_us();
    mla_request_id request = worker_job_submit(&busy);
    WAIT_FOR(running() == 1, 10000);
    if (cancel)
        worker_ok(client, mla_cancel(client, request));
    worker_job_wait(&busy, request, cancel ? MLA_CANCELLED : MLA_LATE);
    uint64_t took = test_now_us() - start;
    ck_assert_uint_ge(took, busy.result.run_us); /* not before its batch had ended */
    ck_assert_uint_ge(busy.result.run_us, 70000);
    ck_assert_uint_eq(running(), 0);
    if (!cancel)
        worker_job_check(&busy); /* LATE: the outputs are complete */
    worker_job_poison(&busy);
    worker_fill(busy.memory.addr, 1000, 999);
    test_sleep_us(100000);
    ck_assert(worker_job_untouched(&busy));
    busy.args.deadline_us = 0;
    worker_job_run(&busy);
    worker_job_check(&busy);
    teardown();
}
END_TEST

/* Before launch a deadline and a cancel act at once, and the batch goes on without the job. */
START_TEST(not_launched_at_all)
{
    setup(300);
    struct worker_job queued[3];
    mla_request_id requests[3];
    for (unsigned i = 0; i < 3; i++)
        worker_job_new(client, &queued[i], pool.cache, pool.memory.addr, 8,
                       &(struct worker_shape){.heads = 64, .q_len = {2}, .kv_len = {300 + i}, .seed = i});
    mla_request_id request = worker_job_submit(&busy);
    WAIT_FOR(running() == 1, 10000);
    queued[1].args.deadline_us = 50000;
    for (unsigned i = 0; i < 3; i++)
        requests[i] = worker_job_submit(&queued[i]);
    worker_ok(client, mla_cancel(client, requests[0])); /* staged behind the running batch */
    worker_job_wait(&queued[0], requests[0], MLA_CANCELLED);
    worker_job_wait(&queued[1], requests[1], MLA_TIMED_OUT);
    ck_assert_uint_eq(running(), 1);
    ck_assert_uint_eq(queued[0].result.batch, 0);
    ck_assert_uint_eq(queued[1].result.batch, 0);
    worker_job_wait(&busy, request, MLA_OK);
    worker_job_wait(&queued[2], requests[2], MLA_OK);
    worker_job_check(&queued[2]);
    ck_assert(worker_job_untouched(&queued[0]));
    ck_assert(worker_job_untouched(&queued[1]));
    worker_expect(client, mla_cancel(client, requests[0]), MLA_NOT_FOUND);
    for (unsigned i = 0; i < 3; i++)
        worker_job_free(client, &queued[i]);
    teardown();
}
END_TEST

/* A long batch of somebody else holds up neither the end of a job that has words, nor new memory and new watches, also
 * when memory waits to be unmapped behind it. */
START_TEST(beside_a_long_batch)
{
    setup(800 * TEST_SLOW);
    struct mla_memory memory;
    mla_region_id region;
    ck_assert_int_eq(mla_memory_create(4096, 0, &memory), MLA_OK);
    worker_ok(client, mla_memory_register(client, &memory, MLA_ACCESS_READ, "idle", WORKER_TIMEOUT_US, &region));
    mla_request_id request = worker_job_submit(&busy);
    WAIT_FOR(running() == 1, 10000);
    worker_expect(client, mla_region_unregister(client, region, 0), MLA_PENDING);
    job.args.deadline_us = 50000;
    mla_request_id waiting = worker_job_submit(&job);
    worker_job_wait(&job, waiting, MLA_TIMED_OUT);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(job.page, 1)), 1 + MLA_ABORT_OFFSET);
    mla_region_id other;
    worker_ok(client, mla_memory_register(client, &memory, MLA_ACCESS_READ, "new", WORKER_TIMEOUT_US, &other));
    job.args.deadline_us = 0;
    waiting = worker_job_submit(&job);
    worker_ok(client, mla_cancel(client, waiting));
    worker_job_wait(&job, waiting, MLA_CANCELLED);
    ck_assert_uint_eq(running(), 1);
    worker_job_wait(&busy, request, MLA_OK);
    worker_ok(client, mla_region_unregister(client, region, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_unregister(client, other, WORKER_TIMEOUT_US));
    mla_memory_free(&memory);
    teardown();
}
END_TEST

MLA_SUITE(mlad_time)
{
    TCase *tc = mla_tcase(suite, "time");
    tcase_add_test(tc, d4_health_while_the_backend_is_busy);
    tcase_add_test(tc, d14_the_ready_word_never_comes);
    tcase_add_test(tc, default_deadline);
    tcase_add_loop_test(tc, d20_buffers_used_again, 0, 2);
    tcase_add_test(tc, not_launched_at_all);
    tcase_add_test(tc, beside_a_long_batch);
}
