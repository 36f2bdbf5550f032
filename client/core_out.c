/* The core's bytes to send. */
#include "client/core.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUT_BYTES (16u << 10)

static int refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t value, uint64_t limit,
                  const char *text)
{
    mla_error_set(err, code, field, "%s", text);
    err->value = value;
    err->limit = limit;
    return 1;
}

/* Room for n more bytes behind out_tail. */
static int out_reserve(struct mlac_core *core, size_t n)
{
    size_t held = core->out_tail - core->out_head;
    if (n <= core->out_cap - core->out_tail)
        return 0;
    if (core->out_head && held + n <= core->out_cap) {
        memmove(core->out, core->out + core->out_head, held);
    } else {
        size_t cap = core->out_cap ? core->out_cap : OUT_BYTES;
        while (cap < held + n)
            cap *= 2;
        uint8_t *bytes = malloc(cap);
        if (!bytes)
            return -ENOMEM;
        if (held)
            memcpy(bytes, core->out + core->out_head, held);
        free(core->out);
        core->out = bytes;
        core->out_cap = cap;
    }
    core->out_head = 0;
    core->out_tail = held;
    return 0;
}

static void fds_drop_last(struct mlac_core *core, size_t n)
{
    while (n--)
        close(core->fds[--core->fds_tail].fd);
}

static int fds_push(struct mlac_core *core, uint64_t at_byte, int fd, struct mla_error *err)
{
    if (core->fds_head == core->fds_tail)
        core->fds_head = core->fds_tail = 0;
    if (core->fds_tail == core->fds_cap) {
        size_t cap = core->fds_cap ? 2 * core->fds_cap : 8;
        struct mlac_fd *fds = realloc(core->fds, cap * sizeof(*fds));
        if (!fds)
            return refuse(err, MLA_OUT_OF_MEMORY, NULL, 0, 0, "no memory for a descriptor to send");
        core->fds = fds;
        core->fds_cap = cap;
    }
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        return refuse(err, MLA_SYSTEM_ERROR, "fd", (uint64_t)errno, 0, "the descriptor cannot be duplicated");
    }
    core->fds[core->fds_tail++] = (struct mlac_fd){.at_byte = at_byte, .fd = copy};
    return 0;
}

#define SMALL_BYTES 512u /* bodies of most requests */

int mlac_core_send(struct mlac_core *core, const struct mlac_request *r, const struct mla_message *msg, const int *fds,
                   size_t n_fds, struct mla_error *err)
{
    uint8_t small[SMALL_BYTES];
    size_t body;
    bool is_small = mla_codec_encode(msg, small, sizeof(small), &body) == 0; /* else body is what it takes */
    uint32_t cap = mla_wire_body_cap(msg->type);
    if (body > cap)
        return refuse(err, MLA_TOO_LARGE, NULL, body, cap, "the request is larger than a frame of its type may be");
    size_t frame = MLA_WIRE_HEADER_BYTES + body;
    size_t held = core->out_tail - core->out_head;
    /* A frame always goes when nothing is queued, whatever the limit. */
    if (held && held + frame > core->max_send_bytes)
        return refuse(err, MLA_OVERLOADED, NULL, held + frame, core->max_send_bytes,
                      "the daemon has not read earlier requests yet");
    if (out_reserve(core, frame))
        return refuse(err, MLA_OUT_OF_MEMORY, NULL, frame, 0, "no memory for the request");

    size_t n = 0;
    uint8_t *at = core->out + core->out_tail;
    if (is_small)
        memcpy(at + MLA_WIRE_HEADER_BYTES, small, body);
    else if (mla_codec_encode(msg, at + MLA_WIRE_HEADER_BYTES, body, &n) || n != body)
        return refuse(err, MLA_INTERNAL, NULL, n, body, "the request does not encode");
    for (size_t i = 0; i < n_fds; i++) {
        if (fds_push(core, core->sent_bytes + held, fds[i], err)) {
            fds_drop_last(core, i);
            return 1;
        }
    }
    const struct mla_frame_header header = {.major = MLA_PROTO_MAJOR,
                                            .n_fds = (uint8_t)n_fds,
                                            .type = msg->type,
                                            .body_len = (uint32_t)body,
                                            .request_id = r->id};
    mla_wire_pack(&header, at);
    core->out_tail += frame;
    return 0;
}

const uint8_t *mlac_core_out(const struct mlac_core *core, size_t *n, int fds[MLA_MAX_FDS_PER_FRAME], size_t *n_fds)
{
    if (core->out_head == core->out_tail)
        return NULL;
    size_t i = core->fds_head;
    *n_fds = 0;
    while (i < core->fds_tail && core->fds[i].at_byte == core->sent_bytes && *n_fds < MLA_MAX_FDS_PER_FRAME)
        fds[(*n_fds)++] = core->fds[i++].fd;
    *n = core->out_tail - core->out_head;
    /* The next frame with descriptors begins a message of its own. */
    if (i < core->fds_tail)
        *n = (size_t)(core->fds[i].at_byte - core->sent_bytes);
    return core->out + core->out_head;
}

void mlac_core_sent(struct mlac_core *core, size_t n)
{
    while (core->fds_head < core->fds_tail && core->fds[core->fds_head].at_byte == core->sent_bytes)
        close(core->fds[core->fds_head++].fd);
    core->sent_bytes += n;
    core->out_head += n;
    if (core->out_head == core->out_tail)
        core->out_head = core->out_tail = 0;
}
