/* The socket's side of the core, and the waiting. */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/util/clock.h"

uint64_t mlac_deadline(uint64_t timeout_us)
{
    uint64_t now = mla_now_ns();
    if (timeout_us > (UINT64_MAX - now) / MLA_NS_PER_US)
        return MLA_FOREVER;
    return now + timeout_us * MLA_NS_PER_US;
}

uint64_t mlac_left_us(uint64_t deadline_ns)
{
    uint64_t now = mla_now_ns();
    if (deadline_ns == MLA_FOREVER)
        return MLA_FOREVER;
    return deadline_ns > now ? (deadline_ns - now) / MLA_NS_PER_US : 0;
}

/* Closing takes the socket out of the epoll set; the core has answered what was in flight. The watcher has a descriptor
 * of its own, so that only a shutdown ends the connection, and the watcher's waiting. */
void mlac_hang_up(struct mla_client *c)
{
    if (c->sock < 0)
        return;
    if (c->core.watch)
        shutdown(c->sock, SHUT_RDWR);
    close(c->sock);
    c->sock = -1;
}

static ssize_t send_some(int sock, const uint8_t *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MLA_MAX_FDS_PER_FRAME)];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    if (!n_fds)
        return send(sock, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
    mh.msg_control = control.bytes;
    mh.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
    struct cmsghdr *cm = CMSG_FIRSTHDR(&mh);
    cm->cmsg_level = SOL_SOCKET;
    cm->cmsg_type = SCM_RIGHTS;
    cm->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
    memcpy(CMSG_DATA(cm), fds, sizeof(int) * n_fds);
    return sendmsg(sock, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void mlac_io_flush(struct mla_client *c)
{
    int fds[MLA_MAX_FDS_PER_FRAME];
    size_t n, n_fds;
    const uint8_t *bytes;
    while (!c->core.ended && !c->send_dead && (bytes = mlac_core_out(&c->core, &n, fds, &n_fds))) {
        ssize_t sent = send_some(c->sock, bytes, n, fds, n_fds);
        if (sent > 0)
            mlac_core_sent(&c->core, (size_t)sent);
        else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS || errno == ETOOMANYREFS)
            return;
        else if (errno != EINTR)
            c->send_dead = true; /* what the daemon said before it went is read first */
    }
}

/* One read. True when something came; the core may have ended. */
static bool fill(struct mla_client *c)
{
    size_t room;
    if (c->down)
        return false;
    uint8_t *at = mlac_core_in(&c->core, &room);
    if (!at)
        return false;
    ssize_t n = recv(c->sock, at, room, MSG_DONTWAIT);
    if (n > 0) {
        mlac_core_received(&c->core, (size_t)n);
        return true;
    }
    if (n == 0)
        mlac_core_end_with(&c->core, MLA_DISCONNECTED, "the daemon closed the connection");
    else if (c->send_dead || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
        mlac_core_end_with(&c->core, MLA_DISCONNECTED, "the connection broke (errno %d)", errno);
    return false;
}

/* Until the socket is ready or the deadline has passed. */
static void wait_ready(struct mla_client *c, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = c->sock, .events = POLLIN}; /* -1: only the time is waited for */
    uint64_t wake_ns = mlac_recover_wake_ns(c);
    if (wake_ns < deadline_ns)
        deadline_ns = wake_ns;
    if (mlac_core_sending(&c->core) && !c->send_dead)
        p.events |= POLLOUT;
    if (deadline_ns == MLA_FOREVER) {
        ppoll(&p, 1, NULL, NULL);
        return;
    }
    uint64_t now = mla_now_ns();
    uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec ts = {.tv_sec = (time_t)(left / MLA_NS_PER_S), .tv_nsec = (long)(left % MLA_NS_PER_S)};
    ppoll(&p, 1, &ts, NULL);
}

/* Reads without sleeping for as long as was asked for. True: something came, or the connection has ended. */
static bool spin(struct mla_client *c, uint64_t deadline_ns)
{
    if (c->spin_ns == 0 || c->down || mlac_core_sending(&c->core))
        return false;
    uint64_t end_ns = mla_now_ns() + c->spin_ns;
    end_ns = deadline_ns < end_ns ? deadline_ns : end_ns;
    do {
        if (fill(c) || c->core.ended)
            return true;
    } while (mla_now_ns() < end_ns);
    return false;
}

/* A job that this side has answered, or the end of the connection before. */
static bool is_answered(const struct mla_client *c, uint64_t awaited)
{
    const struct mlac_request *r = mlac_request_find(&c->core, awaited);
    return r && r->role == MLAC_JOB && r->state == MLAC_ANSWERED;
}

enum mlac_outcome mlac_io_wait(struct mla_client *c, uint64_t awaited, uint64_t deadline_ns)
{
    for (bool looked = false;; looked = true) {
        enum mlac_step step;
        while ((step = mlac_core_step(&c->core, awaited)) == MLAC_FRAME || step == MLAC_OWNED)
            if (step == MLAC_OWNED)
                mlac_recover_answered(c);
        if (step == MLAC_AWAITED)
            return MLAC_DONE;
        if (step == MLAC_ENDED && !c->core.over && !c->down) {
            mlac_recover_notice(c);
            return c->core.over ? MLAC_LOST : MLAC_CUT;
        }
        mlac_recover_tick(c);
        if (c->core.over) {
            mlac_hang_up(c);
            return MLAC_LOST;
        }
        if (awaited == MLAC_AWAIT_UP ? looked && mlac_up(c)
            : !awaited               ? !list_empty(&c->core.ready)
                                     : is_answered(c, awaited))
            return MLAC_DONE;
        if (looked && deadline_ns != MLA_FOREVER && mla_now_ns() >= deadline_ns)
            return MLAC_EXPIRED;
        mlac_io_flush(c);
        if (spin(c, deadline_ns))
            continue;
        wait_ready(c, deadline_ns);
        fill(c);
    }
}

/* Also while there is no connection, mla_fd() says when there is something to do: to try again. */
static void settle_timer(struct mla_client *c)
{
    uint64_t at_ns = c->core.over ? UINT64_MAX : mlac_recover_wake_ns(c);
    if (c->timer < 0 || at_ns == c->timer_ns)
        return;
    struct itimerspec spec = {{0, 0}, {0, 0}}; /* also takes back what has gone off */
    if (at_ns != UINT64_MAX)
        spec.it_value = (struct timespec){(time_t)(at_ns / MLA_NS_PER_S), (long)(at_ns % MLA_NS_PER_S)};
    if (timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &spec, NULL) == 0)
        c->timer_ns = at_ns;
}

void mlac_io_settle(struct mla_client *c)
{
    if (c->core.ended && !c->core.over)
        mlac_recover_notice(c);
    if (c->core.over)
        mlac_hang_up(c);
    if (mlac_up(c))
        mlac_drop_garbage(c);
    settle_timer(c);
    bool want_out = c->sock >= 0 && mlac_core_sending(&c->core) && !c->send_dead;
    if (c->sock >= 0 && want_out != c->armed_out) {
        struct epoll_event ev = {.events = want_out ? EPOLLIN | EPOLLOUT : EPOLLIN};
        if (epoll_ctl(c->epoll, EPOLL_CTL_MOD, c->sock, &ev) == 0)
            c->armed_out = want_out;
    }
    bool want = c->core.over || !list_empty(&c->core.ready);
    if (want != c->signalled) {
        uint64_t one = 1;
        ssize_t n = want ? write(c->wake, &one, sizeof(one)) : read(c->wake, &one, sizeof(one));
        if (n == (ssize_t)sizeof(one))
            c->signalled = want;
    }
}
