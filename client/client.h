/* What the sources of libmla share: the handle, and the steps that every call is made of:
 *
 *     mlac_begin()    clears the last error; refuses when the connection has ended
 *     mlac_call()     sends one request and waits for its reply
 *     mlac_fail()     sets the last error and returns its status
 */
#ifndef MLA_CLIENT_CLIENT_H
#define MLA_CLIENT_CLIENT_H

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
    mla_event_fn on_event;
    void *user;
    uint64_t spin_ns;  /* of each wait; 0: none */
    struct list syncs; /* struct mla_sync */
    uint64_t last_template;
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
enum mla_status mlac_system_error(struct mla_client *c, int why, const char *what);

/* ---- socket (client_io.c) ---- */

/* Point in time of a timeout from now; MLA_FOREVER stays. And back: what is left of it. */
uint64_t mlac_deadline(uint64_t timeout_us);
uint64_t mlac_left_us(uint64_t deadline_ns);

/* Closes the socket, for the daemon and the watcher too. */
void mlac_hang_up(struct mla_client *c);

enum mlac_outcome { MLAC_DONE, MLAC_EXPIRED, MLAC_LOST };

/* Sends and receives until request awaited is answered (0: until there is something to hand out), the deadline has
 * passed, or the connection has ended. Looks at the socket at least once. */
enum mlac_outcome mlac_io_wait(struct mla_client *c, uint64_t awaited, uint64_t deadline_ns);
/* Sends what goes without waiting. */
void mlac_io_flush(struct mla_client *c);
/* Makes the descriptor of mla_fd() tell the truth; the last thing that a public call does. */
void mlac_io_settle(struct mla_client *c);

/* ---- calls (client_call.c) ---- */

/* What every call that sends begins with: OK, DISCONNECTED, or INVALID_ARGUMENT when client is NULL. */
enum mla_status mlac_begin(struct mla_client *c);

/* Sends msg and waits. OK: *reply (may be NULL) is valid until the next step of the core. Else the last error is set;
 * PENDING: the request goes on as mlac_request_leave() says. object: what an ending call is about; when the same call
 * was given up before, that request is waited for and msg is not sent. */
enum mla_status mlac_call(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                          uint64_t object, uint64_t timeout_us, const struct mla_message **reply);

/* Sends msg and leaves it; refusals of table sets become events. */
enum mla_status mlac_post(struct mla_client *c, const struct mla_message *msg, uint64_t object);

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

/* ---- handing out (client_dispatch.c) ---- */

/* Runs the callbacks of what is ready now, the DISCONNECTED event included when events are wanted. Number of items. */
size_t mlac_hand_out(struct mla_client *c, bool events);

#endif
