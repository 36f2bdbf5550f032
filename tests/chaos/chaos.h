/* mlad-chaos: a daemon, workers, and a seeded series of bad things that happen to them; every submission is answered
 * once, with the right bytes or a typed status. What the processes share. */
#ifndef MLA_TESTS_CHAOS_H
#define MLA_TESTS_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/enums.h"
#include "proto/status.h"

#include <mla/mla.h>

#define WORKERS_MAX  64u
#define PAGES        64u
#define PAGE_BYTES   (64u * 576u)
#define POOL_BYTES   (PAGES * (uint64_t)PAGE_BYTES)
#define VARIANTS     7u /* the last one has a page id that is not there */
#define BAD_VARIANT  (VARIANTS - 1)
#define SEQS_MAX     3u
#define POOLS        3u /* everybody's own; what owners publish, by turns */
#define ROWS_MAX     128u
#define O_BYTES(n)   ((n)*UINT64_C(1024)) /* bf16 */
#define OUT_MAX      (O_BYTES(ROWS_MAX) + ROWS_MAX * 4)
#define STATUSES     512u
#define CALL_US      UINT64_C(60000000)
#define MS_US        UINT64_C(1000)
#define COUNT(where) ((void)__atomic_add_fetch(&(where), 1, __ATOMIC_RELAXED))

/* What a worker counts; in shared memory, so that it outlives the worker. */
struct counts {
    uint64_t submitted, answered, abandoned; /* abandoned: the worker was killed before the answer */
    uint64_t by_status[STATUSES];            /* answers */
    uint64_t refused[STATUSES];              /* submissions that were not taken, by status */
    uint64_t ended_by[STATUSES];             /* handles, by why */
    uint64_t wrong;                          /* answered OK, and not the right bytes */
    uint64_t twice;                          /* answers to what was answered already */
    uint64_t late;                           /* outputs that changed after the answer */
    uint64_t lost;                           /* never answered */
    uint64_t stuck;                          /* streams that nobody released */
    uint64_t unexpected;                     /* statuses that nothing here explains */
    uint64_t opens, interrupted, reconnected, restarted, lost_objects, gone, attached, steps, stream_jobs;
    char first_fault[256];
};

struct shared {
    int stop;            /* 1: no more submissions; 2: nor does anybody need the owners any more */
    int cut_how;         /* for the next cut: of shutdown(2) */
    uint32_t generation; /* of owners */
    struct counts counts[WORKERS_MAX];
    uint8_t expected[POOLS][VARIANTS][OUT_MAX];
};
extern struct shared *shared;

enum role { EAGER, OWNER, ATTACHER, STREAM, ROLES };
extern const char *const role_names[ROLES];

struct place {
    enum role role;
    uint32_t index; /* of its counts */
    uint64_t seed;
    const char *socket;
    bool cuda;
    bool patient; /* one of many: it looks at its words less often and has less in flight, float64 is left to others,
                     and owners have no successor */
};

/* ---- data (data.c) ---- */

struct variant {
    uint32_t heads, n_seqs;
    uint32_t q_len[SEQS_MAX], kv_len[SEQS_MAX];
};
extern const struct variant variants[VARIANTS];

uint32_t variant_rows(uint32_t v);
/* Bytes of the output that a decode of it must write: O of the first sequences, LSE behind. */
uint64_t variant_q_at(uint32_t v); /* in the input memory */
uint64_t input_bytes(void);

/* Memory that the daemon can map: a memfd, or of the fake device, which this process reaches by the same address. */
struct memory {
    struct mla_memory m;
    uint64_t device;
    uint8_t *at;
    uint64_t bytes;
};
void memory_start(bool cuda); /* once per process */
void memory_new(struct memory *m, uint64_t bytes);
void memory_free(struct memory *m);
enum mla_status memory_share(struct mla_client *c, const struct memory *m, enum mla_access access, const char *label,
                             mla_region_id *region);

void fill_pool(uint8_t *at, uint32_t pool);
void fill_input(uint8_t *at);
enum mla_status put_variant(struct mla_client *c, uint32_t v, mla_tables_id id, uint64_t timeout_us);
void variant_args(struct mla_decode_args *a, uint32_t v, mla_cache_id cache, mla_region_id in, mla_region_id out,
                  uint64_t out_at, mla_tables_id tables);
/* An output against what it must be. */
bool output_is(const uint8_t *out, uint32_t pool, uint32_t v);
uint64_t output_hash(const uint8_t *out);
/* Decodes everything once and keeps it, after a comparison with float64. 0 or 1. */
int prepare(const struct place *p);

/* ---- workers (worker.c, stream.c) ---- */

struct mla_client *open_client(const struct place *p, mla_event_fn on_event, void *user);
void count_answer(const struct place *p, enum mla_status status, bool expected);
void fault(const struct place *p, uint64_t *counter, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Run until shared->stop and all is answered. 0, or what went wrong has been said. */
int run_worker(const struct place *p);
int run_stream(const struct place *p);

#endif
