/* Who is at the other end: asked of the kernel at accept, never of the peer. */
#ifndef MLA_DAEMON_NET_CREDS_H
#define MLA_DAEMON_NET_CREDS_H

#include "daemon/net/net.h"

/* Fills *creds from SO_PEERCRED and SO_PEERGROUPS; groups are allocated, creds_free frees them. Kernels without
 * SO_PEERGROUPS give none. 0, or -errno with nothing allocated. */
int creds_read(int fd, struct net_creds *creds);

void creds_free(struct net_creds *creds);

#endif
