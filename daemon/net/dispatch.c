#include <inttypes.h>

#include "daemon/net/net_internal.h"
#include "daemon/util/log.h"

static void end_when_flushed(struct net_peer *peer)
{
    if (peer->state >= PEER_ENDING)
        return;
    peer->state = PEER_ENDING;
    peer->hello_by_ms = peer->frame_by_ms = 0;
    peer->end_by_ms = net_deadline(peer->net, END_WITHIN_MS);
    if (list_empty(&peer->dirty))
        list_push_back(&peer->net->dirty, &peer->dirty);
    net_wake(peer->net);
}

static void tell(const struct net_peer *peer, uint16_t type, enum mla_status code)
{
    const struct net *net = peer->net;
    if (net->handlers.refused != NULL)
        net->handlers.refused(net->app, type, code);
}

static void reply_error(struct net_peer *peer, uint16_t type, uint64_t request_id, const struct mla_error *err)
{
    struct mla_message reply;
    mla_message_init(&reply, type | MLA_REPLY);
    reply.reply.status = *err;
    (void)peer_queue(peer, &reply, type | MLA_REPLY, request_id);
    tell(peer, type, err->code);
}

/* Every reply begins with its status, so one with nothing else can stand for the reply of a type that is not known. */
static void reply_unknown(struct net_peer *peer, const struct mla_frame_header *header)
{
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_UNREGISTER_REGION | MLA_REPLY);
    mla_error_set(&reply.reply.status, MLA_UNKNOWN_MESSAGE, NULL, "message type 0x%04x is not known here",
                  header->type);
    reply.reply.status.value = header->type;
    (void)peer_queue(peer, &reply, header->type | MLA_REPLY, header->request_id);
    tell(peer, header->type, MLA_UNKNOWN_MESSAGE);
}

void peer_refuse_stream(struct net_peer *peer, const struct mla_frame_header *header, const struct mla_error *err)
{
    peer->net->counters.protocol_errors++;
    if (err->code != MLA_VERSION_MISMATCH || header->type != MLA_MSG_HELLO) {
        net_fail(peer, err);
        return;
    }
    /* Headers are the same in every major, so the HELLO can be answered as such; the reply says which major this is. */
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_HELLO | MLA_REPLY);
    reply.hello_reply.status = *err;
    reply.hello_reply.major = MLA_PROTO_MAJOR;
    reply.hello_reply.minor = MLA_PROTO_MINOR;
    (void)peer_queue(peer, &reply, MLA_MSG_HELLO | MLA_REPLY, header->request_id);
    tell(peer, MLA_MSG_HELLO, err->code);
    mla_log(MLA_LOG_WARNING, "peer_version", "peer=%" PRIu64 " pid=%d major=%u ours=%u", peer->id, (int)peer->creds.pid,
            header->major, MLA_PROTO_MAJOR);
    end_when_flushed(peer);
}

/* 0, or a refusal of this frame alone. */
static int decode(struct net_peer *peer, const struct frame *frame, struct mla_message *message, struct mla_error *err)
{
    const struct mla_frame_header *h = &frame->header;
    struct net *net = peer->net;
    if (frame->fds_missing) {
        mla_error_set(err, MLA_NO_DESCRIPTORS, NULL,
                      frame->fds_cut ? "the daemon could not receive the file descriptors of %s"
                                     : "%s came without its file descriptors",
                      mla_wire_type_name(h->type));
        err->limit = h->n_fds;
        return 1;
    }
    mla_arena_reset(&net->arena);
    int rc = mla_codec_decode(h->type, frame->body, h->body_len, &net->arena, message, err);
    if (rc < 0) {
        mla_error_set(err, MLA_TOO_LARGE, NULL, "%s needs more memory than a body may", mla_wire_type_name(h->type));
        rc = 1;
    }
    if (rc)
        net->counters.malformed_bodies++;
    return rc ? rc : mla_codec_check_fds(message, (unsigned)frame->n_fds, err);
}

static void hello(struct net_peer *peer, const struct net_request *request)
{
    struct net *net = peer->net;
    bool in = net->handlers.hello(net->app, request);
    peer->accepted = in;
    if (!in) {
        end_when_flushed(peer);
        return;
    }
    peer->hello_by_ms = 0;
    peer->reader.greeted = true;
    if (peer->state == PEER_NEW)
        peer->state = PEER_OPEN;
}

void peer_dispatch(struct net_peer *peer, const struct frame *frame)
{
    const struct mla_frame_header *h = &frame->header;
    struct mla_error err;
    if (!frame->known) {
        reply_unknown(peer, h);
        return;
    }
    if (h->type == MLA_MSG_HELLO && peer->state != PEER_NEW) {
        peer->net->counters.protocol_errors++;
        mla_error_set(&err, MLA_HELLO_REQUIRED, NULL, "a second HELLO on one connection");
        net_fail(peer, &err);
        return;
    }
    struct mla_message message;
    if (decode(peer, frame, &message, &err)) {
        reply_error(peer, h->type, h->request_id, &err);
        return;
    }
    struct net_request request = {
        .peer = peer, .request_id = h->request_id, .message = &message, .fds = frame->fds, .n_fds = frame->n_fds};
    if (h->type == MLA_MSG_HELLO)
        hello(peer, &request);
    else
        peer->net->handlers.message(peer->net->app, &request);
}
