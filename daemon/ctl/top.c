/* mlactl top: the view drawn, once or over and over. */
#include "daemon/ctl/top.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ctl/ctl.h"
#include "daemon/util/json.h"

#define CLIENTS_SHOWN 20
#define ANSWERS_KEPT  256 /* clients whose answers of the last reading are known */

static const struct {
    const char *name, *key;
} timings[TOP_TIMINGS] = {
    {"wait for the ready word", "wait"}, {"queue", "queue"},         {"run", "run"},
    {"arrival to answer", "job"},        {"gap of launches", "gap"},
};

/* One look at the daemon. */
struct look {
    struct mla_daemon_info *daemon;
    struct mla_client_list *clients;
    struct mla_metrics_info *metrics;
    struct top_reading reading;
};

/* Of the look before. */
struct past {
    struct top_reading reading;
    size_t n;
    struct {
        uint64_t client, answered;
    } answers[ANSWERS_KEPT];
};

static int take_look(struct ctl *ctl, struct look *l)
{
    memset(l, 0, sizeof(*l));
    if (mla_read_daemon(ctl->client, ctl->timeout_us, &l->daemon) != MLA_OK ||
        mla_read_clients(ctl->client, ctl->timeout_us, &l->clients) != MLA_OK ||
        mla_read_metrics(ctl->client, ctl->timeout_us, &l->metrics) != MLA_OK)
        return ctl_fail(ctl, "top");
    top_read(l->metrics, &l->reading);
    return CTL_EXIT_OK;
}

static void drop_look(struct look *l)
{
    mla_free(l->daemon);
    mla_free(l->clients);
    mla_free(l->metrics);
}

static void remember(struct past *past, const struct look *l)
{
    past->reading = l->reading;
    past->n = 0;
    for (size_t i = 0; i < l->clients->n_clients && past->n < ANSWERS_KEPT; i++, past->n++) {
        past->answers[past->n].client = l->clients->clients[i]->client_id;
        past->answers[past->n].answered = l->clients->clients[i]->jobs_answered;
    }
}

static double answers_per_s(const struct past *past, const struct mla_client_info *c, double seconds)
{
    double before = 0;
    for (size_t i = 0; i < past->n; i++)
        if (past->answers[i].client == c->client_id)
            before = (double)past->answers[i].answered;
    return seconds > 0 ? ((double)c->jobs_answered - before) / seconds : (double)NAN;
}

/* The busiest first. */
static int by_load(const void *a, const void *b)
{
    const struct mla_client_info *x = *(const struct mla_client_info *const *)a;
    const struct mla_client_info *y = *(const struct mla_client_info *const *)b;
    if (x->jobs_in_flight != y->jobs_in_flight)
        return x->jobs_in_flight < y->jobs_in_flight ? 1 : -1;
    return x->jobs_answered < y->jobs_answered ? 1 : x->jobs_answered > y->jobs_answered ? -1 : 0;
}

/* ---- text ---- */

/* "-" for what did not happen. */
static const char *number(char text[32], double value, int decimals)
{
    if (isnan(value))
        snprintf(text, 32, "-");
    else
        snprintf(text, 32, "%.*f", decimals, value);
    return text;
}

#define N(value, decimals) number((char[32]){0}, value, decimals)

static void print_head(const struct look *l, const struct top_view *v, const char *end)
{
    const struct mla_daemon_info *d = l->daemon;
    const struct top_reading *r = &l->reading;
    printf("mlad %s, %s, %s on %s, up %.0f s; the last %s s%s\n", d->version, ctl_health_name(d->health), d->backend,
           d->device_name, (double)d->uptime_us * 1e-6, N(v->seconds, 1), end);
    printf("GPU busy %s %%   clients %" PRIu64 "   jobs: waiting %.0f, queued %.0f, staged %.0f, running %.0f%s\n",
           N(100 * v->gpu_busy, 1), d->clients, r->waiting, r->queued, r->staged, r->running, end);
    printf("decodes/s %s   batches/s %s of %s   steps/s %s of %s layers, %s a launch%s\n", N(v->jobs_per_s, 0),
           N(v->batches_per_s, 0), N(v->jobs_per_batch, 2), N(v->steps_per_s, 0), N(v->layers_per_step, 1),
           N(v->layers_per_launch, 2), end);
    printf("tiles filled %s %%   splits %s   units %u of %u rows   table sets %.0f   mapped %.2f GiB%s\n",
           N(100 * v->tile_occupancy, 1), N(v->splits, 2), d->units, d->rows_per_unit, r->table_sets,
           r->mapped_bytes / (1024.0 * 1024 * 1024), end);
    printf("launch time over its prediction: mean %s, p10 %s, p50 %s, p90 %s; of layers: mean %s%s\n",
           N(v->prediction_mean, 3), N(v->prediction_p10, 2), N(v->prediction_p50, 2), N(v->prediction_p90, 2),
           N(v->step_prediction_mean, 3), end);
}

static void print_timings(const struct top_view *v, const char *end)
{
    printf("%s\n%-24s %10s %10s %10s %10s %10s %10s%s\n", end, "us", "count", "mean", "p50", "p90", "p99", "p99.9",
           end);
    for (size_t i = 0; i < TOP_TIMINGS; i++)
        printf("%-24s %10.0f %10s %10s %10s %10s %10s%s\n", timings[i].name, v->timings[i].count,
               N(v->timings[i].mean_us, 1), N(v->timings[i].p50_us, 1), N(v->timings[i].p90_us, 1),
               N(v->timings[i].p99_us, 1), N(v->timings[i].p999_us, 1), end);
}

static void print_clients(const struct look *l, const struct past *past, const struct top_view *v, const char *end)
{
    const struct mla_client_info **sorted = calloc(l->clients->n_clients + 1, sizeof(const struct mla_client_info *));
    if (sorted == NULL)
        return;
    memcpy(sorted, l->clients->clients, l->clients->n_clients * sizeof(*sorted));
    qsort(sorted, l->clients->n_clients, sizeof(*sorted), by_load);
    printf("%s\n%-24s %8s %6s %9s %12s %12s %14s%s\n", end, "client", "pid", "uid", "in_flight", "answers/s",
           "answered", "mapped_bytes", end);
    for (size_t i = 0; i < l->clients->n_clients && i < CLIENTS_SHOWN; i++)
        printf("%-24s %8u %6u %9" PRIu64 " %12s %12" PRIu64 " %14" PRIu64 "%s\n", sorted[i]->name, sorted[i]->pid,
               sorted[i]->uid, sorted[i]->jobs_in_flight, N(answers_per_s(past, sorted[i], v->seconds), 1),
               sorted[i]->jobs_answered, sorted[i]->mapped_bytes, end);
    if (l->clients->n_clients > CLIENTS_SHOWN)
        printf("and %zu more%s\n", l->clients->n_clients - CLIENTS_SHOWN, end);
    free(sorted);
}

/* ---- JSON ---- */

static void print_json(const struct look *l, const struct past *past, const struct top_view *v)
{
    const struct top_reading *r = &l->reading;
    const struct {
        const char *key;
        double value;
    } rows[] = {
        {"seconds", v->seconds},
        {"gpu_busy", v->gpu_busy},
        {"jobs_waiting", r->waiting},
        {"jobs_queued", r->queued},
        {"jobs_staged", r->staged},
        {"jobs_running", r->running},
        {"jobs_per_second", v->jobs_per_s},
        {"batches_per_second", v->batches_per_s},
        {"jobs_per_batch", v->jobs_per_batch},
        {"steps_per_second", v->steps_per_s},
        {"layers_per_step", v->layers_per_step},
        {"layers_per_launch", v->layers_per_launch},
        {"tile_occupancy", v->tile_occupancy},
        {"splits", v->splits},
        {"prediction_mean", v->prediction_mean},
        {"prediction_p10", v->prediction_p10},
        {"prediction_p50", v->prediction_p50},
        {"prediction_p90", v->prediction_p90},
        {"step_prediction_mean", v->step_prediction_mean},
    };
    struct json j;
    json_init(&j, stdout);
    json_object(&j, NULL);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        json_double(&j, rows[i].key, rows[i].value);
    json_object(&j, "timings");
    for (size_t i = 0; i < TOP_TIMINGS; i++) {
        json_object(&j, timings[i].key);
        json_double(&j, "count", v->timings[i].count);
        json_double(&j, "mean_us", v->timings[i].mean_us);
        json_double(&j, "p50_us", v->timings[i].p50_us);
        json_double(&j, "p90_us", v->timings[i].p90_us);
        json_double(&j, "p99_us", v->timings[i].p99_us);
        json_double(&j, "p99.9_us", v->timings[i].p999_us);
        json_end(&j);
    }
    json_end(&j);
    json_array(&j, "clients");
    for (size_t i = 0; i < l->clients->n_clients; i++) {
        const struct mla_client_info *c = l->clients->clients[i];
        json_object(&j, NULL);
        json_string(&j, "name", c->name);
        json_u64(&j, "pid", c->pid);
        json_u64(&j, "jobs_in_flight", c->jobs_in_flight);
        json_u64(&j, "jobs_answered", c->jobs_answered);
        json_double(&j, "answers_per_second", answers_per_s(past, c, v->seconds));
        json_end(&j);
    }
    json_end_array(&j);
    json_end(&j);
    putchar('\n');
}

/* ---- the loop ---- */

static void draw(const struct ctl *ctl, const struct look *l, const struct past *past)
{
    struct top_view v;
    top_view(&past->reading, &l->reading, &v);
    if (ctl->json) {
        print_json(l, past, &v);
    } else {
        /* Over what was drawn before: from the corner, each line to its end, and nothing below. */
        bool over = !ctl->once && isatty(STDOUT_FILENO);
        const char *end = over ? "\033[K" : "";
        fputs(over ? "\033[H" : "", stdout);
        print_head(l, &v, end);
        print_timings(&v, end);
        print_clients(l, past, &v, end);
        fputs(over ? "\033[J" : "\n", stdout);
    }
    fflush(stdout);
}

int ctl_top(struct ctl *ctl)
{
    static struct past past; /* nothing: the first look shows the time since the daemon's start */
    const struct timespec pause = {.tv_sec = (time_t)(ctl->interval_us / 1000000),
                                   .tv_nsec = (long)(ctl->interval_us % 1000000) * 1000};
    for (;;) {
        struct look l;
        int code = take_look(ctl, &l);
        if (code == CTL_EXIT_OK) {
            draw(ctl, &l, &past);
            remember(&past, &l);
        }
        drop_look(&l);
        if (code != CTL_EXIT_OK || ctl->once || ferror(stdout))
            return code;
        nanosleep(&pause, NULL);
    }
}
