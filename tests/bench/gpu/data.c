#include "tests/bench/gpu/data.h"

#include <math.h>
#include <string.h>

#include "tests/bench/gpu/threads.h"
#include "tests/support/prng.h"

#define QUANTILES  65536
#define CHUNK_ROWS 64u

const struct data_set data_sets[DATA_SETS] = {
    {"mean 0", 0.0f, false},   {"mean 0.25", 0.25f, false},      {"mean 0.5", 0.5f, false},
    {"mean 1.0", 1.0f, false}, {"mean per channel", 0.0f, true},
};

uint8_t data_e4m3(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = bits >> 24 & 0x80;
    bits &= 0x7fffffff;
    if (bits >= 0x43e00000) /* 448 */
        return (uint8_t)(sign | 0x7e);
    if (bits < 0x3c800000) { /* 2^-6: subnormals are multiples of 2^-9, as floats around 2^14 are */
        float shifted = fabsf(x) + 16384.0f;
        memcpy(&bits, &shifted, sizeof bits);
        return (uint8_t)(sign | (bits - 0x46800000));
    }
    bits += 0x7ffff + (bits >> 20 & 1);
    return (uint8_t)(sign | ((bits >> 20) - (120u << 3)));
}

/* Middles of equal shares of N(0, 1), ascending: each one from the one before by Newton's method. */
static const float *quantiles(void)
{
    static float table[QUANTILES];
    if (table[0] != 0)
        return table;
    double z = 0;
    for (int i = QUANTILES / 2; i < QUANTILES; i++) {
        double above = 1 - (i + 0.5) / QUANTILES; /* what lies above z */
        for (int step = 0; step < 4; step++) {
            double density = exp(-z * z / 2) * 0.3989422804014327;
            z += (erfc(z * 0.7071067811865476) / 2 - above) / density;
        }
        table[i] = (float)z;
        table[QUANTILES - 1 - i] = (float)-z;
    }
    return table;
}

static void swap(int32_t *a, int32_t *b)
{
    int32_t t = *a;
    *a = *b;
    *b = t;
}

void data_permute(int32_t *entries, uint32_t pages, uint32_t block_pages)
{
    uint32_t groups = pages / block_pages;
    struct prng prng = {77};
    for (uint32_t r = 0; r < block_pages; r++) {
        uint32_t turn = prng_below(&prng, groups);
        for (uint32_t g = 0; g < groups; g++)
            entries[(size_t)g * block_pages + r] = (int32_t)(r + block_pages * ((g + turn) % groups));
    }
    for (uint32_t g = 0; g < groups; g++) {
        int32_t *group = entries + (size_t)g * block_pages;
        for (uint32_t i = block_pages; i > 1; i--)
            swap(&group[i - 1], &group[prng_below(&prng, i)]);
    }
}

struct filling {
    uint8_t *rows;
    size_t n_rows;
    uint64_t seed;
    const float *z;
    float mean[MLA_ABI_QK_DIM];
};

static void fill_chunk(void *argument, size_t chunk, size_t thread)
{
    const struct filling *f = argument;
    struct prng prng = {f->seed ^ (uint64_t)chunk << 24};
    size_t row = chunk * CHUNK_ROWS;
    size_t end = row + CHUNK_ROWS < f->n_rows ? row + CHUNK_ROWS : f->n_rows;
    (void)thread;
    for (; row < end; row++) {
        uint8_t *out = f->rows + row * MLA_ABI_QK_DIM;
        for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c += 4) {
            uint64_t bits = prng_u64(&prng);
            for (uint32_t k = 0; k < 4; k++)
                out[c + k] = data_e4m3(f->z[bits >> 16 * k & 0xffff] + f->mean[c + k]);
        }
    }
}

void data_fill(uint8_t *rows, size_t n_rows, const struct data_set *set, uint64_t seed)
{
    struct filling f = {.rows = rows, .n_rows = n_rows, .seed = seed, .z = quantiles()};
    struct prng means = {20261130};
    for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c++)
        f.mean[c] = set->per_channel ? (float)prng_normal(&means) : set->mean;
    threads_each((n_rows + CHUNK_ROWS - 1) / CHUNK_ROWS, fill_chunk, &f);
}
