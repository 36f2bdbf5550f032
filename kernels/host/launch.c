#include <errno.h>
#include <limits.h>
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/sm90/launch.h"

#define BLOB_ALIGN 64u

_Static_assert(sizeof(struct mla_sm90_fetch) == 160, "behind it the blob, in vectors of 16 bytes");

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

struct blob_counts {
    uint32_t tiles;
    uint32_t items;
    uint32_t reduces;
    uint32_t jobs;
    uint32_t seqs;
    uint64_t units;
};

static struct blob_layout lay_out(const struct mla_kernels *k, const struct blob_counts *n)
{
    struct blob_layout l;
    size_t at = 0;
    l.jobs = place(&at, n->jobs, sizeof(struct mla_abi_job));
    l.seqs = place(&at, n->seqs, sizeof(struct mla_abi_seq));
    l.tiles = place(&at, n->tiles, sizeof(struct mla_abi_tile));
    l.reduces = place(&at, n->reduces, sizeof(struct mla_abi_reduce));
    l.more = place(&at, 1, kernels_more_bytes(k, n->units, n->reduces, n->jobs, n->seqs));
    l.items = place(&at, n->items, sizeof(struct mla_abi_item)); /* last: see needed_bytes() */
    l.bytes = at;
    return l;
}

static struct blob_layout lay_out_plan(const struct mla_kernels *k, const struct plan *plan, uint32_t n_jobs,
                                       uint32_t n_seqs)
{
    struct blob_counts n = {.tiles = plan->n_tiles,
                            .items = plan->n_items,
                            .reduces = plan->n_reduces,
                            .jobs = n_jobs,
                            .seqs = n_seqs,
                            .units = kernels_units_of_plan(k, plan)};
    return lay_out(k, &n);
}

size_t mla_kernels_blob_bytes(const struct mla_kernels *kernels, const struct plan *plan, uint32_t n_jobs,
                              uint32_t n_seqs)
{
    return lay_out_plan(kernels, plan, n_jobs, n_seqs).bytes;
}

static uint64_t blob_bound(const struct mla_kernels *k, const struct plan_request *request)
{
    struct plan_capacity capacity;
    if (plan_bound(request, &capacity) != 0)
        return UINT64_MAX;
    struct blob_counts n = {.tiles = capacity.tiles,
                            .items = capacity.items,
                            .reduces = capacity.reduces,
                            .jobs = request->n_jobs,
                            .seqs = request->n_seqs,
                            .units = kernels_units_max(k, request, capacity.items)};
    return lay_out(k, &n).bytes;
}

uint64_t mla_kernels_blob_bytes_max(const struct mla_kernels *kernels, const struct plan_request *request)
{
    return kernels_least_bound(kernels, request, blob_bound);
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

static int blob_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                      uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob, uint64_t address,
                      uint64_t workspace, bool again, struct mla_kernels_launch *launch)
{
    struct blob_layout l = lay_out_plan(kernels, plan, n_jobs, n_seqs);
    char *to = blob;
    put(to + l.jobs, jobs, n_jobs, sizeof *jobs);
    put(to + l.seqs, seqs, n_seqs, sizeof *seqs);
    if (!again) {
        put(to + l.tiles, plan->tiles, plan->n_tiles, sizeof *plan->tiles);
        put(to + l.items, plan->items, plan->n_items, sizeof *plan->items);
        put(to + l.reduces, plan->reduces, plan->n_reduces, sizeof *plan->reduces);
    }
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
    return kernels_more_write(kernels, plan, jobs, n_jobs, seqs, n_seqs, to + l.more, address + l.more, workspace,
                              again, launch);
}

int mla_kernels_blob_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch)
{
    return blob_write(kernels, plan, jobs, n_jobs, seqs, n_seqs, blob, address, workspace, false, launch);
}

int mla_kernels_blob_write_again(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                                 uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob,
                                 uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch)
{
    return blob_write(kernels, plan, jobs, n_jobs, seqs, n_seqs, blob, address, workspace, true, launch);
}

struct grid {
    CUfunction function;
    uint64_t ctas;
    uint32_t ctas_y;
    uint32_t threads;
    uint32_t cluster; /* CTAs; 0: none */
    uint32_t shared_bytes;
    bool programmatic; /* may start while what is before it on the stream ends, for which it waits itself */
};

static int put_on_stream(const struct mla_kernels *k, CUstream stream, const struct grid *grid, void *parameter,
                         CUresult *result)
{
    CUlaunchAttribute attributes[2];
    unsigned n = 0;
    if (grid->cluster != 0)
        attributes[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                              .value.clusterDim = {.x = grid->cluster, .y = 1, .z = 1}};
    if (grid->programmatic)
        attributes[n++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                              .value.programmaticStreamSerializationAllowed = 1};
    CUlaunchConfig config = {
        .gridDimX = (unsigned)grid->ctas,
        .gridDimY = grid->ctas_y,
        .gridDimZ = 1,
        .blockDimX = grid->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = grid->shared_bytes,
        .hStream = stream,
        .attrs = n != 0 ? attributes : NULL,
        .numAttrs = n,
    };
    void *parameters[] = {parameter};
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
    struct grid grid = {
        .function = k->decode, .ctas_y = 1, .threads = s->decode_threads, .shared_bytes = s->decode_shared_bytes};
    uint64_t units = (uint64_t)launch->abi.n_items * (s->tile_rows / s->rows_per_unit);
    if (kernels_have_units(k)) {
        units = kernels_clusters_of_units(k, kernels_units_of_launch(launch));
        grid.cluster = s->ctas_per_unit > 1 ? s->ctas_per_unit : 0;
        grid.programmatic = k->programmatic;
    }
    grid.ctas = units * s->ctas_per_unit;
    return grid;
}

static bool user_status(const struct mla_kernels_launch *launch)
{
    return (launch->abi.flags & MLA_ABI_LAUNCH_USER_STATUS) != 0;
}

static struct grid prepare_grid(const struct mla_kernels *k, const struct mla_kernels_launch *launch)
{
    struct grid grid = {.function = k->prepare, .ctas_y = 1, .threads = k->section.prepare_threads};
    if (kernels_have_units(k) && (launch->abi.n_items != 0 || user_status(launch)))
        grid.ctas = launch->abi.n_seqs;
    return grid;
}

/* As many CTAs to a tile as run at the same time on the device, at most what the manifest says. */
static struct grid reduce_grid(const struct mla_kernels *k, const struct mla_kernels_launch *launch)
{
    const struct kernels_section *s = &k->section;
    struct grid grid = {.function = k->reduce,
                        .ctas = launch->abi.n_reduces,
                        .ctas_y = 1,
                        .threads = s->reduce_threads,
                        .programmatic = k->programmatic && kernels_have_units(k)};
    if (launch->abi.n_reduces != 0) {
        uint32_t of_tile = k->reduce_ctas / launch->abi.n_reduces;
        grid.ctas_y = of_tile < 1 ? 1 : of_tile < s->reduce_ctas_per_tile ? of_tile : s->reduce_ctas_per_tile;
    }
    if (user_status(launch) && !kernels_have_units(k))
        grid.ctas += ((uint64_t)launch->abi.n_seqs + s->reduce_threads - 1) / s->reduce_threads;
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

enum { PREPARE, DECODE, REDUCE, N_GRIDS };

/* 0; 1 when there is nothing to launch; -EINVAL. */
static int make_grids(const struct mla_kernels *k, const struct mla_kernels_launch *launch, struct grid grids[N_GRIDS])
{
    uint64_t most = 0;
    grids[PREPARE] = prepare_grid(k, launch);
    grids[DECODE] = decode_grid(k, launch);
    grids[REDUCE] = reduce_grid(k, launch);
    for (size_t i = 0; i < N_GRIDS; i++)
        most = grids[i].ctas > most ? grids[i].ctas : most;
    if (launch->abi.n_items == 0 && most == 0)
        return 1;
    return names_records(k, launch) && most <= INT_MAX ? 0 : -EINVAL;
}

static int put_grids(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                     const struct grid grids[N_GRIDS], unsigned which, CUresult *result)
{
    struct mla_kernels_launch by_value = *launch;
    int rc = 0;
    for (size_t i = 0; i < N_GRIDS && rc == 0; i++)
        if (which >> i & 1)
            rc = put_on_stream(k, stream, &grids[i], &by_value, result);
    return rc;
}

int mla_kernels_launch_some(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                            unsigned which, CUresult *result)
{
    struct grid grids[N_GRIDS];
    if (result)
        *result = CUDA_SUCCESS;
    int rc = make_grids(k, launch, grids);
    if (rc != 0)
        return rc < 0 ? rc : 0;
    return put_grids(k, stream, launch, grids, which, result);
}

int mla_kernels_launch(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                       CUresult *result)
{
    return mla_kernels_launch_some(k, stream, launch, MLA_KERNELS_ALL, result);
}

/* ---- launches whose prepare kernel brings the blob ---- */

/* Of a blob: no kernel that goes with a prepare kernel reads the items, which are its end. */
static size_t needed_bytes(const struct mla_kernels_launch *launch, size_t blob_bytes)
{
    return launch->abi.n_items == 0 ? blob_bytes : (size_t)(launch->abi.items - launch->abi.jobs);
}

/* Of a blob: where its lists of units begin, behind which there is nothing but the reducer's records, too. */
static uint64_t lists_of(const struct mla_kernels_launch *launch)
{
    struct mla_sm90_launch mine;
    memcpy(&mine, launch, sizeof mine);
    return mine.lists - launch->abi.jobs;
}

static bool brings(const struct mla_kernels *k, const struct mla_kernels_launch *launch, size_t blob_bytes)
{
    size_t bytes = needed_bytes(launch, blob_bytes);
    return kernels_have_units(k) && bytes <= blob_bytes && blob_bytes <= UINT32_MAX && lists_of(launch) <= bytes;
}

static int launch_by(const struct mla_kernels *k, CUfunction prepare, CUstream stream,
                     const struct mla_kernels_launch *launch, void *parameter, unsigned which, CUresult *result)
{
    struct grid grids[N_GRIDS];
    int rc = make_grids(k, launch, grids);
    if (result)
        *result = CUDA_SUCCESS;
    if (rc != 0)
        return rc < 0 ? rc : 0;
    grids[PREPARE].function = prepare;
    if (which & MLA_KERNELS_PREPARE)
        rc = put_on_stream(k, stream, &grids[PREPARE], parameter, result);
    return rc != 0 ? rc : put_grids(k, stream, launch, grids, which & ~MLA_KERNELS_PREPARE, result);
}

static struct mla_sm90_fetch fetch_of(const struct mla_kernels_launch *launch, uint64_t from, size_t bytes)
{
    struct mla_sm90_fetch fetch = {
        .from = from, .n_vectors = (uint32_t)(bytes / 16), .first = (uint32_t)(lists_of(launch) / 16)};
    memcpy(&fetch.launch, launch, sizeof fetch.launch);
    return fetch;
}

struct inline_parameter {
    _Alignas(16) struct mla_sm90_fetch head;
    unsigned char blob[MLA_SM90_INLINE_BYTES - sizeof(struct mla_sm90_fetch)];
};

bool mla_kernels_takes_blob(const struct mla_kernels *k, const struct mla_kernels_launch *launch, size_t blob_bytes)
{
    return brings(k, launch, blob_bytes) &&
           needed_bytes(launch, blob_bytes) <= sizeof((struct inline_parameter *)NULL)->blob;
}

int mla_kernels_launch_blob(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                            const void *blob, size_t blob_bytes, CUresult *result)
{
    struct inline_parameter parameter;
    size_t bytes = needed_bytes(launch, blob_bytes);
    if (result)
        *result = CUDA_SUCCESS;
    if (!mla_kernels_takes_blob(k, launch, blob_bytes))
        return -EINVAL;
    parameter.head = fetch_of(launch, 0, bytes);
    memcpy(parameter.blob, blob, bytes);
    return launch_by(k, k->prepare_inline, stream, launch, &parameter, MLA_KERNELS_ALL, result);
}

int mla_kernels_launch_fetch(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                             uint64_t blob, size_t blob_bytes, unsigned which, CUresult *result)
{
    struct mla_sm90_fetch parameter = fetch_of(launch, blob, needed_bytes(launch, blob_bytes));
    if (result)
        *result = CUDA_SUCCESS;
    if (!brings(k, launch, blob_bytes) || blob == 0 || blob % 16 != 0)
        return -EINVAL;
    return launch_by(k, k->prepare_fetch, stream, launch, &parameter, which, result);
}
