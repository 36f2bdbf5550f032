/* The public header has numbers of its own; they are those of the protocol. */
#include "proto/codec.h"

#include <string.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_client_numbers.h"

START_TEST(status_numbers_are_the_protocols)
{
    static const struct public_number list[] = {
#define ROW(name, number, text) {#name, (number)},
        MLA_STATUS_LIST(ROW)
#undef ROW
    };
    unsigned n_public = 0;
    for (int i = -1; i < 1024; i++)
        n_public += public_status_name(i) != NULL;
    ck_assert_uint_eq(n_public, sizeof(list) / sizeof(list[0]));
    for (unsigned i = 0; i < sizeof(list) / sizeof(list[0]); i++)
        ck_assert_pstr_eq(public_status_name((int)list[i].number), list[i].name);
}
END_TEST

START_TEST(other_numbers_are_the_protocols)
{
#define N(name)                                                                                                        \
    {                                                                                                                  \
#name, (uint64_t)(name)                                                                                        \
    }
    static const struct public_number list[] = {
        N(MLA_REGION_MEMFD),
        N(MLA_REGION_CUDA_IPC),
        N(MLA_REGION_CUDA_VMM),
        N(MLA_ACCESS_READ),
        N(MLA_ACCESS_READ_WRITE),
        N(MLA_CACHE_E4M3_576),
        N(MLA_CACHE_BF16_576),
        N(MLA_CACHE_E4M3_512_BF16_64_SCALED),
        N(MLA_DTYPE_E4M3),
        N(MLA_DTYPE_BF16),
        N(MLA_DTYPE_F32),
        N(MLA_MASK_NONE),
        N(MLA_MASK_CAUSAL),
        N(MLA_MASK_VISIBLE),
        N(MLA_GOAWAY_DRAINING),
        N(MLA_GOAWAY_FATAL),
        N(MLA_HEALTH_STARTING),
        N(MLA_HEALTH_READY),
        N(MLA_HEALTH_DEGRADED),
        N(MLA_HEALTH_DRAINING),
        N(MLA_HEALTH_FAILED),
        N(MLA_METRIC_COUNTER),
        N(MLA_METRIC_GAUGE),
        N(MLA_METRIC_HISTOGRAM),
        N(MLA_FEATURE_DECODE),
        N(MLA_FEATURE_MEMFD),
        N(MLA_FEATURE_CUDA_IPC),
        N(MLA_FEATURE_CUDA_VMM),
        N(MLA_FEATURE_SYNC),
        N(MLA_FEATURE_SUSPEND),
        N(MLA_FEATURE_STEP),
        N(MLA_FEATURE_PUBLISH),
        N(MLA_FEATURE_EVICT),
        N(MLA_FEATURE_RELOAD),
        {"MLA_FAULTS_MAX", MLA_FAULTS_PER_REPLY_MAX},
        {"MLA_ERROR_BYTES", MLA_MAX_TEXT_BYTES},
    };
    unsigned n = 0;
    for (const struct public_number *p = public_numbers; p->name; p++, n++) {
        ck_assert_uint_lt(n, sizeof(list) / sizeof(list[0]));
        ck_assert_str_eq(p->name, list[n].name);
        ck_assert_uint_eq(p->number, list[n].number);
    }
    ck_assert_uint_eq(n, sizeof(list) / sizeof(list[0]));
}
END_TEST

MLA_SUITE(client_numbers)
{
    TCase *tc = mla_tcase(suite, "numbers");
    tcase_add_test(tc, status_numbers_are_the_protocols);
    tcase_add_test(tc, other_numbers_are_the_protocols);
}
