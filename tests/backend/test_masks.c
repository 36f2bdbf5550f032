/* Which keys a token sees. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

/* NONE: every token sees every key, so equal Q gives equal rows. */
START_TEST(none_sees_all)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(
        c,
        &(struct dc_shape){.heads = 24, .n_seqs = 2, .seqs = SEQS({4, 130}, {9, 3}), .mask = MLA_MASK_NONE, .seed = 1});
    for (uint32_t t = 1; t < 4; t++)
        memcpy(dc_q(j, 0, t, 5, 0), dc_q(j, 0, 0, 5, 0), MLA_ABI_QK_DIM);
    dc_run(c);
    dc_check(j);
    for (uint32_t t = 1; t < 4; t++)
        ck_assert_float_eq(dc_lse(j, 0, t, 5), dc_lse(j, 0, 0, 5));
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* CAUSAL and VISIBLE with the counts that CAUSAL means are bit-equal, whatever way the tiles cut the tokens. */
START_TEST(causal_is_visible_with_its_counts)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t kv_len = 60; kv_len <= 70; kv_len++) {
        int32_t counts[8];
        for (uint32_t t = 0; t < 8; t++)
            counts[t] = (int32_t)(kv_len - 8 + t + 1);
        struct dc_seq seqs[1] = {{8, kv_len, 0}};
        struct dc_shape shape = {.heads = 48, .n_seqs = 1, .seqs = seqs, .ref_head_step = 12, .seed = kv_len};
        struct dc *c = dc_new(&rig);
        c->request.splits = 1;
        struct dc_job *causal = dc_add(c, &shape);
        shape.mask = MLA_MASK_VISIBLE;
        shape.visible_counts = counts;
        struct dc_job *visible = dc_add(c, &shape);
        dc_run(c);
        dc_check(causal);
        struct dc_bits a = dc_bits(causal);
        struct dc_bits b = dc_bits(visible);
        dc_assert_same(&a, &b, NULL, "CAUSAL against VISIBLE");
        dc_bits_free(&a);
        dc_bits_free(&b);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* VISIBLE: any counts, not only rising ones: 0, 1, page edges, all; host and region; heads that make a tile hold parts
 * of tokens. */
START_TEST(visible_counts_of_any_order)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t n = 0; n < 4; n++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j =
            dc_add(c, &(struct dc_shape){.heads = n % 2 ? 50 : 96,
                                         .n_seqs = 2,
                                         .seqs = SEQS({8, 200}, {3, 64}),
                                         .mask = MLA_MASK_VISIBLE,
                                         .visible = n < 2 ? DC_HOST : DC_REGION,
                                         .visible_counts = (const int32_t[]){200, 0, 64, 1, 128, 65, 63, 199, 0, 64, 7},
                                         .ref_head_step = 7,
                                         .seed = n});
        c->request.splits = n;
        dc_run(c);
        dc_check(j);
        ck_assert(dc_lse(j, 0, 1, 0) == -INFINITY);
        ck_assert(dc_lse(j, 1, 0, 0) == -INFINITY);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* NaN past a token's count is outside of what it sees, though inside the length. */
START_TEST(nan_past_the_visible_count)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 32,
                                                    .n_seqs = 1,
                                                    .seqs = SEQS({2, 200}),
                                                    .mask = MLA_MASK_VISIBLE,
                                                    .visible_counts = (const int32_t[]){100, 101},
                                                    .seed = 3});
    dc_run(c);
    dc_check(j);
    struct dc_bits before = dc_bits(j);
    for (uint32_t k = 100; k < 200; k++)
        memset(dc_key(j, 0, k), 0xff, MLA_ABI_QK_DIM);
    dc_run(c);
    dc_check(j);
    struct dc_bits after = dc_bits(j);
    ck_assert(memcmp(before.bytes, after.bytes, (size_t)32 * before.row_bytes) == 0);
    ck_assert(isnan(dc_lse(j, 0, 1, 0)));
    dc_bits_free(&before);
    dc_bits_free(&after);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* K25: key j of the context lies in shard j % 2; a token that sees n keys sees ceil(n / 2) and floor(n / 2) of them.
 * The shards decoded under VISIBLE and merged by LSE equal the unsharded causal result. */
static void context_shards(struct rig *rig, uint32_t kv_len, uint32_t splits)
{
    const uint32_t heads = 24;
    int32_t counts[2][4];
    for (uint32_t t = 0; t < 4; t++) {
        uint32_t n = kv_len - 4 + t + 1;
        counts[0][t] = (int32_t)((n + 1) / 2);
        counts[1][t] = (int32_t)(n / 2);
    }
    struct dc_seq whole_seq[1] = {{4, kv_len, 0}};
    struct dc *c = dc_new(rig);
    c->request.splits = splits;
    struct dc_job *whole =
        dc_add(c, &(struct dc_shape){.heads = heads, .n_seqs = 1, .seqs = whole_seq, .seed = kv_len});
    struct dc_job *shard[2];
    for (uint32_t i = 0; i < 2; i++) {
        struct dc_seq seq[1] = {{4, (kv_len + 1 - i) / 2, 0}};
        shard[i] = dc_add(c, &(struct dc_shape){.heads = heads,
                                                .n_seqs = 1,
                                                .seqs = seq,
                                                .mask = MLA_MASK_VISIBLE,
                                                .visible_counts = counts[i],
                                                .visible = i ? DC_REGION : DC_HOST});
        for (uint32_t t = 0; t < 4; t++)
            for (uint32_t h = 0; h < heads; h++)
                memcpy(dc_q(shard[i], 0, t, h, 0), dc_q(whole, 0, t, h, 0), MLA_ABI_QK_DIM);
        for (uint32_t k = i; k < kv_len; k += 2)
            memcpy(dc_key(shard[i], 0, k / 2), dc_key(whole, 0, k), MLA_ABI_QK_DIM);
    }
    dc_run(c);
    dc_check_all(c);
    double error2 = 0;
    double norm2 = 0;
    for (uint32_t t = 0; t < 4; t++) {
        for (uint32_t h = 0; h < heads; h++) {
            double a = dc_lse(shard[0], 0, t, h);
            double b = dc_lse(shard[1], 0, t, h);
            double top = fmax(a, b);
            double wa = exp(a - top);
            double wb = exp(b - top);
            ck_assert_double_eq_tol(top + log(wa + wb), dc_lse(whole, 0, t, h),
                                    fmin(rig->accuracy, REF_LSE_E4M3_P) * 10);
            for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++) {
                double merged = (wa * dc_o(shard[0], 0, t, h, i) + wb * dc_o(shard[1], 0, t, h, i)) / (wa + wb);
                double want = dc_o(whole, 0, t, h, i);
                error2 += (merged - want) * (merged - want);
                norm2 += want * want;
            }
        }
    }
    ck_assert_double_le(sqrt(error2 / norm2), fmin(rig->accuracy, 2 * REF_L2_E4M3_P));
    dc_free(c);
}

START_TEST(k25_context_shards)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t lengths[] = {4, 5, 127, 128, 131, 400};
    for (size_t i = 0; i < 6; i++)
        context_shards(&rig, lengths[i], (uint32_t)i % 3);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_masks)
{
    TCase *tc = mla_tcase(suite, "masks");
    rig_add(tc, none_sees_all);
    rig_add(tc, causal_is_visible_with_its_counts);
    rig_add(tc, visible_counts_of_any_order);
    rig_add(tc, nan_past_the_visible_count);
    rig_add(tc, k25_context_shards);
}
