/* Batches of a few plans, again and again, alone and behind others, in every way that records get to the device: those
 * of a plan differ in all that it does not settle. On the fake driver. MLA_TEST_SEED, MLA_TEST_COUNT: as in
 * backend_random. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/support/prng.h"
#include "tests/unit/test_be_cuda.h"

#define PLANS    4u
#define ALIKE    3u /* batches of a plan */
#define JOBS_MAX 3u
#define SEQS_MAX 5u
#define ROUNDS   20

struct plan_of {
    uint32_t heads, n_jobs, splits;
    uint32_t n_seqs[JOBS_MAX], mask[JOBS_MAX];
    bool batch_invariant[JOBS_MAX];
    struct dc_seq seqs[JOBS_MAX][SEQS_MAX];
};

static bool chance(struct prng *p, uint32_t percent)
{
    return prng_below(p, 100) < percent;
}

static void draw_plan(struct prng *p, struct plan_of *of)
{
    static const uint32_t heads[] = {1, 6, 12, 16, 24, 96};
    of->heads = heads[prng_below(p, chance(p, 80) ? 5 : 6)];
    of->n_jobs = 1 + prng_below(p, JOBS_MAX);
    of->splits = chance(p, 60) ? 1 + prng_below(p, 4) : 0;
    for (uint32_t j = 0; j < of->n_jobs; j++) {
        of->n_seqs[j] = prng_below(p, SEQS_MAX + 1);
        of->mask[j] = 1 + prng_below(p, 3);
        of->batch_invariant[j] = chance(p, 20);
        for (uint32_t s = 0; s < of->n_seqs[j]; s++)
            of->seqs[j][s] = (struct dc_seq){chance(p, 15) ? 0 : 1 + prng_below(p, of->heads > 24 ? 2 : 5), 0,
                                             prng_below(p, chance(p, 50) ? 400 : 100)};
    }
}

static void draw_job(struct prng *p, const struct plan_of *of, uint32_t j, struct dc *c)
{
    struct dc_seq seqs[SEQS_MAX];
    struct dc_shape shape = {.heads = of->heads,
                             .n_seqs = of->n_seqs[j],
                             .seqs = seqs,
                             .mask = of->mask[j],
                             .batch_invariant = of->batch_invariant[j],
                             .out_type = 1 + prng_below(p, 3),
                             .softmax_scale = (float)(0.5 + prng_unit(p)) / 24,
                             .kv_scale = (float)(0.5 + prng_unit(p)),
                             .out_scale = (float)ldexp(0.5 + prng_unit(p), -5),
                             .q_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS),
                             .o_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS),
                             .lse_layout = (enum dc_layout)prng_below(p, DC_LAYOUTS),
                             .split_rope = chance(p, 50),
                             .no_lse = chance(p, 40),
                             .user_status = chance(p, 40),
                             .table = chance(p, 50) ? DC_HOST : DC_REGION,
                             .kv_len = (enum dc_place)prng_below(p, 3),
                             .visible = chance(p, 50) ? DC_HOST : DC_REGION,
                             .pages_per_entry = 1 + prng_below(p, 3),
                             .ref_head_step = of->heads > 24 ? 5 : 1,
                             .seed = prng_u64(p)};
    for (uint32_t s = 0; s < shape.n_seqs; s++) {
        seqs[s] = of->seqs[j][s];
        seqs[s].kv_len = shape.kv_len == DC_ABSENT ? seqs[s].kv_len_max : prng_below(p, seqs[s].kv_len_max + 1);
    }
    struct dc_job *job = dc_add(c, &shape);
    job->keep_reference = true;
    for (uint32_t s = 0; s < shape.n_seqs; s++)
        if (chance(p, 15) && seqs[s].kv_len > 0)
            job->table[job->table_first[s]] = -1;
}

static struct dc *draw_case(struct prng *p, struct rig *rig, const struct plan_of *of, uint64_t plan_id)
{
    struct dc *c = dc_new(rig);
    for (uint32_t j = 0; j < of->n_jobs; j++)
        draw_job(p, of, j, c);
    c->request.splits = of->splits;
    dc_plan(c);
    c->batch.plan_id = plan_id;
    return c;
}

static void map_a_page(struct rig *rig)
{
    struct be_region page = cuda_sync_region();
    ck_assert_int_eq(cuda_ask(rig, BE_MAP, &page).code, MLA_OK);
    ck_assert_int_eq(cuda_ask(rig, BE_UNMAP, &page).code, MLA_OK);
    close(page.fd);
}

static void draw_environment(struct prng *p)
{
    static const char *const graphs[] = {"3", "1", "", "0"}, *const blobs[] = {"",       "",       "copied",
                                                                               "inline", "pinned", "pageable"};
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", graphs[prng_below(p, 4)], 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", blobs[prng_below(p, 6)], 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_PLAIN_LAUNCHES", chance(p, 50) ? "1" : "0", 1), 0);
    if (chance(p, 20)) /* no words of 64 bits by streams */
        ck_assert_int_eq(setenv("MLA_FAKE_CUDA", "attribute.122=0", 1), 0);
}

START_TEST(company_of_seed)
{
    struct prng prng = {(uint64_t)_i * 7919 + 13}, *p = &prng;
    struct plan_of plans[PLANS];
    struct dc *cases[PLANS][ALIKE];
    draw_environment(p);
    struct rig rig = chance(p, 85) ? cuda_rig() : cuda_rig_of("generic-sm_90a");
    for (uint32_t i = 0; i < PLANS; i++) {
        draw_plan(p, &plans[i]);
        for (uint32_t k = 0; k < ALIKE; k++)
            cases[i][k] = draw_case(p, &rig, &plans[i], chance(p, 90) ? 1 + i : 0);
    }
    uint32_t i = 0, behind = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct dc *together[ALIKE + 1];
        uint32_t n = 0;
        if (chance(p, 30)) {
            i = prng_below(p, PLANS);
            behind = chance(p, 50) ? prng_below(p, ALIKE) : 0;
        }
        uint32_t first = prng_below(p, ALIKE);
        for (uint32_t k = 0; k <= behind; k++)
            together[n++] = cases[i][(first + k) % ALIKE];
        if (behind != 0 && chance(p, 50))
            together[n++] = cases[(i + 1) % PLANS][0];
        for (uint32_t k = 0; k < n; k++)
            dc_ready(together[k]);
        for (uint32_t k = 0; k < n; k++)
            dc_submit(together[k]);
        if (chance(p, 15))
            map_a_page(&rig);
        for (uint32_t k = 0; k < n; k++)
            dc_wait(together[k]);
        for (uint32_t k = 0; k < n; k++)
            dc_check_all(together[k]);
    }
    for (i = 0; i < PLANS; i++)
        for (uint32_t k = 0; k < ALIKE; k++)
            dc_free(cases[i][k]);
    rig_close(&rig);
}
END_TEST

static int number_from_env(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text != NULL && *text != 0 ? (int)strtol(text, NULL, 0) : otherwise;
}

MLA_SUITE(be_cuda_company)
{
    int seed = number_from_env("MLA_TEST_SEED", 1), count = number_from_env("MLA_TEST_COUNT", 2);
    TCase *tc = mla_tcase(suite, "company");
    tcase_add_loop_test(tc, company_of_seed, seed, seed + count);
}
