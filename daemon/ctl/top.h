/* mlactl top: what the daemon does, from two readings of its metrics. Pure: no I/O. */
#ifndef MLA_DAEMON_CTL_TOP_H
#define MLA_DAEMON_CTL_TOP_H

#include <mla/mla.h>

#define TOP_BUCKETS_MAX 48

/* A histogram as the metrics give it: cumulative counts of values up to bounds[i]; the last bound is +Inf. */
struct top_histogram {
    size_t n;
    double bounds[TOP_BUCKETS_MAX], counts[TOP_BUCKETS_MAX];
    double sum;
};

enum top_timing { TOP_WAIT, TOP_QUEUE, TOP_RUN, TOP_JOB, TOP_GAP, TOP_TIMINGS };

struct top_reading {
    double at_s; /* the daemon's uptime */
    double waiting, queued, staged, running, table_sets, mapped_bytes;
    double batches, jobs, batch_jobs, tiles, items, rows, row_slots, steps, step_layers, step_launches, busy_s;
    double step_launch_s, step_predicted_s;
    struct top_histogram timings[TOP_TIMINGS], prediction;
};

/* Between two readings; what has no event in between is NaN. */
struct top_view {
    double seconds;
    double batches_per_s, jobs_per_s, steps_per_s, jobs_per_batch, layers_per_step, layers_per_launch;
    double tile_occupancy; /* of row slots, 0..1 */
    double splits;         /* items a tile */
    double gpu_busy;       /* 0..1 */
    struct {
        double count, mean_us, p50_us, p90_us, p99_us, p999_us;
    } timings[TOP_TIMINGS];
    double prediction_mean, prediction_p10, prediction_p50, prediction_p90; /* measured over predicted */
    double step_prediction_mean;                                            /* of launches of layers */
};

void top_read(const struct mla_metrics_info *metrics, struct top_reading *out);

/* from: all zero for what happened since the daemon's start. */
void top_view(const struct top_reading *from, const struct top_reading *to, struct top_view *out);

/* Value below which a share p (0..1) of the events between two readings of a histogram lie, linear within a bucket, its
 * lower bound when that has no upper one. NaN without events. from: n 0 for all events. */
double top_percentile(const struct top_histogram *from, const struct top_histogram *to, double p);

#endif
