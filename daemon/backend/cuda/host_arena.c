#include "daemon/backend/cuda/host_arena.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

/* In front of every piece, which follow each other without gaps. */
struct cu_arena_piece {
    struct list node;  /* on the free list, or on none */
    size_t bytes;      /* of the piece with this header */
    size_t prev_bytes; /* of the piece before; 0: this is the first */
    bool used;
    unsigned char rest[CU_ARENA_ALIGN - 2 * sizeof(void *) - 2 * sizeof(size_t) - 1];
};

_Static_assert(sizeof(struct cu_arena_piece) == CU_ARENA_ALIGN, "pieces keep the alignment");

#define HEADER sizeof(struct cu_arena_piece)

static struct cu_arena_piece *piece_at(unsigned char *at)
{
    return (struct cu_arena_piece *)(void *)at;
}

/* The piece behind, or NULL. */
static struct cu_arena_piece *behind(const struct cu_arena *arena, struct cu_arena_piece *piece)
{
    unsigned char *end = (unsigned char *)piece + piece->bytes;
    return end == arena->base + arena->bytes ? NULL : piece_at(end);
}

static void set_bytes(const struct cu_arena *arena, struct cu_arena_piece *piece, size_t bytes)
{
    piece->bytes = bytes;
    struct cu_arena_piece *next = behind(arena, piece);
    if (next)
        next->prev_bytes = bytes;
}

void cu_arena_init(struct cu_arena *arena, void *base, size_t bytes)
{
    arena->base = base;
    arena->bytes = bytes & ~(size_t)(CU_ARENA_ALIGN - 1);
    arena->used_bytes = 0;
    list_init(&arena->free);
    struct cu_arena_piece *piece = piece_at(arena->base);
    memset(piece, 0, HEADER);
    piece->bytes = arena->bytes;
    list_push_back(&arena->free, &piece->node);
}

void *cu_arena_alloc(struct cu_arena *arena, size_t bytes)
{
    if (bytes > arena->bytes)
        return NULL;
    size_t need = HEADER + ((bytes == 0 ? 1 : bytes) + CU_ARENA_ALIGN - 1) / CU_ARENA_ALIGN * CU_ARENA_ALIGN;
    list_for_each (node, &arena->free) {
        struct cu_arena_piece *piece = list_entry(node, struct cu_arena_piece, node);
        if (piece->bytes < need)
            continue;
        size_t rest = piece->bytes - need;
        if (rest > HEADER) {
            /* What is left takes this piece's place on the list. */
            struct cu_arena_piece *left = piece_at((unsigned char *)piece + need);
            memset(left, 0, HEADER);
            piece->bytes = need;
            left->prev_bytes = need;
            set_bytes(arena, left, rest);
            list_insert_before(&piece->node, &left->node);
        }
        list_del(&piece->node);
        piece->used = true;
        arena->used_bytes += piece->bytes;
        void *memory = (unsigned char *)piece + HEADER;
        memset(memory, 0, piece->bytes - HEADER);
        return memory;
    }
    return NULL;
}

void cu_arena_free(struct cu_arena *arena, void *memory)
{
    if (!memory)
        return;
    struct cu_arena_piece *piece = piece_at((unsigned char *)memory - HEADER);
    assert(piece->used);
    piece->used = false;
    arena->used_bytes -= piece->bytes;
    struct cu_arena_piece *next = behind(arena, piece);
    if (next && !next->used) {
        list_del(&next->node);
        set_bytes(arena, piece, piece->bytes + next->bytes);
    }
    if (piece->prev_bytes != 0) {
        struct cu_arena_piece *prev = piece_at((unsigned char *)piece - piece->prev_bytes);
        if (!prev->used) {
            set_bytes(arena, prev, prev->bytes + piece->bytes);
            return;
        }
    }
    list_push_front(&arena->free, &piece->node);
}
