/* A thread that waits for the end of a connection, so that streams which wait for done words are released while the
 * program itself is elsewhere. It polls a duplicate of the socket for the peer's hang-up and reads nothing from it.
 *
 * The list of armed requests is shared with the thread of the handle, under one mutex: nothing else of the core is. */
#ifndef MLA_CLIENT_WATCH_H
#define MLA_CLIENT_WATCH_H

#include "client/core.h"

/* 0 or -errno. The thread blocks all signals. */
int mlac_watch_start(int sock, struct mlac_watch **out);
/* The socket has been shut down, or hung up by the peer: joins. NULL is OK. No request or template is on a list. */
void mlac_watch_stop(struct mlac_watch *watch);

/* r's words are set. When the peer has hung up already they are aborted at once. */
void mlac_watch_add(struct mlac_watch *watch, struct mlac_request *r);
/* Once this returns the watcher does not touch r's words. */
void mlac_watch_remove(struct mlac_watch *watch, struct mlac_request *r);

/* The same for all words of an open template, whether a step of it is in flight or not. Removing one that is not there
 * is fine. */
void mlac_watch_add_template(struct mlac_watch *watch, struct mla_template *t);
void mlac_watch_remove_template(struct mlac_watch *watch, struct mla_template *t);

/* Status words first, then the done word: reason << 32, value + MLA_ABORT_OFFSET. A done word that has come to its
 * value is left alone, and its status words with it: the daemon may have written it as its last act. */
void mlac_words_abort(const struct mlac_words *words, enum mla_status reason);
void mlac_abort_words(const struct mlac_request *r, enum mla_status reason);

#endif
