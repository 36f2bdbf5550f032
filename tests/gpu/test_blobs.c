/* libmla-kernels: blobs that the first kernel of their launches brings, from its parameter or from where they are. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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

/* What the decode kernel and the reducer read, its end, is where it belongs, and nothing behind it. */
static void blob_arrives(struct blob_case *b, size_t bytes, bool fetched)
{
    static unsigned char now[BLOB_CASE_BYTES];
    CUresult result = CUDA_ERROR_UNKNOWN;
    b->job->user_status[0] = 99;
    mem_push(b->c->rig, &b->job->status_mem);
    mem_push(b->c->rig, &b->job->user_status_mem);
    LIB_OK(cuMemsetD8Async(b->device, 0xa5, BLOB_CASE_BYTES, lib.stream));
    ck_assert_int_eq(fetched ? mla_kernels_launch_fetch(lib.kernels, lib.stream, &b->launch, b->host_device, bytes,
                                                        MLA_KERNELS_ALL, &result)
                             : mla_kernels_launch_blob(lib.kernels, lib.stream, &b->launch, b->host, bytes, &result),
                     0);
    ck_assert_int_eq(result, CUDA_SUCCESS);
    LIB_OK(cuStreamSynchronize(lib.stream));
    LIB_OK(cuMemcpyDtoH(now, b->device, sizeof(now)));
    mem_pull(b->c->rig, &b->job->user_status_mem);
    ck_assert_uint_eq(b->job->user_status[0], 0);
    struct mla_sm90_launch of;
    memcpy(&of, &b->launch, sizeof(of));
    size_t first = of.lists - of.abi.jobs;
    ck_assert_uint_lt(first, bytes);
    ck_assert_mem_eq(now + first, b->host + first, bytes - first);
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
        ck_assert_int_eq(
            mla_kernels_launch_fetch(lib.kernels, lib.stream, &b.launch, from[i], 1024, MLA_KERNELS_ALL, NULL),
            -EINVAL);
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
    ck_assert_int_eq(
        mla_kernels_launch_fetch(lib.kernels, lib.stream, &wrong, b.host_device, 1024, MLA_KERNELS_ALL, NULL), -EINVAL);
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

/* ---- written again ---- */

#define DRAWN_JOBS  4u
#define DRAWN_SEQS  24u
#define DRAWN_BYTES (2u << 20)

/* A request, and what launches of it have. Nothing is launched: addresses are numbers. */
struct drawn {
    struct plan_request request;
    struct plan_job plan_jobs[DRAWN_JOBS];
    struct plan_seq plan_seqs[DRAWN_SEQS];
    struct mla_abi_job jobs[2][DRAWN_JOBS]; /* of one launch and of the next */
    struct mla_abi_seq seqs[2][DRAWN_SEQS];
    struct plan plan;
};

static uint64_t drawn_address(struct prng *p)
{
    return (prng_u64(p) >> 20 | 1) * 64;
}

static struct mla_abi_tensor drawn_tensor(struct prng *p, bool there)
{
    return (struct mla_abi_tensor){.base = there ? drawn_address(p) : 0,
                                   .seq_stride = 16 * (int64_t)prng_below(p, 100000),
                                   .token_stride = 16 * (int64_t)prng_below(p, 100000),
                                   .head_stride = 16 * (int64_t)prng_below(p, 10000),
                                   .compact = prng_below(p, 2)};
}

/* All that a plan does not settle. */
static void draw_job(struct prng *p, const struct plan_job *plan, uint32_t heads, struct mla_abi_job *job)
{
    *job = (struct mla_abi_job){
        .q = drawn_tensor(p, true),
        .q_rope = drawn_tensor(p, prng_below(p, 2)),
        .o = drawn_tensor(p, true),
        .lse = drawn_tensor(p, prng_below(p, 2)),
        .kv = prng_below(p, 8) != 0 ? drawn_address(p) : 0,
        .page_stride = 64 * (576 + 16 * (uint64_t)prng_below(p, 3)),
        .table = drawn_address(p),
        .kv_len = prng_below(p, 2) ? drawn_address(p) : 0,
        .visible = plan->mask == MLA_ABI_MASK_VISIBLE ? drawn_address(p) : 0,
        .status = drawn_address(p),
        .user_status = prng_below(p, 2) ? drawn_address(p) : 0,
        .row_stride = 576,
        .pages_per_entry = 1 + prng_below(p, 3),
        .heads = heads,
        .first_seq = plan->first_seq,
        .n_seqs = plan->n_seqs,
        .mask = plan->mask,
        .out_type = 1 + prng_below(p, 3),
        .score_scale = (float)prng_unit(p),
        .kv_scale = (float)prng_unit(p),
        .inv_out_scale = (float)prng_unit(p),
    };
    job->num_pages = job->kv != 0 ? 1 + prng_below(p, 1000) : 0;
}

/* Of a part of a job, sequences without a row in it are without tokens, as the daemon has them. */
static void draw_records(struct prng *p, struct drawn *d, int which)
{
    for (uint32_t j = 0; j < d->request.n_jobs; j++) {
        const struct plan_job *plan = &d->plan_jobs[j];
        uint32_t token = 0;
        uint64_t row = 0;
        draw_job(p, plan, d->request.heads, &d->jobs[which][j]);
        for (uint32_t s = plan->first_seq; s < plan->first_seq + plan->n_seqs; s++) {
            uint32_t rows = d->plan_seqs[s].q_len * d->request.heads, first, end;
            plan_part_of_sequence(plan, row, rows, &first, &end);
            d->seqs[which][s] = (struct mla_abi_seq){.job = j,
                                                     .q_len = first < end ? d->plan_seqs[s].q_len : 0,
                                                     .kv_len_max = d->plan_seqs[s].kv_len,
                                                     .first_token = token,
                                                     .table_first = prng_below(p, 100000)};
            token += d->plan_seqs[s].q_len;
            row += rows;
        }
    }
}

static void draw_request(struct prng *p, const struct mla_kernels_facts *facts, struct drawn *d)
{
    static const uint32_t heads[] = {1, 12, 16, 48, 96, 128}, lengths[] = {0, 1, 64, 65, 4000, 20000, 140000};
    struct plan_request *r = &d->request;
    *r = (struct plan_request){.device = facts->device,
                               .costs = facts->costs,
                               .policy = (enum plan_policy)(1 + prng_below(p, 4)),
                               .tile_rows = facts->tile_rows,
                               .heads = heads[prng_below(p, 6)],
                               .splits = prng_below(p, 4) == 0 ? 1 + prng_below(p, 9) : 0,
                               .workspace_bytes_max = UINT64_C(1) << (20 + prng_below(p, 8)),
                               .jobs = d->plan_jobs,
                               .seqs = d->plan_seqs,
                               .n_jobs = 1 + prng_below(p, DRAWN_JOBS)};
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t n = prng_below(p, DRAWN_SEQS / DRAWN_JOBS + 1);
        bool part = prng_below(p, 3) == 0;
        d->plan_jobs[j] = (struct plan_job){.first_seq = r->n_seqs,
                                            .n_seqs = n,
                                            .mask = 1 + prng_below(p, 3),
                                            .batch_invariant = prng_below(p, 4) == 0,
                                            .skip_rows = part ? prng_below(p, 3) * facts->tile_rows : 0,
                                            .n_rows = part ? prng_below(p, 3) * facts->tile_rows : 0};
        for (; n > 0; n--)
            d->plan_seqs[r->n_seqs++] =
                (struct plan_seq){prng_below(p, 4) ? prng_below(p, 6) : prng_below(p, 40), lengths[prng_below(p, 7)]};
    }
}

/* False: there is none, as jobs do not fit together. */
static bool make_plan(struct drawn *d)
{
    struct plan *plan = &d->plan;
    *plan = (struct plan){0};
    ck_assert_int_eq(plan_bound(&d->request, &plan->capacity), 0);
    plan->tiles = calloc(plan->capacity.tiles + 1u, sizeof(*plan->tiles));
    plan->items = calloc(plan->capacity.items + 1u, sizeof(*plan->items));
    plan->reduces = calloc(plan->capacity.reduces + 1u, sizeof(*plan->reduces));
    plan->scratch = malloc(plan->capacity.scratch_bytes + 8);
    ck_assert(plan->tiles && plan->items && plan->reduces && plan->scratch);
    return plan_build(&d->request, plan) == 0;
}

static void drop_plan(struct drawn *d)
{
    free(d->plan.tiles);
    free(d->plan.items);
    free(d->plan.reduces);
    free(d->plan.scratch);
}

/* What was said of a request beforehand, together and of its jobs, is enough. */
static void bounds_hold(const struct mla_kernels *k, const struct drawn *d, size_t bytes)
{
    uint64_t blobs = 0, scratch = 0;
    for (uint32_t j = 0; j < d->request.n_jobs; j++) {
        struct plan_job job = d->plan_jobs[j];
        struct plan_request one = d->request;
        one.jobs = &job;
        one.n_jobs = 1;
        one.seqs += job.first_seq;
        one.n_seqs = job.n_seqs;
        job.first_seq = 0;
        blobs += mla_kernels_blob_bytes_max(k, &one);
        scratch += mla_kernels_scratch_bytes_max(k, &one);
    }
    uint64_t blob_max = mla_kernels_blob_bytes_max(k, &d->request);
    uint64_t scratch_max = mla_kernels_scratch_bytes_max(k, &d->request);
    uint64_t used = mla_kernels_workspace_bytes(k, &d->plan, d->request.n_jobs, d->seqs[0], d->request.n_seqs);
    ck_assert_uint_le(bytes, blob_max);
    ck_assert_uint_le(blob_max, blobs);
    ck_assert_uint_le(used, d->plan.workspace_bytes + scratch_max);
    ck_assert_uint_le(scratch_max, scratch);
}

/* Records that are written over those of an earlier launch of the plan are those that would be written anew. */
START_TEST(again_is_as_anew)
{
    static unsigned char blobs[2][DRAWN_BYTES] __attribute__((aligned(64)));
    static struct drawn d;
    struct prng prng = {_i + 77};
    struct rig rig;
    uint32_t reduced = 0;
    if (!rig_open(&rig, _i))
        return;
    for (int round = 0; round < 60; round++) {
        struct mla_kernels_launch launch[2];
        draw_request(&prng, mla_kernels_facts(lib.kernels), &d);
        if (make_plan(&d)) {
            uint32_t n_jobs = d.request.n_jobs, n_seqs = d.request.n_seqs;
            size_t bytes = mla_kernels_blob_bytes(lib.kernels, &d.plan, n_jobs, n_seqs);
            uint64_t address = drawn_address(&prng), workspace = drawn_address(&prng) * 4;
            ck_assert_uint_le(bytes, DRAWN_BYTES);
            memset(blobs, 0xa5, sizeof(blobs));
            for (int which = 0; which < 2; which++)
                draw_records(&prng, &d, which);
            bounds_hold(lib.kernels, &d, bytes);
            ck_assert_int_eq(mla_kernels_blob_write(lib.kernels, &d.plan, d.jobs[0], n_jobs, d.seqs[0], n_seqs,
                                                    blobs[0], address, drawn_address(&prng) * 4, &launch[0]),
                             0);
            ck_assert_int_eq(mla_kernels_blob_write_again(lib.kernels, &d.plan, d.jobs[1], n_jobs, d.seqs[1], n_seqs,
                                                          blobs[0], address, workspace, &launch[0]),
                             0);
            ck_assert_int_eq(mla_kernels_blob_write(lib.kernels, &d.plan, d.jobs[1], n_jobs, d.seqs[1], n_seqs,
                                                    blobs[1], address, workspace, &launch[1]),
                             0);
            ck_assert_mem_eq(blobs[0], blobs[1], bytes);
            ck_assert_mem_eq(&launch[0], &launch[1], sizeof(launch[0]));
            ck_assert(blobs[0][bytes] == 0xa5 && memcmp(blobs[0] + bytes, blobs[0] + bytes + 1, 4096) == 0);
            reduced += d.plan.n_reduces != 0;
        }
        drop_plan(&d);
    }
    ck_assert_uint_gt(reduced, 5);
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
    rig_add(tc, again_is_as_anew);
}
