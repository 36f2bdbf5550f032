/* Thousands of random requests: what holds for every plan. */
#include <errno.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_plan_support.h"

START_TEST(every_plan_is_valid)
{
    struct test_random random = {.state = (uint64_t)_i + 1};
    for (int round = 0; round < 600; round++) {
        struct test_ragged ragged;
        test_ragged_make(&random, &ragged);
        for (int policy = PLAN_SEED; policy <= PLAN_UNSPLIT; policy++) {
            struct test_plan built;
            ragged.request.policy = (enum plan_policy)policy;
            test_plan_make(&ragged.request, &built);
            test_plan_free(&built);
        }
        static const uint32_t splits[] = {1, 2, 3, 5, 8, 16, 32, 1000};
        struct test_plan built;
        ragged.request.splits = splits[test_random_below(&random, 8)];
        test_plan_make(&ragged.request, &built);
        for (uint32_t t = 0; t < built.plan.n_tiles; t++) {
            uint32_t pages = built.plan.tiles[t].pages;
            uint32_t want = pages < ragged.request.splits ? pages : ragged.request.splits;
            ck_assert_uint_eq(built.plan.tiles[t].n_items, want < 1 ? 1 : want);
        }
        test_plan_free(&built);
    }
}
END_TEST

MLA_SUITE(plan_random)
{
    TCase *tc = mla_tcase_timeout(suite, "random", 120);
    tcase_add_loop_test(tc, every_plan_is_valid, 0, 8);
}
