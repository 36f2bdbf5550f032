/* Page tables of table sets that are copied to the GPU: when, for whom, and where the memory goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/app.h"
#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/prng.h"
#include "tests/support/worker_cuda.h"

#define PAGES       16u
#define ENTRIES     8u                   /* of the job below */
#define ROOM_BYTES  (UINT64_C(16) << 20) /* that mlad has for copies */
#define BIG_ENTRIES (UINT32_C(1) << 20)  /* four such sets, of 4 MiB each, fill it */
#define BIG_BYTES   (4u * UINT64_C(1048576))
#define STORM_JOBS  3u

static struct daemon d;

/* In a worker's process. */
static struct mla_client *client;
static struct worker_pool pool;

static double bytes_copied(struct mla_client *reader)
{
    return worker_metric(reader, "mlad_table_mirror_bytes", "");
}

static double uses(void)
{
    return worker_metric(client, "mlad_table_mirror_uses_total", "");
}

static void begin(const char *name)
{
    worker_cuda_start();
    client = worker_open(d.socket, name);
    worker_pool_new(client, &pool, PAGES, 3);
}

static int end(void)
{
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

static void job_new(struct worker_job *job, uint64_t seed)
{
    worker_job_new(
        client, job, pool.cache, pool.memory.addr, PAGES,
        &(struct worker_shape){.heads = 8, .n_seqs = 2, .q_len = {2, 1}, .kv_len = {300, 170}, .seed = seed});
    ck_assert_uint_eq(job->tables.n_entries, ENTRIES);
}

static void run_and_check(struct worker_job *job)
{
    worker_job_run(job);
    worker_job_check(job);
}

/* Used until decodes name the copy. */
static void run_until_copied(struct worker_job *job)
{
    double before = uses();
    WAIT_FOR((run_and_check(job), uses() > before), 20000 * TEST_SLOW);
}

/* Other pages by the same id. */
static void put_others(struct worker_job *job, uint32_t by)
{
    for (size_t e = 0; e < job->tables.n_entries; e++)
        job->entries[e] = (job->entries[e] + by) % PAGES;
    worker_ok(client, mla_tables_put(client, &job->tables, WORKER_TIMEOUT_US));
}

static void drop(const struct worker_job *job)
{
    worker_ok(client, mla_tables_drop(client, job->tables.id, WORKER_TIMEOUT_US));
}

static void with_a_worker(int (*fn)(struct peer *, void *))
{
    struct peer peer;
    gpu_daemon_start(&d, "");
    peer_start(&peer, fn, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}

static void hold_copies(void)
{
    char rule[160];
    snprintf(rule, sizeof(rule), "copy=hold %s", gpu_gate());
    gpu_daemon_rules(rule);
}

/* ---- decodes ---- */

/* From the second use on, and the bits stay. */
static int decodes(struct peer *parent, void *arg)
{
    struct worker_job job;
    (void)parent;
    (void)arg;
    begin("decodes");
    job_new(&job, 5);
    run_and_check(&job);
    ck_assert_double_eq(bytes_copied(client), 0);
    uint64_t bytes = job.status_at - job.o_at;
    void *first = malloc(bytes);
    ck_assert_ptr_nonnull(first);
    memcpy(first, (uint8_t *)job.memory.addr + job.o_at, bytes);
    run_until_copied(&job);
    ck_assert_double_eq(bytes_copied(client), ENTRIES * sizeof(uint32_t));
    double before = uses();
    struct mla_fake_report then = {0}, now = {0};
    if (gpu_is_fake())
        then = gpu_daemon_report(&d);
    for (int i = 0; i < 10; i++) {
        worker_job_run(&job);
        ck_assert_mem_eq((uint8_t *)job.memory.addr + job.o_at, first, bytes);
    }
    ck_assert_double_eq(uses(), before + 10);
    if (gpu_is_fake())
        now = gpu_daemon_report(&d);
    ck_assert_uint_eq(now.device_tables - then.device_tables, gpu_is_fake() ? 10 : 0);
    ck_assert_uint_eq(now.host_tables - then.host_tables, 0);
    drop(&job);
    ck_assert_double_eq(bytes_copied(client), 0);
    put_others(&job, 3); /* where the copy was others may be by now */
    run_until_copied(&job);
    free(first);
    worker_job_free(client, &job);
    return end();
}

START_TEST(decodes_that_come_again)
{
    with_a_worker(decodes);
}
END_TEST

/* ---- steps ---- */

#define STEP_JOBS 2

static struct worker_job layers[STEP_JOBS];
static struct mla_template *template;

/* Of the pages of from, for all layers. */
static mla_request_id step_begin(const struct worker_job *from)
{
    struct mla_step_args args;
    mla_request_id request;
    mla_step_args_init(&args);
    args.tables = from->tables.id;
    args.has_tables = from != &layers[0] || uses() > 2; /* named, or left out, it is the same */
    for (int i = 0; i < STEP_JOBS; i++)
        worker_job_poison(&layers[i]);
    worker_ok(client, mla_step_submit(template, &args, NULL, NULL, &request));
    worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    return request;
}

static void step_run(const struct worker_job *from, mla_request_id request)
{
    struct mla_step_result result;
    for (int i = 0; i < STEP_JOBS; i++) {
        mla_word_store(mla_sync_word(layers[i].page, 0), 1);
        WAIT_FOR(mla_word_load(mla_sync_word(layers[i].page, 1)) == 1, 10000 * TEST_SLOW);
    }
    mla_step_result_init(&result);
    worker_ok(client, mla_step_wait(client, request, WORKER_TIMEOUT_US, &result));
    for (int i = 0; i < STEP_JOBS; i++) {
        layers[i].ref.table = (const int32_t *)from->entries;
        worker_job_pull(&layers[i]);
        worker_job_check(&layers[i]);
    }
}

static void step(const struct worker_job *from)
{
    step_run(from, step_begin(from));
}

static void step_until_copied(const struct worker_job *from)
{
    double before = uses();
    WAIT_FOR((step(from), uses() > before), 20000 * TEST_SLOW);
}

static void step_names_the_copy(const struct worker_job *from)
{
    struct mla_fake_report then = {0}, now = {0};
    double before = uses();
    if (gpu_is_fake())
        then = gpu_daemon_report(&d);
    step(from);
    if (gpu_is_fake())
        now = gpu_daemon_report(&d);
    ck_assert_double_eq(uses(), before + 1);
    ck_assert_uint_eq(now.device_tables - then.device_tables, gpu_is_fake() ? STEP_JOBS : 0);
    ck_assert_uint_eq(now.host_tables - then.host_tables, 0);
}

/* A template whose tables stay, whose tables are others from step to step, and others by the same id. */
static int steps(struct peer *parent, void *arg)
{
    const struct worker_shape shape = {
        .heads = 8, .n_seqs = 2, .q_len = {2, 1}, .kv_len = {300, 170}, .sync = true, .seed = 6};
    struct mla_decode_args args[STEP_JOBS];
    struct worker_job other, late;
    (void)parent;
    (void)arg;
    begin("steps");
    for (int i = 0; i < STEP_JOBS; i++) {
        worker_job_new(client, &layers[i], pool.cache, pool.memory.addr, PAGES, &shape);
        args[i] = layers[i].args;
        args[i].tables = layers[0].tables.id;
    }
    job_new(&other, 7);
    drop(&other);
    put_others(&other, 5);
    worker_ok(client, mla_template_open(client, args, STEP_JOBS, WORKER_TIMEOUT_US, &template));
    step(&layers[0]);
    ck_assert_double_eq(bytes_copied(client), 0);
    step_until_copied(&layers[0]);
    step_names_the_copy(&layers[0]);
    step_until_copied(&other);
    ck_assert_double_eq(bytes_copied(client), 2 * ENTRIES * sizeof(uint32_t));
    for (int i = 0; i < 4; i++)
        step_names_the_copy(i % 2 == 0 ? &layers[0] : &other);
    /* The template has looked the other one up last; it goes, and what comes may lie where its copy did. */
    for (int i = 0; i < 3; i++) {
        drop(&other);
        ck_assert_double_eq(bytes_copied(client), ENTRIES * sizeof(uint32_t));
        put_others(&other, 3);
        step(&other);
        step_until_copied(&other);
        step_names_the_copy(&other);
    }
    /* It goes while a step reads it: until that has ended, what comes lies elsewhere. */
    mla_request_id request = step_begin(&other);
    drop(&other);
    job_new(&late, 8);
    run_until_copied(&late);
    ck_assert_double_eq(bytes_copied(client), 3 * ENTRIES * sizeof(uint32_t));
    step_run(&other, request);
    WAIT_FOR(bytes_copied(client) == 2 * ENTRIES * sizeof(uint32_t), 5000 * TEST_SLOW);
    put_others(&other, 3);
    ck_assert_int_eq(mla_template_close(template, WORKER_TIMEOUT_US), MLA_OK);
    for (int i = 0; i < STEP_JOBS; i++)
        worker_job_free(client, &layers[i]);
    worker_job_free(client, &other);
    worker_job_free(client, &late);
    ck_assert_double_eq(bytes_copied(client), 0);
    return end();
}

START_TEST(steps_that_come_again)
{
    with_a_worker(steps);
}
END_TEST

/* ---- while it is copied ---- */

/* Decodes go on beside the copy. */
static void copy_begins(struct worker_job *job)
{
    run_and_check(job);
    run_and_check(job);
    WAIT_FOR(bytes_copied(client) == ENTRIES * sizeof(uint32_t), 5000 * TEST_SLOW);
    run_and_check(job);
    ck_assert_double_eq(uses(), 0);
}

/* Dropped, and other pages come by the same id: neither waits for the copy, which nobody will read. */
static int drops(struct peer *parent, void *arg)
{
    struct worker_job job;
    (void)parent;
    (void)arg;
    begin("drops");
    job_new(&job, 5);
    copy_begins(&job);
    drop(&job);
    put_others(&job, 4);
    for (int i = 0; i < 4; i++)
        run_and_check(&job);
    ck_assert_double_eq(uses(), 0);
    ck_assert_double_eq(bytes_copied(client), ENTRIES * sizeof(uint32_t));
    ck_assert_double_eq(worker_metric(client, "mlad_table_sets", ""), 2);
    gpu_gate_open();
    run_until_copied(&job);
    WAIT_FOR(worker_metric(client, "mlad_table_sets", "") == 1, 5000 * TEST_SLOW);
    ck_assert_double_eq(bytes_copied(client), ENTRIES * sizeof(uint32_t));
    worker_job_free(client, &job);
    return end();
}

/* Says when its tables are being copied, and waits for its end. */
static int has_a_copy_under_way(struct peer *parent, void *arg)
{
    struct worker_job job;
    (void)arg;
    begin("copies");
    job_new(&job, 5);
    copy_begins(&job);
    peer_tell(parent, 'c');
    for (;;)
        pause();
    return 0;
}

START_TEST(dropped_meanwhile)
{
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, "");
    hold_copies();
    peer_start(&peer, drops, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

START_TEST(killed_meanwhile)
{
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, "");
    hold_copies();
    struct mla_client *reader = worker_open(d.socket, "reader");
    peer_start(&peer, has_a_copy_under_way, NULL);
    peer_hear(&peer, 'c');
    peer_kill(&peer);
    WAIT_FOR(worker_metric(reader, "mlad_mapped_bytes", "") == 0, 5000 * TEST_SLOW);
    ck_assert_double_eq(bytes_copied(reader), ENTRIES * sizeof(uint32_t));
    ck_assert_uint_eq(gpu_clients(reader), 2);
    gpu_gate_open();
    WAIT_FOR(gpu_clients(reader) == 1 && bytes_copied(reader) == 0, 5000 * TEST_SLOW);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* The end of the daemon waits for it. */
START_TEST(drained_meanwhile)
{
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, "");
    hold_copies();
    struct mla_client *admin = worker_open(d.socket, "admin");
    peer_start(&peer, has_a_copy_under_way, NULL);
    peer_hear(&peer, 'c');
    const uint64_t deadline_us = 100000;
    worker_ok(admin, mla_drain(admin, &deadline_us, WORKER_TIMEOUT_US, NULL));
    ck_assert(!daemon_ended(&d, 300));
    gpu_gate_open();
    ck_assert_msg(daemon_ended(&d, 5000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, 0);
    peer_kill(&peer);
    mla_close(admin);
    gpu_daemon_stop(&d, 0);
}
END_TEST

/* ---- the driver says no ---- */

static int is_refused(struct peer *parent, void *arg)
{
    struct worker_job jobs[2];
    (void)parent;
    (void)arg;
    begin("refused");
    for (uint64_t i = 0; i < 2; i++)
        job_new(&jobs[i], i);
    for (int i = 0; i < 10; i++)
        run_and_check(&jobs[0]);
    WAIT_FOR(bytes_copied(client) == 0, 5000 * TEST_SLOW);
    for (int i = 0; i < 10; i++)
        run_and_check(&jobs[0]);
    ck_assert_double_eq(uses(), 0);
    run_until_copied(&jobs[1]);
    for (int i = 0; i < 2; i++)
        worker_job_free(client, &jobs[i]);
    return end();
}

START_TEST(refused)
{
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, "cuMemcpyHtoDAsync@1=fail INVALID_VALUE");
    peer_start(&peer, is_refused, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

static int until_lost(struct peer *parent, void *arg)
{
    struct worker_job job;
    enum mla_status status;
    (void)parent;
    (void)arg;
    begin("until lost");
    job_new(&job, 5);
    uint64_t limit = test_now_us() + UINT64_C(20000000) * TEST_SLOW;
    do {
        status = mla_decode(client, &job.args, WORKER_TIMEOUT_US, NULL);
        ck_assert_msg(test_now_us() < limit, "the device is not lost");
    } while (status == MLA_OK);
    ck_assert_msg(status == MLA_DEVICE_LOST || status == MLA_DISCONNECTED, "%s", mla_errname(status));
    mla_close(client);
    return 0;
}

/* By the call, by the copy, or beside it. */
START_TEST(lost)
{
    static const char *const rules[] = {"cuMemcpyHtoDAsync@1=lose ILLEGAL_ADDRESS", "copy@1=lose ECC_UNCORRECTABLE",
                                        "copy=delay 300;kernel@12=lose ILLEGAL_ADDRESS"};
    struct peer peer;
    if (!gpu_is_fake())
        return;
    gpu_daemon_start(&d, rules[_i]);
    peer_start(&peer, until_lost, NULL);
    peer_end(&peer);
    ck_assert_msg(daemon_ended(&d, 20000 * TEST_SLOW), "the daemon goes on");
    ck_assert_int_eq(d.exit_code, APP_EXIT_DEVICE_LOST);
    gpu_daemon_stop(&d, APP_EXIT_DEVICE_LOST);
}
END_TEST

/* ---- room ---- */

/* Of so many entries, of which the first is used. */
static void put_long(struct worker_job *job, uint32_t n_entries, uint32_t page)
{
    job->entries = realloc(job->entries, n_entries * sizeof(uint32_t));
    ck_assert_ptr_nonnull(job->entries);
    memset(job->entries, 0, n_entries * sizeof(uint32_t));
    job->entries[0] = page;
    job->ref.table = (const int32_t *)job->entries;
    job->tables.entries = job->entries;
    job->tables.n_entries = job->tables.entries_per_seq = n_entries;
    worker_ok(client, mla_tables_put(client, &job->tables, WORKER_TIMEOUT_US));
}

static void big_new(struct worker_job *job, uint32_t page)
{
    worker_job_new(client, job, pool.cache, pool.memory.addr, PAGES,
                   &(struct worker_shape){.heads = 8, .q_len = {1}, .kv_len = {64}, .seed = page});
    drop(job);
    put_long(job, BIG_ENTRIES, page);
}

#define BIG_JOBS 5

/* Four fit, and the fifth goes without until there is room; others by the hundred come and go; and there is as much
 * room as before. */
static int fills(struct peer *parent, void *arg)
{
    struct worker_job jobs[BIG_JOBS], small;
    struct prng prng = {7};
    (void)parent;
    (void)arg;
    begin("fills");
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < BIG_JOBS; i++)
            big_new(&jobs[i], i + round);
        for (uint32_t i = 0; i + 1 < BIG_JOBS; i++)
            run_until_copied(&jobs[i]);
        ck_assert_double_eq(bytes_copied(client), (double)ROOM_BYTES);
        double before = uses();
        for (int i = 0; i < 5; i++)
            run_and_check(&jobs[BIG_JOBS - 1]);
        ck_assert_double_eq(uses(), before);
        drop(&jobs[1]);
        ck_assert_double_eq(bytes_copied(client), (double)(ROOM_BYTES - BIG_BYTES));
        run_until_copied(&jobs[BIG_JOBS - 1]);
        put_long(&jobs[1], 1, 1);
        run_and_check(&jobs[1]);
        for (uint32_t i = 0; i < BIG_JOBS; i++)
            worker_job_free(client, &jobs[i]);
        ck_assert_double_eq(bytes_copied(client), 0);
        big_new(&small, 0);
        for (uint32_t i = 0; i < 200 && round == 0; i++) {
            drop(&small);
            put_long(&small, 1 + prng_below(&prng, 1u << prng_below(&prng, 17)), prng_below(&prng, PAGES));
            for (int k = 0; k < 3; k++)
                worker_job_run(&small);
            if (i % 10 == 0)
                run_until_copied(&small);
        }
        worker_job_free(client, &small);
    }
    return end();
}

START_TEST(as_much_as_there_is_room_for)
{
    with_a_worker(fills);
}
END_TEST

/* ---- all at once ---- */

struct storm_job {
    struct worker_job job;
    mla_request_id request;
    bool in_flight, dropped;
};

static void storm_act(struct storm_job *s, struct prng *prng)
{
    uint32_t what = prng_below(prng, 8);
    if (s->dropped && !s->in_flight) {
        put_others(&s->job, 1 + prng_below(prng, PAGES - 1));
        s->dropped = false;
    } else if (!s->in_flight && what > 0) {
        s->request = worker_job_submit(&s->job);
        s->in_flight = true;
    } else if (!s->dropped && what < 2) {
        drop(&s->job);
        s->dropped = true;
    } else if (s->in_flight) {
        worker_job_wait(&s->job, s->request, MLA_OK);
        worker_job_check(&s->job);
        s->in_flight = false;
    }
}

/* Sets put, used, and dropped with decodes of them in flight; each decode has the pages of its time. In the end it is
 * killed with whatever is under way. */
static int storm(struct peer *parent, void *arg)
{
    struct prng prng = {*(const uint64_t *)arg};
    struct storm_job jobs[STORM_JOBS];
    memset(jobs, 0, sizeof(jobs));
    begin("storm");
    for (uint32_t i = 0; i < STORM_JOBS; i++)
        job_new(&jobs[i].job, i);
    for (int i = 0; i < 1200 / TEST_SLOW; i++)
        storm_act(&jobs[prng_below(&prng, STORM_JOBS)], &prng);
    peer_tell(parent, 'd');
    for (uint32_t i = 0;; i++)
        storm_act(&jobs[i % STORM_JOBS], &prng);
    return 0;
}

START_TEST(put_used_and_dropped)
{
    static uint64_t seeds[2] = {11, 12};
    struct peer peers[2];
    gpu_daemon_start(&d, _i == 0 ? "" : "copy=delay 3");
    struct mla_client *reader = worker_open(d.socket, "reader");
    for (int i = 0; i < 2; i++)
        peer_start(&peers[i], storm, &seeds[i]);
    for (int i = 0; i < 2; i++)
        peer_hear(&peers[i], 'd');
    ck_assert_double_gt(worker_metric(reader, "mlad_table_mirror_uses_total", ""), 20);
    for (int i = 0; i < 2; i++)
        peer_kill(&peers[i]);
    WAIT_FOR(gpu_clients(reader) == 1, 5000 * TEST_SLOW);
    ck_assert_double_eq(bytes_copied(reader), 0);
    mla_close(reader);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_tables)
{
    TCase *tc = mla_tcase_timeout(suite, "tables", 60);
    tcase_add_test(tc, decodes_that_come_again);
    tcase_add_test(tc, steps_that_come_again);
    tcase_add_test(tc, dropped_meanwhile);
    tcase_add_test(tc, killed_meanwhile);
    tcase_add_test(tc, drained_meanwhile);
    tcase_add_test(tc, refused);
    tcase_add_loop_test(tc, lost, 0, 3);
    tcase_add_test(tc, as_much_as_there_is_room_for);
    tcase_add_loop_test(tc, put_used_and_dropped, 0, 2);
}
