/* Rounding of the outputs, on values that are exact until then: uniform weights over two keys give the mean of their V.
 */
#include <math.h>
#include <string.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

struct rounding_case {
    double v0, v1;
    float out_scale;
    unsigned bits; /* right: of the output format */
};

/* Element i of V is case i; q = 0, so that O is (v0 + v1) / 2 exactly. One launch per out_scale. */
static void check_roundings(struct rig *rig, uint32_t out_type, const struct rounding_case *cases, uint32_t n)
{
    for (uint32_t first = 0; first < n; first++) {
        bool seen = false;
        for (uint32_t i = 0; i < first; i++)
            seen |= cases[i].out_scale == cases[first].out_scale;
        if (seen)
            continue;
        struct dc *c = dc_new(rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 6,
                                                        .n_seqs = 1,
                                                        .seqs = SEQS({1, 2}),
                                                        .mask = MLA_MASK_NONE,
                                                        .out_type = out_type,
                                                        .out_scale = cases[first].out_scale});
        dc_fill_q(j, 0);
        dc_fill_keys(j, 0);
        for (uint32_t i = 0; i < n; i++) {
            ck_assert_double_eq(fp8_decode(fp8_encode(cases[i].v0)), cases[i].v0);
            ck_assert_double_eq(fp8_decode(fp8_encode(cases[i].v1)), cases[i].v1);
            dc_key(j, 0, 0)[i] = fp8_encode(cases[i].v0);
            dc_key(j, 0, 1)[i] = fp8_encode(cases[i].v1);
        }
        dc_run(c);
        const uint8_t *row = j->out.o.base;
        for (uint32_t i = 0; i < n; i++) {
            uint16_t wide;
            memcpy(&wide, row + 2 * (size_t)i, sizeof(wide));
            unsigned got = out_type == MLA_DTYPE_E4M3 ? row[i] : wide;
            if (cases[i].out_scale == cases[first].out_scale)
                ck_assert_msg(got == cases[i].bits, "(%g + %g) / 2 / %g became %#x, right is %#x", cases[i].v0,
                              cases[i].v1, (double)cases[i].out_scale, got, cases[i].bits);
        }
        dc_check(j);
        dc_free(c);
    }
}

/* e4m3: ties go to the even neighbour, subnormals are kept, what is too large saturates with its sign. */
START_TEST(e4m3_ties_subnormals_saturation)
{
    static const struct rounding_case cases[] = {
        {16, 18, 1, 0x58},         /* 17: between 16 and 18, 16 is even */
        {18, 20, 1, 0x5a},         /* 19: 20 */
        {-18, -20, 1, 0xda},       /* -19: -20 */
        {16, 20, 1, 0x59},         /* 18 */
        {1, 1, 512, 0x01},         /* 2^-9, the least number */
        {1, 0, 512, 0x00},         /* half of it: to zero */
        {2, 1, 512, 0x02},         /* one and a half: to two */
        {7, 8, 512, 0x08},         /* 7.5: to 8, the least normal */
        {448, 448, 1, 0x7e},       /* the largest */
        {448, 448, 0.5f, 0x7e},    /* 896 */
        {-448, -448, 0.25f, 0xfe}, /* -1,792 */
        {240, 224, 0.5f, 0x7e},    /* 464 would be the tie to what is NaN: saturates */
        {416, 448, 1, 0x7e},       /* 432: between 416 and 448, 448 is even */
        {448, -448, 1, 0x00},      /* cancels */
    };
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    check_roundings(&rig, MLA_DTYPE_E4M3, cases, sizeof(cases) / sizeof(cases[0]));
    rig_close(&rig);
}
END_TEST

/* bf16: ties to even; out_scale is ignored. */
START_TEST(bf16_ties)
{
    static const struct rounding_case cases[] = {
        {2, 0x1p-7, 1, 0x3f80},     /* 1 + 2^-8: to 1 */
        {2, 3 * 0x1p-7, 1, 0x3f82}, /* 1 + 3 * 2^-8: to 1 + 2^-6 */
        {2, 0x1p-6, 1, 0x3f81},     /* 1 + 2^-7: exact */
        {-2, -0x1p-7, 1, 0xbf80},   /* -1 - 2^-8: to -1 */
        {448, 448, 1, 0x43e0},      /* exact */
        {2, 0x1p-6, 4, 0x3f81},     /* no scale */
    };
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    check_roundings(&rig, MLA_DTYPE_BF16, cases, sizeof(cases) / sizeof(cases[0]));
    rig_close(&rig);
}
END_TEST

/* f32 ignores out_scale too, to the bit. */
START_TEST(f32_ignores_out_scale)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c = dc_new(&rig);
    struct dc_shape shape = {.heads = 12, .n_seqs = 1, .seqs = SEQS({2, 100}), .seed = 5};
    struct dc_job *plain = dc_add(c, &shape);
    shape.out_scale = 0.03f;
    struct dc_job *scaled = dc_add(c, &shape);
    dc_run(c);
    dc_check_all(c);
    struct dc_bits a = dc_bits(plain);
    struct dc_bits b = dc_bits(scaled);
    dc_assert_same(&a, &b, NULL, "out_scale of an f32 output");
    dc_bits_free(&a);
    dc_bits_free(&b);
    dc_free(c);
    rig_close(&rig);
}
END_TEST

MLA_SUITE(backend_output)
{
    TCase *tc = mla_tcase(suite, "rounding");
    rig_add(tc, e4m3_ties_subnormals_saturation);
    rig_add(tc, bf16_ties);
    rig_add(tc, f32_ignores_out_scale);
}
