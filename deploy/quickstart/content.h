/* What the quick start's KV cache and queries hold: a function of a seed, so that a process which has never mapped the
 * cache's memory can still say what must be in it. Values are e4m3 numbers drawn from N(0, 1). */
#ifndef MLA_QUICKSTART_CONTENT_H
#define MLA_QUICKSTART_CONTENT_H

#include <stddef.h>
#include <stdint.h>

#define CONTENT_PAGE_BYTES ((size_t)64 * 576)

/* Draws the table that the next two use. Once per process. */
void content_init(uint64_t seed);

/* n_pages consecutive pages of one layer. */
void content_pages(uint64_t seed, uint32_t layer, uint64_t n_pages, uint8_t *out);

/* bytes e4m3 numbers, others for every stream. */
void content_queries(uint64_t seed, uint64_t stream, size_t bytes, uint8_t *out);

/* The numbers 0 .. n - 1 in the seed's order: page ids as an allocator in long use gives them. */
void content_shuffle(uint64_t seed, uint32_t n, uint32_t *out);

#endif
