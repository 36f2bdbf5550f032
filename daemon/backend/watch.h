/* The watches of a device thread: words that it polls from the CPU until they reach their values. Device thread only.
 */
#ifndef MLA_DAEMON_BACKEND_WATCH_H
#define MLA_DAEMON_BACKEND_WATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/backend/backend.h"

/* All zero: none. */
struct be_watches {
    struct be_request **items; /* in the order they were set */
    size_t n;
    size_t cap;
};

/* 0 or -ENOMEM. */
int be_watches_add(struct be_watches *watches, struct be_request *watch);

/* Whether it was there; it may have fired before. */
bool be_watches_remove(struct be_watches *watches, const struct be_request *watch);

/* aborted: the word holds an abort value. The watch is forgotten when this returns. */
typedef void (*be_watch_fn)(void *context, struct be_request *watch, bool aborted);

/* Calls fn for each watch whose word has come (*word - value >= 0 as int64), in the order they were set. */
void be_watches_poll(struct be_watches *watches, be_watch_fn fn, void *context);

void be_watches_free(struct be_watches *watches);

#endif
