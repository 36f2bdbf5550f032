#include "daemon/net/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "daemon/net/net_internal.h"

/* Deadlines are looked at this often: a quarter of the shortest, within bounds. */
#define TICK_MIN_MS 5u
#define TICK_MAX_MS 250u

/* A write cap below this would not let a peer be read at all. */
#define WRITE_CAP_MIN_BYTES MLA_CAP_CONTROL_BYTES

static void on_idle(uv_idle_t *handle)
{
    (void)handle; /* being active is its whole purpose */
}

void net_wake(struct net *net)
{
    if (!net->closing)
        uv_idle_start(&net->idle, on_idle);
}

static void sleep_if_idle(struct net *net)
{
    if (list_empty(&net->ready) && list_empty(&net->dirty))
        uv_idle_stop(&net->idle);
}

static void flush_all(struct net *net)
{
    for (struct list *node; (node = list_first(&net->dirty)) != NULL;) {
        list_del(node);
        peer_flush(list_entry(node, struct net_peer, dirty));
    }
    sleep_if_idle(net);
}

/* Peers whose frames have been read already go first. */
static void begin_turn(struct net *net)
{
    net->turn++;
    /* Those that come back for another frame wait for the next turn. */
    struct list now;
    list_init(&now);
    for (struct list *node; (node = list_first(&net->ready)) != NULL;) {
        list_del(node);
        list_push_back(&now, node);
    }
    for (struct list *node; (node = list_first(&now)) != NULL;) {
        list_del(node);
        peer_go_on(list_entry(node, struct net_peer, ready));
    }
}

static void on_prepare(uv_prepare_t *handle)
{
    struct net *net = handle->data;
    if (!list_empty(&net->ready) || !list_empty(&net->dirty))
        net_begins(net);
    begin_turn(net);
    flush_all(net);
}

void net_flush(struct net *net)
{
    if (!net->closing)
        flush_all(net);
}

/* Memory of peers is freed by the loop alone, so those at hand stay valid whatever the handlers do. */
bool net_spin(struct net *net)
{
    struct net_peer *hot[NET_SPIN_PEERS];
    unsigned n = 0;
    if (net->closing)
        return false;
    uint64_t frames = net->counters.frames_in, bytes = net->counters.bytes_in;
    begin_turn(net);
    list_for_each (node, &net->hot) {
        hot[n++] = list_entry(node, struct net_peer, hot);
        if (n == NET_SPIN_PEERS)
            break;
    }
    for (unsigned i = 0; i < n; i++)
        if (hot[i]->state < PEER_ENDING)
            peer_read(hot[i]);
    net_flush(net);
    return net->counters.frames_in != frames || net->counters.bytes_in != bytes;
}

static void on_check(uv_check_t *handle)
{
    flush_all(handle->data);
}

static void on_tick(uv_timer_t *handle)
{
    struct net *net = handle->data;
    uint64_t now = uv_now(net->loop);
    net_begins(net);
    /* After a stall of the loop itself the peers' bytes may lie unread in their sockets: one turn to read them, then
     * judge, even if that turn took as long. */
    net->tick_excused = !net->tick_excused && now - net->ticked_ms > 3 * net->tick_ms;
    net->ticked_ms = now;
    if (net->tick_excused)
        return;
    bool armed = false;
    list_for_each_safe (node, &net->peers)
        peer_tick(list_entry(node, struct net_peer, node), now, &armed);
    if (!armed)
        uv_timer_stop(&net->tick);
}

/* A peer got a deadline. */
static void arm_tick(struct net *net)
{
    if (net->closing || uv_is_active((uv_handle_t *)&net->tick))
        return;
    net->ticked_ms = uv_now(net->loop);
    uv_timer_start(&net->tick, on_tick, net->tick_ms, net->tick_ms);
}

uint64_t net_deadline(struct net *net, uint32_t ms)
{
    if (ms == 0)
        return 0;
    arm_tick(net);
    return uv_now(net->loop) + ms;
}

static uint32_t shorter(uint32_t a, uint32_t b)
{
    return b != 0 && b < a ? b : a;
}

static void set_tick(struct net *net)
{
    const struct net_config *c = &net->config;
    uint32_t tick =
        shorter(shorter(shorter(4 * TICK_MAX_MS, c->hello_timeout_ms), c->frame_timeout_ms), c->write_timeout_ms) / 4;
    net->tick_ms = tick < TICK_MIN_MS ? TICK_MIN_MS : tick;
}

static void limit_write_queue(struct net *net)
{
    if (net->config.write_queue_bytes < WRITE_CAP_MIN_BYTES)
        net->config.write_queue_bytes = WRITE_CAP_MIN_BYTES;
}

void net_set_limits(struct net *net, const struct net_limits *limits)
{
    struct net_config *c = &net->config;
    c->max_peers = limits->max_peers;
    c->write_queue_bytes = limits->write_queue_bytes;
    c->hello_timeout_ms = limits->hello_timeout_ms;
    c->frame_timeout_ms = limits->frame_timeout_ms;
    c->write_timeout_ms = limits->write_timeout_ms;
    limit_write_queue(net);
    set_tick(net); /* for the next time the timer is armed */
}

static void init_handles(struct net *net)
{
    set_tick(net);
    uv_timer_init(net->loop, &net->tick);
    uv_timer_init(net->loop, &net->accept_timer);
    uv_prepare_init(net->loop, &net->prepare);
    uv_check_init(net->loop, &net->check);
    uv_idle_init(net->loop, &net->idle);
    net->tick.data = net->accept_timer.data = net->prepare.data = net->check.data = net->idle.data = net;
    net->n_handles += 5;
    uv_prepare_start(&net->prepare, on_prepare);
    uv_check_start(&net->check, on_check);
}

int net_open(struct net **out, uv_loop_t *loop, const struct net_config *config, const struct net_handlers *handlers,
             void *app, struct mla_error *err)
{
    *out = NULL;
    struct net *net = calloc(1, sizeof(*net));
    /* Pages of the arena that no body has needed yet are not there: it costs what the largest body took. */
    size_t arena_bytes = MLA_CAP_TABLE_BYTES + MLA_CODEC_SLACK_BYTES;
    void *arena = malloc(arena_bytes);
    if (!net || !arena) {
        free(arena);
        free(net);
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the network side");
    }
    int rc = listen_open(&net->listener, config->socket_path, config->socket_mode, config->socket_group, err);
    if (rc) {
        free(arena);
        free(net);
        return rc;
    }
    mla_arena_init(&net->arena, arena, arena_bytes);
    net->loop = loop;
    net->config = *config;
    limit_write_queue(net);
    net->handlers = *handlers;
    net->app = app;
    list_init(&net->peers);
    list_init(&net->ready);
    list_init(&net->dirty);
    list_init(&net->hot);
    /* First the one handle that can fail: once a handle is in the loop, only the loop can free it. */
    rc = accept_start(net);
    if (rc) {
        rc = mla_error_set(err, MLA_INTERNAL, "socket_path", "cannot watch the socket: %s", uv_strerror(rc));
        listen_close(&net->listener);
        free(arena);
        free(net);
        return rc;
    }
    init_handles(net);
    *out = net;
    return 0;
}

void net_stop_listening(struct net *net)
{
    accept_stop(net);
    listen_close(&net->listener);
}

void net_handle_closed(struct net *net)
{
    if (--net->n_handles > 0)
        return;
    void (*done)(void *) = net->done;
    void *app = net->app;
    free(net->arena.base);
    free(net);
    if (done)
        done(app);
}

static void on_own_handle_closed(uv_handle_t *handle)
{
    net_handle_closed(handle->data);
}

void net_close(struct net *net, void (*done)(void *app))
{
    if (net->closing)
        return;
    net->done = done;
    net_stop_listening(net);
    flush_all(net);
    list_for_each_safe (node, &net->peers) {
        struct net_peer *peer = list_entry(node, struct net_peer, node);
        if (peer->state != PEER_CLOSED)
            peer_flush(peer);
        peer_close(peer);
    }
    net->closing = true;
    uv_close((uv_handle_t *)&net->tick, on_own_handle_closed);
    uv_close((uv_handle_t *)&net->accept_timer, on_own_handle_closed);
    uv_close((uv_handle_t *)&net->prepare, on_own_handle_closed);
    uv_close((uv_handle_t *)&net->check, on_own_handle_closed);
    uv_close((uv_handle_t *)&net->idle, on_own_handle_closed);
}

struct net_peer *net_next_peer(struct net *net, struct net_peer *after)
{
    struct list *node = after ? after->node.next : net->peers.next;
    for (; node != &net->peers; node = node->next) {
        struct net_peer *peer = list_entry(node, struct net_peer, node);
        if (peer->accepted)
            return peer;
    }
    return NULL;
}

const struct net_counters *net_counters(const struct net *net)
{
    return &net->counters;
}

void net_socket_path(const struct net *net, char *out, size_t out_bytes)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t n = sizeof(addr) - 1; /* what follows a path without an end is a zero */
    if (net->listener.fd < 0 || getsockname(net->listener.fd, (struct sockaddr *)&addr, &n) < 0)
        addr.sun_path[0] = '\0';
    snprintf(out, out_bytes, "%s", addr.sun_path);
}
