/* Values that are known: exact ones where the inputs allow it, closed forms, and long sums. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define LN_OCTAVE 0.6931471805599453

/* K11: q = 0 and V = ones: O is 1, whatever the length; exactly so as e4m3 and bf16, and LSE is ln(kv_len). */
START_TEST(k11_uniform_weights_of_ones)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    const uint32_t types[] = {MLA_DTYPE_F32, MLA_DTYPE_BF16, MLA_DTYPE_E4M3};
    const uint32_t lengths[] = {1, 16, 64, 100, 1000};
    for (uint32_t n = 0; n < 15; n++) {
        struct dc_seq seqs[1] = {{1, lengths[n / 3], 0}};
        struct dc *c = dc_new(&rig);
        struct dc_job *j =
            dc_add(c, &(struct dc_shape){
                          .heads = 96, .n_seqs = 1, .seqs = seqs, .mask = MLA_MASK_NONE, .out_type = types[n % 3]});
        dc_fill_q(j, 0);
        dc_fill_keys(j, FP8_ONE);
        dc_run(c);
        double worst = 0;
        for (uint32_t h = 0; h < 96; h++)
            for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++)
                worst = fmax(worst, fabs(dc_o(j, 0, 0, h, i) - 1));
        ck_assert_double_le(worst, n % 3 == 0 ? 1e-6 : 0);
        ck_assert_double_eq_tol(dc_lse(j, 0, 0, 95), log(lengths[n / 3]), 1e-6);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* One heavy key of weight 1 (the first), 32,768 light ones of weight 2^-10.5, spread over pages by an aliased table. */
static struct dc_job *heavy_and_light(struct dc *c, uint8_t v_heavy, uint8_t v_light)
{
    int32_t ids[513];
    for (int i = 0; i < 513; i++)
        ids[i] = i == 0 ? 0 : 1;
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 12,
                                                    .n_seqs = 1,
                                                    .seqs = SEQS({1, 32769}),
                                                    .mask = MLA_MASK_NONE,
                                                    .softmax_scale = (float)(10.5 * LN_OCTAVE / 8),
                                                    .num_pages = 2,
                                                    .page_ids = ids,
                                                    .ref_head_step = 11});
    dc_fill_q(j, 0);
    for (uint32_t h = 0; h < 12; h++)
        *dc_q(j, 0, 0, h, MLA_ABI_V_DIM) = FP8_ONE;
    for (uint32_t k = 0; k < 128; k++) {
        memset(dc_key(j, 0, k), v_light, MLA_ABI_V_DIM);
        memset(dc_key(j, 0, k) + MLA_ABI_V_DIM, 0, MLA_ABI_QK_DIM - MLA_ABI_V_DIM);
    }
    memset(dc_key(j, 0, 0), v_heavy, MLA_ABI_V_DIM);
    dc_key(j, 0, 0)[MLA_ABI_V_DIM] = fp8_encode(8);
    return j;
}

static double heavy_and_light_o(struct rig *rig, uint8_t v_heavy, uint8_t v_light, uint32_t splits)
{
    struct dc *c = dc_new(rig);
    struct dc_job *j = heavy_and_light(c, v_heavy, v_light);
    c->request.splits = splits;
    dc_run(c);
    dc_check(j);
    double o = dc_o(j, 0, 0, 3, 77);
    dc_free(c);
    return o;
}

/* K12: V = ones: O = 1 within 1 % (an e4m3 cast of P, summed unrounded, loses the light keys). */
START_TEST(k12_one_heavy_key_among_light_ones)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    ck_assert_double_eq_tol(heavy_and_light_o(&rig, FP8_ONE, FP8_ONE, 0), 1, 0.01);
    ck_assert_double_eq_tol(heavy_and_light_o(&rig, FP8_ONE, FP8_ONE, 1), 1, 0.01);
    rig_close(&rig);
}
END_TEST

/* K12b: V = 0 at the heavy key: 0.9577 within 1 %; V = 1 only there: 0.0423 within 5 %. */
START_TEST(k12b_weight_of_the_light_keys)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 0; splits <= 1; splits++) {
        ck_assert_double_eq_tol(heavy_and_light_o(&rig, 0, FP8_ONE, splits), 0.9577, 0.009577);
        ck_assert_double_eq_tol(heavy_and_light_o(&rig, FP8_ONE, 0, splits), 0.0423, 0.002115);
    }
    rig_close(&rig);
}
END_TEST

/* K13: V = 1 for the first half of 131,072 keys, -0.875 for the second, uniform weights; 1 and 32 splits: 0.0625. */
START_TEST(k13_long_sum_that_cancels)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    static int32_t ids[2048];
    for (int i = 0; i < 2048; i++)
        ids[i] = i < 1024 ? 0 : 1;
    for (uint32_t splits = 1; splits <= 32; splits += 31) {
        struct dc *c = dc_new(&rig);
        c->request.tile_rows = 64;
        c->request.splits = splits;
        struct dc_job *j = dc_add(
            c, &(struct dc_shape){.heads = 2, .n_seqs = 1, .seqs = SEQS({1, 131072}), .num_pages = 2, .page_ids = ids});
        dc_fill_q(j, 0);
        for (uint32_t k = 0; k < 64; k++) {
            memset(dc_key(j, 0, k), FP8_ONE, MLA_ABI_QK_DIM);
            memset(dc_key(j, 0, 65536 + k), fp8_encode(-0.875), MLA_ABI_QK_DIM);
        }
        dc_run(c);
        ck_assert_uint_eq(c->plan.max_splits, splits);
        for (uint32_t i = 0; i < MLA_ABI_V_DIM; i += 73)
            ck_assert_double_eq_tol(dc_o(j, 0, 0, 1, i), 0.0625, 0.000625);
        ck_assert_double_eq_tol(dc_lse(j, 0, 0, 0), log(131072), 1e-4);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K13b at one mean: relative L2 error at most 0.5 % with f32 output, one split and chosen splits. Where P is rounded,
 * keys must not repeat: their roundings would, and would not average out as the case means them to. */
static void channel_means(struct rig *rig, uint32_t kv_len, double mean, bool per_channel)
{
    struct dc *c = dc_new(rig);
    c->request.tile_rows = 64;
    struct dc_seq seqs[1] = {{1, kv_len, 0}};
    uint32_t num_pages = rig->accuracy >= REF_ACCURACY_E4M3_P ? kv_len / 64 : 128;
    struct dc_shape shape = {
        .heads = 2, .n_seqs = 1, .seqs = seqs, .pages = DC_ALIAS, .num_pages = num_pages, .kv_mean = mean, .seed = 13};
    struct dc_job *j = dc_add(c, &shape);
    if (per_channel) {
        struct prng prng = {131};
        double means[MLA_ABI_QK_DIM];
        for (uint32_t i = 0; i < MLA_ABI_QK_DIM; i++)
            means[i] = prng_normal(&prng);
        for (uint32_t k = 0; k < num_pages * 64; k++)
            for (uint32_t i = 0; i < MLA_ABI_QK_DIM; i++)
                dc_key(j, 0, k)[i] = fp8_encode(means[i] + prng_normal(&prng));
    }
    for (uint32_t splits = 0; splits <= 1; splits++) {
        struct ref_report report;
        dc_replan(c);
        c->request.splits = splits;
        dc_run(c);
        dc_compare(j, &report);
        j->keep_reference = true;
        ck_assert_msg(report.rel_l2 <= 0.005, "relative L2 error %.4g at mean %g, kv_len %u", report.rel_l2, mean,
                      kv_len);
        dc_check(j);
    }
    dc_free(c);
}

/* Sanitizers look at the same code, not at how far a sum of so many keys drifts. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define K13B_KEYS 16384 /* half of it still fills the 128 pages of channel_means() */
#else
#define K13B_KEYS 131072
#endif

/* K13b: q ~ N(0, 1), KV ~ N(mean, 1). */
START_TEST(k13b_channel_means)
{
    const double means[] = {0, 0.25, 0.5, 1};
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (size_t i = 0; i < 4; i++) {
        channel_means(&rig, K13B_KEYS / 2, means[i], false);
        channel_means(&rig, K13B_KEYS, means[i], false);
    }
    rig_close(&rig);
}
END_TEST

/* K13b: a mean per channel, drawn from N(0, 1). */
START_TEST(k13b_a_mean_per_channel)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    channel_means(&rig, K13B_KEYS / 2, 0, true);
    channel_means(&rig, K13B_KEYS, 0, true);
    rig_close(&rig);
}
END_TEST

/* K13c: scores of standard deviation 1, 2 and 4 (few keys carry the weight, the maximum moves). */
START_TEST(k13c_peaked_scores)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t std = 1; std <= 4; std *= 2) {
        for (uint32_t splits = 0; splits <= 1; splits++) {
            struct dc *c = dc_new(&rig);
            struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 8,
                                                            .n_seqs = 1,
                                                            .seqs = SEQS({4, 8192}),
                                                            .softmax_scale = (float)std / 24,
                                                            .pages = DC_ALIAS,
                                                            .num_pages = 64,
                                                            .ref_head_step = 4,
                                                            .seed = std});
            c->request.splits = splits;
            dc_run(c);
            dc_check(j);
            dc_free(c);
        }
    }
    rig_close(&rig);
}
END_TEST

/* Each page's scores are 3 octaves above (or below) the last one's: the running maximum moves at every page. */
static void score_ramp(struct rig *rig, bool falling, uint32_t splits)
{
    const uint32_t pages = 48;
    struct dc *c = dc_new(rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 8,
                                                    .n_seqs = 1,
                                                    .seqs = SEQS({2, 48 * 64 - 9}),
                                                    .softmax_scale = (float)(3 * LN_OCTAVE),
                                                    .seed = 48});
    c->request.splits = splits;
    dc_fill_q(j, 0);
    for (uint32_t t = 0; t < 2; t++)
        for (uint32_t h = 0; h < 8; h++)
            for (uint32_t i = 0; i < 4; i++)
                *dc_q(j, 0, t, h, MLA_ABI_V_DIM + i) = FP8_ONE;
    for (uint32_t k = 0; k < 48 * 64 - 9; k++) {
        uint32_t rest = falling ? pages - 1 - k / 64 : k / 64;
        memset(dc_key(j, 0, k) + MLA_ABI_V_DIM, 0, MLA_ABI_QK_DIM - MLA_ABI_V_DIM);
        for (uint32_t i = 0; i < 4; i++) { /* whole numbers up to 16 are exact in e4m3 */
            uint32_t part = rest < 16 ? rest : 16;
            dc_key(j, 0, k)[MLA_ABI_V_DIM + i] = fp8_encode(part);
            rest -= part;
        }
    }
    dc_run(c);
    dc_check(j);
    dc_free(c);
}

/* K13c: rising scores, falling scores. */
START_TEST(k13c_rising_and_falling_scores)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (uint32_t splits = 1; splits <= 5; splits += 4) {
        score_ramp(&rig, false, splits);
        score_ramp(&rig, true, splits);
    }
    rig_close(&rig);
}
END_TEST

/* Scores far from zero: a row whose scores are all very negative still sums to 1; LSE follows. */
START_TEST(scores_far_below_zero)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int sign = -1; sign <= 1; sign += 2) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j =
            dc_add(c, &(struct dc_shape){.heads = 4, .n_seqs = 1, .seqs = SEQS({1, 200}), .softmax_scale = 1});
        dc_fill_q(j, 0);
        for (uint32_t h = 0; h < 4; h++)
            *dc_q(j, 0, 0, h, 575) = fp8_encode(sign * 32.0);
        for (uint32_t k = 0; k < 200; k++)
            dc_key(j, 0, k)[575] = fp8_encode(32);
        c->request.splits = 2;
        j->out.accuracy += 0x1p-13; /* an f32 LSE near 1024 is that coarse, and partials are weighted by it */
        dc_run(c);
        ck_assert_double_eq_tol(dc_lse(j, 0, 0, 0), sign * 1024.0 + log(200), 1e-3);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K19: q_scale 2 with kv_scale 0.5 against 1 with 1: LSE bit-equal, O exactly half. */
START_TEST(k19_scales_of_q_and_kv)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_shape shape = {
        .heads = 96, .n_seqs = 2, .seqs = SEQS({2, 300}, {1, 64}), .ref_head_step = 19, .seed = 19};
    struct dc_job *one = dc_add(c, &shape);
    shape.q_scale = 2;
    shape.kv_scale = 0.5f;
    struct dc_job *other = dc_add(c, &shape);
    c->request.splits = 2;
    dc_run(c);
    dc_check(one);
    dc_check(other);
    uint32_t wrong = 0;
    for (uint32_t h = 0; h < 96; h++) {
        wrong += dc_lse(one, 0, 1, h) != dc_lse(other, 0, 1, h);
        for (uint32_t i = 0; i < MLA_ABI_V_DIM; i++)
            wrong += dc_o(one, 0, 1, h, i) != 2 * dc_o(other, 0, 1, h, i);
    }
    ck_assert_uint_eq(wrong, 0);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* Scales that are no powers of two, each on its own. */
START_TEST(scales_one_by_one)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc_shape shape = {.heads = 6, .n_seqs = 1, .seqs = SEQS({3, 150})};
    for (int n = 0; n < 5; n++) {
        shape.softmax_scale = n == 0 ? 0.11f : 0;
        shape.q_scale = n == 1 ? 2.7f : n == 4 ? -1.3f : 0;
        shape.kv_scale = n == 2 ? 0.37f : 0;
        shape.out_type = n == 3 ? MLA_DTYPE_E4M3 : MLA_DTYPE_F32;
        shape.out_scale = 0.0131f; /* f32 and bf16 ignore it */
        shape.seed = (uint64_t)n;
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &shape);
        dc_run(c);
        dc_check(j);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* K20: Z = 2 with O = 0 and Z = 8 with O = 10, merged by exp(LSE): 8.0. LSE is the natural logarithm of the sum. */
START_TEST(k20_merge_of_two_halves)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *j = dc_add(
        c, &(struct dc_shape){.heads = 96, .n_seqs = 3, .seqs = SEQS({1, 2}, {1, 8}, {1, 10}), .mask = MLA_MASK_NONE});
    dc_fill_q(j, 0);
    dc_fill_keys(j, 0);
    for (uint32_t k = 0; k < 8; k++) {
        memset(dc_key(j, 1, k), fp8_encode(10), MLA_ABI_V_DIM);
        memset(dc_key(j, 2, k + 2), fp8_encode(10), MLA_ABI_V_DIM);
    }
    dc_run(c);
    dc_check(j);
    for (uint32_t h = 0; h < 96; h += 5) {
        ck_assert_double_eq_tol(dc_lse(j, 0, 0, h), log(2), 1e-6);
        ck_assert_double_eq_tol(dc_lse(j, 1, 0, h), log(8), 1e-6);
        double w0 = exp(dc_lse(j, 0, 0, h));
        double w1 = exp(dc_lse(j, 1, 0, h));
        double merged = (w0 * dc_o(j, 0, 0, h, h) + w1 * dc_o(j, 1, 0, h, h)) / (w0 + w1);
        ck_assert_double_eq_tol(merged, 8.0, 1e-5);
        ck_assert_double_eq_tol(dc_o(j, 2, 0, h, h), 8.0, 1e-5); /* the same in one piece */
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_numerics)
{
    TCase *tc = mla_tcase_timeout(suite, "numerics", 180);
    rig_add(tc, k11_uniform_weights_of_ones);
    rig_add(tc, k12_one_heavy_key_among_light_ones);
    rig_add(tc, k12b_weight_of_the_light_keys);
    rig_add(tc, k13_long_sum_that_cancels);
    rig_add(tc, k13b_channel_means);
    rig_add(tc, k13b_a_mean_per_channel);
    rig_add(tc, k13c_peaked_scores);
    rig_add(tc, k13c_rising_and_falling_scores);
    rig_add(tc, scores_far_below_zero);
    rig_add(tc, k19_scales_of_q_and_kv);
    rig_add(tc, scales_one_by_one);
    rig_add(tc, k20_merge_of_two_halves);
}
