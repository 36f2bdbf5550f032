/* The next layer of a lone step, which waits on the stream for its word. On the fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/backend/cuda/gpu.h"
#include "tests/support/check_main.h"
#include "tests/unit/test_be_cuda_step.h"

/* Until as many have been put on the stream to wait there, since before. */
static void wait_parked(struct rig *rig, uint64_t times)
{
    WAIT_UNTIL(rig, step_calls(MLA_FAKE_cuLaunchKernelEx) == LAUNCHES * times);
}

static void is_untouched(struct stepper *s, uint32_t i)
{
    const struct mem *o = &s->layers[i]->jobs[0]->o_mem, *lse = &s->layers[i]->jobs[0]->lse_mem;
    dc_pull(s->layers[i]);
    for (size_t k = 0; k < o->bytes; k++)
        ck_assert_uint_eq(o->host[k], DC_POISON);
    for (size_t k = 0; k < lse->bytes; k++)
        ck_assert_uint_eq(lse->host[k], DC_POISON);
}

/* All that the driver is told of a layer, it is told before its word comes, but for the words behind it. */
START_TEST(calls_of_a_layer)
{
    struct rig rig = step_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        wait_parked(&rig, i + 1);
        step_layer(&s, i);
    }
    step_ends_well(&s);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuMemcpyHtoDAsync), LAYERS);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitEvent), LAYERS);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitValue64), 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuLaunchKernelEx), LAUNCHES * LAYERS);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWriteValue64), 2 * LAYERS);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuEventRecord), LAYERS);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* A layer whose word does not come holds up nobody: not a job, not a page that is mapped, not another step; and it runs
 * right afterwards. */
START_TEST(others_pass_a_layer)
{
    struct rig rig = step_rig();
    struct stepper a, b;
    struct dc *job = step_case(&rig, 50);
    step_make(&a, &rig, 10);
    step_make(&b, &rig, 20);
    step_warm_up(&rig);
    rig_submit(&rig, &a.ticket);
    wait_parked(&rig, 1);
    if (_i == 0) {
        dc_run(job);
        dc_check_all(job);
    } else if (_i == 1) {
        struct be_region page = cuda_sync_region();
        ck_assert_int_eq(cuda_ask(&rig, BE_MAP, &page).code, MLA_OK);
        ck_assert_int_eq(cuda_ask(&rig, BE_UNMAP, &page).code, MLA_OK);
        close(page.fd);
    }
    rig_submit(&rig, &b.ticket);
    for (uint32_t i = 0; i < LAYERS; i++)
        step_layer(&b, i);
    step_ends_well(&b);
    ck_assert_uint_eq(*step_word(&a, 0, true), 0);
    for (uint32_t i = 0; i < LAYERS; i++)
        step_layer(&a, i);
    step_ends_well(&a);
    dc_free(job);
    step_drop(&a);
    step_drop(&b);
    rig_close(&rig);
}
END_TEST

/* A step that ends early leaves its next layer's outputs and done word alone, and when it ends nothing of that layer is
 * to come any more, however long its kernels take to run through: the fake driver aborts where something unfinished
 * names memory that is unmapped. */
START_TEST(a_step_ends_in_front_of_a_layer)
{
    struct rig rig = step_rig();
    struct stepper s;
    struct mla_fake_report after;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    if (_i % 3 == 1)
        s.step.deadline_ns = mla_now_ns() + 50 * MLA_NS_PER_MS;
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    if (_i >= 3)
        ck_assert(cuda_fake_rules("kernel=delay 3"));
    if (_i % 3 == 0) {
        struct ticket end = {
            .request = {.op = BE_STEP_END, .step_end = {.step = &s.ticket.request, .code = MLA_CANCELLED}}};
        rig_submit(&rig, &end);
        rig_wait(&rig, &end);
    } else if (_i % 3 == 2) {
        __atomic_store_n(step_word(&s, 0, false), 1 + (UINT64_C(1) << 62), __ATOMIC_RELEASE);
    }
    static const enum mla_status codes[] = {MLA_CANCELLED, MLA_TIMED_OUT, MLA_READY_ABORTED};
    rig_wait(&rig, &s.ticket);
    ck_assert(cuda_fake_report(&after));
    ck_assert_uint_le(after.queued, 1); /* a word that is there already */
    ck_assert_int_eq(s.ticket.error.code, codes[_i % 3]);
    ck_assert_uint_eq(s.step.layers_done, 0);
    ck_assert_uint_eq(*step_word(&s, 0, true), 0);
    is_untouched(&s, 0);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* Tables with so much room between their rows that they are larger than the workspace: a layer that is let go reads
 * none of that, and runs right afterwards. */
START_TEST(tables_with_room)
{
    static const uint64_t room[] = {0, 64u << 20, UINT64_C(1) << 40};
    struct rig rig = step_rig();
    struct stepper s;
    struct dc *job = step_case(&rig, 50);
    step_make(&s, &rig, 10);
    const struct mla_abi_seq *seqs = s.layers[0]->batch.seqs;
    struct mla_abi_seq far[] = {seqs[0], seqs[1]};
    for (uint32_t i = 0; i < 2; i++)
        far[i].table_first += room[_i];
    for (uint32_t i = 0; i < LAYERS; i++)
        s.records[i].job.table -= room[_i] * sizeof(int32_t);
    s.step.seqs = far;
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    dc_run(job);
    dc_check_all(job);
    for (uint32_t i = 0; i < LAYERS; i++)
        step_layer(&s, i);
    step_ends_well(&s);
    dc_free(job);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* Nobody hears of what the device does: a layer whose word is there when something else lets it go may have run for
 * nobody, and then runs once more. It ends well, once, and what came between is right, too. */
START_TEST(a_word_that_comes_as_it_is_let_go)
{
    struct rig rig = step_rig();
    struct stepper s;
    struct dc *job = step_case(&rig, 50);
    job->jobs[0]->keep_reference = true;
    step_make(&s, &rig, 10);
    for (uint32_t i = 0; i < LAYERS; i++)
        s.layers[i]->jobs[0]->keep_reference = true;
    step_warm_up(&rig);
    for (int round = 0; round < 4; round++) {
        step_again(&s);
        if (round != 0)
            usleep(5000); /* since the last one that was let go */
        for (uint32_t i = 0; i < LAYERS; i++) {
            dc_launch(job);
            usleep((unsigned)(_i * 10 + round));
            step_layer(&s, i);
            dc_wait(job);
            dc_check_all(job);
        }
        step_ends_well(&s);
    }
    dc_free(job);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* The kernel that waits gives up by itself; until then nothing has happened, afterwards the layer is launched when its
 * word comes, and the one behind it waits on the stream again. */
START_TEST(a_word_that_is_late)
{
    struct rig rig = step_rig();
    cu_park_most_ns = 20 * MLA_NS_PER_MS;
    struct stepper s;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    usleep(60000);
    ck_assert_uint_eq(*step_word(&s, 0, true), 0);
    is_untouched(&s, 0);
    cu_park_most_ns = 60 * MLA_NS_PER_S;
    step_layer(&s, 0);
    WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuLaunchKernelEx) == 2 * LAUNCHES + LAUNCHES - 1);
    for (uint32_t i = 1; i < LAYERS; i++)
        step_layer(&s, i);
    step_ends_well(&s);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* The word and the end of the time that it has come together: whoever is first, the layer runs once its word is seen,
 * and its done word is not written for kernels that have let go. */
START_TEST(a_word_that_is_nearly_late)
{
    const uint64_t most = 400 * MLA_NS_PER_US;
    struct rig rig = step_rig();
    struct stepper s;
    cu_park_most_ns = most;
    step_make(&s, &rig, 10);
    for (uint32_t i = 0; i < LAYERS; i++)
        s.layers[i]->jobs[0]->keep_reference = true;
    step_warm_up(&rig);
    for (uint32_t round = 0; round < 20; round++) {
        usleep(2500); /* since one that has let go */
        uint64_t launches = step_calls(MLA_FAKE_cuLaunchKernelEx);
        step_again(&s);
        WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuLaunchKernelEx) == launches + LAUNCHES);
        uint64_t until = mla_now_ns() + most + round * 10 * MLA_NS_PER_US;
        while (mla_now_ns() < until)
            continue;
        for (uint32_t i = 0; i < LAYERS; i++) {
            step_layer(&s, i);
            dc_pull(s.layers[i]);
            dc_check_all(s.layers[i]);
        }
        step_ends_well(&s);
    }
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

#define AFTER 12u

/* Layers whose plan stays become graphs after a while; those that wait on the stream keep the kernel that waits in
 * front of theirs. The first layer of a step is not written ahead of its word, so it stays as it is where none waits.
 */
START_TEST(layers_become_graphs)
{
    const bool parked = _i == 0;
    const uint32_t most = BE_STEPS_BATCHES * (AFTER + 1) / (LAYERS - 1) + 1;
    uint32_t rounds = 0, after = 0;
    cu_graph_steps_after = AFTER;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", "", 1), 0);
    ck_assert_int_eq(setenv("CUDA_LAUNCH_BLOCKING", parked ? "0" : "1", 1), 0);
    struct rig rig = step_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    for (uint32_t i = 0; i < LAYERS; i++)
        s.layers[i]->jobs[0]->keep_reference = true;
    step_warm_up(&rig);
    for (; after < 4; rounds++) {
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
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

/* A worker that takes its word back: whether it was seen, and by whom, is all the same. The done word comes when this
 * thread's side has seen it, and only behind outputs that are right, since the memory stayed as it was. */
START_TEST(a_word_that_flickers)
{
    struct rig rig = step_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        wait_parked(&rig, i + 1);
        for (int k = 0; k < 200 && __atomic_load_n(step_word(&s, i, true), __ATOMIC_ACQUIRE) == 0; k++) {
            __atomic_store_n(step_word(&s, i, false), 1, __ATOMIC_RELEASE);
            __atomic_store_n(step_word(&s, i, false), (uint64_t) - (int64_t)k, __ATOMIC_RELEASE);
        }
        step_layer(&s, i);
        dc_pull(s.layers[i]);
        dc_check_all(s.layers[i]);
    }
    step_ends_well(&s);
    step_drop(&s);
    rig_close(&rig);
}
END_TEST

static void lose_the_device(int which)
{
    static const char *const rules[] = {"cuStreamWaitEvent",  "cuLaunchKernelEx@1",   "cuLaunchKernelEx@2",
                                        "cuLaunchKernelEx@4", "cuStreamWriteValue64", "kernel@1",
                                        "cuStreamQuery@1"};
    struct rig rig = step_rig();
    struct stepper s;
    char rule[128];
    rig.may_be_lost = true;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    snprintf(rule, sizeof rule, "%s=lose CUDA_ERROR_ILLEGAL_ADDRESS", rules[which]);
    ck_assert(cuda_fake_rules(rule));
    rig_submit(&rig, &s.ticket);
    WAIT_UNTIL(&rig, step_calls(MLA_FAKE_cuLaunchKernelEx) == LAUNCHES || rig.lost.code != MLA_OK);
    __atomic_store_n(step_word(&s, 0, false), 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(&rig, rig.lost.code != MLA_OK);
    ck_assert_uint_eq(*step_word(&s, 0, true), 0);
    ck_assert_uint_eq(s.ticket.ended_at, 0);
    rig_close(&rig);
}

/* Every call that a layer takes loses the device once: nothing hangs, nobody is told that a layer has run. */
START_TEST(the_device_is_lost)
{
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

/* mlad stops while a layer waits. */
START_TEST(closed_in_front_of_a_layer)
{
    struct rig rig = step_rig();
    static struct stepper s; /* its memory goes with the process */
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    wait_parked(&rig, 1);
    uint64_t from = mla_now_ns();
    rig_close(&rig);
    ck_assert_uint_lt(mla_now_ns() - from, 5 * MLA_NS_PER_S);
    ck_assert_uint_eq(((const uint64_t *)(void *)s.page.host)[WORD], 0); /* this side's view of the done word */
}
END_TEST

/* Where the driver is told to wait for each launch, or to have one queue for all streams, nothing waits on the stream;
 * nor where contexts take turns on the GPU, since what waits would take turns of those who are waited for. */
START_TEST(where_nothing_may_wait)
{
    static const char *const names[] = {"CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS"};
    if (_i < 2)
        ck_assert_int_eq(setenv(names[_i], "1", 1), 0);
    struct rig rig = _i < 2 ? step_rig() : cuda_rig();
    struct stepper s;
    step_make(&s, &rig, 10);
    step_warm_up(&rig);
    rig_submit(&rig, &s.ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        usleep(3000);
        step_layer(&s, i);
    }
    step_ends_well(&s);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuLaunchKernelEx), (LAUNCHES - 1) * LAYERS);
    step_drop(&s);
    rig_close(&rig);
    if (_i < 2)
        ck_assert_int_eq(unsetenv(names[_i]), 0);
}
END_TEST

MLA_SUITE(be_cuda_park)
{
    TCase *tc = mla_tcase(suite, "park");
    tcase_add_test(tc, calls_of_a_layer);
    tcase_add_loop_test(tc, others_pass_a_layer, 0, 3);
    tcase_add_loop_test(tc, a_step_ends_in_front_of_a_layer, 0, 6);
    tcase_add_loop_test(tc, tables_with_room, 0, 3);
    tcase_add_loop_test(tc, a_word_that_comes_as_it_is_let_go, 0, 3);
    tcase_add_test(tc, a_word_that_is_late);
    tcase_add_test(tc, a_word_that_is_nearly_late);
    tcase_add_loop_test(tc, layers_become_graphs, 0, 2);
    tcase_add_test(tc, a_word_that_flickers);
    tcase_add_loop_test(tc, the_device_is_lost, 0, 7);
    tcase_add_test(tc, closed_in_front_of_a_layer);
    tcase_add_loop_test(tc, where_nothing_may_wait, 0, 3);
}
