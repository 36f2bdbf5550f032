#include "daemon/net/creds.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define GROUPS_FIRST_TRY 32

static int read_groups(int fd, struct net_creds *creds)
{
    /* On ERANGE the kernel tells the size it needs; credentials of a socket do not change afterwards. */
    socklen_t bytes = GROUPS_FIRST_TRY * sizeof(gid_t);
    for (;;) {
        gid_t *groups = malloc(bytes);
        if (!groups)
            return -ENOMEM;
        socklen_t got = bytes;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &got) == 0) {
            creds->groups = groups;
            creds->n_groups = got / sizeof(gid_t);
            return 0;
        }
        int e = errno;
        free(groups);
        if (e == ENOPROTOOPT || e == ENODATA)
            return 0;
        if (e != ERANGE || got <= bytes)
            return -e;
        bytes = got;
    }
}

int creds_read(int fd, struct net_creds *creds)
{
    memset(creds, 0, sizeof(*creds));
    struct ucred c;
    socklen_t n = sizeof(c);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &n) < 0)
        return -errno;
    creds->pid = c.pid;
    creds->uid = c.uid;
    creds->gid = c.gid;
    return read_groups(fd, creds);
}

void creds_free(struct net_creds *creds)
{
    free((void *)(uintptr_t)creds->groups);
    creds->groups = NULL;
    creds->n_groups = 0;
}
