/* Sequences without keys, without tokens, and lengths that lie in device memory. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

/* Every row of a sequence without visible keys: O = +0, LSE = -infinity, to the bit. */
static void assert_empty_rows(const struct dc_job *j, uint32_t s)
{
    uint32_t wrong = 0;
    for (uint32_t t = 0; t < j->q_len[s]; t++) {
        for (uint32_t h = 0; h < j->shape.heads; h++) {
            for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++)
                wrong += dc_o(j, s, t, h, i) != 0;
            wrong += dc_lse(j, s, t, h) != -INFINITY;
        }
    }
    ck_assert_msg(wrong == 0, "%u values of the empty sequence %u are not 0 or -infinity", wrong, s);
}

/* K1: three empty sequences behind five ordinary ones: O = 0 and LSE = -inf there, the others as if alone. */
START_TEST(k1_empty_sequences_behind_others)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 96,
                                     .n_seqs = 8,
                                     .seqs = SEQS({1, 300}, {1, 70}, {1, 64}, {1, 1}, {1, 129}, {1, 0}, {1, 0}, {1, 0}),
                                     .seed = 1});
    dc_run(c);
    dc_check(j);
    for (uint32_t s = 5; s < 8; s++)
        assert_empty_rows(j, s);
    for (uint32_t s = 0; s < 5; s++) {
        struct dc *alone = dc_new(&rig);
        struct dc_job *k =
            dc_add(alone, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({1, j->kv_len_max[s]})});
        for (uint32_t h = 0; h < 96; h++)
            memcpy(dc_q(k, 0, 0, h, 0), dc_q(j, s, 0, h, 0), MLA_ABI_QK_DIM);
        for (uint32_t key = 0; key < j->kv_len_max[s]; key++)
            memcpy(dc_key(k, 0, key), dc_key(j, s, key), MLA_ABI_QK_DIM);
        dc_run(alone);
        dc_check(k);
        dc_free(alone);
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K2: the table of a sequence without keys is never read: -1 everywhere is no fault. */
START_TEST(k2_table_of_an_empty_sequence)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int place = DC_HOST; place <= DC_REGION; place++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                        .n_seqs = 2,
                                                        .seqs = SEQS({1, 0, 640}, {1, 65}),
                                                        .table = (enum dc_place)place,
                                                        .kv_len = DC_REGION,
                                                        .seed = 2});
        for (uint64_t e = 0; e < j->table_first[1]; e++)
            j->table[e] = -1;
        dc_run(c);
        ck_assert_uint_eq(j->status[0], 0);
        assert_empty_rows(j, 0);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K3: forced splits do not cut what has no pages, nor divide by it. */
START_TEST(k3_empty_sequences_under_forced_splits)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(
        c,
        &(struct dc_shape){
            .heads = 96, .n_seqs = 4, .seqs = SEQS({1, 0}, {1, 1}, {1, 0}, {1, 4096}), .ref_head_step = 7, .seed = 3});
    c->request.splits = 8;
    dc_run(c);
    ck_assert_uint_eq(c->plan.max_splits, 8);
    assert_empty_rows(j, 0);
    assert_empty_rows(j, 2);
    dc_check(j);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K4: a batch of no sequences, alone and beside others, writes nothing and ends. */
START_TEST(k4_batch_without_sequences)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    dc_add(c, &(struct dc_shape){.heads = 16});
    dc_run(c);
    ck_assert_uint_eq(c->plan.n_items, 0);
    dc_check_all(c);
    dc_free(c);

    c = dc_new(&rig);
    dc_add(c, &(struct dc_shape){.heads = 16});
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({2, 70}), .seed = 4});
    dc_add(c, &(struct dc_shape){.heads = 16});
    dc_run(c);
    dc_check_all(c);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K4: q_len 0 writes nothing, kv_len 0 writes zeros, both write nothing; what stands between them is right. In every
 * layout, with lengths on the host and on the device. */
START_TEST(k4_empty_in_both_ways_between_others)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int layout = 0; layout < DC_LAYOUTS; layout++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j =
            dc_add(c, &(struct dc_shape){.heads = 12,
                                         .n_seqs = 7,
                                         .seqs = SEQS({0, 70}, {3, 130}, {0, 0}, {2, 0}, {4, 64}, {0, 1}, {1, 65}),
                                         .kv_len = layout % 2 ? DC_REGION : DC_ABSENT,
                                         .q_layout = (enum dc_layout)layout,
                                         .o_layout = (enum dc_layout)layout,
                                         .lse_layout = (enum dc_layout)layout,
                                         .user_status = true,
                                         .seed = 5});
        dc_run(c);
        assert_empty_rows(j, 3);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* More query tokens than keys: under the causal mask the first tokens see nothing. */
START_TEST(causal_with_fewer_keys_than_tokens)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 40, .n_seqs = 3, .seqs = SEQS({8, 3}, {5, 5}, {9, 1}), .seed = 6});
    dc_run(c);
    dc_check(j);
    for (uint32_t t = 0; t < 5; t++)
        ck_assert(dc_lse(j, 0, t, 0) == -INFINITY && dc_lse(j, 0, t, 39) == -INFINITY);
    ck_assert(isfinite(dc_lse(j, 0, 5, 0)));
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K24a: lengths on the device 0 .. 16 below their host bound, over page and split edges: one plan, right each time. */
START_TEST(k24a_lengths_below_their_bound)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t bound = 192; bound <= 200; bound += 8) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 6,
                                                        .n_seqs = 2,
                                                        .seqs = SEQS({4, bound}, {1, bound}),
                                                        .kv_len = DC_REGION,
                                                        .user_status = true,
                                                        .seed = bound});
        c->request.splits = 3;
        for (uint32_t below = 0; below <= 16; below++) {
            j->kv_len[0] = (int32_t)(bound - below);
            j->kv_len[1] = (int32_t)(bound - 16 + below);
            dc_run(c);
            dc_check(j);
        }
        for (int32_t len = 0; len <= 128; len += 64) { /* whole splits fall away */
            j->kv_len[0] = len;
            j->kv_len[1] = len + 1;
            dc_run(c);
            dc_check(j);
        }
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K24a: a device length of 0 is legal: zeros, no fault, and the table is not read. */
START_TEST(k24a_length_zero)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 1; splits <= 4; splits += 3) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(
            c, &(struct dc_shape){
                   .heads = 24, .n_seqs = 2, .seqs = SEQS({3, 0, 400}, {3, 400, 400}), .kv_len = DC_REGION, .seed = 7});
        c->request.splits = splits;
        dc_run(c);
        assert_empty_rows(j, 0);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* What a device length leaves out is not read: NaN keys and poisoned entries between it and the bound do not show. */
START_TEST(bits_do_not_depend_on_what_lies_past_the_length)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({4, 300}), .kv_len = DC_REGION, .seed = 8});
    c->request.splits = 2;
    j->kv_len[0] = 131;
    dc_run(c);
    dc_check(j);
    struct dc_bits before = dc_bits(j);
    for (uint32_t k = 131; k < 300; k++)
        memset(dc_key(j, 0, k), FP8_NAN, MLA_ABI_QK_DIM);
    j->table[3] = -1;
    j->table[4] = DC_ENTRY_UNUSED;
    dc_run(c);
    ck_assert_uint_eq(j->status[0], 0);
    struct dc_bits after = dc_bits(j);
    dc_assert_same(&before, &after, NULL, "what lies past the length");
    dc_bits_free(&before);
    dc_bits_free(&after);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_lengths)
{
    TCase *tc = mla_tcase(suite, "lengths");
    rig_add(tc, k1_empty_sequences_behind_others);
    rig_add(tc, k2_table_of_an_empty_sequence);
    rig_add(tc, k3_empty_sequences_under_forced_splits);
    rig_add(tc, k4_batch_without_sequences);
    rig_add(tc, k4_empty_in_both_ways_between_others);
    rig_add(tc, causal_with_fewer_keys_than_tokens);
    rig_add(tc, k24a_lengths_below_their_bound);
    rig_add(tc, k24a_length_zero);
    rig_add(tc, bits_do_not_depend_on_what_lies_past_the_length);
}
