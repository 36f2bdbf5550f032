/* A bump allocator over memory of the caller's: what a decoded message points to lives here, so a hostile body can cost
 * no more bytes than the buffer has. Never grows, never frees single blocks, is reset per frame. Not thread safe. */
#ifndef MLA_PROTO_ARENA_H
#define MLA_PROTO_ARENA_H

#include <stddef.h>
#include <stdint.h>

struct mla_arena {
    uint8_t *base;
    size_t cap_bytes;
    size_t used_bytes;
};

/* buffer stays the caller's and must outlive all that is decoded into it. */
static inline void mla_arena_init(struct mla_arena *a, void *buffer, size_t cap_bytes)
{
    a->base = buffer;
    a->cap_bytes = cap_bytes;
    a->used_bytes = 0;
}

/* Everything taken from the arena is dead after this. */
static inline void mla_arena_reset(struct mla_arena *a)
{
    a->used_bytes = 0;
}

/* size bytes at a multiple of align (a power of two), not cleared; NULL when they do not fit. */
static inline void *mla_arena_take(struct mla_arena *a, size_t size, size_t align)
{
    size_t pad = (size_t)(-(uintptr_t)(a->base + a->used_bytes) & (align - 1));
    size_t left = a->cap_bytes - a->used_bytes;
    if (pad > left || size > left - pad)
        return NULL;
    void *p = a->base + a->used_bytes + pad;
    a->used_bytes += pad + size;
    return p;
}

#endif
