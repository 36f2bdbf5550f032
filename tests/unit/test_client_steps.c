/* Templates and steps through the client library: what is sent, what becomes of words and requests. */
#include <string.h>

#include "tests/unit/test_client_server.h"

#include "tests/support/check_main.h"

#define LONG_US UINT64_C(10000000)
#define LAYERS  3

static struct fake *f;
static struct mla_client *c;
static struct mla_sync *s;
static struct mla_decode_args layers[LAYERS];

/* Template requests as they came: under the server's lock. */
static struct seen {
    uint64_t opened, closed, stepped; /* ids */
    size_t n_layers;
    uint64_t done_offset; /* of the last layer */
    bool has_tables;
    uint64_t tables, timeout_us;
    uint16_t hold; /* requests of this type are held */
} seen;

static struct seen now_seen(void)
{
    pthread_mutex_lock(&f->lock);
    struct seen copy = seen;
    pthread_mutex_unlock(&f->lock);
    return copy;
}

static void hold(uint16_t type)
{
    pthread_mutex_lock(&f->lock);
    seen.hold = type;
    pthread_mutex_unlock(&f->lock);
}

static bool handler(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    (void)user;
    pthread_mutex_lock(&conn->f->lock);
    if (request->type == MLA_MSG_TEMPLATE_OPEN) {
        seen.opened = request->template_open.id;
        seen.n_layers = request->template_open.n_layers;
        seen.done_offset = request->template_open.layers[seen.n_layers - 1].done.offset;
    } else if (request->type == MLA_MSG_TEMPLATE_CLOSE) {
        seen.closed = request->template_close.id;
    } else if (request->type == MLA_MSG_STEP) {
        seen.stepped = request->step.template_id;
        seen.has_tables = request->step.has_table_set;
        seen.tables = request->step.table_set;
        seen.timeout_us = request->step.timeout_us;
    }
    bool held = request->type == seen.hold;
    pthread_mutex_unlock(&conn->f->lock);
    if (!held)
        return false;
    fake_hold(conn, request, id);
    return true;
}

static void begin(void)
{
    memset(&seen, 0, sizeof(seen));
    f = fake_start(handler, NULL);
    c = fake_open(f);
    ck_assert_int_eq(mla_sync_create(c, 64, LONG_US, &s), MLA_OK);
    for (unsigned i = 0; i < LAYERS; i++) {
        struct mla_decode_args *a = &layers[i];
        mla_decode_args_init(a);
        a->cache = 3;
        a->plane = i;
        a->tables = 5;
        a->heads = 16;
        a->q = (struct mla_view){.region = 1, .token_stride = 9216, .head_stride = 576, .compact = true};
        a->o = (struct mla_view){.region = 2, .token_stride = 16384, .head_stride = 1024, .compact = true};
        a->softmax_scale = 0.125f;
        a->ready = mla_sync_location(s, 2 * i);
        a->done = mla_sync_location(s, 2 * i + 1);
        a->status = mla_sync_location(s, 32 + i);
        a->n_status = 2;
    }
}

static void end(void)
{
    mla_close(c);
    ck_assert_int_eq(mla_sync_destroy(s, 0), MLA_OK);
    fake_stop(f);
}

static struct mla_template *open_template(void)
{
    struct mla_template *t;
    ck_assert_int_eq(mla_template_open(c, layers, LAYERS, LONG_US, &t), MLA_OK);
    return t;
}

static uint64_t done(unsigned layer)
{
    return mla_word_load(mla_sync_word(s, 2 * layer + 1));
}

static void refuse_held(size_t index, enum mla_status code)
{
    struct mla_error err;
    mla_error_set(&err, code, "template_id", "no");
    fake_refuse(f->held[index].conn, f->held[index].type, f->held[index].id, &err);
}

START_TEST(open_step_close)
{
    struct mla_step_args args;
    struct mla_step_result result;
    begin();
    mla_word_store(mla_sync_word(s, 1), 77);
    mla_word_store(mla_sync_word(s, 0), 1);
    layers[2].done_value = 9;
    struct mla_template *t = open_template();
    ck_assert_uint_eq(now_seen().n_layers, LAYERS);
    ck_assert_uint_eq(now_seen().done_offset, 5 * MLA_WORD_BYTES);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 0)), 0);
    ck_assert_uint_eq(done(0), 0);
    ck_assert_uint_eq(done(2), 8);
    mla_step_args_init(&args);
    args.has_tables = true;
    args.tables = 0; /* an id like any other */
    args.deadline_us = 5;
    mla_step_result_init(&result);
    ck_assert_int_eq(mla_step(t, &args, LONG_US, &result), MLA_OK);
    ck_assert_uint_ne(result.request, 0);
    ck_assert_uint_eq(now_seen().stepped, now_seen().opened);
    ck_assert(now_seen().has_tables);
    ck_assert_uint_eq(now_seen().tables, 0);
    ck_assert_uint_eq(now_seen().timeout_us, 5);
    ck_assert_int_eq(mla_step(t, NULL, LONG_US, NULL), MLA_OK);
    ck_assert(!now_seen().has_tables);
    ck_assert_uint_eq(done(0), 0);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    ck_assert_uint_eq(now_seen().closed, now_seen().opened);
    uint64_t first = now_seen().opened;
    t = open_template();
    ck_assert_uint_ne(now_seen().opened, first);
    ck_assert_int_eq(mla_template_close(NULL, 0), MLA_OK);
    end(); /* it is open */
    ck_assert_int_eq(mla_template_close(t, 0), MLA_OK);
}
END_TEST

START_TEST(a_failed_step_breaks_it)
{
    struct mla_step_result result;
    mla_request_id request;
    begin();
    hold(MLA_MSG_STEP);
    struct mla_template *t = open_template();
    ck_assert_int_eq(mla_step_submit(t, NULL, NULL, NULL, &request), MLA_OK);
    ck_assert_int_eq(mla_step(t, NULL, LONG_US, NULL), MLA_BUSY);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_BUSY);
    fake_await_held(f, 1);
    mla_word_store(mla_sync_word(s, 3), 1); /* the second layer is done, and the stream about to see it */
    refuse_held(0, MLA_TIMED_OUT);
    mla_step_result_init(&result);
    ck_assert_int_eq(mla_step_wait(c, request, LONG_US, &result), MLA_TIMED_OUT);
    ck_assert_int_eq(result.status, MLA_TIMED_OUT);
    ck_assert_str_eq(result.error.field, "template_id");
    ck_assert_uint_eq(done(0), 1 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(done(1), 1);
    ck_assert_uint_eq(done(2), 1 + MLA_ABORT_OFFSET);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 32)), (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert_int_eq(mla_step(t, NULL, LONG_US, NULL), MLA_NOT_FOUND);
    fake_await_held(f, 1); /* which was not sent */
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    ck_assert_uint_eq(now_seen().closed, 0); /* the daemon has ended it */

    /* PARTIAL, LATE and BUSY do not. */
    static const enum mla_status whole[] = {MLA_PARTIAL, MLA_LATE, MLA_BUSY};
    t = open_template();
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        ck_assert_int_eq(mla_step_submit(t, NULL, NULL, NULL, &request), MLA_OK);
        ck_assert_int_eq(mla_dispatch(c, 0), MLA_PENDING);
        fake_await_held(f, 2 + i);
        refuse_held(1 + i, whole[i]);
        ck_assert_int_eq(mla_step_wait(c, request, LONG_US, NULL), whole[i]);
        ck_assert_uint_eq(done(0), 0);
    }
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    ck_assert_uint_eq(now_seen().closed, now_seen().opened);
    end();
}
END_TEST

static void count(struct mla_client *client, const struct mla_step_result *result, void *user)
{
    ck_assert_ptr_eq(client, c);
    ck_assert_int_eq(result->status, MLA_DISCONNECTED);
    ck_assert_uint_eq(result->layers_done, 0);
    ++*(unsigned *)user;
}

/* Words of every open template are aborted when the connection ends, with a step in flight or without. */
START_TEST(the_connection_ends)
{
    unsigned answers = 0;
    mla_request_id request;
    begin();
    hold(MLA_MSG_STEP);
    struct mla_template *a = open_template();
    for (unsigned i = 0; i < LAYERS; i++) {
        layers[i].ready = mla_sync_location(s, 10 + 2 * i);
        layers[i].done = mla_sync_location(s, 11 + 2 * i);
        layers[i].n_status = 0;
    }
    struct mla_template *b = open_template(), *closed;
    for (unsigned i = 0; i < LAYERS; i++) {
        layers[i].ready = mla_sync_location(s, 20 + 2 * i);
        layers[i].done = mla_sync_location(s, 21 + 2 * i);
    }
    closed = open_template();
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    ck_assert_int_eq(mla_template_close(closed, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_step_submit(a, NULL, count, &answers, &request), MLA_OK);
    fake_await_held(f, 1);
    fake_hang_up(fake_conn_of(f));
    for (unsigned i = 0; i < LAYERS; i++) {
        while (!mla_word_reached(done(i), 1) || !mla_word_reached(mla_word_load(mla_sync_word(s, 11 + 2 * i)), 1))
            ;
        ck_assert_uint_eq(done(i), 1 + MLA_ABORT_OFFSET);
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 11 + 2 * i)), 1 + MLA_ABORT_OFFSET);
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 21 + 2 * i)), 0);
        ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 32 + i)), (uint64_t)MLA_DISCONNECTED << 32);
    }
    while (answers == 0)
        mla_dispatch(c, LONG_US);
    ck_assert_uint_eq(answers, 1);
    ck_assert_int_eq(mla_step_submit(b, NULL, NULL, NULL, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_template_close(a, LONG_US), MLA_OK);
    end();
    ck_assert_int_eq(mla_step(b, NULL, 0, NULL), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_template_close(b, LONG_US), MLA_OK);
}
END_TEST

/* Calls that are given up: an open template is closed when its answer comes, a close is waited for again. */
START_TEST(given_up)
{
    struct mla_template *t;
    begin();
    hold(MLA_MSG_TEMPLATE_OPEN);
    ck_assert_int_eq(mla_template_open(c, layers, LAYERS, 1000, &t), MLA_PENDING);
    ck_assert_ptr_null(t);
    fake_await_held(f, 1);
    fake_answer_held(f, 0);
    while (now_seen().closed == 0)
        mla_dispatch(c, 1000);
    ck_assert_uint_eq(now_seen().closed, now_seen().opened);
    hold(MLA_MSG_TEMPLATE_CLOSE);
    t = open_template();
    ck_assert_int_eq(mla_template_close(t, 1000), MLA_PENDING);
    ck_assert_int_eq(mla_template_close(t, 0), MLA_PENDING);
    fake_await_held(f, 2);
    fake_answer_held(f, 1);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    fake_await_held(f, 2); /* one request */

    /* A step whose answer nobody wants; the next may begin when it has come. */
    hold(MLA_MSG_STEP);
    t = open_template();
    ck_assert_int_eq(mla_step(t, NULL, 1000, NULL), MLA_PENDING);
    ck_assert_int_eq(mla_step(t, NULL, 0, NULL), MLA_BUSY);
    fake_await_held(f, 3);
    hold(0);
    fake_answer_held(f, 2);
    enum mla_status status;
    while ((status = mla_step(t, NULL, LONG_US, NULL)) == MLA_BUSY)
        mla_dispatch(c, 1000);
    ck_assert_int_eq(status, MLA_OK);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    end();
}
END_TEST

START_TEST(arguments_that_are_refused)
{
    struct mla_template *t;
    int32_t visible = 1;
    begin();
    ck_assert_int_eq(mla_template_open(c, layers, 0, LONG_US, &t), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_template_open(c, layers, 513, LONG_US, &t), MLA_TOO_LARGE);
    layers[1].visible = &visible;
    layers[1].n_visible = 1;
    ck_assert_int_eq(mla_template_open(c, layers, LAYERS, LONG_US, &t), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "visible");
    ck_assert_uint_eq(mla_last_error(c)->index, 1);
    layers[1].visible = NULL;
    layers[1].n_visible = 0;
    layers[2].done.region = 99;
    ck_assert_int_eq(mla_template_open(c, layers, LAYERS, LONG_US, &t), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "done");
    ck_assert_int_eq(mla_step(NULL, NULL, 0, NULL), MLA_INVALID_ARGUMENT);
    ck_assert_uint_eq(now_seen().opened, 0);
    end();
}
END_TEST

/* Nobody writes abort values to a page that is unmapped. */
START_TEST(the_page_goes_first)
{
    begin();
    struct mla_template *t = open_template();
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(s, LONG_US), MLA_OK);
    s = NULL;
    fake_hang_up(fake_conn_of(f));
    while (mla_dispatch(c, LONG_US) != MLA_DISCONNECTED)
        ;
    ck_assert_int_eq(mla_template_close(t, 0), MLA_OK);
    end();
}
END_TEST

MLA_SUITE(client_steps)
{
    TCase *tc = mla_tcase_timeout(suite, "steps", 30);
    tcase_add_test(tc, open_step_close);
    tcase_add_test(tc, a_failed_step_breaks_it);
    tcase_add_test(tc, the_connection_ends);
    tcase_add_test(tc, given_up);
    tcase_add_test(tc, arguments_that_are_refused);
    tcase_add_test(tc, the_page_goes_first);
}
