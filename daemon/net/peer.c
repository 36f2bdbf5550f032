#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/creds.h"
#include "daemon/net/net_internal.h"
#include "daemon/util/log.h"

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct net_peer *peer = handle->data;
    net_begins(peer->net);
    if (status < 0) {
        peer_close(peer);
        return;
    }
    if (events & UV_WRITABLE) {
        peer->blocked = false;
        peer_flush(peer);
    }
    if ((events & UV_READABLE) && peer->state < PEER_ENDING)
        peer_read(peer);
    /* The end of its stream means that the peer is gone, whatever of it is still unread. One that is being told why it
     * ends still gets that. */
    if ((events & UV_DISCONNECT) && peer->state < PEER_ENDING)
        peer_close(peer);
}

void peer_update_poll(struct net_peer *peer)
{
    int events = peer->blocked ? UV_WRITABLE : 0;
    if (peer->state < PEER_ENDING)
        events |= UV_DISCONNECT | (peer->paused ? 0 : UV_READABLE);
    if (peer->state == PEER_CLOSED || events == peer->poll_events)
        return;
    peer->poll_events = events;
    uv_poll_start(&peer->poll, events, on_poll);
}

void peer_accept(struct net *net, int fd)
{
    struct net_peer *peer = calloc(1, sizeof(*peer));
    int rc = peer ? creds_read(fd, &peer->creds) : -ENOMEM;
    if (!rc)
        rc = uv_poll_init(net->loop, &peer->poll, fd);
    if (rc) {
        mla_log(MLA_LOG_WARNING, "peer_lost", "error=%s", strerror(-rc));
        if (peer)
            creds_free(&peer->creds);
        free(peer);
        close(fd);
        net->counters.refused++;
        return;
    }
    peer->net = net;
    peer->id = ++net->last_id;
    peer->fd = fd;
    peer->poll.data = peer;
    frame_reader_init(&peer->reader);
    list_init(&peer->ready);
    list_init(&peer->dirty);
    list_init(&peer->hot);
    list_push_back(&net->peers, &peer->node);
    net->n_handles++;
    net->counters.accepted++;
    net->counters.peers++;
    peer->hello_by_ms = net_deadline(net, net->config.hello_timeout_ms);
    peer_update_poll(peer);
    mla_log(MLA_LOG_DEBUG, "peer_accepted", "peer=%" PRIu64 " pid=%d uid=%u", peer->id, (int)peer->creds.pid,
            peer->creds.uid);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct net_peer *peer = handle->data;
    struct net *net = peer->net;
    net_begins(net);
    if (peer->accepted)
        net->handlers.closed(net->app, peer);
    list_del(&peer->node);
    frame_reader_free(&peer->reader);
    write_queue_free(&peer->out);
    creds_free(&peer->creds);
    free(peer);
    net_handle_closed(net);
}

void peer_close(struct net_peer *peer)
{
    struct net *net = peer->net;
    if (peer->state == PEER_CLOSED)
        return;
    /* Closing a socket that holds unread bytes resets it, and the other side's next write fails before it reads why. */
    if (peer->state == PEER_ENDING)
        peer_discard(peer);
    peer->state = PEER_CLOSED;
    list_del(&peer->ready);
    list_del(&peer->dirty);
    list_del(&peer->hot);
    uv_close((uv_handle_t *)&peer->poll, on_poll_closed);
    close(peer->fd);
    peer->fd = -1;
    net->counters.closed++;
    net->counters.peers--;
    mla_log(MLA_LOG_DEBUG, "peer_closed", "peer=%" PRIu64, peer->id);
    accept_resume(net);
}

void peer_doom(struct net_peer *peer)
{
    if (peer->state == PEER_CLOSED || peer->doomed)
        return;
    peer->doomed = true;
    peer->state = PEER_ENDING;
    if (list_empty(&peer->dirty))
        list_push_back(&peer->net->dirty, &peer->dirty);
    net_wake(peer->net);
}

void net_fail(struct net_peer *peer, const struct mla_error *error)
{
    if (peer->state >= PEER_ENDING)
        return;
    struct mla_message notice;
    mla_message_init(&notice, MLA_NOTICE_ERROR);
    notice.error_notice.status = *error;
    peer->state = PEER_ENDING; /* before queueing: the notice goes out whatever the cap says */
    peer->hello_by_ms = peer->frame_by_ms = 0;
    peer->end_by_ms = net_deadline(peer->net, END_WITHIN_MS);
    if (peer_queue(peer, &notice, MLA_NOTICE_ERROR, 0))
        peer_doom(peer);
    mla_log(MLA_LOG_WARNING, "peer_failed", "peer=%" PRIu64 " pid=%d uid=%u code=%s text=%s", peer->id,
            (int)peer->creds.pid, peer->creds.uid, mla_status_name(error->code), error->text);
}

static bool passed(uint64_t deadline_ms, uint64_t now_ms)
{
    return deadline_ms != 0 && now_ms >= deadline_ms;
}

static void cut_slow(struct net_peer *peer, uint32_t limit_ms, const char *what)
{
    struct mla_error err;
    mla_error_set(&err, MLA_SLOW_PEER, NULL, "%s within %" PRIu32 " ms", what, limit_ms);
    err.limit = limit_ms;
    peer->net->counters.slow_peers++;
    net_fail(peer, &err);
}

void peer_tick(struct net_peer *peer, uint64_t now_ms, bool *armed)
{
    const struct net_config *config = &peer->net->config;
    if (peer->state == PEER_CLOSED)
        return;
    if (passed(peer->end_by_ms, now_ms)) {
        peer_close(peer);
        return;
    }
    if (peer->state < PEER_ENDING && passed(peer->write_by_ms, now_ms)) {
        peer->net->counters.slow_peers++;
        mla_log(MLA_LOG_WARNING, "peer_reads_nothing", "peer=%" PRIu64 " pid=%d queued_bytes=%zu", peer->id,
                (int)peer->creds.pid, write_queue_bytes(&peer->out));
        peer_close(peer);
        return;
    }
    if (peer->state < PEER_ENDING && passed(peer->hello_by_ms, now_ms))
        cut_slow(peer, config->hello_timeout_ms, "no HELLO came");
    if (peer->state < PEER_ENDING && passed(peer->frame_by_ms, now_ms))
        cut_slow(peer, config->frame_timeout_ms, "a frame was not finished");
    if (peer->end_by_ms || peer->write_by_ms || peer->hello_by_ms || peer->frame_by_ms)
        *armed = true;
}

const struct net_creds *net_peer_creds(const struct net_peer *peer)
{
    return &peer->creds;
}

void net_peer_set_user(struct net_peer *peer, void *user)
{
    peer->user = user;
}

void *net_peer_user(const struct net_peer *peer)
{
    return peer->user;
}

size_t net_peer_queued_bytes(const struct net_peer *peer)
{
    return write_queue_bytes(&peer->out);
}
