/* The fit of the cost model: times that the model itself made with other constants are found again. */
#include <math.h>

#include "tests/bench/fit.h"
#include "tests/support/check_main.h"

#define SAMPLES_MAX 256

static const struct fit_device h200 = {
    .device = {.sms = 132, .ctas_per_unit = 2, .rows_per_unit = 128, .resident_units = 66, .min_pages_per_split = 8},
    .tile_rows = 256,
};

static const struct plan_costs hidden = {
    .launch_ns = 9000,
    .fill_ns = 2500,
    .page_ns = 950,
    .drain_ns = 1500,
    .partial_ns = 3000,
    .reduce_launch_ns = 700,
    .reduce_bytes_per_us = 2500000,
    .reduce_fixed_ns = 2000,
};

/* Batches of one length, cut into 1 to 24. */
static size_t make_samples(struct fit_sample *samples, const uint32_t *batches, size_t n_batches)
{
    size_t n = 0;
    for (size_t b = 0; b < n_batches; b++)
        for (uint32_t q = 4; q <= 8; q += 4)
            for (uint32_t splits = 1; splits <= 24; splits++) {
                samples[n] = (struct fit_sample){batches[b], q, 32768, 96, splits, 0, 0};
                samples[n].us = fit_model_us(&h200, &hidden, &samples[n], NULL);
                ck_assert(samples[n].us > 0);
                n++;
            }
    return n;
}

START_TEST(hidden_constants_are_found)
{
    static struct fit_sample samples[SAMPLES_MAX];
    const uint32_t batches[] = {1, 4};
    size_t n = make_samples(samples, batches, 2);
    struct plan_device device;
    struct plan_costs costs;
    ck_assert_int_eq(plan_device_preset("h200", &device, &costs), 0);
    double before = 0;
    for (size_t i = 0; i < n; i++)
        before = fmax(before, fabs(log(fit_model_us(&h200, &costs, &samples[i], NULL) / samples[i].us)));
    ck_assert_double_gt(before, 0.05);
    double off = fit_costs(&h200, samples, n, &costs);
    ck_assert_msg(off < 0.01, "off by %f within shapes", off);
    ck_assert_msg(fabs((double)costs.page_ns / hidden.page_ns - 1) < 0.03, "page_ns %u", costs.page_ns);
    /* What is chosen by the fitted constants is within half a percent of the best, as the hidden ones time it. */
    for (size_t i = 0; i < n; i += 24) {
        size_t chosen = i, best = i;
        for (size_t k = i; k < i + 24; k++) {
            if (fit_model_us(&h200, &costs, &samples[k], NULL) < fit_model_us(&h200, &costs, &samples[chosen], NULL))
                chosen = k;
            best = samples[k].us < samples[best].us ? k : best;
        }
        ck_assert_msg(samples[chosen].us <= samples[best].us * 1.005, "B%u Q%u: %u splits instead of %u",
                      samples[i].n_seqs, samples[i].q_len, samples[chosen].splits, samples[best].splits);
    }
}
END_TEST

/* Two clocks: what all times of a shape share moves the choice little. */
START_TEST(a_common_factor_of_a_shape_is_borne)
{
    static struct fit_sample samples[SAMPLES_MAX];
    const uint32_t batches[] = {1, 4};
    size_t n = make_samples(samples, batches, 2);
    for (size_t i = 0; i < n / 2; i++)
        samples[i].us *= 0.93;
    struct plan_costs costs = hidden;
    double off = fit_costs(&h200, samples, n, &costs);
    ck_assert_msg(off < 0.02, "off by %f within shapes", off);
}
END_TEST

MLA_SUITE(bench_fit)
{
    TCase *tc = mla_tcase_timeout(suite, "fit", 100);
    tcase_add_test(tc, hidden_constants_are_found);
    tcase_add_test(tc, a_common_factor_of_a_shape_is_borne);
}
