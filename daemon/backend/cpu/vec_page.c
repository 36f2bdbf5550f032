/* The loops over a page. They work on memory of one thread alone, but for keys and queries that vec_e4m3_has_nan has
 * read before: ThreadSanitizer does not look at them. */
#include <math.h>
#include <string.h>

#include "daemon/backend/cpu/e4m3.h"
#include "daemon/backend/cpu/vec.h"
#include "kernels/abi/abi.h"

#if defined(__x86_64__)
#define VARIANTS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VARIANTS
#endif

#define PAGE  MLA_ABI_PAGE_TOKENS
#define V_DIM MLA_ABI_V_DIM

VARIANTS void vec_e4m3_to_f32(const uint8_t *restrict src, float *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = e4m3_to_f32_finite(src[i]);
}

/* exp(x) for x <= 0, 0 below -87 (so that no result is subnormal): 2^n * e^r with n = round(x / ln 2) and the Taylor
 * polynomial of degree 7, whose remainder is under 6e-9 for |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer and
 * leaves it in the low bits of the sum. */
static inline float exp_nonpositive(float x)
{
    const float magic = 12582912.0f;
    float clamped = x < -87.0f ? -87.0f : x;
    float t = clamped * 1.44269504f + magic;
    float n = t - magic;
    float r = (clamped - n * 0.693145752f) - n * 1.42860677e-6f;
    float e = 1.0f / 5040.0f;
    e = e * r + 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    float power = f32_from_bits((f32_bits(t) - f32_bits(magic) + 127u) << 23);
    return x < -87.0f ? 0.0f : e * power;
}

static inline float larger(float a, float b)
{
    return a > b ? a : b;
}

/* Trees of a fixed shape: 64 -> 32 -> 16 -> ... -> 1. */
static inline float max_of_page(const float *restrict s)
{
    float a[32];
    for (int j = 0; j < 32; j++)
        a[j] = larger(s[j], s[j + 32]);
    for (int j = 0; j < 16; j++)
        a[j] = larger(a[j], a[j + 16]);
    for (int j = 0; j < 8; j++)
        a[j] = larger(a[j], a[j + 8]);
    for (int j = 0; j < 4; j++)
        a[j] = larger(a[j], a[j + 4]);
    return larger(larger(a[0], a[2]), larger(a[1], a[3]));
}

static inline float sum_of_page(const float *restrict s)
{
    float a[32];
    for (int j = 0; j < 32; j++)
        a[j] = s[j] + s[j + 32];
    for (int j = 0; j < 16; j++)
        a[j] = a[j] + a[j + 16];
    for (int j = 0; j < 8; j++)
        a[j] = a[j] + a[j + 8];
    for (int j = 0; j < 4; j++)
        a[j] = a[j] + a[j + 4];
    return (a[0] + a[2]) + (a[1] + a[3]);
}

VARIANTS void vec_softmax_page(float *restrict s, size_t rows, const int32_t *restrict seen, float *restrict m,
                               double *restrict l, float *restrict o)
{
    for (size_t r = 0; r < rows; r++, s += PAGE, o += V_DIM) {
        if (seen[r] <= 0) {
            memset(s, 0, PAGE * sizeof *s);
            continue;
        }
        for (int32_t j = seen[r]; j < (int32_t)PAGE; j++)
            s[j] = -INFINITY;
        float top = max_of_page(s);
        if (top > m[r]) {
            /* exp_nonpositive(-inf) is 0: the first page clears what it finds, which is zero. */
            float factor = exp_nonpositive(m[r] - top);
            for (size_t i = 0; i < V_DIM; i++)
                o[i] *= factor;
            l[r] *= (double)factor;
            m[r] = top;
        }
        float base = m[r];
        for (size_t j = 0; j < PAGE; j++)
            s[j] = exp_nonpositive(s[j] - base);
        l[r] += (double)sum_of_page(s);
    }
}
