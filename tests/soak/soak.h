/* mlad-soak: a daemon that many clients are connected to and some keep busy, for as long as one likes; what it takes of
 * the machine and what its clients see is sampled, and must stay as it was. What the processes share. */
#ifndef MLA_TESTS_SOAK_H
#define MLA_TESTS_SOAK_H

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "tests/chaos/chaos.h" /* shapes, memory, right bytes */
#include "tests/soak/hist.h"
#include "tests/soak/judge.h"

#define WORKERS_MOST     64u
#define PER_CROWD        250u /* connections that one process holds: with a soft limit of 1,024 descriptors */
#define CONNECTIONS_MOST 16000u

struct options {
    unsigned seconds, period_ms, connections, workers;
    unsigned churn; /* connections of the crowd that go, and come back, in a second */
    uint64_t seed;
    bool cuda;
    const char *mlad, *commit, *json, *csv;
};

struct load_counts {
    uint64_t answers, wrong, unexpected, failed; /* failed: a call that must not */
    uint64_t tables_put, regions_made;
    uint64_t opened, closed, lost, pings, pings_failed; /* of the crowd */
    char first_fault[256];
};

/* In shared memory. */
struct load_shared {
    int stop;
    uint64_t held; /* connections of the crowd, now */
    struct hist decode_us, ping_us;
    struct load_counts counts;
};
extern struct load_shared *load;

uint64_t soak_now_us(void);
void soak_sleep_us(uint64_t us);

/* ---- load.c: in processes of their own, until load->stop; what they return is their exit code ---- */

int run_decoder(const char *socket, const struct options *o, unsigned index);
int run_crowd(const char *socket, const struct options *o, unsigned index, unsigned connections);

/* ---- sample.c ---- */

#define COLUMN_LIST(X)                                                                                                 \
    X(t_s, 3)                                                                                                          \
    X(rss_kib, 0)                                                                                                      \
    X(descriptors, 0)                                                                                                  \
    X(decodes_per_s, 1)                                                                                                \
    X(decode_p50_us, 0)                                                                                                \
    X(decode_p99_us, 0)                                                                                                \
    X(pings_per_s, 1)                                                                                                  \
    X(ping_p50_us, 0)                                                                                                  \
    X(ping_p99_us, 0)                                                                                                  \
    X(loop_lag_mean_us, 2) /* of the daemon's turns since the sample before */                                         \
    X(loop_lag_p99_us, 0)  /* upper end of the metric's bucket */                                                      \
    X(loop_lag_max_us, 0)  /* the same */                                                                              \
    X(device_lag_mean_us, 2)                                                                                           \
    X(cpu_us_per_decode, 2) /* of the daemon */                                                                        \
    X(clients, 0)                                                                                                      \
    X(regions, 0)                                                                                                      \
    X(mapped_kib, 0)                                                                                                   \
    X(table_sets, 0)                                                                                                   \
    X(jobs, 0)                                                                                                         \
    X(health, 0) /* enum mla_health */                                                                                 \
    X(held, 0)   /* connections of the crowd */                                                                        \
    X(load, 2)   /* the machine's, one minute's average */

enum column {
#define COLUMN(name, decimals) COLUMN_##name,
    COLUMN_LIST(COLUMN)
#undef COLUMN
        COLUMNS
};
extern const char *const column_names[COLUMNS];

/* What is read at one moment, before differences are made of it. */
struct reading {
    uint64_t at_us, cpu_us;
    struct hist decode_us, ping_us;
    double lag_sum, lag_count, device_sum, device_count;
    double lag_below[64], lag_bounds[64];
    unsigned n_lag;
};

struct sampler {
    pid_t pid;
    struct mla_client *client;
    uint64_t start_us;
    struct reading before;
    double *columns[COLUMNS];
    size_t n, cap;
};

/* 0, or -1 without memory or without a daemon that answers. */
int sampler_start(struct sampler *s, pid_t daemon, const char *socket, size_t cap);
int sampler_take(struct sampler *s);
void sampler_end(struct sampler *s);
double sampler_last(const struct sampler *s, enum column column);
int sampler_write_csv(const struct sampler *s, const char *path);

/* ---- report.c ---- */

struct soak_end {
    unsigned descriptors_before, descriptors_after; /* without any client but one */
    double clients, regions, mapped_kib, table_sets;
    int exit_code; /* of the daemon */
    double warm_s;
};

/* Judges, and writes what came of it; true: it passed. */
bool report(FILE *out, const struct options *o, const struct sampler *s, const struct soak_end *end);

#endif
