#include "daemon/ctl/top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct mla_metric_family *family(const struct mla_metrics_info *m, const char *name)
{
    for (size_t i = 0; i < m->n_families; i++)
        if (strcmp(m->families[i]->name, name) == 0)
            return m->families[i];
    return NULL;
}

/* All samples of that suffix whose labels begin so, together; 0 when there is none: a daemon of another version. */
static double sum_of(const struct mla_metrics_info *m, const char *name, const char *suffix, const char *labels)
{
    const struct mla_metric_family *f = family(m, name);
    double sum = 0;
    for (size_t i = 0; f && i < f->n_samples; i++)
        if (strcmp(f->samples[i].suffix, suffix) == 0 && strncmp(f->samples[i].labels, labels, strlen(labels)) == 0)
            sum += f->samples[i].value;
    return sum;
}

static double value_of(const struct mla_metrics_info *m, const char *name)
{
    return sum_of(m, name, "", "");
}

static void read_histogram(const struct mla_metrics_info *m, const char *name, struct top_histogram *out)
{
    static const char le[] = "le=\"";
    const struct mla_metric_family *f = family(m, name);
    for (size_t i = 0; f && i < f->n_samples; i++) {
        const struct mla_metric_sample *s = &f->samples[i];
        if (strcmp(s->suffix, "_sum") == 0)
            out->sum = s->value;
        if (strcmp(s->suffix, "_bucket") != 0 || strncmp(s->labels, le, sizeof(le) - 1) != 0 ||
            out->n == TOP_BUCKETS_MAX)
            continue;
        out->bounds[out->n] = strtod(s->labels + sizeof(le) - 1, NULL); /* takes "+Inf" too */
        out->counts[out->n++] = s->value;
    }
}

void top_read(const struct mla_metrics_info *m, struct top_reading *out)
{
    static const char *const timings[TOP_TIMINGS] = {"mlad_job_wait_seconds", "mlad_job_queue_seconds",
                                                     "mlad_job_run_seconds", "mlad_job_seconds",
                                                     "mlad_batch_gap_seconds"};
    memset(out, 0, sizeof(*out));
    out->at_s = value_of(m, "mlad_uptime_seconds");
    out->waiting = sum_of(m, "mlad_jobs", "", "state=\"waiting\"");
    out->queued = sum_of(m, "mlad_jobs", "", "state=\"queued\"");
    out->staged = sum_of(m, "mlad_jobs", "", "state=\"staged\"");
    out->running = sum_of(m, "mlad_jobs", "", "state=\"running\"");
    out->table_sets = value_of(m, "mlad_table_sets");
    out->mapped_bytes = value_of(m, "mlad_mapped_bytes");
    out->batches = value_of(m, "mlad_batches_total");
    out->jobs = value_of(m, "mlad_jobs_total");
    out->batch_jobs = sum_of(m, "mlad_batch_jobs", "_sum", "");
    out->tiles = value_of(m, "mlad_tiles_total");
    out->items = value_of(m, "mlad_items_total");
    out->rows = value_of(m, "mlad_rows_total");
    out->row_slots = value_of(m, "mlad_row_slots_total");
    out->steps = value_of(m, "mlad_steps_total");
    out->step_layers = value_of(m, "mlad_step_layers_total");
    out->step_launches = value_of(m, "mlad_step_launches_total");
    out->step_launch_s = value_of(m, "mlad_step_launch_seconds_total");
    out->step_predicted_s = value_of(m, "mlad_step_predicted_seconds_total");
    out->busy_s = value_of(m, "mlad_launch_seconds_total") + out->step_launch_s;
    for (size_t i = 0; i < TOP_TIMINGS; i++)
        read_histogram(m, timings[i], &out->timings[i]);
    read_histogram(m, "mlad_prediction_ratio", &out->prediction);
}

static double between(const struct top_histogram *from, const struct top_histogram *to, size_t i)
{
    return to->counts[i] - (from->n == to->n ? from->counts[i] : 0);
}

static double events(const struct top_histogram *from, const struct top_histogram *to)
{
    return to->n > 0 ? between(from, to, to->n - 1) : 0;
}

double top_percentile(const struct top_histogram *from, const struct top_histogram *to, double p)
{
    double rank = p * events(from, to), before = 0;
    if (!(events(from, to) > 0))
        return (double)NAN;
    for (size_t i = 0; i < to->n; i++) {
        double count = between(from, to, i), low = i > 0 ? to->bounds[i - 1] : 0;
        if (count >= rank && count > before) {
            if (isinf(to->bounds[i]))
                return low;
            return low + (to->bounds[i] - low) * (rank > before ? rank - before : 0) / (count - before);
        }
        before = count;
    }
    return (double)NAN;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : (double)NAN;
}

static double mean(const struct top_histogram *from, const struct top_histogram *to)
{
    return ratio(to->sum - (from->n == to->n ? from->sum : 0), events(from, to));
}

void top_view(const struct top_reading *from, const struct top_reading *to, struct top_view *out)
{
    double s = to->at_s - from->at_s, batches = to->batches - from->batches, steps = to->steps - from->steps;
    memset(out, 0, sizeof(*out));
    out->seconds = s;
    out->batches_per_s = ratio(batches, s);
    out->jobs_per_s = ratio(to->jobs - from->jobs, s);
    out->steps_per_s = ratio(steps, s);
    out->jobs_per_batch = ratio(to->batch_jobs - from->batch_jobs, batches);
    out->layers_per_step = ratio(to->step_layers - from->step_layers, steps);
    out->layers_per_launch = ratio(to->step_layers - from->step_layers, to->step_launches - from->step_launches);
    out->tile_occupancy = ratio(to->rows - from->rows, to->row_slots - from->row_slots);
    out->splits = ratio(to->items - from->items, to->tiles - from->tiles);
    out->gpu_busy = fmin(1, ratio(to->busy_s - from->busy_s, s));
    for (size_t i = 0; i < TOP_TIMINGS; i++) {
        const struct top_histogram *a = &from->timings[i], *b = &to->timings[i];
        out->timings[i].count = events(a, b);
        out->timings[i].mean_us = 1e6 * mean(a, b);
        out->timings[i].p50_us = 1e6 * top_percentile(a, b, 0.5);
        out->timings[i].p90_us = 1e6 * top_percentile(a, b, 0.9);
        out->timings[i].p99_us = 1e6 * top_percentile(a, b, 0.99);
        out->timings[i].p999_us = 1e6 * top_percentile(a, b, 0.999);
    }
    out->step_prediction_mean =
        ratio(to->step_launch_s - from->step_launch_s, to->step_predicted_s - from->step_predicted_s);
    out->prediction_mean = mean(&from->prediction, &to->prediction);
    out->prediction_p10 = top_percentile(&from->prediction, &to->prediction, 0.1);
    out->prediction_p50 = top_percentile(&from->prediction, &to->prediction, 0.5);
    out->prediction_p90 = top_percentile(&from->prediction, &to->prediction, 0.9);
}
