#include "tests/bench/rtt_servers.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/machine.h"

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

/* In the child: dies with its parent, runs on its CPU. */
static int settle(pid_t parent, int cpu)
{
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        return -1;
    return bench_pin(cpu);
}

/* Exit code of pid, or -1. */
static int reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- the daemon ---- */

static void exec_daemon(const struct rtt_daemon *daemon, const char *mlad, const char *config)
{
    /* An empty configuration file: the machine's own does not count. */
    execl(mlad, mlad, "--config", config, "--socket", daemon->socket, "--log-level", "warning", "--set",
          "device.cpu_threads=1", (char *)NULL);
    fprintf(stderr, "mla-bench: %s: %s\n", mlad, strerror(errno));
}

int rtt_daemon_start(struct rtt_daemon *daemon, const char *mlad, int cpu)
{
    snprintf(daemon->dir, sizeof daemon->dir, "/tmp/mla-bench-XXXXXX");
    if (!mkdtemp(daemon->dir)) {
        daemon->dir[0] = '\0';
        return fail("a directory for the socket");
    }
    snprintf(daemon->socket, sizeof daemon->socket, "%s/sock", daemon->dir);
    pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid < 0)
        return fail("fork");
    if (daemon->pid == 0) {
        if (settle(parent, cpu) == 0)
            exec_daemon(daemon, mlad, "/dev/null");
        _exit(127);
    }
    return 0;
}

int rtt_daemon_stop(struct rtt_daemon *daemon)
{
    int rc = 0;
    if (daemon->pid > 0) {
        kill(daemon->pid, SIGTERM);
        int code = reap(daemon->pid);
        if (code != 0) {
            fprintf(stderr, "mla-bench: mlad ended with %d\n", code);
            rc = -1;
        }
    }
    if (daemon->dir[0] && rmdir(daemon->dir) != 0)
        rc = fail(daemon->dir);
    return rc;
}

/* ---- the echo ---- */

static void echo(int sock, struct rtt_echo_sizes *sizes)
{
    static char bytes[RTT_BYTES_MAX];
    for (;;) {
        /* Looked at after the first byte came: the other side sets the sizes before it sends. */
        ssize_t got = recv(sock, bytes, sizeof bytes, 0);
        if (got <= 0)
            return;
        size_t request = atomic_load(&sizes->request_bytes);
        if ((size_t)got > request || rtt_read_all(sock, bytes, request - (size_t)got) != 0 ||
            rtt_write_all(sock, bytes, atomic_load(&sizes->reply_bytes)) != 0)
            return;
    }
}

int rtt_echo_start(struct rtt_echo *e, int cpu)
{
    int socks[2];
    e->sizes = mmap(NULL, sizeof *e->sizes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (e->sizes == MAP_FAILED) {
        e->sizes = NULL;
        return fail("mmap");
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, socks) != 0)
        return fail("socketpair");
    pid_t parent = getpid();
    e->pid = fork();
    if (e->pid == 0) {
        close(socks[0]);
        if (settle(parent, cpu) != 0)
            _exit(127);
        echo(socks[1], e->sizes);
        _exit(0);
    }
    close(socks[1]);
    e->sock = socks[0];
    return e->pid < 0 ? fail("fork") : 0;
}

int rtt_echo_stop(struct rtt_echo *e)
{
    if (e->sock >= 0)
        close(e->sock);
    int code = e->pid > 0 ? reap(e->pid) : 0;
    if (e->sizes)
        munmap(e->sizes, sizeof *e->sizes);
    if (code != 0)
        fprintf(stderr, "mla-bench: the echo process ended with %d\n", code);
    return code == 0 ? 0 : -1;
}
