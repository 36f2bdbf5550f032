#include "tests/bench/gpu/shape.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/gpu.h"
#include "tests/support/prng.h"

const struct shape_lists shape_reference = {
    .batches = {1, 4, 16, 64},
    .q = {4, 8},
    .kv = {65536, 131072},
    .n_batches = 4,
    .n_q = 2,
    .n_kv = 2,
    .heads = 96,
};

static uint32_t pages_of(uint32_t kv_len)
{
    return (kv_len + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
}

static void start(struct shape *shape, uint32_t n_seqs, uint32_t heads)
{
    memset(shape, 0, sizeof *shape);
    shape->n_seqs = shape->batch = n_seqs;
    shape->heads = heads;
    shape->seqs = gpu_array(n_seqs, sizeof *shape->seqs);
}

static void add(struct shape *shape, uint32_t s, uint32_t q_len, uint32_t kv_len)
{
    uint64_t rows = (uint64_t)q_len * shape->heads;
    shape->seqs[s] = (struct mla_abi_seq){.q_len = q_len,
                                          .kv_len_max = kv_len,
                                          .first_token = (uint32_t)(shape->rows / shape->heads),
                                          .table_first = shape->pages};
    shape->rows += rows;
    shape->pages += pages_of(kv_len);
    shape->flop += 2.0 * (double)rows * kv_len * (MLA_ABI_QK_DIM + MLA_ABI_V_DIM);
    shape->bytes +=
        (double)rows * MLA_ABI_QK_DIM + (double)kv_len * MLA_ABI_QK_DIM + (double)pages_of(kv_len) * sizeof(int32_t);
}

void shape_uniform(struct shape *shape, uint32_t n_seqs, uint32_t q_len, uint32_t heads, uint32_t kv_len)
{
    start(shape, n_seqs, heads);
    shape->q_len = q_len;
    shape->kv_len = kv_len;
    for (uint32_t s = 0; s < n_seqs; s++)
        add(shape, s, q_len, kv_len);
    snprintf(shape->name, sizeof shape->name, "B%u Q%u H%u KV%u", n_seqs, q_len, heads, kv_len);
}

void shape_ragged(struct shape *shape, uint32_t n_seqs, uint32_t q_max, uint32_t heads, uint32_t kv_min,
                  uint32_t kv_max)
{
    struct prng prng = {(uint64_t)n_seqs << 32 | kv_max};
    start(shape, n_seqs, heads);
    for (uint32_t s = 0; s < n_seqs; s++) {
        uint32_t q_len = 1 + prng_below(&prng, q_max);
        add(shape, s, q_len, kv_min + prng_below(&prng, kv_max - kv_min + 1));
    }
    snprintf(shape->name, sizeof shape->name, "B%u Q1-%u H%u KV%u-%u", n_seqs, q_max, heads, kv_min, kv_max);
}

void shape_by_token(struct shape *shape, const struct shape *of)
{
    uint32_t n = 0;
    start(shape, (uint32_t)(of->rows / of->heads), of->heads);
    for (uint32_t s = 0; s < of->n_seqs; s++) {
        const struct mla_abi_seq *seq = &of->seqs[s];
        for (uint32_t t = 0; t < seq->q_len; t++)
            shape->seqs[n++] = (struct mla_abi_seq){.q_len = 1,
                                                    .kv_len_max = seq->kv_len_max - seq->q_len + t + 1,
                                                    .first_token = seq->first_token + t,
                                                    .table_first = seq->table_first};
    }
    shape->batch = of->batch;
    shape->q_len = of->q_len;
    shape->kv_len = of->kv_len;
    shape->rows = of->rows;
    shape->pages = of->pages;
    shape->flop = of->flop;
    shape->bytes = of->bytes;
    snprintf(shape->name, sizeof shape->name, "%s", of->name);
}

void shape_free(struct shape *shape)
{
    free(shape->seqs);
    memset(shape, 0, sizeof *shape);
}

uint32_t shape_count(const struct shape_lists *lists)
{
    return lists->n_batches * lists->n_q * lists->n_kv;
}

void shape_of_lists(struct shape *shape, const struct shape_lists *lists, uint32_t index)
{
    uint32_t kv = index % lists->n_kv, q = index / lists->n_kv % lists->n_q;
    shape_uniform(shape, lists->batches[index / lists->n_kv / lists->n_q], lists->q[q], lists->heads, lists->kv[kv]);
}

bool shape_lists_are_reference(const struct shape_lists *lists)
{
    return memcmp(lists, &shape_reference, sizeof *lists) == 0;
}
