/* A client with recovery and the daemon of test_client_server.h, which dies when it is told to: what the tests of
 * test_client_recover*.c share. One client at a time. */
#ifndef MLA_TESTS_CLIENT_RECOVER_H
#define MLA_TESTS_CLIENT_RECOVER_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

#include "tests/support/check_main.h"

#define LONG_US  UINT64_C(10000000)
#define SEEN_MAX 512

/* What the daemon was asked, in order, over all connections. */
struct ask {
    uint16_t type;
    uint64_t id;     /* of the region, cache or table set that it is about */
    uint64_t region; /* DEFINE_CACHE, DECODE: q */
    uint64_t tag, timeout_us;
    uint32_t mask_visible; /* DECODE: its first visible count */
};

struct seen_events {
    unsigned n[8]; /* by kind */
    struct mla_event last[8];
};

extern struct fake *f;
extern struct mla_client *c;
extern struct ask seen[SEEN_MAX];
extern size_t n_seen;
extern struct seen_events events;
/* Of the daemon, under its lock: */
extern uint64_t boot;
extern uint16_t hold_type;   /* requests that are held */
extern uint16_t refuse_type; /* and refused, */
extern enum mla_status refuse_with;
extern unsigned refusals;   /* so often */
extern unsigned present;    /* STATUS answers about client 77 that still name it */
extern uint64_t attach_tag; /* of published caches */

void note_event(struct mla_client *client, const struct mla_event *e, void *user);
void start_with(uint64_t recover_us);
void start(void);
void finish(void);
void set_type(uint16_t *what, uint16_t value);
/* Ends the connection; the next HELLO is answered by another daemon. */
void restart(void);
/* Dispatches until there is another connection. */
void reconnect(void);
/* Ends the connection; the client knows, and gets no other before HELLO is not held any more. */
void cut_off(void);
/* Number of requests of a type; the last of them in *last (may be NULL). */
unsigned asked(uint16_t type, struct ask *last);
/* Waits until there are so many. */
void await_asked(uint16_t type, unsigned n);

mla_region_id memory_region(struct mla_memory *memory);
mla_cache_id cache_in(mla_region_id region);
void put_table_set(mla_tables_id id);
struct mla_decode_args job_args(mla_region_id region, mla_cache_id cache, mla_tables_id tables);

#endif
