#include "tests/bench/serve/link.h"

#include <stdio.h>
#include <stdlib.h>

#define OPEN_US       UINT64_C(20000000) /* a daemon is there by then, or will not come */
#define SOFTMAX_SCALE (1.0f / 24)
#define OUT_SCALE     (1.0f / 32)

void link_must(struct mla_client *client, enum mla_status status, const char *what)
{
    if (status == MLA_OK)
        return;
    const struct mla_error_info *e = mla_last_error(client);
    fprintf(stderr, "mla-bench: %s: %s %s %s\n", what, mla_errname(status), e->field, e->text);
    exit(2);
}

struct mla_client *link_open(const char *socket, const char *name, uint64_t features, uint64_t spin_us)
{
    struct mla_options options;
    struct mla_error_info error;
    struct mla_client *client;
    mla_options_init(&options);
    options.recover_us = 0; /* a daemon that is killed stays away, and so do its workers */
    options.socket_path = socket;
    options.name = name;
    options.timeout_us = OPEN_US;
    options.flags = MLA_OPEN_WAIT;
    options.features = MLA_FEATURE_CUDA_IPC | features;
    options.spin_us = spin_us;
    if (mla_open(&options, &client, &error) == MLA_OK)
        return client;
    fprintf(stderr, "mla-bench: %s\n", error.text);
    exit(2);
}

static mla_region_id share(struct mla_client *client, CUdeviceptr memory, uint64_t bytes, enum mla_access access)
{
    mla_region_id region;
    link_must(client, mla_cuda_region_register(client, memory, bytes, access, "bench", LINK_TIMEOUT_US, &region),
              "register");
    return region;
}

static struct mla_view view_of(mla_region_id region, uint32_t heads, int64_t row_bytes)
{
    return (struct mla_view){
        .region = region, .head_stride = row_bytes, .token_stride = heads * row_bytes, .compact = true};
}

void link_args(struct mla_client *client, const struct pool *pool, uint32_t heads, struct mla_decode_args *args)
{
    mla_decode_args_init(args);
    args->q = view_of(share(client, pool->q, pool->rows * MLA_ABI_QK_DIM, MLA_ACCESS_READ), heads, MLA_ABI_QK_DIM);
    args->o = view_of(share(client, pool->o, pool->o_bytes, MLA_ACCESS_READ_WRITE), heads, MLA_ABI_V_DIM);
    args->heads = heads;
    args->out_type = MLA_DTYPE_E4M3;
    args->out_scale = OUT_SCALE;
    args->softmax_scale = SOFTMAX_SCALE;
}

mla_region_id link_pages(struct mla_client *client, const struct pool *pool)
{
    return share(client, pool->kv, pool->pages * SHAPE_PAGE_BYTES, MLA_ACCESS_READ);
}

void link_tables(struct mla_client *client, mla_tables_id id, const struct shape *shape, const int32_t *entries)
{
    uint32_t *lengths = gpu_array(2 * (size_t)shape->n_seqs, sizeof *lengths);
    struct mla_tables tables;
    mla_tables_init(&tables);
    tables.id = id;
    tables.n_seqs = shape->n_seqs;
    tables.q_len = lengths;
    tables.kv_len_max = lengths + shape->n_seqs;
    tables.entries = (const uint32_t *)(const void *)entries;
    tables.n_entries = shape->pages;
    for (uint32_t k = 0; k < shape->n_seqs; k++) {
        lengths[k] = shape->seqs[k].q_len;
        lengths[shape->n_seqs + k] = shape->seqs[k].kv_len_max;
    }
    link_must(client, mla_tables_put(client, &tables, LINK_TIMEOUT_US), "table set");
    free(lengths);
}

void link_check(const struct pool *pool, const struct shape *shape)
{
    uint8_t row[MLA_ABI_V_DIM];
    unsigned zeros = 0, nans = 0;
    const struct gpu *gpu = pool->gpu;
    GPU(gpu, cuMemcpyDtoH(row, pool->o + (shape->rows - 1) * MLA_ABI_V_DIM, sizeof row));
    for (size_t k = 0; k < sizeof row; k++) {
        zeros += (row[k] & 0x7f) == 0;
        nans += (row[k] & 0x7f) == 0x7f;
    }
    if (zeros <= sizeof row / 2 && nans == 0)
        return;
    fprintf(stderr, "mla-bench: %s: %u zeros and %u NaN in the last row\n", shape->name, zeros, nans);
    exit(2);
}
