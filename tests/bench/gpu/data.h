/* Random e4m3 rows, made fast: gigabytes of cache must be there in a second. */
#ifndef MLA_TESTS_BENCH_GPU_DATA_H
#define MLA_TESTS_BENCH_GPU_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi/abi.h"

/* KV ~ N(mean, 1) per channel: the same mean for all of them, or one drawn per channel from N(0, 1). */
struct data_set {
    const char *name;
    float mean;
    bool per_channel;
};

/* The five of the accuracy bar; the first, mean 0, is what is timed. */
#define DATA_SETS 5
extern const struct data_set data_sets[DATA_SETS];

/* Nearest e4m3, ties to even, saturated. x is a number. */
uint8_t data_e4m3(float x);

/* A permutation of 0 .. pages - 1 (a multiple of block_pages) whose every aligned run of block_pages entries has each
 * remainder by block_pages once. */
void data_permute(int32_t *entries, uint32_t pages, uint32_t block_pages);

/* Rows of 576 elements, from all CPUs; the same bytes for the same seed on every machine. */
void data_fill(uint8_t *rows, size_t n_rows, const struct data_set *set, uint64_t seed);

#endif
