#include <errno.h>
#include <inttypes.h>
#include <sys/socket.h>

#include "daemon/net/net_internal.h"
#include "daemon/util/log.h"

/* Room asked for before the size of a message is known; most replies fit. */
#define FIRST_TRY_BYTES 512u

/* Hands the socket what it takes. 0, or -errno when the peer is gone. */
static int send_some(struct net_peer *peer)
{
    struct net *net = peer->net;
    while (write_queue_bytes(&peer->out) > 0 && !peer->blocked) {
        ssize_t n = send(peer->fd, peer->out.buffer + peer->out.start, write_queue_bytes(&peer->out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN)
            return -errno;
        if (n < 0) {
            peer->blocked = true;
            if (peer->write_by_ms == 0)
                peer->write_by_ms = net_deadline(net, net->config.write_timeout_ms);
            break;
        }
        net->counters.bytes_out += (uint64_t)n;
        write_queue_consume(&peer->out, (size_t)n);
        peer->write_by_ms = 0; /* progress: the clock starts anew when the socket next takes nothing */
    }
    return 0;
}

void peer_flush(struct net_peer *peer)
{
    size_t pause_bytes = peer->net->config.write_queue_bytes / 2;
    if (peer->state == PEER_CLOSED)
        return;
    if (peer->doomed || send_some(peer) < 0 || (peer->state == PEER_ENDING && write_queue_bytes(&peer->out) == 0)) {
        peer_close(peer);
        return;
    }
    size_t queued = write_queue_bytes(&peer->out);
    if (!peer->paused && queued >= pause_bytes) {
        peer->paused = true;
        peer->frame_by_ms = 0; /* it is not the peer that keeps its frame from being read */
    } else if (peer->paused && queued < pause_bytes && peer->state < PEER_ENDING) {
        peer_resume(peer);
    }
    peer_update_poll(peer);
}

/* Encodes behind the queue; nothing is part of it yet. *n_bytes: header and body. 0, -E2BIG, -EINVAL, -ENOMEM. */
static int encode(struct net_peer *peer, const struct mla_message *message, uint16_t type, uint64_t request_id,
                  size_t *n_bytes)
{
    size_t want = MLA_WIRE_HEADER_BYTES + FIRST_TRY_BYTES;
    for (;;) {
        size_t room, body = 0;
        uint8_t *out = write_queue_reserve(&peer->out, want, &room);
        if (!out)
            return -ENOMEM;
        int rc = mla_codec_encode(message, out + MLA_WIRE_HEADER_BYTES, room - MLA_WIRE_HEADER_BYTES, &body);
        if (rc && rc != -ENOBUFS)
            return rc;
        if (body > mla_wire_body_cap(message->type))
            return -E2BIG;
        if (rc == 0) {
            struct mla_frame_header h = {
                .major = MLA_PROTO_MAJOR, .type = type, .body_len = (uint32_t)body, .request_id = request_id};
            mla_wire_pack(&h, out);
            *n_bytes = MLA_WIRE_HEADER_BYTES + body;
            return 0;
        }
        want = MLA_WIRE_HEADER_BYTES + body;
    }
}

int peer_queue(struct net_peer *peer, const struct mla_message *message, uint16_t type, uint64_t request_id)
{
    struct net *net = peer->net;
    size_t n_bytes;
    int rc = encode(peer, message, type, request_id, &n_bytes);
    if (rc == -ENOMEM) {
        mla_log(MLA_LOG_ERROR, "peer_no_memory", "peer=%" PRIu64 " type=%s", peer->id, mla_wire_type_name(type));
        peer_doom(peer);
        return -EPIPE;
    }
    if (rc)
        return rc;
    size_t before = write_queue_bytes(&peer->out);
    write_queue_commit(&peer->out, n_bytes);
    net->counters.frames_out++;
    /* Many replies may come between two flushes: what the socket takes now does not count against the peer. One message
     * on an empty queue may always be sent, and a peer that ends gets its notice. */
    if (peer->state < PEER_ENDING && before > 0 && before + n_bytes > net->config.write_queue_bytes) {
        if (send_some(peer) < 0) {
            peer_doom(peer);
            return 0;
        }
        size_t queued = write_queue_bytes(&peer->out);
        if (queued > net->config.write_queue_bytes && queued > n_bytes) {
            net->counters.slow_peers++;
            mla_log(MLA_LOG_WARNING, "peer_over_write_cap",
                    "peer=%" PRIu64 " pid=%d queued_bytes=%zu cap_bytes=%" PRIu32, peer->id, (int)peer->creds.pid,
                    queued, net->config.write_queue_bytes);
            peer_doom(peer);
            return 0;
        }
    }
    if (list_empty(&peer->dirty))
        list_push_back(&net->dirty, &peer->dirty);
    net_wake(net);
    return 0;
}

int net_send(struct net_peer *peer, const struct mla_message *message, uint64_t request_id)
{
    if (peer->state >= PEER_ENDING)
        return -EPIPE;
    return peer_queue(peer, message, message->type, request_id);
}
