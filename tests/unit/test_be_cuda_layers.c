/* Layers of a lone step: what they cost in calls of the driver, as graphs and without, and a device that is lost under
 * them. On the fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/backend/cuda/gpu.h"
#include "tests/support/check_main.h"
#include "tests/unit/test_be_cuda_step.h"

static bool is_idle(void)
{
    struct mla_fake_report report;
    return cuda_fake_report(&report) && report.queued == 0;
}

/* Until the records of as many layers have been written ahead of their words, and copied: to a place whose copy has not
 * ended none are written. */
static void wait_ahead(struct rig *rig, uint64_t times)
{
    WAIT_UNTIL(rig, (step_calls(MLA_FAKE_cuMemcpyHtoDAsync) == times && is_idle()) || rig->lost.code != MLA_OK);
}

static const struct dc_seq sequences[] = {{2, 300, 300}, {2, 170, 170}};
/* Lengths are read in front of a layer, not before. */
static const struct dc_shape unknown = {.heads = 16, .n_seqs = 2, .seqs = sequences, .kv_len = DC_REGION};

/* Records are in place before the word comes, fetched by the prepare kernel, which has run, or copied: behind it there
 * are the launches that are left and two words, and nothing is waited for. */
START_TEST(calls_of_a_layer)
{
    static const struct {
        const char *blob;
        bool known, copied;
    } cases[] = {{"", true, false}, {"copied", true, true}, {"", false, true}};
    const bool known = cases[_i].known, copied = cases[_i].copied;
    struct mla_fake_report report;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", cases[_i].blob, 1), 0);
    struct rig rig = step_rig();
    struct stepper s;
    if (known)
        step_make(&s, &rig, 10);
    else
        step_make_of(&s, &rig, 10, &unknown);
    step_warm_up(&rig);
    ck_assert(cuda_fake_report(&report));
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        if (copied)
            wait_ahead(&rig, i + 1);
        if (known) /* so the copy's end has been seen */
            WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuLaunchKernelEx) == 3 * i + 1);
        else
            usleep(2000); /* in which it is seen, if the machine is not too slow */
        step_layer(&s, i);
    }
    step_ends_well(&s);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuMemcpyHtoDAsync), copied ? LAYERS : 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitEvent), 0);
    uint64_t inline_bytes = report.inline_bytes, fetched_bytes = report.fetched_bytes;
    ck_assert(cuda_fake_report(&report));
    if (known)
        ck_assert_uint_eq(report.inline_bytes, inline_bytes);
    ck_assert_int_eq(report.fetched_bytes == fetched_bytes, copied);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitValue64), 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuLaunchKernelEx), 3 * LAYERS);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWriteValue64), 2 * LAYERS);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

#define AFTER 12u /* as set below */

/* Layers whose plan stays become graphs after a while, unless the driver then refuses the first. The first layer of a
 * step is not written ahead of its word, so it stays as it is. */
START_TEST(layers_become_graphs)
{
    const uint32_t most = BE_STEPS_BATCHES * (AFTER + 1) / (LAYERS - 1) + 1;
    const bool refused = _i == 1;
    uint32_t rounds = 0, after = 0;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "12", 1), 0);
    struct rig rig = step_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    for (uint32_t i = 0; i < LAYERS; i++)
        s.layers[i]->jobs[0]->keep_reference = true;
    step_warm_up(&rig);
    ck_assert(cuda_fake_rules(refused ? "cuGraphLaunch=fail OUT_OF_MEMORY" : ""));
    for (; refused ? rounds < most : after < 4; rounds++) {
        uint64_t graphs = step_calls(MLA_FAKE_cuGraphLaunch);
        ck_assert_uint_lt(rounds, most);
        step_again(&s);
        for (uint32_t i = 0; i < LAYERS; i++)
            step_layer(&s, i);
        step_ends_well(&s);
        after += step_calls(MLA_FAKE_cuGraphLaunch) > graphs;
    }
    ck_assert_uint_ge(rounds, AFTER / LAYERS + 3); /* not at once */
    ck_assert_uint_ge(step_calls(MLA_FAKE_cuGraphInstantiate), 1);
    ck_assert_uint_le(step_calls(MLA_FAKE_cuGraphInstantiate), BE_STEPS_BATCHES);
    if (refused)
        ck_assert_uint_eq(step_calls(MLA_FAKE_cuGraphLaunch), 1);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

static void lose_the_device(int which)
{
    static const char *const rules[] = {"cuMemcpyHtoDAsync@1",    "cuEventRecord@1",    "cuEventQuery@1",
                                        "cuLaunchKernelEx@1",     "cuLaunchKernelEx@3", "cuStreamWriteValue64@1",
                                        "cuStreamWriteValue64@2", "kernel@1",           "cuStreamWaitEvent@1"};
    const bool copying = which == 8; /* when the word comes */
    struct rig rig = step_rig();
    struct stepper s;
    char rule[128];
    rig.may_be_lost = true;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    const char *slow = copying ? ";copy=delay 500" : which == 6 ? ";kernel=delay 50" : ""; /* 6: behind the done word */
    snprintf(rule, sizeof rule, "%s=lose CUDA_ERROR_ILLEGAL_ADDRESS%s", rules[which], slow);
    ck_assert(cuda_fake_rules(rule));
    rig_submit(&rig, &s.ticket);
    if (!copying)
        wait_ahead(&rig, 1);
    else
        WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuEventRecord) == 1);
    __atomic_store_n(step_word(&s, 0, false), 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(&rig, rig.lost.code != MLA_OK);
    ck_assert_uint_eq(*step_word(&s, 0, true), 0);
    ck_assert_uint_eq(s.ticket.ended_at, 0);
    rig_close(&rig);
}

/* Every call that a layer takes loses the device once: nothing hangs, nobody is told that a layer has run. */
START_TEST(the_device_is_lost)
{
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", "copied", 1), 0);
    pid_t pid = fork(); /* what a lost device leaves goes with its process */
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        alarm(30);
        lose_the_device(_i);
        _exit(0);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* mlad stops before a layer's word has come, and while its records are still being fetched or copied: their places
 * are freed behind that, as the fake driver sees. */
START_TEST(closed_in_front_of_a_layer)
{
    const bool copied = _i == 1;
    ck_assert_int_eq(setenv("MLA_CUDA_BLOB", copied ? "copied" : "", 1), 0);
    struct rig rig = step_rig();
    static struct stepper s; /* its memory goes with the process */
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    ck_assert(cuda_fake_rules(copied ? "copy=delay 100" : "kernel=delay 100"));
    rig_submit(&rig, &s.ticket);
    WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuEventRecord) == 1);
    rig_close(&rig);
    ck_assert_uint_eq(((const uint64_t *)(void *)s.page.host)[WORD], 0); /* this side's view of the done word */
}
END_TEST

MLA_SUITE(be_cuda_layers)
{
    TCase *tc = mla_tcase(suite, "layers");
    tcase_add_loop_test(tc, calls_of_a_layer, 0, 3);
    tcase_add_loop_test(tc, layers_become_graphs, 0, 2);
    tcase_add_loop_test(tc, the_device_is_lost, 0, 9);
    tcase_add_loop_test(tc, closed_in_front_of_a_layer, 0, 2);
}
