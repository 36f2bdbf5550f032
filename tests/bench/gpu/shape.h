/* What is decoded: one job. */
#ifndef MLA_TESTS_BENCH_GPU_SHAPE_H
#define MLA_TESTS_BENCH_GPU_SHAPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/abi/abi.h"

#define SHAPE_PAGE_BYTES ((uint64_t)MLA_ABI_PAGE_TOKENS * MLA_ABI_QK_DIM)
#define SHAPE_LIST_MAX   32

struct shape {
    char name[48];
    uint32_t heads;
    uint32_t n_seqs;
    uint32_t batch;  /* sequences that people see: fewer than n_seqs when each token is one */
    uint32_t q_len;  /* of each; 0 when they differ */
    uint32_t kv_len; /* the same */
    uint64_t rows;
    uint64_t pages; /* table entries in use, each page once */
    double flop;    /* 2 * rows * kv_len * (576 + 512), the causal mask not counted */
    double bytes;   /* that must be read: keys once, Q, table entries */
    struct mla_abi_seq *seqs;
};

void shape_uniform(struct shape *shape, uint32_t n_seqs, uint32_t q_len, uint32_t heads, uint32_t kv_len);

/* q_len in 1..q_max and kv_len in kv_min..kv_max drawn evenly. */
void shape_ragged(struct shape *shape, uint32_t n_seqs, uint32_t q_max, uint32_t heads, uint32_t kv_min,
                  uint32_t kv_max);

/* The same work with a sequence of its own for every query token: no tile holds rows of two. */
void shape_by_token(struct shape *shape, const struct shape *of);

void shape_free(struct shape *shape);

/* The reference workload: B {1,4,16,64} x KV {65536,131072} x Q {4,8}, H96, or lists of one's own; in the order B, Q,
 * KV. */
struct shape_lists {
    uint32_t batches[SHAPE_LIST_MAX], q[SHAPE_LIST_MAX], kv[SHAPE_LIST_MAX];
    uint32_t n_batches, n_q, n_kv;
    uint32_t heads;
};
uint32_t shape_count(const struct shape_lists *lists);
void shape_of_lists(struct shape *shape, const struct shape_lists *lists, uint32_t index);
bool shape_lists_are_reference(const struct shape_lists *lists);
extern const struct shape_lists shape_reference;

#endif
