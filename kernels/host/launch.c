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
    size_t more;
    size_t bytes;
};

static size_t place(size_t *at, size_t n, size_t bytes)
{
    size_t here = *at;
    *at += (n * bytes + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
    return here;
}

static struct blob_layout lay_out(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs,
                                  uint32_t n_seqs)
{
    struct blob_layout l;
    size_t at = 0;
    l.jobs = place(&at, n_jobs, sizeof(struct mla_abi_job));
    l.seqs = place(&at, n_seqs, sizeof(struct mla_abi_seq));
    l.tiles = place(&at, plan->n_tiles, sizeof(struct mla_abi_tile));
    l.items = place(&at, plan->n_items, sizeof(struct mla_abi_item));
    l.reduces = place(&at, plan->n_reduces, sizeof(struct mla_abi_reduce));
    l.more = place(&at, 1, kernels_more_bytes(k, plan->n_items, n_jobs, n_seqs));
    l.bytes = at;
    return l;
}

size_t mla_kernels_blob_bytes(const struct mla_kernels *kernels, const struct plan *plan, uint32_t n_jobs,
                              uint32_t n_seqs)
{
    return lay_out(kernels, plan, n_jobs, n_seqs).bytes;
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

int mla_kernels_blob_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch)
{
    struct blob_layout l = lay_out(kernels, plan, n_jobs, n_seqs);
    char *to = blob;
    put(to + l.jobs, jobs, n_jobs, sizeof *jobs);
    put(to + l.seqs, seqs, n_seqs, sizeof *seqs);
    put(to + l.tiles, plan->tiles, plan->n_tiles, sizeof *plan->tiles);
    put(to + l.items, plan->items, plan->n_items, sizeof *plan->items);
    put(to + l.reduces, plan->reduces, plan->n_reduces, sizeof *plan->reduces);
    launch->abi = (struct mla_abi_launch){
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
            launch->abi.flags |= MLA_ABI_LAUNCH_USER_STATUS;
    return mla_kernels_more_write(kernels, plan, jobs, n_jobs, seqs, n_seqs, to + l.more, address + l.more, workspace,
                                  launch);
}

struct grid {
    CUfunction function;
    uint64_t ctas;
    uint32_t threads;
    uint32_t cluster; /* CTAs; 0: none */
    uint32_t shared_bytes;
};

static int put_on_stream(const struct mla_kernels *k, CUstream stream, const struct grid *grid,
                         const struct mla_kernels_launch *launch, CUresult *result)
{
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                 .value.clusterDim = {.x = grid->cluster, .y = 1, .z = 1}};
    CUlaunchConfig config = {
        .gridDimX = (unsigned)grid->ctas,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = grid->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = grid->shared_bytes,
        .hStream = stream,
        .attrs = grid->cluster != 0 ? &cluster : NULL,
        .numAttrs = grid->cluster != 0,
    };
    struct mla_kernels_launch by_value = *launch;
    void *parameters[] = {&by_value};
    CUresult r =
        grid->ctas != 0 ? k->driver->cuLaunchKernelEx(&config, grid->function, parameters, NULL) : CUDA_SUCCESS;
    if (result)
        *result = r;
    return r == CUDA_SUCCESS ? 0 : -EIO;
}

/* One CTA for each group of rows of an item; or, for kernels that share out the units, as many clusters as run at the
 * same time. */
static struct grid decode_grid(const struct mla_kernels *k, const struct mla_kernels_launch *launch)
{
    const struct kernels_section *s = &k->section;
    struct grid grid = {.function = k->decode, .threads = s->decode_threads, .shared_bytes = s->decode_shared_bytes};
    uint64_t units = (uint64_t)launch->abi.n_items * (s->tile_rows / s->rows_per_unit);
    if (kernels_have_units(k)) {
        uint32_t n_units = kernels_units_of_launch(launch);
        units = n_units < k->facts.device.resident_units ? n_units : k->facts.device.resident_units;
        grid.cluster = s->ctas_per_unit;
    }
    grid.ctas = units * s->ctas_per_unit;
    return grid;
}

static bool names_records(const struct mla_kernels *k, const struct mla_kernels_launch *launch)
{
    const struct mla_abi_launch *abi = &launch->abi;
    if (abi->jobs == 0 || abi->seqs == 0 || (abi->n_items != 0 && (!abi->tiles || !abi->items)))
        return false;
    if (abi->n_reduces != 0 && (!abi->tiles || !abi->reduces || !abi->partial_o || !abi->partial_lse))
        return false;
    return !kernels_have_units(k) || launch->more[0] != 0;
}

int mla_kernels_launch(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                       CUresult *result)
{
    const struct kernels_section *s = &k->section;
    const struct mla_abi_launch *abi = &launch->abi;
    bool statuses = (abi->flags & MLA_ABI_LAUNCH_USER_STATUS) != 0;
    struct grid decode = decode_grid(k, launch);
    struct grid prepare = {.function = k->prepare, .threads = s->prepare_threads};
    struct grid reduce = {.function = k->reduce, .threads = s->reduce_threads};
    reduce.ctas = (uint64_t)abi->n_reduces * s->reduce_ctas_per_tile;
    if (kernels_have_units(k))
        prepare.ctas = abi->n_items != 0 || statuses ? abi->n_seqs : 0;
    else if (statuses)
        reduce.ctas += ((uint64_t)abi->n_seqs + s->reduce_threads - 1) / s->reduce_threads;
    if (result)
        *result = CUDA_SUCCESS;
    if (abi->n_items == 0 && (prepare.ctas | reduce.ctas) == 0)
        return 0;
    if (!names_records(k, launch))
        return -EINVAL;
    if (decode.ctas > INT_MAX || reduce.ctas > INT_MAX || prepare.ctas > INT_MAX)
        return -EINVAL;

    int rc = put_on_stream(k, stream, &prepare, launch, result);
    if (rc == 0)
        rc = put_on_stream(k, stream, &decode, launch, result);
    if (rc == 0)
        rc = put_on_stream(k, stream, &reduce, launch, result);
    return rc;
}
