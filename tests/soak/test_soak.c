/* What the soak judges by: series that leak and series that do not; percentiles of counts. */
#include "tests/soak/hist.h"
#include "tests/soak/judge.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define N 300

static double times[N], samples[N];

static void series(double at_first, double per_sample, double noise)
{
    struct prng p = {3};
    for (size_t i = 0; i < N; i++) {
        times[i] = (double)i;
        samples[i] = at_first + per_sample * (double)i + noise * (prng_below(&p, 2001) / 1000.0 - 1);
    }
}

static const struct judge_bound grows = {"rss", 1.02, 1, false};
static const struct judge_bound falls = {"rate", 0.75, 0, true};

START_TEST(flat_is_flat)
{
    series(1000, 0, 30);
    struct judge_verdict v = judge(&grows, times, samples, N, 60);
    ck_assert(v.flat);
    ck_assert_double_eq_tol(v.first, 1000, 15);
    ck_assert_double_eq_tol(v.last, 1000, 15);
    ck_assert_double_eq_tol(v.limit, v.first * 1.02 + 1, 1e-9);
    ck_assert(judge(&falls, times, samples, N, 60).flat);
}
END_TEST

/* 192 samples lie between the middles of the two fifths: the limit is 20 + 1 above 1,006. */
START_TEST(a_leak_is_not)
{
    series(1000, 0.1, 0);
    ck_assert(judge(&grows, times, samples, N, 60).flat);
    series(1000, 0.12, 0);
    struct judge_verdict v = judge(&grows, times, samples, N, 60);
    ck_assert(!v.flat);
    ck_assert_double_eq_tol(v.per_hour, 0.12 * 3600, 1e-6);
    series(1000, -2, 0);
    ck_assert(judge(&grows, times, samples, N, 60).flat);
    ck_assert(!judge(&falls, times, samples, N, 60).flat);
}
END_TEST

/* What happens while it warms up, and single samples that are far off, change nothing. */
START_TEST(warming_up_and_outliers)
{
    series(1000, 0, 0);
    for (size_t i = 0; i < 60; i++)
        samples[i] = 10.0 * (double)i;
    for (size_t i = 70; i < N; i += 7)
        samples[i] = 1e6;
    struct judge_verdict v = judge(&grows, times, samples, N, 60);
    ck_assert(v.flat);
    ck_assert_double_eq(v.first, 1000);
    ck_assert_double_eq(v.last, 1000);
}
END_TEST

START_TEST(too_few_samples)
{
    series(1000, 0, 0);
    ck_assert(!judge(&grows, times, samples, N, N - JUDGE_LEAST + 1).flat);
    ck_assert(judge(&grows, times, samples, N, N - JUDGE_LEAST).flat);
    ck_assert(!judge(&grows, times, samples, 0, 0).flat);
}
END_TEST

START_TEST(percentiles)
{
    static struct hist h, before, sum;
    ck_assert_double_eq(hist_percentile(&h, 0.5), 0);
    for (uint64_t us = 1; us <= 100000; us++)
        hist_add(&h, us);
    ck_assert_uint_eq(hist_count(&h), 100000);
    static const double shares[] = {0.0001, 0.01, 0.5, 0.99, 0.999, 1};
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        double right = shares[i] * 100000, found = hist_percentile(&h, shares[i]);
        ck_assert_msg(found >= right && found <= right * 1.033, "%g: %g", shares[i], found);
    }
    hist_add(&before, 7);
    hist_add_difference(&sum, &h, &before);
    ck_assert_uint_eq(hist_count(&sum), 99999);
    ck_assert_uint_eq(sum.counts[7], 0);
    hist_add(&sum, UINT64_MAX);
    ck_assert_double_ge(hist_percentile(&sum, 1), 4e9);
}
END_TEST

MLA_SUITE(soak)
{
    TCase *tc = mla_tcase(suite, "soak");
    tcase_add_test(tc, flat_is_flat);
    tcase_add_test(tc, a_leak_is_not);
    tcase_add_test(tc, warming_up_and_outliers);
    tcase_add_test(tc, too_few_samples);
    tcase_add_test(tc, percentiles);
}
