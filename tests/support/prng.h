/* Seeded numbers for tests: the same on every machine. */
#ifndef MLA_TESTS_PRNG_H
#define MLA_TESTS_PRNG_H

#include <math.h>
#include <stdint.h>

struct prng {
    uint64_t state;
};

static inline uint64_t prng_u64(struct prng *p)
{
    p->state += 0x9e3779b97f4a7c15u;
    uint64_t z = p->state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* 0 .. n - 1. */
static inline uint32_t prng_below(struct prng *p, uint32_t n)
{
    return (uint32_t)((prng_u64(p) >> 32) * n >> 32);
}

/* [0, 1). */
static inline double prng_unit(struct prng *p)
{
    return (double)(prng_u64(p) >> 11) * 0x1p-53;
}

/* N(0, 1). */
static inline double prng_normal(struct prng *p)
{
    double u = 1.0 - prng_unit(p);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * prng_unit(p));
}

#endif
