/* Random events against the model, the same on every run: MLA_TEST_SEED=n chooses others. */
#include <stdio.h>
#include <stdlib.h>

#include "proto/status.h"
#include "tests/scenario/sched_model.h"
#include "tests/support/check_main.h"
#include "tests/support/prng.h"

#define EVENTS_MIN 2000000

static uint32_t below(void *context, uint32_t n)
{
    return prng_below(context, n);
}

/* Many short lives of a scheduler (endings come early) and some long ones without an ending. */
static void live(uint64_t seed, uint64_t life, struct model_stats *stats)
{
    char name[96];
    struct prng prng = {seed + (life << 32)};
    bool endings = life % 8 != 0;
    snprintf(name, sizeof(name), "MLA_TEST_SEED=%llu, life %llu", (unsigned long long)seed, (unsigned long long)life);
    struct model *m =
        model_new(&(struct model_source){.below = below, .context = &prng, .name = name, .endings = endings}, stats);
    for (int i = 0; i < 5000 && model_step(m); i++)
        ;
    model_free(m);
}

START_TEST(any_events_in_any_order)
{
    static struct model_stats stats;
    const char *text = getenv("MLA_TEST_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 0) : 20260101;
    printf("MLA_TEST_SEED=%llu\n", (unsigned long long)seed);
    uint64_t lives = 0;
    while (stats.events < EVENTS_MIN)
        live(seed, lives++, &stats);
    printf("%llu events, %llu lives\n", (unsigned long long)stats.events, (unsigned long long)lives);

    /* What never happened was not tested. */
    for (int kind = 1; kind <= 8; kind++)
        ck_assert_msg(stats.actions[kind] > 0, "action %d never came", kind);
    static const enum mla_status codes[] = {
        MLA_OK,          MLA_NOT_FOUND, MLA_OUT_OF_BOUNDS, MLA_OVERLOADED,    MLA_DRAINING, MLA_OUT_OF_MEMORY,
        MLA_TIMED_OUT,   MLA_CANCELLED, MLA_LATE,          MLA_READY_ABORTED, MLA_INTERNAL, MLA_DISCONNECTED,
        MLA_DEVICE_LOST,
    };
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        ck_assert_msg(stats.codes[codes[i]] > 0, "code %d was never answered", codes[i]);
    ck_assert_uint_gt(stats.exits[MLA_OK], 0);
    ck_assert_uint_gt(stats.exits[MLA_TIMED_OUT], 0);
    ck_assert_uint_gt(stats.exits[MLA_DEVICE_LOST], 0);
    ck_assert_uint_gt(stats.stale_plans, 0);
    ck_assert_uint_gt(stats.restaged, 0);
    ck_assert_uint_gt(stats.given_up, 0);
    ck_assert_uint_gt(stats.shared, 0);
    ck_assert_uint_gt(stats.gone_while_running, 0);
    ck_assert_uint_gt(stats.mid_action, 0);
    ck_assert_uint_gt(stats.cut_short, 0);
    ck_assert_uint_gt(stats.in_parts, 0);
    ck_assert_uint_gt(stats.urgent_first, 0);
    ck_assert_uint_gt(stats.weighed, 0);
    ck_assert_uint_gt(stats.parted, 0);
    ck_assert_uint_gt(stats.alone, 0);
}
END_TEST

MLA_SUITE(sched_random)
{
    TCase *tc = mla_tcase(suite, "against the model");
    tcase_add_test(tc, any_events_in_any_order);
}
