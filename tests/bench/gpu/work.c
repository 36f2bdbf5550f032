#include "tests/bench/gpu/work.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAUNCHES_MIN 20u /* of a graph */

#define SOFTMAX_SCALE (1.0f / 24)
#define INV_OUT_SCALE 32.0f /* outputs are a few hundredths */

void variant_open(struct variant *variant, const struct cuda_driver *tapped, const char *name, const char *native)
{
    memset(variant, 0, sizeof *variant);
    snprintf(variant->name, sizeof variant->name, "%s", name);
    bool padded = strcmp(name, "h128") == 0;
    struct mla_kernels_options options = {.size = sizeof options,
                                          .variant = padded            ? native
                                                     : name[0] != '\0' ? variant->name
                                                                       : NULL};
    int rc = mla_kernels_open(tapped, &options, &variant->kernels, variant->why, sizeof variant->why);
    if (rc == 0 && padded)
        rc = h128_open(tapped, variant->kernels, &variant->h128, variant->why, sizeof variant->why);
    if (rc != 0) {
        mla_kernels_close(variant->kernels);
        variant->kernels = NULL;
        return;
    }
    variant->facts = mla_kernels_facts(variant->kernels);
}

void variant_close(struct variant *variant)
{
    h128_close(variant->h128);
    mla_kernels_close(variant->kernels);
    memset(variant, 0, sizeof *variant);
}

static int make_plan(struct work *work, const struct work_options *options)
{
    const struct shape *shape = work->shape;
    struct plan_seq *seqs = gpu_array(shape->n_seqs, sizeof *seqs);
    struct plan_job job = {.n_seqs = shape->n_seqs, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {.policy = options->policy != 0 ? options->policy : PLAN_AUTO,
                                   .heads = shape->heads,
                                   .splits = options->splits,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = shape->n_seqs};
    struct plan *plan = &work->plan;
    for (uint32_t s = 0; s < shape->n_seqs; s++)
        seqs[s] = (struct plan_seq){shape->seqs[s].q_len, shape->seqs[s].kv_len_max};
    if (!options->own_kernels)
        work->kernels = mla_kernels_for(work->kernels, &request);
    const struct mla_kernels_facts *facts = mla_kernels_facts(work->kernels);
    request.device = facts->device;
    request.costs = facts->costs;
    request.tile_rows = options->tile_rows != 0 ? options->tile_rows : facts->tile_rows;
    int rc = plan_bound(&request, &plan->capacity);
    if (rc == 0) {
        uint64_t scratch = mla_kernels_scratch_bytes_max(work->kernels, &request);
        request.workspace_bytes_max = scratch < work->pool->workspace_bytes ? work->pool->workspace_bytes - scratch : 0;
        plan->tiles = gpu_array(plan->capacity.tiles, sizeof *plan->tiles);
        plan->items = gpu_array(plan->capacity.items, sizeof *plan->items);
        plan->reduces = gpu_array(plan->capacity.reduces, sizeof *plan->reduces);
        plan->scratch = gpu_array(plan->capacity.scratch_bytes, 1);
        rc = plan_build(&request, plan);
    }
    free(seqs);
    return rc;
}

struct mla_abi_job work_job(const struct work *work, uint32_t out_type, uint32_t copy)
{
    const struct shape *shape = work->shape;
    const struct pool *pool = work->pool;
    int64_t out_bytes = out_type == MLA_ABI_OUT_F32 ? 4 : out_type == MLA_ABI_OUT_BF16 ? 2 : 1;
    return (struct mla_abi_job){
        .q = {pool->q, 0, (int64_t)shape->heads * MLA_ABI_QK_DIM, MLA_ABI_QK_DIM, 1, 0},
        .o = {pool->o, 0, out_bytes * shape->heads * MLA_ABI_V_DIM, out_bytes * MLA_ABI_V_DIM, 1, 0},
        .kv = pool->kv,
        .page_stride = SHAPE_PAGE_BYTES,
        .table = pool->table + copy * shape->pages * sizeof(int32_t),
        .status = pool->status,
        .row_stride = MLA_ABI_QK_DIM,
        .num_pages = pool->pages,
        .pages_per_entry = 1,
        .heads = shape->heads,
        .n_seqs = shape->n_seqs,
        .mask = MLA_ABI_MASK_CAUSAL,
        .out_type = out_type,
        .score_scale = SOFTMAX_SCALE,
        .kv_scale = 1,
        .inv_out_scale = INV_OUT_SCALE,
    };
}

/* A blob for each launch: they differ in the part of the table that they read. */
static int make_launches(struct work *work, const struct work_options *options)
{
    const struct gpu *gpu = work->pool->gpu;
    const struct shape *shape = work->shape;
    struct mla_kernels *kernels = work->kernels;
    if (mla_kernels_workspace_bytes(kernels, &work->plan, 1, shape->seqs, shape->n_seqs) > work->pool->workspace_bytes)
        return -ENOSPC;
    uint32_t copies = pool_copies(work->pool, shape, options->launches);
    size_t bytes = mla_kernels_blob_bytes(kernels, &work->plan, 1, shape->n_seqs);
    bytes = (bytes + 255) / 256 * 256;
    unsigned char *blobs = gpu_array(options->launches, bytes);
    work->n_launches = options->launches;
    work->launches = gpu_array(work->n_launches, sizeof *work->launches);
    work->blobs = gpu_alloc(gpu, bytes * work->n_launches);
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < work->n_launches; i++) {
        struct mla_abi_job job =
            work_job(work, options->out_type != 0 ? options->out_type : MLA_ABI_OUT_E4M3, i % copies);
        rc = mla_kernels_blob_write(kernels, &work->plan, &job, 1, shape->seqs, shape->n_seqs, blobs + i * bytes,
                                    work->blobs + i * bytes, work->pool->workspace, &work->launches[i]);
    }
    if (rc == 0)
        gpu_upload(gpu, work->blobs, blobs, bytes * work->n_launches);
    free(blobs);
    return rc;
}

/* A padded job for each launch, with a blob of its own. Their outputs and partials share the workspace. */
static int make_padded(struct work *work, const struct work_options *options)
{
    const struct gpu *gpu = work->pool->gpu;
    const struct shape *shape = work->shape;
    uint32_t copies = pool_copies(work->pool, shape, options->launches);
    unsigned char *blobs = NULL;
    size_t bytes = 0;
    char why[256] = "";
    int rc = options->tile_rows != 0 ? -EINVAL : 0;
    work->n_launches = options->launches;
    work->padded = gpu_array(work->n_launches, sizeof *work->padded);
    for (uint32_t i = 0; rc == 0 && i < work->n_launches; i++) {
        struct mla_abi_job job =
            work_job(work, options->out_type != 0 ? options->out_type : MLA_ABI_OUT_E4M3, i % copies);
        struct h128_request request = {.job = &job,
                                       .seqs = shape->seqs,
                                       .policy = options->policy != 0 ? options->policy : PLAN_AUTO,
                                       .splits = options->splits,
                                       .partial_bytes_max = work->pool->workspace_bytes / 2};
        rc = h128_job_make(work->variant->h128, &request, &work->padded[i], why, sizeof why);
        if (rc == 0 && h128_workspace_bytes(work->padded[i]) > work->pool->workspace_bytes)
            rc = -ENOSPC;
        if (rc == 0 && i == 0) {
            bytes = (h128_blob_bytes(work->padded[0]) + 255) / 256 * 256;
            blobs = gpu_array(work->n_launches, bytes);
            work->blobs = gpu_alloc(gpu, bytes * work->n_launches);
            work->plan = *h128_job_plan(work->padded[0]);
        }
        if (rc == 0)
            rc = h128_blob_write(work->padded[i], blobs + i * bytes, work->blobs + i * bytes, work->pool->workspace);
    }
    if (rc == 0)
        gpu_upload(gpu, work->blobs, blobs, bytes * work->n_launches);
    free(blobs);
    return rc;
}

int work_open(struct work *work, const struct variant *variant, const struct pool *pool, const struct shape *shape,
              const struct work_options *options)
{
    memset(work, 0, sizeof *work);
    work->variant = variant;
    work->kernels = variant->kernels;
    work->pool = pool;
    work->shape = shape;
    int rc;
    if (variant->h128) {
        rc = make_padded(work, options);
    } else {
        rc = make_plan(work, options);
        if (rc == 0)
            rc = make_launches(work, options);
    }
    work->n_made = work->n_launches;
    if (rc != 0)
        work_close(work);
    return rc;
}

void work_close(struct work *work)
{
    gpu_free(work->pool->gpu, work->blobs);
    free(work->launches);
    if (work->padded) {
        for (uint32_t i = 0; i < work->n_made; i++)
            h128_job_free(work->padded[i]);
        free(work->padded);
    } else {
        free(work->plan.tiles);
        free(work->plan.items);
        free(work->plan.reduces);
        free(work->plan.scratch);
    }
    memset(work, 0, sizeof *work);
}

const char *work_section(const struct work *work)
{
    return mla_kernels_facts(work->kernels)->variant;
}

void work_launch(const struct work *work, uint32_t i)
{
    const struct gpu *gpu = work->pool->gpu;
    CUresult result = CUDA_SUCCESS;
    int rc = work->padded ? h128_launch(work->padded[i], gpu->stream, &result)
                          : mla_kernels_launch(work->kernels, gpu->stream, &work->launches[i], &result);
    if (rc == 0)
        return;
    fprintf(stderr, "\nmla-bench: %s does not launch %s: %s: %s\n", work->variant->name, work->shape->name,
            strerror(-rc), cuda_driver_error(&gpu->driver, result));
    exit(2);
}

uint32_t work_rotation(uint32_t copies)
{
    return (LAUNCHES_MIN + copies - 1) / copies * copies;
}

CUgraphExec work_capture(struct work *work, unsigned parts)
{
    const struct gpu *gpu = work->pool->gpu;
    CUgraph graph;
    CUgraphExec exec = NULL;
    unsigned kernels = 0;
    tap_let(parts);
    GPU(gpu, cuStreamBeginCapture(gpu->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t i = 0; i < work->n_launches; i++)
        work_launch(work, i);
    GPU(gpu, cuStreamEndCapture(gpu->stream, &graph));
    for (unsigned part = 0; part < TAP_PARTS; part++)
        kernels += tap_launches(part);
    tap_let(TAP_ALL);
    if (kernels != 0)
        GPU(gpu, cuGraphInstantiate(&exec, graph, 0));
    GPU(gpu, cuGraphDestroy(graph));
    return exec;
}

void work_drop(const struct work *work, CUgraphExec graph)
{
    const struct gpu *gpu = work->pool->gpu;
    if (graph != NULL)
        GPU(gpu, cuGraphExecDestroy(graph));
}

void work_check_status(const struct work *work)
{
    const struct gpu *gpu = work->pool->gpu;
    uint32_t n = work->shape->n_seqs;
    uint64_t *status = gpu_array(n, sizeof *status);
    GPU(gpu, cuMemcpyDtoH(status, work->pool->status, n * sizeof *status));
    for (uint32_t s = 0; s < n; s++) {
        if (status[s] == 0)
            continue;
        fprintf(stderr, "\nmla-bench: %s, %s: sequence %u faulted: %016llx\n", work->shape->name, work->variant->name,
                s, (unsigned long long)status[s]);
        exit(2);
    }
    free(status);
}

/* Of e4m3 output: the last rows are there, and numbers. Outputs were 0 before. */
void work_check_output(const struct work *work)
{
    const struct gpu *gpu = work->pool->gpu;
    uint64_t rows = work->shape->heads < work->shape->rows ? work->shape->heads : work->shape->rows;
    uint64_t bytes = rows * MLA_ABI_V_DIM, zeros = 0, nans = 0;
    uint8_t *o = gpu_array(bytes, 1);
    GPU(gpu, cuMemcpyDtoH(o, work->pool->o + work->shape->rows * MLA_ABI_V_DIM - bytes, bytes));
    for (uint64_t i = 0; i < bytes; i++) {
        zeros += (o[i] & 0x7f) == 0;
        nans += (o[i] & 0x7f) == 0x7f;
    }
    free(o);
    if (zeros <= bytes / 2 && nans == 0)
        return;
    fprintf(stderr, "\nmla-bench: %s, %s: of %llu last elements of the output %llu are 0 and %llu NaN\n",
            work->shape->name, work->variant->name, (unsigned long long)bytes, (unsigned long long)zeros,
            (unsigned long long)nans);
    exit(2);
}

void work_once(const struct work *work)
{
    work_launch(work, 0);
    GPU(work->pool->gpu, cuStreamSynchronize(work->pool->gpu->stream));
    work_check_status(work);
}

double work_try(struct work *work)
{
    const struct gpu *gpu = work->pool->gpu;
    CUevent from, to;
    float ms = 0;
    GPU(gpu, cuEventCreate(&from, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventCreate(&to, CU_EVENT_DEFAULT));
    GPU(gpu, cuMemsetD8Async(work->pool->o, 0, work->pool->o_bytes, gpu->stream));
    GPU(gpu, cuEventRecord(from, gpu->stream));
    work_launch(work, 0);
    GPU(gpu, cuEventRecord(to, gpu->stream));
    GPU(gpu, cuEventSynchronize(to));
    GPU(gpu, cuEventElapsedTime(&ms, from, to));
    GPU(gpu, cuEventDestroy(from));
    GPU(gpu, cuEventDestroy(to));
    work_check_status(work);
    work_check_output(work);
    return 1e3 * (double)ms;
}
