/* Regions of the CPU backend: sealed memfds. */
#ifndef MLA_DAEMON_BACKEND_CPU_MEMORY_H
#define MLA_DAEMON_BACKEND_CPU_MEMORY_H

#include "daemon/backend/backend.h"

/* Maps region->fd and fills the region's second part. 0, or positive with *err filled and nothing mapped: UNSUPPORTED
 * for other kinds, and what be_memfd_map() answers. Any thread. */
int cpu_map(struct be_region *region, struct mla_error *err);

/* Ends the mapping; nothing happens for a region that is not mapped. */
void cpu_unmap(struct be_region *region);

#endif
