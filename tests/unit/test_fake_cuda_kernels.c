/* Decode kernels on the fake CUDA driver: records in pinned memory, data in device memory. */
#include "tests/unit/test_fake_cuda.h"

#include <math.h>
#include <signal.h>
#include <string.h>

#include "kernels/abi/abi.h"
#include "proto/status.h"

#define PAGE_BYTES (64u * MLA_ABI_QK_DIM)
#define ONE        0x38 /* 1.0 in e4m3 */

/* One head, one token, 128 keys of two pages, all Q zero, all KV one: O = 1, LSE = ln 128. */
struct blob {
    struct mla_abi_job job;
    struct mla_abi_seq seq;
    struct mla_abi_tile tile;
    struct mla_abi_item items[2];
    struct mla_abi_reduce reduce;
    int32_t table[2];
    uint64_t status;
    uint64_t user_status;
};

struct rig {
    CUstream stream;
    CUmodule module;
    CUfunction decode, reduce;
    CUdeviceptr kv, q, o, workspace;
    struct blob *blob;
    struct mla_abi_launch launch;
};

static uint64_t address_of(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

static void fill_blob(struct rig *r, uint32_t n_items)
{
    struct blob *b = r->blob;
    memset(b, 0, sizeof *b);
    b->job = (struct mla_abi_job){.q = {.base = r->q, .token_stride = 576, .head_stride = 576},
                                  .o = {.base = r->o, .token_stride = 2048, .head_stride = 2048},
                                  .lse = {.base = r->o + 2048, .token_stride = 4, .head_stride = 4},
                                  .kv = r->kv,
                                  .page_stride = PAGE_BYTES,
                                  .table = address_of(b->table),
                                  .status = address_of(&b->status),
                                  .user_status = address_of(&b->user_status),
                                  .row_stride = MLA_ABI_QK_DIM,
                                  .num_pages = 2,
                                  .pages_per_entry = 1,
                                  .heads = 1,
                                  .n_seqs = 1,
                                  .mask = MLA_ABI_MASK_NONE,
                                  .out_type = MLA_ABI_OUT_F32,
                                  .score_scale = 1.0f,
                                  .kv_scale = 1.0f,
                                  .inv_out_scale = 1.0f};
    b->seq = (struct mla_abi_seq){.q_len = 1, .kv_len_max = 128};
    b->tile = (struct mla_abi_tile){.rows = 1, .pages = 2, .n_items = n_items};
    b->items[0] = (struct mla_abi_item){.page_end = 3 - n_items, .partial_row = n_items == 1 ? MLA_ABI_NO_PARTIAL : 0};
    b->items[1] = (struct mla_abi_item){.page_begin = 1, .page_end = 2, .partial_row = 1};
    b->reduce = (struct mla_abi_reduce){.n_partials = 2, .rows = 1};
    b->table[0] = 1;
    b->user_status = 99;
    r->launch = (struct mla_abi_launch){.jobs = address_of(&b->job),
                                        .seqs = address_of(&b->seq),
                                        .tiles = address_of(&b->tile),
                                        .items = address_of(b->items),
                                        .reduces = address_of(&b->reduce),
                                        .partial_o = r->workspace,
                                        .partial_lse = r->workspace + 4096,
                                        .n_items = n_items,
                                        .n_reduces = n_items - 1,
                                        .n_jobs = 1,
                                        .n_seqs = 1,
                                        .flags = MLA_ABI_LAUNCH_USER_STATUS};
}

static void open_rig(struct rig *r, uint32_t n_items)
{
    fake_test_open("");
    r->decode = fake_test_function(&r->module, "mla_test_decode");
    OK(cuModuleGetFunction(&r->reduce, r->module, "mla_test_reduce"));
    OK(cuStreamCreate(&r->stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&r->kv, 2 * PAGE_BYTES));
    OK(cuMemAlloc(&r->q, 576));
    OK(cuMemAlloc(&r->o, 4096));
    OK(cuMemAlloc(&r->workspace, 8192));
    OK(cuMemHostAlloc((void **)&r->blob, sizeof *r->blob, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemsetD8Async(r->kv, ONE, 2 * PAGE_BYTES, r->stream));
    OK(cuMemsetD8Async(r->q, 0, 576, r->stream));
    OK(cuStreamSynchronize(r->stream));
    fill_blob(r, n_items);
}

static CUresult run(struct rig *r)
{
    OK(fake_test_launch(r->stream, r->decode, &r->launch));
    OK(fake_test_launch(r->stream, r->reduce, &r->launch));
    return cuStreamSynchronize(r->stream);
}

START_TEST(decode_and_reduce)
{
    struct rig r;
    float o[513];
    open_rig(&r, (uint32_t)_i);
    OK(run(&r));
    OK(cuMemcpyDtoH(o, r.o, sizeof o));
    ck_assert_double_eq_tol((double)o[0], 1.0, 1e-6);
    ck_assert_double_eq_tol((double)o[511], 1.0, 1e-6);
    ck_assert_double_eq_tol((double)o[512], log(128.0), 1e-5);
    ck_assert_uint_eq(r.blob->status, 0);
    ck_assert_uint_eq(r.blob->user_status, 0);
}
END_TEST

START_TEST(a_bad_page_is_that_sequences_fault)
{
    struct rig r;
    open_rig(&r, 2);
    r.blob->table[1] = 2;
    OK(run(&r));
    ck_assert_uint_eq(r.blob->status, (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 1);
    ck_assert_uint_eq(r.blob->user_status, r.blob->status);
}
END_TEST

START_TEST(a_captured_launch_reads_anew)
{
    struct rig r;
    CUgraph graph;
    CUgraphExec exec;
    float lse;
    open_rig(&r, 1);
    r.blob->job.kv_len = address_of(&r.blob->table[1]); /* of the job's one sequence */
    r.blob->seq.kv_len_max = 64;
    r.blob->tile.pages = 1;
    r.blob->items[0].page_end = 1;
    OK(cuStreamBeginCapture(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(fake_test_launch(r.stream, r.decode, &r.launch));
    OK(cuStreamEndCapture(r.stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int keys = 1; keys <= 64; keys += 21) {
        r.blob->table[1] = keys;
        OK(cuGraphLaunch(exec, r.stream));
        OK(cuStreamSynchronize(r.stream));
        OK(cuMemcpyDtoH(&lse, r.o + 2048, sizeof lse));
        ck_assert_double_eq_tol((double)lse, log(keys), 1e-5);
    }
}
END_TEST

START_TEST(an_address_that_is_not_mapped)
{
    struct rig r;
    open_rig(&r, 1);
    if (_i == 0)
        r.blob->job.kv += 4096; /* its last page ends outside */
    else
        r.launch.jobs = address_of(&r.launch); /* not registered */
    OK(fake_test_launch(r.stream, r.decode, &r.launch));
    REFUSED(cuStreamSynchronize(r.stream), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

START_TEST(memory_of_a_queued_kernel_stays)
{
    struct rig r;
    open_rig(&r, 1);
    uint64_t *words = fake_test_words();
    OK(cuStreamWaitValue64(r.stream, address_of(words), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(fake_test_launch(r.stream, r.decode, &r.launch));
    OK(cuMemFree(r.workspace)); /* the plan has no partials */
    cuMemFree(r.kv);
}
END_TEST

START_TEST(names_and_occupancy)
{
    CUmodule module;
    CUfunction function;
    int blocks;
    CUlaunchConfig config = {
        .gridDimX = 132, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1};
    CUlaunchAttribute pair = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    void *parameters[] = {&config};
    fake_test_open("");
    REFUSED(cuModuleLoadData(&module, "no image"), CUDA_ERROR_INVALID_IMAGE);
    function = fake_test_function(&module, "mla_test_decode");
    REFUSED(cuModuleGetFunction(&function, module, "mla_other_decode"), CUDA_ERROR_NOT_FOUND);
    OK(cuModuleGetFunction(&function, module, "mla_test_decode"));
    config.sharedMemBytes = 200 * 1024;
    REFUSED(cuLaunchKernelEx(&config, function, parameters, NULL), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 228 * 1024),
            CUDA_ERROR_INVALID_VALUE);
    OK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 200 * 1024));
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 200 * 1024));
    ck_assert_int_eq(blocks, 1);
    config.attrs = &pair;
    config.numAttrs = 1;
    OK(cuOccupancyMaxActiveClusters(&blocks, function, &config));
    ck_assert_int_eq(blocks, 66);
    OK(cuModuleUnload(module));
    REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0), CUDA_ERROR_INVALID_HANDLE);
}
END_TEST

MLA_SUITE(fake_cuda_kernels)
{
    TCase *tc = mla_tcase(suite, "kernels");
    tcase_add_loop_test(tc, decode_and_reduce, 1, 3);
    tcase_add_test(tc, a_bad_page_is_that_sequences_fault);
    tcase_add_test(tc, a_captured_launch_reads_anew);
    tcase_add_loop_test(tc, an_address_that_is_not_mapped, 0, 2);
    tcase_add_test_raise_signal(tc, memory_of_a_queued_kernel_stays, SIGABRT);
    tcase_add_test(tc, names_and_occupancy);
}
