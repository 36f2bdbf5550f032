/* Decodes: what is sent, answers in any order, local timeouts, cancel, callbacks and what they may do, mla_fd. */
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

/* ---- what is sent ---- */

static bool look_at_decode(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)conn, (void)id, (void)user;
    const struct mla_decode_request *d = &m->decode;
    if (m->type != MLA_MSG_DECODE)
        return false;
    ck_assert_uint_eq(d->cache, 3);
    ck_assert_uint_eq(d->plane, 2);
    ck_assert_uint_eq(d->table_set, 5);
    ck_assert_uint_eq(d->heads, 16);
    ck_assert_uint_eq(d->q.region, 1);
    ck_assert_int_eq(d->q.token_stride, 9216);
    ck_assert(d->q.compact && d->q_rope.present && d->lse.present);
    ck_assert_uint_eq(d->q_rope.offset, 64);
    ck_assert_int_eq(d->lse.seq_stride, -4096);
    ck_assert_int_eq(d->out_type, MLA_DTYPE_E4M3);
    ck_assert_int_eq(d->mask, MLA_MASK_VISIBLE);
    ck_assert_uint_eq(d->n_visible, 2);
    ck_assert_uint_eq(d->visible[1], 0xffffffff);
    ck_assert(!d->visible_ref.present && d->kv_len_ref.present && d->table_ref.present);
    ck_assert_uint_eq(d->kv_len_ref.region, 31);
    ck_assert_uint_eq(d->table_ref.offset, 32);
    ck_assert_uint_eq(d->table_entries_per_seq, 33);
    ck_assert_float_eq(d->q_scale, 2.0f);
    ck_assert_float_eq(d->kv_scale, 0.5f);
    ck_assert_float_eq(d->softmax_scale, 0.125f);
    ck_assert_float_eq(d->out_scale, 4.0f);
    ck_assert(d->batch_invariant);
    ck_assert_uint_eq(d->timeout_us, 777);
    ck_assert_uint_eq(d->ready.offset, 64);
    ck_assert_uint_eq(d->ready_value, 8);
    ck_assert_uint_eq(d->done.offset, 128);
    ck_assert_uint_eq(d->done_value, 9);
    ck_assert_uint_eq(d->status_ref.region, 34);
    ck_assert_uint_eq(d->priority, 3);
    return false;
}

START_TEST(every_field_arrives)
{
    struct fake *f = fake_start(look_at_decode, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_decode_result r;
    const int32_t visible[2] = {4, -1};
    mla_decode_result_init(&r);
    a.plane = 2;
    a.q_rope = (struct mla_view){.region = 1, .offset = 64, .token_stride = 1024, .head_stride = 64, .compact = true};
    a.lse = (struct mla_view){.region = 2, .seq_stride = -4096, .token_stride = 64, .head_stride = 4};
    a.out_type = MLA_DTYPE_E4M3;
    a.mask = MLA_MASK_VISIBLE;
    a.visible = visible;
    a.n_visible = 2;
    a.kv_len = (struct mla_location){31, 0};
    a.table = (struct mla_location){31, 32};
    a.table_entries_per_seq = 33;
    a.q_scale = 2.0f;
    a.kv_scale = 0.5f;
    a.out_scale = 4.0f;
    a.batch_invariant = true;
    a.deadline_us = 777;
    a.ready = (struct mla_location){35, 64};
    a.ready_value = 8;
    a.done = (struct mla_location){35, 128};
    a.done_value = 9;
    a.status = (struct mla_location){34, 0};
    a.priority = 3;
    ck_assert_msg(mla_decode(c, &a, LONG_US, &r) == MLA_OK, "%s", mla_last_error(c)->text);
    ck_assert_int_eq(r.status, MLA_OK);
    ck_assert_uint_eq(r.wait_us, 1);
    ck_assert_uint_eq(r.queue_us, 2);
    ck_assert_uint_eq(r.run_us, 3);
    ck_assert_uint_eq(r.batch, 4);
    ck_assert_uint_eq(r.batch_jobs, 5);
    ck_assert_uint_eq(r.tiles, 16);
    ck_assert_uint_eq(r.items, 7);
    ck_assert_uint_eq(r.splits, 8);
    ck_assert_uint_eq(r.n_faults, 0);
    ck_assert_uint_eq(mla_in_flight(c), 0);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(bad_arguments_are_not_sent)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_decode_result r;
    memset(&r, 0, sizeof(r));
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, &r), MLA_INVALID_ARGUMENT);
    mla_decode_result_init(&r);
    a.size = 20;
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, &r), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(r.status, MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_decode(c, NULL, LONG_US, &r), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_decode(NULL, &a, LONG_US, NULL), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_wait(c, 12345, LONG_US, NULL), MLA_NOT_FOUND);
    ck_assert_str_eq(mla_last_error(c)->field, "request_id");
    ck_assert_uint_eq(mla_last_error(c)->value, 12345);
    ck_assert_int_eq(mla_cancel(c, 12345), MLA_NOT_FOUND);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_DECODE], 0);
    ck_assert_uint_eq(mla_in_flight(c), 0);
    /* A larger struct of a later version is cut to what this one knows. */
    struct {
        struct mla_decode_args args;
        char later[64];
    } large = {.args = some_args()};
    large.args.size = sizeof(large);
    ck_assert_int_eq(mla_decode(c, &large.args, LONG_US, &r), MLA_OK);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static bool answer_partial(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    struct mla_sequence_fault faults[64];
    if (m->type != MLA_MSG_DECODE)
        return false;
    for (uint32_t i = 0; i < 64; i++)
        faults[i] = (struct mla_sequence_fault){.sequence = 2 * i, .code = MLA_PAGE_OUT_OF_RANGE, .index = i};
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_DECODE | MLA_REPLY);
    reply.decode_reply.status.code = MLA_PARTIAL;
    reply.decode_reply.status.value = 100;
    reply.decode_reply.faults = faults;
    reply.decode_reply.n_faults = 64;
    fake_send(conn, &reply, id);
    return true;
}

START_TEST(faults_are_listed)
{
    struct fake *f = fake_start(answer_partial, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_decode_result r;
    mla_decode_result_init(&r);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, &r), MLA_PARTIAL);
    ck_assert_int_eq(mla_last_error(c)->status, MLA_PARTIAL);
    ck_assert_uint_eq(r.n_faults, 100);
    ck_assert_uint_eq(r.n_listed, 64);
    ck_assert_uint_eq(r.faults[63].sequence, 126);
    ck_assert_int_eq(r.faults[63].status, MLA_PAGE_OUT_OF_RANGE);
    ck_assert_uint_eq(r.faults[63].index, 63);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- many in flight ---- */

struct record {
    unsigned n;
    mla_request_id ids[FAKE_HELD_MAX];
    uint64_t batches[FAKE_HELD_MAX];
    enum mla_status statuses[FAKE_HELD_MAX];
};

static void remember(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    struct record *rec = user;
    (void)c;
    rec->ids[rec->n] = r->request;
    rec->batches[rec->n] = r->batch;
    rec->statuses[rec->n] = r->status;
    rec->n++;
}

/* What the socket did not take at once goes out by dispatch; POLLOUT makes mla_fd() readable for it. */
static void send_all(struct mla_client *c)
{
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    while (poll(&p, 1, 100) == 1)
        ck_assert_int_eq(mla_dispatch(c, 0), MLA_PENDING);
}

enum { N = 500 };

static void *answer_backwards(void *arg)
{
    for (size_t i = N; i-- > 0;)
        fake_answer_held(arg, i);
    return NULL;
}

START_TEST(answers_come_in_any_order)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    mla_request_id ids[N];
    static struct record rec;
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(mla_decode_submit(c, &a, remember, &rec, &ids[i]), MLA_OK);
    ck_assert_uint_eq(mla_in_flight(c), N);
    send_all(c);
    fake_await_held(f, N);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_PENDING);
    pthread_t t;
    pthread_create(&t, NULL, answer_backwards, f);
    while (rec.n < N)
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    for (unsigned i = 0; i < N; i++) {
        ck_assert_uint_eq(rec.ids[i], ids[N - 1 - i]);
        ck_assert_uint_eq(rec.batches[i], N - 1 - i);
        ck_assert_int_eq(rec.statuses[i], MLA_OK);
    }
    pthread_join(t, NULL);
    ck_assert_uint_eq(mla_in_flight(c), 0);
    ck_assert_int_eq(mla_wait(c, ids[0], 0, NULL), MLA_NOT_FOUND);
    mla_close(c);
    ck_assert_uint_eq(rec.n, N);
    fake_stop(f);
}
END_TEST

START_TEST(a_wait_that_times_out_leaves_it_in_flight)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_decode_result r;
    mla_request_id second;
    mla_decode_result_init(&r);
    ck_assert_int_eq(mla_decode(c, &a, 2000, &r), MLA_PENDING);
    ck_assert_int_eq(r.status, MLA_PENDING);
    ck_assert_uint_ne(r.request, 0);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &second), MLA_OK);
    ck_assert_int_eq(mla_wait(c, r.request, 0, &r), MLA_PENDING);
    ck_assert_uint_eq(mla_in_flight(c), 2);
    fake_await_held(f, 2);
    fake_answer_held(f, 1);
    fake_answer_held(f, 0);
    ck_assert_int_eq(mla_wait(c, r.request, LONG_US, &r), MLA_OK);
    ck_assert_uint_eq(r.batch, 0);
    ck_assert_int_eq(mla_wait(c, second, 0, &r), MLA_OK);
    ck_assert_uint_eq(r.batch, 1);
    ck_assert_int_eq(mla_wait(c, second, 0, &r), MLA_NOT_FOUND);
    /* Without a result, nobody asks later: the answer is dropped. */
    ck_assert_int_eq(mla_decode(c, &a, 0, NULL), MLA_PENDING);
    ck_assert_uint_eq(mla_in_flight(c), 0);
    fake_await_held(f, 3);
    fake_answer_held(f, 2);
    ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(wait_takes_the_answer_of_a_callback)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    mla_request_id ids[3];
    static struct record rec;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(mla_decode_submit(c, &a, remember, &rec, &ids[i]), MLA_OK);
    fake_await_held(f, 3);
    for (size_t i = 0; i < 3; i++)
        fake_answer_held(f, i);
    /* 2 is waited for; 0 and 1 have come before it and are kept, then 0 is taken as well. */
    ck_assert_int_eq(mla_wait(c, ids[2], LONG_US, NULL), MLA_OK);
    ck_assert_uint_eq(rec.n, 0);
    ck_assert_int_eq(mla_wait(c, ids[0], 0, NULL), MLA_OK);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_OK);
    ck_assert_uint_eq(rec.n, 1);
    ck_assert_uint_eq(rec.ids[0], ids[1]);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_PENDING);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static bool cancel_works(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    if (m->type == MLA_MSG_CANCEL) {
        struct mla_error err = {.code = MLA_CANCELLED};
        fake_answer(conn, m, id);
        fake_refuse(conn, MLA_MSG_DECODE, m->cancel.request_id, &err);
        return true;
    }
    return fake_hold_decodes(conn, m, id, user);
}

START_TEST(cancel)
{
    struct fake *f = fake_start(cancel_works, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct mla_decode_result r;
    mla_request_id id;
    mla_decode_result_init(&r);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    ck_assert_int_eq(mla_cancel(c, id), MLA_OK);
    ck_assert_int_eq(mla_wait(c, id, LONG_US, &r), MLA_CANCELLED);
    ck_assert_int_eq(r.error.status, MLA_CANCELLED);
    ck_assert_uint_eq(f->last_object, id);
    ck_assert_int_eq(mla_cancel(c, id), MLA_NOT_FOUND);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- callbacks ---- */

struct reentrant {
    unsigned calls;
    unsigned chain;
    mla_request_id other;
};

static void do_everything(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    struct reentrant *x = user;
    struct mla_decode_args a = some_args();
    struct mla_health_info *health;
    ck_assert_int_eq(r->status, MLA_OK);
    x->calls++;
    ck_assert_int_eq(mla_close(c), MLA_BUSY);
    ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_BUSY);
    ck_assert_int_eq(mla_wait(c, r->request, 0, NULL), MLA_NOT_FOUND);
    ck_assert_int_eq(mla_cancel(c, r->request), MLA_NOT_FOUND);
    ck_assert_int_eq(mla_read_health(c, LONG_US, &health), MLA_OK);
    mla_free(health);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_OK);
    if (x->other) {
        ck_assert_int_eq(mla_wait(c, x->other, LONG_US, NULL), MLA_OK);
        x->other = 0;
    }
    if (x->chain--)
        ck_assert_int_eq(mla_decode_submit(c, &a, do_everything, x, NULL), MLA_OK);
    /* What was handed out is still whole. */
    ck_assert_int_eq(r->status, MLA_OK);
    ck_assert_uint_eq(r->tiles, 16);
}

START_TEST(callbacks_may_use_the_handle)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    struct reentrant x = {.chain = 5};
    ck_assert_int_eq(mla_decode_submit(c, &a, do_everything, &x, NULL), MLA_OK);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &x.other), MLA_OK);
    while (x.calls < 6)
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(x.other, 0);
    ck_assert_uint_eq(mla_in_flight(c), 0);
    ck_assert_int_eq(mla_close(c), MLA_OK);
    ck_assert_uint_eq(x.calls, 6);
    fake_stop(f);
}
END_TEST

/* ---- event loop ---- */

static int readable(struct mla_client *c, int timeout_ms)
{
    struct pollfd p = {.fd = mla_fd(c), .events = POLLIN};
    return poll(&p, 1, timeout_ms);
}

START_TEST(fd_is_readable_when_dispatch_has_work)
{
    struct fake *f = fake_start(fake_hold_decodes, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_decode_args a = some_args();
    static struct record rec;
    ck_assert_int_eq(readable(c, 0), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(mla_decode_submit(c, &a, remember, &rec, NULL), MLA_OK);
    fake_await_held(f, 2);
    ck_assert_int_eq(readable(c, 20), 0);
    fake_answer_held(f, 0);
    ck_assert_int_eq(readable(c, 10000), 1);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_OK);
    ck_assert_int_eq(readable(c, 0), 0);
    /* An answer that another call has read keeps it readable although the socket is empty. */
    fake_answer_held(f, 1);
    ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK);
    ck_assert_uint_eq(rec.n, 1);
    ck_assert_int_eq(readable(c, 0), 1);
    ck_assert_int_eq(mla_dispatch(c, 0), MLA_OK);
    ck_assert_uint_eq(rec.n, 2);
    ck_assert_int_eq(readable(c, 0), 0);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static bool sleep_first(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)conn, (void)id;
    if (m->type == MLA_MSG_PUT_TABLE_SET && !*(bool *)user) {
        *(bool *)user = true;
        usleep(200000);
    }
    return false;
}

/* Frames that the socket does not take wait in the handle, go out by dispatch, and are bounded. */
START_TEST(what_the_daemon_does_not_read_waits)
{
    bool slept = false;
    struct fake *f = fake_start(sleep_first, &slept);
    struct mla_options o = fake_options(f);
    struct mla_client *c;
    struct mla_tables t;
    o.max_send_bytes = 3u << 20;
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    mla_tables_init(&t);
    t.n_entries = 256u << 10;
    uint32_t *entries = calloc(t.n_entries, sizeof(uint32_t));
    const uint32_t q_len = 1, kv_len = (256u << 10) * 64;
    t.n_seqs = 1;
    t.q_len = &q_len;
    t.kv_len_max = &kv_len;
    t.entries = entries;
    enum mla_status status;
    unsigned sent = 0;
    while ((status = mla_tables_put(c, &t, 0)) == MLA_OK && sent < 100)
        sent++;
    ck_assert_int_eq(status, MLA_OVERLOADED);
    ck_assert_uint_eq(mla_last_error(c)->limit, 3u << 20);
    ck_assert_uint_ge(sent, 2);
    /* Nothing was half sent: all arrive, and the connection goes on. */
    ck_assert_int_eq(mla_tables_drop(c, 1, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_PUT_TABLE_SET], sent);
    ck_assert_int_eq(mla_tables_put(c, &t, LONG_US), MLA_OK);
    free(entries);
    mla_close(c);
    fake_stop(f);
}
END_TEST

MLA_SUITE(client_jobs)
{
    TCase *tc = mla_tcase(suite, "one");
    tcase_add_test(tc, every_field_arrives);
    tcase_add_test(tc, bad_arguments_are_not_sent);
    tcase_add_test(tc, faults_are_listed);
    tc = mla_tcase(suite, "many");
    tcase_add_test(tc, answers_come_in_any_order);
    tcase_add_test(tc, a_wait_that_times_out_leaves_it_in_flight);
    tcase_add_test(tc, wait_takes_the_answer_of_a_callback);
    tcase_add_test(tc, cancel);
    tc = mla_tcase(suite, "callbacks");
    tcase_add_test(tc, callbacks_may_use_the_handle);
    tc = mla_tcase(suite, "event loop");
    tcase_add_test(tc, fd_is_readable_when_dispatch_has_work);
    tcase_add_test(tc, what_the_daemon_does_not_read_waits);
}
