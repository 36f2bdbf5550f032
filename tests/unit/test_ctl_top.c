/* What mlactl top computes from two readings of the metrics. */
#include <math.h>
#include <string.h>

#include "daemon/ctl/top.h"
#include "tests/support/check_main.h"

static const struct mla_metric_sample zero_jobs[] = {{"", "status=\"OK\"", 7}, {"", "status=\"LATE\"", 3}};
static const struct mla_metric_sample states[] = {{"", "state=\"waiting\"", 1}, {"", "state=\"queued\"", 2}};
static const struct mla_metric_sample run_time[] = {{"_bucket", "le=\"1e-05\"", 10},
                                                    {"_bucket", "le=\"2e-05\"", 30},
                                                    {"_bucket", "le=\"+Inf\"", 40},
                                                    {"_sum", "", 0.0009},
                                                    {"_count", "", 40}};
static const struct mla_metric_family jobs = {"mlad_jobs_total", "", MLA_METRIC_COUNTER, zero_jobs, 2};
static const struct mla_metric_family by_state = {"mlad_jobs", "", MLA_METRIC_GAUGE, states, 2};
static const struct mla_metric_family run = {"mlad_job_run_seconds", "", MLA_METRIC_HISTOGRAM, run_time, 5};
static const struct mla_metric_family *const families[] = {&jobs, &by_state, &run};

START_TEST(read_from_metrics)
{
    const struct mla_metrics_info metrics = {families, 3};
    struct top_reading r;
    top_read(&metrics, &r);
    ck_assert_double_eq(r.jobs, 10);
    ck_assert_double_eq(r.waiting, 1);
    ck_assert_double_eq(r.queued, 2);
    ck_assert_double_eq(r.batches, 0); /* not there */
    ck_assert_uint_eq(r.timings[TOP_RUN].n, 3);
    ck_assert_double_eq(r.timings[TOP_RUN].bounds[1], 2e-5);
    ck_assert(isinf(r.timings[TOP_RUN].bounds[2]));
    ck_assert_double_eq(r.timings[TOP_RUN].counts[2], 40);
    ck_assert_double_eq(r.timings[TOP_RUN].sum, 0.0009);
    ck_assert_uint_eq(r.timings[TOP_WAIT].n, 0);
}
END_TEST

START_TEST(percentiles)
{
    const struct top_histogram none = {0};
    const struct top_histogram h = {.n = 4, .bounds = {1, 2, 4, INFINITY}, .counts = {10, 30, 30, 40}};
    ck_assert_double_eq_tol(top_percentile(&none, &h, 0.125), 0.5, 1e-12); /* half of the first bucket */
    ck_assert_double_eq_tol(top_percentile(&none, &h, 0.25), 1, 1e-12);
    ck_assert_double_eq_tol(top_percentile(&none, &h, 0.5), 1.5, 1e-12);
    ck_assert_double_eq_tol(top_percentile(&none, &h, 0.75), 2, 1e-12); /* not in the empty bucket */
    ck_assert_double_eq_tol(top_percentile(&none, &h, 0.99), 4, 1e-12); /* +Inf: at least its lower bound */
    const struct top_histogram later = {.n = 4, .bounds = {1, 2, 4, INFINITY}, .counts = {10, 30, 40, 50}};
    ck_assert_double_eq_tol(top_percentile(&h, &later, 0.5), 3, 1e-12); /* the ten in between */
    ck_assert(isnan(top_percentile(&h, &h, 0.5)));
    ck_assert(isnan(top_percentile(&none, &none, 0.5)));
}
END_TEST

START_TEST(rates_and_shares)
{
    struct top_reading from = {.at_s = 10,
                               .batches = 100,
                               .jobs = 200,
                               .batch_jobs = 200,
                               .tiles = 50,
                               .items = 60,
                               .rows = 1000,
                               .row_slots = 2000,
                               .busy_s = 1};
    struct top_reading to = {.at_s = 12,
                             .batches = 200,
                             .jobs = 600,
                             .batch_jobs = 500,
                             .tiles = 150,
                             .items = 310,
                             .rows = 1750,
                             .row_slots = 3000,
                             .steps = 4,
                             .step_layers = 96,
                             .step_launches = 64,
                             .step_launch_s = 3,
                             .step_predicted_s = 4,
                             .busy_s = 2.5};
    struct top_view v;
    top_view(&from, &to, &v);
    ck_assert_double_eq(v.seconds, 2);
    ck_assert_double_eq(v.batches_per_s, 50);
    ck_assert_double_eq(v.jobs_per_s, 200);
    ck_assert_double_eq(v.jobs_per_batch, 3);
    ck_assert_double_eq(v.splits, 2.5);
    ck_assert_double_eq(v.tile_occupancy, 0.75);
    ck_assert_double_eq(v.gpu_busy, 0.75);
    ck_assert_double_eq(v.steps_per_s, 2);
    ck_assert_double_eq(v.layers_per_step, 24);
    ck_assert_double_eq(v.layers_per_launch, 1.5);
    ck_assert_double_eq(v.step_prediction_mean, 0.75);
    to.busy_s = 99; /* what ended just now may have begun before */
    top_view(&from, &to, &v);
    ck_assert_double_eq(v.gpu_busy, 1);
    top_view(&to, &to, &v); /* nothing happened, in no time */
    ck_assert(isnan(v.batches_per_s) && isnan(v.splits) && isnan(v.timings[TOP_RUN].p99_us));
}
END_TEST

MLA_SUITE(ctl_top)
{
    TCase *tc = mla_tcase(suite, "top");
    tcase_add_test(tc, read_from_metrics);
    tcase_add_test(tc, percentiles);
    tcase_add_test(tc, rates_and_shares);
}
