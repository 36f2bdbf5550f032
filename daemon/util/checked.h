/* Arithmetic on sizes and offsets that came from a peer. Each returns 0, or -EOVERFLOW and leaves *out alone. */
#ifndef MLA_UTIL_CHECKED_H
#define MLA_UTIL_CHECKED_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

static inline int mla_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return -EOVERFLOW;
    *out = r;
    return 0;
}

static inline int mla_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return -EOVERFLOW;
    *out = r;
    return 0;
}

/* *out = a * b + c: the end of row a of stride b that holds c bytes. */
static inline int mla_mul_add_u64(uint64_t a, uint64_t b, uint64_t c, uint64_t *out)
{
    uint64_t r;
    if (mla_mul_u64(a, b, &r))
        return -EOVERFLOW;
    return mla_add_u64(r, c, out);
}

/* Whether [offset, offset + bytes) lies inside [0, size). An empty range may stand at size. */
static inline bool mla_range_fits(uint64_t offset, uint64_t bytes, uint64_t size)
{
    return offset <= size && bytes <= size - offset;
}

#endif
