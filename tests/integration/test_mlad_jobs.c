/* The main job: workers in processes of their own share caches with one daemon and get right answers. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/worker.h"

#define POOL_PAGES 24
#define POOL_SEED  7

static struct daemon d;

/* One worker: which pool, and what it asks for, rounds times. */
struct plan_of_worker {
    const char *name;
    bool owner;  /* makes and publishes the cache, else attaches to it */
    int done[2]; /* owner: keeps the cache until the other end closes */
    struct worker_shape shapes[3];
    unsigned n_shapes;
};

static mla_cache_id attach(struct mla_client *client)
{
    struct mla_cache_info info;
    worker_ok(client, mla_cache_attach(client, MLA_UID_SELF, "main", 10000000, WORKER_TIMEOUT_US, &info));
    ck_assert_uint_eq(info.num_pages, POOL_PAGES);
    ck_assert_uint_eq(info.planes, 1);
    ck_assert_uint_eq(info.tokens_per_entry, 64);
    ck_assert_int_eq(info.layout, MLA_CACHE_E4M3_576);
    return info.cache;
}

static int work(void *arg)
{
    struct plan_of_worker *w = arg;
    static uint8_t pages[POOL_PAGES * WORKER_PAGE_BYTES];
    struct mla_client *client = worker_open(d.socket, w->name);
    struct worker_pool pool;
    mla_cache_id cache;
    if (w->owner) {
        worker_pool_new(client, &pool, POOL_PAGES, POOL_SEED);
        worker_ok(client, mla_cache_publish(client, pool.cache, "main", NULL, 0, WORKER_TIMEOUT_US));
        cache = pool.cache;
    } else {
        cache = attach(client);
    }
    worker_fill(pages, sizeof(pages),
                POOL_SEED); /* the attacher cannot read the owner's memory; it knows what is in it */
    for (unsigned i = 0; i < w->n_shapes; i++) {
        struct worker_job job;
        worker_job_new(client, &job, cache, pages, POOL_PAGES, &w->shapes[i]);
        for (int round = 0; round < 2; round++) {
            worker_job_run(&job);
            worker_job_check(&job);
            ck_assert_uint_ge(job.result.tiles, 1);
            ck_assert_uint_ge(job.result.items, job.result.tiles);
            ck_assert_uint_ge(job.result.batch, 1);
            ck_assert_uint_ge(job.result.batch_jobs, 1);
        }
        worker_job_free(client, &job);
    }
    char c;
    if (w->owner) {
        close(w->done[1]);
        ck_assert_int_eq(read(w->done[0], &c, 1), 0); /* until the attacher has ended */
        worker_pool_free(client, &pool);
    } else {
        worker_ok(client, mla_cache_detach(client, cache, WORKER_TIMEOUT_US));
    }
    mla_close(client);
    return 0;
}

START_TEST(two_workers_share_a_cache)
{
    daemon_start(&d, NULL);
    struct plan_of_worker owner = {.name = "owner",
                                   .owner = true,
                                   .shapes = {{.heads = 96, .n_seqs = 1, .q_len = {1}, .kv_len = {1000}, .seed = 1},
                                              {.heads = 16,
                                               .n_seqs = 3,
                                               .q_len = {4, 0, 2},
                                               .kv_len = {300, 0, 65},
                                               .out_type = MLA_DTYPE_BF16,
                                               .seed = 2}},
                                   .n_shapes = 2};
    struct plan_of_worker other = {
        .name = "attacher",
        .shapes = {{.heads = 12, .n_seqs = 2, .q_len = {8, 1}, .kv_len = {129, 640}, .seed = 3},
                   {.heads = 24, .n_seqs = 1, .q_len = {3}, .kv_len = {511}, .out_type = MLA_DTYPE_E4M3, .seed = 4},
                   {.heads = 8, .n_seqs = 1, .q_len = {2}, .kv_len = {64}, .mask = MLA_MASK_NONE, .kv_scale = 0.5f}},
        .n_shapes = 3};
    ck_assert_int_eq(pipe(owner.done), 0);
    pid_t a = child_start(work, &owner);
    close(owner.done[0]);
    pid_t b = child_start(work, &other);
    ck_assert_int_eq(child_wait(b), 0);
    close(owner.done[1]);
    ck_assert_int_eq(child_wait(a), 0);

    struct mla_client *client = worker_open(d.socket, "reader");
    ck_assert_double_eq(worker_metric(client, "mlad_jobs_total", "status=\"OK\""), 10);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* One launch at a time, never cut, the next one staged at once: what shares a batch is known. */
#define IN_TURN "scheduler.launches=1", "scheduler.lead_us=60000000", "scheduler.max_launch_us=0"

/* While a long batch runs, one more is staged; jobs of two clients that come behind that one leave together. */
static int one_job(void *arg)
{
    const int *pipes = arg;
    struct mla_client *client = worker_open(d.socket, "child");
    struct worker_pool pool;
    struct worker_job job;
    char c = 'r';
    worker_pool_new(client, &pool, 8, 3);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {2}, .kv_len = {200}, .head_step = 9, .seed = 8});
    mla_request_id request = worker_job_submit(&job);
    struct mla_health_info *health; /* once this is answered the job has been taken */
    worker_ok(client, mla_read_health(client, WORKER_TIMEOUT_US, &health));
    mla_free(health);
    ck_assert_int_eq(write(pipes[1], &c, 1), 1);
    worker_job_wait(&job, request, MLA_OK);
    worker_job_check(&job);
    ck_assert_uint_eq(job.result.batch_jobs, 2);
    mla_close(client);
    return 0;
}

START_TEST(jobs_of_two_clients_share_a_batch)
{
    daemon_start(&d, IN_TURN, NULL);
    struct mla_client *client = worker_open(d.socket, "parent");
    struct worker_pool pool;
    struct worker_job busy, next, job;
    char c;
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    worker_pool_new(client, &pool, 8, POOL_SEED);
    struct worker_shape shape = worker_long_shape(client, &pool, 700 * TEST_SLOW);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &next, pool.cache, pool.memory.addr, 8, &(struct worker_shape){.heads = 64, .q_len = {1}});
    worker_job_new(client, &job, pool.cache, pool.memory.addr, 8,
                   &(struct worker_shape){.heads = 64, .q_len = {3}, .kv_len = {500}, .head_step = 9, .seed = 9});
    mla_request_id long_one = worker_job_submit(&busy), next_one = worker_job_submit(&next);
    pid_t child = child_start(one_job, pipes);
    ck_assert_int_eq(read(pipes[0], &c, 1), 1);
    mla_request_id short_one = worker_job_submit(&job);
    worker_job_wait(&busy, long_one, MLA_OK);
    ck_assert_uint_eq(busy.result.batch_jobs, 1);
    worker_job_wait(&next, next_one, MLA_OK);
    worker_job_wait(&job, short_one, MLA_OK);
    ck_assert_int_eq(child_wait(child), 0);
    ck_assert_uint_eq(job.result.batch_jobs, 2);
    ck_assert_uint_eq(job.result.batch, busy.result.batch + 2);
    worker_job_check(&job);
    ck_assert_double_ge(
        worker_metric(client, "mlad_batch_jobs", "le=\"2\"") - worker_metric(client, "mlad_batch_jobs", "le=\"1\""), 1);
    worker_job_free(client, &busy);
    worker_job_free(client, &next);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* Two clients have decodes waiting, a launch takes one of them: of each five launches the heavy one has four. */
START_TEST(launches_go_by_weight)
{
    daemon_start(&d, IN_TURN, "scheduler.batch_jobs=1", "weights.clients=heavy:8", "weights.default=2", NULL);
    struct mla_client *clients[2] = {worker_open(d.socket, "light"), worker_open(d.socket, "heavy")}, *parent;
    struct worker_pool pools[2], pool;
    struct worker_job jobs[2], busy;
    mla_request_id requests[2][8];
    uint64_t numbers[2][8];
    for (int c = 0; c < 2; c++) {
        worker_pool_new(clients[c], &pools[c], 8, 3);
        worker_job_new(clients[c], &jobs[c], pools[c].cache, pools[c].memory.addr, 8,
                       &(struct worker_shape){.heads = 64, .q_len = {2}, .kv_len = {200}, .head_step = 9, .seed = 8});
    }
    parent = worker_open(d.socket, "parent");
    worker_pool_new(parent, &pool, 8, 3);
    struct worker_shape shape = worker_long_shape(parent, &pool, 300);
    worker_job_new(parent, &busy, pool.cache, pool.memory.addr, 8, &shape);
    mla_request_id first = worker_job_submit(&busy), second = worker_job_submit(&busy); /* one runs, one is staged */
    struct mla_health_info *health;
    worker_ok(parent, mla_read_health(parent, WORKER_TIMEOUT_US, &health));
    mla_free(health);
    for (int c = 0; c < 2; c++)
        for (int i = 0; i < 8; i++)
            requests[c][i] = worker_job_submit(&jobs[c]);
    worker_job_wait(&busy, first, MLA_OK);
    uint64_t busy_number = busy.result.batch;
    for (int c = 0; c < 2; c++) {
        for (int i = 0; i < 8; i++) {
            worker_job_wait(&jobs[c], requests[c][i], MLA_OK);
            numbers[c][i] = jobs[c].result.batch - busy_number;
        }
        worker_job_check(&jobs[c]);
    }
    worker_job_wait(&busy, second, MLA_OK);
    ck_assert_uint_eq(busy.result.batch, busy_number + 1);
    /* Behind the two long ones; the light one's first is due with the heavy one's fourth, and came before it. */
    static const uint64_t light[] = {5, 10, 12, 13, 14, 15, 16, 17}, heavy[] = {2, 3, 4, 6, 7, 8, 9, 11};
    for (int i = 0; i < 8; i++) {
        ck_assert_uint_eq(numbers[0][i], light[i]);
        ck_assert_uint_eq(numbers[1][i], heavy[i]);
    }
    for (int c = 0; c < 2; c++) {
        worker_job_free(clients[c], &jobs[c]);
        worker_pool_free(clients[c], &pools[c]);
        mla_close(clients[c]);
    }
    worker_job_free(parent, &busy);
    worker_pool_free(parent, &pool);
    mla_close(parent);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* A job alone, and the same among others of its batch, with batch_invariant: the same bits. */
START_TEST(batch_invariant_bits)
{
    daemon_start(&d, IN_TURN, NULL);
    struct mla_client *client = worker_open(d.socket, "parent");
    struct worker_pool pool;
    struct worker_job busy, next, jobs[3];
    mla_request_id requests[3];
    static uint8_t alone[8 * 64 * 512 * 4];
    worker_pool_new(client, &pool, 8, POOL_SEED);
    struct worker_shape shape = worker_long_shape(client, &pool, 300 * TEST_SLOW);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &next, pool.cache, pool.memory.addr, 8, &(struct worker_shape){.heads = 64, .q_len = {1}});
    for (unsigned i = 0; i < 3; i++) {
        worker_job_new(
            client, &jobs[i], pool.cache, pool.memory.addr, 8,
            &(struct worker_shape){.heads = 64, .q_len = {8}, .kv_len = {2000 + 900 * i}, .head_step = 31, .seed = i});
        jobs[i].args.batch_invariant = true;
    }
    worker_job_run(&jobs[1]);
    ck_assert_uint_eq(jobs[1].result.batch_jobs, 1);
    memcpy(alone, (uint8_t *)jobs[1].memory.addr + jobs[1].o_at, sizeof(alone));
    mla_request_id long_one = worker_job_submit(&busy), next_one = worker_job_submit(&next);
    for (unsigned i = 0; i < 3; i++)
        requests[i] = worker_job_submit(&jobs[i]);
    worker_job_wait(&busy, long_one, MLA_OK);
    worker_job_wait(&next, next_one, MLA_OK);
    for (unsigned i = 0; i < 3; i++) {
        worker_job_wait(&jobs[i], requests[i], MLA_OK);
        ck_assert_uint_eq(jobs[i].result.batch_jobs, 3);
        worker_job_check(&jobs[i]);
    }
    ck_assert_mem_eq(alone, (uint8_t *)jobs[1].memory.addr + jobs[1].o_at, sizeof(alone));
    worker_job_free(client, &busy);
    worker_job_free(client, &next);
    for (unsigned i = 0; i < 3; i++)
        worker_job_free(client, &jobs[i]);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* Jobs that each fit the workspace for partials alone, not together: all are served, each with the bits it has alone.
 */
START_TEST(workspace_for_one_at_a_time)
{
    enum { JOBS = 4 };
    daemon_start(&d, IN_TURN, "device.workspace_bytes=3M", NULL);
    struct mla_client *client = worker_open(d.socket, "parent");
    struct worker_pool pool;
    struct worker_job busy, next, jobs[JOBS];
    mla_request_id requests[JOBS];
    static uint8_t alone[JOBS][8 * 32 * 512 * 4];
    worker_pool_new(client, &pool, 8, POOL_SEED);
    struct worker_shape shape = worker_long_shape(client, &pool, 300 * TEST_SLOW);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &next, pool.cache, pool.memory.addr, 8, &(struct worker_shape){.heads = 32, .q_len = {1}});
    for (unsigned i = 0; i < JOBS; i++) {
        worker_job_new(
            client, &jobs[i], pool.cache, pool.memory.addr, 8,
            &(struct worker_shape){.heads = 32, .q_len = {8}, .kv_len = {6000 + 900 * i}, .head_step = 31, .seed = i});
        jobs[i].args.batch_invariant = true;
        worker_job_run(&jobs[i]);
        ck_assert_uint_gt(jobs[i].result.splits, 1); /* or it needs no workspace, and this tests nothing */
        memcpy(alone[i], (uint8_t *)jobs[i].memory.addr + jobs[i].o_at, sizeof(alone[i]));
    }
    mla_request_id long_one = worker_job_submit(&busy), next_one = worker_job_submit(&next);
    for (unsigned i = 0; i < JOBS; i++)
        requests[i] = worker_job_submit(&jobs[i]);
    worker_job_wait(&busy, long_one, MLA_OK);
    worker_job_wait(&next, next_one, MLA_OK);
    for (unsigned i = 0; i < JOBS; i++) {
        worker_job_wait(&jobs[i], requests[i], MLA_OK);
        ck_assert_mem_eq(alone[i], (uint8_t *)jobs[i].memory.addr + jobs[i].o_at, sizeof(alone[i]));
    }
    worker_job_check(&jobs[JOBS - 1]);
    ck_assert_uint_eq(daemon_log_count(&d, "plan_failed"), 0);
    worker_job_free(client, &busy);
    worker_job_free(client, &next);
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_free(client, &jobs[i]);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* What a launch takes is bounded by its tiles as well, not by its sequences alone: planning takes the loop's time. */
START_TEST(tiles_of_a_launch)
{
    enum { JOBS = 6 };
    daemon_start(&d, IN_TURN, "scheduler.batch_seqs=4", NULL);
    struct mla_client *client = worker_open(d.socket, "parent");
    struct worker_pool pool;
    struct worker_job busy, next, jobs[JOBS];
    mla_request_id requests[JOBS];
    worker_pool_new(client, &pool, 8, POOL_SEED);
    struct worker_shape shape = worker_long_shape(client, &pool, 300 * TEST_SLOW);
    worker_job_new(client, &busy, pool.cache, pool.memory.addr, 8, &shape);
    worker_job_new(client, &next, pool.cache, pool.memory.addr, 8, &(struct worker_shape){.heads = 64, .q_len = {1}});
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_new(client, &jobs[i], pool.cache, pool.memory.addr, 8,
                       &(struct worker_shape){.heads = 64, .q_len = {8}, .kv_len = {100}, .head_step = 31, .seed = i});
    mla_request_id long_one = worker_job_submit(&busy), next_one = worker_job_submit(&next);
    for (unsigned i = 0; i < JOBS; i++)
        requests[i] = worker_job_submit(&jobs[i]);
    worker_job_wait(&busy, long_one, MLA_OK);
    worker_job_wait(&next, next_one, MLA_OK);
    for (unsigned i = 0; i < JOBS; i++) {
        worker_job_wait(&jobs[i], requests[i], MLA_OK);
        ck_assert_uint_eq(jobs[i].result.tiles, 2);
        ck_assert_uint_eq(jobs[i].result.batch_jobs, 2);
        worker_job_check(&jobs[i]);
        worker_job_free(client, &jobs[i]);
    }
    worker_job_free(client, &busy);
    worker_job_free(client, &next);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* A cache goes under many staged jobs: they leave their batch together, it is not planned again for each. */
START_TEST(staged_jobs_are_revoked_together)
{
    enum { JOBS = 20 };
    daemon_start(&d, IN_TURN, NULL);
    struct mla_client *owner = worker_open(d.socket, "owner"), *client = worker_open(d.socket, "attacher");
    struct worker_pool theirs, pool;
    struct worker_job busy[2], jobs[JOBS], rest;
    mla_request_id long_ones[2], requests[JOBS], last;
    worker_pool_new(owner, &theirs, POOL_PAGES, POOL_SEED);
    worker_ok(owner, mla_cache_publish(owner, theirs.cache, "main", NULL, 0, WORKER_TIMEOUT_US));
    worker_pool_new(client, &pool, 8, POOL_SEED);
    mla_cache_id cache = attach(client);
    struct worker_shape shape = worker_long_shape(client, &pool, 500 * TEST_SLOW);
    struct worker_shape small = {.heads = 64, .q_len = {1}, .kv_len = {100}, .head_step = 31};
    for (unsigned i = 0; i < 2; i++)
        worker_job_new(client, &busy[i], pool.cache, pool.memory.addr, 8, &shape);
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_new(client, &jobs[i], cache, theirs.memory.addr, POOL_PAGES, &small);
    worker_job_new(client, &rest, pool.cache, pool.memory.addr, 8, &small);
    for (unsigned i = 0; i < 2; i++)
        long_ones[i] = worker_job_submit(&busy[i]);
    for (unsigned i = 0; i < JOBS; i++)
        requests[i] = worker_job_submit(&jobs[i]);
    last = worker_job_submit(&rest);
    worker_job_wait(&busy[0], long_ones[0], MLA_OK);
    ck_assert_double_eq(worker_metric(owner, "mlad_jobs", "state=\"staged\""), JOBS + 1);
    double plans = worker_metric(owner, "mlad_plans_total", "");
    worker_ok(owner, mla_cache_drop(owner, theirs.cache, WORKER_TIMEOUT_US));
    ck_assert_double_eq(worker_metric(owner, "mlad_jobs", "state=\"staged\""), 1);
    ck_assert_double_eq(worker_metric(owner, "mlad_plans_total", ""), plans + 1);
    for (unsigned i = 0; i < JOBS; i++) {
        worker_job_wait(&jobs[i], requests[i], MLA_CACHE_GONE);
        worker_job_free(client, &jobs[i]);
    }
    worker_job_wait(&busy[1], long_ones[1], MLA_OK);
    worker_job_wait(&rest, last, MLA_OK);
    worker_job_check(&rest);
    worker_job_free(client, &rest);
    for (unsigned i = 0; i < 2; i++)
        worker_job_free(client, &busy[i]);
    worker_pool_free(client, &pool);
    mla_close(client);
    mla_close(owner);
    mla_memory_free(&theirs.memory);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_jobs)
{
    TCase *tc = mla_tcase(suite, "jobs");
    tcase_add_test(tc, two_workers_share_a_cache);
    tcase_add_test(tc, jobs_of_two_clients_share_a_batch);
    tcase_add_test(tc, launches_go_by_weight);
    tcase_add_test(tc, batch_invariant_bits);
    tcase_add_test(tc, workspace_for_one_at_a_time);
    tcase_add_test(tc, tiles_of_a_launch);
    tcase_add_test(tc, staged_jobs_are_revoked_together);
}
