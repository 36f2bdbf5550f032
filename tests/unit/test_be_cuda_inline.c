/* Records that the first kernel of their launch brings, and when it does not. On the fake driver. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"
#include "tests/unit/test_be_cuda.h"
#include "tests/unit/test_be_cuda_step.h"

#define SEQS_MAX 1000u

static struct mla_fake_report before, after;

static uint64_t calls(enum mla_fake_call call)
{
    return after.calls[call] - before.calls[call];
}

static uint64_t inline_bytes(void)
{
    return after.inline_bytes - before.inline_bytes;
}

static uint64_t fetched_bytes(void)
{
    return after.fetched_bytes - before.fetched_bytes;
}

static struct dc *case_of(struct rig *rig, uint32_t n_seqs, uint64_t seed)
{
    static struct dc_seq seqs[SEQS_MAX];
    for (uint32_t s = 0; s < n_seqs; s++)
        seqs[s] = (struct dc_seq){.q_len = 1, .kv_len = 70 + s % 3};
    struct dc *c = dc_new(rig);
    dc_add(c, &(struct dc_shape){.heads = 16, .n_seqs = n_seqs, .seqs = seqs, .user_status = true, .seed = seed});
    dc_plan(c);
    c->batch.plan_id = n_seqs;
    return c;
}

static void run(struct dc *c)
{
    ck_assert(cuda_fake_report(&before));
    dc_run(c);
    ck_assert(cuda_fake_report(&after));
    dc_check_all(c);
}

/* In the kernel's parameter, where that has room for them; fetched; copied, where no slot has room for them. */
START_TEST(by_size)
{
    static const struct {
        uint32_t n_seqs;
        uint64_t inline_bytes, fetched_least;
    } cases[] = {{1, 4096, 0}, {8, 4096, 0}, {16, 0, 4096}, {80, 0, 20000}, {400, 0, 100000}, {SEQS_MAX, 0, 0}};
    struct rig rig = cuda_rig();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dc *c = case_of(&rig, cases[i].n_seqs, i);
        run(c);
        bool copied = cases[i].inline_bytes == 0 && cases[i].fetched_least == 0;
        ck_assert_uint_eq(inline_bytes(), cases[i].inline_bytes);
        ck_assert_uint_ge(fetched_bytes(), cases[i].fetched_least);
        ck_assert(cases[i].fetched_least != 0 || fetched_bytes() == 0);
        ck_assert_uint_eq(calls(MLA_FAKE_cuMemcpyHtoDAsync), copied);
        ck_assert_uint_eq(calls(MLA_FAKE_cuStreamWaitEvent), 0);
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* Behind a launch that runs they are copied beside it, unless all are to go with their launches. Either way the next
 * launch of the plan, whose records are then written by halves, is right. */
START_TEST(behind_another)
{
    static const char *const modes[] = {"", "copied", "inline"};
    static const unsigned all_with[] = {1, 0, 4}, all_behind[] = {3, 3, 0};
    const unsigned with = all_with[_i % 3], copied_behind = all_behind[_i % 3];
    const bool fetched = _i >= 3;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", modes[_i % 3], 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c[4];
    for (uint32_t i = 0; i < 4; i++)
        c[i] = case_of(&rig, fetched ? 20 : 3, i);
    for (int round = 0; round < 4; round++) {
        for (uint32_t i = 0; i < 4; i++)
            dc_ready(c[i]);
        ck_assert(cuda_fake_rules("kernel@1=delay 50"));
        ck_assert(cuda_fake_report(&before));
        for (uint32_t i = 0; i < 4; i++)
            dc_submit(c[i]);
        for (uint32_t i = 0; i < 4; i++)
            dc_wait(c[i]);
        ck_assert(cuda_fake_report(&after));
        ck_assert_uint_eq(inline_bytes(), fetched ? 0 : 4096u * with);
        ck_assert_uint_ge(fetched_bytes(), fetched ? 4096u * with : 0);
        ck_assert_uint_eq(calls(MLA_FAKE_cuMemcpyHtoDAsync), 4 - with);
        ck_assert_uint_eq(calls(MLA_FAKE_cuStreamWaitEvent), copied_behind);
        for (uint32_t i = 0; i < 4; i++)
            dc_check_all(c[i]);
    }
    for (uint32_t i = 0; i < 4; i++)
        dc_free(c[i]);
    rig_close(&rig);
}
END_TEST

/* Ways that records go otherwise stay theirs; plain kernels, which have no prepare kernel, get copies. */
START_TEST(other_ways)
{
    static const struct {
        const char *blob, *graphs, *variant;
        unsigned copies;
    } cases[] = {
        {"pinned", "0", NULL, 0}, {"pageable", "0", NULL, 1}, {"copied", "3", NULL, 1}, {"", "0", "generic-sm_90a", 1}};
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", cases[_i].blob, 1), 0);
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", cases[_i].graphs, 1), 0);
    struct rig rig = cuda_rig_of(cases[_i].variant);
    struct dc *c = case_of(&rig, 20, 1);
    for (int i = 0; i < 3; i++) {
        run(c);
        ck_assert_uint_eq(inline_bytes() + fetched_bytes(), 0);
        ck_assert_uint_eq(calls(MLA_FAKE_cuMemcpyHtoDAsync), cases[_i].copies);
    }
    dc_free(c);
    rig_close(&rig);
}
END_TEST

static const struct dc_seq sequences[] = {{2, 300, 300}, {2, 170, 170}};
/* Lengths are read in front of a layer, not before: its prepare kernel cannot run ahead. */
static const struct dc_shape unknown = {.heads = 16, .n_seqs = 2, .seqs = sequences, .kv_len = DC_REGION};

/* Records of layers are fetched or copied before their words come. Where there was no time for that, or the copy is
 * still on its way, they go with the launch when nothing runs, to another place: no two write one at the same time, as
 * the sanitizer for threads sees. Where they are to be copied in any case, the stream waits for that. */
START_TEST(layers)
{
    const bool with = _i != 1, slow_copies = _i == 2;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", with ? "" : "copied", 1), 0);
    struct rig rig = cuda_rig();
    struct stepper s;
    if (slow_copies)
        step_make_of(&s, &rig, 10, &unknown);
    else
        step_make(&s, &rig, 10);
    ck_assert(cuda_fake_report(&before));
    ck_assert(cuda_fake_rules(slow_copies ? "copy=delay 20" : ""));
    for (int round = 0; round < 3; round++) {
        step_again(&s);
        for (uint32_t i = 0; i < LAYERS; i++) {
            usleep(2000); /* in which records are written ahead, if the machine is not too slow */
            step_layer(&s, i);
        }
        step_ends_well(&s);
    }
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_le(inline_bytes(), with ? 3 * LAYERS * 4096u : 0);
    if (with && !slow_copies)
        ck_assert_uint_ge(fetched_bytes(), 1);
    else
        ck_assert_uint_ge(calls(MLA_FAKE_cuMemcpyHtoDAsync), 1);
    if (with)
        ck_assert_uint_eq(calls(MLA_FAKE_cuStreamWaitEvent), 0);
    if (slow_copies)
        ck_assert_uint_ge(inline_bytes(), 4096);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* Few records become a graph, which fetches them; many are fetched by launches of their own. */
START_TEST(many_records_are_no_graph)
{
    const bool many = _i == 1;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "3", 1), 0);
    struct rig rig = cuda_rig();
    struct dc *c = case_of(&rig, many ? 40 : 2, 1);
    for (int i = 0; i < 6; i++) {
        run(c);
        ck_assert_uint_eq(calls(MLA_FAKE_cuGraphLaunch), !many && i >= 3);
        ck_assert_int_eq(fetched_bytes() > 0, many || i >= 3);
    }
    dc_check_all(c);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(be_cuda_inline)
{
    TCase *tc = mla_tcase(suite, "inline");
    tcase_add_test(tc, by_size);
    tcase_add_loop_test(tc, behind_another, 0, 6);
    tcase_add_loop_test(tc, other_ways, 0, 4);
    tcase_add_loop_test(tc, layers, 0, 3);
    tcase_add_loop_test(tc, many_records_are_no_graph, 0, 2);
}
