/* What a row's bits depend on in the CPU backend: its own Q, its keys and the plan; not on threads, nor on other rows.
 */
#include <math.h>
#include <string.h>

#include "daemon/backend/backend.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

static struct rig open_threads(uint32_t threads)
{
    struct rig rig;
    struct be_config config = {.threads = threads, .workspace_bytes = 64u << 20};
    int index = 0;
    while (be_all[index] && strcmp(be_all[index]->name, "cpu") != 0)
        index++;
    ck_assert_ptr_nonnull(be_all[index]);
    ck_assert(rig_open_config(&rig, index, &config));
    return rig;
}

static const struct dc_shape ragged = {.heads = 96,
                                       .n_seqs = 4,
                                       .seqs = (const struct dc_seq[]){{8, 700}, {3, 65}, {1, 1}, {4, 1300}},
                                       .ref_head_step = 50,
                                       .seed = 21};

/* The device that a plan is made for is part of the plan: the same one for every number of threads. */
static struct dc_bits run_on(uint32_t threads, uint32_t splits)
{
    struct rig rig = open_threads(threads);
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &ragged);
    c->request.splits = splits;
    c->request.device.sms = c->request.device.resident_units = 4;
    dc_run(c);
    dc_check(j);
    struct dc_bits bits = dc_bits(j);
    dc_free(c);
    rig_close(&rig);
    return bits;
}

START_TEST(threads_do_not_matter)
{
    for (uint32_t splits = 1; splits <= 5; splits += 4) {
        struct dc_bits one = run_on(1, splits);
        for (uint32_t threads = 2; threads <= 5; threads++) {
            struct dc_bits many = run_on(threads, splits);
            dc_assert_same(&one, &many, NULL, "another number of threads");
            dc_bits_free(&many);
        }
        dc_bits_free(&one);
    }
}
END_TEST

START_TEST(runs_repeat)
{
    struct rig rig = open_threads(3);
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &ragged);
    c->request.splits = 3;
    dc_run(c);
    struct dc_bits first = dc_bits(j);
    for (int i = 0; i < 20; i++) {
        dc_run(c);
        struct dc_bits again = dc_bits(j);
        dc_assert_same(&first, &again, NULL, "a repeat");
        dc_bits_free(&again);
    }
    dc_bits_free(&first);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* All other rows of the tile get other Q, NaN among them: row (0, 5) stays. */
START_TEST(neighbours_do_not_matter)
{
    struct rig rig = open_threads(2);
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 64, .n_seqs = 1, .seqs = SEQS({4, 500}), .seed = 4});
    dc_run(c);
    double before[512];
    float lse = dc_lse(j, 0, 1, 5);
    for (uint32_t e = 0; e < 512; e++)
        before[e] = dc_o(j, 0, 1, 5, e);
    struct prng prng = {99};
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t h = 0; h < 64; h++)
            for (uint32_t e = 0; e < 576 && (t != 1 || h != 5); e++)
                *dc_q(j, 0, t, h, e) = h % 7 == 3 ? FP8_NAN : (uint8_t)(prng_u64(&prng) & 0x7b);
    dc_run(c);
    ck_assert_float_eq(dc_lse(j, 0, 1, 5), lse);
    for (uint32_t e = 0; e < 512; e++)
        ck_assert_double_eq(dc_o(j, 0, 1, 5, e), before[e]);
    ck_assert(isnan(dc_o(j, 0, 1, 3, 0)) && isnan(dc_lse(j, 0, 1, 3)));
    ck_assert(!isnan(dc_o(j, 0, 1, 4, 0)));
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* NaN in the last keys, in the latent and in the rope part: a token that sees one is NaN, an earlier one has the bits
 * it had before. */
START_TEST(nan_keys_stay_where_they_are_seen)
{
    struct rig rig = open_threads(2);
    for (uint32_t element = 0; element < 576; element += 575) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 64, .n_seqs = 1, .seqs = SEQS({4, 200}), .seed = 8});
        c->request.splits = element == 0 ? 1 : 3;
        dc_run(c);
        double before[64][2];
        float lse[64];
        for (uint32_t h = 0; h < 64; h++) {
            lse[h] = dc_lse(j, 0, 0, h);
            before[h][0] = dc_o(j, 0, 0, h, 0);
            before[h][1] = dc_o(j, 0, 0, h, 511);
        }
        for (uint32_t key = 197; key < 200; key++)
            dc_key(j, 0, key)[element] = FP8_NAN | (key & 1 ? 0x80 : 0);
        dc_run(c);
        for (uint32_t h = 0; h < 64; h++) {
            ck_assert_float_eq(dc_lse(j, 0, 0, h), lse[h]);
            ck_assert_double_eq(dc_o(j, 0, 0, h, 0), before[h][0]);
            ck_assert_double_eq(dc_o(j, 0, 0, h, 511), before[h][1]);
            for (uint32_t t = 1; t < 4; t++)
                ck_assert(isnan(dc_o(j, 0, t, h, 0)) && isnan(dc_o(j, 0, t, h, 511)) && isnan(dc_lse(j, 0, t, h)));
        }
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* Many items of one sequence meet bad entries at the same time; the smallest index is told every time. */
START_TEST(smallest_fault_wins)
{
    struct rig rig = open_threads(4);
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(
        c, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({8, 32 * 64}), .user_status = true, .seed = 5});
    c->request.splits = 16;
    dc_plan(c);
    for (uint32_t e = 3; e < 32; e++)
        j->table[j->table_first[0] + e] = -1;
    for (int i = 0; i < 30; i++) {
        dc_run(c);
        ck_assert_uint_eq(j->status[0], dc_fault(MLA_PAGE_OUT_OF_RANGE, 3));
        ck_assert_uint_eq(j->user_status[0], j->status[0]);
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_bits)
{
    TCase *tc = mla_tcase_timeout(suite, "bits", 60);
    tcase_add_test(tc, threads_do_not_matter);
    tcase_add_test(tc, runs_repeat);
    tcase_add_test(tc, neighbours_do_not_matter);
    tcase_add_test(tc, nan_keys_stay_where_they_are_seen);
    tcase_add_test(tc, smallest_fault_wins);
}
