/* The quick start's worker: one process that decodes from a KV cache, its own or another's.
 *   options.c  the command line      worker.c  what is asked of the daemon      answers.c  the check and the table
 *   memory.h   what is shared, in host or device memory */
#ifndef MLA_QUICKSTART_WORKER_H
#define MLA_QUICKSTART_WORKER_H

#include <mla/mla.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "deploy/quickstart/memory.h"

#define WORKER_SEQS_MAX 64u
#define ROW_BYTES       576u
#define V_DIM           512u
#define PAGE_TOKENS     64u

struct worker_options {
    const char *socket, *name;
    const char *cache; /* the name that it is published under */
    bool owner;        /* makes and publishes it; else attaches to it */
    const char *table; /* file that gets the rows of the table */
    uint32_t heads, q_len;
    uint32_t n_seqs, kv_len[WORKER_SEQS_MAX]; /* in the first round; each round adds q_len */
    uint32_t layers, pages;                   /* of the cache; owner only */
    uint32_t rounds;
    uint64_t seed;
};

/* One decode: a layer in a round. */
struct answer {
    uint32_t round, layer;
    uint32_t kv_len[WORKER_SEQS_MAX];
    enum mla_dtype out_type;
    const uint8_t *q, *o, *lse;
    struct mla_decode_result result;
};

struct worker {
    struct worker_options options;
    struct mla_client *client;
    const struct memory *memory; /* the kind that the daemon takes */
    struct shared kv, io;        /* kv: the owner's only */
    mla_region_id kv_region, io_region;
    struct mla_cache_info cache;
    struct mla_cache_info met; /* the owner: its attachment to its own cache, once the guest is there */
    uint32_t *entries;         /* [n_seqs][entries_per_seq] page ids */
    uint32_t entries_per_seq;
    struct answer *answers; /* [rounds][layers] */
    float q_scale, kv_scale, softmax_scale, out_scale;
};

/* Exits with a message when the command line is wrong; --help and --header print and exit. */
void worker_parse(int argc, char **argv, struct worker_options *options);

/* What the table's rows stand under. */
void worker_header(FILE *out);

/* Compares every answer and writes one row each. How many were wrong, or -1 after a message. */
int worker_check(const struct worker *worker);

#endif
