/* Shared between the files of net/, for none outside.
 *
 * A turn of the loop, as libuv orders it: timers (on_tick), prepare (peers with frames already read go on, then a
 * flush), poll (accepts, reads), check (flush). Whatever is queued between two flushes leaves in one send(2) per peer.
 * A peer handles one frame per turn, the turns being counted in prepare.
 *
 * No function here frees a peer or calls handlers->closed while a handler or the application is on the stack: peers die
 * in the close callback of their poll handle.
 */
#ifndef MLA_DAEMON_NET_INTERNAL_H
#define MLA_DAEMON_NET_INTERNAL_H

#include "daemon/net/frame_reader.h"
#include "daemon/net/listen.h"
#include "daemon/net/net.h"
#include "daemon/net/write_queue.h"
#include "daemon/util/clock.h"
#include "daemon/util/list.h"

/* An ending peer has this long to take what is queued for it. */
#define END_WITHIN_MS 1000u

enum peer_state {
    PEER_NEW,    /* HELLO has not been accepted */
    PEER_OPEN,   /* in */
    PEER_ENDING, /* reads no more; ends when the queue is flushed, or at end_by_ms */
    PEER_CLOSED  /* descriptor closed, memory goes with the handle's callback */
};

struct net_peer {
    struct net *net;
    uint64_t id;       /* for logs */
    struct list node;  /* net->peers, in order of arrival, until freed */
    struct list ready; /* net->ready: the reader holds a frame for a later turn */
    struct list dirty; /* net->dirty: to be flushed, or closed, before the loop sleeps */
    struct list hot;   /* net->hot: in the order of their last bytes, latest first */
    uv_poll_t poll;
    int fd;
    int poll_events;
    enum peer_state state;
    bool accepted;                                             /* by handlers->hello; closed() is owed */
    bool paused;                                               /* not read: too many replies wait */
    bool blocked;                                              /* the socket takes no more for now */
    bool doomed;                                               /* to be closed at the next flush */
    uint64_t turn;                                             /* in which it last handled a frame */
    uint64_t hello_by_ms, frame_by_ms, write_by_ms, end_by_ms; /* uv_now; 0: not running */
    struct frame_reader reader;
    struct write_queue out;
    struct net_creds creds;
    void *user;
};

struct net {
    uv_loop_t *loop;
    struct net_config config; /* numbers only */
    struct net_handlers handlers;
    void *app;
    struct net_counters counters;
    struct listen_socket listener;
    bool listening;      /* the poll handle of the listener is open */
    bool accepts_paused; /* until accept_timer or a peer's end */
    bool closing;
    void (*done)(void *app);
    uv_poll_t accept_poll;
    uv_timer_t accept_timer;
    uv_timer_t tick; /* runs while any peer has a deadline */
    uint64_t tick_ms, ticked_ms;
    bool tick_excused; /* the last one came too late to judge anybody */
    uv_prepare_t prepare;
    uv_check_t check;
    uv_idle_t idle;     /* active while ready or dirty has peers: keeps the loop from sleeping */
    unsigned n_handles; /* open handles of net, those of peers too */
    struct list peers, ready, dirty, hot;
    uint64_t turn;
    uint64_t last_id;
    struct mla_arena arena; /* what one body is decoded into */
};

static inline void net_begins(struct net *net)
{
    uint64_t *at = net->config.turn_ns;
    if (at != NULL && *at == 0)
        *at = mla_now_ns();
}

/* net.c */
void net_handle_closed(struct net *net);
void net_wake(struct net *net);                      /* ready or dirty got a peer */
uint64_t net_deadline(struct net *net, uint32_t ms); /* 0 when ms is 0 (no limit) */

/* accept.c */
int accept_start(struct net *net);
void accept_stop(struct net *net);
void accept_resume(struct net *net); /* descriptors or memory came free */

/* peer.c */
void peer_accept(struct net *net, int fd); /* takes fd */
void peer_close(struct net_peer *peer);    /* closes at once; frees later */
void peer_doom(struct net_peer *peer);     /* closes at the next flush; safe anywhere */
void peer_update_poll(struct net_peer *peer);
void peer_tick(struct net_peer *peer, uint64_t now_ms, bool *armed);

/* read.c */
void peer_read(struct net_peer *peer);    /* one recvmsg, at most one frame */
void peer_go_on(struct net_peer *peer);   /* at most one frame of those already read */
void peer_resume(struct net_peer *peer);  /* after a pause */
void peer_discard(struct net_peer *peer); /* throws away what waits in the socket */

/* dispatch.c */
void peer_dispatch(struct net_peer *peer, const struct frame *frame);
void peer_refuse_stream(struct net_peer *peer, const struct mla_frame_header *header, const struct mla_error *err);

/* write.c */
int peer_queue(struct net_peer *peer, const struct mla_message *message, uint16_t type, uint64_t request_id);
void peer_flush(struct net_peer *peer); /* may close the peer */

#endif
