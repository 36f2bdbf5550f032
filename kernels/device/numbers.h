/* Number formats as integer operations, for device code and, compiled as C, for the tests that try every value: e4m3 FN
 * (1 sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity; NaN is 0x7f and 0xff; largest 448), bfloat16 and
 * f16. Words hold four e4m3 codes, byte 0 in the lowest bits.
 */
#ifndef MLA_KERNELS_DEVICE_NUMBERS_H
#define MLA_KERNELS_DEVICE_NUMBERS_H

#include <stdint.h>

#if defined(__CUDACC__)
#define MLA_FN static __host__ __device__ __forceinline__
#else
#define MLA_FN static inline
#endif

/* f16 values of e4m3_even_f16x2 and e4m3_odd_f16x2 are 2^-8 of the numbers that the codes stand for. */
#define MLA_E4M3_F16_SHIFT 8

MLA_FN uint32_t f32_to_bits(float value)
{
    union {
        float value;
        uint32_t bits;
    } u;
    u.value = value;
    return u.bits;
}

MLA_FN float f32_of_bits(uint32_t bits)
{
    union {
        float value;
        uint32_t bits;
    } u;
    u.bits = bits;
    return u.value;
}

/* Bit 7 of every byte that is a NaN code: with the sign cleared, adding 1 carries into bit 7 for 0x7f alone. */
MLA_FN uint32_t e4m3_nan_bits(uint32_t codes)
{
    return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

/* The codes with zeros for those that nan_bits (of e4m3_nan_bits) names. */
MLA_FN uint32_t e4m3_without_nan(uint32_t codes, uint32_t nan_bits)
{
    return codes & ~((nan_bits >> 7) * 0xffu);
}

/* Bytes 0 and 2, bytes 1 and 3, of a word without NaN as f16 pairs (lower byte in the lower half), times 2^-8: sign and
 * the seven other bits move to where f16 has them; the biases differ by 8, and subnormals of the one are subnormals of
 * the other. */
MLA_FN uint32_t e4m3_even_f16x2(uint32_t codes)
{
    return (codes << 7 & 0x3f803f80u) | (codes << 8 & 0x80008000u);
}

MLA_FN uint32_t e4m3_odd_f16x2(uint32_t codes)
{
    return (codes >> 1 & 0x3f803f80u) | (codes & 0x80008000u);
}

/* Rounds to nearest even. Beyond 448, infinities included, the result is +-448; NaN stays NaN. */
MLA_FN uint32_t f32_to_e4m3(float value)
{
    uint32_t bits = f32_to_bits(value);
    uint32_t sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return sign | 0x7fu;
    if (magnitude >= 0x43e00000u) /* 448 */
        return sign | 0x7eu;
    /* Below 2^-6: floats around 2^14 are 2^-9 apart, as the subnormals are, so the addition rounds. */
    if (magnitude < 0x3c800000u)
        return sign | (f32_to_bits(f32_of_bits(magnitude) + 16384.0f) - 0x46800000u);
    return sign | (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
}

/* Rounds to nearest even; NaN stays NaN. */
MLA_FN uint32_t f32_to_bf16(float value)
{
    uint32_t bits = f32_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

#endif
