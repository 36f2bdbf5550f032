#include <stdlib.h>

#include "deploy/quickstart/check.h"
#include "deploy/quickstart/content.h"
#include "deploy/quickstart/worker.h"

static const char *type_name(enum mla_dtype type)
{
    return type == MLA_DTYPE_F32 ? "f32" : type == MLA_DTYPE_BF16 ? "bf16" : "e4m3";
}

void worker_header(FILE *out)
{
    fprintf(out, "%-6s %5s %5s %-19s %-4s %5s %6s %5s %4s %5s %8s %9s %8s %7s %s\n", "worker", "round", "layer",
            "B/H/Q/KV", "out", "tiles", "splits", "batch", "jobs", "rows", "O error", "LSE error", "queue us", "run us",
            "check");
}

static void print_row(FILE *out, const struct worker *w, const struct answer *a, const struct check_result *c)
{
    const struct worker_options *o = &w->options;
    uint32_t low = a->kv_len[0], high = a->kv_len[0];
    char shape[64];
    for (uint32_t i = 1; i < o->n_seqs; i++) {
        low = a->kv_len[i] < low ? a->kv_len[i] : low;
        high = a->kv_len[i] > high ? a->kv_len[i] : high;
    }
    snprintf(shape, sizeof(shape), low == high ? "%u/%u/%u/%u" : "%u/%u/%u/%u..%u", o->n_seqs, o->heads, o->q_len, low,
             high);
    fprintf(out, "%-6s %5u %5u %-19s %-4s %5u %6u %5llu %4u %5llu %8.1e %9.1e %8llu %7llu %s\n", o->name, a->round + 1,
            a->layer, shape, type_name(a->out_type), a->result.tiles, a->result.splits,
            (unsigned long long)a->result.batch, a->result.batch_jobs, (unsigned long long)c->rows, c->error,
            c->lse_error, (unsigned long long)a->result.queue_us, (unsigned long long)a->result.run_us,
            c->right ? "right" : "WRONG");
}

static int check_one(const struct worker *w, const struct answer *a, const uint8_t *kv, struct check_result *c)
{
    const struct worker_options *o = &w->options;
    struct check_job job = {.heads = o->heads,
                            .q_len = o->q_len,
                            .n_seqs = o->n_seqs,
                            .kv_len = a->kv_len,
                            .entries = w->entries,
                            .entries_per_seq = w->entries_per_seq,
                            .num_pages = (uint32_t)w->cache.num_pages,
                            .kv = kv,
                            .q = a->q,
                            .o = a->o,
                            .lse = a->lse,
                            .out_type = (uint32_t)a->out_type,
                            .q_scale = (double)w->q_scale,
                            .kv_scale = (double)w->kv_scale,
                            .softmax_scale = (double)w->softmax_scale,
                            .out_scale = (double)w->out_scale,
                            .accuracy = w->memory->accuracy};
    return check_answer(&job, c);
}

int worker_check(const struct worker *w)
{
    const struct worker_options *o = &w->options;
    uint32_t layers = w->cache.planes;
    size_t plane_bytes = (size_t)w->cache.num_pages * CONTENT_PAGE_BYTES;
    uint8_t *kv = malloc(plane_bytes);
    FILE *out = o->table == NULL ? stdout : fopen(o->table, "we");
    struct check_result *results = calloc((size_t)o->rounds * layers, sizeof(*results));
    int wrong = kv == NULL || out == NULL || results == NULL ? -1 : 0;
    if (wrong < 0)
        perror(o->table);
    for (uint32_t layer = 0; layer < layers && wrong >= 0; layer++) {
        /* What the cache must hold, whoever filled it; the guest has never mapped it. */
        content_pages(o->seed, layer, w->cache.num_pages, kv);
        for (uint32_t round = 0; round < o->rounds && wrong >= 0; round++) {
            const struct answer *a = &w->answers[(size_t)round * layers + layer];
            struct check_result *c = &results[(size_t)round * layers + layer];
            if (check_one(w, a, kv, c) != 0) {
                fprintf(stderr, "%s: no memory for the check\n", o->name);
                wrong = -1;
            } else if (!c->right) {
                fprintf(stderr, "%s: round %u, layer %u is wrong: %s\n", o->name, round + 1, layer, c->text);
                wrong++;
            }
        }
    }
    for (size_t i = 0; i < (size_t)o->rounds * layers && wrong >= 0; i++)
        print_row(out, w, &w->answers[i], &results[i]);
    if (out != NULL && out != stdout && fclose(out) != 0 && wrong >= 0) {
        perror(o->table);
        wrong = -1;
    }
    free(results);
    free(kv);
    return wrong;
}
