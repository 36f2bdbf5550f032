/* The loops over a row. */
#include <string.h>

#include "daemon/backend/cpu/e4m3.h"
#include "daemon/backend/cpu/vec.h"

/* The loader chooses among clones before the thread sanitizer is ready for its calls; such a build has the base one. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define VARIANTS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VARIANTS
#endif

bool vec_e4m3_has_nan(const uint8_t *src, size_t n)
{
    /* Eight codes at a time: with the sign cleared, adding 1 carries into bit 7 for 0x7f alone. */
    uint64_t found = 0;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t codes;
        memcpy(&codes, src + i, sizeof codes);
        found |= (codes & UINT64_C(0x7f7f7f7f7f7f7f7f)) + UINT64_C(0x0101010101010101);
    }
    return (found & UINT64_C(0x8080808080808080)) != 0;
}

VARIANTS void vec_scale(float *restrict x, size_t n, float a)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= a;
}

VARIANTS void vec_add_scaled(float *restrict y, const float *restrict x, size_t n, float a)
{
    for (size_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

VARIANTS void vec_f32_to_e4m3(const float *restrict src, uint8_t *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = e4m3_from_f32(src[i]);
}

VARIANTS void vec_f32_to_bf16(const float *restrict src, uint16_t *restrict dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}
