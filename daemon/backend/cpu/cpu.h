/* The CPU backend's table: memfd memory, a thread per CPU, CBLAS. It runs everything a GPU backend runs, to the same
 * contract, and is what the daemon falls back to and what tests compare against. */
#ifndef MLA_DAEMON_BACKEND_CPU_CPU_H
#define MLA_DAEMON_BACKEND_CPU_CPU_H

#include "daemon/backend/backend.h"

extern const struct be_ops be_cpu_ops;

#endif
