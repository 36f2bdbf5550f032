/* The data contract in float64: what an attention decode over a paged e4m3 MLA cache must give. Plain pointers, no
 * dependency on the code under test; also for the example worker and the integration tests.
 *
 *   score = softmax_scale * q_scale * kv_scale * dot(q, k)       over 576 elements, of the visible keys
 *   O     = kv_scale * sum(exp(score) * v) / sum(exp(score))     v: the first 512 elements of k
 *   LSE   = ln(sum(exp(score)))
 * A table entry is needed when a token sees a key of its pages (kv_len and mask decide; scores do not).
 * A row that sees no key: O = 0, LSE = -infinity. NaN in a visible key or in the row's Q: O and LSE are NaN.
 */
#ifndef MLA_TESTS_REFERENCE_H
#define MLA_TESTS_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/enums.h"
#include "proto/status.h"

#define REF_QK_DIM      576
#define REF_V_DIM       512
#define REF_PAGE_TOKENS 64

/* [sequence][token][head][element], strides in bytes. compact: sequences follow each other token by token, seq_stride
 * is unused. */
struct ref_tensor {
    const void *base; /* NULL: absent */
    int64_t seq_stride;
    int64_t token_stride;
    int64_t head_stride;
    bool compact;
};

struct ref_job {
    uint32_t heads;
    uint32_t n_seqs;
    const uint32_t *q_len;
    const uint32_t *kv_len_max;
    const int32_t *kv_len;    /* NULL: kv_len_max */
    struct ref_tensor q;      /* e4m3, 576 per row, or 512 when q_rope is present */
    struct ref_tensor q_rope; /* e4m3, 64 per row */
    const uint8_t *kv;        /* page 0 of the plane */
    uint64_t page_stride;     /* bytes */
    uint32_t row_stride;      /* bytes */
    uint32_t num_pages;
    uint32_t pages_per_entry;
    const int32_t *table;        /* page ids, entry e of sequence s at table_first[s] + e */
    const uint64_t *table_first; /* n_seqs */
    enum mla_mask mask;
    const int32_t *visible; /* VISIBLE: per query token of the job */
    double softmax_scale;
    double q_scale;
    double kv_scale;
    uint32_t head_step; /* 0 or 1: all heads; else only heads 0, step, 2 * step ... and the last one are computed */
};

/* True when the job's head_step asks for this head. */
bool ref_wants_head(const struct ref_job *job, uint32_t head);

/* Sum of q_len. */
uint64_t ref_tokens(const struct ref_job *job);

/* Address of (s, t, h) in a tensor; first_token: sum of q_len before s. */
const uint8_t *ref_at(const struct ref_tensor *tensor, uint32_t s, uint64_t first_token, uint32_t t, uint32_t h);

/* o[tokens][heads][512], lse[tokens][heads], status[n_seqs] (code << 32 | index, 0 = fine; rows of other sequences are
 * left untouched, as are heads that head_step leaves out). lse and status may be NULL. 0 or -ENOMEM. */
int ref_decode(const struct ref_job *job, double *o, double *lse, uint64_t *status);

/* What a decode may be off by. An element of O passes when it is within half a unit in the last place of out_type plus
 * accuracy * (root mean square of its row); LSE when within accuracy * max(1, |LSE|). */
struct ref_output {
    enum mla_dtype out_type;
    struct ref_tensor o;
    struct ref_tensor lse; /* base NULL: not compared */
    double out_scale;      /* e4m3 only */
    double accuracy;       /* of the unrounded result: REF_ACCURACY_*, or what a case says */
};

#define REF_ACCURACY_F32_P  2e-5 /* P in f32 (cpu backend) */
#define REF_ACCURACY_E4M3_P 0.2  /* P rounded to e4m3: what one element of a short context may come to */

/* At that accuracy and above the output as a whole must be within this relative L2 distance too (a rounding of P is off
 * by 2.6 % in the mean), beside what rounding to e4m3 adds; and LSE, made of unrounded sums, within this. */
#define REF_L2_E4M3_P     0.04
#define REF_L2_E4M3_P_OUT 0.055
#define REF_LSE_E4M3_P    2e-3
/* A score that e4m3 tensor cores make is itself off by this much (their accumulator has 13 bits of fraction, truncated,
 * and a score is what remains of larger terms); an LSE of n keys by about a square root of n less. */
#define REF_SCORE_E4M3 0.06

struct ref_report {
    uint64_t rows;    /* compared */
    double rel_l2;    /* sqrt(sum error^2 / sum reference^2) of O over all rows, out_scale undone */
    double max_error; /* of O, in units of its row's root mean square */
    double max_lse;   /* |LSE - reference| / max(1, |reference|) */
    uint64_t bad;     /* elements over their bound */
    char text[160];   /* the first of them; "" when none */
};

/* Compares outputs with o and lse of ref_decode(). True when nothing is over its bound. skip: n_seqs statuses, rows of
 * sequences with one are not compared; NULL: all are. */
bool ref_compare(const struct ref_job *job, const double *o, const double *lse, const uint64_t *skip,
                 const struct ref_output *out, struct ref_report *report);

/* One element of an output row as a number. */
double ref_element(enum mla_dtype out_type, const void *row, uint32_t i);

#endif
