/* What the kernels compute with integers, tried as C: number formats over all of their values, and the maps from lanes
 * to shared memory, by way of the fragments of mma.m16n8k16 and ldmatrix as they are documented. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/device/numbers.h"
#include "kernels/generic/layout.h"
#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"

/* f16 by its definition; no infinities or NaN here. */
static double f16_decode(uint32_t bits)
{
    int exponent = (int)(bits >> 10 & 31u);
    double mantissa = bits & 1023u;
    double value = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
    ck_assert_int_lt(exponent, 31);
    return bits & 0x8000u ? -value : value;
}

START_TEST(codes_become_f16)
{
    struct prng prng = {1};
    for (uint32_t code = 0; code < 256; code++) {
        if ((code & 0x7fu) == 0x7fu)
            continue;
        for (uint32_t place = 0; place < 4; place++) {
            uint32_t word = (uint32_t)prng_u64(&prng) & ~(0xffu << (8 * place));
            word |= code << (8 * place);
            uint32_t pair = place % 2 ? e4m3_odd_f16x2(word) : e4m3_even_f16x2(word);
            double value = f16_decode(place / 2 ? pair >> 16 : pair & 0xffffu) * (1 << MLA_E4M3_F16_SHIFT);
            ck_assert_msg(value == fp8_decode((uint8_t)code) && (signbit(value) != 0) == (code >> 7 != 0),
                          "code %#x at byte %u: %g", code, place, value);
        }
    }
}
END_TEST

START_TEST(nan_codes_are_found_and_cleared)
{
    static const uint8_t codes[] = {0x00, 0x01, 0x7e, 0x7f, 0x80, 0xfe, 0xff, 0x38};
    for (uint32_t n = 0; n < 4096; n++) {
        uint32_t word = 0;
        uint32_t want_bits = 0;
        uint32_t want_word = 0;
        for (uint32_t place = 0; place < 4; place++) {
            uint32_t code = codes[n >> (3 * place) & 7u];
            bool nan = (code & 0x7fu) == 0x7fu;
            word |= code << (8 * place);
            want_bits |= nan ? 0x80u << (8 * place) : 0;
            want_word |= nan ? 0 : code << (8 * place);
        }
        ck_assert_uint_eq(e4m3_nan_bits(word), want_bits);
        ck_assert_uint_eq(e4m3_without_nan(word, want_bits), want_word);
    }
}
END_TEST

START_TEST(f32_becomes_e4m3)
{
    /* Every 4,099th pattern, and all neighbourhoods of codes and of what is halfway between them. */
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4099) {
        float value = f32_of_bits((uint32_t)bits);
        uint32_t want = isnan(value) ? 0x7fu : fp8_encode(value);
        uint32_t got = f32_to_e4m3(value);
        if ((isnan(value) ? got & 0x7fu : got) != want) /* each assertion is a message to another process */
            ck_abort_msg("%a: %#x instead of %#x", value, got, want);
    }
    for (uint32_t code = 0; code < 0x7e; code++) {
        double middle = (fp8_decode((uint8_t)code) + fp8_decode((uint8_t)(code + 1))) / 2;
        float around[] = {(float)middle, nextafterf((float)middle, 0), nextafterf((float)middle, 1000),
                          (float)fp8_decode((uint8_t)code)};
        for (size_t i = 0; i < 4; i++) {
            ck_assert_uint_eq(f32_to_e4m3(around[i]), fp8_encode(around[i]));
            ck_assert_uint_eq(f32_to_e4m3(-around[i]), fp8_encode(-around[i]));
        }
    }
    ck_assert_uint_eq(f32_to_e4m3(INFINITY), 0x7e);
    ck_assert_uint_eq(f32_to_e4m3(-INFINITY), 0xfe);
    ck_assert_uint_eq(f32_to_e4m3(464), 0x7e);
    ck_assert_uint_eq(f32_to_e4m3(NAN) & 0x7f, 0x7f);
}
END_TEST

START_TEST(f32_becomes_bf16)
{
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4099) {
        float value = f32_of_bits((uint32_t)bits);
        uint32_t got = f32_to_bf16(value);
        if (fabsf(value) >= 0x1.ffp127f)
            continue; /* may round to infinity */
        double number = bf16_decode((uint16_t)got);
        bool fine = isnan(value) ? isnan(number) : fabs(number - (double)value) <= bf16_half_ulp(value) * (1 + 1e-12);
        if (!fine || got > UINT16_MAX)
            ck_abort_msg("%a: %#x", value, got);
    }
    ck_assert_uint_eq(f32_to_bf16(1.00390625f), 0x3f80); /* ties to even */
    ck_assert_uint_eq(f32_to_bf16(1.01171875f), 0x3f82);
}
END_TEST

/* Places of 16 bytes that the eight lanes of one phase touch must lie in different groups of four banks. */
static void assert_no_conflict(const uint32_t offsets[8])
{
    uint32_t seen = 0;
    for (int i = 0; i < 8; i++) {
        ck_assert_uint_eq(offsets[i] % 16, 0);
        seen |= 1u << (offsets[i] / 16 % 8);
    }
    ck_assert_uint_eq(seen, 0xff);
}

START_TEST(chunks_have_places_of_their_own)
{
    static uint8_t taken[64 * 36];
    memset(taken, 0, sizeof taken);
    for (uint32_t r = 0; r < 64; r++)
        for (uint32_t c = 0; c < 36; c++)
            taken[generic_chunk(r, c) / 16]++;
    for (uint32_t i = 0; i < 64 * 36; i++)
        ck_assert_uint_eq(taken[i], 1);
    /* Chunks of a thread are 64 bytes apart. */
    for (uint32_t r = 0; r < 64; r++)
        for (uint32_t c = 0; c < 36; c++)
            ck_assert_uint_eq(generic_chunk(r, c), generic_chunk(r, c % 4) + c / 4 * 64);
}
END_TEST

START_TEST(banks_are_used_once)
{
    for (uint32_t first = 0; first < 32; first += 8) {
        uint32_t scores[8];
        uint32_t weights[8];
        uint32_t values[2][8];
        for (uint32_t i = 0; i < 8; i++) {
            scores[i] = generic_score_offset(first + i);
            weights[i] = generic_p_offset(first + i);
            values[0][i] = generic_v_offset(first + i, 0);
            values[1][i] = generic_v_offset(first + i, 1);
        }
        assert_no_conflict(scores);
        assert_no_conflict(weights);
        assert_no_conflict(values[0]);
        assert_no_conflict(values[1]);
    }
}
END_TEST

/* d += a * b of a warp, by the layout of the fragments; halves as numbers. */
static void mma(double d[32][4], double a[32][4][2], double b[32][2][2])
{
    static double rows[16][16];
    static double columns[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4;
        int t = lane % 4;
        for (int h = 0; h < 2; h++) {
            for (int r = 0; r < 4; r++)
                rows[g + r % 2 * 8][2 * t + h + r / 2 * 8] = a[lane][r][h];
            for (int r = 0; r < 2; r++)
                columns[2 * t + h + 8 * r][g] = b[lane][r][h];
        }
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 16; k++)
                d[lane][i] += rows[lane / 4 + i / 2 * 8][k] * columns[k][lane % 4 * 2 + i % 2];
}

/* Matrix j of ldmatrix.x4, row i, 16-bit element e. */
static uint32_t matrix_element(const uint8_t *memory, const uint32_t address[32], int j, int i, int e)
{
    const uint8_t *row = memory + address[8 * j + i];
    return row[2 * e] | (uint32_t)row[2 * e + 1] << 8;
}

static void ldmatrix(const uint8_t *memory, const uint32_t address[32], bool trans, uint32_t r[32][4])
{
    for (int lane = 0; lane < 32; lane++) {
        for (int j = 0; j < 4; j++) {
            int g = lane / 4;
            int t = lane % 4;
            uint32_t low =
                trans ? matrix_element(memory, address, j, 2 * t, g) : matrix_element(memory, address, j, g, 2 * t);
            uint32_t high = trans ? matrix_element(memory, address, j, 2 * t + 1, g)
                                  : matrix_element(memory, address, j, g, 2 * t + 1);
            r[lane][j] = low | high << 16;
        }
    }
}

/* A random array of 64 rows as the kernel keeps it, and its numbers. */
static void fill(struct prng *prng, uint8_t *memory, double (*numbers)[576])
{
    for (uint32_t r = 0; r < 64; r++) {
        for (uint32_t e = 0; e < 576; e++) {
            uint8_t code = (uint8_t)(prng_u64(prng) & 0xbf); /* at most 1.875 */
            memory[generic_chunk(r, e / 16) + e % 16] = code;
            numbers[r][e] = fp8_decode(code);
        }
    }
}

static void halves(uint32_t pair, double out[2])
{
    out[0] = f16_decode(pair & 0xffffu);
    out[1] = f16_decode(pair >> 16);
}

static uint32_t word_at(const uint8_t *memory)
{
    uint32_t word;
    memcpy(&word, memory, sizeof word);
    return word;
}

static uint8_t q_memory[64 * 576];
static uint8_t k_memory[64 * 576];
static uint8_t p_memory[64 * GENERIC_P_BYTES];
static double q[64][576];
static double k[64][576];

/* As page_scores() of the kernel goes through it. */
START_TEST(scores_of_a_page)
{
    struct prng prng = {2};
    fill(&prng, q_memory, q);
    fill(&prng, k_memory, k);
    for (uint32_t warp = 0; warp < 8; warp++) {
        static double d[4][32][4];
        memset(d, 0, sizeof d);
        for (uint32_t step = 0; step < 36; step++) {
            static double a[32][4][2];
            static double b[32][2][2];
            for (uint32_t n = 0; n < 4; n++) {
                for (uint32_t lane = 0; lane < 32; lane++) {
                    uint32_t offset = generic_score_offset(lane) + step / 4 * 64 + step % 4 * 4;
                    for (uint32_t half = 0; half < 2; half++) {
                        uint32_t codes = word_at(q_memory + (warp % 4 * 16 + half * 8) * GENERIC_ROW_BYTES + offset);
                        halves(e4m3_even_f16x2(codes), a[lane][half]);
                        halves(e4m3_odd_f16x2(codes), a[lane][half + 2]);
                    }
                    uint32_t codes = word_at(k_memory + (warp / 4 * 32 + n * 8) * GENERIC_ROW_BYTES + offset);
                    halves(e4m3_even_f16x2(codes), b[lane][0]);
                    halves(e4m3_odd_f16x2(codes), b[lane][1]);
                }
                mma(d[n], a, b);
            }
        }
        for (uint32_t n = 0; n < 4; n++) {
            for (uint32_t lane = 0; lane < 32; lane++) {
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t row = warp % 4 * 16 + lane / 4 + i / 2 * 8;
                    uint32_t key = warp / 4 * 32 + n * 8 + lane % 4 * 2 + i % 2;
                    double want = 0;
                    for (uint32_t e = 0; e < 576; e++)
                        want += q[row][e] * k[key][e];
                    ck_assert_double_eq_tol(d[n][lane][i] * 65536, want, 1e-9);
                }
            }
        }
    }
}
END_TEST

/* As add_page() and write_output() go through it; weights are the small whole numbers that f16 has exactly. */
START_TEST(weights_times_values)
{
    struct prng prng = {3};
    static double p[64][64];
    fill(&prng, k_memory, k);
    for (uint32_t row = 0; row < 64; row++) {
        for (uint32_t key = 0; key < 64; key += 2) {
            uint32_t pair = 0;
            for (uint32_t h = 0; h < 2; h++) {
                uint32_t exponent = 10 + prng_below(&prng, 10);
                pair |= exponent << (10 + 16 * h);
                p[row][key + h] = ldexp(1, (int)exponent - 15);
            }
            memcpy(p_memory + generic_p_pair(row, key), &pair, sizeof pair);
        }
    }
    for (uint32_t warp = 0; warp < 8; warp++) {
        static double o[4][4][2][32][4];
        memset(o, 0, sizeof o);
        for (uint32_t step = 0; step < 4; step++) {
            static double a[4][32][4][2];
            uint32_t address[32];
            uint32_t raw[32][4];
            for (uint32_t m = 0; m < 4; m++) {
                for (uint32_t lane = 0; lane < 32; lane++)
                    address[lane] = generic_p_offset(lane) + m * 16 * GENERIC_P_BYTES + step * 32;
                ldmatrix(p_memory, address, false, raw);
                for (uint32_t lane = 0; lane < 32; lane++)
                    for (uint32_t r = 0; r < 4; r++)
                        halves(raw[lane][r], a[m][lane][r]);
            }
            for (uint32_t c = 0; c < 2; c++) {
                for (uint32_t lane = 0; lane < 32; lane++)
                    address[lane] = warp * 64 + generic_v_offset(lane, c) + step * 16 * GENERIC_ROW_BYTES;
                ldmatrix(k_memory, address, true, raw);
                for (uint32_t half = 0; half < 2; half++) {
                    static double even[32][2][2];
                    static double odd[32][2][2];
                    for (uint32_t lane = 0; lane < 32; lane++) {
                        for (uint32_t r = 0; r < 2; r++) {
                            halves(e4m3_even_f16x2(raw[lane][2 * half + r]), even[lane][r]);
                            halves(e4m3_odd_f16x2(raw[lane][2 * half + r]), odd[lane][r]);
                        }
                    }
                    for (uint32_t m = 0; m < 4; m++) {
                        mma(o[m][2 * c + half][0], a[m], even);
                        mma(o[m][2 * c + half][1], a[m], odd);
                    }
                }
            }
        }
        for (uint32_t m = 0; m < 4; m++)
            for (uint32_t c = 0; c < 4; c++)
                for (uint32_t lane = 0; lane < 32; lane++)
                    for (uint32_t i = 0; i < 2; i++)
                        for (uint32_t j = 0; j < 4; j++) { /* the four columns that a lane writes side by side */
                            uint32_t row = m * 16 + i * 8 + lane / 4;
                            uint32_t column = warp * 64 + c * 16 + lane % 4 * 4 + j;
                            double want = 0;
                            for (uint32_t key = 0; key < 64; key++)
                                want += p[row][key] * k[key][column];
                            double got = o[m][c][j % 2][lane][2 * i + j / 2] * 256;
                            ck_assert_double_eq_tol(got, want, 1e-9);
                        }
    }
}
END_TEST

MLA_SUITE(kernel_bits)
{
    TCase *tc = mla_tcase(suite, "numbers");
    tcase_add_test(tc, codes_become_f16);
    tcase_add_test(tc, nan_codes_are_found_and_cleared);
    tcase_add_test(tc, f32_becomes_e4m3);
    tcase_add_test(tc, f32_becomes_bf16);
    tc = mla_tcase(suite, "layout");
    tcase_add_test(tc, chunks_have_places_of_their_own);
    tcase_add_test(tc, banks_are_used_once);
    tcase_add_test(tc, scores_of_a_page);
    tcase_add_test(tc, weights_times_values);
}
