/* Registered memory that is a sealed memfd: all regions of the CPU backend, sync pages everywhere. */
#ifndef MLA_DAEMON_BACKEND_MEMFD_H
#define MLA_DAEMON_BACKEND_MEMFD_H

#include "daemon/backend/backend.h"

/* Checks region->fd and maps its part into this process, read-write for sync pages and READ_WRITE regions. 0 with
 * *host, or positive with *err filled and nothing mapped: BAD_DESCRIPTOR     not a memfd (pipe, socket, file of a file
 * system), or one of huge pages NOT_SEALED         no F_SEAL_SHRINK: the owner could shrink it under us, and the next
 * read would be SIGBUS MISALIGNED offset  not a multiple of the page size OUT_OF_BOUNDS size offset + size is beyond
 * the end (limit: bytes behind offset) ACCESS_DENIED      read-write asked of a descriptor or a seal that forbids it
 *   INVALID_ARGUMENT size (0), OUT_OF_MEMORY
 * Any thread; munmap() of region->size bytes ends it. */
int be_memfd_map(const struct be_region *region, void **host, struct mla_error *err);

#endif
