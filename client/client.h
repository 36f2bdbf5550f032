/* What the sources of libmla share: the handle, and the steps that every call is made of:
 *
 *     mlac_begin()    clears the last error; refuses when the connection has ended
 *     mlac_call()     sends one request and waits for its reply
 *     mlac_fail()     sets the last error and returns its status
 */
#ifndef MLA_CLIENT_CLIENT_H
#define MLA_CLIENT_CLIENT_H

#include <sys/un.h>

#include "client/core.h"

struct mla_client {
    struct mlac_core core;
    int sock;  /* -1 once the connection has ended */
    int epoll; /* what mla_fd() hands out: sock and wake */
    int wake;  /* eventfd: signalled while the core has something to hand out, and for ever after the end */
    bool armed_out;
    bool signalled;
    bool send_dead;   /* the daemon reads no more; what it still says is read */
    bool in_callback; /* of mla_dispatch or mla_close */
    bool told_end;    /* the DISCONNECTED event has been handed out */
    bool down;        /* there is no socket: recovery will make another */
    bool adding;      /* caches of a resumed region, while the connection is up */
    bool watching;    /* mla_watch_start(): later connections have a watcher too */
    mla_event_fn on_event;
    void *user;
    uint64_t spin_ns;  /* of each wait; 0: none */
    struct list syncs; /* struct mla_sync */
    uint64_t last_template;
    /* recovery */
    struct mlac_recover recover;
    struct mlac_ledger ledger;
    int timer;                     /* timerfd in epoll, for those that poll mla_fd() while there is no connection */
    uint64_t timer_ns;             /* when it goes off; UINT64_MAX: not at all */
    uint64_t expire_ns;            /* of the unsent jobs: the first deadline */
    struct mla_error why;          /* the last failure, which a text of recover has not */
    struct mlac_object *restoring; /* its request is at the daemon, */
    struct mlac_tables *restoring_tables; /* or that of this table set */
    size_t restoring_part;                /* first part of a CUDA_VMM region that is still to be sent */
    uint64_t restoring_region;            /* and the id that the daemon gave for the first frame */
    struct sockaddr_un address;
    char name[MLA_MAX_NAME_BYTES + 1];
    char want_gpu[MLA_MAX_NAME_BYTES + 1]; /* "": any */
    uint64_t want_features;
    uint64_t epoch; /* connections that have ended */
    struct mla_error_info error;
    struct mla_server_info server;
    char version[MLA_MAX_TEXT_BYTES];
    char backend[MLA_FIELD_BYTES];
    char gpu_uuid[MLA_MAX_TEXT_BYTES];
    char isolation[MLA_FIELD_BYTES];
};

/* ---- errors (client_errors.c) ---- */

enum mla_status mlac_fail(struct mla_client *c, enum mla_status status, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The same from a refusal of the daemon or the core. */
enum mla_status mlac_refused(struct mla_client *c, const struct mla_error *err);
/* The connection has ended: DISCONNECTED, with why. */
enum mla_status mlac_ended(struct mla_client *c);
enum mla_status mlac_pending(struct mla_client *c);

/* Copies what a caller's versioned struct has: *size, its first member, at least least bytes, at most out_size; the
 * rest of *out is left. 0, or 1 when it is too short to be of any version. */
int mlac_copy_in(void *out, size_t out_size, const void *in, size_t least);

/* Bytes of a versioned struct up to its last member of the first version. */
#define MLAC_LEAST(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

/* ---- the handle's life (client_open.c) ---- */

/* Closes and frees; hands nothing out. */
void mlac_destroy(struct mla_client *c);
/* A socket to the daemon in c->sock. 0 or -errno; -EAGAIN: its backlog is full. */
int mlac_connect(struct mla_client *c);
void mlac_hello(const struct mla_client *c, struct mla_message *msg);
/* Takes a daemon's greeting: OK, or why it is not for this client, with the last error set. */
enum mla_status mlac_greeted(struct mla_client *c, const struct mla_hello_reply *hello);
enum mla_status mlac_system_error(struct mla_client *c, int why, const char *what);

/* ---- socket (client_io.c) ---- */

/* Point in time of a timeout from now; MLA_FOREVER stays. And back: what is left of it. */
uint64_t mlac_deadline(uint64_t timeout_us);
uint64_t mlac_left_us(uint64_t deadline_ns);

/* Closes the socket, for the daemon and the watcher too. */
void mlac_hang_up(struct mla_client *c);

/* CUT: the connection has ended, and recovery has begun. */
enum mlac_outcome { MLAC_DONE, MLAC_EXPIRED, MLAC_LOST, MLAC_CUT };

#define MLAC_AWAIT_UP UINT64_MAX /* no request: until the connection is up */

/* Sends and receives until request awaited is answered (0: until there is something to hand out), the deadline has
 * passed, or the connection has ended. Looks at the socket at least once. */
enum mlac_outcome mlac_io_wait(struct mla_client *c, uint64_t awaited, uint64_t deadline_ns);
/* Sends what goes without waiting. */
void mlac_io_flush(struct mla_client *c);
/* Makes the descriptor of mla_fd() tell the truth; the last thing that a public call does. */
void mlac_io_settle(struct mla_client *c);

/* ---- recovery (client_recover.c, client_restore.c, client_resend.c) ---- */

/* Whether requests can be sent now. */
static inline bool mlac_up(const struct mla_client *c)
{
    return c->recover.state == MLAC_RECOVER_UP && !c->core.ended;
}
/* An event of this side; dropped where a program does not dispatch, of which the daemon is not to blame. */
struct mla_event *mlac_tell(struct mla_client *c, enum mla_event_kind kind);
/* Never 0. */
uint64_t mlac_random(void);
/* The first connection is made: from now on the end of one is not the end. limit_us as in struct mla_options. */
void mlac_recover_begin(struct mla_client *c, uint64_t limit_us);
/* The core has ended and is not over: what comes next. Nothing when that is known already. */
void mlac_recover_notice(struct mla_client *c);
/* The answer of an OWN request has come. */
void mlac_recover_answered(struct mla_client *c);
/* What is due by the clock. */
void mlac_recover_tick(struct mla_client *c);
/* When mlac_recover_tick() has something to do; UINT64_MAX: not by the clock. */
uint64_t mlac_recover_wake_ns(const struct mla_client *c);
/* Until requests can be sent: OK, PENDING, DISCONNECTED (over). */
enum mla_status mlac_await_up(struct mla_client *c, uint64_t deadline_ns);

/* Sends a request of recovery's own. OK, or why not. */
enum mla_status mlac_own(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                         uint64_t object);

/* Sends what makes the next object again: OK; or why not. *more: there was one. */
enum mla_status mlac_restore_next(struct mla_client *c, bool *more);
/* Its answer: true, when it is there; else *status says why not. */
bool mlac_restore_answered(struct mla_client *c, enum mla_status *status);
/* It stays missing, and the caller is told. */
void mlac_restore_skip(struct mla_client *c);
void mlac_restore_stop(struct mla_client *c);
/* The caches of a region that is there again, while the connection is up. */
void mlac_restore_caches(struct mla_client *c);
/* Asks for all attachments again; their answers. */
void mlac_reattach(struct mla_client *c);
void mlac_reattached(struct mla_client *c, uint64_t id);
/* Ids of the caller's in msg become the daemon's; TEMPLATE_OPEN and DECODE are mlac_translate_job()'s. */
void mlac_translate(const struct mla_client *c, struct mla_message *msg);
void mlac_translate_job(const struct mla_client *c, struct mla_decode_request *job);
void mlac_put_tables(struct mla_message *msg, const struct mla_tables *t, uint64_t id);
void mlac_put_cache(struct mla_message *msg, const struct mla_cache_desc *d);
/* One frame of a region's registration, from part first on, with its descriptors; then mlac_frame_close(). */
struct mlac_frame {
    struct mla_region_part parts[MLA_MAX_FDS_PER_FRAME];
    int fds[MLA_MAX_FDS_PER_FRAME];
    size_t n;
    size_t n_opened; /* of fds, made by the caller's open_part: closed here */
    bool more;       /* others follow */
};
enum mla_status mlac_frame_open(struct mla_client *c, const struct mla_region_desc *d, size_t first, uint64_t continues,
                                struct mlac_frame *f, struct mla_message *msg);
void mlac_frame_close(struct mlac_frame *f, const struct mla_region_desc *d);

/* Sends a DECODE that is in flight, or holds it, or answers it. OK, or why it could not be sent, the last error set. */
enum mla_status mlac_job_send(struct mla_client *c, struct mlac_request *r);
/* All that are unsent; then calls that were given up on. */
void mlac_resend(struct mla_client *c);
/* Unsent jobs whose time is over, or that are cancelled. */
void mlac_expire(struct mla_client *c);
/* Drops table sets that nobody uses any more. */
void mlac_drop_garbage(struct mla_client *c);

/* ---- calls (client_call.c) ---- */

/* What every call that sends begins with: OK, DISCONNECTED, or INVALID_ARGUMENT when client is NULL. */
enum mla_status mlac_begin(struct mla_client *c);

/* Sends msg and waits. OK: *reply (may be NULL) is valid until the next step of the core. Else the last error is set;
 * PENDING: the request goes on as mlac_request_leave() says. object: what an ending call is about; when the same call
 * was given up before, that request is waited for and msg is not sent. */
enum mla_status mlac_call(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                          uint64_t object, uint64_t timeout_us, const struct mla_message **reply);

/* Sends msg and leaves it; refusals of table sets become events. tables (may be NULL): what msg puts. */
enum mla_status mlac_post(struct mla_client *c, const struct mla_message *msg, uint64_t object,
                          struct mlac_tables *tables);
/* The connection was cut under a call that cannot be made again. */
enum mla_status mlac_was_cut(struct mla_client *c);

/* ---- sync pages (client_sync.c) ---- */

/* The n mapped 64-bit words at a location, or NULL when they are none of this client's. */
uint64_t *mlac_sync_find(const struct mla_client *c, const struct mla_location *at, uint32_t n);
/* The client goes away: its sync pages live on alone. */
void mlac_sync_orphan(struct mla_client *c);

/* ---- jobs (client_decode.c, client_step.c) ---- */

void mlac_put_args(struct mla_decode_request *out, const struct mla_decode_args *a);
/* A job of this type (0: any) that is in flight, or answered and not handed out; NULL with the last error set. */
struct mlac_request *mlac_job_find(struct mla_client *c, mla_request_id request, uint16_t type);
/* The client goes away: its templates are only to be freed. */
void mlac_template_orphan(struct mla_client *c);

#endif
