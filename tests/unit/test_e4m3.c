/* Number formats and element loops of the CPU backend, against definitions in double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cpu/e4m3.h"
#include "daemon/backend/cpu/vec.h"
#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"

START_TEST(decodes_all_codes)
{
    for (unsigned code = 0; code < 256; code++) {
        float got = e4m3_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            ck_assert(isnan(got));
            ck_assert(e4m3_is_nan((uint8_t)code));
            continue;
        }
        unsigned exponent = code >> 3 & 15;
        double mantissa = code & 7;
        double want = exponent == 0 ? mantissa * 0x1p-9 : ldexp(1.0 + mantissa / 8, (int)exponent - 7);
        want = code & 0x80 ? -want : want;
        ck_assert(!e4m3_is_nan((uint8_t)code));
        ck_assert_msg((double)got == want && (signbit(got) != 0) == (code >> 7 != 0), "code %02x: %g, not %g", code,
                      (double)got, want);
        ck_assert_float_eq(e4m3_to_f32_finite((uint8_t)code), got);
    }
}
END_TEST

START_TEST(encodes_what_it_decodes)
{
    for (unsigned code = 0; code < 256; code++)
        if ((code & 0x7f) != 0x7f)
            ck_assert_uint_eq(e4m3_from_f32(e4m3_to_f32((uint8_t)code)), code);
}
END_TEST

/* Halfway between neighbours the even code, one float to either side the nearer one. */
START_TEST(rounds_to_nearest_even)
{
    for (unsigned code = 0; code < 0x7e; code++) {
        float low = e4m3_to_f32((uint8_t)code);
        float high = e4m3_to_f32((uint8_t)(code + 1));
        float middle = (low + high) / 2;
        unsigned even = code & 1 ? code + 1 : code;
        ck_assert_uint_eq(e4m3_from_f32(middle), even);
        ck_assert_uint_eq(e4m3_from_f32(-middle), even | 0x80);
        ck_assert_uint_eq(e4m3_from_f32(nextafterf(middle, 0)), code);
        ck_assert_uint_eq(e4m3_from_f32(nextafterf(middle, 1000)), code + 1);
    }
}
END_TEST

START_TEST(saturates_and_keeps_nan)
{
    const float beyond[] = {448.0f, 448.001f, 463.9f, 464.0f, 480.0f, 1e30f, INFINITY};
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        ck_assert_uint_eq(e4m3_from_f32(beyond[i]), 0x7e);
        ck_assert_uint_eq(e4m3_from_f32(-beyond[i]), 0xfe);
    }
    ck_assert_uint_eq(e4m3_from_f32(NAN) & 0x7f, 0x7f);
    ck_assert_uint_eq(e4m3_from_f32(0.0f), 0);
    ck_assert_uint_eq(e4m3_from_f32(-0.0f), 0x80);
    ck_assert_uint_eq(e4m3_from_f32(1e-40f), 0);
    ck_assert_uint_eq(e4m3_from_f32(432.0f), 0x7e); /* halfway between 416 (odd) and 448 */
    ck_assert_uint_eq(e4m3_from_f32(431.9f), 0x7d);
}
END_TEST

START_TEST(agrees_with_the_definition)
{
    struct prng prng = {7};
    for (int i = 0; i < 1000000; i++) {
        float x = f32_from_bits((uint32_t)prng_u64(&prng));
        if (!isnan(x))
            ck_assert_uint_eq(e4m3_from_f32(x), fp8_encode((double)x));
    }
}
END_TEST

START_TEST(bf16_rounds_to_nearest_even)
{
    ck_assert_uint_eq(bf16_from_f32(1.0f), 0x3f80);
    ck_assert_uint_eq(bf16_from_f32(-0.0f), 0x8000);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f808000)), 0x3f80); /* tie, even below */
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f818000)), 0x3f82); /* tie, even above */
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f808001)), 0x3f81);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x3f807fff)), 0x3f80);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x7f7fffff)), 0x7f80); /* beyond the largest: infinity */
    ck_assert_uint_eq(bf16_from_f32(-INFINITY), 0xff80);
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0x7f800001)) & 0x7fc0, 0x7fc0); /* no NaN becomes infinity */
    ck_assert_uint_eq(bf16_from_f32(f32_from_bits(0xffffffff)) & 0x7fc0, 0x7fc0);
}
END_TEST

START_TEST(loops_equal_single_values)
{
    enum { N = 576 };
    struct prng prng = {11};
    uint8_t codes[N], back[N];
    float values[N];
    uint16_t halves[N];
    for (int i = 0; i < N; i++) {
        codes[i] = (uint8_t)prng_u64(&prng);
        if ((codes[i] & 0x7f) == 0x7f)
            codes[i] ^= 1;
    }
    ck_assert(!vec_e4m3_has_nan(codes, N));
    vec_e4m3_to_f32(codes, values, N);
    vec_f32_to_e4m3(values, back, N);
    vec_f32_to_bf16(values, halves, N);
    for (int i = 0; i < N; i++) {
        ck_assert_uint_eq(f32_bits(values[i]), f32_bits(e4m3_to_f32(codes[i])));
        ck_assert_uint_eq(back[i], codes[i]);
        ck_assert_uint_eq(halves[i], f32_bits(values[i]) >> 16); /* e4m3 fits bf16 */
    }
    for (int i = 0; i < N; i++) {
        uint8_t kept = codes[i];
        codes[i] = i & 1 ? 0x7f : 0xff;
        ck_assert(vec_e4m3_has_nan(codes, N));
        codes[i] = kept;
    }
}
END_TEST

/* ---- the softmax of a page ---- */

#define ROWS 5

struct page {
    float *s, *o, *m;
    double *l;
    int32_t *seen;
};

static struct page page_new(void)
{
    struct page p = {.s = aligned_alloc(64, sizeof(float) * ROWS * 64),
                     .o = aligned_alloc(64, sizeof(float) * ROWS * 512),
                     .m = aligned_alloc(64, 64),
                     .l = aligned_alloc(64, 64),
                     .seen = aligned_alloc(64, 64)};
    for (int r = 0; r < ROWS; r++) {
        p.m[r] = -INFINITY;
        p.l[r] = 0;
        p.seen[r] = 64;
        for (int i = 0; i < 512; i++)
            p.o[r * 512 + i] = 0;
    }
    return p;
}

static void page_free(struct page *p)
{
    free(p->s);
    free(p->o);
    free(p->m);
    free(p->l);
    free(p->seen);
}

static void fill_scores(struct page *p, struct prng *prng, double scale)
{
    for (int i = 0; i < ROWS * 64; i++)
        p->s[i] = (float)(scale * prng_normal(prng));
}

START_TEST(softmax_is_exact_to_float)
{
    struct prng prng = {3};
    struct page p = page_new();
    for (int round = 0; round < 200; round++) {
        float scores[ROWS * 64];
        fill_scores(&p, &prng, round < 100 ? 3.0 : 40.0);
        memcpy(scores, p.s, sizeof scores);
        for (int r = 0; r < ROWS; r++) {
            p.m[r] = -INFINITY;
            p.l[r] = 0;
        }
        vec_softmax_page(p.s, ROWS, p.seen, p.m, p.l, p.o);
        for (int r = 0; r < ROWS; r++) {
            double top = -INFINITY, sum = 0;
            for (int j = 0; j < 64; j++)
                top = fmax(top, (double)scores[r * 64 + j]);
            ck_assert_double_eq((double)p.m[r], top);
            for (int j = 0; j < 64; j++) {
                double want = exp((double)scores[r * 64 + j] - top);
                double got = (double)p.s[r * 64 + j];
                /* The difference of two floats is rounded: up to 2^-24 of it. Below e^-87 nothing is left. */
                double tolerance = want * (3e-7 + 6e-8 * (top - (double)scores[r * 64 + j])) + 2e-38;
                ck_assert_msg(fabs(got - want) <= tolerance, "exp(%g) = %g, not %g", (double)scores[r * 64 + j] - top,
                              got, want);
                sum += want;
            }
            ck_assert_double_eq_tol(p.l[r], sum, 1e-6 * sum);
        }
    }
    page_free(&p);
}
END_TEST

/* A masked row: nothing of what is not seen is read, whatever it is; a row that sees nothing stays as it was. */
START_TEST(softmax_masks)
{
    struct prng prng = {5};
    struct page p = page_new();
    float plain[64];
    fill_scores(&p, &prng, 2.0);
    memcpy(p.s + 64, p.s, sizeof plain);
    p.seen[0] = p.seen[1] = 17;
    p.seen[2] = 0;
    p.seen[3] = 1;
    for (int j = 17; j < 64; j++) {
        p.s[j] = NAN;
        p.s[64 + j] = 1e30f;
    }
    float only = p.s[3 * 64];
    vec_softmax_page(p.s, ROWS, p.seen, p.m, p.l, p.o);
    ck_assert_mem_eq(p.s, p.s + 64, sizeof plain);
    ck_assert_double_eq(p.l[0], p.l[1]);
    for (int j = 17; j < 64; j++)
        ck_assert_uint_eq(f32_bits(p.s[j]), 0);
    for (int j = 0; j < 64; j++)
        ck_assert_uint_eq(f32_bits(p.s[2 * 64 + j]), 0);
    ck_assert(p.m[2] == -INFINITY && p.l[2] == 0.0);
    ck_assert_float_eq(p.m[3], only);
    ck_assert_double_eq(p.l[3], 1.0);
    page_free(&p);
}
END_TEST

/* A larger maximum rescales what came before; a smaller one leaves it. */
START_TEST(softmax_goes_on)
{
    struct page p = page_new();
    for (int i = 0; i < ROWS * 64; i++)
        p.s[i] = 1.0f;
    vec_softmax_page(p.s, ROWS, p.seen, p.m, p.l, p.o);
    for (int i = 0; i < ROWS * 512; i++)
        p.o[i] = 64.0f;
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < 64; j++)
            p.s[r * 64 + j] = r == 0 ? 0.0f : 3.0f;
    vec_softmax_page(p.s, ROWS, p.seen, p.m, p.l, p.o);
    ck_assert_float_eq(p.m[0], 1.0f);
    ck_assert_float_eq(p.o[0], 64.0f);
    ck_assert_double_eq_tol(p.l[0], 64 * (1 + exp(-1)), 1e-5);
    ck_assert_float_eq(p.m[1], 3.0f);
    ck_assert_float_eq_tol(p.o[512], 64.0f * (float)exp(-2), 1e-5f);
    ck_assert_float_eq(p.s[64], 1.0f);
    ck_assert_double_eq_tol(p.l[1], 64 * (1 + exp(-2)), 1e-5);
    page_free(&p);
}
END_TEST

MLA_SUITE(e4m3)
{
    TCase *tc = mla_tcase(suite, "conversions");
    tcase_add_test(tc, decodes_all_codes);
    tcase_add_test(tc, encodes_what_it_decodes);
    tcase_add_test(tc, rounds_to_nearest_even);
    tcase_add_test(tc, saturates_and_keeps_nan);
    tcase_add_test(tc, agrees_with_the_definition);
    tcase_add_test(tc, bf16_rounds_to_nearest_even);
    tcase_add_test(tc, loops_equal_single_values);
    tc = mla_tcase(suite, "softmax");
    tcase_add_test(tc, softmax_is_exact_to_float);
    tcase_add_test(tc, softmax_masks);
    tcase_add_test(tc, softmax_goes_on);
}
