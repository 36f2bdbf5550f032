/* The listening socket: adopted from the service manager, or bound to a path under a lock. No loop, no peers. */
#ifndef MLA_DAEMON_NET_LISTEN_H
#define MLA_DAEMON_NET_LISTEN_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

#include "proto/error.h"

struct listen_socket {
    int fd;      /* -1: closed */
    int lock_fd; /* holds the lock on <path>.lock while >= 0; only where the socket was bound here */
    bool bound;  /* the file at path was made here, and is dev:ino */
    dev_t dev;
    ino_t ino;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* "" when adopted */
};

/* Adopts, or else binds path and listens. The file appears with no more rights than mode, belongs to group (NULL: the
 * process's own; a name or a number), and is a stale one's successor only when nobody listened there while the lock was
 * held. Refused with a text for the operator: a path that is too long, a live daemon (lock or answer), a file that is
 * no socket, an unknown group, any error of the system. Sets the process's umask for a moment: before other threads.
 * 0, or positive with *err filled and *s closed. */
int listen_open(struct listen_socket *s, const char *path, mode_t mode, const char *group, struct mla_error *err);

/* Closes; removes the file if it still is the one that was bound, then the lock file. May be called again. */
void listen_close(struct listen_socket *s);

#endif
