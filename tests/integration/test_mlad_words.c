/* Ordering by words of a sync page: ready, done, abort values, status words. */
#include <signal.h>
#include <string.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define ABORT (UINT64_C(1) << 62)
#define READY 0
#define DONE  1

static struct daemon d;
static struct ground g;
static struct mla_message m;
static struct mla_decode_request *const q = &m.decode;

static uint64_t load(unsigned word)
{
    return __atomic_load_n(&g.words[8 * word], __ATOMIC_ACQUIRE);
}

static void store(unsigned word, uint64_t value)
{
    __atomic_store_n(&g.words[8 * word], value, __ATOMIC_RELEASE);
}

static uint64_t *status_words(void)
{
    return (uint64_t *)(void *)(g.io + GROUND_STATUS);
}

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&g, d.socket);
}

static void teardown(void)
{
    ground_decodes(&g);
    ground_close(&g);
    daemon_stop(&d, SIGTERM, 0);
}

/* A job that waits for word READY and ends with word DONE. */
static void with_words(uint64_t ready_value, uint64_t done_value)
{
    ground_decode(&g, &m);
    q->ready = ground_ref(g.sync, 64 * READY);
    q->done = ground_ref(g.sync, 64 * DONE);
    q->ready_value = ready_value;
    q->done_value = done_value;
    q->status_ref = ground_ref(g.io_region, GROUND_STATUS);
    *status_words() = 0xa5a5;
}

static uint64_t submit(void)
{
    uint64_t id = ++g.r.last_id;
    raw_send(&g.r, &m, id, NULL, 0);
    return id;
}

static bool waits(void)
{
    struct mla_message s;
    mla_message_init(&s, MLA_MSG_STATUS);
    return raw_call(&g.r, &s)->status_reply.daemon.jobs_waiting == 1;
}

static void wait_for(uint64_t id, enum mla_status code)
{
    const struct mla_message *reply = raw_wait(&g.r, id);
    ck_assert_str_eq(mla_status_name(reply->reply.status.code), mla_status_name(code));
}

START_TEST(counting_up)
{
    setup();
    for (uint64_t step = 1; step <= 20; step++) {
        with_words(step, step + 100);
        uint64_t id = submit();
        if (step % 2)
            ck_assert(waits());
        memset(g.io + GROUND_O, 0, 64);
        store(READY, step);
        WAIT_FOR(load(DONE) >= step + 100, 5000);
        /* The done word comes behind outputs and status words; nobody need wait for the reply. */
        ck_assert_uint_eq(load(DONE), step + 100);
        ck_assert_uint_eq(*status_words(), 0);
        const float *o = (const float *)(const void *)(g.io + GROUND_O);
        ck_assert_double_eq_tol(o[0], 1, 1e-5);
        wait_for(id, MLA_OK);
    }
    with_words(5, 200); /* its word is far past that */
    wait_for(submit(), MLA_OK);
    teardown();
}
END_TEST

/* The comparison is by signed difference, so counters may wrap. */
START_TEST(wrapping)
{
    setup();
    store(READY, UINT64_MAX - 1);
    with_words(UINT64_MAX, 0);
    uint64_t id = submit();
    ck_assert(waits());
    store(READY, 1);
    wait_for(id, MLA_OK);
    ck_assert_uint_eq(load(DONE), 0);
    teardown();
}
END_TEST

START_TEST(several_on_one_word)
{
    setup();
    uint64_t ids[8];
    for (uint64_t i = 0; i < 8; i++) {
        with_words(8 - i, 1000);
        q->done.present = i == 7;
        q->o.offset = (2 + i) * 65536;
        q->status_ref.present = false;
        ids[i] = submit();
    }
    for (uint64_t i = 0; i < 8; i++) {
        store(READY, i + 1);
        wait_for(ids[7 - i], MLA_OK);
    }
    ck_assert_uint_eq(load(DONE), 1000);
    teardown();
}
END_TEST

START_TEST(ready_aborted)
{
    setup();
    with_words(7, 9);
    uint64_t id = submit();
    ck_assert(waits());
    store(READY, 7 + ABORT);
    wait_for(id, MLA_READY_ABORTED);
    ck_assert_uint_eq(load(DONE), 9 + ABORT);
    ck_assert_uint_eq(*status_words(), (uint64_t)MLA_READY_ABORTED << 32);
    with_words(7, 10); /* it is there already */
    wait_for(submit(), MLA_READY_ABORTED);
    ck_assert_uint_eq(load(DONE), 10 + ABORT);
    teardown();
}
END_TEST

START_TEST(cancelled_and_timed_out)
{
    setup();
    with_words(1, 1);
    uint64_t id = submit();
    ck_assert(waits());
    struct mla_message cancel;
    mla_message_init(&cancel, MLA_MSG_CANCEL);
    cancel.cancel.request_id = id;
    raw_send(&g.r, &cancel, 5000, NULL, 0);
    wait_for(5000, MLA_OK);
    wait_for(id, MLA_CANCELLED);
    ck_assert_uint_eq(load(DONE), 1 + ABORT);
    ck_assert_uint_eq(*status_words(), (uint64_t)MLA_CANCELLED << 32);
    with_words(1, 2);
    q->timeout_us = 20000;
    wait_for(submit(), MLA_TIMED_OUT);
    ck_assert_uint_eq(load(DONE), 2 + ABORT);
    ck_assert_uint_eq(*status_words(), (uint64_t)MLA_TIMED_OUT << 32);
    store(READY, 1); /* too late for both */
    test_sleep_us(20000);
    ck_assert_uint_eq(load(DONE), 2 + ABORT);
    teardown();
}
END_TEST

/* A sync page is gone only when no job watches its words. */
START_TEST(unregistered_while_watched)
{
    setup();
    with_words(1, 1);
    q->timeout_us = 200000;
    uint64_t id = submit();
    ck_assert(waits());
    struct mla_message end;
    mla_message_init(&end, MLA_MSG_UNREGISTER_REGION);
    end.unregister_region.region = g.sync;
    raw_send(&g.r, &end, 5000, NULL, 0);
    ck_assert(waits());
    ck_assert(!raw_readable(&g.r, 50));
    wait_for(id, MLA_TIMED_OUT);
    wait_for(5000, MLA_OK);
    ck_assert_uint_eq(load(DONE), 1 + ABORT);
    ground_decode(&g, &m);
    q->ready = ground_ref(g.sync, 0);
    raw_expect(&g.r, &m, MLA_NOT_FOUND, "ready.region");
    teardown();
}
END_TEST

/* A stream that already waits for the done word must go on, also when its DECODE is refused. */
START_TEST(refused_with_a_done_word)
{
    setup();
    with_words(1, 11);
    q->plane = 9;
    wait_for(submit(), MLA_OUT_OF_BOUNDS);
    ck_assert_uint_eq(load(DONE), 11 + ABORT);
    with_words(1, 12);
    q->table_set = 77;
    wait_for(submit(), MLA_NOT_FOUND);
    ck_assert_uint_eq(load(DONE), 12 + ABORT);
    with_words(1, 13);
    q->cache = 1;
    wait_for(submit(), MLA_NOT_FOUND);
    ck_assert_uint_eq(load(DONE), 13 + ABORT);
    /* A reference that is not good writes nothing anywhere. */
    with_words(1, 14);
    q->plane = 9;
    q->done.offset = 4096;
    wait_for(submit(), MLA_OUT_OF_BOUNDS);
    q->done = ground_ref(g.io_region, 0);
    memset(g.io, 0, 8);
    wait_for(submit(), MLA_OUT_OF_BOUNDS);
    ck_assert_uint_eq(*(uint64_t *)(void *)g.io, 0);
    ck_assert_uint_eq(load(DONE), 13 + ABORT);
    teardown();
}
END_TEST

/* Status words may lie in a sync page, but not on the words of the same job. */
START_TEST(status_words_beside_the_words)
{
    setup();
    store(READY, 1);
    with_words(1, 1);
    q->status_ref = ground_ref(g.sync, 128);
    g.words[16] = 0xa5;
    wait_for(submit(), MLA_OK);
    ck_assert_uint_eq(g.words[16], 0);
    with_words(1, 2);
    q->status_ref = ground_ref(g.sync, 64 * READY);
    raw_expect(&g.r, &m, MLA_OVERLAP, "status_ref");
    q->status_ref = ground_ref(g.sync, 64 * DONE);
    raw_expect(&g.r, &m, MLA_OVERLAP, "status_ref");
    teardown();
}
END_TEST

MLA_SUITE(mlad_words)
{
    TCase *tc = mla_tcase(suite, "words");
    tcase_add_test(tc, counting_up);
    tcase_add_test(tc, wrapping);
    tcase_add_test(tc, several_on_one_word);
    tcase_add_test(tc, ready_aborted);
    tcase_add_test(tc, cancelled_and_timed_out);
    tcase_add_test(tc, unregistered_while_watched);
    tcase_add_test(tc, refused_with_a_done_word);
    tcase_add_test(tc, status_words_beside_the_words);
}
