#include "daemon/util/ring.h"

#include <errno.h>
#include <string.h>

int mla_ring_init(struct mla_ring *ring, void *storage, size_t record_bytes, size_t capacity)
{
    if (storage == NULL || record_bytes == 0 || capacity == 0 || (capacity & (capacity - 1)) != 0)
        return -EINVAL;
    ring->storage = storage;
    ring->record_bytes = record_bytes;
    ring->mask = capacity - 1;
    ring->seen_tail = 0;
    ring->seen_head = 0;
    atomic_init(&ring->head, 0);
    atomic_init(&ring->tail, 0);
    return 0;
}

static unsigned char *slot(const struct mla_ring *ring, size_t position)
{
    return ring->storage + (position & ring->mask) * ring->record_bytes;
}

bool mla_ring_push(struct mla_ring *ring, const void *record)
{
    size_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    if (tail - ring->seen_head > ring->mask) {
        /* Acquire: the popper has finished reading the slot before it moved head past it. */
        ring->seen_head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (tail - ring->seen_head > ring->mask)
            return false;
    }
    memcpy(slot(ring, tail), record, ring->record_bytes);
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

bool mla_ring_empty(const struct mla_ring *ring)
{
    return atomic_load_explicit(&ring->head, memory_order_relaxed) ==
           atomic_load_explicit(&ring->tail, memory_order_acquire);
}

bool mla_ring_pop(struct mla_ring *ring, void *record)
{
    size_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    if (head == ring->seen_tail) {
        ring->seen_tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
        if (head == ring->seen_tail)
            return false;
    }
    memcpy(record, slot(ring, head), ring->record_bytes);
    atomic_store_explicit(&ring->head, head + 1, memory_order_release);
    return true;
}
