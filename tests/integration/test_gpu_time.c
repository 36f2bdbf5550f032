/* Time on a GPU: what is answered while the device is busy or the driver blocks, deadlines, cancellation, and buffers
 * that are used again. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/long_job.h"
#include "tests/support/raw_client.h"
#include "tests/support/worker_cuda.h"

static struct daemon d;
static struct mla_client *client;
static struct worker_pool pool;

static void begin(const char *name)
{
    worker_cuda_start();
    client = worker_open(d.socket, name);
    worker_pool_new(client, &pool, LONG_JOB_PAGES, 3);
}

static int end(void)
{
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

/* ---- D4 ---- */

static int busy_worker(struct peer *parent, void *arg)
{
    struct long_job l;
    (void)arg;
    begin("busy");
    long_job_new(client, &l, pool.cache, pool.memory.addr, 400);
    peer_tell(parent, 'r');
    peer_hear(parent, 'g');
    mla_request_id request = worker_job_submit(&l.job);
    worker_job_wait(&l.job, request, MLA_OK);
    long_job_check(&l);
    long_job_free(client, &l);
    return end();
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* 0: a long batch. On the fake driver also, 1: a launch call that does not return until it is let go. */
START_TEST(d4_health_while_the_device_is_busy)
{
    enum { PINGS = 40 };
    uint64_t us[PINGS];
    struct peer peer;
    struct raw raw;
    struct mla_message health;
    gpu_daemon_start(&d, "");
    struct mla_client *reader = worker_open(d.socket, "reader");
    raw_open(&raw, d.socket);
    mla_message_init(&health, MLA_MSG_HEALTH);
    peer_start(&peer, busy_worker, NULL);
    peer_hear(&peer, 'r');
    if (_i == 1) {
        char rule[160];
        snprintf(rule, sizeof(rule), "cuLaunchKernelEx=hold %s", gpu_gate());
        gpu_daemon_rules(rule);
    }
    peer_tell(&peer, 'g');
    if (_i == 0)
        WAIT_FOR(gpu_jobs_running(reader) == 1, 5000);
    else
        test_sleep_us(100000);
    for (unsigned i = 0; i < PINGS; i++) {
        uint64_t start = test_now_us();
        const struct mla_message *m = raw_call(&raw, &health);
        us[i] = test_now_us() - start;
        ck_assert_int_eq(m->health_reply.state, MLA_HEALTH_READY);
        test_sleep_us(_i == 0 ? 1000 : 25000);
    }
    if (_i == 0)
        ck_assert_uint_eq(gpu_jobs_running(reader), 1); /* all that was beside the one batch */
    else
        gpu_gate_open();
    qsort(us, PINGS, sizeof(us[0]), by_value);
    ck_assert_msg(us[PINGS / 2] < 10000 * TEST_SLOW, "the median health took %llu us",
                  (unsigned long long)us[PINGS / 2]);
    ck_assert_msg(us[PINGS - 1] < 200000 * TEST_SLOW, "the slowest health took %llu us",
                  (unsigned long long)us[PINGS - 1]);
    peer_end(&peer);
    raw_close(&raw);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D14 ---- */

static int never_ready(struct peer *parent, void *arg)
{
    struct worker_job job, other;
    (void)parent;
    (void)arg;
    begin("worker");
    worker_job_new(client, &job, pool.cache, pool.memory.addr, LONG_JOB_PAGES,
                   &(struct worker_shape){.heads = 16, .q_len = {4}, .kv_len = {400}, .seed = 8, .sync = true});
    worker_job_new(client, &other, pool.cache, pool.memory.addr, LONG_JOB_PAGES,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {300}, .seed = 4});
    worker_job_run(&other);
    job.args.deadline_us = 400000;
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
    ck_assert_uint_ge(took, 400000);
    ck_assert_msg(took < 400000 + 200000 * TEST_SLOW, "the deadline of 400000 us was kept at %llu",
                  (unsigned long long)took);
    ck_assert_uint_ge(served, 3);
    worker_job_check(&other);
    /* It never ran: its done word has the abort value, its status words the reason, its outputs nothing. */
    ck_assert_uint_eq(mla_word_load(mla_sync_word(job.page, 1)), 1 + MLA_ABORT_OFFSET);
    worker_job_pull(&job);
    const uint64_t *status = (const uint64_t *)(const void *)((uint8_t *)job.memory.addr + job.status_at);
    ck_assert_uint_eq(status[0], (uint64_t)MLA_TIMED_OUT << 32);
    worker_job_poison(&job);
    mla_word_store(mla_sync_word(job.page, 0), 1); /* too late: nothing starts */
    worker_job_run(&other);
    ck_assert(worker_job_untouched(&job));
    ck_assert_uint_eq(job.result.batch, 0);
    worker_job_free(client, &other);
    worker_job_free(client, &job);
    return end();
}

START_TEST(d14_the_ready_word_never_comes)
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, never_ready, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- D20 ---- */

static int buffers_again(struct peer *parent, void *arg)
{
    const bool cancel = *(const int *)arg == 1;
    struct long_job l;
    (void)parent;
    begin("worker");
    struct mla_client *reader = worker_open(d.socket, "reader");
    long_job_new(client, &l, pool.cache, pool.memory.addr, 250);
    l.job.args.deadline_us = cancel ? 0 : 60000;
    uint64_t start = test_now_us();
    mla_request_id request = worker_job_submit(&l.job);
    WAIT_FOR(gpu_jobs_running(reader) == 1, 1000);
    if (cancel)
        worker_ok(client, mla_cancel(client, request));
    worker_job_wait(&l.job, request, cancel ? MLA_CANCELLED : MLA_LATE);
    uint64_t took = test_now_us() - start;
    ck_assert_uint_ge(took, l.job.result.run_us); /* not before its batch had ended */
    ck_assert_uint_ge(l.job.result.run_us, 65000);
    ck_assert_uint_eq(gpu_jobs_running(reader), 0);
    if (!cancel)
        long_job_check(&l); /* LATE: the outputs are complete */
    worker_job_poison(&l.job);
    test_sleep_us(100000);
    ck_assert(worker_job_untouched(&l.job));
    l.job.args.deadline_us = 0;
    worker_job_run(&l.job);
    long_job_check(&l);
    long_job_free(client, &l);
    mla_close(reader);
    return end();
}

/* 0: the deadline passes while it runs; 1: it is cancelled while it runs. Answered when its batch has ended; from then
 * on its buffers are the worker's alone. */
START_TEST(d20_buffers_used_again)
{
    struct peer peer;
    int how = _i;
    gpu_daemon_start(&d, "");
    peer_start(&peer, buffers_again, &how);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

static const char *told(int fd, char *got, size_t bytes)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 15000 * TEST_SLOW), 1);
    ssize_t n = recv(fd, got, bytes - 1, 0);
    ck_assert_int_gt(n, 0);
    got[n] = '\0';
    return got;
}

/* The service manager hears of it when the device thread stands still: no word for the watchdog, then a status that
 * says why the daemon is degraded. The watchdog is fed again when it goes on. */
START_TEST(the_watchdog_is_not_fed_while_a_call_blocks)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/mla-watchdog-XXXXXX", rule[160], got[512];
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/notify", dir);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    setenv("NOTIFY_SOCKET", at.sun_path, 1);
    setenv("WATCHDOG_USEC", "4000000", 1); /* looked at every second */
    gpu_daemon_start(&d, "");
    for (unsigned fed = 0; fed < 2;)
        fed += strcmp(told(fd, got, sizeof(got)), "WATCHDOG=1") == 0;
    snprintf(rule, sizeof(rule), "cuStreamQuery=hold %s", gpu_gate());
    gpu_daemon_rules(rule);
    test_sleep_us(2500000); /* until it is held and what was on its way has come */
    while (recv(fd, got, sizeof(got), MSG_DONTWAIT) > 0)
        continue;
    while (strstr(told(fd, got, sizeof(got)), "STATUS=degraded: device_stalled, ") == NULL)
        ck_assert_str_ne(got, "WATCHDOG=1");
    gpu_gate_open();
    while (strcmp(told(fd, got, sizeof(got)), "WATCHDOG=1") != 0)
        continue;
    gpu_daemon_stop(&d, 0);
    close(fd);
    unlink(at.sun_path);
    rmdir(dir);
}
END_TEST

MLA_SUITE(gpu_time)
{
    TCase *tc = mla_tcase_timeout(suite, "time", 60);
    tcase_add_loop_test(tc, d4_health_while_the_device_is_busy, 0, gpu_is_fake() ? 2 : 1);
    tcase_add_test(tc, d14_the_ready_word_never_comes);
    tcase_add_loop_test(tc, d20_buffers_used_again, 0, 2);
    if (gpu_is_fake())
        tcase_add_test(tc, the_watchdog_is_not_fed_while_a_call_blocks);
}
