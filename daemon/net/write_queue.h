/* Frames that wait for a peer's socket: one contiguous buffer, so that a flush is one send(2) however many frames wait.
 * Encoders write straight into it: reserve, encode, commit. Nothing is allocated while the queue stays within
 * WRITE_QUEUE_KEEP_BYTES; what a burst took beyond is given back when the queue has drained. */
#ifndef MLA_DAEMON_NET_WRITE_QUEUE_H
#define MLA_DAEMON_NET_WRITE_QUEUE_H

#include <stddef.h>
#include <stdint.h>

#define WRITE_QUEUE_BASE_BYTES (4u << 10)
#define WRITE_QUEUE_KEEP_BYTES (64u << 10)

struct write_queue {
    uint8_t *buffer;
    size_t cap_bytes;
    size_t start, end; /* bytes that wait */
};

static inline size_t write_queue_bytes(const struct write_queue *q)
{
    return q->end - q->start;
}

/* All zeros is an empty queue. */
void write_queue_free(struct write_queue *q);

/* At least n_bytes of room behind the last byte, *room of them in all; NULL when there is no memory. */
uint8_t *write_queue_reserve(struct write_queue *q, size_t n_bytes, size_t *room);

/* The first n_bytes of the room are part of the queue now. */
void write_queue_commit(struct write_queue *q, size_t n_bytes);

/* The first n_bytes of the queue were sent. */
void write_queue_consume(struct write_queue *q, size_t n_bytes);

#endif
