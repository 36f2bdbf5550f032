/* Decodes that are cut into launches of their own, and who runs between them. */
#include <signal.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker.h"

#define PAGES 12
#define SEED  11
#define ABORT (UINT64_C(1) << 62)

static struct daemon d;
static struct mla_client *client;
static struct worker_pool pool;

/* Every tile of 256 rows in a launch of its own. */
static void setup(const char *max_launch)
{
    daemon_start(&d, max_launch, NULL);
    client = worker_open(d.socket, "parts");
    worker_pool_new(client, &pool, PAGES, SEED);
}

static void teardown(void)
{
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}

static void new_job(struct worker_job *job, const struct worker_shape *shape)
{
    worker_job_new(client, job, pool.cache, pool.memory.addr, PAGES, shape);
    if (shape->sync)
        __atomic_store_n(mla_sync_word(job->page, 0), 1, __ATOMIC_RELEASE);
}

static uint64_t done_word(const struct worker_job *job)
{
    return __atomic_load_n(mla_sync_word(job->page, 1), __ATOMIC_ACQUIRE);
}

static double launches(void)
{
    return worker_metric(client, "mlad_batches_total", "");
}

static const struct worker_shape ragged = {.heads = 96,
                                           .n_seqs = 6,
                                           .q_len = {8, 0, 3, 1, 5, 0},
                                           .kv_len = {700, 64, 65, 0, 300, 0},
                                           .head_step = 31,
                                           .sync = true,
                                           .seed = 3};

START_TEST(cut_jobs_are_right)
{
    static const struct {
        struct worker_shape shape;
        uint32_t tiles;
    } cases[] = {
        {{.heads = 96, .n_seqs = 1, .q_len = {8}, .kv_len = {500}, .head_step = 31}, 3},
        {{.heads = 96, .n_seqs = 6, .q_len = {8, 0, 3, 1, 5, 0}, .kv_len = {700, 64, 65, 0, 300, 0}, .head_step = 31},
         3 + 2 + 1 + 2},
        {{.heads = 128,
          .n_seqs = 4,
          .q_len = {3, 4, 2, 1},
          .kv_len = {100, 200, 300, 400},
          .mask = MLA_MASK_NONE,
          .out_type = MLA_DTYPE_BF16,
          .head_step = 31},
         2 + 2 + 1 + 1},
        {{.heads = 64, .n_seqs = 2, .q_len = {8, 8}, .kv_len = {640, 640}, .out_type = MLA_DTYPE_E4M3, .seed = 9},
         2 + 2}};
    setup("scheduler.max_launch_us=1");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct worker_job job;
        new_job(&job, &cases[i].shape);
        double before = launches();
        worker_job_run(&job);
        ck_assert_double_eq(launches() - before, cases[i].tiles);
        ck_assert_uint_eq(job.result.tiles, cases[i].tiles);
        ck_assert_uint_eq(job.result.batch, (uint64_t)launches());
        worker_job_check(&job);
        worker_job_free(client, &job);
    }
    teardown();
}
END_TEST

/* The done word comes once, when all has run; batch-invariant jobs have the same bits whoever is beside them. */
START_TEST(words_and_bits_of_cut_jobs)
{
    static uint8_t alone[17 * 96 * 512 * 4];
    setup("scheduler.max_launch_us=1");
    struct worker_job job, mate;
    new_job(&job, &ragged);
    new_job(&mate, &(struct worker_shape){.heads = 96, .n_seqs = 2, .q_len = {4, 4}, .kv_len = {900, 900}});
    job.args.batch_invariant = true;
    worker_job_run(&job);
    ck_assert_uint_eq(done_word(&job), 1);
    worker_job_check(&job);
    memcpy(alone, (uint8_t *)job.memory.addr + job.o_at, sizeof(alone));
    for (int round = 0; round < 3; round++) {
        mla_request_id other = worker_job_submit(&mate), request = worker_job_submit(&job);
        worker_job_wait(&job, request, MLA_OK);
        worker_job_wait(&mate, other, MLA_OK);
        ck_assert_mem_eq(alone, (uint8_t *)job.memory.addr + job.o_at, sizeof(alone));
        worker_job_check(&mate);
    }
    worker_job_free(client, &job);
    worker_job_free(client, &mate);
    teardown();
}
END_TEST

/* Faults of all parts are in the answer and in the status words, whichever launch found them. */
START_TEST(faults_of_any_part)
{
    setup("scheduler.max_launch_us=1");
    struct worker_job job;
    uint32_t ids[64];
    for (uint32_t i = 0; i < 64; i++)
        ids[i] = i % PAGES;
    ids[4] = PAGES;       /* sequence 0, of three tiles: entry 4 of 11 */
    ids[11 + 1 + 1] = 99; /* sequence 2: its second entry; 12 are before it */
    struct worker_shape shape = ragged;
    shape.page_ids = ids;
    new_job(&job, &shape);
    uint64_t *status = (uint64_t *)(void *)((uint8_t *)job.memory.addr + job.status_at);
    worker_job_wait(&job, worker_job_submit(&job), MLA_PARTIAL);
    ck_assert_uint_eq(job.result.n_faults, 2);
    ck_assert_uint_eq(job.result.faults[0].sequence, 0);
    ck_assert_int_eq(job.result.faults[0].status, MLA_PAGE_OUT_OF_RANGE);
    ck_assert_uint_eq(job.result.faults[0].index, 4);
    ck_assert_uint_eq(job.result.faults[1].sequence, 2);
    ck_assert_uint_eq(job.result.faults[1].index, 1);
    ck_assert_uint_eq(status[0], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 4);
    ck_assert_uint_eq(status[2], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 1);
    ck_assert(status[1] == 0 && status[3] == 0 && status[4] == 0 && status[5] == 0);
    ck_assert_double_eq(worker_metric(client, "mlad_sequence_faults_total", "kind=\"PAGE_OUT_OF_RANGE\""), 2);
    ck_assert_uint_eq(done_word(&job), 1);
    worker_job_check(&job); /* all other sequences */
    worker_job_free(client, &job);
    /* The next one's words are in the same memory. */
    new_job(&job, &ragged);
    worker_job_run(&job);
    ck_assert_uint_eq(job.result.n_faults, 0);
    worker_job_check(&job);
    worker_job_free(client, &job);
    teardown();
}
END_TEST

/* Sixteen tiles of four thousand keys: a launch each, for a large fraction of a second together. */
static const struct worker_shape heavy = {.heads = 64,
                                          .n_seqs = 8,
                                          .q_len = {8, 8, 8, 8, 8, 8, 8, 8},
                                          .kv_len = {4096, 4096, 4096, 4096, 4096, 4096, 4096, 4096},
                                          .head_step = 63,
                                          .sync = true};

START_TEST(others_run_between_the_parts)
{
    setup("scheduler.max_launch_us=2000");
    struct mla_client *second = worker_open(d.socket, "small");
    struct worker_pool theirs;
    struct worker_job large, small;
    worker_pool_new(second, &theirs, PAGES, SEED + 1);
    new_job(&large, &heavy);
    worker_job_new(second, &small, theirs.cache, theirs.memory.addr, PAGES,
                   &(struct worker_shape){.heads = 64, .q_len = {1}, .kv_len = {100}});
    mla_request_id request = worker_job_submit(&large);
    for (int i = 0; i < 3; i++) {
        worker_job_run(&small);
        worker_job_check(&small);
    }
    ck_assert_uint_ne(done_word(&large), 1); /* or nothing was shown */
    worker_job_wait(&large, request, MLA_OK);
    ck_assert_uint_lt(small.result.batch, large.result.batch);
    worker_job_check(&large);
    worker_job_free(second, &small);
    worker_pool_free(second, &theirs);
    mla_close(second);
    worker_job_free(client, &large);
    teardown();
}
END_TEST

/* What runs ends, the rest never begins; the stream that waits is released. 0: cancelled, 1: timed out. */
START_TEST(a_cut_job_can_be_stopped)
{
    setup("scheduler.max_launch_us=2000");
    struct worker_job job;
    new_job(&job, &heavy);
    job.args.deadline_us = _i == 1 ? 30000 * TEST_SLOW : 0;
    mla_request_id request = worker_job_submit(&job);
    while (launches() == 0)
        ;
    if (_i == 0)
        worker_ok(client, mla_cancel(client, request));
    worker_job_wait(&job, request, _i == 0 ? MLA_CANCELLED : MLA_TIMED_OUT);
    ck_assert_double_ge(launches(), 1);
    ck_assert_double_lt(launches(), 16);
    ck_assert_uint_eq(done_word(&job), 1 + ABORT);
    double before = launches();
    job.args.deadline_us = 0;
    __atomic_store_n(mla_sync_word(job.page, 1), 0, __ATOMIC_RELEASE);
    worker_job_run(&job);
    ck_assert_double_eq(launches() - before, 16);
    ck_assert_uint_eq(done_word(&job), 1);
    worker_job_check(&job);
    worker_job_free(client, &job);
    teardown();
}
END_TEST

/* Its owner goes between two parts: the memory is given up within a second, and the daemon goes on. */
START_TEST(the_owner_of_a_cut_job_goes)
{
    setup("scheduler.max_launch_us=2000");
    struct mla_client *second = worker_open(d.socket, "goes");
    struct worker_pool theirs;
    struct worker_job job;
    worker_pool_new(second, &theirs, PAGES, SEED);
    worker_job_new(second, &job, theirs.cache, theirs.memory.addr, PAGES, &heavy);
    __atomic_store_n(mla_sync_word(job.page, 0), 1, __ATOMIC_RELEASE);
    worker_job_submit(&job);
    while (launches() == 0)
        ;
    uint64_t end = test_now_us() + 1000000;
    mla_close(second);
    while (worker_metric(client, "mlad_regions", "") != 1)
        ck_assert_uint_lt(test_now_us(), end);
    ck_assert_double_lt(launches(), 16);
    ck_assert_int_eq(mla_sync_destroy(job.page, 0), MLA_OK);
    worker_job_free(NULL, &job);
    mla_memory_free(&theirs.memory);
    struct worker_job small;
    new_job(&small, &(struct worker_shape){.heads = 64, .q_len = {1}, .kv_len = {100}});
    worker_job_run(&small);
    worker_job_check(&small);
    worker_job_free(client, &small);
    teardown();
}
END_TEST

MLA_SUITE(mlad_parts)
{
    TCase *tc = mla_tcase(suite, "parts");
    tcase_add_test(tc, cut_jobs_are_right);
    tcase_add_test(tc, words_and_bits_of_cut_jobs);
    tcase_add_test(tc, faults_of_any_part);
    tcase_add_test(tc, others_run_between_the_parts);
    tcase_add_loop_test(tc, a_cut_job_can_be_stopped, 0, 2);
    tcase_add_test(tc, the_owner_of_a_cut_job_goes);
}
