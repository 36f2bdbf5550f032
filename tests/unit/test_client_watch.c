/* The watcher: done words get their abort value when the daemon goes, without a call of the program. */
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"

#define LONG_US 10000000

static struct mla_decode_args some_args(void)
{
    struct mla_decode_args a;
    mla_decode_args_init(&a);
    a.cache = 3;
    a.tables = 5;
    a.heads = 16;
    a.q = (struct mla_view){.region = 1, .token_stride = 9216, .head_stride = 576, .compact = true};
    a.o = (struct mla_view){.region = 2, .token_stride = 16384, .head_stride = 1024, .compact = true};
    a.softmax_scale = 0.125f;
    return a;
}

static mla_request_id submit(struct mla_client *c, struct mla_sync *s, size_t word, uint64_t value)
{
    struct mla_decode_args a = some_args();
    mla_request_id id = 0;
    a.done = mla_sync_location(s, word);
    a.done_value = value;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    return id;
}

/* Waits for the word as a stream would. Milliseconds it took; aborts the test after 10 s. */
static double wait_for(const uint64_t *word, uint64_t value)
{
    uint64_t begun = mla_now_ns();
    while (!mla_word_reached(mla_word_load(word), value)) {
        const struct timespec ts = {.tv_nsec = 50000};
        nanosleep(&ts, NULL);
        ck_assert_msg(mla_now_ns() - begun < 10 * MLA_NS_PER_S, "the stream is not released");
    }
    return (double)(mla_now_ns() - begun) / 1e6;
}

START_TEST(words_are_aborted_without_a_call)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_sync *s;
    ck_assert_int_eq(mla_sync_create(c, 64, LONG_US, &s), MLA_OK);
    submit(c, s, 0, 5); /* in flight before there is a watcher */
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    mla_request_id answered = submit(c, s, 1, 1);
    mla_word_store(mla_sync_word(s, 4), 9); /* the daemon's last act: left alone */
    submit(c, s, 4, 9);
    mla_word_store(mla_sync_word(s, 5), 7); /* an earlier value */
    struct mla_decode_args a = some_args();
    mla_request_id last;
    a.done = mla_sync_location(s, 5);
    a.done_value = 8;
    a.status = mla_sync_location(s, 6);
    a.n_status = 3;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &last), MLA_OK);
    a.done = mla_sync_location(s, 7); /* its status words do not fit: they are for the daemon to refuse */
    a.status = (struct mla_location){mla_sync_location(s, 0).region, 63 * MLA_WORD_BYTES};
    a.n_status = 9;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    fake_await_held(f, 5);
    fake_answer_held(f, 1);
    ck_assert_int_eq(mla_wait(c, answered, LONG_US, NULL), MLA_OK);
    fake_hang_up(fake_conn_of(f));

    ck_assert_double_lt(wait_for(mla_sync_word(s, 0), 5), 100.0);
    wait_for(mla_sync_word(s, 5), 8);
    wait_for(mla_sync_word(s, 7), 8);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 0)), 5 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 1)), 0);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 2)), 0);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 4)), 9);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 5)), 8 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 7)), 8 + MLA_ABORT_OFFSET);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 6) + i), (uint64_t)MLA_DISCONNECTED << 32);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 6) + 3), 0);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 63)), 0);

    /* The handle learns of it as ever. */
    ck_assert_uint_eq(mla_in_flight(c), 4);
    ck_assert_int_eq(mla_wait(c, last, LONG_US, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_watch_start(c), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(a_job_behind_the_end_is_aborted_at_once)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_sync *s;
    ck_assert_int_eq(mla_sync_create(c, 2, LONG_US, &s), MLA_OK);
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    submit(c, s, 0, 1);
    fake_await_held(f, 1);
    fake_hang_up(fake_conn_of(f));
    wait_for(mla_sync_word(s, 0), 1);
    /* The handle has not looked yet, so that the job is taken. */
    submit(c, s, 1, 1);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 1)), 1 + MLA_ABORT_OFFSET);
    mla_close(c);
    ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
    fake_stop(f);
}
END_TEST

static bool hold_decodes_not_ends(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    if (m->type != MLA_MSG_DECODE)
        return false;
    fake_hold(conn, m, id);
    return true;
}

/* The memory of its words is gone: the watcher writes nothing there. */
START_TEST(unmapped_words_are_not_touched)
{
    struct fake *f = fake_start(hold_decodes_not_ends, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_sync *s, *status, *other;
    ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &s), MLA_OK);
    ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &status), MLA_OK);
    ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &other), MLA_OK);
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    submit(c, s, 0, 1);
    struct mla_decode_args a = some_args();
    a.done = mla_sync_location(other, 0);
    a.status = mla_sync_location(status, 0);
    a.n_status = 1;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(s, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(status, LONG_US), MLA_OK);
    fake_await_held(f, 2);
    fake_hang_up(fake_conn_of(f));
    wait_for(mla_sync_word(other, 0), 1);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(other, 0)), 1 + MLA_ABORT_OFFSET);
    mla_close(c);
    ck_assert_int_eq(mla_sync_destroy(other, 0), MLA_OK);
    fake_stop(f);
}
END_TEST

/* The watcher's own descriptor does not keep the connection open, whoever ends it. */
START_TEST(the_daemon_sees_the_end)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    unsigned before = fake_open_fds();
    struct mla_client *c = fake_open(f);
    struct mla_sync *s;
    ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &s), MLA_OK);
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    submit(c, s, 0, 1);
    fake_await_held(f, 1);
    struct fake_conn *conn = fake_conn_of(f);
    if (_i == 0) {
        mla_close(c);
        c = NULL;
    } else {
        fake_bytes(conn, "this is not a frame at all", 26);
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 0)), 1 + MLA_ABORT_OFFSET);
    }
    struct pollfd p = {.fd = conn->fd, .events = POLLRDHUP};
    ck_assert_int_eq(poll(&p, 1, 5000), 1);
    mla_close(c);
    ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
    ck_assert_uint_eq(fake_open_fds(), before + 1); /* the server's side */
    fake_stop(f);
}
END_TEST

/* Every other thread blocks the signal, so that the watcher would be the one to take it; it stays for the program. */
START_TEST(signals_are_for_the_program)
{
    sigset_t usr1, mask;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL); /* it inherits no mask */
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ck_assert(!sigismember(&mask, SIGUSR1)); /* starting it left this thread's mask alone */
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    ck_assert_int_eq(kill(getpid(), SIGUSR1), 0); /* taken by a thread, it would end this process */
    const struct timespec ten_s = {.tv_sec = 10};
    ck_assert_int_eq(sigtimedwait(&usr1, NULL, &ten_s), SIGUSR1);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static void *hang_up_soon(void *arg)
{
    struct fake *f = arg;
    usleep((useconds_t)(mla_now_ns() % 3000));
    fake_hang_up(fake_conn_of(f));
    return NULL;
}

/* Submits, answers and the end race; every word in flight comes to its value. For ThreadSanitizer. */
START_TEST(races)
{
    for (int round = 0; round < 20; round++) {
        struct fake *f = fake_start(NULL, NULL);
        struct mla_client *c = fake_open(f);
        struct mla_sync *s;
        pthread_t t;
        mla_request_id ids[64];
        unsigned n = 0, ok = 0;
        ck_assert_int_eq(mla_sync_create(c, 64, LONG_US, &s), MLA_OK);
        ck_assert_int_eq(mla_watch_start(c), MLA_OK);
        ck_assert_int_eq(pthread_create(&t, NULL, hang_up_soon, f), 0);
        for (unsigned i = 0; i < 64; i++) {
            struct mla_decode_args a = some_args();
            a.done = mla_sync_location(s, i);
            a.done_value = i + 1;
            a.status = (struct mla_location){a.done.region, i * MLA_WORD_BYTES + 8};
            a.n_status = 1;
            if (mla_decode_submit(c, &a, NULL, NULL, &ids[n]) != MLA_OK)
                break;
            n++;
            if (i % 3 == 0)
                mla_dispatch(c, 0);
        }
        for (unsigned i = 0; i < n; i++) {
            enum mla_status status = mla_wait(c, ids[i], LONG_US, NULL);
            ck_assert_msg(status == MLA_OK || status == MLA_DISCONNECTED, "status %d", (int)status);
            ok += status == MLA_OK;
            /* The fake server writes no words: one that is unanswered has its abort value. An answered one may have it
             * too, when the hang-up came between its answer's arrival and its reading. */
            if (status == MLA_DISCONNECTED)
                ck_assert(mla_word_aborted(mla_word_load(mla_sync_word(s, i)), i + 1));
        }
        ck_assert_uint_le(ok, n);
        pthread_join(t, NULL);
        mla_close(c);
        ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
        fake_stop(f);
    }
}
END_TEST

static volatile sig_atomic_t pipes_seen;

static void on_pipe(int signum)
{
    (void)signum;
    pipes_seen++;
}

/* Sends bytes, or bytes with a descriptor, or closes, when the daemon has gone and the handle has not looked. */
START_TEST(a_daemon_that_is_gone_raises_no_signal)
{
    struct sigaction action = {.sa_handler = on_pipe};
    ck_assert_int_eq(sigaction(SIGPIPE, &action, NULL), 0);
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_sync *s;
    struct mla_memory memory;
    mla_region_id region;
    ck_assert_int_eq(mla_memory_create(4096, 0, &memory), MLA_OK);
    if (_i == 2)
        ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    fake_hang_up(fake_conn_of(f));
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 10000), 1);
    if (_i == 0) {
        ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK); /* it cannot know */
        while (mla_dispatch(c, LONG_US) == MLA_OK)
            ;
        ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_DISCONNECTED);
    } else if (_i == 1) {
        ck_assert_int_eq(mla_memory_register(c, &memory, MLA_ACCESS_READ, "m", LONG_US, &region), MLA_DISCONNECTED);
    } else {
        ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &s), MLA_DISCONNECTED);
    }
    mla_close(c);
    mla_memory_free(&memory);
    fake_stop(f);
    ck_assert_int_eq(pipes_seen, 0);
}
END_TEST

MLA_SUITE(client_watch)
{
    TCase *tc = mla_tcase(suite, "watch");
    tcase_add_test(tc, words_are_aborted_without_a_call);
    tcase_add_test(tc, a_job_behind_the_end_is_aborted_at_once);
    tcase_add_test(tc, unmapped_words_are_not_touched);
    tcase_add_loop_test(tc, the_daemon_sees_the_end, 0, 2);
    tcase_add_test(tc, signals_are_for_the_program);
    tcase_add_loop_test(tc, a_daemon_that_is_gone_raises_no_signal, 0, 3);
    tcase_add_test(tc, races);
}
