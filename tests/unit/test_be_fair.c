/* Whose turn it is: starts and charges. */
#include <string.h>

#include "daemon/backend/fair.h"
#include "tests/support/check_main.h"

#define SCALE UINT64_C(1024) /* virtual units of a nanosecond at weight 1 */

static struct be_fair fair;
static struct be_flow a, b;

static void start(void)
{
    memset(&fair, 0, sizeof(fair));
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
}

static uint64_t serve(struct be_flow *flow, uint32_t weight, uint64_t load_ns)
{
    uint64_t at = be_fair_start(&fair, flow);
    be_fair_turn(&fair, at);
    be_fair_charge(&fair, flow, weight, load_ns);
    return at;
}

START_TEST(by_weight)
{
    start();
    ck_assert_uint_eq(serve(&a, 1, 300), 0);
    ck_assert_uint_eq(be_fair_start(&fair, &a), 300 * SCALE);
    ck_assert_uint_eq(serve(&b, 3, 300), 0);
    ck_assert_uint_eq(be_fair_start(&fair, &b), 100 * SCALE);
    ck_assert_uint_eq(serve(&b, 3, 300), 100 * SCALE);
    ck_assert_uint_eq(fair.now, 100 * SCALE);
    ck_assert_uint_eq(be_fair_start(&fair, &b), 200 * SCALE);
    ck_assert_uint_eq(serve(&b, 0, 50), 200 * SCALE); /* as 1 */
    ck_assert_uint_eq(be_fair_start(&fair, &b), 250 * SCALE);
}
END_TEST

/* Who was away is where the others are; who has had much has so still. */
START_TEST(neither_claims_nor_debts)
{
    start();
    serve(&a, 1, 100);
    ck_assert_uint_eq(serve(&a, 1, 500), 100 * SCALE);
    ck_assert_uint_eq(be_fair_start(&fair, &b), 100 * SCALE);
    serve(&b, 1, 2000);
    ck_assert_uint_eq(be_fair_start(&fair, &a), 600 * SCALE);
    be_fair_turn(&fair, 1000 * SCALE);
    ck_assert_uint_eq(be_fair_start(&fair, &a), 1000 * SCALE);
    ck_assert_uint_eq(be_fair_start(&fair, &b), 2100 * SCALE);
    be_fair_turn(&fair, 10 * SCALE); /* it does not go back */
    ck_assert_uint_eq(fair.now, 1000 * SCALE);
}
END_TEST

/* Several parts of one launch are charged behind each other; nobody is charged for nobody; no load overflows. */
START_TEST(charges)
{
    start();
    be_fair_charge(&fair, &a, 1, 10);
    be_fair_charge(&fair, &a, 2, 10);
    ck_assert_uint_eq(a.end, 15 * SCALE);
    be_fair_charge(&fair, NULL, 1, 10);
    ck_assert_uint_eq(be_fair_start(&fair, NULL), 0);
    be_fair_charge(&fair, &b, 1, UINT64_MAX);
    ck_assert_uint_eq(b.end, SCALE << 40);
}
END_TEST

MLA_SUITE(be_fair)
{
    TCase *tc = mla_tcase(suite, "fair");
    tcase_add_test(tc, by_weight);
    tcase_add_test(tc, neither_claims_nor_debts);
    tcase_add_test(tc, charges);
}
