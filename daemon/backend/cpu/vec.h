/* The loops over many elements outside the matrix products, compiled for AVX-512, AVX2 and the base instruction set and
 * chosen when the program starts. All give the same bits: no contraction, and every sum has a fixed order. */
#ifndef MLA_DAEMON_BACKEND_CPU_VEC_H
#define MLA_DAEMON_BACKEND_CPU_VEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether any of n e4m3 codes is NaN; n is a multiple of 8. */
bool vec_e4m3_has_nan(const uint8_t *src, size_t n);

/* Exact conversion of n codes without NaN among them. */
void vec_e4m3_to_f32(const uint8_t *src, float *dst, size_t n);

/* One page of the online softmax. In: s[rows][64] scores; seen[rows], how many of the 64 keys each row sees; the state
 * after the pages before: m (largest score, -inf at first), l (sum of exp(score - m)) and o[rows][512] (sum of
 * exp(score - m) * v). Out: s holds exp(score - m) for the keys seen and 0 for the others, m and l are brought up to
 * date, o is rescaled to the new m. Each row is worked on alone. */
void vec_softmax_page(float *s, size_t rows, const int32_t *seen, float *m, double *l, float *o);

/* x[i] *= a, and y[i] += a * x[i]. */
void vec_scale(float *x, size_t n, float a);
void vec_add_scaled(float *y, const float *x, size_t n, float a);

/* Rounding to nearest even; e4m3 saturates. */
void vec_f32_to_e4m3(const float *src, uint8_t *dst, size_t n);
void vec_f32_to_bf16(const float *src, uint16_t *dst, size_t n);

#endif
