#include "tests/support/fp8.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

double fp8_decode(uint8_t bits)
{
    int exponent = bits >> 3 & 0xf;
    int mantissa = bits & 7;
    double sign = bits & 0x80 ? -1.0 : 1.0;
    if (exponent == 15 && mantissa == 7)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(mantissa, -9);
    return sign * ldexp(8 + mantissa, exponent - 7 - 3);
}

const double *fp8_table(void)
{
    static double table[256];
    static bool filled;
    if (!filled) {
        for (int i = 0; i < 256; i++)
            table[i] = fp8_decode((uint8_t)i);
        filled = true;
    }
    return table;
}

/* Exponent of the spacing around |x| in a binary format with this many mantissa bits and this least normal exponent. */
static int spacing_exponent(double x, int mantissa_bits, int min_exponent)
{
    int e;
    if (x == 0)
        return min_exponent - mantissa_bits;
    frexp(x, &e); /* |x| = f * 2^e, f in [0.5, 1) */
    e--;
    if (e < min_exponent)
        e = min_exponent;
    return e - mantissa_bits;
}

uint8_t fp8_encode(double x)
{
    if (isnan(x))
        return FP8_NAN;
    uint8_t sign = signbit(x) ? 0x80 : 0;
    double a = fabs(x);
    if (a >= FP8_MAX)
        return sign | 0x7e;
    int e = spacing_exponent(a, 3, -6);
    double steps = nearbyint(ldexp(a, -e)); /* the default rounding mode is nearest even */
    if (steps < 8)
        return sign | (uint8_t)steps; /* subnormal: exponent field 0 */
    if (steps == 16) {
        steps = 8;
        e++;
    }
    if (e + 3 > 8 || (e + 3 == 8 && steps == 15))
        return sign | 0x7e;
    return sign | (uint8_t)((e + 3 + 7) << 3) | (uint8_t)((int)steps - 8);
}

double fp8_half_ulp(double x)
{
    return ldexp(0.5, spacing_exponent(x, 3, -6));
}

double bf16_decode(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof(f));
    return f;
}

double bf16_half_ulp(double x)
{
    return ldexp(0.5, spacing_exponent(x, 7, -126));
}
