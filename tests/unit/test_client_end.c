/* The end of a connection, notices, what a malformed answer does, and two handles in two threads. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

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

struct log {
    unsigned answers;
    unsigned disconnected; /* of them */
    unsigned lost;         /* of them, DEVICE_LOST */
    unsigned events;
    unsigned answers_at_end;
    struct mla_event last;
    unsigned per_request[128];
};

static void on_event(struct mla_client *c, const struct mla_event *e, void *user)
{
    struct log *log = user;
    ck_assert_int_eq(mla_close(c), MLA_BUSY);
    log->events++;
    log->last = *e;
    log->answers_at_end = log->answers;
}

struct job {
    struct log *log;
    unsigned index;
};

static void on_answer(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    struct job *job = user;
    (void)c;
    job->log->answers++;
    job->log->disconnected += r->status == MLA_DISCONNECTED;
    job->log->lost += r->status == MLA_DEVICE_LOST;
    job->log->per_request[job->index]++;
}

static struct mla_client *open_logged(const struct fake *f, struct log *log)
{
    struct mla_options o = fake_options(f);
    struct mla_client *c;
    memset(log, 0, sizeof(*log));
    o.on_event = on_event;
    o.user = log;
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    return c;
}

/* ---- disconnect ---- */

START_TEST(each_of_100_is_answered_once)
{
    enum { N = 100 };
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job jobs[N];
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    mla_request_id waited = 0, id;
    for (unsigned i = 0; i < N; i++) {
        jobs[i] = (struct job){&log, i};
        ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &jobs[i], &id), MLA_OK);
    }
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &waited), MLA_OK);
    fake_await_held(f, N + 1);
    fake_answer_held(f, 3);
    fake_hang_up(fake_conn_of(f));
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 10000), 1);
    while (mla_dispatch(c, LONG_US) == MLA_OK)
        ;
    ck_assert_uint_eq(log.answers, N);
    ck_assert_uint_eq(log.disconnected, N - 1);
    for (unsigned i = 0; i < N; i++)
        ck_assert_uint_eq(log.per_request[i], 1);
    ck_assert_uint_eq(log.events, 1);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_DISCONNECTED);
    ck_assert_int_eq(log.last.error.status, MLA_DISCONNECTED);
    ck_assert_uint_eq(log.answers_at_end, N);
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
    ck_assert_uint_eq(mla_in_flight(c), 1);
    struct mla_decode_result r;
    mla_decode_result_init(&r);
    ck_assert_int_eq(mla_wait(c, waited, LONG_US, &r), MLA_DISCONNECTED);
    ck_assert_uint_eq(r.request, waited);
    ck_assert_int_eq(mla_wait(c, waited, LONG_US, &r), MLA_NOT_FOUND);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_cancel(c, id), MLA_DISCONNECTED);
    ck_assert_str_eq(mla_last_error(c)->text, "the daemon closed the connection");
    mla_close(c);
    ck_assert_uint_eq(log.answers, N);
    ck_assert_uint_eq(log.events, 1);
    fake_stop(f);
}
END_TEST

static void on_closing(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    struct mla_decode_args a = some_args();
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_DISCONNECTED);
    on_answer(c, r, user);
}

START_TEST(close_answers_what_is_left)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job jobs[3];
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    for (unsigned i = 0; i < 3; i++) {
        jobs[i] = (struct job){&log, i};
        ck_assert_int_eq(mla_decode_submit(c, &a, on_closing, &jobs[i], NULL), MLA_OK);
    }
    ck_assert_int_eq(mla_close(c), MLA_OK);
    ck_assert_uint_eq(log.answers, 3);
    ck_assert_uint_eq(log.disconnected, 3);
    ck_assert_uint_eq(log.events, 0);
    fake_stop(f);
}
END_TEST

static void *hang_up_later(void *arg)
{
    usleep(30000);
    fake_hang_up(fake_conn_of(arg));
    return NULL;
}

static bool hold_all_but_hello(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    if (m->type == MLA_MSG_HELLO || m->type == MLA_MSG_REGISTER_SYNC)
        return false;
    fake_hold(conn, m, id);
    return true;
}

START_TEST(a_waiting_call_sees_the_end)
{
    struct fake *f = fake_start(hold_all_but_hello, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_health_info *h;
    pthread_t t;
    ck_assert_int_eq(mla_region_unregister(c, 9, 0), MLA_PENDING);
    pthread_create(&t, NULL, hang_up_later, f);
    ck_assert_int_eq(mla_read_health(c, MLA_FOREVER, &h), MLA_DISCONNECTED);
    pthread_join(t, NULL);
    ck_assert_int_eq(mla_region_unregister(c, 9, LONG_US), MLA_DISCONNECTED);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(done_words_are_aborted)
{
    struct fake *f = fake_start(hold_all_but_hello, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_sync *s, *other;
    struct mla_decode_args a = some_args();
    ck_assert_int_eq(mla_sync_create(c, 64, LONG_US, &s), MLA_OK);
    ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &other), MLA_OK);
    mla_word_store(mla_sync_word(s, 3), 6); /* an earlier job's value */
    for (size_t i = 0; i < 3; i++) {
        a.done = mla_sync_location(s, 2 + i);
        a.done_value = 5 + 2 * i; /* word 2: 5, word 3: 7, word 4: 9 */
        ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    }
    a.done = mla_sync_location(s, 10); /* answered before the end: left alone */
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    a.done = mla_sync_location(s, 11); /* nobody waits for this one's answer */
    a.done_value = 1;
    ck_assert_int_eq(mla_decode(c, &a, 0, NULL), MLA_PENDING);
    a.done = (struct mla_location){mla_sync_location(s, 0).region, 1u << 20}; /* outside: for the daemon to refuse */
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    a.done = mla_sync_location(other, 0); /* its page goes first */
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, NULL), MLA_OK);
    fake_await_held(f, 7);
    fake_answer_held(f, 3);
    mla_word_store(mla_sync_word(s, 4), 9); /* the daemon's last act */
    ck_assert_int_eq(mla_sync_destroy(other, 0), MLA_PENDING);
    fake_await_held(f, 8);
    fake_answer_held(f, 7);
    ck_assert_int_eq(mla_sync_destroy(other, LONG_US), MLA_OK);
    fake_hang_up(fake_conn_of(f));
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 2)), 5 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 3)), 7 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 4)), 9);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 10)), 0);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 11)), 1 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 0)), 0);
    ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(a_lost_device_is_told_after_the_end)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job job = {&log, 0};
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    struct mla_message m;
    struct mla_error err = {.code = MLA_DEVICE_LOST, .text = "an illegal address"};
    mla_request_id waited;
    ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &job, NULL), MLA_OK);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &waited), MLA_OK);
    fake_await_held(f, 2);
    mla_message_init(&m, MLA_NOTICE_GOAWAY);
    m.goaway_notice.reason = MLA_GOAWAY_FATAL;
    m.goaway_notice.status = err;
    fake_send(fake_conn_of(f), &m, 0);
    fake_refuse(fake_conn_of(f), MLA_MSG_DECODE, f->held[0].id, &err);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_GOAWAY);
    ck_assert_int_eq(log.last.goaway, MLA_GOAWAY_FATAL);
    ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK); /* the answer has been read */
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_PENDING);
    ck_assert_uint_eq(log.answers, 0);
    fake_hang_up(fake_conn_of(f));
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(log.lost, 1);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_DISCONNECTED);
    ck_assert_int_eq(log.last.error.status, MLA_DEVICE_LOST);
    ck_assert_str_eq(log.last.error.text, "an illegal address");
    ck_assert_int_eq(mla_wait(c, waited, LONG_US, NULL), MLA_DISCONNECTED);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- notices ---- */

static bool refuse_tables(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    struct mla_error err = {.code = MLA_QUOTA, .field = "id", .limit = 4};
    if (m->type != MLA_MSG_PUT_TABLE_SET)
        return false;
    fake_refuse(conn, m->type, id, &err);
    return true;
}

START_TEST(notices_become_events)
{
    struct fake *f = fake_start(refuse_tables, NULL);
    struct log log;
    struct mla_client *c = open_logged(f, &log);
    struct mla_message m;
    struct mla_tables t;
    mla_tables_init(&t);
    t.id = 66;
    ck_assert_int_eq(mla_tables_put(c, &t, 0), MLA_OK);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_REFUSED);
    ck_assert_uint_eq(log.last.tables, 66);
    ck_assert_int_eq(log.last.error.status, MLA_QUOTA);
    ck_assert_uint_eq(log.last.error.limit, 4);
    /* Waited for, it is the call's own status and no event. */
    ck_assert_int_eq(mla_tables_put(c, &t, LONG_US), MLA_QUOTA);

    mla_message_init(&m, MLA_NOTICE_CACHE_GONE);
    m.cache_gone_notice.cache = 1234;
    m.cache_gone_notice.name = "kv";
    fake_send(fake_conn_of(f), &m, 0);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_CACHE_GONE);
    ck_assert_uint_eq(log.last.cache, 1234);
    ck_assert_str_eq(log.last.name, "kv");

    mla_message_init(&m, MLA_NOTICE_GOAWAY);
    m.goaway_notice.reason = MLA_GOAWAY_DRAINING;
    m.goaway_notice.deadline_us = 5555;
    fake_send(fake_conn_of(f), &m, 0);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.goaway, MLA_GOAWAY_DRAINING);
    ck_assert_uint_eq(log.last.deadline_us, 5555);

    mla_message_init(&m, MLA_NOTICE_ERROR);
    m.error_notice.status.code = MLA_SLOW_PEER;
    fake_send(fake_conn_of(f), &m, 0);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_DISCONNECTED);
    ck_assert_int_eq(log.last.error.status, MLA_SLOW_PEER);
    ck_assert_uint_eq(log.events, 4);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- malformed answers ---- */

enum bad {
    BAD_MAGIC,
    BAD_MAJOR,
    BAD_FDS,
    BAD_TYPE,
    BAD_REQUEST,
    BAD_LENGTH,
    BAD_OTHER,
    BAD_ID,
    BAD_BODY,
    BAD_NOTICE,
    N_BAD
};

static const struct {
    enum mla_status status;
    const char *text;
} bad_ends[N_BAD] = {
    [BAD_MAGIC] = {MLA_PROTOCOL_ERROR, "what the daemon sent is not a frame"},
    [BAD_MAJOR] = {MLA_VERSION_MISMATCH, "the daemon speaks protocol 7, this library 1"},
    [BAD_FDS] = {MLA_PROTOCOL_ERROR, "the daemon announced 3 file descriptors"},
    [BAD_TYPE] = {MLA_PROTOCOL_ERROR, "message type 0x8fff is not known"},
    [BAD_REQUEST] = {MLA_PROTOCOL_ERROR, "a DECODE that answers nothing"},
    [BAD_LENGTH] = {MLA_PROTOCOL_ERROR, "a DECODE reply of 4294967295 bytes is over the limit of 8388608"},
    [BAD_OTHER] = {MLA_PROTOCOL_ERROR, "a HEALTH reply answers a DECODE"},
    [BAD_ID] = {MLA_PROTOCOL_ERROR, "a DECODE reply that answers nothing"},
    [BAD_BODY] = {MLA_PROTOCOL_ERROR, NULL},
    [BAD_NOTICE] = {MLA_PROTOCOL_ERROR, "a notice with a request id"},
};

static void send_bad(struct fake_conn *conn, enum bad bad, uint64_t id)
{
    uint8_t frame[MLA_WIRE_HEADER_BYTES + 8] = {0};
    size_t n = MLA_WIRE_HEADER_BYTES;
    struct mla_frame_header h = {.major = MLA_PROTO_MAJOR, .type = MLA_MSG_DECODE | MLA_REPLY, .request_id = id};
    if (bad == BAD_MAJOR)
        h.major = 7;
    else if (bad == BAD_FDS)
        h.n_fds = 3;
    else if (bad == BAD_TYPE)
        h.type = 0x8fff;
    else if (bad == BAD_REQUEST)
        h.type = MLA_MSG_DECODE;
    else if (bad == BAD_LENGTH)
        h.body_len = UINT32_MAX;
    else if (bad == BAD_OTHER)
        h.type = MLA_MSG_HEALTH | MLA_REPLY;
    else if (bad == BAD_ID)
        h.request_id = id + (UINT64_C(1) << 40);
    else if (bad == BAD_NOTICE)
        h.type = MLA_NOTICE_CACHE_GONE;
    if (bad == BAD_BODY) {
        h.body_len = 8;
        memset(frame + n, 0xff, 8);
        n += 8;
    }
    mla_wire_pack(&h, frame);
    if (bad == BAD_MAGIC)
        frame[0] ^= 1;
    fake_bytes(conn, frame, n);
}

START_TEST(malformed_answers_end_the_connection)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job job = {&log, 0};
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &job, NULL), MLA_OK);
    fake_await_held(f, 1);
    send_bad(fake_conn_of(f), (enum bad)_i, f->held[0].id);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(log.answers, 1);
    ck_assert_uint_eq(log.disconnected, 1);
    ck_assert_int_eq(log.last.kind, MLA_EVENT_DISCONNECTED);
    ck_assert_int_eq(log.last.error.status, bad_ends[_i].status);
    if (bad_ends[_i].text)
        ck_assert_str_eq(log.last.error.text, bad_ends[_i].text);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_DISCONNECTED);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(answered_twice_ends_the_connection)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job job = {&log, 0};
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &job, NULL), MLA_OK);
    fake_await_held(f, 1);
    fake_answer_held(f, 0);
    fake_answer_held(f, 0);
    while (mla_dispatch(c, LONG_US) == MLA_OK)
        ;
    ck_assert_uint_eq(log.answers, 1);
    ck_assert_uint_eq(log.disconnected, 0);
    ck_assert_int_eq(log.last.error.status, MLA_PROTOCOL_ERROR);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(truncated_answers_are_an_end)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct log log;
    struct job job = {&log, 0};
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    uint8_t header[MLA_WIRE_HEADER_BYTES];
    ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &job, NULL), MLA_OK);
    fake_await_held(f, 1);
    const struct mla_frame_header h = {.major = MLA_PROTO_MAJOR,
                                       .type = MLA_MSG_DECODE | MLA_REPLY,
                                       .body_len = MLA_CAP_REPLY_BYTES,
                                       .request_id = f->held[0].id};
    mla_wire_pack(&h, header);
    /* Half a header, then the rest and none of the body. */
    fake_bytes(fake_conn_of(f), header, 11);
    ck_assert_int_eq(mla_dispatch(c, 20000), MLA_PENDING);
    fake_bytes(fake_conn_of(f), header + 11, sizeof(header) - 11);
    ck_assert_int_eq(mla_dispatch(c, 20000), MLA_PENDING);
    fake_hang_up(fake_conn_of(f));
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(log.disconnected, 1);
    ck_assert_int_eq(log.last.error.status, MLA_DISCONNECTED);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* Statuses that only the library gives, and an ERROR notice that names no error, are never success or "in flight". */
START_TEST(statuses_that_cannot_be)
{
    struct fake *f = fake_start(hold_all_but_hello, NULL);
    struct log log;
    struct mla_client *c = open_logged(f, &log);
    struct mla_decode_args a = some_args();
    mla_request_id id;
    if (_i == 0) {
        const struct mla_error err = {.code = MLA_PENDING};
        ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
        fake_await_held(f, 1);
        fake_refuse(fake_conn_of(f), MLA_MSG_DECODE, f->held[0].id, &err);
        ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_DISCONNECTED);
    } else {
        struct mla_message m;
        mla_message_init(&m, MLA_NOTICE_ERROR);
        fake_send(fake_conn_of(f), &m, 0);
        ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_PROTOCOL_ERROR);
    }
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(log.last.error.status, MLA_PROTOCOL_ERROR);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static void *send_flood(void *arg)
{
    struct fake *f = arg;
    struct mla_message m;
    mla_message_init(&m, MLA_NOTICE_CACHE_GONE);
    m.cache_gone_notice.cache = 1;
    for (int i = 0; i < 4096; i++)
        fake_send(fake_conn_of(f), &m, 0);
    return NULL;
}

static void *send_two_floods(void *arg)
{
    send_flood(arg);
    return send_flood(arg);
}

START_TEST(a_flood_of_notices_ends_the_connection)
{
    struct fake *f = fake_start(NULL, NULL);
    struct log log;
    struct mla_client *c = open_logged(f, &log);
    pthread_t t;
    /* Calls that hand out no events read them all the same. */
    pthread_create(&t, NULL, send_flood, f);
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK);
    ck_assert_uint_eq(log.events, 0);
    for (unsigned seen = 0; seen < 4096; seen = log.events)
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    pthread_join(t, NULL);
    ck_assert_uint_eq(log.events, 4096);
    pthread_create(&t, NULL, send_two_floods, f);
    enum mla_status status;
    while ((status = mla_region_unregister(c, 1, LONG_US)) == MLA_OK)
        ;
    ck_assert_int_eq(status, MLA_PROTOCOL_ERROR);
    while (mla_dispatch(c, LONG_US) == MLA_OK)
        ;
    ck_assert_uint_eq(log.events, 2 * 4096 + 1);
    pthread_join(t, NULL);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- threads ---- */

static void *work(void *arg)
{
    struct fake *f = arg;
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct log log = {0};
    struct job job = {&log, 0};
    for (int i = 0; i < 200; i++) {
        ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_OK);
        ck_assert_int_eq(mla_decode_submit(c, &a, on_answer, &job, NULL), MLA_OK);
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    }
    ck_assert_uint_eq(log.answers, 200);
    ck_assert_int_eq(mla_close(c), MLA_OK);
    return NULL;
}

START_TEST(two_handles_in_two_threads)
{
    struct fake *f = fake_start(NULL, NULL);
    pthread_t t[2];
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&t[i], NULL, work, f), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    fake_stop(f);
}
END_TEST

MLA_SUITE(client_end)
{
    TCase *tc = mla_tcase(suite, "disconnect");
    tcase_add_test(tc, each_of_100_is_answered_once);
    tcase_add_test(tc, close_answers_what_is_left);
    tcase_add_test(tc, a_waiting_call_sees_the_end);
    tcase_add_test(tc, done_words_are_aborted);
    tcase_add_test(tc, a_lost_device_is_told_after_the_end);
    tc = mla_tcase(suite, "notices");
    tcase_add_test(tc, notices_become_events);
    tc = mla_tcase(suite, "malformed");
    tcase_add_loop_test(tc, malformed_answers_end_the_connection, 0, N_BAD);
    tcase_add_loop_test(tc, statuses_that_cannot_be, 0, 2);
    tcase_add_test(tc, answered_twice_ends_the_connection);
    tcase_add_test(tc, truncated_answers_are_an_end);
    tcase_add_test(tc, a_flood_of_notices_ends_the_connection);
    tc = mla_tcase(suite, "threads");
    tcase_add_test(tc, two_handles_in_two_threads);
}
