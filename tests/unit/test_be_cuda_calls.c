/* What a launch costs in calls of the driver. On the fake one. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"

static struct mla_fake_report before;

static uint64_t calls(const struct mla_fake_report *report, enum mla_fake_call call)
{
    return report->calls[call] - before.calls[call];
}

/* All calls since before, but for those that ask the driver whether all is well. */
static uint64_t all_calls(const struct mla_fake_report *report)
{
    uint64_t sum = 0;
    for (int i = 0; i < MLA_FAKE_kernel; i++)
        if (i != MLA_FAKE_cuStreamQuery)
            sum += calls(report, (enum mla_fake_call)i);
    return sum;
}

static struct dc *new_case(struct rig *rig, uint64_t seed)
{
    struct dc *c = dc_new(rig);
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = 2, .seqs = SEQS({2, 300}, {2, 170}), .seed = seed});
    c->request.splits = 2;
    dc_plan(c);
    c->batch.plan_id = 1;
    return c;
}

/* ---- launches of jobs ---- */

/* A kernel each to prepare, decode and reduce, of which the last two may begin early unless they are not to, and one
 * word at the end: nothing else, but for two launches of sixteen, which events time; and a copy of the records, where
 * these are not to go with the first kernel. */
START_TEST(calls_of_a_launch)
{
    const unsigned copies = _i == 1;
    const bool plain = _i == 2;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", copies ? "copied" : "", 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_PLAIN_LAUNCHES", plain ? "1" : "0", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = new_case(&rig, 1);
    struct mla_fake_report after;
    for (int i = 0; i < 19; i++) {
        ck_assert(cuda_fake_report(&before));
        dc_run(c);
        ck_assert(cuda_fake_report(&after));
        bool timed = i % 16 < 2;
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuMemcpyHtoDAsync), copies);
        ck_assert_uint_eq(after.inline_bytes - before.inline_bytes, copies ? 0 : 4096);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuLaunchKernelEx), 3);
        ck_assert_uint_eq(after.programmatic - before.programmatic, plain ? 0 : 2);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamWriteValue64), 1);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuEventRecord), timed ? 2 : 0);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuEventElapsedTime), timed ? 1 : 0);
        if (i != 0) /* the first one encodes maps */
            ck_assert_uint_eq(all_calls(&after), copies + (timed ? 7 : 4));
        if (i % 6 == 0)
            dc_check_all(c);
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

/* The fourth launch of the same records from one place is one as a graph, in which the records, which differ, are
 * fetched. One behind the other all have the same place. Another shape there lets go of it, and what a driver does not
 * take in a graph, or as one, goes without. Otherwise it takes more of them. Text that is no number is none, and of a
 * number that is too large launches never become any. */
START_TEST(launches_as_graphs)
{
    enum { MAKES = 3, OTHER = 8, AGAIN = OTHER + 1 + MAKES, N = AGAIN + 4 };
    static const char *const afters[] = {"3", "3", "3", "", "-1", "3x", "18446744073709551619"};
    const bool soon = _i <= 2, refused = _i == 1 || _i == 2;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", afters[_i], 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = new_case(&rig, 1), *other = dc_new(&rig);
    struct mla_fake_report after;
    dc_add(other, &(struct dc_shape){.heads = 8, .n_seqs = 1, .seqs = SEQS({1, 500}), .seed = 3});
    dc_plan(other);
    other->batch.plan_id = 2;
    if (refused)
        ck_assert(
            cuda_fake_rules(_i == 1 ? "cuGraphInstantiate=fail NOT_SUPPORTED" : "cuGraphLaunch=fail OUT_OF_MEMORY"));
    for (uint32_t i = 0; i < N; i++) {
        bool timed = i % 16 < 2, graph = soon && !refused && i >= MAKES && i != OTHER && (i < OTHER || i >= AGAIN);
        ck_assert(cuda_fake_report(&before));
        dc_run(i == OTHER ? other : c);
        ck_assert(cuda_fake_report(&after));
        dc_check_all(i == OTHER ? other : c);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuGraphInstantiate), soon && (i == MAKES || (i == AGAIN && !refused)));
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuGraphLaunch), graph || (_i == 2 && i == MAKES));
        if (i == MAKES || i == AGAIN) /* captured */
            continue;
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuLaunchKernelEx), graph ? 0 : 3);
        ck_assert_uint_eq(calls(&after, MLA_FAKE_cuMemcpyHtoDAsync), 0);
        ck_assert_uint_eq(after.inline_bytes - before.inline_bytes, graph ? 0 : 4096);
        if (graph)
            ck_assert_uint_eq(all_calls(&after), timed ? 5 : 2);
    }
    dc_free(c);
    dc_free(other);
    rig_close(&rig);
}
END_TEST

/* A launch beside another begins the count anew. */
START_TEST(no_graphs_in_company)
{
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "3", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c[2] = {new_case(&rig, 1), new_case(&rig, 2)};
    struct mla_fake_report after;
    ck_assert(cuda_fake_report(&before));
    for (int round = 0; round < 6; round++) {
        dc_run(c[0]);
        dc_run(c[1]);
        ck_assert(cuda_fake_rules("kernel=delay 5"));
        for (int i = 0; i < 2; i++)
            dc_ready(c[i]);
        for (int i = 0; i < 2; i++)
            dc_submit(c[i]);
        for (int i = 0; i < 2; i++)
            dc_wait(c[i]);
        ck_assert(cuda_fake_rules(""));
    }
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamBeginCapture), 0);
    for (int i = 0; i < 5; i++)
        dc_run(c[i % 2]);
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_eq(calls(&after, MLA_FAKE_cuStreamBeginCapture), 1);
    for (int i = 0; i < 2; i++) {
        dc_check_all(c[i]);
        dc_free(c[i]);
    }
    rig_close(&rig);
}
END_TEST

/* Of two that are timed and follow each other the pause is told, of others not. Records of one plan are written by
 * halves from the second time on, those of another plan between them whole. */
START_TEST(gaps_and_plans)
{
    struct rig rig = cuda_rig();
    struct dc *c[2] = {new_case(&rig, 1), new_case(&rig, 2)};
    struct dc *other = dc_new(&rig);
    dc_add(other, &(struct dc_shape){.heads = 8, .n_seqs = 1, .seqs = SEQS({1, 500}), .seed = 3});
    dc_plan(other);
    other->batch.plan_id = 2;
    ck_assert(cuda_fake_rules("kernel=delay 2"));
    for (int round = 0; round < 9; round++) {
        struct dc *second = round % 4 == 3 ? other : c[1];
        dc_ready(c[0]);
        dc_ready(second);
        dc_submit(c[0]);
        dc_submit(second);
        dc_wait(c[0]);
        dc_wait(second);
        if (round >= 3) {
            dc_check_all(c[0]);
            dc_check_all(second);
        }
        ck_assert_uint_eq(c[0]->batch.gap_ns, BE_GAP_UNKNOWN);
        if (round % 8 == 0)
            ck_assert_uint_lt(second->batch.gap_ns, MLA_NS_PER_S);
        else
            ck_assert_uint_eq(second->batch.gap_ns, BE_GAP_UNKNOWN);
        ck_assert_uint_le(second->batch.taken_ns, second->batch.submitted_ns);
        ck_assert_uint_le(second->batch.submitted_ns, second->batch.ended_ns);
    }
    ck_assert(cuda_fake_rules(""));
    dc_free(c[0]);
    dc_free(c[1]);
    dc_free(other);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_calls)
{
    TCase *tc = mla_tcase(suite, "calls");
    tcase_add_loop_test(tc, calls_of_a_launch, 0, 3);
    tcase_add_loop_test(tc, launches_as_graphs, 0, 7);
    tcase_add_test(tc, no_graphs_in_company);
    tcase_add_test(tc, gaps_and_plans);
}
