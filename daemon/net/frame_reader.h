/* Bytes and descriptors of one peer in, whole frames out. No sockets and no loop: whoever reads puts bytes where
 * frame_reader_space() says, tells how many with frame_reader_feed(), and takes frames until there is none.
 *
 *     p = frame_reader_space(&r, &n);          // at least one byte
 *     got = recvmsg(..., p, n, ...)
 *     frame_reader_feed(&r, got, fds, n_fds, ctrunc);
 *     while (frame_reader_next(&r, &frame, &err) == FRAME_READY) { use it; frame_reader_release(&r); }
 *
 * Memory: nothing before the first byte, then FRAME_BUFFER_BASE_BYTES; it doubles only when full of bytes that came, so
 * a frame that announces 8 MiB costs them only as they are sent. Above FRAME_BUFFER_KEEP_BYTES it is given back when
 * the frame is released.
 *
 * Descriptors: a client sends a frame's descriptors with the frame's first byte. On a stream socket the kernel may put
 * bytes from before that byte into the same read, and ends the read no later than the end of the piece that carried
 * descriptors; so it never merges two groups into one read, but a read does not tell at which of its bytes the group
 * came. Hence one queue per peer, first in first out, from which a frame takes n_fds when its header is complete: by
 * then they must have come. What is left in the queue while no header is under way came with no frame's first byte: a
 * surplus, which breaks the stream. A frame whose descriptors have not come, or were cut off (MSG_CTRUNC: the receiver
 * is out of descriptors), is delivered with fds_missing set and without any, so that it can be refused by itself.
 */
#ifndef MLA_DAEMON_NET_FRAME_READER_H
#define MLA_DAEMON_NET_FRAME_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "proto/limits.h"
#include "proto/wire.h"

#define FRAME_BUFFER_BASE_BYTES (8u << 10)
#define FRAME_BUFFER_KEEP_BYTES (64u << 10)

struct frame {
    struct mla_frame_header header;
    const uint8_t *body; /* header.body_len bytes, unaligned */
    int *fds;            /* n_fds of them; one that is kept is replaced by -1, release closes the others */
    size_t n_fds;        /* header.n_fds, or 0 when fds_missing */
    bool fds_missing;
    bool fds_cut; /* with fds_missing: the kernel could not hand them over */
    bool known;   /* a request type of this minor; others are at most MLA_CAP_CONTROL_BYTES long */
};

enum frame_result {
    FRAME_NONE,  /* needs more bytes */
    FRAME_READY, /* *out is filled, valid until frame_reader_release */
    FRAME_BROKEN /* the stream ends here for good: *err says why, *out has the header when there was one, else zeros */
};

struct frame_reader {
    uint8_t *buffer;
    size_t cap_bytes;
    size_t start, end; /* bytes that were fed and not yet released */
    struct mla_frame_header header;
    bool have_header; /* of the frame at start */
    bool greeted;     /* set by the owner when HELLO was accepted; before it no other type passes */
    bool fds_lost;    /* the kernel cut descriptors off in bytes that are not all accounted for */
    bool fds_missing; /* of the frame at start */
    bool fds_cut;
    bool broken;
    int pending[MLA_MAX_FDS_PENDING]; /* received, not claimed */
    size_t n_pending;
    int claimed[MLA_MAX_FDS_PER_FRAME]; /* of the frame at start */
    size_t n_claimed;
    struct mla_error error; /* when broken */
};

void frame_reader_init(struct frame_reader *r);

/* Frees the buffer and closes all descriptors that nobody kept. */
void frame_reader_free(struct frame_reader *r);

/* Where the next bytes go, and how many (at least 1). NULL when there is no memory. Call it only when
 * frame_reader_next returned FRAME_NONE. */
uint8_t *frame_reader_space(struct frame_reader *r, size_t *n_bytes);

/* n_bytes were written to the space, and n_fds descriptors came with them, which are the reader's from here on. lost:
 * MSG_CTRUNC was set. */
void frame_reader_feed(struct frame_reader *r, size_t n_bytes, const int *fds, size_t n_fds, bool lost);

/* FRAME_BROKEN, with code:
 *   PROTOCOL_ERROR    no magic; a type that only the daemon sends; descriptors that belong to no frame
 *   VERSION_MISMATCH  another major
 *   HELLO_REQUIRED    another type before greeted
 *   TOO_LARGE         body_len or n_fds over the cap, before any of it is stored
 *   NO_DESCRIPTORS    more than MLA_MAX_FDS_PENDING wait */
enum frame_result frame_reader_next(struct frame_reader *r, struct frame *out, struct mla_error *err);

/* The frame that frame_reader_next gave is done with. */
void frame_reader_release(struct frame_reader *r);

/* Whether frame_reader_next would return something else than FRAME_NONE. May parse a header, has no other effect. */
bool frame_reader_has_frame(struct frame_reader *r);

/* Whether bytes of an unfinished frame wait for more. */
bool frame_reader_partial(const struct frame_reader *r);

#endif
