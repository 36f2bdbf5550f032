/* Device memory that all shapes share: one plane of random pages, a table that permutes them, Q, output, workspace. It
 * is made once, so that a shape costs no set-up.
 *
 * Page p of the plane holds page p % block_pages of the block that was made on the host; every aligned run of
 * block_pages table entries names each page of the block once, so a sequence up to that long has no page twice.
 */
#ifndef MLA_TESTS_BENCH_GPU_POOL_H
#define MLA_TESTS_BENCH_GPU_POOL_H

#include "tests/bench/gpu/data.h"
#include "tests/bench/gpu/gpu.h"
#include "tests/bench/gpu/shape.h"

struct pool {
    const struct gpu *gpu;
    uint32_t pages;
    uint32_t block_pages;
    uint8_t *block;   /* pinned */
    int32_t *entries; /* [pages], a copy of the table */
    uint8_t *q_rows;  /* a copy of Q, rows of 576 */
    CUdeviceptr kv, table, q, o, status, workspace;
    uint64_t o_bytes;
    uint64_t workspace_bytes;
    uint64_t rows;
    uint32_t seqs;
};

/* What a pool must be large enough for. */
struct pool_wants {
    uint64_t rows;
    uint32_t seqs;
    uint64_t pages;
    uint32_t out_bytes;            /* of an element of O */
    uint32_t block_pages_most;     /* pages with bytes of their own; 0: 8192 */
    uint64_t workspace_bytes_most; /* 0: 4 GiB, and never more than an eighth of what is free */
};

/* A shape that is launched so many times in a row, each time on pages of its own as far as 131,072 pages (4.8 GB)
 * allow. */
void pool_want(struct pool_wants *wants, const struct shape *shape, uint32_t launches);

void pool_open(struct pool *pool, const struct gpu *gpu, const struct pool_wants *wants);
void pool_close(struct pool *pool);

/* Fills Q with N(0, 1) and the plane with a data set. */
void pool_fill(struct pool *pool, const struct data_set *set);

/* How many launches of a shape find pages of their own, at most `launches`; 1 or more. */
uint32_t pool_copies(const struct pool *pool, const struct shape *shape, uint32_t launches);

/* Bytes of the page that a table entry names, in this process. */
const uint8_t *pool_page(const struct pool *pool, uint64_t entry);

#endif
