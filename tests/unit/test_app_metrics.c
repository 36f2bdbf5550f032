#include "daemon/app/metrics.h"
#include "daemon/app/metrics_text.h"
#include "tests/support/check_main.h"

#include <errno.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES (256u << 10) /* what the daemon renders into */

static struct metrics metrics;
static struct metrics_gauges gauges;
static struct mla_arena arena;
static uint8_t memory[ARENA_BYTES];
static struct mla_metrics_reply reply;

static void begin(void)
{
    memset(&metrics, 0, sizeof(metrics));
    gauges = (struct metrics_gauges){.version = "1.2.3", .backend = "cpu", .gpu_uuid = "none"};
}

static void render(void)
{
    memset(&reply, 0, sizeof(reply));
    mla_arena_init(&arena, memory, sizeof(memory));
    ck_assert_int_eq(metrics_render(&metrics, &gauges, &arena, &reply), 0);
}

static const struct mla_metric *family(const char *name)
{
    for (size_t i = 0; i < reply.n_metrics; i++)
        if (strcmp(reply.metrics[i].name, name) == 0)
            return &reply.metrics[i];
    ck_abort_msg("no family %s", name);
    return NULL;
}

/* Of the series with this suffix and these labels; fails when there is none. */
static double value_of(const char *name, const char *suffix, const char *labels)
{
    const struct mla_metric *f = family(name);
    for (size_t i = 0; i < f->n_samples; i++)
        if (strcmp(f->samples[i].suffix, suffix) == 0 && strcmp(f->samples[i].labels, labels) == 0)
            return f->samples[i].value;
    ck_abort_msg("no series %s%s{%s}", name, suffix, labels);
    return 0;
}

static bool matches(const char *pattern, const char *text)
{
    regex_t re;
    ck_assert_int_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB), 0);
    bool yes = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return yes;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- what is there from the start ---- */

START_TEST(every_series_at_zero)
{
    render();
    for (size_t i = 0; i < reply.n_metrics; i++) {
        const struct mla_metric *f = &reply.metrics[i];
        ck_assert_msg(f->n_samples > 0 || strcmp(f->name, "mlad_client_mapped_bytes") == 0, "%s", f->name);
        for (size_t s = 0; s < f->n_samples; s++)
            ck_assert_msg(f->samples[s].value == (strcmp(f->name, "mlad_build_info") == 0 ? 1.0 : 0.0), "%s%s{%s} = %g",
                          f->name, f->samples[s].suffix, f->samples[s].labels, f->samples[s].value);
    }
    ck_assert_double_eq(value_of("mlad_build_info", "", "version=\"1.2.3\",backend=\"cpu\",gpu_uuid=\"none\""), 1);
}
END_TEST

START_TEST(every_request_type)
{
    render();
    size_t n = 0;
#define ROW(name, number, body, cap)                                                                                   \
    value_of("mlad_requests_total", "", "type=\"" #name "\"");                                                         \
    n++;
    MLA_REQUEST_LIST(ROW)
#undef ROW
    ck_assert_uint_eq(family("mlad_requests_total")->n_samples, n);
}
END_TEST

/* Codes of the wire; those from 500 on are the client library's. Faults are 401 to 499. */
START_TEST(every_status)
{
    render();
    size_t n = 0, n_faults = 0;
#define ROW(name, number, text)                                                                                        \
    if ((number) < 500) {                                                                                              \
        value_of("mlad_replies_total", "", "status=\"" #name "\"");                                                    \
        value_of("mlad_jobs_total", "", "status=\"" #name "\"");                                                       \
        n++;                                                                                                           \
    }                                                                                                                  \
    if ((number) > 400 && (number) < 500) {                                                                            \
        value_of("mlad_sequence_faults_total", "", "kind=\"" #name "\"");                                              \
        n_faults++;                                                                                                    \
    }
    MLA_STATUS_LIST(ROW)
#undef ROW
    ck_assert_uint_eq(family("mlad_replies_total")->n_samples, n);
    ck_assert_uint_eq(family("mlad_jobs_total")->n_samples, n);
    ck_assert_uint_eq(family("mlad_sequence_faults_total")->n_samples, n_faults);
}
END_TEST

/* ---- names ---- */

START_TEST(names_follow_the_conventions)
{
    render();
    for (size_t i = 0; i < reply.n_metrics; i++) {
        const struct mla_metric *f = &reply.metrics[i];
        ck_assert_msg(matches("^mlad_[a-z]+(_[a-z]+)*$", f->name), "%s", f->name);
        ck_assert_msg(ends_with(f->name, "_total") == (f->type == MLA_METRIC_COUNTER), "%s", f->name);
        /* base units only, and no ending that a histogram's series have */
        ck_assert_msg(!matches("_(us|ms|ns|microseconds|milliseconds|kib|mib|bucket|count|sum)(_total)?$", f->name),
                      "%s", f->name);
        ck_assert_msg(matches("^[A-Z0-9].*\\.$", f->help), "%s: %s", f->name, f->help);
        for (size_t s = 0; s < f->n_samples; s++) {
            const struct mla_sample *sample = &f->samples[s];
            ck_assert_msg(matches("^$|^[a-z_]+=\"[^\"\\\\]*\"(,[a-z_]+=\"[^\"\\\\]*\")*$", sample->labels), "%s{%s}",
                          f->name, sample->labels);
            if (f->type != MLA_METRIC_HISTOGRAM)
                ck_assert_str_eq(sample->suffix, "");
        }
    }
}
END_TEST

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

START_TEST(no_series_twice)
{
    static char *series[4096];
    size_t n = 0;
    render();
    for (size_t i = 0; i < reply.n_metrics; i++) {
        const struct mla_metric *f = &reply.metrics[i];
        for (size_t k = 0; k < i; k++)
            ck_assert_str_ne(f->name, reply.metrics[k].name);
        for (size_t s = 0; s < f->n_samples; s++) {
            ck_assert_uint_lt(n, sizeof(series) / sizeof(series[0]));
            ck_assert_int_gt(asprintf(&series[n++], "%s%s{%s}", f->name, f->samples[s].suffix, f->samples[s].labels),
                             0);
        }
    }
    qsort(series, n, sizeof(series[0]), by_text);
    for (size_t i = 1; i < n; i++)
        ck_assert_str_ne(series[i - 1], series[i]);
    for (size_t i = 0; i < n; i++)
        free(series[i]);
}
END_TEST

/* ---- counting ---- */

START_TEST(counts_by_kind)
{
    metrics_count_request(&metrics, MLA_MSG_DECODE);
    metrics_count_request(&metrics, MLA_MSG_DECODE);
    metrics_count_request(&metrics, MLA_MSG_HELLO);
    metrics_count_request(&metrics, 0x7777); /* not a type */
    metrics_count_reply(&metrics, MLA_OK);
    metrics_count_reply(&metrics, MLA_QUOTA);
    metrics_count_job(&metrics, MLA_LATE);
    metrics_count_fault(&metrics, MLA_KV_LEN_OUT_OF_RANGE);
    metrics_count_fault(&metrics, MLA_KV_LEN_OUT_OF_RANGE);
    metrics_count_fault(&metrics, MLA_KV_LEN_OUT_OF_RANGE);
    metrics_count_reply(&metrics, (enum mla_status)99999); /* not a code */
    render();
    ck_assert_double_eq(value_of("mlad_requests_total", "", "type=\"DECODE\""), 2);
    ck_assert_double_eq(value_of("mlad_requests_total", "", "type=\"HELLO\""), 1);
    ck_assert_double_eq(value_of("mlad_replies_total", "", "status=\"OK\""), 1);
    ck_assert_double_eq(value_of("mlad_replies_total", "", "status=\"QUOTA\""), 1);
    ck_assert_double_eq(value_of("mlad_replies_total", "", "status=\"INTERNAL\""), 1);
    ck_assert_double_eq(value_of("mlad_jobs_total", "", "status=\"LATE\""), 1);
    ck_assert_double_eq(value_of("mlad_sequence_faults_total", "", "kind=\"KV_LEN_OUT_OF_RANGE\""), 3);
    static const struct {
        const char *family;
        double sum;
    } sums[] = {{"mlad_requests_total", 3},
                {"mlad_replies_total", 3},
                {"mlad_jobs_total", 1},
                {"mlad_sequence_faults_total", 3}};
    for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
        const struct mla_metric *f = family(sums[i].family);
        double sum = 0;
        for (size_t s = 0; s < f->n_samples; s++)
            sum += f->samples[s].value;
        ck_assert_double_eq(sum, sums[i].sum);
    }
}
END_TEST

START_TEST(one_series_a_client)
{
    static const struct metrics_client rows[] = {{0x1234, 4096, "engine"}, {UINT64_MAX, 0, "a\"b\\c"}};
    gauges.per_client = rows;
    gauges.n_per_client = 2;
    render();
    const struct mla_metric *f = family("mlad_client_mapped_bytes");
    ck_assert_uint_eq(f->n_samples, 2);
    ck_assert_double_eq(value_of(f->name, "", "client=\"0000000000001234\",name=\"engine\""), 4096);
    ck_assert_double_eq(value_of(f->name, "", "client=\"ffffffffffffffff\",name=\"a\\\"b\\\\c\""), 0);
}
END_TEST

/* As many clients as there can be, with the longest names. */
START_TEST(arena_is_enough)
{
    static struct metrics_client rows[16384];
    static char name[MLA_MAX_NAME_BYTES + 1];
    memset(name, '"', MLA_MAX_NAME_BYTES);
    for (size_t i = 0; i < 16384; i++)
        rows[i] = (struct metrics_client){UINT64_MAX - i, UINT64_MAX, name};
    gauges.per_client = rows;
    for (gauges.n_per_client = 0; gauges.n_per_client <= 16384;
         gauges.n_per_client = gauges.n_per_client == 0 ? 1 : 4 * gauges.n_per_client) {
        size_t bytes = METRICS_ARENA_BYTES(gauges.n_per_client);
        void *own = malloc(bytes);
        mla_arena_init(&arena, own, bytes);
        ck_assert_int_eq(metrics_render(&metrics, &gauges, &arena, &reply), 0);
        struct mla_message message;
        mla_message_init(&message, MLA_MSG_METRICS | MLA_REPLY);
        message.metrics_reply = reply;
        ck_assert_uint_lt(mla_codec_encoded_size(&message), MLA_CAP_REPLY_BYTES);
        free(own);
    }
}
END_TEST

START_TEST(one_health_at_a_time)
{
    static const char *const states[] = {"starting", "ready", "degraded", "draining", "failed"};
    for (unsigned now = MLA_HEALTH_STARTING; now <= MLA_HEALTH_FAILED; now++) {
        gauges.health = (enum mla_health)now;
        render();
        for (unsigned i = 0; i < 5; i++) {
            char labels[64];
            snprintf(labels, sizeof(labels), "state=\"%s\"", states[i]);
            ck_assert_double_eq(value_of("mlad_health", "", labels), i + MLA_HEALTH_STARTING == now);
        }
    }
}
END_TEST

START_TEST(reasons_of_degraded)
{
    struct health checks = {.now = 1u << HEALTH_loop_lag | 1u << HEALTH_job_errors};
    checks.raised[HEALTH_loop_lag] = 3;
    checks.raised[HEALTH_descriptors] = 1;
    gauges.checks = &checks;
    render();
    for (unsigned i = 0; i < HEALTH_REASONS; i++) {
        char labels[64];
        snprintf(labels, sizeof(labels), "reason=\"%s\"", health_name((enum health_reason)i));
        ck_assert_double_eq(value_of("mlad_degraded", "", labels), i == HEALTH_loop_lag || i == HEALTH_job_errors);
        ck_assert_double_eq(value_of("mlad_degraded_total", "", labels),
                            i == HEALTH_loop_lag ? 3 : (double)(i == HEALTH_descriptors));
    }
    gauges.checks = NULL;
}
END_TEST

/* ---- text ---- */

START_TEST(text_of_a_reply)
{
    const struct mla_sample counter[] = {{"", "", 3}}, gauge[] = {{"", "a=\"b\"", 0.1}, {"", "a=\"c\"", 1e300}};
    const struct mla_sample histogram[] = {{"_bucket", "le=\"+Inf\"", 18014398509481984.0}, {"_sum", "", -1.5}};
    const struct mla_metric metrics_of[] = {{"mlad_x_total", "Xs.", MLA_METRIC_COUNTER, counter, 1},
                                            {"mlad_y", "Ys.", MLA_METRIC_GAUGE, gauge, 2},
                                            {"mlad_z", "Zs.", MLA_METRIC_HISTOGRAM, histogram, 2}};
    const struct mla_metrics_reply of = {.metrics = metrics_of, .n_metrics = 3};
    size_t bytes = 0;
    char *text = metrics_text(&of, &bytes);
    ck_assert_str_eq(text,
                     "# HELP mlad_x_total Xs.\n# TYPE mlad_x_total counter\nmlad_x_total 3\n"
                     "# HELP mlad_y Ys.\n# TYPE mlad_y gauge\nmlad_y{a=\"b\"} 0.1\nmlad_y{a=\"c\"} 1e+300\n"
                     "# HELP mlad_z Zs.\n# TYPE mlad_z histogram\nmlad_z_bucket{le=\"+Inf\"} 1.8014398509482e+16\n"
                     "mlad_z_sum -1.5\n");
    ck_assert_uint_eq(bytes, strlen(text));
    free(text);
}
END_TEST

/* Each number goes where it belongs: all of them differ. */
static const struct {
    const char *family, *labels;
    uint64_t *from;
} plain[] = {
    {"mlad_batches_total", "", &metrics.batches},
    {"mlad_few_rows_batches_total", "", &metrics.few_rows_batches},
    {"mlad_plans_total", "", &metrics.stages},
    {"mlad_plans_failed_total", "", &metrics.plans_failed},
    {"mlad_tiles_total", "", &metrics.tiles},
    {"mlad_items_total", "", &metrics.items},
    {"mlad_split_tiles_total", "", &metrics.reduces},
    {"mlad_rows_total", "", &metrics.useful_rows},
    {"mlad_row_slots_total", "", &metrics.row_slots},
    {"mlad_item_units_total", "", &metrics.item_units},
    {"mlad_unit_slots_total", "", &metrics.unit_slots},
    {"mlad_pages_total", "", &metrics.pages},
    {"mlad_waves_total", "", &metrics.waves},
    {"mlad_clients", "", &gauges.clients},
    {"mlad_regions", "", &gauges.regions},
    {"mlad_mapped_bytes", "", &gauges.mapped_bytes},
    {"mlad_caches", "", &gauges.caches},
    {"mlad_published_caches", "", &gauges.published},
    {"mlad_attachments", "", &gauges.attachments},
    {"mlad_table_sets", "", &gauges.table_sets},
    {"mlad_table_mirror_bytes", "", &gauges.mirror_bytes},
    {"mlad_table_mirror_uses_total", "", &metrics.mirror_uses},
    {"mlad_jobs", "state=\"waiting\"", &gauges.jobs_waiting},
    {"mlad_jobs", "state=\"queued\"", &gauges.jobs_queued},
    {"mlad_jobs", "state=\"staged\"", &gauges.jobs_staged},
    {"mlad_jobs", "state=\"running\"", &gauges.jobs_running},
    {"mlad_workspace_bytes", "", &gauges.workspace_bytes},
    {"mlad_device_memory_bytes", "", &gauges.device_memory_bytes},
    {"mlad_units", "", &gauges.units},
    {"mlad_connections_accepted_total", "", &gauges.accepted},
    {"mlad_connections_refused_total", "", &gauges.refused},
    {"mlad_connections_closed_total", "", &gauges.closed},
    {"mlad_frames_received_total", "", &gauges.frames_in},
    {"mlad_frames_sent_total", "", &gauges.frames_out},
    {"mlad_received_bytes_total", "", &gauges.bytes_in},
    {"mlad_sent_bytes_total", "", &gauges.bytes_out},
    {"mlad_protocol_errors_total", "", &gauges.protocol_errors},
    {"mlad_malformed_bodies_total", "", &gauges.malformed_bodies},
    {"mlad_slow_peers_total", "", &gauges.slow_peers},
    {"mlad_accept_pauses_total", "", &gauges.accept_pauses},
};
#define N_PLAIN (sizeof(plain) / sizeof(plain[0]))

START_TEST(every_number_has_its_series)
{
    for (size_t i = 0; i < N_PLAIN; i++)
        *plain[i].from = 1000 + i;
    gauges.uptime_us = 2500000;
    gauges.ready = 1;
    render();
    for (size_t i = 0; i < N_PLAIN; i++)
        ck_assert_msg(value_of(plain[i].family, "", plain[i].labels) == (double)(1000 + i), "%s{%s}", plain[i].family,
                      plain[i].labels);
    ck_assert_double_eq(value_of("mlad_uptime_seconds", "", ""), 2.5);
    ck_assert_double_eq(value_of("mlad_ready", "", ""), 1);
}
END_TEST

/* ---- histograms ---- */

/* Buckets stand in rising order, never fall, and end in +Inf, which is the count. */
static void check_histogram(const struct mla_metric *f)
{
    size_t n = f->n_samples;
    double bound_before = -1, value_before = 0;
    ck_assert_uint_ge(n, 4);
    for (size_t i = 0; i + 2 < n; i++) {
        const struct mla_sample *s = &f->samples[i];
        char text[32];
        ck_assert_str_eq(s->suffix, "_bucket");
        ck_assert_int_eq(sscanf(s->labels, "le=\"%31[^\"]\"", text), 1);
        double bound = strtod(text, NULL); /* takes "+Inf" too */
        ck_assert_msg(bound > bound_before, "%s: le %s", f->name, text);
        ck_assert_msg(s->value >= value_before, "%s: le %s", f->name, text);
        bound_before = bound;
        value_before = s->value;
    }
    ck_assert_str_eq(f->samples[n - 3].labels, "le=\"+Inf\"");
    ck_assert_str_eq(f->samples[n - 2].suffix, "_sum");
    ck_assert_str_eq(f->samples[n - 1].suffix, "_count");
    ck_assert_double_eq(f->samples[n - 3].value, f->samples[n - 1].value);
}

START_TEST(histograms_are_cumulative)
{
    /* 1 us to 1000 s and 1 to 2^20 jobs: every bucket, the one beyond the last bound too */
    for (uint64_t us = 1; us <= UINT64_C(1000000000); us *= 2) {
        metrics_observe_us(&metrics.wait_seconds, us);
        metrics_observe_us(&metrics.queue_seconds, us);
        metrics_observe_us(&metrics.run_seconds, us);
        metrics_observe_job_us(&metrics.job_seconds, us);
    }
    for (uint64_t jobs = 1; jobs <= 1 << 20; jobs *= 2)
        metrics_observe_jobs(&metrics.batch_jobs, jobs);
    render();
    size_t n = 0;
    for (size_t i = 0; i < reply.n_metrics; i++) {
        if (reply.metrics[i].type != MLA_METRIC_HISTOGRAM)
            continue;
        check_histogram(&reply.metrics[i]);
        n++;
    }
    ck_assert_uint_eq(n, 10);
    ck_assert_double_eq(value_of("mlad_job_seconds", "_count", ""), 30);
    ck_assert_double_eq(value_of("mlad_job_wait_seconds", "_count", ""), 30);
    ck_assert_double_eq(value_of("mlad_batch_jobs", "_count", ""), 21);
    ck_assert_double_eq(value_of("mlad_batch_jobs", "_sum", ""), (1 << 21) - 1);
}
END_TEST

START_TEST(bounds_belong_to_their_bucket)
{
    metrics_observe_us(&metrics.run_seconds, 0);
    metrics_observe_us(&metrics.run_seconds, 10);
    metrics_observe_us(&metrics.run_seconds, 11);
    metrics_observe_us(&metrics.run_seconds, 1000000);
    metrics_observe_us(&metrics.run_seconds, 10000000);
    metrics_observe_us(&metrics.run_seconds, 10000001);
    render();
    static const char name[] = "mlad_job_run_seconds";
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"1e-05\""), 2);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"2e-05\""), 3);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"0.5\""), 3);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"1\""), 4);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"5\""), 4);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"10\""), 5);
    ck_assert_double_eq(value_of(name, "_bucket", "le=\"+Inf\""), 6);
    ck_assert_double_eq_tol(value_of(name, "_sum", ""), 21.000022, 1e-9);
    ck_assert_double_eq(value_of("mlad_job_wait_seconds", "_count", ""), 0);

    metrics_observe_jobs(&metrics.batch_jobs, 1);
    metrics_observe_jobs(&metrics.batch_jobs, 2);
    metrics_observe_jobs(&metrics.batch_jobs, 3);
    render();
    ck_assert_double_eq(value_of("mlad_batch_jobs", "_bucket", "le=\"1\""), 1);
    ck_assert_double_eq(value_of("mlad_batch_jobs", "_bucket", "le=\"2\""), 2);
    ck_assert_double_eq(value_of("mlad_batch_jobs", "_bucket", "le=\"4\""), 3);
}
END_TEST

/* Two launches in flight: the second follows the first after 3 us; a third comes to an idle device. */
START_TEST(launches_against_their_predictions)
{
    metrics_launch_end(&metrics, UINT64_MAX, 1000000, 1100000, 90000);
    metrics_launch_end(&metrics, 3000, 1103000, 1203000, 200000);
    metrics_launch_end(&metrics, UINT64_MAX, 9000000, 9100000, 0); /* a plan without a prediction */
    render();
    ck_assert_double_eq(value_of("mlad_prediction_ratio", "_bucket", "le=\"0.5\""), 1);
    ck_assert_double_eq(value_of("mlad_prediction_ratio", "_bucket", "le=\"1.1\""), 1);
    ck_assert_double_eq(value_of("mlad_prediction_ratio", "_bucket", "le=\"1.2\""), 2);
    ck_assert_double_eq(value_of("mlad_prediction_ratio", "_count", ""), 2);
    ck_assert_double_eq(value_of("mlad_batch_gap_seconds", "_bucket", "le=\"2e-06\""), 0);
    ck_assert_double_eq(value_of("mlad_batch_gap_seconds", "_bucket", "le=\"5e-06\""), 1);
    ck_assert_double_eq(value_of("mlad_batch_gap_seconds", "_count", ""), 1);
    ck_assert_double_eq_tol(value_of("mlad_launch_seconds_total", "", ""), 300e-6, 1e-12);
}
END_TEST

/* A point in time that is missing or out of order says that the rest cannot be trusted either. */
START_TEST(stages_of_a_job)
{
    uint64_t points_ns[METRICS_STAGES + 1] = {1000, 3000, 4000, 8000, 9000, 20000, 90000, 91000, 94000};
    metrics_observe_stages(&metrics, points_ns);
    for (size_t i = 0; i <= METRICS_STAGES; i++) {
        uint64_t saved = points_ns[i];
        points_ns[i] = 0;
        metrics_observe_stages(&metrics, points_ns);
        points_ns[i] = saved;
    }
    points_ns[3]--;
    metrics_observe_stages(&metrics, points_ns);
    render();
    static const char name[] = "mlad_job_stage_seconds_total";
    ck_assert_double_eq(value_of("mlad_job_stage_jobs_total", "", ""), 2);
    ck_assert_double_eq_tol(value_of(name, "", "until=\"checked\""), 4e-6, 1e-12);
    ck_assert_double_eq_tol(value_of(name, "", "until=\"planned\""), 7.999e-6, 1e-12);
    ck_assert_double_eq_tol(value_of(name, "", "until=\"taken\""), 2.001e-6, 1e-12);
    ck_assert_double_eq_tol(value_of(name, "", "until=\"ended\""), 140e-6, 1e-12);
    ck_assert_double_eq_tol(value_of(name, "", "until=\"answered\""), 6e-6, 1e-12);
}
END_TEST

/* ---- memory ---- */

START_TEST(an_arena_too_small)
{
    render();
    size_t used = 0;
    for (size_t bytes = 0; bytes < sizeof(memory); bytes += 97) {
        mla_arena_init(&arena, memory, bytes);
        int rc = metrics_render(&metrics, &gauges, &arena, &reply);
        ck_assert_msg(rc == 0 || rc == -ENOMEM, "%d", rc);
        if (rc == 0) {
            used = bytes;
            break;
        }
    }
    /* It did get through, and with twice to spare. */
    ck_assert_uint_gt(used, 0);
    ck_assert_uint_lt(2 * used, ARENA_BYTES);
}
END_TEST

START_TEST(fits_a_reply)
{
    static uint8_t body[1 << 20];
    struct mla_message message;
    size_t n = 0;
    for (size_t i = 0; i < N_PLAIN; i++)
        *plain[i].from = UINT64_MAX;
    render();
    mla_message_init(&message, MLA_MSG_METRICS | MLA_REPLY);
    message.metrics_reply = reply;
    ck_assert_int_eq(mla_codec_encode(&message, body, sizeof(body), &n), 0);
    ck_assert_uint_le(n, mla_wire_body_cap(MLA_MSG_METRICS | MLA_REPLY));
}
END_TEST

MLA_SUITE(app_metrics)
{
    TCase *tc = mla_tcase(suite, "metrics");
    tcase_add_checked_fixture(tc, begin, NULL);
    tcase_add_test(tc, every_series_at_zero);
    tcase_add_test(tc, every_request_type);
    tcase_add_test(tc, every_status);
    tcase_add_test(tc, names_follow_the_conventions);
    tcase_add_test(tc, no_series_twice);
    tcase_add_test(tc, counts_by_kind);
    tcase_add_test(tc, one_series_a_client);
    tcase_add_test(tc, arena_is_enough);
    tcase_add_test(tc, one_health_at_a_time);
    tcase_add_test(tc, reasons_of_degraded);
    tcase_add_test(tc, text_of_a_reply);
    tcase_add_test(tc, every_number_has_its_series);
    tcase_add_test(tc, histograms_are_cumulative);
    tcase_add_test(tc, bounds_belong_to_their_bucket);
    tcase_add_test(tc, launches_against_their_predictions);
    tcase_add_test(tc, stages_of_a_job);
    tcase_add_test(tc, an_arena_too_small);
    tcase_add_test(tc, fits_a_reply);
}
