#include "tests/bench/small.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define HEADS      16
#define KEYS       64
#define Q_BYTES    576
#define O_BYTES    1024 /* bf16 */
#define KV_AT      0
#define Q_AT       (KV_AT + KEYS * Q_BYTES)
#define O_AT       (Q_AT + HEADS * Q_BYTES)
#define ALL_BYTES  (O_AT + HEADS * O_BYTES)
#define SIZES_OVER 64

static int failed(const struct small *s, const char *what)
{
    const struct mla_error_info *e = mla_last_error(s->client);
    fprintf(stderr, "mla-bench: %s: %s %s %s\n", what, mla_errname(e->status), e->field, e->text);
    return -1;
}

static struct mla_view view_of(mla_region_id region, uint64_t offset, int64_t row_bytes)
{
    return (struct mla_view){.region = region,
                             .offset = offset,
                             .head_stride = row_bytes,
                             .token_stride = HEADS * row_bytes,
                             .compact = true};
}

static int define(struct small *s)
{
    static const uint32_t q_len[] = {1}, kv_len[] = {KEYS}, entries[] = {0};
    struct mla_cache_desc desc;
    struct mla_tables tables;
    mla_region_id region;
    if (mla_memory_create(ALL_BYTES, 0, &s->memory) != MLA_OK) {
        fputs("mla-bench: no shared memory\n", stderr);
        return -1;
    }
    if (mla_memory_register(s->client, &s->memory, MLA_ACCESS_READ_WRITE, "bench", SMALL_TIMEOUT_US, &region) != MLA_OK)
        return failed(s, "register");
    mla_cache_desc_init(&desc);
    desc.region = region;
    desc.offset = KV_AT;
    desc.num_pages = 1;
    mla_decode_args_init(&s->args);
    if (mla_cache_define(s->client, &desc, SMALL_TIMEOUT_US, &s->args.cache) != MLA_OK)
        return failed(s, "define cache");
    mla_tables_init(&tables);
    tables.id = 1;
    tables.n_seqs = 1;
    tables.q_len = q_len;
    tables.kv_len_max = kv_len;
    tables.entries = entries;
    tables.n_entries = 1;
    if (mla_tables_put(s->client, &tables, SMALL_TIMEOUT_US) != MLA_OK)
        return failed(s, "table set");
    s->args.tables = 1;
    s->args.heads = HEADS;
    s->args.q = view_of(region, Q_AT, Q_BYTES);
    s->args.o = view_of(region, O_AT, O_BYTES);
    s->args.softmax_scale = 1.0f / 24;
    return 0;
}

int small_open(struct small *s, const char *socket, uint64_t spin_us)
{
    struct mla_options options;
    struct mla_error_info error;
    memset(s, 0, sizeof *s);
    s->memory.fd = -1;
    mla_options_init(&options);
    options.socket_path = socket;
    options.name = "mla-bench";
    options.timeout_us = SMALL_TIMEOUT_US;
    options.flags = MLA_OPEN_WAIT;
    options.spin_us = spin_us;
    if (mla_open(&options, &s->client, &error) != MLA_OK) {
        fprintf(stderr, "mla-bench: %s\n", error.text);
        return -1;
    }
    return define(s);
}

void small_close(struct small *s)
{
    mla_close(s->client);
    s->client = NULL;
    mla_memory_free(&s->memory);
}

double small_metric(const struct mla_metrics_info *metrics, const char *name)
{
    for (size_t i = 0; i < metrics->n_families; i++) {
        const struct mla_metric_family *f = metrics->families[i];
        size_t n = strlen(f->name);
        for (size_t k = 0; k < f->n_samples && strncmp(name, f->name, n) == 0; k++)
            if (strcmp(f->samples[k].suffix, name + n) == 0 && f->samples[k].labels[0] == '\0')
                return f->samples[k].value;
    }
    return (double)NAN;
}

double small_metric_of(const struct mla_metrics_info *metrics, const char *name, const char *labels)
{
    for (size_t i = 0; i < metrics->n_families; i++) {
        const struct mla_metric_family *f = metrics->families[i];
        for (size_t k = 0; k < f->n_samples && strcmp(name, f->name) == 0; k++)
            if (strcmp(f->samples[k].labels, labels) == 0)
                return f->samples[k].value;
    }
    return (double)NAN;
}

static int read_bytes(struct small *s, double *received, double *sent)
{
    struct mla_metrics_info *metrics;
    if (mla_read_metrics(s->client, SMALL_TIMEOUT_US, &metrics) != MLA_OK)
        return failed(s, "metrics");
    *received = small_metric(metrics, "mlad_received_bytes_total");
    *sent = small_metric(metrics, "mlad_sent_bytes_total");
    mla_free(metrics);
    return 0;
}

/* Between two readings stand a reading and n decodes; twice, with different n, the reading cancels. Its reply grows by
 * a few digits, which the average over many decodes hides. */
int small_sizes(struct small *s, size_t *request_bytes, size_t *reply_bytes)
{
    double in[3], out[3];
    for (int i = 0; i < 3; i++) {
        if (read_bytes(s, &in[i], &out[i]) != 0)
            return -1;
        for (int k = 0; k < SIZES_OVER * (i + 1) && i < 2; k++)
            if (mla_decode(s->client, &s->args, SMALL_TIMEOUT_US, NULL) != MLA_OK)
                return failed(s, "decode");
    }
    *request_bytes = (size_t)lround((in[2] - in[1] - (in[1] - in[0])) / SIZES_OVER);
    *reply_bytes = (size_t)lround((out[2] - out[1] - (out[1] - out[0])) / SIZES_OVER);
    return 0;
}
