/* What a request costs beside its work. In a steady state it takes no memory from the daemon's heap: what came before
 * has left what it needs. The first of what is larger than all before does take some: more in flight, a launch of more
 * tiles, layers of other steps together. So do objects that stay until a client drops them, as table sets. */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"
#include "tests/support/step_worker.h"
#include "tests/support/worker.h"

#define PAGES  8
#define JOBS   6
#define WARM   20
#define ROUNDS 100
#define PLANS  16 /* that the daemon keeps; each has memory from when it is used first */

static struct daemon d;
static const uint64_t *allocations;
static char path[] = "/tmp/mlad-alloc-XXXXXX";

static void start(const char *max_launch, const char *spin)
{
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    void *word = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(word != MAP_FAILED);
    close(fd);
    allocations = word;
    setenv("MLA_TEST_ALLOCATIONS", path, 1);
    setenv("LD_PRELOAD", MLA_COUNT_ALLOC, 1);
    setenv("MLA_FAKE_CUDA", "sms=4", 1); /* on more, small decodes are never too long for a launch */
    daemon_start(&d, max_launch, spin, NULL);
    unsetenv("MLA_FAKE_CUDA");
    unsetenv("LD_PRELOAD");
    unlink(path);
}

static uint64_t taken(void)
{
    uint64_t n = __atomic_load_n(allocations, __ATOMIC_RELAXED);
    ck_assert_uint_gt(n, 20); /* or nothing is counted */
    return n;
}

/* One round: all jobs in flight together, of two clients, then one alone. */
static void rounds(struct worker_job *jobs, int n)
{
    mla_request_id requests[JOBS];
    for (int round = 0; round < n; round++) {
        for (int i = 0; i < JOBS; i++) {
            if (jobs[i].page != NULL) {
                __atomic_store_n(mla_sync_word(jobs[i].page, 0), 1, __ATOMIC_RELEASE);
                __atomic_store_n(mla_sync_word(jobs[i].page, 1), 0, __ATOMIC_RELEASE);
            }
            requests[i] = worker_job_submit(&jobs[i]);
        }
        for (int i = 0; i < JOBS; i++)
            worker_job_wait(&jobs[i], requests[i], MLA_OK);
        worker_job_run(&jobs[round % JOBS]);
    }
}

/* More in flight than in any round, however quick the first ones are: each job several times. */
static void burst(struct worker_job *jobs)
{
    mla_request_id requests[4 * JOBS];
    for (int i = 0; i < 4 * JOBS; i++)
        requests[i] = worker_job_submit(&jobs[i % JOBS]);
    for (int i = 0; i < 4 * JOBS; i++)
        worker_job_wait(&jobs[i % JOBS], requests[i], MLA_OK);
}

/* As many plans as are kept, of one decode each that no other is like: each is made in the memory of another one. */
static void fill_plans(struct mla_client *client, const struct worker_pool *pool)
{
    for (uint32_t i = 0; i < PLANS; i++) {
        struct worker_job job;
        worker_job_new(client, &job, pool->cache, pool->memory.addr, PAGES,
                       &(struct worker_shape){.heads = 16, .q_len = {1}, .kv_len = {10 + i}});
        worker_job_run(&job);
        worker_job_free(client, &job);
    }
}

/* Keys from a list on the host, which is copied for each decode. */
static void make_visible(struct worker_job *job)
{
    static const int32_t counts[] = {100, 60, 64, 300};
    job->args.mask = MLA_MASK_VISIBLE;
    job->args.visible = counts;
    job->args.n_visible = sizeof(counts) / sizeof(counts[0]);
    job->ref.mask = MLA_MASK_VISIBLE;
    job->ref.visible = counts;
}

/* 0: whole; 2: the same by a daemon that spins; 1: each that has a sequence of 40 tokens, which are three of the six,
 * cut into launches of a tile. */
START_TEST(no_allocation_per_request)
{
    start(_i == 1 ? "scheduler.max_launch_us=1" : "scheduler.max_launch_us=0",
          _i == 2 ? "daemon.spin_us=200" : "daemon.spin_us=0");
    struct mla_client *clients[2] = {worker_open(d.socket, "a"), worker_open(d.socket, "b")};
    struct worker_pool pools[2];
    struct worker_job jobs[JOBS];
    for (int i = 0; i < 2; i++)
        worker_pool_new(clients[i], &pools[i], PAGES, 5);
    for (int i = 0; i < JOBS; i++) {
        struct worker_shape shape = {.heads = i == 4 ? 8 : 16,
                                     .n_seqs = 1 + (uint32_t)i % 3,
                                     .q_len = {1, _i == 1 && i != 5 ? 40 : 2, 1},
                                     .kv_len = {100, 64, 300},
                                     .sync = i == 1,
                                     .seed = (uint64_t)i};
        worker_job_new(clients[i % 2], &jobs[i], pools[i % 2].cache, pools[i % 2].memory.addr, PAGES, &shape);
    }
    make_visible(&jobs[5]);
    rounds(jobs, WARM);
    burst(jobs);
    fill_plans(clients[0], &pools[0]);
    rounds(jobs, WARM);
    uint64_t before = taken();
    rounds(jobs, ROUNDS);
    uint64_t more = taken() - before;
    ck_assert_msg(more == 0, "%llu allocations for %d requests", (unsigned long long)more, ROUNDS * (JOBS + 1));
    if (daemon_backend != NULL) /* the page tables of nearly all have been copied by then */
        ck_assert_double_gt(worker_metric(clients[0], "mlad_table_mirror_uses_total", ""), ROUNDS * JOBS);
    double launches = worker_metric(clients[0], "mlad_batches_total", "");
    worker_job_run(&jobs[1]);
    ck_assert_double_eq(worker_metric(clients[0], "mlad_batches_total", "") - launches, _i == 1 ? 4 : 1);
    for (int i = 0; i < JOBS; i++) {
        worker_job_check(&jobs[i]);
        worker_job_free(clients[i % 2], &jobs[i]);
    }
    for (int i = 0; i < 2; i++) {
        worker_pool_free(clients[i], &pools[i]);
        mla_close(clients[i]);
    }
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

static struct step_worker steps[2];

/* A step of each in [first, end), whose layers are ready together. */
static void step_round(uint32_t round, uint32_t first, uint32_t end)
{
    mla_request_id requests[2];
    for (uint32_t i = first; i < end; i++) {
        struct mla_client *client = steps[i].client;
        step_worker_fill(&steps[i], round % STEP_VARIANTS);
        worker_ops->push(&steps[i].memory, steps[i].device, 0, steps[i].bytes);
        worker_ok(client, mla_step_submit(steps[i].tmpl, NULL, NULL, NULL, &requests[i]));
        worker_expect(client, mla_dispatch(client, 0), MLA_PENDING);
    }
    for (uint32_t layer = 0; layer < steps[0].n_layers; layer++) {
        for (uint32_t i = first; i < end; i++)
            mla_word_store(step_ready(&steps[i], layer), 1);
        for (uint32_t i = first; i < end; i++)
            while (mla_word_load(step_done(&steps[i], layer)) != 1)
                sched_yield();
    }
    for (uint32_t i = first; i < end; i++)
        step_worker_wait(&steps[i], requests[i], MLA_OK);
}

/* Steps of two clients that have a template each, alone and together. */
START_TEST(no_allocation_per_step)
{
    start("scheduler.max_launch_us=0", "daemon.spin_us=0");
    for (uint64_t i = 0; i < 2; i++)
        step_worker_new(worker_open(d.socket, "steps"), &steps[i], 4, 3 + i);
    uint32_t shared = 0;
    for (uint32_t round = 0; round < WARM || shared < WARM; round++) {
        ck_assert_uint_lt(round, 100 * WARM);
        step_round(round, 0, 1);
        step_round(round, 1, 2);
        step_round(round, 0, 2);
        shared += steps[0].result.layers_shared;
    }
    uint64_t before = taken();
    for (uint32_t round = 0; round < ROUNDS; round++)
        step_round(round, round % 3 == 1, round % 3 == 2 ? 1 : 2);
    uint64_t more = taken() - before;
    ck_assert_msg(more == 0, "%llu allocations for %d steps and more", (unsigned long long)more, ROUNDS);
    step_round(0, 0, 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct mla_client *client = steps[i].client;
        worker_ops->pull(&steps[i].memory, steps[i].device, steps[i].o_at, steps[i].bytes - steps[i].o_at);
        step_worker_check(&steps[i], 0);
        step_worker_free(client, &steps[i]);
        mla_close(client);
    }
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

/* A client that spins does not sleep while it waits; one that does not sleeps for each answer. */
START_TEST(a_client_that_spins)
{
    daemon_start(&d, "daemon.spin_us=1000", NULL);
    struct mla_options options;
    struct mla_client *client;
    struct worker_pool pool;
    struct worker_job job;
    struct rusage before, after;
    mla_close(worker_open(d.socket, "first")); /* it is there */
    mla_options_init(&options);
    options.socket_path = d.socket;
    options.spin_us = _i == 1 ? 1000000 : 0;
    ck_assert_int_eq(mla_open(&options, &client, NULL), MLA_OK);
    worker_pool_new(client, &pool, PAGES, 5);
    worker_job_new(client, &job, pool.cache, pool.memory.addr, PAGES,
                   &(struct worker_shape){.heads = 64, .q_len = {4}, .kv_len = {500}});
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &before), 0);
    for (int i = 0; i < 50; i++)
        worker_job_run(&job);
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &after), 0);
    long sleeps = after.ru_nvcsw - before.ru_nvcsw;
    ck_assert_msg(_i == 1 ? sleeps < 10 : sleeps > 25, "%ld sleeps", sleeps);
    worker_job_check(&job);
    worker_job_free(client, &job);
    worker_pool_free(client, &pool);
    mla_close(client);
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_alloc)
{
    TCase *tc = mla_tcase(suite, "allocations");
    tcase_add_loop_test(tc, no_allocation_per_request, 0, 3);
    tcase_add_test(tc, no_allocation_per_step);
    if (daemon_backend == NULL) /* the fake driver of this process sleeps */
        tcase_add_loop_test(tc, a_client_that_spins, 0, 2);
}
