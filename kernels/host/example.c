/* Decoding by libmla-kernels alone: one layer's attention of two sequences, planned once, captured into a CUDA graph
 * and replayed. All keys are alike here, so that what must come out is known: O = V, and the LSE of n equal scores.
 *
 *   cc kernels.c -I/usr/local/cuda/include $(pkg-config --cflags --libs mla-kernels) -lm && ./a.out
 *
 * Exit status: 0 when all of it is right; 77 without a GPU or a driver.
 */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/mla_kernels.h"

#define HEADS   96u
#define N_SEQS  2u
#define Q_LEN   4u
#define TOKENS  (N_SEQS * Q_LEN) /* of queries */
#define ROWS    (TOKENS * HEADS)
#define PAGES   32u /* of the cache */
#define REPLAYS 2

static const uint32_t kv_len[N_SEQS] = {1500, 300};

static struct cuda_driver cu;

static void check(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", call, cuda_driver_error(&cu, result));
    exit(1);
}
#define OK(call) check(cu.call, #call)

static void need(bool fine, const char *what)
{
    if (fine)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static CUdeviceptr device_memory(size_t bytes, const void *from)
{
    CUdeviceptr address = 0;
    OK(cuMemAlloc(&address, bytes));
    if (from)
        OK(cuMemcpyHtoD(address, from, bytes));
    return address;
}

static uint32_t pages_of(uint32_t tokens)
{
    return (tokens + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
}

/* What a job and its sequences are: shapes for the planner, addresses for the kernels. */
struct decode {
    struct plan_job plan_job;
    struct plan_seq plan_seqs[N_SEQS];
    struct mla_abi_job job;
    struct mla_abi_seq seqs[N_SEQS];
};

/* Rows of e4m3 codes: queries of 0.5, keys and so values of 1. Pages lie anywhere: here from the last one down. */
static void describe(struct decode *d, CUstream stream)
{
    int32_t table[PAGES];
    uint32_t n = 0;
    const int64_t q_row = MLA_ABI_QK_DIM, o_row = (int64_t)sizeof(float[MLA_ABI_V_DIM]), lse_row = sizeof(float);
    const size_t rows = (size_t)TOKENS * HEADS;
    *d = (struct decode){.plan_job = {.n_seqs = N_SEQS, .mask = MLA_ABI_MASK_CAUSAL}};
    for (uint32_t s = 0; s < N_SEQS; s++) {
        d->plan_seqs[s] = (struct plan_seq){.q_len = Q_LEN, .kv_len = kv_len[s]};
        d->seqs[s] =
            (struct mla_abi_seq){.q_len = Q_LEN, .kv_len_max = kv_len[s], .first_token = s * Q_LEN, .table_first = n};
        for (uint32_t i = 0; i < pages_of(kv_len[s]); i++, n++)
            table[n] = (int32_t)(PAGES - 1 - n);
    }
    const uint64_t zeros[N_SEQS] = {0};
    const size_t page_bytes = (size_t)MLA_ABI_PAGE_TOKENS * MLA_ABI_QK_DIM;
    d->job = (struct mla_abi_job){
        .q = {.base = device_memory(rows * (size_t)q_row, NULL),
              .token_stride = HEADS * q_row,
              .head_stride = q_row,
              .compact = 1},
        .o = {.base = device_memory(rows * (size_t)o_row, NULL),
              .token_stride = HEADS * o_row,
              .head_stride = o_row,
              .compact = 1},
        .lse = {.base = device_memory(rows * (size_t)lse_row, NULL),
                .token_stride = HEADS * lse_row,
                .head_stride = lse_row,
                .compact = 1},
        .kv = device_memory(PAGES * page_bytes, NULL),
        .page_stride = page_bytes,
        .row_stride = MLA_ABI_QK_DIM,
        .num_pages = PAGES,
        .table = device_memory(n * sizeof table[0], table),
        .pages_per_entry = 1,
        .status = device_memory(sizeof zeros, zeros),
        .heads = HEADS,
        .n_seqs = N_SEQS,
        .mask = MLA_ABI_MASK_CAUSAL,
        .out_type = MLA_ABI_OUT_F32,
        .score_scale = 1.0f / 24, /* 1 / sqrt(576) */
        .kv_scale = 1,
        .inv_out_scale = 1,
    };
    OK(cuMemsetD8Async(d->job.q.base, 0x30, rows * (size_t)q_row, stream));
    OK(cuMemsetD8Async(d->job.kv, 0x38, PAGES * page_bytes, stream));
}

/* The plan of these shapes, by the kernels that are for them. */
static struct plan make_plan(const struct decode *d, struct mla_kernels **kernels, uint64_t workspace_bytes)
{
    struct plan_request request = {
        .policy = PLAN_AUTO, .heads = HEADS, .jobs = &d->plan_job, .seqs = d->plan_seqs, .n_jobs = 1, .n_seqs = N_SEQS};
    *kernels = mla_kernels_for(*kernels, &request);
    const struct mla_kernels_facts *facts = mla_kernels_facts(*kernels);
    request.device = facts->device;
    request.costs = facts->costs;
    request.tile_rows = facts->tile_rows;
    uint64_t scratch = mla_kernels_scratch_bytes_max(*kernels, &request);
    need(scratch <= workspace_bytes, "the workspace is too small");
    request.workspace_bytes_max = workspace_bytes - scratch;
    struct plan plan = {0};
    need(plan_bound(&request, &plan.capacity) == 0, "a request that makes no sense");
    plan.tiles = calloc(plan.capacity.tiles, sizeof *plan.tiles);
    plan.items = calloc(plan.capacity.items, sizeof *plan.items);
    plan.reduces = calloc(plan.capacity.reduces + 1, sizeof *plan.reduces);
    plan.scratch = malloc(plan.capacity.scratch_bytes);
    need(plan.tiles && plan.items && plan.reduces && plan.scratch, "no memory");
    need(plan_build(&request, &plan) == 0, "the plan does not fit");
    printf("%s: %u tiles, %u items, %u waves, %.1f us predicted\n", facts->variant, plan.n_tiles, plan.n_items,
           plan.waves, 1e-3 * (double)plan.predicted_ns);
    return plan;
}

static bool is_right(const struct decode *d)
{
    static float o[ROWS][MLA_ABI_V_DIM], lse[ROWS];
    uint64_t status[N_SEQS];
    OK(cuMemcpyDtoH(o, d->job.o.base, sizeof o));
    OK(cuMemcpyDtoH(lse, d->job.lse.base, sizeof lse));
    OK(cuMemcpyDtoH(status, d->job.status, sizeof status));
    for (uint32_t row = 0; row < ROWS; row++) {
        uint32_t token = row / HEADS, s = token / Q_LEN;
        uint32_t sees = kv_len[s] - Q_LEN + token % Q_LEN + 1;
        double expected = 576 * 0.5 / 24 + log(sees);
        if (status[s] != 0 || fabs(lse[row] - expected) > 1e-3 * expected)
            return false;
        for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++)
            if (fabsf(o[row][c] - 1) > 0.01f)
                return false;
    }
    return true;
}

int main(void)
{
    char why[512] = "";
    CUdevice device;
    CUcontext context;
    CUstream stream;
    int rc = cuda_driver_open(NULL, &cu, why, sizeof why);
    if (rc != 0) {
        fprintf(stderr, "skipped: %s\n", why);
        return rc == -ENOENT || rc == -ENODEV ? 77 : 1;
    }
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    struct mla_kernels *opened, *kernels;
    struct mla_kernels_options options = {.size = sizeof options};
    need(mla_kernels_open(&cu, &options, &opened, why, sizeof why) == 0, why);
    kernels = opened;

    struct decode d;
    const uint64_t workspace_bytes = UINT64_C(256) << 20;
    describe(&d, stream);
    struct plan plan = make_plan(&d, &kernels, workspace_bytes);

    /* Plan and records, once, to where the kernels read them. */
    size_t blob_bytes = mla_kernels_blob_bytes(kernels, &plan, 1, N_SEQS);
    void *blob = calloc(1, blob_bytes);
    CUdeviceptr at = device_memory(blob_bytes, NULL), workspace = device_memory(workspace_bytes, NULL);
    struct mla_kernels_launch launch = {0};
    need(blob && mla_kernels_blob_write(kernels, &plan, &d.job, 1, d.seqs, N_SEQS, blob, at, workspace, &launch) == 0,
         "the cache's address or strides");
    OK(cuMemcpyHtoD(at, blob, blob_bytes));

    CUgraph graph;
    CUgraphExec replay;
    CUresult result;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    rc = mla_kernels_launch(kernels, stream, &launch, &result);
    check(result, "mla_kernels_launch");
    need(rc == 0, "mla_kernels_launch");
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&replay, graph, 0));
    for (int i = 0; i < REPLAYS; i++)
        OK(cuGraphLaunch(replay, stream));
    OK(cuStreamSynchronize(stream));
    bool right = is_right(&d);
    printf("%u rows of %d replays: %s\n", ROWS, REPLAYS, right ? "right" : "wrong");

    OK(cuGraphExecDestroy(replay));
    OK(cuGraphDestroy(graph));
    const CUdeviceptr memory[] = {d.job.q.base, d.job.o.base, d.job.lse.base, d.job.kv, d.job.table,
                                  d.job.status, at,           workspace};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        OK(cuMemFree(memory[i]));
    free(blob);
    free(plan.scratch);
    free(plan.reduces);
    free(plan.items);
    free(plan.tiles);
    mla_kernels_close(opened);
    OK(cuStreamDestroy(stream));
    OK(cuDevicePrimaryCtxRelease(device));
    cuda_driver_close(&cu);
    return right ? 0 : 1;
}
