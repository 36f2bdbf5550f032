#include "tests/support/long_job.h"

#include <check.h>
#include <math.h>

#include "proto/limits.h"
#include "tests/support/gpu_daemon.h"

#define KEYS        (LONG_JOB_PAGES * 64u)
#define REPEATS_MAX (MLA_KV_LEN_MAX / KEYS)
#define V_DIM       512u

/* On a GPU 64 full tiles of rows, so that the longest context there is takes the fastest kernel more than half a
 * second: 128 units of 262,144 pages at 1.1 us on 66 that run at a time. One processor of the fake driver needs a
 * second for eight tiles and 256 keys of them. */
static struct worker_shape shape(uint32_t repeats)
{
    struct worker_shape s = {.heads = 128, .n_seqs = 4, .mask = MLA_MASK_NONE, .seed = 5, .head_step = 127};
    if (gpu_is_fake()) {
        s.heads = 16;
        s.n_seqs = 1;
        s.head_step = 15;
    }
    for (uint32_t i = 0; i < s.n_seqs; i++) {
        s.q_len[i] = gpu_is_fake() ? 2 : 32;
        s.kv_len[i] = KEYS * repeats;
    }
    return s;
}

static uint64_t measure(struct mla_client *client, mla_cache_id cache, const uint8_t *pages, uint32_t repeats)
{
    struct worker_job job;
    struct worker_shape s = shape(repeats);
    worker_job_new(client, &job, cache, pages, LONG_JOB_PAGES, &s);
    worker_job_run(&job); /* first touch */
    worker_job_run(&job);
    uint64_t us = job.result.run_us > 0 ? job.result.run_us : 1;
    worker_job_free(client, &job);
    return us;
}

static uint32_t repeats_for(unsigned ms, uint32_t some, uint64_t us)
{
    uint64_t repeats = some * UINT64_C(1000) * ms / us;
    return (uint32_t)(repeats < 1 ? 1 : repeats > REPEATS_MAX ? REPEATS_MAX : repeats);
}

void long_job_new(struct mla_client *client, struct long_job *l, mla_cache_id cache, const uint8_t *pages, unsigned ms)
{
    struct worker_shape s = shape(1);
    worker_job_new(client, &l->once, cache, pages, LONG_JOB_PAGES, &s);
    worker_job_run(&l->once);
    worker_job_check(&l->once);
    uint32_t some = gpu_is_fake() ? 4 : 128;
    l->repeats = repeats_for(ms, some, measure(client, cache, pages, some));
    /* On a fast device the first measurement is mostly what a launch costs; the second is not. */
    if (l->repeats > 4 * some)
        l->repeats = repeats_for(ms, l->repeats / 4, measure(client, cache, pages, l->repeats / 4));
    s = shape(l->repeats);
    worker_job_new(client, &l->job, cache, pages, LONG_JOB_PAGES, &s);
}

void long_job_check(struct long_job *l)
{
    const float *o = (const float *)(const void *)((uint8_t *)l->job.memory.addr + l->job.o_at);
    const float *lse = (const float *)(const void *)((uint8_t *)l->job.memory.addr + l->job.lse_at);
    const float *o1 = (const float *)(const void *)((uint8_t *)l->once.memory.addr + l->once.o_at);
    const float *lse1 = (const float *)(const void *)((uint8_t *)l->once.memory.addr + l->once.lse_at);
    uint64_t rows = ref_tokens(&l->job.ref) * l->job.shape.heads;
    double error = 0, all = 0;
    for (uint64_t i = 0; i < rows * V_DIM; i++) {
        error += ((double)o[i] - (double)o1[i]) * ((double)o[i] - (double)o1[i]);
        all += (double)o1[i] * (double)o1[i];
    }
    ck_assert_msg(sqrt(error / all) <= 2e-3 + 2 * worker_ops->rel_l2, "relative L2 error %g", sqrt(error / all));
    for (uint64_t i = 0; i < rows; i++)
        ck_assert_msg(fabs((double)lse[i] - (double)lse1[i] - log(l->repeats)) < 0.02, "LSE of row %llu: %g, not %g",
                      (unsigned long long)i, (double)lse[i], (double)lse1[i] + log(l->repeats));
}

void long_job_free(struct mla_client *client, struct long_job *l)
{
    worker_job_free(client, &l->once);
    worker_job_free(client, &l->job);
}
