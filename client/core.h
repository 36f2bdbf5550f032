/* What a connection is without its socket: requests in flight, bytes to send, bytes received, answers and events to
 * hand out. No I/O, no clock, no callbacks, one thread at a time (the done words alone are shared with client/watch.h's
 * thread, when there is one). The socket's side is client_io.c.
 *
 * Bytes go through two windows: mlac_core_out() shows what to send, mlac_core_in() where to receive; mlac_core_step()
 * takes one frame of what was received at a time. Whatever the peer sends, memory stays bounded by the frame caps, the
 * requests in flight and MLAC_EVENTS_MAX. */
#ifndef MLA_CLIENT_CORE_H
#define MLA_CLIENT_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/codec.h"

#include "daemon/util/list.h"

#include "client/ledger.h"
#include "client/recover.h"

#include <mla/mla.h>

#define MLAC_EVENTS_MAX   4096u /* undelivered; a daemon that sends more breaks the protocol */
#define MLAC_REQUESTS_MAX (1u << 20)

/* A place in the order in which answers and events are handed out; first member of both. */
struct mlac_ready {
    struct list node;
    bool is_event;
};

struct mlac_event {
    struct mlac_ready ready;
    struct mla_event event;
};

enum mlac_role {
    MLAC_CALL,    /* a call waits for it */
    MLAC_JOB,     /* DECODE, STEP: kept until its answer is handed out */
    MLAC_LEFT,    /* its caller gave up: what it made is undone when the answer comes */
    MLAC_CLOSING, /* its caller gave up on ending a region or cache: kept for the next such call */
    MLAC_QUIET,   /* nobody waited: a refused table set becomes an event */
    MLAC_OWN      /* the library's own, of a recovery: mlac_core_step() hands its answer out */
};

enum mlac_state { MLAC_FREE, MLAC_FLIGHT, MLAC_HELD, MLAC_ANSWERED };

/* A done word that a stream may wait for, and the status words that get the reason before it. */
struct mlac_words {
    uint64_t *done; /* NULL: none */
    uint64_t value;
    uint64_t *status;
    uint32_t n_status;
};

struct mlac_request {
    struct mlac_ready ready; /* on core.ready: answered, with a callback */
    struct list order;       /* on core.flight by time of submission, or on core.spare */
    uint64_t id;             /* counter << 20 | slot: unique for the life of the connection */
    uint32_t slot;
    uint16_t type; /* enum mla_msg_type, of the request */
    enum mlac_role role;
    enum mlac_state state;
    uint64_t object;     /* what an ending call or a put is about */
    struct list watched; /* on core.watch's list while done_word is set; all of these are the watcher's to read then */
    uint64_t *done_word; /* NULL, or the mapped word that gets its abort value when the connection ends */
    uint64_t done_value;
    uint64_t *status_word; /* n_status mapped words that get the reason just before */
    uint32_t n_status;
    /* For recovery: */
    bool unsent;                 /* in flight, and not at the daemon: it is sent when that is there */
    struct mlac_job_facts facts; /* of a DECODE */
    struct mlac_tables *tables;  /* its table set, or the one that a PUT_TABLE_SET puts; a reference */
    struct mla_decode_args args;
    int32_t *visible; /* a copy, owned */
    mla_decode_fn callback;
    mla_step_fn step_callback; /* of a STEP, as the next two */
    struct mla_template *tmpl; /* until it is answered; it is not closed before */
    void *user;
    union {
        struct mla_decode_result result; /* once answered */
        struct mla_step_result step;
    };
};

struct mlac_fd {
    uint64_t at_byte; /* of all bytes ever queued: the first one of its frame */
    int fd;           /* owned */
};

struct mlac_core {
    /* requests */
    struct mlac_request **slots;
    uint32_t n_slots;
    uint64_t next_number;
    struct list spare;
    struct list flight;
    struct list ready;        /* struct mlac_ready, oldest first */
    struct list templates;    /* struct mla_template: those that are open */
    struct mlac_watch *watch; /* NULL: nobody but the thread of the handle looks at done words */
    size_t n_events;          /* of them */
    size_t n_jobs;            /* role JOB, not handed out */

    /* out: bytes [out_head, out_tail) of the buffer */
    uint8_t *out;
    size_t out_head, out_tail, out_cap;
    size_t max_send_bytes;
    uint64_t sent_bytes; /* stream position of out_head */
    struct mlac_fd *fds; /* in order; [fds_head, fds_tail) */
    size_t fds_head, fds_tail, fds_cap;

    /* in: bytes [in_head, in_tail) */
    uint8_t *in;
    size_t in_head, in_tail, in_cap;
    uint8_t *arena_bytes;
    struct mla_arena arena;
    struct mla_message msg; /* after MLAC_AWAITED: the reply, until the next step */

    /* recovery */
    bool recovers;              /* the end of a connection may not be that of the handle */
    struct mlac_ledger *ledger; /* NULL: there is no recovery */
    size_t n_unsent;
    bool held_more;    /* among them are some whose deadlines nobody has looked at */
    uint16_t own_type; /* after MLAC_OWNED: what was asked, and about what */
    uint64_t own_object;

    /* end */
    bool want_events;
    bool going; /* a fatal GOAWAY came: its status is the reason of the end */
    struct mla_error goaway;
    bool ended; /* there is no connection */
    bool over;  /* nor will there be one */
    struct mla_error reason;
};

/* 0 or -ENOMEM. */
int mlac_core_init(struct mlac_core *core, size_t max_send_bytes, bool want_events);
void mlac_core_free(struct mlac_core *core);

/* A request of this type in state FLIGHT; NULL when memory or slots are out. */
struct mlac_request *mlac_request_new(struct mlac_core *core, uint16_t type, enum mlac_role role);
/* By id, in any state but FREE; NULL when there is none. */
struct mlac_request *mlac_request_find(const struct mlac_core *core, uint64_t id);
/* By type and object among those of role CLOSING; NULL also for types that never are. */
struct mlac_request *mlac_request_find_closing(const struct mlac_core *core, uint16_t type, uint64_t object);
/* Its answer is being handed out: off all lists and not found any more; r->result stays until mlac_request_free(). */
void mlac_request_retire(struct mlac_core *core, struct mlac_request *r);
/* Off all lists and back to the pool. */
void mlac_request_free(struct mlac_core *core, struct mlac_request *r);
/* Nobody asks for it any more: the role it goes on in follows from its type. */
void mlac_request_leave(struct mlac_core *core, struct mlac_request *r);

/* The words of r that end its stream's waiting, from now until it is answered or freed. */
void mlac_request_arm(struct mlac_core *core, struct mlac_request *r, uint64_t *done, uint64_t value, uint64_t *status,
                      uint32_t n_status);
void mlac_request_disarm(struct mlac_core *core, struct mlac_request *r);
/* Its status words go away before its done word. */
void mlac_request_forget_status(struct mlac_core *core, struct mlac_request *r);

/* core_step.c: the end of the connection, for open templates; the answer of a STEP, for its template and its caller. */
void mlac_core_end_templates(struct mlac_core *core);
void mlac_step_answered(struct mlac_request *r, enum mla_status status);
void mlac_fill_step_result(struct mla_step_result *out, uint64_t id, const struct mla_step_reply *reply);

/* Queues the frame of msg for r. 0, or 1 with OVERLOADED, TOO_LARGE, OUT_OF_MEMORY or SYSTEM_ERROR (value: errno) in
 * *err, and nothing is queued. The descriptors, at most MLA_MAX_FDS_PER_FRAME, are duplicated. */
int mlac_core_send(struct mlac_core *core, const struct mlac_request *r, const struct mla_message *msg, const int *fds,
                   size_t n_fds, struct mla_error *err);

/* What to send next: n bytes at the returned address, with fds[0 .. *n_fds) on its first byte. NULL: nothing. */
const uint8_t *mlac_core_out(const struct mlac_core *core, size_t *n, int fds[MLA_MAX_FDS_PER_FRAME], size_t *n_fds);
/* n > 0 of them, and all those descriptors, have gone. */
void mlac_core_sent(struct mlac_core *core, size_t n);
static inline bool mlac_core_sending(const struct mlac_core *core)
{
    return core->out_head != core->out_tail;
}

/* Where to receive up to *n bytes, and how many came. NULL: no memory for the announced frame (the core has ended). */
uint8_t *mlac_core_in(struct mlac_core *core, size_t *n);
void mlac_core_received(struct mlac_core *core, size_t n);

enum mlac_step {
    MLAC_MORE,    /* no whole frame is there */
    MLAC_FRAME,   /* one was taken */
    MLAC_AWAITED, /* the answer of the awaited request came; a CALL's is in core.msg, and the request is freed */
    MLAC_OWNED,   /* that of an OWN request came: core.msg, core.own_type; the request is freed */
    MLAC_ENDED    /* the connection has ended, before or in this step */
};
enum mlac_step mlac_core_step(struct mlac_core *core, uint64_t awaited);

/* Ends the connection once: jobs in flight are answered, done words aborted, and so on. Keeps the first reason. Where
 * core.recovers, and the reason is one that may pass, what can be sent again stays in flight instead: core_cut.c. */
void mlac_core_end(struct mlac_core *core, const struct mla_error *reason);
/* The connection has ended, not the handle. Done words are aborted; requests are answered, freed, or unsent. */
void mlac_core_cut(struct mlac_core *core);
/* Forgets the bytes of both directions. */
void mlac_core_clear(struct mlac_core *core);
/* Another connection: its frames begin. */
void mlac_core_reopen(struct mlac_core *core);
/* Answers a DECODE or STEP that is in flight, from this side. */
void mlac_core_answer(struct mlac_core *core, struct mlac_request *r, const struct mla_error *err);
/* An event to hand out; NULL when nobody wants any, or the connection has ended over it. */
struct mla_event *mlac_core_event(struct mlac_core *core, enum mla_event_kind kind);
/* In flight, and to be sent by a later mlac_core_send(). */
void mlac_request_hold(struct mlac_core *core, struct mlac_request *r);
void mlac_request_sent(struct mlac_core *core, struct mlac_request *r);

/* The same with a text of one's own. */
void mlac_core_end_with(struct mlac_core *core, enum mla_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Oldest answer or event to hand out, taken off the list; NULL when there is none. Events are freed with
 * mlac_event_free, requests with mlac_request_free. */
struct mlac_ready *mlac_core_take(struct mlac_core *core);
void mlac_event_free(struct mlac_event *event);

/* status, clean of pointers, for a caller. */
void mlac_error_info(struct mla_error_info *out, const struct mla_error *err);

#endif
