#include "tests/bench/rtt_servers.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/daemon.h"

static int fail(const char *what)
{
    fprintf(stderr, "mla-bench: %s: %s\n", what, strerror(errno));
    return -1;
}

int rtt_write_all(int sock, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n > 0) {
        ssize_t sent = send(sock, at, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return -1;
        at += sent;
        n -= (size_t)sent;
    }
    return 0;
}

int rtt_read_all(int sock, void *bytes, size_t n)
{
    char *at = bytes;
    while (n > 0) {
        ssize_t got = recv(sock, at, n, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

int rtt_spin_all(int sock, void *bytes, size_t n)
{
    char *at = bytes;
    while (n > 0) {
        ssize_t got = recv(sock, at, n, MSG_DONTWAIT);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got <= 0)
            return -1;
        at += got;
        n -= (size_t)got;
    }
    return 0;
}

/* ---- the echo ---- */

/* One round trip whose first bytes may not be there yet: 0; 1 when none are, of a socket that is not waited for; -1 at
 * the end. */
static int echo_once(int sock, struct rtt_echo_sizes *sizes, int flags)
{
    static char bytes[RTT_BYTES_MAX];
    /* Looked at after the first byte came: the other side sets the sizes before it sends. */
    ssize_t got = recv(sock, bytes, sizeof bytes, flags);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 1;
    if (got <= 0)
        return -1;
    size_t request = atomic_load(&sizes->request_bytes);
    if ((size_t)got > request || rtt_read_all(sock, bytes, request - (size_t)got) != 0)
        return -1;
    return rtt_write_all(sock, bytes, atomic_load(&sizes->reply_bytes));
}

static void echo_one(int sock, struct rtt_echo_sizes *sizes)
{
    while (echo_once(sock, sizes, atomic_load(&sizes->spin) ? MSG_DONTWAIT : 0) >= 0)
        continue;
}

static void echo_many(const int *socks, unsigned n, struct rtt_echo_sizes *sizes)
{
    struct epoll_event events[RTT_SOCKS_MAX];
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < n; i++) {
        events[0] = (struct epoll_event){.events = EPOLLIN, .data.fd = socks[i]};
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, socks[i], &events[0]) != 0)
            return;
    }
    for (;;) {
        int ready = epoll_wait(epoll, events, RTT_SOCKS_MAX, -1);
        for (int i = 0; i < ready; i++)
            if (echo_once(events[i].data.fd, sizes, MSG_DONTWAIT) < 0)
                return;
    }
}

int rtt_echo_start(struct rtt_echo *e, int cpu, unsigned n)
{
    int theirs[RTT_SOCKS_MAX];
    e->sizes = mmap(NULL, sizeof *e->sizes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (e->sizes == MAP_FAILED) {
        e->sizes = NULL;
        return fail("mmap");
    }
    for (e->n = 0; e->n < n; e->n++) {
        int socks[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) != 0)
            return fail("socketpair");
        e->socks[e->n] = socks[0];
        theirs[e->n] = socks[1];
    }
    pid_t parent = getpid();
    e->pid = fork();
    if (e->pid == 0) {
        for (unsigned i = 0; i < n; i++)
            close(e->socks[i]);
        if (bench_settle(parent, &cpu, 1) != 0)
            _exit(127);
        if (n == 1)
            echo_one(theirs[0], e->sizes);
        else
            echo_many(theirs, n, e->sizes);
        _exit(0);
    }
    for (unsigned i = 0; i < n; i++)
        close(theirs[i]);
    return e->pid < 0 ? fail("fork") : 0;
}

int rtt_echo_stop(struct rtt_echo *e)
{
    for (unsigned i = 0; i < e->n; i++)
        close(e->socks[i]);
    int code = e->pid > 0 ? bench_reap(e->pid) : 0;
    if (e->sizes)
        munmap(e->sizes, sizeof *e->sizes);
    if (code != 0)
        fprintf(stderr, "mla-bench: the echo process ended with %d\n", code);
    return code == 0 ? 0 : -1;
}

/* ---- CPU time ---- */

int rtt_times_of(pid_t pid, struct rtt_times *times)
{
    char path[64], text[1024];
    unsigned long user = 0, system = 0;
    clockid_t clock;
    struct timespec t;
    *times = (struct rtt_times){0};
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return -1;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = '\0';
    /* The name, in parentheses, may hold anything; fields 3 and on stand behind the last one. */
    const char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) != 2)
        return -1;
    times->cpu_s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    times->user_ticks = (double)user;
    times->system_ticks = (double)system;
    return 0;
}

void rtt_times_split(const struct rtt_times *from, const struct rtt_times *to, double *user_s, double *system_s)
{
    double cpu_s = to->cpu_s - from->cpu_s;
    double user = to->user_ticks - from->user_ticks, ticks = user + to->system_ticks - from->system_ticks;
    *user_s = ticks > 0 ? cpu_s * user / ticks : (double)NAN;
    *system_s = cpu_s - *user_s;
}
