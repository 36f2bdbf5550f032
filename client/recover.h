/* Recovery of a connection, as decisions alone: when to connect again, whether the old connection's jobs still run,
 * what a refusal means, what becomes of a job. No I/O, no clock, no memory: events come with their time, each is
 * answered by one act, which the caller carries out and reports the outcome of. The caller's side is client_recover.c.
 *
 *     UP --lost--> PAUSE --due--> CONNECT --connected--> GREET --greeted--> FENCE (same daemon) --gone--> RESTORE
 *                    ^                                             \-(another daemon)------------------->    |
 *                    |---- failed, lost, late: back-off -------------------------------------------------- all --> UP
 *     and OVER from anywhere: the limit has passed, or trying again would end the same way.
 *
 * FENCE: a connection was cut and its daemon lives. That may still run its jobs, which write to the same memory;
 * nothing is registered or sent again before it has let go of all of it. Another boot nonce: that daemon's process has
 * ended. */
#ifndef MLA_CLIENT_RECOVER_H
#define MLA_CLIENT_RECOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/status.h"

struct mlac_recover_config {
    uint64_t limit_ns; /* after the loss, until it gives up; UINT64_MAX: never. 0: there is no recovery */
    uint64_t first_ns; /* longest first pause; doubles with every attempt */
    uint64_t last_ns;  /* and never gets longer than this */
    uint64_t greet_ns; /* for the daemon's answer to HELLO */
    uint64_t seed;     /* of the jitter; another one for every client */
};

enum mlac_recover_state {
    MLAC_RECOVER_UP,
    MLAC_RECOVER_PAUSE,
    MLAC_RECOVER_CONNECT,
    MLAC_RECOVER_GREET,
    MLAC_RECOVER_FENCE,
    MLAC_RECOVER_RESTORE,
    MLAC_RECOVER_OVER
};

struct mlac_recover {
    struct mlac_recover_config config;
    enum mlac_recover_state state;
    uint64_t random;
    uint64_t wake_ns;                  /* when DUE is wanted; UINT64_MAX: not at all */
    uint64_t end_ns;                   /* when it gives up */
    uint64_t up_ns;                    /* when it came up */
    uint32_t tries;                    /* attempts in a row: since it last was up for as long as the longest pause */
    uint32_t asks;                     /* the same within FENCE and RESTORE */
    bool paused;                       /* FENCE, RESTORE: the next question waits for wake_ns */
    uint64_t boot, client;             /* of this connection */
    uint64_t fence_boot, fence_client; /* of the last one that had objects; 0: none */
    bool restarted;                    /* since the connection before: another daemon */
    enum mla_status why;               /* OVER: the last failure */
};

enum mlac_recover_kind {
    MLAC_ON_LOST,      /* the connection has ended: status */
    MLAC_ON_DUE,       /* wake_ns has come */
    MLAC_ON_CONNECTED, /* outcome of CONNECT */
    MLAC_ON_FAILED,    /* of CONNECT or GREET: status. An unanswered HELLO is the machine's own business */
    MLAC_ON_GREETED,   /* of GREET: boot, client */
    MLAC_ON_PRESENT,   /* of ASK: the daemon still has fence_client */
    MLAC_ON_GONE,      /* it has not */
    MLAC_ON_RESTORED,  /* of RESTORE: that object is there */
    MLAC_ON_REFUSED,   /* of RESTORE, or of ASK: status */
    MLAC_ON_MORE,      /* while UP: there are objects to make again after all */
    MLAC_ON_COMPLETE   /* of RESTORE: there is nothing left to register */
};

struct mlac_recover_event {
    enum mlac_recover_kind kind;
    uint64_t now_ns;
    enum mla_status status;
    uint64_t boot, client;
};

enum mlac_recover_act {
    MLAC_DO_REST,    /* nothing: wait for wake_ns, and for what the connection brings */
    MLAC_DO_CONNECT, /* open a socket */
    MLAC_DO_GREET,   /* send HELLO */
    MLAC_DO_ASK,     /* ask whether fence_client is still among the daemon's clients */
    MLAC_DO_RESTORE, /* register the next object, or the same one again */
    MLAC_DO_SKIP,    /* this object stays lost; go on as with RESTORE */
    MLAC_DO_HANG_UP, /* close the socket, and rest */
    MLAC_DO_GO,      /* all is there: send the jobs again */
    MLAC_DO_GIVE_UP  /* close for good */
};

void mlac_recover_init(struct mlac_recover *r, const struct mlac_recover_config *config);
/* The first connection, made by the caller. */
void mlac_recover_up(struct mlac_recover *r, uint64_t now_ns, uint64_t boot, uint64_t client);

enum mlac_recover_act mlac_recover_step(struct mlac_recover *r, const struct mlac_recover_event *e);

/* Whether a connection, or a greeting, that ended so may go better the next time. */
bool mlac_recover_may_retry(enum mla_status why);

/* ---- jobs ---- */

#define MLAC_TRIES_MAX 3u /* connections that a job may see the end of: it may be what ends them */

/* What recovery knows of a job. */
struct mlac_job_facts {
    bool ordered;       /* streams wait for its words, or it is a step: never sent twice */
    bool device_lost;   /* the daemon answered that, and the answer was kept until the connection's end */
    bool sent;          /* on some connection */
    bool cancelled;     /* mla_cancel() */
    uint32_t ends;      /* connections it was in flight on that have ended, this one included */
    uint64_t expire_ns; /* when its deadline_us is over; UINT64_MAX: it has none */
};

enum mlac_job_fate { MLAC_KEEP, MLAC_ANSWER };

/* The connection has ended with the job in flight, and recovery begins. ANSWER: with *status. */
enum mlac_job_fate mlac_job_cut(const struct mlac_job_facts *f, enum mla_status *status);
/* It waits to be sent. clear: the fence has been passed, so no daemon touches its memory. KEEP: it is sent, or waits
 * on. */
enum mlac_job_fate mlac_job_due(const struct mlac_job_facts *f, bool clear, uint64_t now_ns, enum mla_status *status);

#endif
