/* One batch on the pool: all items, then all reductions, then the status words and done words. */
#ifndef MLA_DAEMON_BACKEND_CPU_LAUNCH_H
#define MLA_DAEMON_BACKEND_CPU_LAUNCH_H

#include <stdatomic.h>
#include <stdint.h>

#include "daemon/backend/backend.h"
#include "daemon/backend/cpu/item.h"

#define CPU_TILE_ROWS         256u
#define CPU_REDUCE_CHUNK_ROWS 32u

struct cpu_launch {
    const struct be_batch *batch;
    float *partial_o;            /* [partial_rows][512], see abi.h */
    float *partial_lse;          /* [partial_rows] */
    struct cpu_scratch *scratch; /* one per worker */
    _Atomic uint64_t next;       /* work is handed out in order */
};

/* Both are pool functions with a struct cpu_launch as context; next is 0 when they start. */
void cpu_launch_items(void *launch, uint32_t worker);
void cpu_launch_reduces(void *launch, uint32_t worker);

/* Status words into the callers' memory, then the done words in order. Device thread. */
void cpu_launch_finish(const struct be_batch *batch);

/* Records a fault of a sequence: the smallest code << 32 | index of all that are reported stays, whatever the order. */
void cpu_fault(const struct be_batch *batch, uint32_t seq, enum mla_status code, uint32_t index);

#endif
