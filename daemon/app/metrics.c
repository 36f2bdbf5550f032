#include "daemon/app/metrics.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Names and numbers of the two X lists, as tables. */
static const struct {
    uint16_t type;
    const char *name;
} request_types[] = {
#define ROW(name, number, body, cap) {(number), #name},
    MLA_REQUEST_LIST(ROW)
#undef ROW
};
static const struct {
    uint32_t code;
    const char *name;
} codes[] = {
#define ROW(name, number, text) {(number), #name},
    MLA_STATUS_LIST(ROW)
#undef ROW
};
static const char *const stages[METRICS_STAGES] = {
#define ROW(name) #name,
    METRICS_STAGE_LIST(ROW)
#undef ROW
};
#define N_TYPES (sizeof(request_types) / sizeof(request_types[0]))
#define N_CODES (sizeof(codes) / sizeof(codes[0]))
/* Codes above are the client library's own. */
#define CODE_LAST 499u
_Static_assert(N_TYPES == METRICS_REQUESTS, "METRICS_REQUESTS must follow MLA_REQUEST_LIST");
_Static_assert(N_CODES <= METRICS_CODES, "METRICS_CODES is too small");

/* Upper bounds of the time buckets: 10 us to 10 s in steps of 1, 2, 5. */
static const double time_bounds[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2,
                                     2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1,    2,    5,    10};
static const double job_bounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
/* For percentiles of what a client sees: six steps a decade, 10 us to 10 s. */
static const double job_time_bounds[] = {1e-5, 1.5e-5, 2e-5, 3e-5,   5e-5, 7e-5, 1e-4, 1.5e-4, 2e-4, 3e-4,
                                         5e-4, 7e-4,   1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 7e-3,   1e-2, 1.5e-2,
                                         2e-2, 3e-2,   5e-2, 7e-2,   0.1,  0.15, 0.2,  0.3,    0.5,  0.7,
                                         1,    1.5,    2,    3,      5,    7,    10};
static const double gap_bounds[] = {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2};
static const double ratio_bounds[] = {0.5, 0.7, 0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.5, 2, 5};
#define N_JOB_TIME_BOUNDS (sizeof(job_time_bounds) / sizeof(job_time_bounds[0]))
#define N_GAP_BOUNDS      (sizeof(gap_bounds) / sizeof(gap_bounds[0]))
#define N_RATIO_BOUNDS    (sizeof(ratio_bounds) / sizeof(ratio_bounds[0]))
#define N_TIME_BOUNDS     (sizeof(time_bounds) / sizeof(time_bounds[0]))
#define N_JOB_BOUNDS      (sizeof(job_bounds) / sizeof(job_bounds[0]))
_Static_assert(N_TIME_BOUNDS < METRICS_BUCKETS && N_JOB_TIME_BOUNDS < METRICS_BUCKETS, "one more bucket is +Inf");

static size_t code_index(enum mla_status code)
{
    size_t internal = 0;
    for (size_t i = 0; i < N_CODES; i++) {
        if (codes[i].code == (uint32_t)code)
            return i;
        if (codes[i].code == MLA_INTERNAL)
            internal = i;
    }
    return internal;
}

void metrics_count_request(struct metrics *m, uint16_t type)
{
    for (size_t i = 0; i < N_TYPES; i++)
        if (request_types[i].type == type)
            m->requests[i]++;
}

void metrics_count_reply(struct metrics *m, enum mla_status code)
{
    m->replies[code_index(code)]++;
}

void metrics_count_job(struct metrics *m, enum mla_status code)
{
    m->jobs[code_index(code)]++;
}

uint64_t metrics_of_code(const uint64_t *counts, enum mla_status code)
{
    return counts[code_index(code)];
}

void metrics_count_fault(struct metrics *m, enum mla_status code)
{
    m->faults[code_index(code)]++;
}

void metrics_count_step(struct metrics *m, enum mla_status code, uint32_t layers_done)
{
    m->steps[code_index(code)]++;
    m->step_layers += layers_done;
}

void metrics_count_step_work(struct metrics *m, const struct be_step_work *work)
{
    m->step_launches += work->launches;
    m->step_launches_ahead += work->ahead;
    m->step_launch_ns += work->run_ns;
    m->step_predicted_ns += work->predicted_ns;
    m->tiles += work->tiles;
    m->items += work->items;
    m->reduces += work->reduces;
    m->useful_rows += work->useful_rows;
    m->row_slots += work->row_slots;
    m->item_units += work->item_units;
    m->unit_slots += work->unit_slots;
    m->pages += work->pages;
    m->waves += work->waves;
}

static void observe(struct metrics_histogram *h, const double *bounds, size_t n, double value)
{
    size_t i = 0;
    while (i < n && value > bounds[i])
        i++;
    h->buckets[i]++;
    h->count++;
    h->sum += value;
}

void metrics_observe_us(struct metrics_histogram *h, uint64_t us)
{
    observe(h, time_bounds, N_TIME_BOUNDS, (double)us * 1e-6);
}

void metrics_observe_ns(struct metrics_histogram *h, uint64_t ns)
{
    observe(h, time_bounds, N_TIME_BOUNDS, (double)ns * 1e-9);
}

void metrics_observe_jobs(struct metrics_histogram *h, uint64_t jobs)
{
    observe(h, job_bounds, N_JOB_BOUNDS, (double)jobs);
}

void metrics_observe_job_us(struct metrics_histogram *h, uint64_t us)
{
    observe(h, job_time_bounds, N_JOB_TIME_BOUNDS, (double)us * 1e-6);
}

void metrics_launch_end(struct metrics *m, uint64_t gap_ns, uint64_t started_ns, uint64_t ended_ns,
                        uint64_t predicted_ns)
{
    uint64_t took = ended_ns - started_ns;
    if (gap_ns != UINT64_MAX)
        observe(&m->gap_seconds, gap_bounds, N_GAP_BOUNDS, (double)gap_ns * 1e-9);
    if (predicted_ns > 0)
        observe(&m->prediction_ratio, ratio_bounds, N_RATIO_BOUNDS, (double)took / (double)predicted_ns);
    m->launch_ns += took;
}

void metrics_observe_stages(struct metrics *m, const uint64_t *points_ns)
{
    for (size_t i = 0; i < METRICS_STAGES; i++)
        if (points_ns[i] == 0 || points_ns[i + 1] < points_ns[i])
            return;
    for (size_t i = 0; i < METRICS_STAGES; i++)
        m->stage_ns[i] += points_ns[i + 1] - points_ns[i];
    m->stage_jobs++;
}

/* ---- rendering ---- */

#define FAMILIES_MAX 96

struct out {
    struct mla_arena *arena;
    struct mla_metric *families;
    size_t n;
    struct mla_sample *samples; /* of the family being filled */
    size_t n_samples, cap_samples;
    bool failed;
};

static void family(struct out *o, const char *name, enum mla_metric_type type, const char *help, size_t samples)
{
    o->samples = mla_arena_take(o->arena, samples * sizeof(*o->samples), _Alignof(struct mla_sample));
    if (o->failed || o->samples == NULL || o->n == FAMILIES_MAX) {
        o->failed = true;
        return;
    }
    o->n_samples = 0;
    o->cap_samples = samples;
    struct mla_metric *f = &o->families[o->n++];
    *f = (struct mla_metric){.name = name, .help = help, .type = type, .samples = o->samples};
}

static void sample(struct out *o, const char *suffix, double value, const char *labels_fmt, ...)
    __attribute__((format(printf, 4, 5)));
static void sample(struct out *o, const char *suffix, double value, const char *labels_fmt, ...)
{
    if (o->failed || o->n_samples == o->cap_samples) {
        o->failed = true;
        return;
    }
    const char *labels = "";
    if (labels_fmt[0] != '\0') {
        char text[256];
        va_list ap;
        va_start(ap, labels_fmt);
        int n = vsnprintf(text, sizeof(text), labels_fmt, ap);
        va_end(ap);
        char *copy = n < 0 || (size_t)n >= sizeof(text) ? NULL : mla_arena_take(o->arena, (size_t)n + 1, 1);
        if (copy == NULL) {
            o->failed = true;
            return;
        }
        memcpy(copy, text, (size_t)n + 1);
        labels = copy;
    }
    o->samples[o->n_samples++] = (struct mla_sample){.suffix = suffix, .labels = labels, .value = value};
    o->families[o->n - 1].n_samples = o->n_samples;
}

static void single(struct out *o, const char *name, enum mla_metric_type type, const char *help, uint64_t value)
{
    family(o, name, type, help, 1);
    sample(o, "", (double)value, "%s", "");
}

static void seconds(struct out *o, const char *name, const char *help, uint64_t ns)
{
    family(o, name, MLA_METRIC_COUNTER, help, 1);
    sample(o, "", (double)ns * 1e-9, "%s", "");
}

static void by_code(struct out *o, const char *name, const char *help, const uint64_t *counts, const char *label,
                    uint32_t first)
{
    family(o, name, MLA_METRIC_COUNTER, help, N_CODES);
    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i].code >= first && codes[i].code <= CODE_LAST)
            sample(o, "", (double)counts[i], "%s=\"%s\"", label, codes[i].name);
}

static void histogram(struct out *o, const char *name, const char *help, const struct metrics_histogram *h,
                      const double *bounds, size_t n)
{
    family(o, name, MLA_METRIC_HISTOGRAM, help, n + 3);
    uint64_t below = 0;
    for (size_t i = 0; i < n; i++) {
        below += h->buckets[i];
        sample(o, "_bucket", (double)below, "le=\"%g\"", bounds[i]);
    }
    sample(o, "_bucket", (double)h->count, "le=\"+Inf\"");
    sample(o, "_sum", h->sum, "%s", "");
    sample(o, "_count", (double)h->count, "%s", "");
}

static void render_work(struct out *o, const struct metrics *m)
{
    family(o, "mlad_requests_total", MLA_METRIC_COUNTER, "Requests received, by type.", N_TYPES);
    for (size_t i = 0; i < N_TYPES; i++)
        sample(o, "", (double)m->requests[i], "type=\"%s\"", request_types[i].name);
    by_code(o, "mlad_replies_total", "Requests answered, by status.", m->replies, "status", 0);
    by_code(o, "mlad_jobs_total", "Decode jobs answered, by status.", m->jobs, "status", 0);
    by_code(o, "mlad_steps_total", "Captured steps answered, by status.", m->steps, "status", 0);
    single(o, "mlad_step_layers_total", MLA_METRIC_COUNTER, "Layers of captured steps that have run.", m->step_layers);
    by_code(o, "mlad_sequence_faults_total", "Sequences of answered jobs that faulted, by kind.", m->faults, "kind",
            MLA_PAGE_OUT_OF_RANGE);
    histogram(o, "mlad_job_wait_seconds", "From a job's arrival to its ready word.", &m->wait_seconds, time_bounds,
              N_TIME_BOUNDS);
    histogram(o, "mlad_job_queue_seconds", "From ready to launch.", &m->queue_seconds, time_bounds, N_TIME_BOUNDS);
    histogram(o, "mlad_job_run_seconds", "From launch to the end of the batch.", &m->run_seconds, time_bounds,
              N_TIME_BOUNDS);
    histogram(o, "mlad_job_seconds", "From a job's arrival to the end of its batch.", &m->job_seconds, job_time_bounds,
              N_JOB_TIME_BOUNDS);
    histogram(o, "mlad_prediction_ratio", "What a launch took, over what the cost model predicted.",
              &m->prediction_ratio, ratio_bounds, N_RATIO_BOUNDS);
    histogram(o, "mlad_batch_gap_seconds",
              "Between two launches, the second of which was queued before the first ended, by the device's clock; of "
              "a sample.",
              &m->gap_seconds, gap_bounds, N_GAP_BOUNDS);
    family(o, "mlad_job_stage_seconds_total", MLA_METRIC_COUNTER,
           "Time that jobs took to each point of their way, from the one before.", METRICS_STAGES);
    for (size_t i = 0; i < METRICS_STAGES; i++)
        sample(o, "", (double)m->stage_ns[i] * 1e-9, "until=\"%s\"", stages[i]);
    single(o, "mlad_job_stage_jobs_total", MLA_METRIC_COUNTER, "Jobs that those times are of.", m->stage_jobs);
    seconds(o, "mlad_launch_seconds_total", "Time in which launches of jobs ran.", m->launch_ns);
    seconds(o, "mlad_step_run_seconds_total", "Time in which layers of steps ran, each step's for itself.",
            m->step_run_ns);
    seconds(o, "mlad_step_launch_seconds_total", "Time in which launches of layers of steps ran, of steps that ended.",
            m->step_launch_ns);
    seconds(o, "mlad_step_predicted_seconds_total", "What the cost model predicted for those.", m->step_predicted_ns);
    single(o, "mlad_step_launches_total", MLA_METRIC_COUNTER,
           "Those launches; a layer may have several, and share them with layers of other steps.", m->step_launches);
    single(o, "mlad_step_launches_ahead_total", MLA_METRIC_COUNTER,
           "Of those, the ones whose prepare kernel had run before their words came.", m->step_launches_ahead);
    single(o, "mlad_table_mirror_uses_total", MLA_METRIC_COUNTER,
           "Decodes and captured steps whose page tables were read from the copy on the device.", m->mirror_uses);
    histogram(o, "mlad_batch_jobs", "Jobs per launch.", &m->batch_jobs, job_bounds, N_JOB_BOUNDS);
    single(o, "mlad_batches_total", MLA_METRIC_COUNTER, "Launches of jobs.", m->batches);
    single(o, "mlad_few_rows_batches_total", MLA_METRIC_COUNTER, "Of those, the ones by the kernels for few rows.",
           m->few_rows_batches);
    single(o, "mlad_plans_total", MLA_METRIC_COUNTER, "Plans made; a batch that a job leaves is planned again.",
           m->stages);
    single(o, "mlad_plans_failed_total", MLA_METRIC_COUNTER,
           "Of those, the ones that failed; jobs are then planned apart.", m->plans_failed);
    single(o, "mlad_tiles_total", MLA_METRIC_COUNTER,
           "Tiles launched, of jobs and of steps that ended, as the next ones.", m->tiles);
    single(o, "mlad_items_total", MLA_METRIC_COUNTER, "Work items launched.", m->items);
    single(o, "mlad_split_tiles_total", MLA_METRIC_COUNTER, "Tiles that were cut and reduced.", m->reduces);
    single(o, "mlad_rows_total", MLA_METRIC_COUNTER, "Query rows launched.", m->useful_rows);
    single(o, "mlad_row_slots_total", MLA_METRIC_COUNTER, "Row slots that those rows took.", m->row_slots);
    single(o, "mlad_item_units_total", MLA_METRIC_COUNTER, "Units that the items took.", m->item_units);
    single(o, "mlad_unit_slots_total", MLA_METRIC_COUNTER, "Units of the waves that those ran in.", m->unit_slots);
    single(o, "mlad_pages_total", MLA_METRIC_COUNTER, "Pages of work items launched.", m->pages);
    single(o, "mlad_waves_total", MLA_METRIC_COUNTER, "Times that launches filled the units, each launch rounded up.",
           m->waves);
}

static void render_threads(struct out *o, const struct metrics *m)
{
    histogram(o, "mlad_loop_lag_seconds", "For how long one turn of the loop kept all others waiting.",
              &m->turn_seconds, time_bounds, N_TIME_BOUNDS);
    histogram(o, "mlad_device_lag_seconds", "From a launch handed on until the device thread began with it.",
              &m->taken_seconds, time_bounds, N_TIME_BOUNDS);
    histogram(o, "mlad_release_seconds", "From a client's end until nothing of it was mapped, pinned or queued.",
              &m->release_seconds, time_bounds, N_TIME_BOUNDS);
}

static void render_health(struct out *o, enum mla_health now)
{
    static const struct {
        enum mla_health health;
        const char *name;
    } all[] = {{MLA_HEALTH_STARTING, "starting"},
               {MLA_HEALTH_READY, "ready"},
               {MLA_HEALTH_DEGRADED, "degraded"},
               {MLA_HEALTH_DRAINING, "draining"},
               {MLA_HEALTH_FAILED, "failed"}};
    family(o, "mlad_health", MLA_METRIC_GAUGE, "1 for the state that the daemon is in.", sizeof(all) / sizeof(all[0]));
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        sample(o, "", now == all[i].health, "state=\"%s\"", all[i].name);
}

static void render_degraded(struct out *o, const struct health *checks)
{
    family(o, "mlad_degraded", MLA_METRIC_GAUGE, "1 for each reason why the daemon is degraded.", HEALTH_REASONS);
    for (unsigned i = 0; i < HEALTH_REASONS; i++)
        sample(o, "", checks != NULL && health_is(checks, (enum health_reason)i), "reason=\"%s\"",
               health_name((enum health_reason)i));
    family(o, "mlad_degraded_total", MLA_METRIC_COUNTER, "Times that the daemon became degraded, by reason.",
           HEALTH_REASONS);
    for (unsigned i = 0; i < HEALTH_REASONS; i++)
        sample(o, "", checks == NULL ? 0 : (double)checks->raised[i], "reason=\"%s\"",
               health_name((enum health_reason)i));
}

/* name as a label's value. */
static const char *escaped(const char *name, char *out, size_t out_bytes)
{
    size_t n = 0;
    for (; *name != '\0' && n + 2 < out_bytes; name++) {
        if (*name == '"' || *name == '\\')
            out[n++] = '\\';
        out[n++] = *name;
    }
    out[n] = '\0';
    return out;
}

static void render_clients(struct out *o, const struct metrics_gauges *g)
{
    char name[2 * MLA_MAX_NAME_BYTES + 2];
    family(o, "mlad_client_mapped_bytes", MLA_METRIC_GAUGE,
           "Declared bytes of a client's registered regions, until they are released.", g->n_per_client);
    for (size_t i = 0; i < g->n_per_client; i++) {
        const struct metrics_client *c = &g->per_client[i];
        sample(o, "", (double)c->mapped_bytes, "client=\"%016llx\",name=\"%s\"", (unsigned long long)c->id,
               escaped(c->name, name, sizeof(name)));
    }
}

static void render_state(struct out *o, const struct metrics_gauges *g)
{
    family(o, "mlad_build_info", MLA_METRIC_GAUGE, "Always 1.", 1);
    sample(o, "", 1, "version=\"%s\",backend=\"%s\",gpu_uuid=\"%s\"", g->version, g->backend, g->gpu_uuid);
    family(o, "mlad_uptime_seconds", MLA_METRIC_GAUGE, "Since the daemon started.", 1);
    sample(o, "", (double)g->uptime_us * 1e-6, "%s", "");
    single(o, "mlad_ready", MLA_METRIC_GAUGE, "1 while new work is taken.", (uint64_t)g->ready);
    render_health(o, g->health);
    render_degraded(o, g->checks);
    single(o, "mlad_clients", MLA_METRIC_GAUGE, "Connected clients.", g->clients);
    single(o, "mlad_regions", MLA_METRIC_GAUGE, "Registered regions.", g->regions);
    single(o, "mlad_mapped_bytes", MLA_METRIC_GAUGE, "Declared bytes of registered regions.", g->mapped_bytes);
    render_clients(o, g);
    single(o, "mlad_caches", MLA_METRIC_GAUGE, "Defined caches.", g->caches);
    single(o, "mlad_published_caches", MLA_METRIC_GAUGE, "Published caches.", g->published);
    single(o, "mlad_attachments", MLA_METRIC_GAUGE, "Attachments to published caches.", g->attachments);
    single(o, "mlad_table_sets", MLA_METRIC_GAUGE, "Table sets held.", g->table_sets);
    single(o, "mlad_table_mirror_bytes", MLA_METRIC_GAUGE,
           "Of their page tables, what has a copy on the device or gets one.", g->mirror_bytes);
    family(o, "mlad_jobs", MLA_METRIC_GAUGE, "Jobs in flight, by state.", 4);
    sample(o, "", (double)g->jobs_waiting, "state=\"waiting\"");
    sample(o, "", (double)g->jobs_queued, "state=\"queued\"");
    sample(o, "", (double)g->jobs_staged, "state=\"staged\"");
    sample(o, "", (double)g->jobs_running, "state=\"running\"");
    single(o, "mlad_workspace_bytes", MLA_METRIC_GAUGE, "Memory for partials.", g->workspace_bytes);
    single(o, "mlad_device_memory_bytes", MLA_METRIC_GAUGE,
           "Memory of the GPU that mlad holds while idle: context, kernels, workspace, copies of page tables.",
           g->device_memory_bytes);
    single(o, "mlad_units", MLA_METRIC_GAUGE, "Units that the planner fills.", g->units);
    single(o, "mlad_connections_accepted_total", MLA_METRIC_COUNTER, "Connections accepted.", g->accepted);
    single(o, "mlad_connections_refused_total", MLA_METRIC_COUNTER, "Connections refused.", g->refused);
    single(o, "mlad_connections_closed_total", MLA_METRIC_COUNTER, "Connections ended.", g->closed);
    single(o, "mlad_frames_received_total", MLA_METRIC_COUNTER, "Frames received.", g->frames_in);
    single(o, "mlad_frames_sent_total", MLA_METRIC_COUNTER, "Frames queued to be sent.", g->frames_out);
    single(o, "mlad_received_bytes_total", MLA_METRIC_COUNTER, "Bytes received.", g->bytes_in);
    single(o, "mlad_sent_bytes_total", MLA_METRIC_COUNTER, "Bytes sent.", g->bytes_out);
    single(o, "mlad_protocol_errors_total", MLA_METRIC_COUNTER, "Connections ended for breaking the protocol.",
           g->protocol_errors);
    single(o, "mlad_malformed_bodies_total", MLA_METRIC_COUNTER, "Requests whose body was refused by the codec.",
           g->malformed_bodies);
    single(o, "mlad_slow_peers_total", MLA_METRIC_COUNTER, "Connections cut for being slow.", g->slow_peers);
    single(o, "mlad_accept_pauses_total", MLA_METRIC_COUNTER, "Times that accepting paused for want of descriptors.",
           g->accept_pauses);
}

int metrics_render(const struct metrics *m, const struct metrics_gauges *gauges, struct mla_arena *arena,
                   struct mla_metrics_reply *reply)
{
    struct out o = {.arena = arena};
    o.families = mla_arena_take(arena, FAMILIES_MAX * sizeof(*o.families), _Alignof(struct mla_metric));
    if (o.families == NULL)
        return -ENOMEM;
    render_state(&o, gauges);
    render_work(&o, m);
    render_threads(&o, m);
    if (o.failed)
        return -ENOMEM;
    reply->metrics = o.families;
    reply->n_metrics = o.n;
    return 0;
}
