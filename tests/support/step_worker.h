/* A worker of captured steps: layers of one cache, each on its own plane, queries and outputs, ordered by words;
 * lengths and tables in device memory, changed from step to step among a few variants whose float64 results are known.
 * On the CPU backend the stream is this thread; on a GPU see step_graph.h. */
#ifndef MLA_TESTS_STEP_WORKER_H
#define MLA_TESTS_STEP_WORKER_H

#include "tests/support/worker.h"

#define STEP_LAYERS   24u
#define STEP_SEQS     2u
#define STEP_HEADS    4u
#define STEP_KV_MAX   200u
#define STEP_ENTRIES  4u /* of a sequence: ceil(STEP_KV_MAX / 64) */
#define STEP_VARIANTS 3u
#define STEP_PAGES    12u /* of a plane */

struct step_worker {
    struct mla_client *client;
    uint32_t n_layers;
    struct mla_memory pages;
    void *pages_device;
    mla_region_id pages_region;
    mla_cache_id cache;
    struct mla_memory memory; /* inputs, then outputs: registered READ_WRITE */
    void *device;
    mla_region_id region;
    uint64_t q_at, o_at, lse_at, status_at, bytes; /* Q and what follows: layer by layer */
    struct mla_sync *words;                        /* of layer l: ready at 2 l, done at 2 l + 1 */
    struct mla_decode_args args[STEP_LAYERS];
    struct mla_template *tmpl;
    struct mla_step_result result;
    struct {
        int32_t kv_len[STEP_SEQS];
        int32_t table[STEP_SEQS * STEP_ENTRIES];
        double *o[STEP_LAYERS], *lse[STEP_LAYERS]; /* computed when first checked */
    } variants[STEP_VARIANTS];
};

enum { STEP_KV_LEN_AT = 0, STEP_TABLE_AT = 64, STEP_INPUTS = 256 }; /* of memory, in front of Q */
#define STEP_Q_BYTES      (STEP_SEQS * STEP_HEADS * 576u)
#define STEP_O_BYTES      (STEP_SEQS * STEP_HEADS * 2048u)
#define STEP_LSE_BYTES    (STEP_SEQS * STEP_HEADS * 4u)
#define STEP_STATUS_BYTES (STEP_SEQS * 8u)

/* Memory, cache, table set, words and an open template. seed: of pages and queries. */
void step_worker_new(struct mla_client *client, struct step_worker *w, uint32_t n_layers, uint64_t seed);
/* Closes, drops, unregisters, frees; with a closed client (NULL) only frees. */
void step_worker_free(struct mla_client *client, struct step_worker *w);
/* The template again, after a step has failed. */
void step_worker_open(struct step_worker *w);

/* Puts the variant's lengths, table and queries into memory (this process's copy), and poisons the outputs. */
void step_worker_fill(struct step_worker *w, uint32_t variant);
/* O and LSE of all layers, in this process's copy. */
void step_worker_check(struct step_worker *w, uint32_t variant);

uint64_t *step_ready(const struct step_worker *w, uint32_t layer);
uint64_t *step_done(const struct step_worker *w, uint32_t layer);

/* The stream of a worker without a GPU: for each layer in [first, end), writes the ready word and waits for the done
 * word. False when one was aborted; the rest is gone through all the same. */
bool step_worker_stream(struct step_worker *w, uint32_t first, uint32_t end);
/* Waits for the step; must end so. */
void step_worker_wait(struct step_worker *w, mla_request_id request, enum mla_status expected);

#endif
