/* What came of it: judgements, totals, the machine. */
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "tests/soak/soak.h"

#define LONG_S 120u /* from here on the bounds are those that one has of a service; below, those that noise allows */

#ifdef __SANITIZE_ADDRESS__
#define RSS_COUNTS false /* what is freed is kept for a while */
#else
#define RSS_COUNTS true
#endif

struct judged {
    enum column column;
    struct judge_bound bound, bound_short;
    bool counts;
};

static const struct judged all[] = {
    {COLUMN_rss_kib, {"rss_kib", 1.02, 1024, false}, {"rss_kib", 1.1, 8192, false}, RSS_COUNTS},
    {COLUMN_descriptors, {"descriptors", 1, 1, false}, {"descriptors", 1, 2, false}, true},
    {COLUMN_decodes_per_s, {"decodes_per_s", 0.75, 0, true}, {"decodes_per_s", 0.1, 0, true}, true},
    {COLUMN_decode_p50_us, {"decode_p50_us", 1.3, 100, false}, {"decode_p50_us", 5, 20000, false}, true},
    {COLUMN_decode_p99_us, {"decode_p99_us", 1.5, 1000, false}, {"decode_p99_us", 10, 200000, false}, true},
    {COLUMN_ping_p50_us, {"ping_p50_us", 1.5, 100, false}, {"ping_p50_us", 5, 20000, false}, true},
    {COLUMN_ping_p99_us, {"ping_p99_us", 2, 1000, false}, {"ping_p99_us", 10, 200000, false}, true},
    {COLUMN_loop_lag_mean_us, {"loop_lag_mean_us", 1.3, 5, false}, {"loop_lag_mean_us", 5, 500, false}, true},
    {COLUMN_cpu_us_per_decode, {"cpu_us_per_decode", 1.2, 5, false}, {"cpu_us_per_decode", 3, 2000, false}, true},
    {COLUMN_clients, {"clients", 1, 1, false}, {"clients", 1, 1, false}, true},
    {COLUMN_regions, {"regions", 1, 1, false}, {"regions", 1, 1, false}, true},
    {COLUMN_mapped_kib, {"mapped_kib", 1, 1024, false}, {"mapped_kib", 1, 1024, false}, true},
    {COLUMN_table_sets, {"table_sets", 1, 2, false}, {"table_sets", 1, 2, false}, true},
};
#define N_JUDGED (sizeof(all) / sizeof(all[0]))

static void machine(FILE *f)
{
    char line[256], cpu[128] = "unknown";
    struct utsname kernel;
    FILE *info = fopen("/proc/cpuinfo", "re");
    while (info && fgets(line, sizeof(line), info)) {
        char *value = strchr(line, ':');
        if (!value || strncmp(line, "model name", 10) != 0)
            continue;
        value[strcspn(value, "\n\"\\")] = '\0';
        snprintf(cpu, sizeof(cpu), "%s", value + 2);
        break;
    }
    if (info)
        fclose(info);
    uname(&kernel);
    fprintf(f, "  \"machine\": {\"cpu\": \"%s\", \"cpus\": %ld, \"memory_mib\": %llu, \"kernel\": \"%s %s\"},\n", cpu,
            sysconf(_SC_NPROCESSORS_ONLN),
            (unsigned long long)sysconf(_SC_PHYS_PAGES) * (unsigned long long)sysconf(_SC_PAGESIZE) >> 20,
            kernel.sysname, kernel.release);
}

static bool judge_all(FILE *f, const struct options *o, const struct sampler *s, double warm_s)
{
    bool good = true;
    fprintf(f, "  \"flat\": [\n");
    for (size_t i = 0; i < N_JUDGED; i++) {
        const struct judge_bound *b = o->seconds < LONG_S ? &all[i].bound_short : &all[i].bound;
        struct judge_verdict v = judge(b, s->columns[COLUMN_t_s], s->columns[all[i].column], s->n, warm_s);
        good = good && (v.flat || !all[i].counts);
        fprintf(f,
                "    {\"what\": \"%s\", \"first_fifth\": %.2f, \"last_fifth\": %.2f, \"at_%s\": %.2f, "
                "\"per_hour\": %.2f, \"flat\": %s, \"counts\": %s}%s\n",
                b->name, v.first, v.last, b->falls ? "least" : "most", v.limit, v.per_hour, v.flat ? "true" : "false",
                all[i].counts ? "true" : "false", i + 1 < N_JUDGED ? "," : "");
    }
    fprintf(f, "  ],\n");
    return good;
}

/* Of the samples after warming up: the least number of connections, and those in which health was not "ready". */
static void look_back(const struct sampler *s, double warm_s, double *least_clients, unsigned *not_ready)
{
    *least_clients = 1e9;
    *not_ready = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (s->columns[COLUMN_t_s][i] < warm_s)
            continue;
        *not_ready += s->columns[COLUMN_health][i] != (double)MLA_HEALTH_READY;
        if (s->columns[COLUMN_clients][i] < *least_clients)
            *least_clients = s->columns[COLUMN_clients][i];
    }
}

bool report(FILE *f, const struct options *o, const struct sampler *s, const struct soak_end *end)
{
    const struct load_counts *n = &load->counts;
    char when[32];
    double least_clients;
    unsigned not_ready;
    time_t now = time(NULL);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    look_back(s, end->warm_s, &least_clients, &not_ready);
    fprintf(f, "{\n  \"what\": \"mlad-soak\",\n  \"ended\": \"%s\",\n  \"commit\": \"%s\",\n", when, o->commit);
    machine(f);
    fprintf(f, "  \"backend\": \"%s\",\n  \"seed\": %llu,\n  \"seconds\": %u,\n  \"warm_seconds\": %.1f,\n",
            o->cuda ? "cuda, on the fake driver" : "cpu", (unsigned long long)o->seed, o->seconds, end->warm_s);
    fprintf(f, "  \"connections\": %u,\n  \"decoding\": %u,\n  \"churn\": %u,\n  \"samples\": %zu,\n", o->connections,
            o->workers, o->churn, s->n);
#define U(name) fprintf(f, "  \"" #name "\": %llu,\n", (unsigned long long)n->name)
    U(answers);
    U(wrong);
    U(unexpected);
    U(failed);
    U(tables_put);
    U(regions_made);
    U(opened);
    U(closed);
    U(lost);
    U(pings);
    U(pings_failed);
#undef U
    fprintf(f, "  \"decode_us\": {\"p50\": %.0f, \"p99\": %.0f, \"p999\": %.0f},\n",
            hist_percentile(&load->decode_us, 0.5), hist_percentile(&load->decode_us, 0.99),
            hist_percentile(&load->decode_us, 0.999));
    fprintf(f, "  \"ping_us\": {\"p50\": %.0f, \"p99\": %.0f, \"p999\": %.0f},\n", hist_percentile(&load->ping_us, 0.5),
            hist_percentile(&load->ping_us, 0.99), hist_percentile(&load->ping_us, 0.999));
    bool good = judge_all(f, o, s, end->warm_s);
    /* One of each crowd may be on its way; the sampler is one more. */
    unsigned crowds = (o->connections - o->workers + PER_CROWD - 1) / PER_CROWD;
    bool all_there = least_clients + crowds > o->connections;
    bool all_gone = end->clients == 1 && end->regions == 0 && end->mapped_kib == 0 && end->table_sets == 0 &&
                    end->descriptors_after == end->descriptors_before;
    fprintf(f, "  \"least_clients\": %.0f,\n  \"samples_not_ready\": %u,\n", least_clients, not_ready);
    fprintf(f,
            "  \"afterwards\": {\"clients\": %.0f, \"regions\": %.0f, \"mapped_kib\": %.0f, \"table_sets\": %.0f, "
            "\"descriptors\": %u, \"descriptors_before\": %u, \"exit_code\": %d},\n",
            end->clients, end->regions, end->mapped_kib, end->table_sets, end->descriptors_after,
            end->descriptors_before, end->exit_code);
    good = good && all_there && all_gone && end->exit_code == 0 && n->answers > 0 && n->pings > 0 && !n->wrong &&
           !n->unexpected && !n->failed && !n->lost && !n->pings_failed;
    /* In a short run a machine with other work may well be behind for some seconds. */
    good = good && (not_ready == 0 || o->seconds < LONG_S);
    fprintf(f, "  \"first_fault\": \"%s\",\n  \"passed\": %s\n}\n", n->first_fault, good ? "true" : "false");
    return good;
}
