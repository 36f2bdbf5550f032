/* Captured steps on the CPU backend: what a STEP does with words, tables and lengths, and what ends it early. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/step_worker.h"

static struct daemon d;
static struct mla_client *client;
static struct step_worker w;

static void setup_with(uint32_t n_layers, const char *setting)
{
    daemon_start(&d, setting, NULL);
    client = worker_open(d.socket, "steps");
    ck_assert(mla_server(client)->features & MLA_FEATURE_STEP);
    step_worker_new(client, &w, n_layers, 3);
}

static void setup(uint32_t n_layers)
{
    setup_with(n_layers, NULL);
}

static void teardown(void)
{
    step_worker_free(client, &w);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}

static mla_request_id submit_args(const struct mla_step_args *args)
{
    mla_request_id request;
    worker_ok(client, mla_step_submit(w.tmpl, args, NULL, NULL, &request));
    worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    return request;
}

static mla_request_id submit(void)
{
    return submit_args(NULL);
}

static void good_step(uint32_t variant)
{
    step_worker_fill(&w, variant);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, w.n_layers));
    step_worker_wait(&w, request, MLA_OK);
    ck_assert_uint_eq(w.result.layers_done, w.n_layers);
    step_worker_check(&w, variant);
}

/* Whatever the stream still waits for, in this replay or later ones. */
static void expect_aborted(void)
{
    for (uint32_t i = 0; i < w.n_layers; i++)
        ck_assert_msg(mla_word_load(step_done(&w, i)) == 1 + MLA_ABORT_OFFSET, "layer %u is not aborted", i);
}

static uint64_t status_word(uint32_t layer, uint32_t sequence)
{
    uint64_t word;
    memcpy(&word, (uint8_t *)w.memory.addr + w.status_at + layer * STEP_STATUS_BYTES + 8 * sequence, 8);
    return word;
}

static void expect_broken(void)
{
    worker_expect(client, mla_step(w.tmpl, NULL, WORKER_TIMEOUT_US, NULL), MLA_NOT_FOUND);
    worker_ok(client, mla_template_close(w.tmpl, WORKER_TIMEOUT_US));
    w.tmpl = NULL;
}

static void reopen(void)
{
    step_worker_open(&w);
    good_step(1);
}

/* ---- what works ---- */

START_TEST(steps_of_24_layers)
{
    setup_with(STEP_LAYERS, "scheduler.max_launch_us=0");
    for (unsigned i = 0; i < 7; i++) {
        good_step(i % STEP_VARIANTS);
        ck_assert_uint_eq(w.result.n_faults, 0);
        ck_assert_uint_eq(w.result.layers_shared, 0);
    }
    ck_assert_double_eq(worker_metric(client, "mlad_steps_total", "status=\"OK\""), 7);
    ck_assert_double_eq(worker_metric(client, "mlad_step_layers_total", ""), 7 * STEP_LAYERS);
    ck_assert_double_eq(worker_metric(client, "mlad_step_launches_total", ""), 7 * STEP_LAYERS);
    ck_assert_double_eq(worker_metric(client, "mlad_step_launches_ahead_total", ""), 0); /* by a CPU there is nothing */
    ck_assert_double_eq(worker_metric(client, "mlad_batches_total", ""), 0);
    static const char *const of_launches[] = {"mlad_tiles_total", "mlad_items_total", "mlad_pages_total",
                                              "mlad_waves_total"};
    for (size_t i = 0; i < sizeof(of_launches) / sizeof(of_launches[0]); i++)
        ck_assert_double_ge(worker_metric(client, of_launches[i], ""), 7 * STEP_LAYERS);
    ck_assert_double_gt(worker_metric(client, "mlad_row_slots_total", ""),
                        worker_metric(client, "mlad_rows_total", "") - 1);
    ck_assert_double_gt(worker_metric(client, "mlad_step_predicted_seconds_total", ""), 0);
    double launched_s = worker_metric(client, "mlad_step_launch_seconds_total", "");
    ck_assert_double_gt(launched_s, 0);
    ck_assert_double_eq_tol(worker_metric(client, "mlad_step_run_seconds_total", ""), launched_s,
                            1e-9); /* none shared */
    teardown();
}
END_TEST

/* Every tile a launch of its own. */
START_TEST(layers_in_parts)
{
    setup_with(4, "scheduler.max_launch_us=1");
    for (unsigned i = 0; i < 6; i++)
        good_step(i % STEP_VARIANTS);
    teardown();
}
END_TEST

/* The graph is launched first; a single layer, whose words are those of the step before as well. */
START_TEST(the_stream_comes_first)
{
    setup(1);
    for (unsigned i = 0; i < 20; i++) {
        step_worker_fill(&w, i % STEP_VARIANTS);
        mla_word_store(step_ready(&w, 0), 1);
        mla_request_id request = submit();
        WAIT_FOR(mla_word_load(step_done(&w, 0)) == 1, 5000 * TEST_SLOW);
        step_worker_wait(&w, request, MLA_OK);
        ck_assert_uint_eq(mla_word_load(step_ready(&w, 0)), 0); /* taken back */
        step_worker_check(&w, i % STEP_VARIANTS);
    }
    teardown();
}
END_TEST

static void on_step(struct mla_client *c, const struct mla_step_result *result, void *user)
{
    ck_assert_ptr_eq(c, client);
    ck_assert_int_eq(result->status, MLA_OK);
    ++*(unsigned *)user;
}

START_TEST(callback_and_one_in_flight)
{
    unsigned answers = 0;
    mla_request_id request;
    setup(2);
    step_worker_fill(&w, 0);
    worker_ok(client, mla_step_submit(w.tmpl, NULL, on_step, &answers, &request));
    ck_assert_uint_eq(mla_in_flight(client), 1);
    worker_expect(client, mla_step(w.tmpl, NULL, WORKER_TIMEOUT_US, NULL), MLA_BUSY);
    worker_expect(client, mla_template_close(w.tmpl, WORKER_TIMEOUT_US), MLA_BUSY);
    worker_expect(client, mla_wait(client, request, 0, NULL), MLA_NOT_FOUND); /* it is no decode */
    worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    ck_assert(step_worker_stream(&w, 0, 2));
    worker_ok(client, mla_dispatch(client, WORKER_TIMEOUT_US));
    ck_assert_uint_eq(answers, 1);
    step_worker_check(&w, 0);
    teardown();
}
END_TEST

/* A table set with pages of its own cannot stand in for one without, and one that has more sequences than there is room
 * for cannot either; one of the same shape with smaller bounds can. */
START_TEST(another_table_set)
{
    static const uint32_t ones[STEP_SEQS] = {1, 1}, bounds[STEP_SEQS] = {STEP_KV_MAX, 64};
    struct mla_tables tables;
    struct mla_step_args args;
    setup(2);
    mla_tables_init(&tables);
    tables.id = 5;
    tables.n_seqs = STEP_SEQS;
    tables.q_len = ones;
    tables.kv_len_max = bounds;
    worker_ok(client, mla_tables_put(client, &tables, 0));
    mla_step_args_init(&args);
    args.has_tables = true;
    args.tables = 5;
    for (unsigned i = 0; i < 2; i++) { /* its lengths are 200 and 63, then 64 and 0 */
        step_worker_fill(&w, i);
        mla_request_id request = submit_args(&args);
        ck_assert(step_worker_stream(&w, 0, 2));
        step_worker_wait(&w, request, MLA_OK);
        step_worker_check(&w, i);
    }
    good_step(2); /* 129 and 180: within the template's own */
    args.tables = 6;
    mla_request_id request = submit_args(&args);
    step_worker_wait(&w, request, MLA_NOT_FOUND);
    ck_assert_str_eq(w.result.error.field, "table_set");
    expect_aborted();
    expect_broken();
    reopen();
    teardown();
}
END_TEST

START_TEST(bad_lengths_and_pages_on_the_device)
{
    setup(3);
    step_worker_fill(&w, 0);
    int32_t *kv_len = (int32_t *)(void *)((uint8_t *)w.memory.addr + STEP_KV_LEN_AT);
    int32_t *table = (int32_t *)(void *)((uint8_t *)w.memory.addr + STEP_TABLE_AT);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, 1));
    kv_len[1] = STEP_KV_MAX + 1; /* changed between layers */
    ck_assert(step_worker_stream(&w, 1, 2));
    kv_len[1] = 63;
    table[2] = STEP_PAGES;
    ck_assert(step_worker_stream(&w, 2, 3));
    step_worker_wait(&w, request, MLA_PARTIAL);
    ck_assert_uint_eq(w.result.layers_done, 3);
    ck_assert_uint_eq(w.result.n_faults, 2);
    ck_assert_uint_eq(w.result.n_listed, 2);
    const struct mla_step_fault *f = w.result.faults;
    ck_assert_uint_eq(f[0].layer, 1);
    ck_assert_uint_eq(f[0].sequence, 1);
    ck_assert_int_eq(f[0].status, MLA_KV_LEN_OUT_OF_RANGE);
    ck_assert_uint_eq(f[1].layer, 2);
    ck_assert_uint_eq(f[1].sequence, 0);
    ck_assert_int_eq(f[1].status, MLA_PAGE_OUT_OF_RANGE);
    ck_assert_uint_eq(f[1].index, 2);
    ck_assert_uint_eq(status_word(0, 1), 0);
    ck_assert_uint_eq(status_word(1, 0), 0);
    ck_assert_uint_eq(status_word(1, 1) >> 32, MLA_KV_LEN_OUT_OF_RANGE);
    ck_assert_uint_eq(status_word(2, 0), (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 2);
    good_step(2); /* the template is whole */
    ck_assert_uint_eq(w.result.n_faults, 0);
    teardown();
}
END_TEST

/* ---- what ends a step early ---- */

START_TEST(a_word_that_never_comes)
{
    struct mla_step_args args;
    setup(4);
    mla_step_args_init(&args);
    args.deadline_us = 100000;
    step_worker_fill(&w, 0);
    struct worker_pool pool;
    struct worker_job job;
    struct mla_client *other = worker_open(d.socket, "other");
    worker_pool_new(other, &pool, 8, 3);
    worker_job_new(other, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 16, .q_len = {2}, .kv_len = {300}});
    uint64_t begun = test_now_us();
    mla_request_id request = submit_args(&args);
    ck_assert(step_worker_stream(&w, 0, 2));
    unsigned served = 0;
    while (test_now_us() - begun < 60000) { /* nobody waits for it */
        worker_job_run(&job);
        served++;
    }
    ck_assert_uint_gt(served, 0);
    worker_job_check(&job);
    step_worker_wait(&w, request, MLA_TIMED_OUT);
    ck_assert_uint_ge(test_now_us() - begun, 100000);
    ck_assert_uint_lt(test_now_us() - begun, 300000 * TEST_SLOW);
    ck_assert_uint_eq(w.result.layers_done, 2);
    expect_aborted();
    ck_assert_uint_eq(status_word(1, 0), 0); /* has run */
    ck_assert_uint_eq(status_word(2, 0), (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert_uint_eq(status_word(3, 1), (uint64_t)MLA_TIMED_OUT << 32);
    ck_assert(!step_worker_stream(&w, 2, 4)); /* the stream goes through, */
    ck_assert(!step_worker_stream(&w, 0, 4)); /* and the replay behind it */
    expect_broken();
    reopen();
    worker_job_free(other, &job);
    worker_pool_free(other, &pool);
    mla_close(other);
    teardown();
}
END_TEST

START_TEST(cancelled)
{
    setup(3);
    step_worker_fill(&w, 0);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, 1));
    worker_ok(client, mla_cancel(client, request));
    step_worker_wait(&w, request, MLA_CANCELLED);
    ck_assert_uint_eq(w.result.layers_done, 1);
    expect_aborted();
    worker_expect(client, mla_cancel(client, request), MLA_NOT_FOUND);
    expect_broken();
    reopen();
    /* Before its first layer. */
    request = submit();
    worker_ok(client, mla_cancel(client, request));
    step_worker_wait(&w, request, MLA_CANCELLED);
    ck_assert_uint_eq(w.result.layers_done, 0);
    expect_aborted();
    expect_broken();
    teardown();
}
END_TEST

START_TEST(ready_word_aborted)
{
    setup(2);
    step_worker_fill(&w, 0);
    mla_request_id request = submit();
    mla_word_store(step_ready(&w, 0), 1 + MLA_ABORT_OFFSET);
    step_worker_wait(&w, request, MLA_READY_ABORTED);
    expect_aborted();
    expect_broken();
    teardown();
}
END_TEST

/* Gone before the step: refused, with its words aborted. Asked for while a step runs: done when that has ended. */
START_TEST(regions_that_go)
{
    setup(2);
    good_step(0);
    step_worker_fill(&w, 1);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, 1));
    worker_expect(client, mla_region_unregister(client, w.region, 0), MLA_PENDING);
    test_sleep_us(20000);
    worker_expect(client, mla_region_unregister(client, w.region, 0), MLA_PENDING);
    ck_assert(step_worker_stream(&w, 1, 2));
    step_worker_wait(&w, request, MLA_OK);
    step_worker_check(&w, 1);
    worker_ok(client, mla_region_unregister(client, w.region, WORKER_TIMEOUT_US));
    request = submit();
    step_worker_wait(&w, request, MLA_NOT_FOUND);
    ck_assert_str_eq(w.result.error.field, "table_ref.region");
    expect_aborted();
    ck_assert(!step_worker_stream(&w, 0, 2));
    expect_broken();
    worker_ok(client, worker_ops->share(client, &w.memory, w.device, MLA_ACCESS_READ_WRITE, "again", &w.region));
    teardown();
}
END_TEST

START_TEST(suspended_and_resumed)
{
    struct mla_region_desc desc;
    setup(2);
    good_step(0);
    worker_ok(client, mla_region_suspend(client, w.pages_region, WORKER_TIMEOUT_US));
    mla_request_id request = submit();
    step_worker_wait(&w, request, MLA_SUSPENDED);
    expect_aborted();
    expect_broken();
    worker_expect(client, mla_template_open(client, w.args, 2, WORKER_TIMEOUT_US, &w.tmpl), MLA_SUSPENDED);
    mla_region_desc_init(&desc);
    desc.fd = w.pages.fd;
    desc.bytes = w.pages.size;
    worker_ok(client, mla_region_resume(client, w.pages_region, &desc, WORKER_TIMEOUT_US));
    reopen();
    /* And while the template is open: its memory may be somewhere else now. */
    worker_ok(client, mla_region_suspend(client, w.pages_region, WORKER_TIMEOUT_US));
    worker_ok(client, mla_region_resume(client, w.pages_region, &desc, WORKER_TIMEOUT_US));
    good_step(2);
    teardown();
}
END_TEST

START_TEST(templates_that_are_refused)
{
    struct mla_template *t;
    setup(3);
    struct mla_decode_args good = w.args[1];
    w.args[1].heads = STEP_HEADS / 2;
    worker_expect(client, mla_template_open(client, w.args, 3, WORKER_TIMEOUT_US, &t), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(client)->field, "heads");
    ck_assert_uint_eq(mla_last_error(client)->index, 1);
    w.args[1] = good;
    w.args[1].done = w.args[0].done;
    worker_expect(client, mla_template_open(client, w.args, 3, WORKER_TIMEOUT_US, &t), MLA_OVERLAP);
    w.args[1] = good;
    w.args[1].ready.region = 0;
    worker_expect(client, mla_template_open(client, w.args, 3, WORKER_TIMEOUT_US, &t), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(client)->field, "ready");
    ck_assert_uint_eq(mla_last_error(client)->index, 1);
    w.args[1] = good;
    w.args[2].plane = 3;
    worker_expect(client, mla_template_open(client, w.args, 3, WORKER_TIMEOUT_US, &t), MLA_OUT_OF_BOUNDS);
    ck_assert_str_eq(mla_last_error(client)->field, "plane");
    ck_assert_uint_eq(mla_last_error(client)->index, 2);
    w.args[2].plane = 2;
    ck_assert_ptr_null(t);
    good_step(0); /* the one that is open is none the worse */
    teardown();
}
END_TEST

/* ---- peers that go, daemons that go ---- */

static int leaves_in_a_step(void *arg)
{
    (void)arg;
    client = worker_open(d.socket, "leaver");
    step_worker_new(client, &w, 4, 9);
    step_worker_fill(&w, 0);
    submit();
    ck_assert(step_worker_stream(&w, 0, 2));
    _exit(7);
}

START_TEST(disconnected_in_a_step)
{
    daemon_start(&d, NULL);
    struct mla_client *reader = worker_open(d.socket, "reader");
    ck_assert_int_eq(child_wait(child_start(leaves_in_a_step, NULL)), 7);
    WAIT_FOR(worker_metric(reader, "mlad_clients", "") == 1 && worker_metric(reader, "mlad_mapped_bytes", "") == 0,
             1000 * TEST_SLOW);
    ck_assert_double_eq(worker_metric(reader, "mlad_steps_total", "status=\"DISCONNECTED\""), 1);
    mla_close(reader);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

START_TEST(daemon_killed_in_a_step)
{
    setup(STEP_LAYERS);
    worker_ok(client, mla_watch_start(client));
    step_worker_fill(&w, 0);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, 10));
    mla_word_store(step_ready(&w, 10), 1);
    WAIT_FOR(mla_word_load(step_done(&w, 10)) == 1, 5000 * TEST_SLOW);
    daemon_kill(&d);
    uint64_t killed = test_now_us();
    ck_assert(!step_worker_stream(&w, 11, STEP_LAYERS)); /* the program calls nothing: the watcher does it */
    ck_assert_uint_lt(test_now_us() - killed, 100000 * TEST_SLOW);
    step_worker_wait(&w, request, MLA_DISCONNECTED);
    for (unsigned i = 0; i < 3; i++) /* replays that had been queued go through as well */
        ck_assert(!step_worker_stream(&w, 11, STEP_LAYERS));
    worker_expect(client, mla_step(w.tmpl, NULL, 0, NULL), MLA_DISCONNECTED);
    mla_close(client);
    step_worker_free(NULL, &w);
    daemon_stop(&d, SIGTERM, 137);
}
END_TEST

/* No step begins while the daemon drains; the one in flight has until the end. */
START_TEST(drained_in_a_step)
{
    setup(3);
    uint64_t deadline_us = 300000;
    step_worker_fill(&w, 0);
    mla_request_id request = submit();
    ck_assert(step_worker_stream(&w, 0, 1));
    uint64_t in_flight;
    worker_ok(client, mla_drain(client, &deadline_us, WORKER_TIMEOUT_US, &in_flight));
    ck_assert_uint_eq(in_flight, 1);
    ck_assert(step_worker_stream(&w, 1, 2));
    step_worker_wait(&w, request, MLA_DRAINING);
    ck_assert_uint_eq(w.result.layers_done, 2);
    expect_aborted();
    ck_assert(daemon_ended(&d, 3000 * TEST_SLOW));
    ck_assert_int_eq(d.exit_code, 0);
    mla_close(client);
    step_worker_free(NULL, &w);
}
END_TEST

/* ---- several ---- */

#define MANY_ROUNDS 5

static int one_of_several(void *arg)
{
    client = worker_open(d.socket, "several");
    step_worker_new(client, &w, STEP_LAYERS, 20 + *(const unsigned *)arg);
    for (unsigned i = 0; i < MANY_ROUNDS; i++)
        good_step((i + *(const unsigned *)arg) % STEP_VARIANTS);
    step_worker_free(client, &w);
    mla_close(client);
    return 0;
}

START_TEST(three_workers)
{
    pid_t pids[3];
    unsigned numbers[3];
    daemon_start(&d, NULL);
    struct mla_client *reader = worker_open(d.socket, "reader");
    for (unsigned i = 0; i < 3; i++) {
        numbers[i] = i;
        pids[i] = child_start(one_of_several, &numbers[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(child_wait(pids[i]), 0);
    ck_assert_double_eq(worker_metric(reader, "mlad_steps_total", "status=\"OK\""), 3 * MANY_ROUNDS);
    mla_close(reader);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* The two words come while a job runs: how long that takes is measured beforehand, and may have been less this time. */
static void meet(struct step_worker *v, struct worker_job *busy)
{
    step_worker_fill(&w, 0);
    step_worker_fill(v, 2);
    mla_request_id a = submit(), b, job = worker_job_submit(busy);
    worker_ok(v->client, mla_step_submit(v->tmpl, NULL, NULL, NULL, &b));
    worker_expect(v->client, mla_dispatch(v->client, 0), MLA_PENDING);
    struct mla_daemon_info *info = NULL;
    for (bool seen = false; !seen; mla_free(info)) {
        worker_ok(client, mla_read_daemon(client, WORKER_TIMEOUT_US, &info));
        seen = info->jobs_waiting + info->jobs_queued == 0; /* it runs, or is over */
    }
    mla_word_store(step_ready(&w, 0), 1);
    mla_word_store(step_ready(v, 0), 1);
    WAIT_FOR(mla_word_load(step_done(&w, 0)) == 1 && mla_word_load(step_done(v, 0)) == 1, 20000 * TEST_SLOW);
    ck_assert(step_worker_stream(&w, 1, 2));
    ck_assert(step_worker_stream(v, 1, 2));
    step_worker_wait(&w, a, MLA_OK);
    step_worker_wait(v, b, MLA_OK);
    ck_assert_uint_eq(w.result.layers_shared, v->result.layers_shared);
    step_worker_check(&w, 0);
    step_worker_check(v, 2);
    worker_job_wait(busy, job, MLA_OK);
}

/* Two templates whose layers become ready while the device is busy share a launch. */
START_TEST(layers_that_meet)
{
    static struct step_worker v;
    struct worker_pool pool;
    struct worker_job job;
    setup_with(2, "scheduler.max_launch_us=0");
    struct mla_client *second = worker_open(d.socket, "second"), *busy = worker_open(d.socket, "busy");
    step_worker_new(second, &v, 2, 4);
    worker_pool_new(busy, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(busy, &pool, 200);
    worker_job_new(busy, &job, pool.cache, pool.memory.addr, 8, &shape);
    for (unsigned attempt = 0; w.result.layers_shared == 0; attempt++) {
        ck_assert_uint_lt(attempt, 10);
        meet(&v, &job);
    }
    worker_job_free(busy, &job);
    worker_pool_free(busy, &pool);
    step_worker_free(second, &v);
    mla_close(busy);
    mla_close(second);
    teardown();
}
END_TEST

MLA_SUITE(mlad_steps)
{
    TCase *tc = mla_tcase_timeout(suite, "steps", 60);
    tcase_add_test(tc, steps_of_24_layers);
    tcase_add_test(tc, layers_in_parts);
    tcase_add_test(tc, the_stream_comes_first);
    tcase_add_test(tc, callback_and_one_in_flight);
    tcase_add_test(tc, another_table_set);
    tcase_add_test(tc, bad_lengths_and_pages_on_the_device);
    tcase_add_test(tc, a_word_that_never_comes);
    tcase_add_test(tc, cancelled);
    tcase_add_test(tc, ready_word_aborted);
    tcase_add_test(tc, regions_that_go);
    tcase_add_test(tc, suspended_and_resumed);
    tcase_add_test(tc, templates_that_are_refused);
    tcase_add_test(tc, disconnected_in_a_step);
    tcase_add_test(tc, daemon_killed_in_a_step);
    tcase_add_test(tc, drained_in_a_step);
    tcase_add_test(tc, three_workers);
    tcase_add_test(tc, layers_that_meet);
}
