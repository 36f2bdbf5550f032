/* Opening the CUDA backend: which GPU, what is missing, what the device cannot do. On the fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/backend/cuda/cuda.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

#define UUID_0 "00112233445566778899aabbccddee00"
#define TEXT_0 "GPU-00112233-4455-6677-8899-aabbccddee00"
#define TEXT_1 "GPU-00112233-4455-6677-8899-aabbccddee01"

static const struct be_config plain = {.workspace_bytes = 1 << 20, .host_bytes = 1 << 20};

static void fake(const char *config)
{
    ck_assert_int_eq(setenv("MLA_FAKE_CUDA", config, 1), 0);
}

static void assert_nothing_open(void)
{
    struct mla_fake_report report;
    char open_now[300];
    ck_assert(cuda_fake_report(&report));
    mla_fake_report_open(&report, open_now, sizeof open_now);
    ck_assert_str_eq(open_now, "");
}

/* The daemon's log shows the text, so it must name what is wrong. */
static void refused(const struct be_config *config, enum mla_status code, const char *says, const char *says_too)
{
    struct be be;
    struct mla_error err = {.code = MLA_OK};
    ck_assert_int_eq(be_open(&be, &be_cuda_ops, config, &err), (int)code);
    ck_assert_int_eq(err.code, code);
    ck_assert_msg(strstr(err.text, says) && strstr(err.text, says_too), "'%s' does not say '%s' and '%s'", err.text,
                  says, says_too);
}

static void opens(const char *gpu, const char *uuid)
{
    struct be_config config = plain;
    struct be be;
    struct mla_error err;
    config.gpu = gpu;
    ck_assert_msg(be_open(&be, &be_cuda_ops, &config, &err) == 0, "%s: %s", gpu ? gpu : "NULL", err.text);
    ck_assert_str_eq(be_facts(&be)->gpu_uuid, uuid);
    be_close(&be);
    assert_nothing_open();
}

START_TEST(no_driver)
{
    ck_assert_int_eq(setenv("MLA_CUDA_DRIVER", "/nowhere/libcuda.so", 1), 0);
    refused(&plain, MLA_UNSUPPORTED, "driver", "/nowhere/libcuda.so");
}
END_TEST

START_TEST(no_gpu)
{
    fake("devices=0");
    refused(&plain, MLA_UNSUPPORTED, "", "");
    assert_nothing_open();
}
END_TEST

START_TEST(which_gpu)
{
    fake("devices=2;uuid=" UUID_0);
    opens(NULL, TEXT_0);
    opens("0", TEXT_0);
    opens("1", TEXT_1);
    opens(TEXT_1, TEXT_1);
    opens("gpu-00112233-4455-6677-8899-AABBCCDDEE00", TEXT_0);
    opens("MIG-00112233-4455-6677-8899-aabbccddee01", TEXT_1);
    const char *wrong[] = {"2", "-1", "", "GPU-00112233", "all", "1x"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct be_config config = plain;
        config.gpu = wrong[i];
        refused(&config, MLA_WRONG_DEVICE, "0 = " TEXT_0, "1 = " TEXT_1);
    }
    assert_nothing_open();
}
END_TEST

START_TEST(no_kernels)
{
    struct be_config config = plain;
    config.kernels_dir = "/nowhere/kernels";
    refused(&config, MLA_UNSUPPORTED, "no decode kernels", "/nowhere/kernels");
    config = plain;
    config.variant = "no-such-variant";
    refused(&config, MLA_UNSUPPORTED, "no decode kernels", "no-such-variant");
    assert_nothing_open();
}
END_TEST

START_TEST(no_memory)
{
    struct be_config config = plain;
    fake("memory=1G");
    config.workspace_bytes = UINT64_C(1) << 40;
    refused(&config, MLA_OUT_OF_MEMORY, "workspace", "OUT_OF_MEMORY");
    assert_nothing_open();
}
END_TEST

START_TEST(isolation)
{
    struct be be;
    struct mla_error err;
    fake(_i == 0 ? "mps=0" : "mps=1");
    ck_assert_int_eq(be_open(&be, &be_cuda_ops, &plain, &err), 0);
    ck_assert_str_eq(be_facts(&be)->isolation, _i == 0 ? "isolated" : "shared");
    be_close(&be);
}
END_TEST

/* What the device does not offer is not a feature, and a region of that kind is told what would work. */
START_TEST(memory_that_is_not_offered)
{
    fake(_i == 0 ? "ipc=0" : "vmm=0");
    struct rig rig = cuda_rig();
    uint64_t missing = _i == 0 ? MLA_FEATURE_CUDA_IPC : MLA_FEATURE_CUDA_VMM;
    ck_assert_uint_eq(rig.facts->features & missing, 0);
    uint8_t handle[64] = {0};
    struct be_part part = {.fd = 0, .size = 4096};
    struct be_region region = {.kind = _i == 0 ? MLA_REGION_CUDA_IPC : MLA_REGION_CUDA_VMM,
                               .access = MLA_ACCESS_READ,
                               .size = 4096,
                               .block_size = 4096,
                               .ipc_handle = handle,
                               .parts = &part,
                               .n_parts = 1};
    struct mla_error err = cuda_ask(&rig, BE_MAP, &region);
    ck_assert_int_eq(err.code, MLA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, _i == 0 ? "CUDA_VMM" : "CUDA_IPC"));
    rig_close(&rig);
}
END_TEST

/* Memory of GPU 0 offered to a daemon of GPU 1. */
START_TEST(memory_of_another_gpu)
{
    fake("devices=2;uuid=" UUID_0);
    struct be_config config = plain;
    struct rig rig = {.shared = &mem_cuda};
    struct mla_error err;
    config.gpu = "1";
    exporter_start();
    ck_assert_int_eq(be_open(&rig.be, &be_cuda_ops, &config, &err), 0);
    for (int kind = MLA_REGION_CUDA_IPC; kind <= MLA_REGION_CUDA_VMM; kind++) {
        struct exported e;
        int copy = rig_memfd(1 << 20, false);
        exporter_take((enum mla_region_kind)kind, 1 << 20, 1, copy, &e);
        close(copy);
        struct be_region region = cuda_region(&e, 1 << 20, MLA_ACCESS_READ);
        err = cuda_ask(&rig, BE_MAP, &region);
        ck_assert_msg(err.code == MLA_WRONG_DEVICE, "%s: %s", mla_status_name(err.code), err.text);
        ck_assert_ptr_nonnull(strstr(err.text, TEXT_1));
        ck_assert_ptr_null(region.impl);
        cuda_close_parts(&e);
    }
    rig_close(&rig);
    assert_nothing_open();
}
END_TEST

/* Plans and records as the device reads them: brought by a kernel, in place, copied from pageable memory; done words by
 * the stream and, where it cannot write 64 bits, by the host. */
START_TEST(ways_of_launching)
{
    if (_i & 1)
        setenv("MLA_CUDA_BLOB", "pinned", 1);
    if (_i & 4)
        setenv("MLA_CUDA_BLOB", "pageable", 1);
    if (_i & 2)
        fake("attribute.122=0");
    struct rig rig = cuda_rig();
    struct mem page;
    mem_take(&rig, &page, &mem_memfd, 4096, MEM_SYNC);
    struct be_done_word done = {page.region.host, 5};
    struct dc *c = dc_new(&rig);
    struct dc_seq seqs[64];
    for (int i = 0; i < 64; i++)
        seqs[i] = (struct dc_seq){1, 130, 0};
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 16,
                                                    .n_seqs = 64,
                                                    .seqs = seqs,
                                                    .pages = DC_ALIAS,
                                                    .num_pages = 3,
                                                    .user_status = true,
                                                    .seed = 3});
    c->request.splits = 2;
    c->done = &done;
    c->n_done = 1;
    for (int round = 0; round < 3; round++, done.value++) {
        dc_run(c);
        dc_check(j);
        ck_assert_uint_eq(*(uint64_t *)(void *)page.host, done.value);
    }
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    ck_assert_uint_eq(report.calls[MLA_FAKE_cuMemcpyHtoDAsync], _i & 4 ? 3 : 0);
    ck_assert_uint_eq(report.inline_bytes, 0);
    ck_assert(_i & 5 ? report.fetched_bytes == 0 : report.fetched_bytes > 3 * 16384);
    ck_assert_uint_eq(report.calls[MLA_FAKE_cuStreamWriteValue64], _i & 2 ? 0 : 6);
    dc_free(c);
    mem_drop(&rig, &page);
    rig_close(&rig);
    assert_nothing_open();
}
END_TEST

/* Two launches are on the stream at a time, and more may wait; their times do not overlap. */
START_TEST(launches_in_flight)
{
    struct rig rig = cuda_rig();
    ck_assert(cuda_fake_rules("kernel=delay 20"));
    struct dc *c[12];
    for (uint32_t i = 0; i < 12; i++) {
        c[i] = dc_new(&rig);
        dc_add(c[i], &(struct dc_shape){.heads = 8, .n_seqs = 1, .seqs = SEQS({1, 100}), .seed = i});
        dc_plan(c[i]);
    }
    for (int i = 0; i < 12; i++)
        dc_launch(c[i]);
    rig_wait(&rig, &c[0]->ticket);
    ck_assert_uint_ne(c[1]->ticket.submitted_at, 0);
    ck_assert_uint_lt(c[1]->ticket.submitted_at, c[0]->ticket.ended_at);
    for (int i = 0; i < 12; i++) {
        dc_wait(c[i]);
        ck_assert_uint_gt(c[i]->batch.ended_ns, c[i]->batch.started_ns);
        ck_assert(i == 0 || c[i]->batch.started_ns >= c[i - 1]->batch.ended_ns);
        dc_check_all(c[i]);
    }
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    ck_assert_uint_eq(report.calls[MLA_FAKE_cuMemcpyHtoDAsync] + report.inline_bytes / 4096, 12);
    ck_assert_uint_ge(report.calls[MLA_FAKE_cuStreamWaitEvent], 6); /* records come while another batch runs */
    ck_assert_uint_lt(report.calls[MLA_FAKE_cuStreamWaitEvent], 12);
    for (int i = 0; i < 12; i++)
        dc_free(c[i]);
    rig_close(&rig);
}
END_TEST

static uint64_t allocations(void)
{
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    return report.calls[MLA_FAKE_cuMemAlloc] + report.calls[MLA_FAKE_cuMemHostAlloc] +
           report.calls[MLA_FAKE_cuMemFree] + report.calls[MLA_FAKE_cuMemFreeHost];
}

/* A batch of n sequences of 70 keys, for which the daemon could know no better than that there are up to kv_len_max.
 * False when it does not fit the workspace. */
static bool launch_large(struct rig *rig, uint32_t n, uint32_t kv_len_max)
{
    struct dc_seq *seqs = calloc(n, sizeof *seqs);
    uint64_t partial_bytes;
    ck_assert_ptr_nonnull(seqs);
    for (uint32_t i = 0; i < n; i++)
        seqs[i] = (struct dc_seq){1, 70, kv_len_max};
    struct dc *c = dc_new(rig);
    struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 2,
                                                    .n_seqs = n,
                                                    .seqs = seqs,
                                                    .pages = DC_ALIAS,
                                                    .num_pages = 3,
                                                    .kv_len = DC_REGION,
                                                    .table = DC_REGION,
                                                    .seed = n});
    dc_plan(c); /* fills the request, too */
    bool fits = be_workspace_for(&rig->be, &c->request, &partial_bytes) == 0;
    if (fits) {
        ck_assert_uint_le(partial_bytes, rig->facts->workspace_bytes);
        dc_replan(c);
        c->request.workspace_bytes_max = partial_bytes;
        uint64_t before = allocations();
        dc_run(c);
        dc_check(j);
        ck_assert_uint_eq(allocations(), before);
    }
    dc_free(c);
    free(seqs);
    return fits;
}

/* All memory is taken at the start, whatever a batch needs: records beyond a slot, page ids beyond the scratch. What
 * does not fit is known before it is launched. */
START_TEST(nothing_is_allocated_after_the_start)
{
    struct rig rig = cuda_rig();
    uint64_t before = allocations();
    struct plan_seq seq = {4, 70000};
    struct plan_job job = {.n_seqs = 1, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {.device = rig.facts->device,
                                   .costs = rig.facts->costs,
                                   .policy = PLAN_AUTO,
                                   .tile_rows = rig.facts->tile_rows,
                                   .heads = 96,
                                   .jobs = &job,
                                   .seqs = &seq,
                                   .n_jobs = 1,
                                   .n_seqs = 1};
    uint64_t partial_bytes;
    ck_assert_int_eq(be_workspace_for(&rig.be, &request, &partial_bytes), 0);
    ck_assert_uint_eq(partial_bytes, rig.facts->workspace_bytes); /* an ordinary batch leaves all of it */
    ck_assert(launch_large(&rig, 1, 130));
    ck_assert(launch_large(&rig, 1500, 130));
    ck_assert(launch_large(&rig, 1280, 131072));
    ck_assert(launch_large(&rig, 1500, 130));
    ck_assert_uint_eq(allocations(), before);
    ck_assert(!launch_large(&rig, 7680, 131072));
    rig_close(&rig);
    assert_nothing_open();
}
END_TEST

/* The scheduler adds up what jobs need alone: together they never need more. */
START_TEST(scratch_of_a_batch)
{
    struct rig rig = cuda_rig();
    struct plan_seq seqs[] = {{1, 500}, {900, 100000}, {3, 0}, {0, 7}, {4, 65536}, {2, 65}};
    struct plan_job jobs[] = {
        {0, 2, MLA_ABI_MASK_CAUSAL, false}, {2, 3, MLA_ABI_MASK_NONE, true}, {5, 1, MLA_ABI_MASK_VISIBLE, true}};
    struct plan_request request = {.device = rig.facts->device,
                                   .costs = rig.facts->costs,
                                   .policy = PLAN_AUTO,
                                   .tile_rows = rig.facts->tile_rows,
                                   .heads = 16,
                                   .jobs = jobs,
                                   .seqs = seqs,
                                   .n_jobs = 3,
                                   .n_seqs = 6};
    uint64_t together = be_scratch_bytes(&rig.be, &request), sum = 0;
    for (int i = 0; i < 3; i++) {
        struct plan_job alone = jobs[i];
        alone.first_seq = 0;
        request.jobs = &alone;
        request.seqs = seqs + jobs[i].first_seq;
        request.n_jobs = 1;
        request.n_seqs = jobs[i].n_seqs;
        sum += be_scratch_bytes(&rig.be, &request);
        ck_assert_uint_lt(be_scratch_bytes(&rig.be, &request), together);
    }
    ck_assert_uint_le(together, sum);
    request.heads = 0;
    ck_assert_uint_eq(be_scratch_bytes(&rig.be, &request), UINT64_MAX);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_open)
{
    TCase *tc = mla_tcase(suite, "open");
    tcase_add_test(tc, no_driver);
    tcase_add_test(tc, no_gpu);
    tcase_add_test(tc, which_gpu);
    tcase_add_test(tc, no_kernels);
    tcase_add_test(tc, no_memory);
    tcase_add_loop_test(tc, isolation, 0, 2);
    tcase_add_loop_test(tc, memory_that_is_not_offered, 0, 2);
    tcase_add_test(tc, memory_of_another_gpu);
    tcase_add_loop_test(tc, ways_of_launching, 0, 5);
    tcase_add_test(tc, launches_in_flight);
    tcase_add_test(tc, nothing_is_allocated_after_the_start);
    tcase_add_test(tc, scratch_of_a_batch);
}
