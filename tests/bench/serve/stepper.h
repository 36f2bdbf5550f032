/* What a worker's process of mla-bench step does: decode steps of several layers, each a product with weights and the
 * attention of one sequence, as one CUDA graph. A crew_fn.
 */
#ifndef MLA_TESTS_BENCH_SERVE_STEPPER_H
#define MLA_TESTS_BENCH_SERVE_STEPPER_H

#include "tests/bench/serve/crew.h"

#define STEPPER_LENGTHS_MAX 4
#define STEPPER_LAYERS_MAX  64

struct stepper_config {
    const char *name;
    const char *socket;                    /* NULL: launches the attention itself, through libmla-kernels */
    uint32_t lengths[STEPPER_LENGTHS_MAX]; /* keys of the sequence */
    size_t n_lengths;
    uint32_t layers, heads, q_len, weight_rows;
    uint64_t spin_us; /* of the waits for answers */
};

/* RUN: steps of length number `which`, one after the other. WEIGHTS: value is the median microseconds of a layer in
 * graphs of the products alone; turns_max: how many graphs. ABANDON: launches the graph of length 0
 * and sends no step, so that its stream waits until the daemon dies; end_ns: when the stream had gone through. */
enum stepper_op { STEPPER_RUN = 1, STEPPER_WEIGHTS, STEPPER_ABANDON };

int stepper_main(struct crew_side *side, const void *config);

#endif
