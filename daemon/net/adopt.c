#include "daemon/net/adopt.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A whole decimal number from 0 to INT_MAX, or -1. */
static int number(const char *text)
{
    if (!text || *text < '0' || *text > '9')
        return -1;
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    return errno || *end || v > INT_MAX ? -1 : (int)v;
}

/* Position of name in a colon-separated list, or -1. */
static int position(const char *names, const char *name)
{
    size_t len = strlen(name);
    for (int i = 0; names; i++) {
        const char *colon = strchr(names, ':');
        size_t n = colon ? (size_t)(colon - names) : strlen(names);
        if (n == len && memcmp(names, name, len) == 0)
            return i;
        names = colon ? colon + 1 : NULL;
    }
    return -1;
}

static bool has_option(int fd, int option, int wanted)
{
    int v;
    socklen_t n = sizeof(v);
    return getsockopt(fd, SOL_SOCKET, option, &v, &n) == 0 && v == wanted;
}

static int choose(int n_fds, const char *names, int *fd, struct mla_error *err)
{
    int at = n_fds == 1 ? 0 : position(names, ADOPT_NAME);
    if (at < 0 || at >= n_fds)
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "LISTEN_FDS",
                             "%d sockets were passed and none of them is named %s", n_fds, ADOPT_NAME);
    *fd = ADOPT_FIRST_FD + at;
    if (!has_option(*fd, SO_DOMAIN, AF_UNIX) || !has_option(*fd, SO_TYPE, SOCK_STREAM) ||
        !has_option(*fd, SO_ACCEPTCONN, 1))
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "LISTEN_FDS",
                             "descriptor %d, passed in, is not a listening Unix stream socket", *fd);
    int flags = fcntl(*fd, F_GETFL);
    if (flags < 0 || fcntl(*fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return mla_error_set(err, MLA_INTERNAL, "LISTEN_FDS", "descriptor %d: %s", *fd, strerror(errno));
    return 0;
}

int adopt_socket(int *fd, struct mla_error *err)
{
    *fd = -1;
    int n_fds = number(getenv("LISTEN_FDS"));
    bool ours = number(getenv("LISTEN_PID")) == (int)getpid() && n_fds > 0;
    int rc = 0;
    if (ours && n_fds > INT_MAX - ADOPT_FIRST_FD)
        rc = mla_error_set(err, MLA_INVALID_ARGUMENT, "LISTEN_FDS", "%d sockets cannot have been passed", n_fds);
    else if (ours)
        rc = choose(n_fds, getenv("LISTEN_FDNAMES"), fd, err);
    /* Stop at the first that is not open: the number is only the environment's word. */
    for (int i = 0; ours && i < n_fds; i++)
        if (fcntl(ADOPT_FIRST_FD + i, F_SETFD, FD_CLOEXEC) < 0)
            break;
    if (rc)
        *fd = -1;
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    return rc;
}
