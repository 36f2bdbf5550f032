/* The socket side of the daemon: listener, peers, frames, back-pressure. Knows the protocol's frames and bodies
 * (through proto/), nothing of jobs or memory. One thread: that of the loop.
 *
 * A peer is told to handlers when its HELLO has been accepted by them; each later message is handed over decoded.
 * What net answers by itself:
 *
 *  - ERROR notice PROTOCOL_ERROR, the peer ends: no magic, a type that only the daemon sends, surplus descriptors.
 *  - ERROR notice TOO_LARGE, the peer ends: body or descriptor count over its cap, seen in the header.
 *  - ERROR notice HELLO_REQUIRED, the peer ends: the first message is not HELLO, or HELLO comes again.
 *  - HELLO reply (to a HELLO) or else ERROR notice VERSION_MISMATCH, the peer ends: another major.
 *  - A reply of type | MLA_REPLY whose body is only the status UNKNOWN_MESSAGE, the connection goes on: a request type
 *    that is not known, of at most MLA_CAP_CONTROL_BYTES. Clients of a later minor can ask and fall back.
 *  - The reply of the type with the status, the connection goes on: a body that does not parse or lacks a field,
 *    descriptors that are too few, not as many as the message needs, or cut off by the kernel.
 *  - ERROR notice OVERLOADED, closed: more than max_peers.
 *
 * The end of a peer's stream ends the peer at once, also when it only shut down its sending side.
 *
 * Turns: at most one frame per peer per loop turn; what handlers and others send in a turn leaves at its end in one
 * write per peer. A peer whose replies pile up is not read from; past the write cap, or when a frame is not finished or
 * HELLO not sent in time, or when nothing is taken for too long while replies wait, it is cut (SLOW_PEER; the notice is
 * sent where the peer can still read it).
 */
#ifndef MLA_DAEMON_NET_H
#define MLA_DAEMON_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "proto/codec.h"
#include "proto/error.h"
#include "proto/wire.h"

struct net;
struct net_peer;

struct net_config {
    const char *socket_path;  /* bound when no socket was passed in by the service manager (LISTEN_FDS) */
    mode_t socket_mode;       /* 0660 */
    const char *socket_group; /* NULL: the daemon's own */
    uint32_t max_peers;
    uint32_t write_queue_bytes; /* per peer: reading pauses at half of it, the peer is cut at all of it */
    /* 0: no limit. Looked at by one timer, so they may be late by a quarter of the shortest, at most by 250 ms. */
    uint32_t hello_timeout_ms;
    uint32_t frame_timeout_ms; /* from a frame's first byte to its last */
    uint32_t write_timeout_ms; /* without progress while replies wait */
    uint64_t *turn_ns;         /* NULL, or what gets mla_now_ns() when net begins with something and it is 0 */
};

struct net_creds { /* from SO_PEERCRED and SO_PEERGROUPS at accept */
    pid_t pid;
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t n_groups;
};

/* A request on its way to handlers. message and fds are the handler's until it returns; a descriptor that it keeps is
 * replaced by -1 in fds, net closes the rest. */
struct net_request {
    struct net_peer *peer;
    uint64_t request_id;
    const struct mla_message *message;
    int *fds;
    size_t n_fds;
};

struct net_handlers {
    /* HELLO arrived. true: the peer is in; the handler has sent the reply and may attach its own state. false: refused;
     * the handler has sent a reply saying why, the peer ends when it is flushed. */
    bool (*hello)(void *app, const struct net_request *request);
    void (*message)(void *app, const struct net_request *request);
    /* After this the peer's pointer is dead. Called once for each peer whose hello was accepted. */
    void (*closed)(void *app, struct net_peer *peer);
    /* net has answered a request by itself, for whoever counts them; NULL: nobody does. type as it came, known or not.
     */
    void (*refused)(void *app, uint16_t type, enum mla_status code);
};

/* Counters for metrics; net only ever adds to them. */
struct net_counters {
    uint64_t accepted, refused, closed;
    uint64_t frames_in, frames_out, bytes_in, bytes_out;
    uint64_t protocol_errors, malformed_bodies, slow_peers, accept_pauses, fds_received;
    uint64_t peers; /* now */
};

/* Binds or adopts the socket and starts to listen. 0, or positive with *err filled: a text for the operator and the
 * name of the setting as field. The structures stay the caller's until net_close's callback. Before other threads: it
 * sets the umask for a moment and removes the LISTEN_* variables. */
int net_open(struct net **out, uv_loop_t *loop, const struct net_config *config, const struct net_handlers *handlers,
             void *app, struct mla_error *err);

/* What may change while peers are there; as in net_config. Deadlines that run already stay as they are, and peers over
 * a smaller max_peers are kept. */
struct net_limits {
    uint32_t max_peers, write_queue_bytes, hello_timeout_ms, frame_timeout_ms, write_timeout_ms;
};
void net_set_limits(struct net *net, const struct net_limits *limits);

/* A turn without the loop: looks at the sockets of the peers that sent something last, NET_SPIN_PEERS of them, hands
 * out at most a frame of each, and sends what is to be sent. Whether something came. Between two runs of the loop,
 * never within one of its callbacks; the loop must run often enough for everything else. */
#define NET_SPIN_PEERS 8u
bool net_spin(struct net *net);
/* Sends what is to be sent. */
void net_flush(struct net *net);

/* Stops to accept; peers stay. Removes the socket file if it is the one that net_open bound. */
void net_stop_listening(struct net *net);

/* Ends all peers after a last flush attempt and frees everything; handlers->closed for each accepted peer and then done
 * are called from the loop, not from within. net is gone when done is called. */
void net_close(struct net *net, void (*done)(void *app));

/* Queues a message. request_id 0 for notices. Never blocks and never calls back into handlers; a peer that is over its
 * write cap is ended from the loop later (one message on an empty queue is always taken, however large). Returns 0,
 * -EPIPE when the peer is ending, -E2BIG when the body is over the protocol's cap (nothing was queued), -EINVAL for a
 * type that the codec does not know. */
int net_send(struct net_peer *peer, const struct mla_message *message, uint64_t request_id);

/* Sends an ERROR notice and ends the peer when it is flushed (or after a second). */
void net_fail(struct net_peer *peer, const struct mla_error *error);

const struct net_creds *net_peer_creds(const struct net_peer *peer);
void net_peer_set_user(struct net_peer *peer, void *user);
void *net_peer_user(const struct net_peer *peer);
size_t net_peer_queued_bytes(const struct net_peer *peer);
/* All peers whose hello was accepted, in order of arrival; NULL starts and ends. */
struct net_peer *net_next_peer(struct net *net, struct net_peer *after);
const struct net_counters *net_counters(const struct net *net);
/* Where clients find the listening socket, bound or adopted; "" once it is closed, or for one without a path. */
void net_socket_path(const struct net *net, char *out, size_t out_bytes);

#endif
