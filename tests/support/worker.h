/* A worker as a program would be one: through libmla, with memory it shares, and a float64 check of what comes back.
 * Uses Check's assertions; a forked worker (child_start() of daemon_fixture.h) uses it the same way.
 *
 *     struct mla_client *client = worker_open(d.socket, "a");
 *     struct worker_pool pool;
 *     struct worker_job job;
 *     worker_pool_new(client, &pool, 16, 7);
 *     worker_job_new(client, &job, pool.cache, pool.memory.addr, 16, &(struct worker_shape){.heads = 96, ...});
 *     worker_job_run(&job);   // decode and wait: must be OK
 *     worker_job_check(&job); // O and LSE against float64
 */
#ifndef MLA_TESTS_WORKER_H
#define MLA_TESTS_WORKER_H

#include "proto/enums.h"
#include "proto/status.h"

#include <mla/mla.h>

#include "tests/support/reference.h"

#define WORKER_TIMEOUT_US UINT64_C(60000000)
#define WORKER_SEQS_MAX   8
#define WORKER_PAGE_BYTES (64u * 576u)
#define WORKER_POISON     0xa5

/* Connects (waiting for the daemon); the test fails when it cannot. */
struct mla_client *worker_open(const char *socket, const char *name);

/* Fails the test with what the handle says, unless status is expected. */
#define worker_expect(client, call, expected)                                                                          \
    do {                                                                                                               \
        enum mla_status worker_status = (call);                                                                        \
        ck_assert_msg(worker_status == (expected), "%s: %s (field \"%s\": %s), not %s", #call,                         \
                      mla_errname(worker_status), mla_last_error(client)->field, mla_last_error(client)->text,         \
                      mla_errname(expected));                                                                          \
    } while (0)
#define worker_ok(client, call) worker_expect(client, call, MLA_OK)

/* Random finite e4m3 of about N(0, 1): the same bytes for the same seed, in any process. */
void worker_fill(uint8_t *bytes, size_t n, uint64_t seed);

/* How the memory of pools and jobs is made. struct mla_memory is what the process sees of it; of device memory that is
 * a copy, pushed after it was written and pulled before it is read. device: of the functions' own, NULL for memfds. */
struct worker_ops {
    void (*create)(uint64_t bytes, struct mla_memory *memory, void **device);
    enum mla_status (*share)(struct mla_client *client, const struct mla_memory *memory, void *device,
                             enum mla_access access, const char *label, mla_region_id *region);
    void (*push)(const struct mla_memory *memory, void *device, uint64_t offset, uint64_t bytes);
    void (*pull)(const struct mla_memory *memory, void *device, uint64_t offset, uint64_t bytes);
    void (*free)(struct mla_memory *memory, void *device);
    double accuracy; /* REF_ACCURACY_*: of one element */
    double rel_l2;   /* of an f32 or bf16 output as a whole, beyond its own rounding */
};
extern const struct worker_ops *worker_ops; /* sealed memfds; see worker_cuda.h */

struct worker_pool {
    struct mla_memory memory;
    void *device;
    mla_region_id region;
    mla_cache_id cache;
    uint32_t num_pages;
};

/* Memory of num_pages pages filled from seed, registered READ, with a cache of one plane on all of it. */
void worker_pool_new(struct mla_client *client, struct worker_pool *pool, uint32_t num_pages, uint64_t seed);
/* Drops, unregisters, frees. */
void worker_pool_free(struct mla_client *client, struct worker_pool *pool);

/* Zero members mean what is in brackets. */
struct worker_shape {
    uint32_t heads;
    uint32_t n_seqs; /* [1] */
    uint32_t q_len[WORKER_SEQS_MAX];
    uint32_t kv_len[WORKER_SEQS_MAX];
    enum mla_mask mask;      /* [CAUSAL] */
    enum mla_dtype out_type; /* [F32] */
    uint64_t seed;
    uint32_t head_step;       /* of the check, as in struct ref_job */
    float kv_scale;           /* [1] */
    bool sync;                /* ready and done words (0 and 1 of page), status words */
    const uint32_t *page_ids; /* of all sequences, packed [entry e of s: (s + e * 7) modulo the pool] */
};

struct worker_job {
    struct mla_client *client;
    struct worker_shape shape;
    struct mla_memory memory; /* q, o, lse, status words: registered READ_WRITE */
    void *device;
    mla_region_id region;
    uint64_t o_at, lse_at, status_at, bytes;
    uint32_t *entries; /* page ids, sequence by sequence */
    uint64_t table_first[WORKER_SEQS_MAX];
    struct mla_tables tables;
    struct mla_sync *page;
    struct mla_decode_args args;
    struct mla_decode_result result; /* of worker_job_run() */
    struct ref_job ref;
    struct ref_output out;
    struct ref_report report; /* of worker_job_check() */
};

/* Memory, region, table set and arguments of one decode over cache, whose pages this process can read at pages. */
void worker_job_new(struct mla_client *client, struct worker_job *job, mla_cache_id cache, const uint8_t *pages,
                    uint32_t num_pages, const struct worker_shape *shape);
/* Poisons the outputs, decodes, waits: must be OK. */
void worker_job_run(struct worker_job *job);
void worker_job_poison(struct worker_job *job);
/* Poisons, sends, does not wait. */
mla_request_id worker_job_submit(struct worker_job *job);
void worker_job_wait(struct worker_job *job, mla_request_id request, enum mla_status expected);
/* Every row within its bound, and the whole within the relative L2 error of its out type. */
void worker_job_check(struct worker_job *job);
/* Pulls the outputs; worker_job_wait() does. */
void worker_job_pull(struct worker_job *job);
/* True when nothing of the outputs has been written since they were poisoned. */
bool worker_job_untouched(const struct worker_job *job);
/* Drops, unregisters, frees; with a closed client (NULL) only frees. */
void worker_job_free(struct mla_client *client, struct worker_job *job);

/* A shape of 64 heads and q_len 8 that keeps this daemon busy for about ms milliseconds (measured with a first, short
 * one); pages are used many times over. */
struct worker_shape worker_long_shape(struct mla_client *client, const struct worker_pool *pool, unsigned ms);

/* "name{labels}" of mla_read_metrics(); labels "" for none. */
double worker_metric(struct mla_client *client, const char *name, const char *labels);

#endif
