/* Sockets passed in by the service manager (LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES: sd_listen_fds(3)); without
 * libsystemd, of which this is the only part that the daemon would use. */
#ifndef MLA_DAEMON_NET_ADOPT_H
#define MLA_DAEMON_NET_ADOPT_H

#include "proto/error.h"

#define ADOPT_FIRST_FD 3
#define ADOPT_NAME     "mlad" /* FileDescriptorName= where several sockets are passed */

/* *fd: the listening Unix stream socket, close-on-exec and non-blocking now, the caller's; or -1 when nothing was
 * passed to this process. The variables are removed from the environment, so that children do not take them for
 * theirs. 0, or positive with *err filled: what was passed cannot be used. Not thread safe (environment). */
int adopt_socket(int *fd, struct mla_error *err);

#endif
