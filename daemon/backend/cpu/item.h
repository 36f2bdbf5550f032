/* One work item: the rows of a tile against a range of pages. */
#ifndef MLA_DAEMON_BACKEND_CPU_ITEM_H
#define MLA_DAEMON_BACKEND_CPU_ITEM_H

#include <stdbool.h>
#include <stdint.h>

struct cpu_launch;

/* Working memory of one thread, 64-byte aligned, for tiles of 256 rows. */
struct cpu_scratch {
    float *q;         /* [256][576] */
    float *k;         /* [64][576]: one page */
    float *s;         /* [256][64]: scores, then exp(score - max) */
    float *o;         /* [256][512] */
    float *m;         /* [256]: largest score so far */
    double *l;        /* [256]: sum of exp(score - max) */
    int32_t *visible; /* [256]: keys that a row sees, counted from the start of the sequence */
    int32_t *seen;    /* [256]: keys of the page at hand that it sees */
    bool *q_nan;      /* [256]: the row has a NaN in Q */
    bool *poisoned;   /* [256]: the row has seen a key with a NaN */
    void *memory;
};

/* 0 or -ENOMEM. */
int cpu_scratch_open(struct cpu_scratch *x);
void cpu_scratch_close(struct cpu_scratch *x);

/* Runs an item: writes O and LSE, or a partial. Faults go into the sequence's status word.
 *
 * Bits: sgemm is called with whole pages and with 64, 128 or 256 rows (the fewest that hold the tile's), both padded
 * with zeros, so that a row's result follows from its own Q, its place in the tile and the pages alone. */
void cpu_item_run(struct cpu_launch *launch, uint32_t index, struct cpu_scratch *x);

#endif
