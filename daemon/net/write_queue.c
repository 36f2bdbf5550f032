#include "daemon/net/write_queue.h"

#include <stdlib.h>
#include <string.h>

void write_queue_free(struct write_queue *q)
{
    free(q->buffer);
    memset(q, 0, sizeof(*q));
}

static void move_to_front(struct write_queue *q)
{
    size_t n = write_queue_bytes(q);
    if (q->start > 0 && n > 0)
        memmove(q->buffer, q->buffer + q->start, n);
    q->start = 0;
    q->end = n;
}

uint8_t *write_queue_reserve(struct write_queue *q, size_t n_bytes, size_t *room)
{
    if (q->cap_bytes - q->end < n_bytes) {
        size_t need = write_queue_bytes(q) + n_bytes;
        /* Moving is paid for by the bytes sent since the last move, when those are half of the buffer. */
        if (q->start >= q->cap_bytes / 2)
            move_to_front(q);
        if (q->cap_bytes - q->end < n_bytes) {
            size_t cap = q->cap_bytes ? q->cap_bytes : WRITE_QUEUE_BASE_BYTES;
            while (cap < need)
                cap *= 2;
            if (cap > q->cap_bytes) {
                uint8_t *p = realloc(q->buffer, cap);
                if (!p)
                    return NULL;
                q->buffer = p;
                q->cap_bytes = cap;
            }
            move_to_front(q);
        }
    }
    *room = q->cap_bytes - q->end;
    return q->buffer + q->end;
}

void write_queue_commit(struct write_queue *q, size_t n_bytes)
{
    q->end += n_bytes;
}

void write_queue_consume(struct write_queue *q, size_t n_bytes)
{
    q->start += n_bytes;
    if (q->start < q->end)
        return;
    q->start = q->end = 0;
    if (q->cap_bytes > WRITE_QUEUE_KEEP_BYTES)
        write_queue_free(q);
}
