/* Regions of the CPU backend: sealed memfds. */
#ifndef MLA_DAEMON_BACKEND_CPU_MEMORY_H
#define MLA_DAEMON_BACKEND_CPU_MEMORY_H

#include "daemon/backend/backend.h"

/* Maps region->fd and fills the region's second part. 0, or positive with *err filled and nothing mapped:
 *   BAD_DESCRIPTOR     not a memfd (pipe, socket, file of a file system), or one of huge pages
 *   NOT_SEALED         no F_SEAL_SHRINK: the owner could shrink it under us, and the next read would be SIGBUS
 *   MISALIGNED offset  not a multiple of the page size
 *   OUT_OF_BOUNDS size offset + size is beyond the end (limit: bytes behind offset)
 *   ACCESS_DENIED      read-write asked of a descriptor or a seal that forbids it
 *   INVALID_ARGUMENT size (0), OUT_OF_MEMORY
 * Any thread. */
int cpu_map(struct be_region *region, struct mla_error *err);

/* Ends the mapping; nothing happens for a region that is not mapped. */
void cpu_unmap(struct be_region *region);

#endif
