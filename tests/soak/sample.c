/* One look a second at the daemon: /proc, its metrics, what its clients saw since the look before. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/soak/soak.h"

const char *const column_names[COLUMNS] = {
#define COLUMN(name, decimals) #name,
    COLUMN_LIST(COLUMN)
#undef COLUMN
};
static const int column_decimals[COLUMNS] = {
#define COLUMN(name, decimals) decimals,
    COLUMN_LIST(COLUMN)
#undef COLUMN
};

/* ---- /proc ---- */

static double rss_kib(pid_t pid)
{
    char path[64], line[256];
    unsigned long long kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "VmRSS: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return (double)kib;
}

static double descriptors(pid_t pid)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n < 2 ? 0 : n - 2;
}

static uint64_t cpu_us(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long long user = 0, system = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    /* The name, in parentheses, may hold anything. */
    char *rest = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    fclose(f);
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2)
        return 0;
    return (user + system) * 1000000 / (uint64_t)sysconf(_SC_CLK_TCK);
}

/* ---- metrics ---- */

static const struct mla_metric_family *family(const struct mla_metrics_info *m, const char *name)
{
    for (size_t i = 0; i < m->n_families; i++)
        if (strcmp(m->families[i]->name, name) == 0)
            return m->families[i];
    return NULL;
}

/* The sum of a family's samples with that suffix. */
static double value(const struct mla_metrics_info *m, const char *name, const char *suffix)
{
    const struct mla_metric_family *f = family(m, name);
    double sum = 0;
    for (size_t i = 0; f && i < f->n_samples; i++)
        if (strcmp(f->samples[i].suffix, suffix) == 0)
            sum += f->samples[i].value;
    return sum;
}

static void read_lag(const struct mla_metrics_info *m, struct reading *r)
{
    const struct mla_metric_family *f = family(m, "mlad_loop_lag_seconds");
    for (size_t i = 0; f && i < f->n_samples && r->n_lag < 64; i++) {
        const struct mla_metric_sample *s = &f->samples[i];
        if (strcmp(s->suffix, "_bucket") != 0)
            continue;
        r->lag_bounds[r->n_lag] = strstr(s->labels, "+Inf") ? 1e3 : strtod(strchr(s->labels, '"') + 1, NULL);
        r->lag_below[r->n_lag++] = s->value;
    }
    r->lag_sum = value(m, "mlad_loop_lag_seconds", "_sum");
    r->lag_count = value(m, "mlad_loop_lag_seconds", "_count");
    r->device_sum = value(m, "mlad_device_lag_seconds", "_sum");
    r->device_count = value(m, "mlad_device_lag_seconds", "_count");
}

/* Of what clients saw since the sample before; as it was when they saw nothing. */
static double seen_us(const struct sampler *s, const struct hist *h, double p, enum column column)
{
    return hist_count(h) == 0 ? sampler_last(s, column) : hist_percentile(h, p);
}

/* Upper end of the bucket that the share p of the turns between two readings is not above. */
static double lag_us(const struct reading *now, const struct reading *before, double p)
{
    double n = now->lag_count - before->lag_count;
    for (unsigned i = 0; i < now->n_lag; i++)
        if (now->lag_below[i] - (i < before->n_lag ? before->lag_below[i] : 0) >= p * n)
            return now->lag_bounds[i] * 1e6;
    return 0;
}

/* ---- samples ---- */

static int take_reading(struct sampler *s, struct reading *r, struct mla_metrics_info **metrics)
{
    memset(r, 0, sizeof(*r));
    if (mla_read_metrics(s->client, CALL_US, metrics) != MLA_OK)
        return -1;
    r->at_us = soak_now_us();
    r->cpu_us = cpu_us(s->pid);
    hist_add_difference(&r->decode_us, &load->decode_us, &(struct hist){{0}});
    hist_add_difference(&r->ping_us, &load->ping_us, &(struct hist){{0}});
    read_lag(*metrics, r);
    return 0;
}

int sampler_start(struct sampler *s, pid_t daemon, const char *socket, size_t cap)
{
    struct mla_metrics_info *metrics = NULL;
    *s = (struct sampler){.pid = daemon, .cap = cap};
    for (unsigned c = 0; c < COLUMNS; c++) {
        s->columns[c] = calloc(cap, sizeof(double));
        if (!s->columns[c])
            return -1;
    }
    s->client = open_client(&(struct place){.socket = socket}, NULL, NULL);
    if (!s->client || take_reading(s, &s->before, &metrics) != 0)
        return -1;
    mla_free(metrics);
    s->start_us = soak_now_us();
    return 0;
}

int sampler_take(struct sampler *s)
{
    static struct reading now;
    struct hist decodes = {{0}}, pings = {{0}};
    struct mla_metrics_info *metrics = NULL;
    struct mla_health_info *health = NULL;
    double loads[1] = {0}, v[COLUMNS];
    const struct reading *before = &s->before;
    if (s->n == s->cap || take_reading(s, &now, &metrics) != 0)
        return -1;
    hist_add_difference(&decodes, &now.decode_us, &before->decode_us);
    hist_add_difference(&pings, &now.ping_us, &before->ping_us);
    double took_s = (double)(now.at_us - before->at_us) * 1e-6, n = (double)hist_count(&decodes);
    double turns = now.lag_count - before->lag_count, launches = now.device_count - before->device_count;
    if (mla_read_health(s->client, CALL_US, &health) == MLA_OK)
        v[COLUMN_health] = health->state;
    else
        v[COLUMN_health] = 0;
    mla_free(health);
    (void)getloadavg(loads, 1);
    v[COLUMN_t_s] = (double)(now.at_us - s->start_us) * 1e-6;
    v[COLUMN_rss_kib] = rss_kib(s->pid);
    v[COLUMN_descriptors] = descriptors(s->pid);
    v[COLUMN_decodes_per_s] = n / took_s;
    v[COLUMN_decode_p50_us] = seen_us(s, &decodes, 0.5, COLUMN_decode_p50_us);
    v[COLUMN_decode_p99_us] = seen_us(s, &decodes, 0.99, COLUMN_decode_p99_us);
    v[COLUMN_pings_per_s] = (double)hist_count(&pings) / took_s;
    v[COLUMN_ping_p50_us] = seen_us(s, &pings, 0.5, COLUMN_ping_p50_us);
    v[COLUMN_ping_p99_us] = seen_us(s, &pings, 0.99, COLUMN_ping_p99_us);
    v[COLUMN_loop_lag_mean_us] = turns > 0 ? (now.lag_sum - before->lag_sum) * 1e6 / turns : 0;
    v[COLUMN_loop_lag_p99_us] = lag_us(&now, before, 0.99);
    v[COLUMN_loop_lag_max_us] = lag_us(&now, before, 1);
    v[COLUMN_device_lag_mean_us] = launches > 0 ? (now.device_sum - before->device_sum) * 1e6 / launches : 0;
    v[COLUMN_cpu_us_per_decode] =
        n > 0 ? (double)(now.cpu_us - before->cpu_us) / n : sampler_last(s, COLUMN_cpu_us_per_decode);
    v[COLUMN_clients] = value(metrics, "mlad_clients", "");
    v[COLUMN_regions] = value(metrics, "mlad_regions", "");
    v[COLUMN_mapped_kib] = value(metrics, "mlad_mapped_bytes", "") / 1024;
    v[COLUMN_table_sets] = value(metrics, "mlad_table_sets", "");
    v[COLUMN_jobs] = value(metrics, "mlad_jobs", "");
    v[COLUMN_held] = (double)__atomic_load_n(&load->held, __ATOMIC_RELAXED);
    v[COLUMN_load] = loads[0];
    mla_free(metrics);
    for (unsigned c = 0; c < COLUMNS; c++)
        s->columns[c][s->n] = v[c];
    s->n++;
    s->before = now;
    return 0;
}

double sampler_last(const struct sampler *s, enum column column)
{
    return s->n == 0 ? 0 : s->columns[column][s->n - 1];
}

void sampler_end(struct sampler *s)
{
    mla_close(s->client);
    for (unsigned c = 0; c < COLUMNS; c++)
        free(s->columns[c]);
}

int sampler_write_csv(const struct sampler *s, const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -1;
    for (unsigned c = 0; c < COLUMNS; c++)
        fprintf(f, "%s%s", c ? "," : "", column_names[c]);
    for (size_t i = 0; i < s->n; i++)
        for (unsigned c = 0; c < COLUMNS; c++)
            fprintf(f, "%s%.*f", c ? "," : "\n", column_decimals[c], s->columns[c][i]);
    fprintf(f, "\n");
    return fclose(f) == 0 ? 0 : -1;
}
