/* What a worker's process of a benchmark does: decodes of given shapes, each on pages of its own in turn, by daemons or
 * by launching the kernels itself; it waits for each. A crew_fn.
 */
#ifndef MLA_TESTS_BENCH_SERVE_SERVED_H
#define MLA_TESTS_BENCH_SERVE_SERVED_H

#include "tests/bench/serve/crew.h"

#define SERVED_SHAPES_MAX  8
#define SERVED_DAEMONS_MAX 3

struct served_shape {
    uint32_t batch, q_len, kv_len;
};

struct served_config {
    const char *name;
    const char *sockets[SERVED_DAEMONS_MAX];
    size_t n_sockets;                     /* 0: launches itself, through libmla-kernels */
    uint64_t spin_us[SERVED_DAEMONS_MAX]; /* of the waits for each daemon */
    struct served_shape shapes[SERVED_SHAPES_MAX];
    size_t n_shapes;
    uint32_t heads;
};

/* RUN: decodes of shape `which`, by daemon number `daemon`. Of those that launch themselves KERNEL: value is the median
 * microseconds of a launch in graphs of several, by the reference method; turns_max: how many graphs. PACED: the same
 * when one launch begins every period_us (times_paced()), from start_ns to end_ns. */
enum served_op { SERVED_RUN = 1, SERVED_KERNEL, SERVED_PACED };

int served_main(struct crew_side *side, const void *config);

#endif
