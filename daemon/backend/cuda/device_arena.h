/* Device memory that the loop gives out: chunks of one block that is taken at start. What is taken is known by a bit a
 * chunk, on the host, as the block itself is the GPU's to read. First fit. One thread at a time. */
#ifndef MLA_DAEMON_BACKEND_CUDA_DEVICE_ARENA_H
#define MLA_DAEMON_BACKEND_CUDA_DEVICE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#define CU_CHUNK_BYTES 1024u
#define CU_CHUNKS      (1u << 14) /* of the block: 16 MiB */

struct cu_device_arena {
    uint64_t base;
    uint32_t most; /* no more chunks are side by side: so what was refused is not looked for again and again */
    uint64_t used[CU_CHUNKS / 64];
};

/* base: of CU_CHUNKS * CU_CHUNK_BYTES, not 0. */
void cu_device_arena_init(struct cu_device_arena *arena, uint64_t base);

/* The address of whole chunks, with what was there before; a size of 0 is one byte. 0 when none are side by side. */
uint64_t cu_device_arena_alloc(struct cu_device_arena *arena, size_t bytes);

/* bytes: as asked for. */
void cu_device_arena_free(struct cu_device_arena *arena, uint64_t address, size_t bytes);

#endif
