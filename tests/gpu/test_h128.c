/* The baseline h128 gives what the library gives, in the caller's own layout: padded heads and requests of four tokens
 * are nobody's business. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/baseline/h128.h"
#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define WORKSPACE_BYTES (64u << 20)

static void poison_outputs(struct dc *c, struct dc_job *job)
{
    memset(job->o_mem.host, DC_POISON, job->o_mem.bytes);
    mem_push(c->rig, &job->o_mem);
    if (job->lse_mem.host) {
        memset(job->lse_mem.host, DC_POISON, job->lse_mem.bytes);
        mem_push(c->rig, &job->lse_mem);
    }
    memset(job->status, 0, job->shape.n_seqs * sizeof(*job->status));
}

/* The case's one job again, by the adapter: captured once, launched twice. */
static void run_padded(struct dc *c, uint32_t splits)
{
    char why[512] = "";
    struct h128 *h;
    struct h128_job *job;
    void *blob;
    CUdeviceptr address, workspace;
    CUgraph graph;
    CUgraphExec exec;
    struct h128_request request = {.job = c->batch.jobs,
                                   .seqs = c->batch.seqs,
                                   .policy = PLAN_AUTO,
                                   .splits = splits,
                                   .partial_bytes_max = WORKSPACE_BYTES};
    ck_assert_msg(h128_open(&lib.driver, lib.kernels, &h, why, sizeof(why)) == 0, "%s", why);
    ck_assert_msg(h128_job_make(h, &request, &job, why, sizeof(why)) == 0, "%s", why);
    if (splits != 0)
        ck_assert_uint_eq(h128_job_plan(job)->max_splits, splits);
    LIB_OK(cuMemHostAlloc(&blob, h128_blob_bytes(job), CU_MEMHOSTALLOC_DEVICEMAP));
    LIB_OK(cuMemHostGetDevicePointer(&address, blob, 0));
    LIB_OK(cuMemAlloc(&workspace, h128_workspace_bytes(job)));
    LIB_OK(cuMemsetD8Async(workspace, 0xff, h128_workspace_bytes(job), lib.stream)); /* NaN */
    LIB_OK(cuStreamSynchronize(lib.stream));
    ck_assert_int_eq(h128_blob_write(job, blob, address, workspace), 0);
    CUresult result = CUDA_SUCCESS;
    LIB_OK(cuStreamBeginCapture(lib.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    int rc = h128_launch(job, lib.stream, &result);
    LIB_OK(cuStreamEndCapture(lib.stream, &graph));
    ck_assert_msg(rc == 0, "launch: %d, %s", rc, cuda_driver_error(&lib.driver, result));
    LIB_OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++)
        LIB_OK(cuGraphLaunch(exec, lib.stream));
    LIB_OK(cuStreamSynchronize(lib.stream));
    LIB_OK(cuGraphExecDestroy(exec));
    LIB_OK(cuGraphDestroy(graph));
    LIB_OK(cuMemFree(workspace));
    LIB_OK(cuMemFreeHost(blob));
    h128_job_free(job);
    h128_close(h);
}

/* With the first kernels that fit. */
static bool open_any(struct rig *rig)
{
    for (int i = 0; i < rig_backends(); i++)
        if (rig_open(rig, i))
            return true;
    return false;
}

/* By the library, then by the adapter: both against float64, and statuses the same. */
static void check_shape(const struct dc_shape *shape, uint32_t splits, uint32_t bad_entry_of)
{
    struct rig rig;
    if (!open_any(&rig))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_job *job = dc_add(c, shape);
    if (bad_entry_of < shape->n_seqs)
        job->table[job->table_first[bad_entry_of]] = -1;
    dc_run(c);
    dc_check(job);
    uint64_t *statuses = calloc(shape->n_seqs, sizeof(*statuses));
    ck_assert_ptr_nonnull(statuses);
    memcpy(statuses, job->status, shape->n_seqs * sizeof(*statuses));
    poison_outputs(c, job);
    run_padded(c, splits);
    dc_pull(c);
    dc_check(job);
    ck_assert_mem_eq(statuses, job->status, shape->n_seqs * sizeof(*statuses));
    free(statuses);
    dc_free(c);
    rig_close(&rig);
}

enum { NONE_BAD = 99 };

START_TEST(eight_tokens_are_two_requests)
{
    check_shape(&(struct dc_shape){.heads = 96, .n_seqs = 2, .seqs = SEQS({8, 700}, {8, 1025}), .seed = 401}, 0,
                NONE_BAD);
    check_shape(&(struct dc_shape){.heads = 96, .n_seqs = 2, .seqs = SEQS({4, 700}, {8, 1025}), .seed = 402}, 3,
                NONE_BAD);
}
END_TEST

START_TEST(layouts_and_types)
{
    check_shape(&(struct dc_shape){.heads = 96,
                                   .n_seqs = 3,
                                   .seqs = SEQS({8, 300}, {0, 64}, {5, 65}),
                                   .q_layout = DC_SHTD,
                                   .o_layout = DC_HTD,
                                   .lse_layout = DC_STHD,
                                   .split_rope = true,
                                   .out_type = MLA_ABI_OUT_BF16,
                                   .seed = 403},
                0, NONE_BAD);
    check_shape(&(struct dc_shape){.heads = 100,
                                   .n_seqs = 2,
                                   .seqs = SEQS({8, 5}, {1, 129}), /* tokens that see nothing */
                                   .q_layout = DC_STHD,
                                   .no_lse = true,
                                   .out_type = MLA_ABI_OUT_E4M3,
                                   .out_scale = 0.05f,
                                   .mask = MLA_ABI_MASK_CAUSAL,
                                   .seed = 404},
                0, NONE_BAD);
}
END_TEST

START_TEST(masks_and_faults)
{
    check_shape(&(struct dc_shape){.heads = 12,
                                   .n_seqs = 3,
                                   .seqs = SEQS({8, 300}, {8, 200}, {8, 130}),
                                   .mask = MLA_ABI_MASK_VISIBLE,
                                   .seed = 405},
                0, 1);
    check_shape(
        &(struct dc_shape){
            .heads = 128, .n_seqs = 2, .seqs = SEQS({6, 300}, {8, 200}), .mask = MLA_ABI_MASK_NONE, .seed = 406},
        2, NONE_BAD);
}
END_TEST

START_TEST(refusals)
{
    struct rig rig;
    if (!open_any(&rig))
        return;
    char why[512] = "";
    struct h128 *h;
    struct h128_job *job;
    struct mla_abi_seq seq = {.q_len = 1, .kv_len_max = 64};
    struct mla_abi_job what = {.heads = 129, .n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL, .out_type = MLA_ABI_OUT_F32};
    struct h128_request request = {.job = &what, .seqs = &seq, .policy = PLAN_AUTO};
    ck_assert_msg(h128_open(&lib.driver, lib.kernels, &h, why, sizeof(why)) == 0, "%s", why);
    ck_assert_int_eq(h128_job_make(h, &request, &job, why, sizeof(why)), -EINVAL);
    ck_assert_ptr_null(job);
    what.heads = 96;
    what.kv_len = 4096;
    ck_assert_int_eq(h128_job_make(h, &request, &job, why, sizeof(why)), -EINVAL);
    what.kv_len = 0;
    what.user_status = 4096;
    ck_assert_int_eq(h128_job_make(h, &request, &job, why, sizeof(why)), -EINVAL);
    what.user_status = 0;
    ck_assert_int_eq(h128_job_make(h, &request, &job, why, sizeof(why)), 0);
    h128_job_free(job);
    h128_job_free(NULL);
    h128_close(h);
    h128_close(NULL);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(h128)
{
    TCase *tc = mla_tcase_timeout(suite, "h128", 120);
    tcase_add_test(tc, eight_tokens_are_two_requests);
    tcase_add_test(tc, layouts_and_types);
    tcase_add_test(tc, masks_and_faults);
    tcase_add_test(tc, refusals);
}
