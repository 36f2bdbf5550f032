/* The null backend: for measuring what the daemon itself costs. It plans as for an H200, maps memfds, computes nothing
 * (outputs stay as they were) and has ended every request when submit returns. It has no thread, so no word is watched:
 * sync pages are UNSUPPORTED. Never chosen by itself: be_find("null") finds it, be_all does not list it.
 */
#ifndef MLA_DAEMON_BACKEND_NULL_NULL_H
#define MLA_DAEMON_BACKEND_NULL_NULL_H

#include "daemon/backend/backend.h"

extern const struct be_ops be_null_ops;

#endif
