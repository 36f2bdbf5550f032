/* Conversions of single values: e4m3 FN (1 sign, 4 exponent bits with bias 7, 3 mantissa bits; no infinity, NaN is 0x7f
 * and 0xff, largest value 448, smallest subnormal 2^-9) and bfloat16. All round to nearest even. */
#ifndef MLA_DAEMON_BACKEND_CPU_E4M3_H
#define MLA_DAEMON_BACKEND_CPU_E4M3_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define E4M3_NAN 0x7fu
#define E4M3_MAX 448.0f

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline bool e4m3_is_nan(uint8_t code)
{
    return (code & 0x7fu) == E4M3_NAN;
}

/* Exact. For a NaN code the result is an unspecified finite number: callers look for those first. Written without a
 * branch so that a loop over it vectorises: exponent and mantissa move into place and the bias is corrected by 120,
 * which reads a subnormal m / 8 * 2^-6 as (1 + m / 8) * 2^-7; twice that less 2^-6 is its value. */
static inline float e4m3_to_f32_finite(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu;
    float normal = f32_from_bits((magnitude << 20) + (120u << 23));
    float subnormal = 2.0f * normal - 0.015625f;
    float value = magnitude < 8u ? subnormal : normal;
    return f32_from_bits(f32_bits(value) | ((uint32_t)(code & 0x80u) << 24));
}

/* As above, with NaN for the two NaN codes. */
static inline float e4m3_to_f32(uint8_t code)
{
    return e4m3_is_nan(code) ? f32_from_bits(0x7fc00000u | ((uint32_t)(code & 0x80u) << 24)) : e4m3_to_f32_finite(code);
}

/* Saturates: beyond 448, infinities included, the result is +-448; NaN stays NaN. */
static inline uint8_t e4m3_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    uint32_t sign = bits >> 24 & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint8_t)(sign | E4M3_NAN);
    if (magnitude >= f32_bits(E4M3_MAX))
        return (uint8_t)(sign | 0x7eu);
    uint32_t code;
    if (magnitude < f32_bits(0.015625f)) {
        /* Floats around 2^14 are 2^-9 apart, as the subnormals are: the addition rounds. */
        code = f32_bits(f32_from_bits(magnitude) + 16384.0f) - f32_bits(16384.0f);
    } else {
        code = (magnitude + 0x7ffffu + (magnitude >> 20 & 1u) - (120u << 23)) >> 20;
    }
    return (uint8_t)(sign | code);
}

static inline uint16_t bf16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

#endif
