/* Number formats of the data contract, written from their definitions for tests: nothing here is shared with the code
 * under test.
 *
 * e4m3 FN: sign, 4 exponent bits with bias 7, 3 mantissa bits; exponent 0 is subnormal (mantissa * 2^-9); 0x7f and 0xff
 * are NaN; there is no infinity; the largest number is 448.
 */
#ifndef MLA_TESTS_FP8_H
#define MLA_TESTS_FP8_H

#include <stdint.h>

#define FP8_NAN 0x7fu
#define FP8_ONE 0x38u
#define FP8_MAX 448.0

double fp8_decode(uint8_t bits);

/* All 256 values, for inner loops. */
const double *fp8_table(void);

/* Nearest e4m3, ties to even, saturated to +-448; NaN becomes 0x7f. */
uint8_t fp8_encode(double x);

/* Half the distance between neighbours around |x| (x within the format's range): the largest error of a correct
 * rounding to nearest. */
double fp8_half_ulp(double x);

double bf16_decode(uint16_t bits);
double bf16_half_ulp(double x);

#endif
