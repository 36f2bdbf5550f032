#include "tests/bench/gpu/pool.h"

#include <stdlib.h>
#include <string.h>

#define PAGES_MOST          131072u
#define BLOCK_PAGES         8192u
#define WORKSPACE_MOST      (UINT64_C(4) << 30)
#define WORKSPACE_SHARE     8 /* of the free memory, at most one part in so many */
#define QUERY_SEED          11
#define KEYS_SEED           12
#define WORKSPACE_ALIGNMENT 256

void pool_want(struct pool_wants *wants, const struct shape *shape, uint32_t launches)
{
    uint64_t pages = shape->pages * launches;
    if (pages > PAGES_MOST)
        pages = shape->pages > PAGES_MOST ? shape->pages : PAGES_MOST;
    wants->pages = pages > wants->pages ? pages : wants->pages;
    wants->rows = shape->rows > wants->rows ? shape->rows : wants->rows;
    uint32_t seqs = (uint32_t)(shape->rows / shape->heads); /* as many when each token is a sequence */
    seqs = seqs > shape->n_seqs ? seqs : shape->n_seqs;
    wants->seqs = seqs > wants->seqs ? seqs : wants->seqs;
}

static void take_workspace(struct pool *pool, uint64_t most)
{
    size_t free_bytes = 0, total = 0;
    GPU(pool->gpu, cuMemGetInfo(&free_bytes, &total));
    uint64_t bytes = free_bytes / WORKSPACE_SHARE;
    bytes = bytes < most ? bytes : most;
    pool->workspace_bytes = bytes / WORKSPACE_ALIGNMENT * WORKSPACE_ALIGNMENT;
    pool->workspace = gpu_alloc(pool->gpu, pool->workspace_bytes);
}

void pool_open(struct pool *pool, const struct gpu *gpu, const struct pool_wants *wants)
{
    memset(pool, 0, sizeof *pool);
    pool->gpu = gpu;
    uint32_t block_most = wants->block_pages_most != 0 ? wants->block_pages_most : BLOCK_PAGES;
    pool->block_pages = wants->pages < block_most ? (uint32_t)wants->pages : block_most;
    pool->block_pages = pool->block_pages > 0 ? pool->block_pages : 1;
    uint64_t groups = (wants->pages + pool->block_pages - 1) / pool->block_pages;
    pool->pages = (uint32_t)(groups > 0 ? groups * pool->block_pages : pool->block_pages);
    pool->rows = wants->rows;
    pool->seqs = wants->seqs;
    pool->o_bytes = wants->rows * MLA_ABI_V_DIM * wants->out_bytes;
    pool->entries = gpu_array(pool->pages, sizeof *pool->entries);
    pool->q_rows = gpu_array(pool->rows, MLA_ABI_QK_DIM);
    void *block = NULL;
    GPU(gpu, cuMemHostAlloc(&block, pool->block_pages * SHAPE_PAGE_BYTES, 0));
    pool->block = block;
    pool->kv = gpu_alloc(gpu, pool->pages * SHAPE_PAGE_BYTES);
    pool->table = gpu_alloc(gpu, pool->pages * sizeof *pool->entries);
    pool->q = gpu_alloc(gpu, pool->rows * MLA_ABI_QK_DIM);
    pool->o = gpu_alloc(gpu, pool->o_bytes);
    pool->status = gpu_alloc(gpu, pool->seqs * sizeof(uint64_t));
    data_permute(pool->entries, pool->pages, pool->block_pages);
    gpu_upload(gpu, pool->table, pool->entries, pool->pages * sizeof *pool->entries);
    take_workspace(pool, wants->workspace_bytes_most != 0 ? wants->workspace_bytes_most : WORKSPACE_MOST);
}

void pool_close(struct pool *pool)
{
    const struct gpu *gpu = pool->gpu;
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    const CUdeviceptr all[] = {pool->kv, pool->table, pool->q, pool->o, pool->status, pool->workspace};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        gpu_free(gpu, all[i]);
    GPU(gpu, cuMemFreeHost(pool->block));
    free(pool->entries);
    free(pool->q_rows);
    memset(pool, 0, sizeof *pool);
}

void pool_fill(struct pool *pool, const struct data_set *set)
{
    const struct gpu *gpu = pool->gpu;
    uint64_t bytes = pool->block_pages * SHAPE_PAGE_BYTES;
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    data_fill(pool->block, (size_t)pool->block_pages * MLA_ABI_PAGE_TOKENS, set, KEYS_SEED);
    for (uint32_t at = 0; at < pool->pages; at += pool->block_pages)
        GPU(gpu, cuMemcpyHtoDAsync(pool->kv + at * SHAPE_PAGE_BYTES, pool->block, bytes, gpu->stream));
    data_fill(pool->q_rows, pool->rows, &data_sets[0], QUERY_SEED);
    GPU(gpu, cuMemcpyHtoDAsync(pool->q, pool->q_rows, pool->rows * MLA_ABI_QK_DIM, gpu->stream));
    GPU(gpu, cuMemsetD8Async(pool->status, 0, pool->seqs * sizeof(uint64_t), gpu->stream));
    GPU(gpu, cuStreamSynchronize(gpu->stream));
}

uint32_t pool_copies(const struct pool *pool, const struct shape *shape, uint32_t launches)
{
    uint64_t copies = shape->pages > 0 ? pool->pages / shape->pages : launches;
    return copies < 1 ? 1 : copies < launches ? (uint32_t)copies : launches;
}

const uint8_t *pool_page(const struct pool *pool, uint64_t entry)
{
    return pool->block + (uint32_t)pool->entries[entry] % pool->block_pages * SHAPE_PAGE_BYTES;
}
