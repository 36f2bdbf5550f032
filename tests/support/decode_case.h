/* Decode jobs for tests, described as data: a shape says what differs from the plain case, everything else is made up
 * here: memory, random e4m3, page ids, records, plan. One case is one batch of jobs.
 *
 *     struct dc *c = dc_new(&rig);
 *     struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96, .n_seqs = 1, .seqs = SEQS({8, 300})});
 *     memset(dc_key(j, 0, 299), FP8_NAN, 576);      // whatever the test is about
 *     dc_run(c);                                    // plan, check the plan, launch, wait
 *     dc_check(j);                                  // all of it against float64; statuses; canaries
 *     dc_free(c);
 *
 * Hygiene of every case: the pool is NaN wherever no visible-by-length key lies (spare pages, slots past kv_len, gaps
 * between rows and pages), table entries past the needed ones are 2147480000, outputs are 0xa5 before each launch, and
 * what does not belong to an output row must still be so afterwards.
 */
#ifndef MLA_TESTS_DECODE_CASE_H
#define MLA_TESTS_DECODE_CASE_H

#include "tests/support/fp8.h"
#include "tests/support/prng.h"
#include "tests/support/reference.h"
#include "tests/support/rig.h"

#define DC_ENTRY_UNUSED 2147480000
#define DC_POISON       0xa5u
#define DC_JOBS_MAX     80

struct dc_seq {
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t kv_len_max; /* 0: kv_len */
};

/* An omitted third member means "the same as the second": no warning about that in files that describe cases. */
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define SEQS(...) ((const struct dc_seq[]){__VA_ARGS__})

enum dc_layout {
    DC_THD,    /* compact, [token][head][element] */
    DC_HTD,    /* compact, [head][token][element] */
    DC_STHD,   /* [sequence][token][head][element] with room between sequences */
    DC_SHTD,   /* [sequence][head][token][element] */
    DC_PADDED, /* as THD with gaps behind each head and each token */
    DC_LAYOUTS
};

enum dc_pages {
    DC_SHUFFLED, /* a random permutation of the pool */
    DC_IDENTITY, /* 0, 1, 2 ... in order of use */
    DC_ALIAS     /* entry e of every sequence names page e modulo the pool: long contexts in a small pool */
};

enum dc_place { DC_ABSENT, DC_HOST, DC_REGION };

/* Zero members mean the plain case in brackets. */
struct dc_shape {
    uint32_t heads;
    uint32_t n_seqs;
    const struct dc_seq *seqs;
    uint32_t mask;       /* [CAUSAL] */
    uint32_t out_type;   /* [F32] */
    float softmax_scale; /* [1/24] */
    float q_scale;       /* [1] */
    float kv_scale;      /* [1] */
    float out_scale;     /* [1] */
    enum dc_layout q_layout;
    enum dc_layout o_layout;
    enum dc_layout lse_layout;
    bool split_rope;
    bool no_lse;
    bool user_status;
    bool batch_invariant;
    bool guard;                    /* every array and the pool end where readable memory ends */
    bool sparse;                   /* do not touch the pool where no key lies (no NaN there) */
    bool own_keys;                 /* the test fills all keys itself */
    enum dc_place table;           /* [HOST] */
    enum dc_place kv_len;          /* [ABSENT: kv_len_max is the length; then kv_len_max must be kv_len] */
    enum dc_place visible;         /* [HOST] */
    const int32_t *visible_counts; /* mask VISIBLE: per query token [random in 0 .. kv_len] */
    uint32_t row_stride;           /* [576] */
    uint64_t page_stride;          /* [64 * row_stride] */
    uint64_t plane_offset;         /* of page 0 in the pool */
    uint32_t pages_per_entry;      /* [1] */
    uint32_t num_pages;            /* [what is needed and two entries more] */
    enum dc_pages pages;
    const int32_t *page_ids;      /* needed entries of all sequences one after the other; overrides pages */
    const struct dc_job *pool_of; /* use that job's pool (same case, large enough) instead of one of its own */
    uint64_t pool_bytes;          /* [plane_offset + num_pages * page_stride] */
    double q_std;                 /* [1] */
    double kv_std;                /* [1] */
    double kv_mean;               /* [0] */
    uint64_t seed;
    uint32_t ref_head_step; /* ref_job.head_step */
};

struct dc_job {
    struct dc *c;
    struct dc_shape shape;
    uint32_t *q_len;
    uint32_t *kv_len_max;
    uint32_t *first_token;
    uint64_t *table_first;
    uint32_t tokens;
    uint32_t first_seq; /* in the batch */

    /* Views that tests may write before a run. */
    int32_t *table;
    int32_t *kv_len;  /* NULL when ABSENT */
    int32_t *visible; /* NULL unless VISIBLE */
    uint8_t *kv;      /* page 0 of the plane */
    /* Written by the backend. */
    uint64_t *status;
    uint64_t *user_status; /* NULL unless asked for */

    struct mem pool, q_mem, rope_mem, o_mem, lse_mem, table_mem, kv_len_mem, visible_mem, status_mem, user_status_mem;
    uint64_t kv_address;
    uint8_t *pool_host;
    struct mla_abi_tensor q, rope, o, lse; /* base: address in the backend */
    struct ref_job ref;                    /* the same in this process */
    struct ref_output out;
    bool keep_reference; /* set by a test whose inputs no longer change */
    double *ref_o;       /* made by the first dc_check() */
    double *ref_lse;
    uint64_t *ref_status;
};

/* What the batch is planned with; the defaults are what the backend takes it with, policy AUTO and splits chosen by it.
 * A device that the test sets stays. */
struct dc {
    struct rig *rig;
    struct plan_request request;
    struct dc_job *jobs[DC_JOBS_MAX];
    uint32_t n_jobs;
    uint32_t n_seqs;
    const struct be_done_word *done;
    uint32_t n_done;

    struct plan plan; /* after dc_run() */
    struct plan_device fitted;
    struct plan_job plan_jobs[DC_JOBS_MAX];
    struct plan_seq *plan_seqs;
    struct mem tiles, items, reduces, job_records, seq_records;
    void *scratch;
    bool planned;
    struct be_batch batch;
    struct ticket ticket;
};

struct dc *dc_new(struct rig *rig);
void dc_free(struct dc *c);

/* Makes the memory of a job and fills it. The shape is copied, its arrays too. */
struct dc_job *dc_add(struct dc *c, const struct dc_shape *shape);

/* dc_plan() unless planned already, dc_launch(), dc_wait(). */
void dc_run(struct dc *c);
void dc_plan(struct dc *c);   /* plan_bound, plan_build, plan_check, records; aborts when one refuses */
void dc_replan(struct dc *c); /* forgets the plan: the next run makes another for the same memory */
void dc_launch(struct dc *c); /* dc_ready(), dc_submit() */
void dc_ready(struct dc *c);  /* poisons outputs, pushes inputs */
void dc_submit(struct dc *c); /* and nothing else, so that launches can follow each other closely */
void dc_wait(struct dc *c);   /* until BATCH_DONE, pulls outputs */
void dc_pull(struct dc *c);   /* outputs as they are now */

/* O and LSE of all sequences without a fault against float64; statuses against what must be found; canaries. */
void dc_check(struct dc_job *job);
void dc_check_canaries(const struct dc_job *job);
/* The same without an assertion. */
bool dc_compare(struct dc_job *job, struct ref_report *report);
void dc_check_all(struct dc *c);

/* Inputs of a row and a key: q gives all 576 (rope: element >= 512) wherever they lie. */
uint8_t *dc_q(struct dc_job *job, uint32_t s, uint32_t t, uint32_t h, uint32_t element);
uint8_t *dc_key(struct dc_job *job, uint32_t s, uint32_t key);
/* All Q, and all keys of all sequences below their kv_len. */
void dc_fill_q(struct dc_job *job, uint8_t byte);
void dc_fill_keys(struct dc_job *job, uint8_t byte);

/* Outputs as numbers. */
double dc_o(const struct dc_job *job, uint32_t s, uint32_t t, uint32_t h, uint32_t element);
float dc_lse(const struct dc_job *job, uint32_t s, uint32_t t, uint32_t h);

/* Bytes of the outputs in the order [sequence][token][head], whatever the layout. */
struct dc_bits {
    uint32_t n_seqs;
    uint32_t row_bytes;  /* O row, then 4 of LSE */
    uint64_t *first_row; /* n_seqs + 1 */
    uint8_t *bytes;
};
struct dc_bits dc_bits(const struct dc_job *job);
void dc_bits_free(struct dc_bits *bits);
bool dc_bits_same_seq(const struct dc_bits *a, uint32_t sa, const struct dc_bits *b, uint32_t sb);
/* All sequences, but those of which skip (n_seqs, or NULL) has a status. what: for the message. */
void dc_assert_same(const struct dc_bits *a, const struct dc_bits *b, const uint64_t *skip, const char *what);

uint64_t dc_fault(enum mla_status code, uint32_t index);

#endif
