/* Nothing outside the visible keys reaches the output; what is NaN inside them is NaN in the rows that see it only. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

static bool row_is_nan(const struct dc_job *j, uint32_t s, uint32_t t, uint32_t h)
{
    for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++)
        if (!isnan(dc_o(j, s, t, h, i)))
            return false;
    return isnan(dc_lse(j, s, t, h));
}

/* K5: rows 1 .. 63 of the last page: all 0x7f, all 0xff or all zero give the same bits. */
START_TEST(k5_bytes_past_the_length_in_the_last_page)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({1, 65}), .seed = 1});
    struct dc_bits bits[3];
    const uint8_t fill[3] = {0x7f, 0x00, 0xff};
    for (int i = 0; i < 3; i++) {
        memset(dc_key(j, 0, 64) + MLA_ABI_QK_DIM, fill[i], 63 * MLA_ABI_QK_DIM);
        dc_run(c);
        dc_check(j);
        bits[i] = dc_bits(j);
        dc_assert_same(&bits[0], &bits[i], NULL, "bytes past the length");
    }
    for (int i = 0; i < 3; i++)
        dc_bits_free(&bits[i]);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K6: a neighbour whose every page is NaN leaves the first sequence bit-equal, and is NaN itself. */
START_TEST(k6_neighbour_of_nan)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j =
        dc_add(c, &(struct dc_shape){.heads = 96, .n_seqs = 2, .seqs = SEQS({1, 65}, {1, 64}), .seed = 2});
    dc_run(c);
    dc_check(j);
    struct dc_bits before = dc_bits(j);
    for (uint32_t k = 0; k < 64; k++)
        memset(dc_key(j, 1, k), 0x7f, MLA_ABI_QK_DIM);
    dc_run(c);
    dc_check(j);
    struct dc_bits after = dc_bits(j);
    ck_assert(dc_bits_same_seq(&before, 0, &after, 0));
    for (uint32_t h = 0; h < 96; h++)
        ck_assert(row_is_nan(j, 1, 0, h));
    dc_bits_free(&before);
    dc_bits_free(&after);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K7: entries past the needed ones are never used: any value there is no fault and changes no bit. */
START_TEST(k7_entries_past_the_needed_ones)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int place = DC_HOST; place <= DC_REGION; place++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                        .n_seqs = 4,
                                                        .seqs = SEQS({1, 64}, {1, 65}, {1, 192}, {1, 193}),
                                                        .table = (enum dc_place)place,
                                                        .seed = 3});
        struct dc_bits bits[3];
        const int32_t past[3] = {DC_ENTRY_UNUSED, 0, -1};
        for (int i = 0; i < 3; i++) {
            for (uint32_t s = 0; s < 4; s++)
                j->table[j->table_first[s + 1] - 1] = past[i];
            dc_run(c);
            dc_check(j);
            bits[i] = dc_bits(j);
            dc_assert_same(&bits[0], &bits[i], NULL, "entries past the needed ones");
        }
        for (int i = 0; i < 3; i++)
            dc_bits_free(&bits[i]);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K17: V of the last four keys is 64, 128, 192, 256, all others 0, uniform weights: token t gets exactly
 * 64 * (1 + ... + t + 1) / (kv_len - 3 + t), and nothing of a key past its own. */
START_TEST(k17_each_token_sees_up_to_its_own_key)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t lengths[] = {5, 64, 65, 66, 67, 68, 500};
    for (size_t n = 0; n < sizeof(lengths) / sizeof(lengths[0]); n++) {
        uint32_t kv_len = lengths[n];
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({4, kv_len})});
        dc_fill_q(j, 0);
        dc_fill_keys(j, 0);
        for (uint32_t i = 0; i < 4; i++)
            memset(dc_key(j, 0, kv_len - 4 + i), fp8_encode(64.0 * (i + 1)), MLA_ABI_V_DIM);
        dc_run(c);
        for (uint32_t t = 0; t < 4; t++) {
            double want = 32.0 * (t + 1) * (t + 2) / (kv_len - 3 + t);
            for (uint32_t h = 0; h < 96; h += 19)
                ck_assert_double_eq_tol(dc_o(j, 0, t, h, h), want, want * rig.accuracy);
        }
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K17b: the last three keys of a Q4 sequence are NaN. Token 0 sees none of them: bit-equal to the same with zeros
 * there; tokens 1 .. 3 are NaN. One split and several, so that the NaN also passes the reducer. */
START_TEST(k17b_nan_in_the_keys_of_later_tokens)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 1; splits <= 3; splits++) {
        for (uint32_t kv_len = 65; kv_len <= 195; kv_len += 65) {
            struct dc *c = dc_new(&rig);
            struct dc_job *j =
                dc_add(c, &(struct dc_shape){.heads = 48, .n_seqs = 1, .seqs = SEQS({4, kv_len}), .seed = kv_len});
            c->request.splits = splits;
            for (uint32_t k = kv_len - 3; k < kv_len; k++)
                memset(dc_key(j, 0, k), 0, MLA_ABI_QK_DIM);
            dc_run(c);
            dc_check(j);
            struct dc_bits zeros = dc_bits(j);
            for (uint32_t k = kv_len - 3; k < kv_len; k++)
                memset(dc_key(j, 0, k), FP8_NAN, MLA_ABI_QK_DIM);
            dc_run(c);
            dc_check(j);
            struct dc_bits nans = dc_bits(j);
            ck_assert_msg(memcmp(zeros.bytes, nans.bytes, (size_t)48 * zeros.row_bytes) == 0,
                          "token 0 sees no NaN, but its bits changed (kv_len %u, splits %u)", kv_len, splits);
            for (uint32_t t = 1; t < 4; t++)
                for (uint32_t h = 0; h < 48; h++)
                    ck_assert_msg(row_is_nan(j, 0, t, h), "token %u head %u sees a NaN key and is not NaN", t, h);
            dc_bits_free(&zeros);
            dc_bits_free(&nans);
            dc_free(c);
        }
    }
    rig_close(&rig);
}
END_TEST

/* One NaN byte, in the latent part or in the rope part of one visible key: every row that sees the key is NaN. */
START_TEST(one_nan_byte_of_a_visible_key)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t at[] = {0, 511, 512, 575};
    for (size_t n = 0; n < 4; n++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 12, .n_seqs = 2, .seqs = SEQS({2, 130}, {1, 130})});
        c->request.splits = n % 2 ? 2 : 0;
        dc_key(j, 0, 70)[at[n]] = 0xff;
        dc_run(c);
        dc_check(j);
        ck_assert(row_is_nan(j, 0, 0, 0) && row_is_nan(j, 0, 1, 11));
        ck_assert(!isnan(dc_lse(j, 1, 0, 0)));
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* NaN in Q is NaN in that row and in no other of its tile, to the bit; also as bytes of an e4m3 output. */
START_TEST(nan_in_one_row_of_q)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t types[] = {MLA_DTYPE_F32, MLA_DTYPE_BF16, MLA_DTYPE_E4M3};
    for (uint32_t n = 0; n < 6; n++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 16,
                                                        .n_seqs = 1,
                                                        .seqs = SEQS({3, 200}),
                                                        .out_type = types[n % 3],
                                                        .split_rope = n >= 3,
                                                        .seed = n});
        c->request.splits = n % 2 ? 3 : 1;
        dc_run(c);
        struct dc_bits before = dc_bits(j);
        *dc_q(j, 0, 1, 5, n >= 3 ? 530 : 17) = FP8_NAN;
        dc_run(c);
        dc_check(j);
        struct dc_bits after = dc_bits(j);
        for (uint32_t r = 0; r < 48; r++) {
            size_t row = (size_t)r * before.row_bytes;
            if (r == 16 + 5)
                ck_assert(row_is_nan(j, 0, 1, 5));
            else
                ck_assert_msg(memcmp(before.bytes + row, after.bytes + row, before.row_bytes) == 0, "row %u changed",
                              r);
        }
        dc_bits_free(&before);
        dc_bits_free(&after);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* A row's bits do not depend on the other rows of its tile: other Q there, same bits here. */
START_TEST(bits_of_a_row_do_not_depend_on_its_neighbours)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 24, .n_seqs = 1, .seqs = SEQS({2, 333}), .seed = 9});
    dc_run(c);
    struct dc_bits before = dc_bits(j);
    for (uint32_t h = 0; h < 24; h++)
        if (h != 7)
            memset(dc_q(j, 0, 0, h, 0), fp8_encode(3.0 * h - 20), MLA_ABI_QK_DIM);
    dc_run(c);
    dc_check(j);
    struct dc_bits after = dc_bits(j);
    ck_assert(memcmp(before.bytes + 7 * (size_t)before.row_bytes, after.bytes + 7 * (size_t)before.row_bytes,
                     before.row_bytes) == 0);
    ck_assert(memcmp(before.bytes + 24 * (size_t)before.row_bytes, after.bytes + 24 * (size_t)before.row_bytes,
                     24 * (size_t)before.row_bytes) == 0);
    dc_bits_free(&before);
    dc_bits_free(&after);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_tails)
{
    TCase *tc = mla_tcase(suite, "tails and NaN");
    rig_add(tc, k5_bytes_past_the_length_in_the_last_page);
    rig_add(tc, k6_neighbour_of_nan);
    rig_add(tc, k7_entries_past_the_needed_ones);
    rig_add(tc, k17_each_token_sees_up_to_its_own_key);
    rig_add(tc, k17b_nan_in_the_keys_of_later_tokens);
    rig_add(tc, one_nan_byte_of_a_visible_key);
    rig_add(tc, nan_in_one_row_of_q);
    rig_add(tc, bits_of_a_row_do_not_depend_on_its_neighbours);
}
