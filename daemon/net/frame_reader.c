#include "daemon/net/frame_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_all(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

void frame_reader_init(struct frame_reader *r)
{
    memset(r, 0, sizeof(*r));
}

void frame_reader_free(struct frame_reader *r)
{
    close_all(r->pending, r->n_pending);
    close_all(r->claimed, r->n_claimed);
    free(r->buffer);
    frame_reader_init(r);
}

/* Bytes of the frame at start, header included. */
static size_t frame_bytes(const struct frame_reader *r)
{
    return MLA_WIRE_HEADER_BYTES + (size_t)r->header.body_len;
}

static bool resize(struct frame_reader *r, size_t cap_bytes)
{
    uint8_t *p = realloc(r->buffer, cap_bytes);
    if (!p)
        return false;
    r->buffer = p;
    r->cap_bytes = cap_bytes;
    return true;
}

uint8_t *frame_reader_space(struct frame_reader *r, size_t *n_bytes)
{
    if (!r->buffer && !resize(r, FRAME_BUFFER_BASE_BYTES))
        return NULL;
    if (r->start > 0) {
        memmove(r->buffer, r->buffer + r->start, r->end - r->start);
        r->end -= r->start;
        r->start = 0;
    }
    /* A full buffer means a known header: without one there are less than 24 bytes in it. */
    if (r->end == r->cap_bytes) {
        size_t need = r->have_header ? frame_bytes(r) : 0;
        size_t twice = 2 * r->cap_bytes;
        if (!resize(r, need > r->cap_bytes && need < twice ? need : twice))
            return NULL;
    }
    *n_bytes = r->cap_bytes - r->end;
    return r->buffer + r->end;
}

void frame_reader_feed(struct frame_reader *r, size_t n_bytes, const int *fds, size_t n_fds, bool lost)
{
    r->end += n_bytes;
    r->fds_lost = r->fds_lost || lost;
    for (size_t i = 0; i < n_fds; i++) {
        if (r->n_pending < MLA_MAX_FDS_PENDING && !r->broken) {
            r->pending[r->n_pending++] = fds[i];
            continue;
        }
        close(fds[i]);
        if (r->broken)
            continue;
        r->broken = true;
        mla_error_set(&r->error, MLA_NO_DESCRIPTORS, NULL, "more than %u file descriptors wait for their frames",
                      MLA_MAX_FDS_PENDING);
        r->error.limit = MLA_MAX_FDS_PENDING;
    }
}

static void claim_fds(struct frame_reader *r)
{
    size_t want = r->header.n_fds;
    if (want == 0)
        return;
    size_t take = want < r->n_pending ? want : r->n_pending;
    r->fds_missing = take < want;
    if (r->fds_missing) {
        close_all(r->pending, take);
        r->fds_cut = r->fds_lost;
        r->fds_lost = false;
    } else {
        memcpy(r->claimed, r->pending, take * sizeof(int));
        r->n_claimed = take;
    }
    r->n_pending -= take;
    memmove(r->pending, r->pending + take, r->n_pending * sizeof(int));
}

/* Reads the header at start and decides whether its frame may come in. */
static void parse_header(struct frame_reader *r)
{
    struct mla_frame_header *h = &r->header;
    struct mla_error *err = &r->error;
    if (mla_wire_unpack(r->buffer + r->start, h)) {
        r->broken = true;
        mla_error_set(err, MLA_PROTOCOL_ERROR, NULL, "a frame does not begin with the protocol's magic");
        return;
    }
    r->have_header = true;
    uint32_t cap = mla_wire_body_cap(h->type);
    if (cap == 0)
        cap = MLA_CAP_CONTROL_BYTES;
    if (h->major != MLA_PROTO_MAJOR) {
        mla_error_set(err, MLA_VERSION_MISMATCH, NULL, "the client speaks protocol major %u, this daemon major %u",
                      h->major, MLA_PROTO_MAJOR);
        err->value = h->major;
        err->limit = MLA_PROTO_MAJOR;
    } else if (h->type & 0xc000u) {
        mla_error_set(err, MLA_PROTOCOL_ERROR, NULL, "type 0x%04x (%s) is not a request", h->type,
                      mla_wire_type_name(h->type));
        err->value = h->type;
    } else if (!r->greeted && h->type != MLA_MSG_HELLO) {
        mla_error_set(err, MLA_HELLO_REQUIRED, NULL, "the first message is %s, not HELLO", mla_wire_type_name(h->type));
        err->value = h->type;
    } else if (h->body_len > cap) {
        mla_error_set(err, MLA_TOO_LARGE, NULL, "a body of %" PRIu32 " bytes; %s may have %" PRIu32, h->body_len,
                      mla_wire_type_name(h->type), cap);
        err->value = h->body_len;
        err->limit = cap;
    } else if (h->n_fds > MLA_MAX_FDS_PER_FRAME) {
        mla_error_set(err, MLA_TOO_LARGE, NULL, "%u file descriptors in one frame; %u are allowed", h->n_fds,
                      MLA_MAX_FDS_PER_FRAME);
        err->value = h->n_fds;
        err->limit = MLA_MAX_FDS_PER_FRAME;
    } else {
        claim_fds(r);
        return;
    }
    r->broken = true;
}

/* Goes on as far as the bytes reach. */
static enum frame_result advance(struct frame_reader *r)
{
    if (r->broken)
        return FRAME_BROKEN;
    size_t have = r->end - r->start;
    if (!r->have_header && have >= MLA_WIRE_HEADER_BYTES) {
        parse_header(r);
        if (r->broken)
            return FRAME_BROKEN;
    }
    if (r->have_header && have >= frame_bytes(r))
        return FRAME_READY;
    /* All bytes that came are accounted for. Only a header under way may still own descriptors. */
    if (r->have_header || have == 0) {
        r->fds_lost = false;
        if (r->n_pending > 0) {
            r->broken = true;
            mla_error_set(&r->error, MLA_PROTOCOL_ERROR, NULL, "%zu file descriptors belong to no frame", r->n_pending);
            r->error.value = r->n_pending;
            return FRAME_BROKEN;
        }
    }
    return FRAME_NONE;
}

enum frame_result frame_reader_next(struct frame_reader *r, struct frame *out, struct mla_error *err)
{
    enum frame_result result = advance(r);
    memset(out, 0, sizeof(*out));
    if (result == FRAME_NONE)
        return result;
    if (r->have_header)
        out->header = r->header;
    if (result == FRAME_BROKEN) {
        *err = r->error;
        return result;
    }
    out->body = r->buffer + r->start + MLA_WIRE_HEADER_BYTES;
    out->fds = r->claimed;
    out->n_fds = r->n_claimed;
    out->fds_missing = r->fds_missing;
    out->fds_cut = r->fds_cut;
    out->known = mla_wire_body_cap(r->header.type) != 0;
    return result;
}

void frame_reader_release(struct frame_reader *r)
{
    close_all(r->claimed, r->n_claimed);
    r->n_claimed = 0;
    r->fds_missing = r->fds_cut = false;
    r->have_header = false;
    r->start += frame_bytes(r);
    size_t left = r->end - r->start;
    if (r->cap_bytes > FRAME_BUFFER_KEEP_BYTES && left <= FRAME_BUFFER_BASE_BYTES) {
        memmove(r->buffer, r->buffer + r->start, left);
        r->start = 0;
        r->end = left;
        (void)resize(r, FRAME_BUFFER_BASE_BYTES); /* if it fails the larger one stays */
    } else if (left == 0) {
        r->start = r->end = 0;
    }
}

bool frame_reader_has_frame(struct frame_reader *r)
{
    return advance(r) != FRAME_NONE;
}

bool frame_reader_partial(const struct frame_reader *r)
{
    return r->have_header || r->end > r->start;
}
