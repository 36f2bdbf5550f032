#include "tests/support/daemon_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/check_main.h"

#define ARGS_MAX    64
#define DAEMONS_MAX 8
#define READY_MS    (20000u * TEST_SLOW)
#define END_MS      (20000u * TEST_SLOW)

const char *daemon_backend;

/* What is still there when the test's process ends: ended and removed then. A failed test leaves through exit(). */
static struct daemon *running[DAEMONS_MAX];
static pid_t owner;

uint64_t test_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void test_sleep_us(uint64_t us)
{
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static void remove_dir(const struct daemon *d)
{
    DIR *dir = opendir(d->dir);
    if (dir == NULL)
        return;
    struct dirent *e;
    while ((e = readdir(dir)) != NULL)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    (void)rmdir(d->dir);
}

static void show_log(const struct daemon *d)
{
    char line[1024];
    FILE *f = fopen(d->log, "re");
    if (f == NULL)
        return;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    fseek(f, size > 8192 ? size - 8192 : 0, SEEK_SET);
    fprintf(stderr, "---- end of the daemon's log\n");
    while (fgets(line, sizeof(line), f) != NULL)
        fputs(line, stderr);
    fprintf(stderr, "----\n");
    fclose(f);
}

static void at_exit(void)
{
    if (getpid() != owner)
        return;
    for (unsigned i = 0; i < DAEMONS_MAX; i++) {
        struct daemon *d = running[i];
        if (d == NULL)
            continue;
        show_log(d);
        if (d->pid > 0) {
            kill(d->pid, SIGKILL);
            waitpid(d->pid, NULL, 0);
        }
        remove_dir(d);
    }
}

static void remember(struct daemon *d)
{
    if (owner != getpid()) {
        owner = getpid();
        memset(running, 0, sizeof(running));
        atexit(at_exit);
    }
    for (unsigned i = 0; i < DAEMONS_MAX; i++) {
        if (running[i] == NULL) {
            running[i] = d;
            return;
        }
    }
    ck_abort_msg("too many daemons");
}

static void forget(const struct daemon *d)
{
    for (unsigned i = 0; i < DAEMONS_MAX; i++)
        if (running[i] == d)
            running[i] = NULL;
}

static bool listens(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool yes = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
    close(fd);
    return yes;
}

static void spawn(struct daemon *d, va_list ap)
{
    static const char *const always[] = {"daemon.socket_mode=0666", "device.cpu_threads=2",
                                         "device.workspace_bytes=64M"};
    const char *program = mla_test_path("mlad", MLAD_PROGRAM);
    const char *argv[ARGS_MAX] = {program, "--config", "/dev/null", "--socket", d->socket};
    size_t n = 5;
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) {
        argv[n++] = "--set";
        argv[n++] = always[i];
    }
    if (daemon_backend != NULL) {
        argv[n++] = "--backend";
        argv[n++] = daemon_backend;
    }
    for (const char *arg; (arg = va_arg(ap, const char *)) != NULL;) {
        ck_assert_uint_lt(n, ARGS_MAX - 3);
        argv[n++] = "--set";
        argv[n++] = arg;
    }
    pid_t parent = getpid();
    d->pid = fork();
    ck_assert_int_ge(d->pid, 0);
    if (d->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(125);
        int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(log, STDERR_FILENO);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(126);
    }
    uint64_t end = test_now_us() + READY_MS * UINT64_C(1000);
    while (!listens(d->socket)) {
        ck_assert_msg(!daemon_ended(d, 0), "the daemon ended with code %d instead of listening", d->exit_code);
        ck_assert_msg(test_now_us() < end, "the daemon does not listen");
        test_sleep_us(2000);
    }
}

void daemon_start(struct daemon *d, ...)
{
    va_list ap;
    memset(d, 0, sizeof(*d));
    snprintf(d->dir, sizeof(d->dir), "/tmp/mlad-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(d->dir));
    chmod(d->dir, 0755); /* workers of other users reach the socket */
    snprintf(d->socket, sizeof(d->socket), "%s/socket", d->dir);
    snprintf(d->log, sizeof(d->log), "%s/log", d->dir);
    remember(d);
    va_start(ap, d);
    spawn(d, ap);
    va_end(ap);
}

void daemon_start_again(struct daemon *d, ...)
{
    va_list ap;
    ck_assert_int_eq(d->pid, 0);
    va_start(ap, d);
    spawn(d, ap);
    va_end(ap);
}

bool daemon_ended(struct daemon *d, unsigned ms)
{
    uint64_t end = test_now_us() + ms * UINT64_C(1000);
    while (d->pid > 0) {
        int status;
        pid_t r = waitpid(d->pid, &status, WNOHANG);
        ck_assert_int_ge(r, 0);
        if (r == d->pid) {
            d->pid = 0;
            d->exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
            return true;
        }
        if (test_now_us() >= end)
            return false;
        test_sleep_us(1000);
    }
    return true;
}

void daemon_kill(struct daemon *d)
{
    kill(d->pid, SIGKILL);
    ck_assert(daemon_ended(d, END_MS));
}

void daemon_stop(struct daemon *d, int sig, int exit_code)
{
    if (d->pid > 0) {
        kill(d->pid, sig);
        ck_assert_msg(daemon_ended(d, END_MS), "the daemon does not end");
    }
    ck_assert_msg(d->exit_code == exit_code, "the daemon ended with code %d, not %d", d->exit_code, exit_code);
    if (d->exit_code < 128)
        ck_assert_msg(access(d->socket, F_OK) != 0, "the socket file is still there");
    forget(d);
    remove_dir(d);
}

/* ---- /proc ---- */

uint64_t daemon_rss_bytes(const struct daemon *d)
{
    char path[64];
    unsigned long long pages = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)d->pid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%*u %llu", &pages), 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t daemon_mapped_bytes(const struct daemon *d, const char *what, unsigned *n)
{
    char path[64], line[1024];
    uint64_t bytes = 0;
    unsigned count = 0;
    snprintf(path, sizeof(path), "/proc/%d/maps", (int)d->pid);
    FILE *f = fopen(path, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        unsigned long long begin, end;
        if (strstr(line, what) != NULL && sscanf(line, "%llx-%llx", &begin, &end) == 2) {
            bytes += end - begin;
            count++;
        }
    }
    fclose(f);
    if (n != NULL)
        *n = count;
    return bytes;
}

unsigned daemon_fds(const struct daemon *d)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)d->pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

unsigned daemon_log_count(const struct daemon *d, const char *text)
{
    char line[4096];
    unsigned n = 0;
    FILE *f = fopen(d->log, "re");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof(line), f) != NULL)
        n += strstr(line, text) != NULL;
    fclose(f);
    return n;
}

/* ---- processes ---- */

int run_program(const char *const *argv, char *out, size_t cap)
{
    int pipes[2];
    size_t n = 0;
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(pipes[1], STDOUT_FILENO);
        dup2(pipes[1], STDERR_FILENO);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(126);
    }
    close(pipes[1]);
    struct pollfd p = {.fd = pipes[0], .events = POLLIN};
    bool timed_out = false;
    for (;;) {
        char sink[512];
        if (poll(&p, 1, 10000 * TEST_SLOW) == 0) {
            timed_out = true;
            kill(pid, SIGKILL);
            break;
        }
        bool full = n + 1 >= cap;
        ssize_t k = read(pipes[0], full ? sink : out + n, full ? sizeof(sink) : cap - 1 - n);
        if (k <= 0)
            break;
        n += full ? 0 : (size_t)k;
    }
    out[n] = '\0';
    close(pipes[0]);
    int code = child_wait(pid);
    ck_assert_msg(!timed_out, "%s does not end", argv[0]);
    return code;
}

pid_t child_start(int (*fn)(void *), void *arg)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(125);
        _exit(fn(arg));
    }
    return pid;
}

int child_wait(pid_t pid)
{
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        ck_assert_int_eq(errno, EINTR);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void child_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    (void)child_wait(pid);
}
