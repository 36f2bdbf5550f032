/* Launches of few rows take kernels of their own: chosen by be_fit(), launched by the plan. On the fake driver, which
 * checks that records and grid are of the same kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define FIRST_ROWS 128u
#define SEQS_MOST  150u

/* A job of n sequences of q_len queries, short ones. */
static struct dc_job *add(struct dc *c, uint32_t heads, uint32_t q_len, uint32_t n, uint64_t seed)
{
    struct dc_seq seqs[SEQS_MOST];
    for (uint32_t s = 0; s < n; s++)
        seqs[s] = (struct dc_seq){q_len, 60 + s % 10, 0};
    return dc_add(c, &(struct dc_shape){.heads = heads,
                                        .n_seqs = n,
                                        .seqs = seqs,
                                        .pages = DC_ALIAS,
                                        .num_pages = 4,
                                        .user_status = true,
                                        .ref_head_step = heads / 3,
                                        .seed = seed});
}

static struct dc *new_case(struct rig *rig, uint32_t heads, uint32_t q_len, uint32_t n, uint64_t seed)
{
    struct dc *c = dc_new(rig);
    add(c, heads, q_len, n, seed);
    return c;
}

/* By heads and queries; more units than run at the same time, so that clusters have several. */
START_TEST(each_takes_its_own)
{
    static const struct {
        uint32_t heads, q_len, n, rows;
    } shapes[] = {{12, 4, 5, 48}, {96, 4, 2, FIRST_ROWS}, {12, 1, 140, 32}, {65, 1, 70, 96},
                  {24, 1, 3, 32}, {24, 4, 3, 96},         {16, 1, 1, 32},   {16, 4, 140, 64}};
    struct rig rig = cuda_rig();
    ck_assert_uint_eq(rig.facts->device.rows_per_unit, FIRST_ROWS);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        struct dc *c = new_case(&rig, shapes[i].heads, shapes[i].q_len, shapes[i].n, i);
        c->request.splits = shapes[i].n == 1 ? 2 : 0;
        dc_run(c);
        ck_assert_uint_eq(c->plan.rows_per_unit, shapes[i].rows);
        uint32_t ctas = shapes[i].rows > 64 ? 2 : 1;
        ck_assert_uint_eq(c->request.device.ctas_per_unit, ctas);
        ck_assert_uint_eq(c->request.device.resident_units, 132 / ctas);
        dc_check_all(c);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* Jobs of several numbers of queries: what is less for all together. */
START_TEST(company)
{
    struct rig rig = cuda_rig();
    for (int i = 0; i < 2; i++) {
        struct dc *c = dc_new(&rig);
        add(c, 32, 4, i == 0 ? 20 : 1, 1);
        add(c, 32, 1, i == 0 ? 1 : 20, 2);
        dc_run(c);
        ck_assert_uint_eq(c->plan.rows_per_unit, i == 0 ? FIRST_ROWS : 32);
        dc_check_all(c);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* All kinds in turn on the same stream, slots and workspace; records are written over those of other kinds, and
 * over their own. */
START_TEST(in_turn)
{
    enum { CASES = 5, ROUNDS = 4 };
    struct rig rig = cuda_rig();
    struct dc *c[CASES];
    for (uint32_t i = 0; i < CASES; i++) {
        static const uint32_t rows[CASES] = {32, FIRST_ROWS, 48, 96, 64};
        c[i] = i % 2 ? new_case(&rig, i == 1 ? 128 : 96, 1, 1, i) : new_case(&rig, 16 + 12 * i, 1, 68 + i, i);
        c[i]->request.splits = 1 + i % 2;
        dc_plan(c[i]);
        ck_assert_uint_eq(c[i]->plan.rows_per_unit, rows[i]);
        c[i]->batch.plan_id = 1 + i;
    }
    ck_assert(cuda_fake_rules("kernel=delay 1"));
    for (uint32_t round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < CASES; i++)
            dc_launch(c[i]);
        for (uint32_t i = 0; i < CASES; i++)
            dc_wait(c[i]);
        for (uint32_t i = round % 2; i < CASES; i += 2)
            dc_check_all(c[i]);
    }
    for (uint32_t i = 0; i < CASES; i++)
        dc_free(c[i]);
    rig_close(&rig);
}
END_TEST

/* Kinds of which the device cannot run a whole tile at a time are not there: units of 96 and of 48 rows do not divide
 * one, so that it takes a unit more than it has rows of them. */
START_TEST(tiles_fit_the_device)
{
    static const uint32_t heads[] = {32, 48, 64, 96, 128};
    char sms[16];
    snprintf(sms, sizeof sms, "sms=%d", _i);
    ck_assert_int_eq(setenv("MLA_FAKE_CUDA", sms, 1), 0);
    struct rig rig = cuda_rig();
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        struct dc *c = new_case(&rig, heads[i], 1, 3, i);
        dc_run(c);
        uint32_t rows = c->plan.rows_per_unit;
        ck_assert_uint_le((c->request.tile_rows + rows - 1) / rows, c->request.device.resident_units);
        dc_check_all(c);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* What the scheduler adds up is enough for any. */
START_TEST(scratch_is_for_any)
{
    struct rig rig = cuda_rig();
    struct plan_seq seqs[] = {{1, 500}, {9, 100000}, {3, 0}};
    struct plan_job job = {.n_seqs = 3, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {.device = rig.facts->device,
                                   .costs = rig.facts->costs,
                                   .policy = PLAN_AUTO,
                                   .tile_rows = rig.facts->tile_rows,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = 3};
    for (request.heads = 1; request.heads <= 128; request.heads++) {
        request.device = rig.facts->device;
        uint64_t before = be_scratch_bytes(&rig.be, &request);
        be_fit(&rig.be, &request);
        ck_assert_uint_eq(be_scratch_bytes(&rig.be, &request), before);
        ck_assert_uint_gt(before, 0);
    }
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_few_rows)
{
    TCase *tc = mla_tcase(suite, "few_rows");
    tcase_add_test(tc, each_takes_its_own);
    tcase_add_test(tc, company);
    tcase_add_test(tc, in_turn);
    tcase_add_loop_test(tc, tiles_fit_the_device, 4, 9);
    tcase_add_test(tc, scratch_is_for_any);
}
