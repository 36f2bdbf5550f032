/* Layers of a lone step whose prepare kernel runs before their words come, and when it does not, or runs again. On the
 * fake driver. */
#include <stdlib.h>
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
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamWaitEvent), 0);
    ck_assert_uint_eq(step_calls(MLA_FAKE_cuStreamSynchronize), 0);
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

MLA_SUITE(be_cuda_prepared)
{
    TCase *tc = mla_tcase(suite, "prepared");
    tcase_add_loop_test(tc, in_front_of_the_word, 0, 6);
    tcase_add_test(tc, again_behind_others);
    tcase_add_test(tc, not_beside_another_step);
    tcase_add_test(tc, ends_behind_the_kernel);
}
