#include "daemon/backend/cuda/device_arena.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

static size_t chunks_of(size_t bytes)
{
    return bytes / CU_CHUNK_BYTES + (bytes % CU_CHUNK_BYTES != 0 || bytes == 0);
}

/* The first chunk from this one on that is taken, or is not; CU_CHUNKS: none. */
static uint32_t next(const struct cu_device_arena *arena, uint32_t chunk, bool used)
{
    while (chunk < CU_CHUNKS) {
        uint64_t word = arena->used[chunk / 64];
        uint64_t such = (used ? word : ~word) >> chunk % 64;
        if (such != 0)
            return chunk + (uint32_t)__builtin_ctzll(such);
        chunk = (chunk / 64 + 1) * 64;
    }
    return CU_CHUNKS;
}

static void mark(struct cu_device_arena *arena, uint32_t first, uint32_t n)
{
    for (uint32_t chunk = first; chunk < first + n; chunk++)
        arena->used[chunk / 64] ^= UINT64_C(1) << chunk % 64;
}

void cu_device_arena_init(struct cu_device_arena *arena, uint64_t base)
{
    memset(arena, 0, sizeof *arena);
    arena->base = base;
    arena->most = CU_CHUNKS;
}

uint64_t cu_device_arena_alloc(struct cu_device_arena *arena, size_t bytes)
{
    size_t n = chunks_of(bytes);
    if (n > arena->most)
        return 0;
    for (uint32_t end, first = next(arena, 0, false); first < CU_CHUNKS; first = next(arena, end, false)) {
        end = next(arena, first, true);
        if (end - first < n)
            continue;
        mark(arena, first, (uint32_t)n);
        return arena->base + (uint64_t)first * CU_CHUNK_BYTES;
    }
    arena->most = (uint32_t)n - 1;
    return 0;
}

void cu_device_arena_free(struct cu_device_arena *arena, uint64_t address, size_t bytes)
{
    uint32_t first = (uint32_t)((address - arena->base) / CU_CHUNK_BYTES), n = (uint32_t)chunks_of(bytes);
    assert(first + n <= CU_CHUNKS && next(arena, first, false) >= first + n);
    mark(arena, first, n);
    arena->most = CU_CHUNKS;
}
