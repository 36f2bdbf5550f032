/* Layers of a lone step whose prepare kernel runs before their words come, and when it does not, or runs again. On the
 * fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"
#include "tests/unit/test_be_cuda_step.h"

static uint64_t launched(void)
{
    return step_calls(MLA_FAKE_cuLaunchKernelEx);
}

/* Until the stream has nothing, and nobody will add to it. */
static void settle(struct rig *rig)
{
    struct mla_fake_report report;
    for (unsigned quiet = 0; quiet < 20; quiet++) {
        uint64_t calls = launched() + step_calls(MLA_FAKE_cuMemcpyHtoDAsync);
        rig_poll(rig, 1);
        ck_assert(cuda_fake_report(&report));
        if (report.queued != 0 || calls != launched() + step_calls(MLA_FAKE_cuMemcpyHtoDAsync))
            quiet = 0;
    }
}

static void begin(struct rig *rig, struct stepper *s, const struct dc_shape *shape)
{
    *rig = step_rig();
    if (shape)
        step_make_of(s, rig, 20, shape);
    else
        step_make(s, rig, 20);
    step_warm_up(rig);
    rig_submit(rig, &s->ticket);
}

static void end(struct rig *rig, struct stepper *s)
{
    step_drop(s);
    rig_close(rig);
}

static const struct dc_seq sequences[] = {{2, 300, 300}, {2, 170, 170}};
#define SEQUENCES .heads = 16, .n_seqs = 2, .seqs = sequences

/* One kernel in front of the word and two behind it, where all that it reads is mlad's. */
START_TEST(in_front_of_the_word)
{
    static const struct {
        struct dc_shape shape;
        bool known;
    } cases[] = {{{SEQUENCES}, true},
                 {{SEQUENCES, .mask = MLA_ABI_MASK_NONE, .no_lse = true}, true},
                 {{SEQUENCES, .kv_len = DC_REGION}, false},
                 {{SEQUENCES, .table = DC_REGION}, false},
                 {{SEQUENCES, .user_status = true}, false},
                 {{SEQUENCES, .mask = MLA_ABI_MASK_VISIBLE}, false}};
    struct rig rig;
    struct stepper s;
    begin(&rig, &s, &cases[_i].shape);
    for (uint32_t i = 0; i < LAYERS; i++) {
        settle(&rig);
        ck_assert_uint_eq(launched(), 3 * i + cases[_i].known);
        step_layer(&s, i);
    }
    step_ends_well(&s);
    ck_assert_uint_eq(launched(), 3 * LAYERS);
    ck_assert_uint_eq(s.step.work.launches, LAYERS);
    ck_assert_uint_eq(s.step.work.ahead, cases[_i].known ? LAYERS : 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitEvent), 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuEventSynchronize), 0);
    end(&rig, &s);
}
END_TEST

/* A batch of others takes the workspace in between: it runs again, and both are right. */
START_TEST(again_behind_others)
{
    struct rig rig;
    struct stepper s;
    begin(&rig, &s, NULL);
    struct dc *other = step_case(&rig, 77);
    for (uint32_t i = 0; i < LAYERS; i++) {
        settle(&rig);
        uint64_t before = launched();
        if (i == 1) {
            dc_run(other);
            dc_check_all(other);
            ck_assert_uint_eq(launched(), before + 3);
        }
        step_layer(&s, i);
        ck_assert_uint_ge(launched(), before + (i == 1 ? 6 : 2)); /* the next one's may have begun */
    }
    step_ends_well(&s);
    dc_free(other);
    end(&rig, &s);
}
END_TEST

/* With two steps it is not known which layer comes next. */
START_TEST(not_beside_another_step)
{
    struct rig rig;
    struct stepper s[2];
    begin(&rig, &s[0], NULL);
    settle(&rig);
    ck_assert_uint_eq(launched(), 1);
    step_make(&s[1], &rig, 40);
    rig_submit(&rig, &s[1].ticket);
    for (uint32_t i = 0; i < LAYERS; i++) {
        settle(&rig);
        uint64_t before = launched();
        step_layer(&s[1], i);
        ck_assert_uint_eq(launched(), before + 3);
        step_layer(&s[0], i);
    }
    step_ends_well(&s[0]);
    step_ends_well(&s[1]);
    step_drop(&s[1]);
    end(&rig, &s[0]);
}
END_TEST

/* A step that ends in front of a layer whose prepare kernel still runs is not answered before that has ended, as its
 * owner may then free what the kernel reads. The next step is as any. */
START_TEST(ends_behind_the_kernel)
{
    struct rig rig;
    struct stepper s;
    begin(&rig, &s, NULL);
    settle(&rig);
    step_layer(&s, 0);
    ck_assert(cuda_fake_rules("kernel=delay 100"));
    WAIT_UNTIL(&rig, launched() == 4);
    uint64_t from = mla_now_ns();
    struct ticket stop = {
        .request = {.op = BE_STEP_END, .step_end = {.step = &s.ticket.request, .code = MLA_CANCELLED}}};
    rig_submit(&rig, &stop);
    rig_wait(&rig, &s.ticket);
    ck_assert_int_eq(s.ticket.error.code, MLA_CANCELLED);
    struct mla_fake_report report;
    ck_assert(cuda_fake_report(&report));
    ck_assert_uint_eq(report.queued, 0);
    ck_assert_uint_lt(mla_now_ns() - from, 5 * MLA_NS_PER_S);
    rig_wait(&rig, &stop);
    ck_assert(cuda_fake_rules(""));
    step_again(&s);
    for (uint32_t i = 0; i < LAYERS; i++)
        step_layer(&s, i);
    step_ends_well(&s);
    end(&rig, &s);
}
END_TEST

#define IS_LOST(rig) ((rig)->lost.code != MLA_OK)

/* A layer, which then is right. False: the device is lost. */
static bool layer_runs(struct rig *rig, struct stepper *s, uint32_t i)
{
    __atomic_store_n(step_word(s, i, false), 1, __ATOMIC_RELEASE);
    WAIT_UNTIL(rig, IS_LOST(rig) || __atomic_load_n(step_word(s, i, true), __ATOMIC_ACQUIRE) == 1);
    return !IS_LOST(rig);
}

static bool step_runs(struct rig *rig, struct stepper *s)
{
    for (uint32_t i = 0; i < LAYERS; i++) {
        usleep(2000); /* in which its prepare kernel runs, if the machine is not too slow */
        if (!layer_runs(rig, s, i))
            return false;
    }
    WAIT_UNTIL(rig, IS_LOST(rig) || s->ticket.ended_at != 0);
    return !IS_LOST(rig);
}

/* A step that ends in front of its second layer, whose kernel has run or runs, and two that go through. */
static bool steps_run(struct rig *rig, struct stepper *s)
{
    static struct ticket stop; /* it may be there longer than this, when the device is lost */
    stop.request =
        (struct be_request){.op = BE_STEP_END, .step_end = {.step = &s->ticket.request, .code = MLA_CANCELLED}};
    usleep(2000);
    if (!layer_runs(rig, s, 0))
        return false;
    usleep(2000);
    rig_submit(rig, &stop);
    WAIT_UNTIL(rig, IS_LOST(rig) || (s->ticket.ended_at != 0 && stop.ended_at != 0));
    for (int i = 0; i < 2 && !IS_LOST(rig); i++) {
        step_again(s);
        if (!step_runs(rig, s))
            return false;
    }
    return !IS_LOST(rig);
}

static void lose_at(const char *what, unsigned number)
{
    char rule[96];
    struct rig rig;
    static struct stepper s; /* its memory goes with the process */
    begin(&rig, &s, NULL);
    rig.may_be_lost = true;
    snprintf(rule, sizeof rule, "%s@%u=lose CUDA_ERROR_ILLEGAL_ADDRESS;kernel=delay 2", what, number);
    ck_assert(cuda_fake_rules(rule));
    steps_run(&rig, &s);
    rig_close(&rig);
}

/* Calls of a few steps lose the device, those of graphs, too, or it is lost under a kernel: nothing hangs, and no layer
 * is wrong. */
START_TEST(the_device_is_lost)
{
    static const char *const whats[] = {"cuLaunchKernelEx",     "cuEventSynchronize", "cuEventRecord",
                                        "cuStreamWriteValue64", "cuGraphLaunch",      "kernel"};
    const bool graphs = strcmp(whats[_i], "cuGraphLaunch") == 0;
    ck_assert_int_eq(setenv("MLA_CUDA_GRAPHS", graphs ? "3" : "0", 1), 0);
    for (unsigned number = 1; number <= 5; number += 4) {
        pid_t pid = fork(); /* what a lost device leaves goes with its process */
        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
            alarm(30);
            lose_at(whats[_i], number);
            _exit(0);
        }
        int status = -1;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert_msg(status == 0, "%s@%u: %d", whats[_i], number, status);
    }
}
END_TEST

/* Nor does it wait for a batch of others behind the kernel. */
START_TEST(ends_in_front_of_others)
{
    struct rig rig;
    struct stepper s;
    begin(&rig, &s, NULL);
    struct dc *other = step_case(&rig, 77);
    settle(&rig);
    dc_ready(other);
    ck_assert(cuda_fake_rules("kernel=delay 300"));
    dc_submit(other);
    struct ticket stop = {
        .request = {.op = BE_STEP_END, .step_end = {.step = &s.ticket.request, .code = MLA_CANCELLED}}};
    rig_submit(&rig, &stop);
    rig_wait(&rig, &s.ticket);
    ck_assert_int_eq(s.ticket.error.code, MLA_CANCELLED);
    ck_assert_uint_eq(other->ticket.ended_at, 0);
    rig_wait(&rig, &stop);
    dc_wait(other);
    ck_assert(cuda_fake_rules(""));
    dc_check_all(other);
    dc_free(other);
    end(&rig, &s);
}
END_TEST

MLA_SUITE(be_cuda_prepared)
{
    TCase *tc = mla_tcase(suite, "prepared");
    tcase_add_loop_test(tc, in_front_of_the_word, 0, 6);
    tcase_add_test(tc, again_behind_others);
    tcase_add_test(tc, not_beside_another_step);
    tcase_add_test(tc, ends_behind_the_kernel);
    tcase_add_test(tc, ends_in_front_of_others);
    tcase_add_loop_test(tc, the_device_is_lost, 0, 6);
}
