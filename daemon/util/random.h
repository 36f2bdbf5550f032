/* Random numbers from the kernel. Any thread. */
#ifndef MLA_UTIL_RANDOM_H
#define MLA_UTIL_RANDOM_H

#include <stddef.h>
#include <stdint.h>

/* Fills buf. 0, or -errno of getrandom(2). */
int mla_random_bytes(void *buf, size_t bytes);

/* An object id or boot nonce: 64 random bits, never 0. 0, or -errno. */
int mla_random_id(uint64_t *id);

#endif
