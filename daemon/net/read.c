#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/net/net_internal.h"
#include "daemon/util/log.h"

#define READ_MAX_BYTES      (256u << 10) /* of one peer in one turn */
#define DISCARDS_MAX        64
#define CONTROL_SPACE_BYTES CMSG_SPACE(MLA_MAX_FDS_PENDING * sizeof(int))

/* Looks at what is buffered: hands out at most one frame, decides what to wait for. */
static void take_frame(struct net_peer *peer)
{
    struct net *net = peer->net;
    struct frame frame;
    struct mla_error err;
    enum frame_result result = frame_reader_next(&peer->reader, &frame, &err);
    if (result == FRAME_BROKEN) {
        peer_refuse_stream(peer, &frame.header, &err);
        return;
    }
    if (result == FRAME_READY) {
        peer->turn = net->turn;
        peer->frame_by_ms = 0;
        net->counters.frames_in++;
        peer_dispatch(peer, &frame);
        frame_reader_release(&peer->reader);
        if (peer->state >= PEER_ENDING)
            return;
        if (frame_reader_has_frame(&peer->reader)) {
            list_push_back(&net->ready, &peer->ready);
            net_wake(net);
            return;
        }
    }
    if (frame_reader_partial(&peer->reader) && peer->frame_by_ms == 0)
        peer->frame_by_ms = net_deadline(net, net->config.frame_timeout_ms);
}

void peer_go_on(struct net_peer *peer)
{
    /* A paused peer comes back through peer_resume. */
    if (peer->state < PEER_ENDING && !peer->paused)
        take_frame(peer);
}

void peer_resume(struct net_peer *peer)
{
    peer->paused = false;
    if (frame_reader_has_frame(&peer->reader)) {
        list_del(&peer->ready);
        list_push_back(&peer->net->ready, &peer->ready);
        net_wake(peer->net);
    } else if (frame_reader_partial(&peer->reader)) {
        peer->frame_by_ms = net_deadline(peer->net, peer->net->config.frame_timeout_ms);
    }
}

/* Copies the descriptors of msg out; those that do not fit cannot be there, control is sized for max. */
static size_t take_fds(struct msghdr *msg, int *fds, size_t max)
{
    size_t n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        if (here > max - n)
            here = max - n;
        memcpy(fds + n, CMSG_DATA(c), here * sizeof(int));
        n += here;
    }
    return n;
}

void peer_read(struct net_peer *peer)
{
    struct net *net = peer->net;
    /* Frames that were read already go first, and one frame per turn is all a peer gets. The socket stays readable. */
    if (peer->paused || !list_empty(&peer->ready) || peer->turn == net->turn)
        return;
    size_t n;
    uint8_t *space = frame_reader_space(&peer->reader, &n);
    if (!space) {
        struct mla_error err;
        mla_error_set(&err, MLA_OUT_OF_MEMORY, NULL, "no memory for the rest of a frame");
        net_fail(peer, &err);
        return;
    }
    struct iovec iov = {.iov_base = space, .iov_len = n < READ_MAX_BYTES ? n : READ_MAX_BYTES};
    union {
        struct cmsghdr align;
        uint8_t bytes[CONTROL_SPACE_BYTES];
    } control;
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t got = recvmsg(peer->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        peer_close(peer);
        return;
    }
    list_del(&peer->hot);
    list_push_front(&net->hot, &peer->hot);
    int fds[MLA_MAX_FDS_PENDING];
    size_t n_fds = take_fds(&msg, fds, MLA_MAX_FDS_PENDING);
    net->counters.bytes_in += (uint64_t)got;
    net->counters.fds_received += n_fds;
    frame_reader_feed(&peer->reader, (size_t)got, fds, n_fds, (msg.msg_flags & MSG_CTRUNC) != 0);
    take_frame(peer);
}

void peer_discard(struct net_peer *peer)
{
    /* Without a control buffer the kernel drops descriptors itself. */
    uint8_t sink[4096];
    for (int i = 0; i < DISCARDS_MAX; i++)
        if (recv(peer->fd, sink, sizeof(sink), MSG_DONTWAIT) <= 0)
            return;
}
