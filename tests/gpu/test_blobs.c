/* libmla-kernels: blobs that the first kernel of their launches brings, from its parameter or from where they are. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/sm90/launch.h"
#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/support/fake_cuda/fake_cuda.h"

/* One sequence without query tokens, whose status word a launch copies; nothing is decoded. The blob goes on behind the
 * records with bytes of no meaning, so that it can be of any size. */
struct blob_case {
    struct dc *c;
    struct dc_job *job;
    unsigned char *host; /* pinned */
    CUdeviceptr host_device;
    CUdeviceptr device;
    struct mla_kernels_launch launch;
};

#define BLOB_CASE_BYTES 65536u

static void blob_case_make(struct blob_case *b, struct rig *rig)
{
    b->c = dc_new(rig);
    b->job = dc_add(b->c, &(struct dc_shape){.heads = 16, .n_seqs = 1, .seqs = SEQS({0, 100}), .user_status = true});
    dc_plan(b->c);
    const struct be_batch *batch = &b->c->batch;
    LIB_OK(cuMemHostAlloc((void **)&b->host, BLOB_CASE_BYTES, CU_MEMHOSTALLOC_DEVICEMAP));
    LIB_OK(cuMemHostGetDevicePointer(&b->host_device, b->host, 0));
    LIB_OK(cuMemAlloc(&b->device, BLOB_CASE_BYTES));
    for (size_t i = 0; i < BLOB_CASE_BYTES; i++)
        b->host[i] = (unsigned char)(i * 167 >> 3);
    ck_assert_int_eq(mla_kernels_blob_write(lib.kernels, &b->c->plan, batch->jobs, batch->n_jobs, batch->seqs,
                                            batch->n_seqs, b->host, b->device, lib.workspace, &b->launch),
                     0);
}

static void blob_case_drop(struct blob_case *b)
{
    LIB_OK(cuMemFreeHost(b->host));
    LIB_OK(cuMemFree(b->device));
    dc_free(b->c);
}

/* All of it is where it belongs, and nothing behind it. */
static void blob_arrives(struct blob_case *b, size_t bytes, bool fetched)
{
    static unsigned char now[BLOB_CASE_BYTES];
    CUresult result = CUDA_ERROR_UNKNOWN;
    b->job->user_status[0] = 99;
    mem_push(b->c->rig, &b->job->status_mem);
    mem_push(b->c->rig, &b->job->user_status_mem);
    LIB_OK(cuMemsetD8Async(b->device, 0xa5, BLOB_CASE_BYTES, lib.stream));
    ck_assert_int_eq(fetched
                         ? mla_kernels_launch_fetch(lib.kernels, lib.stream, &b->launch, b->host_device, bytes, &result)
                         : mla_kernels_launch_blob(lib.kernels, lib.stream, &b->launch, b->host, bytes, &result),
                     0);
    ck_assert_int_eq(result, CUDA_SUCCESS);
    LIB_OK(cuStreamSynchronize(lib.stream));
    LIB_OK(cuMemcpyDtoH(now, b->device, sizeof(now)));
    mem_pull(b->c->rig, &b->job->user_status_mem);
    ck_assert_uint_eq(b->job->user_status[0], 0);
    ck_assert_mem_eq(now, b->host, bytes);
    ck_assert(now[bytes] == 0xa5 && memcmp(now + bytes, now + bytes + 1, sizeof(now) - bytes - 1) == 0);
}

/* Bytes of parameters that launches declared, on the fake driver; a real one does not tell. */
static uint64_t declared_bytes(void)
{
    void (*fn)(struct mla_fake_report *) = NULL;
    struct mla_fake_report report = {.inline_bytes = 0};
    *(void **)&fn = dlsym(lib.driver.library, "mla_fake_report");
    if (fn)
        fn(&report);
    return fn ? report.inline_bytes : UINT64_MAX;
}

/* At both sides of the edge: 160 bytes of a parameter are the launch's. */
START_TEST(blobs_go_with_launches)
{
    static const size_t sizes[] = {1024, 2048, 4096 - 160};
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct blob_case b;
    blob_case_make(&b, &rig);
    bool takes = mla_kernels_takes_blob(lib.kernels, &b.launch, 1024);
    ck_assert_int_eq(takes, mla_kernels_facts(lib.kernels)->scratch); /* those with a prepare kernel */
    for (size_t i = 0; takes && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t before = declared_bytes();
        ck_assert(mla_kernels_takes_blob(lib.kernels, &b.launch, sizes[i]));
        blob_arrives(&b, sizes[i], false);
        if (before != UINT64_MAX)
            ck_assert_uint_eq(declared_bytes() - before, 4096);
    }
    for (size_t bytes = 4096 - 144; bytes <= BLOB_CASE_BYTES; bytes += 3088) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        ck_assert(!mla_kernels_takes_blob(lib.kernels, &b.launch, bytes));
        ck_assert_int_eq(mla_kernels_launch_blob(lib.kernels, lib.stream, &b.launch, b.host, bytes, &result), -EINVAL);
        ck_assert_int_eq(result, CUDA_SUCCESS);
    }
    blob_case_drop(&b);
    rig_close(&rig);
}
END_TEST

/* Of any size, and from no address that is none of a blob. */
START_TEST(blobs_are_fetched)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct blob_case b;
    blob_case_make(&b, &rig);
    bool fetches = mla_kernels_facts(lib.kernels)->scratch;
    for (size_t bytes = 1024; fetches && bytes < BLOB_CASE_BYTES; bytes *= 3)
        blob_arrives(&b, bytes, true);
    const uint64_t from[] = {b.host_device, 0, b.host_device + 8};
    for (size_t i = fetches; i < sizeof(from) / sizeof(from[0]); i++)
        ck_assert_int_eq(mla_kernels_launch_fetch(lib.kernels, lib.stream, &b.launch, from[i], 1024, NULL), -EINVAL);
    blob_case_drop(&b);
    rig_close(&rig);
}
END_TEST

/* A launch whose records are not where it says is refused. */
START_TEST(blobs_stay_behind)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct blob_case b;
    blob_case_make(&b, &rig);
    struct mla_kernels_launch wrong = b.launch;
    wrong.abi.n_items = 1;
    ck_assert(!mla_kernels_takes_blob(lib.kernels, &wrong, 1024));
    wrong.abi.items = wrong.abi.jobs - 64;
    ck_assert(!mla_kernels_takes_blob(lib.kernels, &wrong, 1024));
    ck_assert_int_eq(mla_kernels_launch_blob(lib.kernels, lib.stream, &wrong, b.host, 1024, NULL), -EINVAL);
    ck_assert_int_eq(mla_kernels_launch_fetch(lib.kernels, lib.stream, &wrong, b.host_device, 1024, NULL), -EINVAL);
    blob_case_drop(&b);
    rig_close(&rig);
}
END_TEST

/* Records of sequences say whether all of their rows are in the launch: if not, what launches before it found wrong
 * counts, too. That stays when they are written again. */
START_TEST(records_tell_parts)
{
    static const struct {
        uint64_t skip_rows, n_rows;
        bool part[3];
    } cuts[] = {{0, 0, {false, false, false}},
                {0, 256, {false, true, false}},
                {0, 128, {true, true, false}},
                {128, 0, {true, false, false}},
                {128, 128, {true, true, false}}};
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    dc_add(c, &(struct dc_shape){.heads = 128, .n_seqs = 3, .seqs = SEQS({2, 100}, {1, 50}, {0, 9})});
    dc_plan(c);
    const struct be_batch *batch = &c->batch;
    static unsigned char blob[BLOB_CASE_BYTES] __attribute__((aligned(64)));
    const uint64_t address = UINT64_C(1) << 32;
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]) && mla_kernels_facts(lib.kernels)->scratch; i++) {
        struct mla_kernels_launch launch;
        c->plan_jobs[0].skip_rows = cuts[i].skip_rows;
        c->plan_jobs[0].n_rows = cuts[i].n_rows;
        ck_assert_int_eq(plan_build(&c->request, &c->plan), 0);
        for (int again = 0; again < 2; again++) {
            ck_assert_int_eq((again ? mla_kernels_blob_write_again : mla_kernels_blob_write)(
                                 lib.kernels, &c->plan, batch->jobs, batch->n_jobs, batch->seqs, batch->n_seqs, blob,
                                 address, lib.workspace, &launch),
                             0);
            const struct mla_sm90_seq *seqs = (const void *)(blob + (launch.more[0] - address));
            for (uint32_t s = 0; s < 3; s++)
                ck_assert_msg((seqs[s].flags & MLA_SM90_SEQ_PART) == cuts[i].part[s], "cut %zu, sequence %u", i, s);
        }
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* These run on the fake driver too. */
MLA_SUITE(library_blobs)
{
    TCase *tc = mla_tcase(suite, "library_blobs");
    rig_add(tc, blobs_go_with_launches);
    rig_add(tc, blobs_are_fetched);
    rig_add(tc, blobs_stay_behind);
    rig_add(tc, records_tell_parts);
}
