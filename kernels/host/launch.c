#include <errno.h>
#include <limits.h>
#include <string.h>

#include "kernels/host/internal.h"

#define BLOB_ALIGN 64u

/* Places of the sections in a blob. */
struct blob_layout {
    size_t jobs;
    size_t seqs;
    size_t tiles;
    size_t items;
    size_t reduces;
    size_t bytes;
};

static size_t place(size_t *at, size_t n, size_t bytes)
{
    size_t here = *at;
    *at += (n * bytes + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
    return here;
}

static struct blob_layout lay_out(const struct plan *plan, uint32_t n_jobs, uint32_t n_seqs)
{
    struct blob_layout l;
    size_t at = 0;
    l.jobs = place(&at, n_jobs, sizeof(struct mla_abi_job));
    l.seqs = place(&at, n_seqs, sizeof(struct mla_abi_seq));
    l.tiles = place(&at, plan->n_tiles, sizeof(struct mla_abi_tile));
    l.items = place(&at, plan->n_items, sizeof(struct mla_abi_item));
    l.reduces = place(&at, plan->n_reduces, sizeof(struct mla_abi_reduce));
    l.bytes = at;
    return l;
}

size_t mla_kernels_blob_bytes(const struct plan *plan, uint32_t n_jobs, uint32_t n_seqs)
{
    return lay_out(plan, n_jobs, n_seqs).bytes;
}

/* An empty section has no address. */
static uint64_t address_of(uint64_t blob, size_t offset, uint32_t n)
{
    return n > 0 ? blob + offset : 0;
}

static void put(char *to, const void *from, size_t n, size_t bytes)
{
    if (n > 0)
        memcpy(to, from, n * bytes);
}

void mla_kernels_blob_write(const struct plan *plan, const struct mla_abi_job *jobs, uint32_t n_jobs,
                            const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob, uint64_t address,
                            uint64_t workspace, struct mla_abi_launch *launch)
{
    struct blob_layout l = lay_out(plan, n_jobs, n_seqs);
    char *to = blob;
    put(to + l.jobs, jobs, n_jobs, sizeof *jobs);
    put(to + l.seqs, seqs, n_seqs, sizeof *seqs);
    put(to + l.tiles, plan->tiles, plan->n_tiles, sizeof *plan->tiles);
    put(to + l.items, plan->items, plan->n_items, sizeof *plan->items);
    put(to + l.reduces, plan->reduces, plan->n_reduces, sizeof *plan->reduces);
    *launch = (struct mla_abi_launch){
        .jobs = address_of(address, l.jobs, n_jobs),
        .seqs = address_of(address, l.seqs, n_seqs),
        .tiles = address_of(address, l.tiles, plan->n_tiles),
        .items = address_of(address, l.items, plan->n_items),
        .reduces = address_of(address, l.reduces, plan->n_reduces),
        .partial_o = workspace,
        .partial_lse = workspace + (uint64_t)plan->partial_rows * MLA_ABI_V_DIM * sizeof(float),
        .n_items = plan->n_items,
        .n_reduces = plan->n_reduces,
        .n_jobs = n_jobs,
        .n_seqs = n_seqs,
    };
    for (uint32_t j = 0; j < n_jobs; j++)
        if (jobs[j].user_status != 0)
            launch->flags |= MLA_ABI_LAUNCH_USER_STATUS;
}

static int put_on_stream(const struct mla_kernels *k, CUstream stream, CUfunction function, uint64_t ctas,
                         uint32_t threads, uint32_t shared_bytes, const struct mla_abi_launch *launch, CUresult *result)
{
    CUlaunchConfig config = {
        .gridDimX = (unsigned)ctas,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = shared_bytes,
        .hStream = stream,
    };
    struct mla_abi_launch by_value = *launch;
    void *parameters[] = {&by_value};
    CUresult r = k->driver->cuLaunchKernelEx(&config, function, parameters, NULL);
    if (result)
        *result = r;
    return r == CUDA_SUCCESS ? 0 : -EIO;
}

int mla_kernels_launch(const struct mla_kernels *k, CUstream stream, const struct mla_abi_launch *launch,
                       CUresult *result)
{
    const struct kernels_section *s = &k->section;
    uint64_t item_ctas = (uint64_t)launch->n_items * (s->tile_rows / s->rows_per_unit) * s->ctas_per_unit;
    uint64_t status_ctas = 0;
    if (launch->flags & MLA_ABI_LAUNCH_USER_STATUS)
        status_ctas = ((uint64_t)launch->n_seqs + s->reduce_threads - 1) / s->reduce_threads;
    uint64_t reduce_ctas = (uint64_t)launch->n_reduces * s->reduce_ctas_per_tile + status_ctas;
    bool records = launch->jobs != 0 && launch->seqs != 0;
    if (result)
        *result = CUDA_SUCCESS;
    if ((item_ctas | reduce_ctas) != 0 && !records)
        return -EINVAL;
    if (item_ctas != 0 && (!launch->tiles || !launch->items))
        return -EINVAL;
    if (launch->n_reduces != 0 && (!launch->tiles || !launch->reduces || !launch->partial_o || !launch->partial_lse))
        return -EINVAL;
    if (item_ctas > INT_MAX || reduce_ctas > INT_MAX)
        return -EINVAL;

    int rc = 0;
    if (item_ctas != 0)
        rc = put_on_stream(k, stream, k->decode, item_ctas, s->decode_threads, s->decode_shared_bytes, launch, result);
    if (rc == 0 && reduce_ctas != 0)
        rc = put_on_stream(k, stream, k->reduce, reduce_ctas, s->reduce_threads, 0, launch, result);
    return rc;
}
