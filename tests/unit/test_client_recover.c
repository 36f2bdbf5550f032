/* What becomes of eager jobs and of calls when the connection ends. */
#include <poll.h>

#include "tests/unit/test_client_recover.h"

/* ---- eager jobs ---- */

static void count_answer(struct mla_client *client, const struct mla_decode_result *r, void *user)
{
    unsigned *by_status = user;
    (void)client;
    by_status[r->status == MLA_OK ? 0 : 1]++;
}

START_TEST(eager_jobs_go_to_the_next_daemon)
{
    enum { N = 100 };
    static unsigned answers[2];
    struct mla_memory memory;
    struct mla_decode_result result;
    mla_request_id waited;
    memset(answers, 0, sizeof(answers));
    start();
    mla_region_id region = memory_region(&memory);
    mla_cache_id cache = cache_in(region);
    put_table_set(7);
    struct mla_decode_args a = job_args(region, cache, 7);
    int32_t visible = 3;
    a.visible = &visible;
    a.n_visible = 1;
    a.mask = MLA_MASK_VISIBLE;
    set_type(&hold_type, MLA_MSG_DECODE);
    for (unsigned i = 0; i < N; i++)
        ck_assert_int_eq(mla_decode_submit(c, &a, count_answer, answers, NULL), MLA_OK);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &waited), MLA_OK);
    visible = 99; /* it was copied */
    fake_await_held(f, N + 1);
    fake_answer_held(f, 3);
    set_type(&hold_type, 0);
    restart();
    mla_decode_result_init(&result);
    ck_assert_int_eq(mla_wait(c, waited, LONG_US, &result), MLA_OK);
    ck_assert_uint_eq(result.request, waited);
    while (mla_in_flight(c))
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(answers[0], N);
    ck_assert_uint_eq(answers[1], 0);
    struct ask last;
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, &last), 2 * N + 1);
    ck_assert_uint_eq(last.mask_visible, 3);
    ck_assert_uint_ne(last.region, region); /* the daemon's new id */
    ck_assert_uint_eq(last.id, 7);
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 2);
    ck_assert_uint_eq(asked(MLA_MSG_PUT_TABLE_SET, NULL), 2);
    struct ask define;
    ck_assert_uint_eq(asked(MLA_MSG_DEFINE_CACHE, &define), 2);
    ck_assert_uint_eq(define.region, last.region);
    ck_assert_uint_eq(events.n[MLA_EVENT_INTERRUPTED], 1);
    ck_assert_uint_eq(events.n[MLA_EVENT_RECONNECTED], 1);
    ck_assert(events.last[MLA_EVENT_RECONNECTED].restarted);
    ck_assert_uint_eq(events.n[MLA_EVENT_DISCONNECTED], 0);
    /* The caller's ids stay what they are. */
    ck_assert_int_eq(mla_cache_drop(c, cache, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_UNREGISTER_REGION, &last), 1);
    ck_assert_uint_eq(last.id, define.region);
    mla_memory_free(&memory);
    finish();
}
END_TEST

/* A cut connection whose daemon lives: it is asked until the old one has gone, and nothing is registered before. */
START_TEST(a_living_daemon_lets_go_first)
{
    struct mla_memory memory;
    struct mla_decode_result result;
    start();
    mla_region_id region = memory_region(&memory);
    struct mla_decode_args a = job_args(region, 3, 5);
    mla_request_id id;
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    fake_await_held(f, 1);
    pthread_mutex_lock(&f->lock);
    present = 4;
    hold_type = 0;
    pthread_mutex_unlock(&f->lock);
    fake_hang_up(fake_conn_of(f));
    mla_decode_result_init(&result);
    ck_assert_int_eq(mla_wait(c, id, LONG_US, &result), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_STATUS, NULL), 5);
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 2);
    size_t last_status = 0, registered = 0;
    for (size_t i = 0; i < n_seen; i++) {
        last_status = seen[i].type == MLA_MSG_STATUS ? i : last_status;
        registered = seen[i].type == MLA_MSG_REGISTER_REGION ? i : registered;
    }
    ck_assert_uint_lt(last_status, registered);
    mla_memory_free(&memory);
    finish();
}
END_TEST

START_TEST(jobs_keep_table_sets_that_were_dropped)
{
    struct mla_memory memory;
    struct ask last;
    start();
    mla_region_id region = memory_region(&memory);
    mla_request_id old, fresh;
    put_table_set(7);
    struct mla_decode_args a = job_args(region, 3, 7);
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &old), MLA_OK);
    ck_assert_int_eq(mla_tables_drop(c, 7, 0), MLA_OK);
    put_table_set(7); /* another one */
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &fresh), MLA_OK);
    fake_await_held(f, 2);
    restart();
    reconnect();
    fake_await_held(f, 4);
    ck_assert_uint_eq(asked(MLA_MSG_PUT_TABLE_SET, NULL), 4);
    const struct ask *jobs[4];
    size_t n = 0;
    for (size_t i = 0; i < n_seen; i++)
        if (seen[i].type == MLA_MSG_DECODE)
            jobs[n++] = &seen[i];
    ck_assert_uint_eq(n, 4);
    ck_assert_uint_ge(jobs[2]->id, UINT64_C(1) << 63); /* the first one's, by a name of the library's own */
    ck_assert_uint_eq(jobs[3]->id, 7);
    fake_answer_held(f, 2);
    fake_answer_held(f, 3);
    ck_assert_int_eq(mla_wait(c, old, LONG_US, NULL), MLA_OK);
    ck_assert_int_eq(mla_wait(c, fresh, LONG_US, NULL), MLA_OK);
    /* It is dropped when nobody uses it any more. */
    await_asked(MLA_MSG_DROP_TABLE_SET, 2);
    asked(MLA_MSG_DROP_TABLE_SET, &last);
    ck_assert_uint_eq(last.id, jobs[2]->id);
    mla_memory_free(&memory);
    finish();
}
END_TEST

START_TEST(work_is_taken_while_there_is_no_connection)
{
    struct mla_memory memory;
    struct ask last;
    start();
    mla_region_id region = memory_region(&memory);
    cut_off();
    mla_request_id id, cancelled, late;
    put_table_set(8);
    struct mla_decode_args a = job_args(region, 3, 8);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &cancelled), MLA_OK);
    a.deadline_us = 1000;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &late), MLA_OK);
    ck_assert_int_eq(mla_cancel(c, cancelled), MLA_OK);
    ck_assert_int_eq(mla_wait(c, cancelled, 0, NULL), MLA_CANCELLED);
    ck_assert_int_eq(mla_wait(c, late, LONG_US, NULL), MLA_TIMED_OUT);
    ck_assert_int_eq(mla_wait(c, id, 1000, NULL), MLA_PENDING);
    /* A job that a stream waits for is not taken. */
    a.done = (struct mla_location){.region = region};
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_region_unregister(c, region, 1000), MLA_PENDING);
    ck_assert_int_eq(mla_tables_drop(c, 8, 0), MLA_OK);
    fake_await_held(f, 1);
    set_type(&hold_type, 0);
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, &last), 1);
    ck_assert_uint_ge(last.id, UINT64_C(1) << 63);
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_UNREGISTER_REGION, NULL), 1);
    mla_memory_free(&memory);
    finish();
}
END_TEST

START_TEST(what_waits_is_bounded)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    unsigned n = 0;
    struct mla_options o;
    start();
    mla_close(c);
    o = fake_options(f);
    o.recover_us = LONG_US;
    o.on_event = note_event;
    o.max_send_bytes = 64 << 10;
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    cut_off();
    enum mla_status status;
    while ((status = mla_decode_submit(c, &a, NULL, NULL, NULL)) == MLA_OK)
        ck_assert_uint_lt(++n, 1000);
    ck_assert_int_eq(status, MLA_OVERLOADED);
    ck_assert_uint_gt(n, 100);
    finish();
}
END_TEST

/* The third daemon that dies with it: it may be what kills them. */
START_TEST(a_job_is_not_sent_for_ever)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id id;
    start();
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    for (unsigned i = 1; i <= 3; i++) {
        ck_assert_int_eq(mla_wait(c, id, 0, NULL), MLA_PENDING);
        fake_await_held(f, i);
        restart();
        reconnect();
    }
    ck_assert_int_eq(mla_wait(c, id, 0, NULL), MLA_DISCONNECTED);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 3);
    finish();
}
END_TEST

START_TEST(deadlines_go_on_across_connections)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    struct ask last;
    mla_request_id id, other;
    start();
    a.deadline_us = 5000000;
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    fake_await_held(f, 1);
    asked(MLA_MSG_DECODE, &last);
    ck_assert_uint_eq(last.timeout_us, 5000000);
    a.deadline_us = 30000;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &other), MLA_OK);
    fake_await_held(f, 2);
    set_type(&hold_type, MLA_MSG_HELLO);
    restart();
    /* It was sent, and nobody can say what becomes of it. */
    ck_assert_int_eq(mla_wait(c, other, LONG_US, NULL), MLA_DISCONNECTED);
    fake_await_held(f, 3);
    set_type(&hold_type, 0);
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_OK);
    asked(MLA_MSG_DECODE, &last);
    ck_assert_uint_lt(last.timeout_us, 5000000 - 30000);
    ck_assert_uint_gt(last.timeout_us, 1000000);
    finish();
}
END_TEST

START_TEST(a_cancelled_job_is_not_sent_again)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id id;
    start();
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    fake_await_held(f, 1);
    ck_assert_int_eq(mla_cancel(c, id), MLA_OK);
    await_asked(MLA_MSG_CANCEL, 1);
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_CANCELLED);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 1);
    finish();
}
END_TEST

START_TEST(what_a_draining_daemon_refuses_waits_for_the_next)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id id, late;
    start();
    pthread_mutex_lock(&f->lock);
    refuse_type = MLA_MSG_DECODE;
    refuse_with = MLA_DRAINING;
    refusals = 3;
    pthread_mutex_unlock(&f->lock);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    a.deadline_us = 20000;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &late), MLA_OK);
    ck_assert_int_eq(mla_wait(c, late, LONG_US, NULL), MLA_TIMED_OUT);
    ck_assert_int_eq(mla_wait(c, id, 0, NULL), MLA_PENDING);
    a.ready = (struct mla_location){.region = 1}; /* streams are told */
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_DRAINING);
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_OK);
    finish();
}
END_TEST

/* A connection was cut, and what its daemon runs may still be written: nobody is told otherwise before it has let go.
 */
START_TEST(no_answer_is_early)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id cancelled, late;
    start();
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &cancelled), MLA_OK);
    a.deadline_us = 1000;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &late), MLA_OK);
    fake_await_held(f, 2);
    ck_assert_int_eq(mla_cancel(c, cancelled), MLA_OK);
    await_asked(MLA_MSG_CANCEL, 1);
    usleep(2000);
    boot--; /* the same daemon as before */
    cut_off();
    ck_assert_int_eq(mla_wait(c, cancelled, 20000, NULL), MLA_PENDING);
    ck_assert_int_eq(mla_wait(c, late, 0, NULL), MLA_DISCONNECTED); /* which promises nothing */
    pthread_mutex_lock(&f->lock);
    hold_type = 0;
    present = 3;
    pthread_mutex_unlock(&f->lock);
    fake_hang_up(fake_conn_of(f));
    ck_assert_int_eq(mla_wait(c, cancelled, LONG_US, NULL), MLA_CANCELLED);
    ck_assert_uint_eq(asked(MLA_MSG_STATUS, NULL), 4);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 2);
    finish();
}
END_TEST

/* ---- calls ---- */

static void *restart_later(void *arg)
{
    (void)arg;
    usleep(30000);
    set_type(&hold_type, 0);
    restart();
    return NULL;
}

START_TEST(calls_that_wait_are_made_again)
{
    pthread_t t;
    struct mla_memory memory;
    struct mla_health_info *health;
    struct mla_region_desc d;
    mla_region_id region;
    start();
    mla_region_id first = memory_region(&memory);
    mla_region_desc_init(&d);
    d.fd = memory.fd;
    d.bytes = memory.size;
    set_type(&hold_type, MLA_MSG_REGISTER_REGION);
    pthread_create(&t, NULL, restart_later, NULL);
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    pthread_join(t, NULL);
    set_type(&hold_type, MLA_MSG_HEALTH);
    pthread_create(&t, NULL, restart_later, NULL);
    ck_assert_int_eq(mla_read_health(c, LONG_US, &health), MLA_OK);
    pthread_join(t, NULL);
    mla_free(health);
    set_type(&hold_type, MLA_MSG_UNREGISTER_REGION);
    ck_assert_int_eq(mla_region_unregister(c, first, 1000), MLA_PENDING); /* it goes on, */
    set_type(&hold_type, 0);
    restart();
    ck_assert_int_eq(mla_region_unregister(c, first, LONG_US), MLA_OK); /* at the next daemon, once */
    ck_assert_uint_eq(asked(MLA_MSG_UNREGISTER_REGION, NULL), 2);
    /* A drain is about one daemon. */
    set_type(&hold_type, MLA_MSG_DRAIN);
    pthread_create(&t, NULL, restart_later, NULL);
    ck_assert_int_eq(mla_drain(c, NULL, LONG_US, NULL), MLA_DISCONNECTED);
    pthread_join(t, NULL);
    ck_assert_uint_eq(asked(MLA_MSG_DRAIN, NULL), 1);
    mla_memory_free(&memory);
    finish();
}
END_TEST

/* Whoever polls mla_fd() and dispatches what is there without waiting gets there as well. */
START_TEST(event_loops_recover)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    static unsigned answers[2];
    memset(answers, 0, sizeof(answers));
    start();
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, count_answer, answers, NULL), MLA_OK);
    fake_await_held(f, 1);
    set_type(&hold_type, 0);
    restart();
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    for (unsigned i = 0; i < 100 && !answers[0]; i++) {
        ck_assert_int_eq(poll(&p, 1, 10000), 1);
        mla_dispatch(c, 0);
    }
    ck_assert_uint_eq(answers[0], 1);
    ck_assert_int_eq(poll(&p, 1, 0), 0); /* and then it is quiet */
    finish();
}
END_TEST

/* ---- the end ---- */

START_TEST(it_gives_up_at_its_limit)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id id, late;
    char aside[128];
    start_with(200000);
    snprintf(aside, sizeof(aside), "%s/aside", f->dir);
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    fake_await_held(f, 1);
    ck_assert_int_eq(rename(f->path, aside), 0);
    restart();
    ck_assert_int_eq(mla_wait_connected(c, 1000), MLA_PENDING);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &late), MLA_OK);
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_wait(c, late, 0, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_OK);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
    ck_assert_uint_eq(events.n[MLA_EVENT_INTERRUPTED], 1);
    ck_assert_uint_eq(events.n[MLA_EVENT_DISCONNECTED], 1);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_wait_connected(c, LONG_US), MLA_DISCONNECTED);
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    ck_assert_int_eq(rename(aside, f->path), 0);
    finish();
}
END_TEST

START_TEST(what_would_end_again_is_the_end)
{
    struct mla_message notice;
    start();
    mla_message_init(&notice, MLA_NOTICE_ERROR);
    notice.error_notice.status.code = MLA_PERMISSION_DENIED; /* evicted */
    fake_send(fake_conn_of(f), &notice, 0);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(events.n[MLA_EVENT_DISCONNECTED], 1);
    ck_assert_int_eq(events.last[MLA_EVENT_DISCONNECTED].error.status, MLA_PERMISSION_DENIED);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
    ck_assert_uint_eq(asked(MLA_MSG_HELLO, NULL), 1);
    finish();
}
END_TEST

START_TEST(a_lost_device_is_told_and_the_handle_goes_on)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    mla_request_id id;
    start();
    pthread_mutex_lock(&f->lock);
    refuse_type = MLA_MSG_DECODE;
    refuse_with = MLA_DEVICE_LOST;
    refusals = 1;
    pthread_mutex_unlock(&f->lock);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    ck_assert_int_eq(mla_wait(c, id, 20000, NULL), MLA_PENDING); /* only the daemon's end says that it is over */
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_DEVICE_LOST);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 2);
    finish();
}
END_TEST

START_TEST(closing_while_there_is_no_connection)
{
    struct mla_decode_args a = job_args(1, 3, 5);
    static unsigned answers[2];
    unsigned fds = fake_open_fds();
    struct mla_memory memory;
    memset(answers, 0, sizeof(answers));
    start();
    memory_region(&memory);
    put_table_set(4);
    cut_off();
    a.tables = 4;
    ck_assert_int_eq(mla_decode_submit(c, &a, count_answer, answers, NULL), MLA_OK);
    finish();
    ck_assert_uint_eq(answers[1], 1);
    mla_memory_free(&memory);
    ck_assert_uint_eq(fake_open_fds(), fds);
}
END_TEST

MLA_SUITE(client_recover)
{
    TCase *tc = mla_tcase(suite, "eager jobs");
    tcase_add_test(tc, eager_jobs_go_to_the_next_daemon);
    tcase_add_test(tc, a_living_daemon_lets_go_first);
    tcase_add_test(tc, jobs_keep_table_sets_that_were_dropped);
    tcase_add_test(tc, work_is_taken_while_there_is_no_connection);
    tcase_add_test(tc, what_waits_is_bounded);
    tcase_add_test(tc, a_job_is_not_sent_for_ever);
    tcase_add_test(tc, deadlines_go_on_across_connections);
    tcase_add_test(tc, a_cancelled_job_is_not_sent_again);
    tcase_add_test(tc, no_answer_is_early);
    tcase_add_test(tc, what_a_draining_daemon_refuses_waits_for_the_next);
    tc = mla_tcase(suite, "calls");
    tcase_add_test(tc, calls_that_wait_are_made_again);
    tcase_add_test(tc, event_loops_recover);
    tcase_add_test(tc, it_gives_up_at_its_limit);
    tcase_add_test(tc, what_would_end_again_is_the_end);
    tcase_add_test(tc, a_lost_device_is_told_and_the_handle_goes_on);
    tcase_add_test(tc, closing_while_there_is_no_connection);
}
