#include "daemon/net/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/net/adopt.h"
#include "daemon/util/cleanup.h"

#define LOCK_SUFFIX   ".lock"
#define LOCK_ATTEMPTS 16

typedef char lock_path[sizeof(((struct listen_socket *)0)->path) + sizeof(LOCK_SUFFIX)];

static void lock_name(const struct listen_socket *s, lock_path out)
{
    snprintf(out, sizeof(lock_path), "%s" LOCK_SUFFIX, s->path);
}

static int refuse_errno(struct mla_error *err, const char *what, const char *path)
{
    int e = errno;
    enum mla_status code = e == EACCES || e == EPERM     ? MLA_PERMISSION_DENIED
                           : e == ENOENT || e == ENOTDIR ? MLA_NOT_FOUND
                                                         : MLA_INTERNAL;
    if (code == MLA_NOT_FOUND) /* of what is made here only the folder can be missing */
        return mla_error_set(err, code, "socket_path", "%s %s: there is no such folder", what, path);
    return mla_error_set(err, code, "socket_path", "%s %s: %s", what, path, strerror(e));
}

/* The holder removes the lock file before it lets go of it, so a lock counts only if the file still has its name. */
static int take_lock(struct listen_socket *s, struct mla_error *err)
{
    lock_path name;
    lock_name(s, name);
    for (int i = 0; i < LOCK_ATTEMPTS; i++) {
        MLA_AUTO_FD int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
            return refuse_errno(err, "cannot open the lock file", name);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            if (errno != EWOULDBLOCK)
                return refuse_errno(err, "cannot lock", name);
            return mla_error_set(err, MLA_ALREADY_EXISTS, "socket_path", "another process holds the lock %s", name);
        }
        struct stat mine, named;
        if (fstat(fd, &mine) < 0)
            return refuse_errno(err, "cannot look at", name);
        if (!S_ISREG(mine.st_mode))
            return mla_error_set(err, MLA_ALREADY_EXISTS, "socket_path", "%s is not a plain file", name);
        if (lstat(name, &named) == 0 && named.st_dev == mine.st_dev && named.st_ino == mine.st_ino) {
            s->lock_fd = mla_steal_fd(&fd);
            return 0;
        }
    }
    return mla_error_set(err, MLA_BUSY, "socket_path", "the lock file %s keeps being replaced", name);
}

/* Removes what an ended daemon left at the path; refuses what is not that. */
static int clear_stale(const struct sockaddr_un *addr, struct mla_error *err)
{
    const char *path = addr->sun_path;
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : refuse_errno(err, "cannot look at", path);
    if (!S_ISSOCK(st.st_mode))
        return mla_error_set(err, MLA_ALREADY_EXISTS, "socket_path", "%s exists and is not a socket", path);
    MLA_AUTO_FD int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0)
        return refuse_errno(err, "cannot make a socket for", path);
    /* EAGAIN: somebody listens and the backlog is full. */
    if (connect(probe, (const struct sockaddr *)addr, sizeof(*addr)) == 0 || errno == EAGAIN)
        return mla_error_set(err, MLA_ALREADY_EXISTS, "socket_path", "another process listens at %s", path);
    if (errno == EPROTOTYPE)
        return mla_error_set(err, MLA_ALREADY_EXISTS, "socket_path", "%s is a socket of another type", path);
    if (errno != ECONNREFUSED)
        return refuse_errno(err, "cannot probe", path);
    if (unlink(path) < 0)
        return refuse_errno(err, "cannot remove the stale socket", path);
    return 0;
}

/* (gid_t)-1 means "as it is" to chown(2). */
static int find_group(const char *name, gid_t *gid, struct mla_error *err)
{
    *gid = (gid_t)-1;
    if (!name || !*name)
        return 0;
    errno = 0;
    const struct group *g = getgrnam(name);
    if (g) {
        *gid = g->gr_gid;
        return 0;
    }
    char *end;
    unsigned long v = strtoul(name, &end, 10);
    if (*name < '0' || *name > '9' || *end || v >= (gid_t)-1)
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "socket_group", "there is no group %s", name);
    *gid = (gid_t)v;
    return 0;
}

static int bind_path(struct listen_socket *s, const struct sockaddr_un *addr, mode_t mode, gid_t gid,
                     struct mla_error *err)
{
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return refuse_errno(err, "cannot make a socket for", s->path);
    /* Nobody but the owner until the group is right; connections are refused until listen(2) anyway. */
    mode_t before = umask(0177);
    int rc = bind(s->fd, (const struct sockaddr *)addr, sizeof(*addr));
    umask(before);
    if (rc < 0)
        return refuse_errno(err, "cannot bind", s->path);
    struct stat st;
    if (lstat(s->path, &st) < 0)
        return refuse_errno(err, "cannot look at", s->path);
    s->dev = st.st_dev;
    s->ino = st.st_ino;
    s->bound = true;
    if (gid != (gid_t)-1 && lchown(s->path, (uid_t)-1, gid) < 0)
        return refuse_errno(err, "cannot give to the group", s->path);
    if (chmod(s->path, mode & 0777) < 0)
        return refuse_errno(err, "cannot set the mode of", s->path);
    if (listen(s->fd, SOMAXCONN) < 0)
        return refuse_errno(err, "cannot listen at", s->path);
    return 0;
}

int listen_open(struct listen_socket *s, const char *path, mode_t mode, const char *group, struct mla_error *err)
{
    memset(s, 0, sizeof(*s));
    s->fd = s->lock_fd = -1;
    int rc = adopt_socket(&s->fd, err);
    if (rc || s->fd >= 0)
        return rc;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t n = path ? strlen(path) : 0;
    if (n == 0 || n >= sizeof(addr.sun_path)) {
        rc = mla_error_set(err, n ? MLA_TOO_LARGE : MLA_INVALID_ARGUMENT, "socket_path",
                           "a socket's path has 1 to %zu bytes, this one %zu", sizeof(addr.sun_path) - 1, n);
        if (err) {
            err->value = n;
            err->limit = sizeof(addr.sun_path) - 1;
        }
        return rc;
    }
    memcpy(s->path, path, n + 1);
    memcpy(addr.sun_path, path, n + 1);
    gid_t gid;
    rc = find_group(group, &gid, err);
    if (!rc)
        rc = take_lock(s, err);
    if (!rc)
        rc = clear_stale(&addr, err);
    if (!rc)
        rc = bind_path(s, &addr, mode, gid, err);
    if (rc)
        listen_close(s);
    return rc;
}

void listen_close(struct listen_socket *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    struct stat st;
    if (s->bound && lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
        unlink(s->path);
    s->bound = false;
    if (s->lock_fd < 0)
        return;
    lock_path name;
    lock_name(s, name);
    unlink(name); /* before the lock goes, so that nobody's new lock file is removed */
    close(s->lock_fd);
    s->lock_fd = -1;
}
