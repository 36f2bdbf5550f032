/* K11, K13b and K13c without a GPU: how exact the Hopper kernel is with the numbers of kernels/sm90/precision.h, by the
 * model of tests/support/sm90_model.h. Prints what it finds. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sm90/precision.h"
#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"
#include "tests/support/sm90_model.h"

#define KEYS      65536u
#define ROWS      8u
#define NORMALS   4096u
#define F16_MOST  65504.0
#define E4M3_MOST 448.0

static const struct data {
    const char *name;
    double mean;
    bool per_channel;
} data_sets[] = {
    {"0", 0, false}, {"0.25", 0.25, false}, {"0.5", 0.5, false}, {"1.0", 1, false}, {"per channel", 0, true}};

/* KV ~ N(mean, 1). */
static uint8_t *make_keys(const struct data *data)
{
    struct prng prng = {3};
    static double normal[NORMALS];
    uint8_t *kv = malloc((size_t)KEYS * REF_QK_DIM);
    ck_assert_ptr_nonnull(kv);
    for (uint32_t i = 0; i < NORMALS; i++)
        normal[i] = prng_normal(&prng);
    for (uint32_t d = 0; d < REF_QK_DIM; d++) {
        uint8_t table[NORMALS];
        double mean = data->per_channel ? prng_normal(&prng) : data->mean;
        for (uint32_t i = 0; i < NORMALS; i++)
            table[i] = fp8_encode(mean + normal[i]);
        for (uint32_t k = 0; k < KEYS; k++)
            kv[(size_t)k * REF_QK_DIM + d] = table[prng_u64(&prng) % NORMALS];
    }
    return kv;
}

/* Relative L2 over all rows: of the kernel, and of the emulation with exact maxima, the worst of its kinds. */
struct errors {
    double kernel, exact;
};

static void add_error(double *sum, const double *o, const double *right)
{
    for (uint32_t c = 0; c < SM90_MODEL_CHANNELS; c++)
        *sum += (o[c] - right[c]) * (o[c] - right[c]);
}

/* Whole rows, and units as of 22 splits. */
#define CUTS 2
static const uint32_t unit_pages[CUTS] = {KEYS / REF_PAGE_TOKENS, 46};

static void measure(const struct data *data, const struct sm90_model *m, double deviation, struct errors errors[CUTS])
{
    double all = 0, kernel[CUTS] = {0}, exact[CUTS][SM90_MODEL_EXACT] = {{0}};
    const double zero[SM90_MODEL_CHANNELS] = {0};
    struct prng prng = {11};
    float *score = calloc(KEYS, sizeof(*score));
    ck_assert_ptr_nonnull(score);
    for (uint32_t r = 0; r < ROWS; r++) {
        double q[REF_QK_DIM], right[SM90_MODEL_CHANNELS], o[SM90_MODEL_CHANNELS];
        for (uint32_t d = 0; d < REF_QK_DIM; d++)
            q[d] = fp8_decode(fp8_encode(prng_normal(&prng)));
        sm90_model_exact_scores(m, KEYS, q, deviation / 24, score);
        sm90_model_exact_row(m, KEYS, score, right);
        add_error(&all, zero, right);
        sm90_model_scores(m, KEYS, q, deviation / 24, score);
        for (uint32_t cut = 0; cut < CUTS; cut++) {
            sm90_model_decode(m, KEYS, score, unit_pages[cut], &sm90_model_kernel, o);
            add_error(&kernel[cut], o, right);
            for (uint32_t i = 0; deviation != 1 && i < SM90_MODEL_EXACT; i++) {
                sm90_model_decode(m, KEYS, score, unit_pages[cut], &sm90_model_exact[i], o);
                add_error(&exact[cut][i], o, right);
            }
        }
    }
    free(score);
    for (uint32_t cut = 0; cut < CUTS; cut++) {
        double worst = 0;
        for (uint32_t i = 0; i < SM90_MODEL_EXACT; i++)
            worst = fmax(worst, exact[cut][i]);
        errors[cut] = (struct errors){sqrt(kernel[cut] / all), sqrt(worst / all)};
        printf("mean %s, score deviation %g, units of %u pages: relative L2 %.3f %%", data->name, deviation,
               unit_pages[cut], 100 * errors[cut].kernel);
        if (deviation != 1)
            printf(", with exact maxima %.3f %%", 100 * errors[cut].exact);
        puts("");
    }
    fflush(stdout);
}

/* What precision.h says of all data, whatever these here are: P does not saturate, that of a maximum is exact, and sums
 * of 2^19 keys fit f16, with half a window beside them that is still to be taken back. */
START_TEST(numbers_fit_their_formats)
{
    double most = exp2((double)(MLA_SM90_HEADROOM + MLA_SM90_LAG)),
           usual = (double)(MLA_SM90_HEADROOM - MLA_SM90_ABOVE);
    double keys = (1 << 19) + (double)MLA_SM90_CARRY * MLA_SM90_WINDOW * REF_PAGE_TOKENS;
    ck_assert_double_le(most, E4M3_MOST);
    ck_assert_double_eq(usual, floor(usual));
    ck_assert_double_lt(most * E4M3_MOST * keys * (double)MLA_SM90_SUM_SCALE, F16_MOST);
    ck_assert(isinf(sm90_model_f16((float)F16_MOST * 1.01f)) && !isinf(sm90_model_f16((float)F16_MOST)));
}
END_TEST

/* Two keys that have 256 as one product and 2^-6 as 31 more. Beside 256, at whichever step it comes, nothing below 2^-5
 * is left of a product or of what has been added up. */
START_TEST(scores_are_cut_off)
{
    static const struct {
        uint32_t large, small; /* elements: the 32 of a step from there on */
        double sum, kept;
    } cases[] = {{0, 0, 256.484375, 256}, {0, 32, 256.484375, 256}, {544, 0, 256.484375, 256.46875}};
    uint8_t kv[2 * REF_QK_DIM] = {0};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double q[REF_QK_DIM];
        float score[2], exact[2];
        for (uint32_t d = 0; d < REF_QK_DIM; d++) {
            bool is_small = d >= cases[i].small && d < cases[i].small + 32 && d % 32 != 0;
            q[d] = d == cases[i].large ? 16 : is_small ? 0.125 : 0;
            kv[d] = fp8_encode(q[d]);
            kv[REF_QK_DIM + d] = fp8_encode(-q[d]);
        }
        struct sm90_model *m = sm90_model_new(kv, 2);
        ck_assert_ptr_nonnull(m);
        sm90_model_scores(m, 2, q, 0.6931471805599453, score);
        sm90_model_exact_scores(m, 2, q, 0.6931471805599453, exact);
        ck_assert_double_eq((double)exact[0], cases[i].sum);
        ck_assert_double_eq((double)exact[1], -cases[i].sum);
        ck_assert_double_eq((double)score[0], cases[i].kept);
        ck_assert_double_eq((double)score[1], -cases[i].kept);
        sm90_model_free(m);
    }
}
END_TEST

/* All weights alike and V = 1: 1, as the suites on a GPU demand. */
START_TEST(k11_uniform_weights_of_ones)
{
    static const uint32_t lengths[] = {1, 64, 100, 512, 1000};
    uint8_t *kv = malloc((size_t)KEYS * REF_QK_DIM);
    float *score = calloc(KEYS, sizeof(*score));
    ck_assert(kv != NULL && score != NULL);
    memset(kv, FP8_ONE, (size_t)KEYS * REF_QK_DIM);
    struct sm90_model *m = sm90_model_new(kv, KEYS);
    ck_assert_ptr_nonnull(m);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        double o[SM90_MODEL_CHANNELS];
        sm90_model_decode(m, lengths[i], score, KEYS / REF_PAGE_TOKENS, &sm90_model_kernel, o);
        for (uint32_t c = 0; c < SM90_MODEL_CHANNELS; c++)
            ck_assert_double_eq_tol(o[c], 1, 1e-6);
    }
    sm90_model_free(m);
    free(score);
    free(kv);
}
END_TEST

static void judge(const struct data *data, double deviation)
{
    uint8_t *kv = make_keys(data);
    struct sm90_model *m = sm90_model_new(kv, KEYS);
    ck_assert_ptr_nonnull(m);
    struct errors e[CUTS];
    measure(data, m, deviation, e);
    for (uint32_t cut = 0; cut < CUTS; cut++)
        ck_assert_double_le(e[cut].kernel, deviation == 1 ? 0.005 : e[cut].exact + 0.001);
    sm90_model_free(m);
    free(kv);
}

/* At most 0.5 %, for each mean. */
START_TEST(k13b_channel_means)
{
    judge(&data_sets[_i], 1);
}
END_TEST

/* References that lag behind the maximum cost at most 0.1 points, at score deviations 2 and 4. */
START_TEST(k13c_peaked_scores)
{
    static const int sets[] = {0, 3, 4};
    judge(&data_sets[sets[_i / 2]], _i % 2 == 0 ? 2 : 4);
}
END_TEST

MLA_SUITE(sm90_precision)
{
    TCase *tc = mla_tcase(suite, "model");
    tcase_add_test(tc, numbers_fit_their_formats);
    tcase_add_test(tc, scores_are_cut_off);
    tcase_add_test(tc, k11_uniform_weights_of_ones);
    tcase_add_loop_test(tc, k13b_channel_means, 0, 5);
    tcase_add_loop_test(tc, k13c_peaked_scores, 0, 6);
}
