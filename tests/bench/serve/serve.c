#include "tests/bench/serve/serve.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/host/cuda_driver.h"
#include "tests/bench/machine.h"
#include "tests/bench/small.h"
#include "tests/bench/stats.h"

#define CPUS_OF_DAEMONS 2
#define CPUS_LEAST      4

/* In a process of its own: this one is to fork others that call CUDA. */
static int probe(void)
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct cuda_driver driver;
        char why[512] = "";
        bool there = cuda_driver_open(NULL, &driver, why, sizeof why) == 0;
        if (!there)
            fprintf(stderr, "mla-bench: skipped: %s\n", why);
        _exit(there ? 0 : BENCH_SKIPPED);
    }
    return pid > 0 && bench_reap(pid) == 0 ? 0 : BENCH_SKIPPED;
}

int serve_open(struct serve *s, int argc, char **argv, struct bench_report *report, bool with_mps)
{
    s->report = report;
    s->mlad = bench_text(s->options, argc, argv, "--mlad");
    s->setting = bench_text(s->options, argc, argv, "--set");
    s->ms = bench_number(s->options, argc, argv, "--ms");
    s->rounds = bench_number(s->options, argc, argv, "--rounds");
    long heads = bench_number(s->options, argc, argv, "--heads");
    if (s->ms < 0 || s->rounds < 0 || heads < 0 || bench_options_end(argc, argv) != 0)
        return -1;
    s->heads = (uint32_t)heads;
    s->own_shapes |= heads != 96;
    if (!s->mlad && bench_find_program("mlad", "../../daemon/mlad", s->mlad_beside, sizeof s->mlad_beside) != 0) {
        fputs("mla-bench: no mlad was found: name it with --mlad\n", stderr);
        return -1;
    }
    s->mlad = s->mlad ? s->mlad : s->mlad_beside;
    s->n_cpus = bench_cpus(s->cpus, SERVE_CPUS_MAX);
    s->n_cpus = s->n_cpus < SERVE_CPUS_MAX ? s->n_cpus : SERVE_CPUS_MAX;
    s->n_daemon_cpus = s->n_cpus >= CPUS_LEAST ? CPUS_OF_DAEMONS : 0;
    snprintf(s->none.dir, sizeof s->none.dir, "/tmp/mla-mps-none");
    int rc = probe();
    return rc == 0 && with_mps ? bench_mps_start(&s->mps) : rc;
}

void serve_close(struct serve *s)
{
    bench_mps_stop(&s->mps);
}

void serve_note(struct serve *s, const char *waits)
{
    if (s->n_daemon_cpus == 0)
        bench_note(s->report, "cpus", "nothing is pinned: fewer than %d CPUs", CPUS_LEAST);
    else
        bench_note(s->report, "cpus", "daemons on CPUs %d and %d, a worker each on %d to %d, in turn",
                   s->cpus[s->n_cpus - 2], s->cpus[s->n_cpus - 1], s->cpus[0], s->cpus[s->n_cpus - 3]);
    bench_note(s->report, "rounds", "%ld, interleaved, %ld ms of each way in each; figures are medians of rounds",
               s->rounds, s->ms);
    if (s->setting)
        bench_note(s->report, "setting", "%s, of all daemons", s->setting);
    bench_note(s->report, "waits", "%s", waits);
    bench_note(s->report, "cold_l2", "%s", "each worker's decodes rotate over 150 MiB of pages and more of its own");
}

int serve_daemon(struct serve *s, struct bench_daemon *daemon, const char *mps, const char *const *settings)
{
    const char *all[BENCH_DAEMON_SETTINGS_MAX + 1] = {NULL};
    struct bench_daemon_options options = {.mlad = s->mlad, .backend = "cuda", .settings = all, .mps = mps};
    size_t n = 0;
    while (settings && settings[n] && n + 1 < BENCH_DAEMON_SETTINGS_MAX) {
        all[n] = settings[n];
        n++;
    }
    all[n] = s->setting;
    for (size_t i = 0; i < s->n_daemon_cpus; i++)
        options.cpus[options.n_cpus++] = s->cpus[s->n_cpus - 1 - i];
    return bench_daemon_start(daemon, &options);
}

int serve_cpu(const struct serve *s, size_t i)
{
    return s->n_daemon_cpus == 0 ? -1 : s->cpus[i % (s->n_cpus - s->n_daemon_cpus)];
}

int serve_crew(struct serve *s, struct crew_member *members, size_t n, const struct served_config *config,
               const char *mps)
{
    for (size_t i = 0; i < n; i++)
        if (crew_start(&members[i], served_main, config, mps, serve_cpu(s, i)) != 0)
            return -1;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = crew_ready(&members[i]);
    return rc;
}

void serve_add(struct serve_series *series, double value)
{
    if (series->n < SERVE_ROUNDS_MAX)
        series->values[series->n++] = value;
}

double serve_median(struct serve_series *series)
{
    return series->n > 0 ? bench_stats(series->values, series->n).median : (double)NAN;
}

/* The caller's to mla_free(); NULL: the daemon does not answer. */
static struct mla_metrics_info *read_metrics(const char *socket)
{
    struct mla_options options;
    struct mla_client *client;
    struct mla_metrics_info *metrics = NULL;
    mla_options_init(&options);
    options.socket_path = socket;
    options.name = "mla-bench";
    options.timeout_us = SMALL_TIMEOUT_US;
    if (mla_open(&options, &client, NULL) != MLA_OK)
        return NULL;
    if (mla_read_metrics(client, SMALL_TIMEOUT_US, &metrics) != MLA_OK)
        metrics = NULL;
    mla_close(client);
    return metrics;
}

double serve_metric(const char *socket, const char *name)
{
    struct mla_metrics_info *metrics = read_metrics(socket);
    double value = metrics ? small_metric(metrics, name) : (double)NAN;
    mla_free(metrics);
    return value;
}

int serve_stages_read(const char *socket, struct serve_stages *out)
{
    static const char *const names[SERVE_STAGES] = {"checked",   "staged", "planned", "taken",
                                                    "submitted", "ended",  "heard",   "answered"};
    struct mla_metrics_info *metrics = read_metrics(socket);
    if (!metrics) {
        fputs("mla-bench: a daemon does not tell its metrics\n", stderr);
        return -1;
    }
    out->jobs = small_metric(metrics, "mlad_job_stage_jobs_total");
    for (size_t i = 0; i < SERVE_STAGES; i++) {
        char labels[64];
        snprintf(labels, sizeof labels, "until=\"%s\"", names[i]);
        out->seconds[i] = small_metric_of(metrics, "mlad_job_stage_seconds_total", labels);
    }
    mla_free(metrics);
    return 0;
}
