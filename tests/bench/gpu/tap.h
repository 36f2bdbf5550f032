/* A driver table that libmla-kernels launches through, so that a graph can be captured of some of a launch's kernels
 * alone: it knows each kernel by the name of its entry point. There is one at a time.
 */
#ifndef MLA_TESTS_BENCH_GPU_TAP_H
#define MLA_TESTS_BENCH_GPU_TAP_H

#include <stdint.h>

#include "kernels/host/cuda_driver.h"

enum tap_part {
    TAP_PREPARE, /* "prepare" is in the name */
    TAP_DECODE,
    TAP_REDUCE,
    TAP_OTHER, /* adapters: what packs and unpacks */
    TAP_PARTS
};
#define TAP_ALL ((1u << TAP_PARTS) - 1)

/* real outlives it. */
const struct cuda_driver *tap_open(const struct cuda_driver *real);

/* From here on kernels of these parts (bits) are launched and the others left out; counts start anew. */
void tap_let(unsigned parts);
unsigned tap_launches(enum tap_part part);

/* From here on what the driver's launch calls take is added to ns[TAP_PARTS]; NULL: no more. */
void tap_time(uint64_t *ns);

#endif
