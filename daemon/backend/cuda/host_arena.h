/* Memory that the loop writes and the GPU reads: pieces of one pinned block that is taken at start. First fit over a
 * list of free pieces; neighbours that are free become one. One thread at a time. */
#ifndef MLA_DAEMON_BACKEND_CUDA_HOST_ARENA_H
#define MLA_DAEMON_BACKEND_CUDA_HOST_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/util/list.h"

#define CU_ARENA_ALIGN 64u

struct cu_arena {
    unsigned char *base;
    size_t bytes;
    size_t used_bytes; /* with the headers */
    struct list free;  /* of struct cu_arena_piece, in no order */
};

/* The block is the caller's, 64-byte aligned, at least 256 bytes. */
void cu_arena_init(struct cu_arena *arena, void *base, size_t bytes);

/* 64-byte aligned and zeroed; a size of 0 is one byte. NULL when no free piece is large enough. */
void *cu_arena_alloc(struct cu_arena *arena, size_t bytes);

/* NULL is fine. */
void cu_arena_free(struct cu_arena *arena, void *memory);

#endif
