/* The tests' own yardstick: number formats against their definitions, attention against values worked out by hand. */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"
#include "tests/support/reference.h"
#include "tests/support/sampled.h"

START_TEST(e4m3_landmarks)
{
    ck_assert(fp8_decode(0x00) == 0 && fp8_decode(0x80) == 0 && signbit(fp8_decode(0x80)));
    ck_assert_double_eq(fp8_decode(0x01), 0x1p-9); /* least subnormal */
    ck_assert_double_eq(fp8_decode(0x07), 7 * 0x1p-9);
    ck_assert_double_eq(fp8_decode(0x08), 0x1p-6); /* least normal */
    ck_assert_double_eq(fp8_decode(0x38), 1);
    ck_assert_double_eq(fp8_decode(0x39), 1.125);
    ck_assert_double_eq(fp8_decode(0x7e), 448);
    ck_assert_double_eq(fp8_decode(0xfe), -448);
    ck_assert(isnan(fp8_decode(0x7f)) && isnan(fp8_decode(0xff)));
    ck_assert_double_eq(fp8_table()[0xb9], -1.125);
}
END_TEST

/* Each number encodes to itself; between neighbours the nearer one wins, and the even one when both are as near. */
START_TEST(e4m3_rounds_to_nearest_even)
{
    for (unsigned bits = 0; bits < 0x7e; bits++) {
        double low = fp8_decode((uint8_t)bits);
        double high = fp8_decode((uint8_t)(bits + 1));
        double middle = (low + high) / 2;
        uint8_t even = (uint8_t)(bits % 2 ? bits + 1 : bits);
        ck_assert_uint_eq(fp8_encode(low), bits);
        ck_assert_uint_eq(fp8_encode(-high), (bits + 1) | 0x80);
        ck_assert_uint_eq(fp8_encode(middle), even);
        ck_assert_uint_eq(fp8_encode(-middle), even | 0x80u);
        ck_assert_uint_eq(fp8_encode(nextafter(middle, 0)), bits);
        ck_assert_uint_eq(fp8_encode(nextafter(middle, 1e9)), bits + 1);
        ck_assert_double_eq(fp8_half_ulp(nextafter(middle, 0)), middle - low);
    }
    ck_assert_uint_eq(fp8_encode(1e30), 0x7e);
    ck_assert_uint_eq(fp8_encode(-INFINITY), 0xfe);
    ck_assert_uint_eq(fp8_encode(NAN), 0x7f);
}
END_TEST

START_TEST(bf16_landmarks)
{
    ck_assert_double_eq(bf16_decode(0x3f80), 1);
    ck_assert_double_eq(bf16_decode(0xbf81), -1 - 0x1p-7);
    ck_assert_double_eq(bf16_half_ulp(1.5), 0x1p-8);
    ck_assert_double_eq(bf16_half_ulp(-4), 0x1p-6);
}
END_TEST

/* One head, pages of 64 rows of 576. */
struct small {
    uint8_t q[3][REF_QK_DIM];
    uint8_t kv[3 * 64 * REF_QK_DIM];
    int32_t table[4];
    uint64_t table_first[1];
    uint32_t q_len[1];
    uint32_t kv_len_max[1];
    struct ref_job job;
    double o[3 * REF_V_DIM];
    double lse[3];
    uint64_t status[1];
};
static struct small x;

static void set_up(void)
{
    memset(&x, 0, sizeof(x));
    memset(x.kv, FP8_NAN, sizeof(x.kv));
    x.table[0] = 2;
    x.table[1] = 0;
    x.table[2] = -1;
    x.q_len[0] = 2;
    x.kv_len_max[0] = 3;
    x.job = (struct ref_job){.heads = 1,
                             .n_seqs = 1,
                             .q_len = x.q_len,
                             .kv_len_max = x.kv_len_max,
                             .q = {.base = x.q, .token_stride = REF_QK_DIM, .head_stride = REF_QK_DIM, .compact = true},
                             .kv = x.kv,
                             .page_stride = 64 * REF_QK_DIM,
                             .row_stride = REF_QK_DIM,
                             .num_pages = 3,
                             .pages_per_entry = 1,
                             .table = x.table,
                             .table_first = x.table_first,
                             .mask = MLA_MASK_CAUSAL,
                             .softmax_scale = 0.5,
                             .q_scale = 1,
                             .kv_scale = 1};
}

static uint8_t *key(uint32_t k)
{
    return x.kv + ((size_t)x.table[k / 64] * 64 + k % 64) * REF_QK_DIM;
}

/* Two tokens over keys with V = 1, 2, 4 in element 0 and scores ln 1, ln 2, ln 4 (through the rope part):
 * token 0 sees two keys: (1 * 1 + 2 * 2) / 3; token 1 all: (1 + 4 + 16) / 7. */
START_TEST(attention_by_hand)
{
    const double v[3] = {1, 2, 4};
    set_up();
    x.job.softmax_scale = log(2) / 4;
    for (uint32_t k = 0; k < 3; k++) {
        memset(key(k), 0, REF_QK_DIM);
        key(k)[0] = fp8_encode(v[k]);
        key(k)[REF_QK_DIM - 1] = fp8_encode(4.0 * k);
    }
    x.q[0][REF_QK_DIM - 1] = FP8_ONE;
    x.q[1][REF_QK_DIM - 1] = FP8_ONE;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], 0);
    ck_assert_double_eq_tol(x.o[0], 5.0 / 3, 1e-12);
    ck_assert_double_eq_tol(x.lse[0], log(3), 1e-12);
    ck_assert_double_eq_tol(x.o[REF_V_DIM], 21.0 / 7, 1e-12); /* weights 1, 2, 4 */
    ck_assert_double_eq_tol(x.lse[1], log(7), 1e-12);
    x.job.kv_scale = 2; /* scores double with it, values too */
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_double_eq_tol(x.o[REF_V_DIM], 2 * (1 + 4 * 2 + 16 * 4) / 21.0, 1e-12);
}
END_TEST

START_TEST(masks_and_empty_rows)
{
    const int32_t visible[2] = {0, 1};
    set_up();
    for (uint32_t k = 0; k < 3; k++)
        memset(key(k), FP8_ONE, REF_QK_DIM);
    x.q_len[0] = 2;
    x.kv_len_max[0] = 1;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert(x.o[0] == 0 && x.lse[0] == -INFINITY);
    ck_assert(x.o[REF_V_DIM] == 1 && isfinite(x.lse[1]));
    x.job.mask = MLA_MASK_NONE;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert(x.o[0] == 1);
    x.kv_len_max[0] = 3;
    x.job.mask = MLA_MASK_VISIBLE;
    x.job.visible = visible;
    memset(key(1), FP8_NAN, REF_QK_DIM);
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert(x.o[0] == 0 && x.lse[0] == -INFINITY && x.o[REF_V_DIM] == 1);
}
END_TEST

START_TEST(nan_reaches_rows_that_see_it)
{
    set_up();
    for (uint32_t k = 0; k < 3; k++)
        memset(key(k), FP8_ONE, REF_QK_DIM);
    key(2)[540] = FP8_NAN;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert(x.o[3] == 1 && isnan(x.o[REF_V_DIM + 3]) && isnan(x.lse[1]));
    x.q[0][5] = FP8_NAN;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert(isnan(x.o[3]) && isnan(x.lse[0]));
}
END_TEST

START_TEST(faults)
{
    int32_t kv_len[1] = {4};
    int32_t visible[2] = {1, 4};
    set_up();
    x.kv_len_max[0] = 129;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 2);
    x.table[0] = 3;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32);
    x.table[0] = 2;
    x.kv_len_max[0] = 3;
    x.job.kv_len = kv_len;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], (uint64_t)MLA_KV_LEN_OUT_OF_RANGE << 32);
    kv_len[0] = 3;
    x.job.mask = MLA_MASK_VISIBLE;
    x.job.visible = visible;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], (uint64_t)MLA_VISIBLE_OUT_OF_RANGE << 32 | 1);
    x.job.kv_len = NULL;
    x.kv_len_max[0] = 192; /* no token sees the page of the bad entry */
    visible[1] = 128;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], 0);
    visible[1] = 129;
    ck_assert_int_eq(ref_decode(&x.job, x.o, x.lse, x.status), 0);
    ck_assert_uint_eq(x.status[0], (uint64_t)MLA_PAGE_OUT_OF_RANGE << 32 | 2);
}
END_TEST

/* ref_compare() accepts correct roundings and nothing beside them. */
START_TEST(comparison_finds_what_is_off)
{
    double o[3 * REF_V_DIM];
    double lse[3] = {1, -INFINITY, NAN};
    uint8_t bytes[3][REF_V_DIM];
    float lse32[3] = {1, -INFINITY, NAN};
    struct ref_report report;
    set_up();
    x.q_len[0] = 3;
    for (uint32_t i = 0; i < REF_V_DIM; i++) {
        o[i] = 1 + 0.01 * (i % 30);
        o[REF_V_DIM + i] = 0;
        o[2 * REF_V_DIM + i] = NAN;
        for (uint32_t r = 0; r < 3; r++)
            bytes[r][i] = fp8_encode(o[r * REF_V_DIM + i] / 0.25);
    }
    struct ref_output out = {.out_type = MLA_DTYPE_E4M3,
                             .o = {bytes, 0, REF_V_DIM, REF_V_DIM, true},
                             .lse = {lse32, 0, 4, 4, true},
                             .out_scale = 0.25,
                             .accuracy = 1e-6};
    ck_assert_msg(ref_compare(&x.job, o, lse, NULL, &out, &report), "%s", report.text);
    ck_assert_uint_eq(report.rows, 3);
    bytes[0][7]++;
    ck_assert(!ref_compare(&x.job, o, lse, NULL, &out, &report));
    ck_assert_uint_eq(report.bad, 1);
    ck_assert_ptr_nonnull(strstr(report.text, "O[7] of sequence 0 token 0 head 0"));
    bytes[0][7]--;
    bytes[2][500] = FP8_ONE; /* not NaN */
    bytes[1][3] = FP8_NAN;
    lse32[1] = 0;
    ck_assert(!ref_compare(&x.job, o, lse, NULL, &out, &report));
    ck_assert_uint_eq(report.bad, 3);
    const uint64_t skip[1] = {1};
    ck_assert(ref_compare(&x.job, o, lse, skip, &out, &report));
    ck_assert_uint_eq(report.rows, 0);
}
END_TEST

/* Rows of different lengths over shuffled pages, the last one ragged, against ref_decode(). */
START_TEST(sampled_rows_are_the_reference)
{
    enum { PAGES = 9, ROWS = 5, KEYS = PAGES * 64 - 20 };
    static uint8_t kv[PAGES * 64 * REF_QK_DIM], q[ROWS * REF_QK_DIM];
    static struct sampled_row rows[ROWS];
    static double o[ROWS * REF_V_DIM], lse[ROWS];
    const int32_t table[PAGES] = {3, 7, 0, 8, 1, 2, 6, 5, 4};
    const uint32_t q_len[1] = {ROWS}, kv_len[1] = {KEYS};
    const uint64_t table_first[1] = {0};
    struct prng prng = {9};
    for (size_t i = 0; i < sizeof(kv); i++)
        kv[i] = fp8_encode(0.5 + prng_normal(&prng));
    for (size_t i = 0; i < sizeof(q); i++)
        q[i] = fp8_encode(prng_normal(&prng));
    struct ref_job job = {.heads = 1,
                          .n_seqs = 1,
                          .q_len = q_len,
                          .kv_len_max = kv_len,
                          .q = {.base = q, .token_stride = REF_QK_DIM, .head_stride = REF_QK_DIM, .compact = true},
                          .kv = kv,
                          .page_stride = 64 * REF_QK_DIM,
                          .row_stride = REF_QK_DIM,
                          .num_pages = PAGES,
                          .pages_per_entry = 1,
                          .table = table,
                          .table_first = table_first,
                          .mask = MLA_MASK_CAUSAL,
                          .softmax_scale = 3.0 / 24,
                          .q_scale = 1,
                          .kv_scale = 1};
    ck_assert_int_eq(ref_decode(&job, o, lse, NULL), 0);
    for (uint32_t r = 0; r < ROWS; r++) {
        rows[r].keys = KEYS - ROWS + r + 1;
        for (uint32_t i = 0; i < REF_QK_DIM; i++)
            rows[r].q[i] = fp8_decode(q[r * REF_QK_DIM + i]);
    }
    sampled_decode(kv, table, 3.0 / 24, true, rows, ROWS);
    double error[SAMPLED_ROUNDINGS] = {0}, all = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        ck_assert_double_eq_tol(rows[r].lse, lse[r], 1e-12);
        for (uint32_t i = 0; i < REF_V_DIM; i++) {
            double want = o[r * REF_V_DIM + i];
            ck_assert_double_eq_tol(rows[r].o[i], want, 1e-12);
            all += want * want;
            for (uint32_t e = 0; e < SAMPLED_ROUNDINGS; e++)
                error[e] += (rows[r].rounded[e][i] - want) * (rows[r].rounded[e][i] - want);
        }
    }
    for (uint32_t e = 0; e < SAMPLED_ROUNDINGS; e++) /* of weights within 1/16, 2.6 % in the mean, over few keys */
        ck_assert_msg(sqrt(error[e] / all) > 1e-3 && sqrt(error[e] / all) < 3e-2, "%g", sqrt(error[e] / all));
}
END_TEST

/* Two keys of weights 1 and 2^-3.3 and values 0 and 1. At shift 0 the weights are 256 and 26 (of 25.99), at 0.4 they
 * are 192 (of 194.01) and 20 (of 19.70), at 2.6 they are 44 (of 42.22) and 4.5 (of 4.287). */
START_TEST(sampled_roundings_by_hand)
{
    static uint8_t kv[64 * REF_QK_DIM];
    static struct sampled_row row;
    const int32_t table[1] = {0};
    memset(kv + REF_QK_DIM, FP8_ONE, REF_V_DIM); /* the second key */
    kv[REF_V_DIM] = FP8_ONE;                     /* of the first, in its rope part */
    row.keys = 2;
    row.q[REF_V_DIM] = 3.3 * log(2);
    sampled_decode(kv, table, 1, true, &row, 1);
    ck_assert_double_eq_tol(row.o[5], 1 / (1 + exp2(3.3)), 1e-12);
    ck_assert_double_eq_tol(row.lse, log(1 + exp2(3.3)), 1e-12);
    ck_assert_double_eq_tol(row.rounded[0][5], 26.0 / 282, 1e-12);
    ck_assert_double_eq_tol(row.rounded[1][5], 20.0 / 212, 1e-12);
    ck_assert_double_eq_tol(row.rounded[2][5], 4.5 / 48.5, 1e-12);
}
END_TEST

MLA_SUITE(reference)
{
    TCase *tc = mla_tcase(suite, "formats");
    tcase_add_test(tc, e4m3_landmarks);
    tcase_add_test(tc, e4m3_rounds_to_nearest_even);
    tcase_add_test(tc, bf16_landmarks);
    tc = mla_tcase(suite, "attention");
    tcase_add_test(tc, attention_by_hand);
    tcase_add_test(tc, masks_and_empty_rows);
    tcase_add_test(tc, nan_reaches_rows_that_see_it);
    tcase_add_test(tc, faults);
    tcase_add_test(tc, comparison_finds_what_is_off);
    tc = mla_tcase(suite, "sampled");
    tcase_add_test(tc, sampled_rows_are_the_reference);
    tcase_add_test(tc, sampled_roundings_by_hand);
}
