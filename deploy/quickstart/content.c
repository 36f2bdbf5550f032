#include "deploy/quickstart/content.h"

#include "tests/support/fp8.h"
#include "tests/support/prng.h"

#define DRAWS 4096u

static uint8_t draws[DRAWS];

void content_init(uint64_t seed)
{
    struct prng prng = {seed};
    for (uint32_t i = 0; i < DRAWS; i++)
        draws[i] = fp8_encode(prng_normal(&prng));
}

/* Five draws of 12 bits from each number. */
static void fill(struct prng prng, size_t bytes, uint8_t *out)
{
    size_t i = 0;
    while (i < bytes) {
        uint64_t bits = prng_u64(&prng);
        for (int k = 0; k < 5 && i < bytes; k++, bits >>= 12)
            out[i++] = draws[bits % DRAWS];
    }
}

void content_pages(uint64_t seed, uint32_t layer, uint64_t n_pages, uint8_t *out)
{
    for (uint64_t page = 0; page < n_pages; page++) {
        struct prng prng = {seed ^ ((uint64_t)layer + 1) << 48 ^ page << 16};
        prng.state = prng_u64(&prng); /* neighbours start far apart */
        fill(prng, CONTENT_PAGE_BYTES, out + page * CONTENT_PAGE_BYTES);
    }
}

void content_queries(uint64_t seed, uint64_t stream, size_t bytes, uint8_t *out)
{
    struct prng prng = {~seed ^ stream << 20};
    prng.state = prng_u64(&prng);
    fill(prng, bytes, out);
}

void content_shuffle(uint64_t seed, uint32_t n, uint32_t *out)
{
    struct prng prng = {seed + 1};
    for (uint32_t i = 0; i < n; i++)
        out[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = prng_below(&prng, i);
        uint32_t swap = out[i - 1];
        out[i - 1] = out[k];
        out[k] = swap;
    }
}
