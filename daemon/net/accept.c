#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/net_internal.h"
#include "daemon/util/log.h"

#define ACCEPTS_PER_TURN 16
#define PAUSE_MS         250u
#define REFUSED_RETRY_US UINT64_C(1000000)

static void on_acceptable(uv_poll_t *handle, int status, int events);

static void on_pause_over(uv_timer_t *timer)
{
    accept_resume(timer->data);
}

/* uv_listen would accept and drop clients here; they wait in the backlog instead. */
static void pause_accepts(struct net *net, int error)
{
    net->accepts_paused = true;
    net->counters.accept_pauses++;
    uv_poll_stop(&net->accept_poll);
    uv_timer_start(&net->accept_timer, on_pause_over, PAUSE_MS, 0);
    mla_log(MLA_LOG_WARNING, "accepts_paused", "error=%s peers=%" PRIu64, strerror(error), net->counters.peers);
}

void accept_resume(struct net *net)
{
    if (!net->accepts_paused || !net->listening)
        return;
    net->accepts_paused = false;
    uv_timer_stop(&net->accept_timer);
    uv_poll_start(&net->accept_poll, UV_READABLE, on_acceptable);
}

/* One attempt: who does not get the notice learns it from the end of the connection. */
static void turn_away(struct net *net, int fd)
{
    struct mla_message notice;
    mla_message_init(&notice, MLA_NOTICE_ERROR);
    struct mla_error *e = &notice.error_notice.status;
    mla_error_set(e, MLA_OVERLOADED, NULL, "the daemon has %" PRIu32 " connections, all it may have",
                  net->config.max_peers);
    e->limit = net->config.max_peers;
    e->retry_after_us = REFUSED_RETRY_US;
    uint8_t out[MLA_WIRE_HEADER_BYTES + 1024];
    size_t n = 0;
    if (mla_codec_encode(&notice, out + MLA_WIRE_HEADER_BYTES, sizeof(out) - MLA_WIRE_HEADER_BYTES, &n) == 0) {
        struct mla_frame_header h = {.major = MLA_PROTO_MAJOR, .type = MLA_NOTICE_ERROR, .body_len = (uint32_t)n};
        mla_wire_pack(&h, out);
        (void)!send(fd, out, MLA_WIRE_HEADER_BYTES + n, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    close(fd);
    net->counters.refused++;
    mla_log(MLA_LOG_WARNING, "peer_turned_away", "max_peers=%" PRIu32, net->config.max_peers);
}

static void on_acceptable(uv_poll_t *handle, int status, int events)
{
    struct net *net = handle->data;
    (void)status;
    (void)events;
    net_begins(net);
    for (int i = 0; i < ACCEPTS_PER_TURN && net->listening && !net->accepts_paused; i++) {
        int fd = accept4(net->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            if (net->counters.peers >= net->config.max_peers)
                turn_away(net, fd);
            else
                peer_accept(net, fd);
            continue;
        }
        if (errno == EAGAIN)
            return;
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        /* EMFILE, ENFILE, ENOMEM, ENOBUFS; anything else must not make the loop spin either. */
        pause_accepts(net, errno);
    }
}

int accept_start(struct net *net)
{
    int rc = uv_poll_init(net->loop, &net->accept_poll, net->listener.fd);
    if (rc)
        return rc;
    net->accept_poll.data = net;
    net->n_handles++;
    net->listening = true;
    uv_poll_start(&net->accept_poll, UV_READABLE, on_acceptable);
    return 0;
}

static void on_listener_closed(uv_handle_t *handle)
{
    net_handle_closed(handle->data);
}

void accept_stop(struct net *net)
{
    if (!net->listening)
        return;
    net->listening = false;
    uv_timer_stop(&net->accept_timer);
    uv_close((uv_handle_t *)&net->accept_poll, on_listener_closed);
}
