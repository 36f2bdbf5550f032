/* Launches of few rows take kernels of their own where there are such: right answers from two kinds side by side, and
 * batch-invariant jobs keep the kind, and so the bits, that they have alone. */
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/gpu_daemon.h"
#include "tests/support/worker_cuda.h"

#define POOL_PAGES 48
#define HEADS      32u /* one query: 32 rows; four: 128, which the kernels of all other launches take */
#define FEW        4u  /* jobs of one query each */
#define JOBS       8u

/* Decodes wait so long for each other, so that those that may share a launch do. */
static const char *const sets[3] = {"scheduler.gather_us=50000", "scheduler.batch_seqs=100",
                                    "limits.max_jobs_in_flight=64"};

static struct daemon d;

static const uint8_t *outputs(const struct worker_job *job)
{
    return (const uint8_t *)job->memory.addr + job->o_at;
}

static double few_rows(struct mla_client *client)
{
    return worker_metric(client, "mlad_few_rows_batches_total", "");
}

/* Jobs 0 .. FEW - 1 have few rows, the others many; of both the first two are to be batch-invariant. */
static void make(struct mla_client *client, const struct worker_pool *pool, struct worker_job *jobs)
{
    for (unsigned i = 0; i < JOBS; i++) {
        const struct worker_shape shape = {
            .heads = HEADS, .q_len = {i < FEW ? 1 : 4}, .kv_len = {1500 + 50 * i}, .head_step = 31, .seed = i};
        worker_job_new(client, &jobs[i], pool->cache, pool->memory.addr, POOL_PAGES, &shape);
        jobs[i].args.batch_invariant = i % FEW < 2;
    }
}

static int work(struct peer *parent, void *arg)
{
    static struct worker_job jobs[JOBS];
    static uint8_t alone[JOBS][4 * HEADS * 516 * 4];
    struct worker_pool pool;
    mla_request_id requests[JOBS];
    bool two_kinds = true;
    (void)parent;
    (void)arg;
    worker_cuda_start();
    struct mla_client *client = worker_open(d.socket, "ranks");
    worker_pool_new(client, &pool, POOL_PAGES, 7);
    make(client, &pool, jobs);
    for (unsigned i = 0; i < JOBS; i++) {
        double before = few_rows(client);
        worker_job_run(&jobs[i]);
        worker_job_check(&jobs[i]);
        size_t bytes = jobs[i].status_at - jobs[i].o_at;
        ck_assert_uint_le(bytes, sizeof(alone[i]));
        memcpy(alone[i], outputs(&jobs[i]), bytes);
        if (i == 0 && !gpu_is_fake())
            two_kinds = few_rows(client) > 0; /* not on every GPU */
        ck_assert_double_eq(few_rows(client) - before, two_kinds && i < FEW);
    }
    for (int round = 0; round < 3; round++) {
        double before = few_rows(client);
        for (unsigned i = 0; i < JOBS; i++)
            requests[i] = worker_job_submit(&jobs[(i * 3 + (unsigned)round) % JOBS]);
        for (unsigned i = 0; i < JOBS; i++) {
            struct worker_job *job = &jobs[(i * 3 + (unsigned)round) % JOBS];
            worker_job_wait(job, requests[i], MLA_OK);
            worker_job_check(job);
        }
        for (unsigned i = 0; i < JOBS; i++) {
            if (jobs[i].args.batch_invariant)
                ck_assert_mem_eq(outputs(&jobs[i]), alone[i], jobs[i].status_at - jobs[i].o_at);
            if (two_kinds && i < 2) /* with nobody but the other one */
                ck_assert_uint_le(jobs[i].result.batch_jobs, 2);
        }
        ck_assert(!two_kinds || few_rows(client) > before);
    }
    for (unsigned i = 0; i < JOBS; i++)
        worker_job_free(client, &jobs[i]);
    worker_pool_free(client, &pool);
    mla_close(client);
    return 0;
}

START_TEST(both_kinds)
{
    struct peer peer;
    gpu_daemon_start_with(&d, "", sets);
    peer_start(&peer, work, NULL);
    peer_end(&peer);
    gpu_daemon_stop(&d, 0);
}
END_TEST

MLA_SUITE(gpu_few_rows)
{
    TCase *tc = mla_tcase_timeout(suite, "few_rows", 60);
    tcase_add_test(tc, both_kinds);
}
