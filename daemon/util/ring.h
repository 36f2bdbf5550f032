/* Bounded queue of fixed-size records between exactly two threads, one that pushes and one that pops (loop and device
 * thread). Wait-free; waking the other side is the caller's business. What the pusher wrote before a push is visible to
 * the popper after the pop that returns the record. */
#ifndef MLA_UTIL_RING_H
#define MLA_UTIL_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define MLA_CACHE_LINE_BYTES 64

struct mla_ring {
    unsigned char *storage; /* owned by the caller, outlives the ring */
    size_t record_bytes;
    size_t mask;
    /* Positions count records for ever and wrap with size_t. Each side has its own line, with its last sight of the
     * other side's position, so that a push or pop touches the other side's line only when it seems full or empty.
     * Padding and not alignment keeps the lines apart, so that rings may lie in memory from malloc. */
    unsigned char apart_head[MLA_CACHE_LINE_BYTES];
    _Atomic size_t head; /* next to pop */
    size_t seen_tail;
    unsigned char apart_tail[MLA_CACHE_LINE_BYTES];
    _Atomic size_t tail; /* next to push */
    size_t seen_head;
    unsigned char apart_rest[MLA_CACHE_LINE_BYTES];
};

/* capacity: records, a power of two; storage holds capacity * record_bytes bytes. 0, or -EINVAL. */
int mla_ring_init(struct mla_ring *ring, void *storage, size_t record_bytes, size_t capacity);

/* Copies one record in; false when the ring is full. Pushing thread only. */
bool mla_ring_push(struct mla_ring *ring, const void *record);

/* Copies the oldest record out; false when the ring is empty. Popping thread only. */
bool mla_ring_pop(struct mla_ring *ring, void *record);

/* Whether there is nothing to pop, as far as the popping thread can see. */
bool mla_ring_empty(const struct mla_ring *ring);

#endif
