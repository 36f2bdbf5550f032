#include "tests/bench/daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/machine.h"

#define MPS_CONTROL "nvidia-cuda-mps-control"

static int fail(const char *what)
{
    fprintf(stderr, "mla-bench: %s: %s\n", what, strerror(errno));
    return -1;
}

int bench_settle(pid_t parent, const int *cpus, size_t n)
{
    cpu_set_t set;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        return -1;
    CPU_ZERO(&set);
    for (size_t i = 0; i < n; i++)
        CPU_SET(cpus[i], &set);
    return n == 0 || sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : -1;
}

int bench_reap(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- daemons ---- */

static void exec_daemon(const struct bench_daemon *daemon, const struct bench_daemon_options *o)
{
    /* An empty configuration file: the machine's own does not count. */
    const char *argv[12 + 2 * BENCH_DAEMON_SETTINGS_MAX] = {
        o->mlad, "--config", "/dev/null", "--socket", daemon->socket, "--backend", o->backend, "--log-level", "error"};
    size_t n = 9;
    for (size_t i = 0; o->settings && o->settings[i] && i < BENCH_DAEMON_SETTINGS_MAX; i++) {
        argv[n++] = "--set";
        argv[n++] = o->settings[i];
    }
    if (o->mps)
        setenv("CUDA_MPS_PIPE_DIRECTORY", o->mps, 1);
    execv(o->mlad, (char *const *)(uintptr_t)argv);
    fail(o->mlad);
}

int bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options)
{
    snprintf(daemon->dir, sizeof daemon->dir, "/tmp/mla-bench-XXXXXX");
    if (!mkdtemp(daemon->dir)) {
        daemon->dir[0] = '\0';
        return fail("a folder for the socket");
    }
    snprintf(daemon->socket, sizeof daemon->socket, "%s/sock", daemon->dir);
    pid_t parent = getpid();
    daemon->pid = fork();
    if (daemon->pid < 0)
        return fail("fork");
    if (daemon->pid == 0) {
        if (bench_settle(parent, options->cpus, options->n_cpus) == 0)
            exec_daemon(daemon, options);
        _exit(127);
    }
    return 0;
}

static int remove_folder(struct bench_daemon *daemon)
{
    char lock[sizeof daemon->socket + 8];
    int rc = 0;
    if (daemon->dir[0]) {
        snprintf(lock, sizeof lock, "%s.lock", daemon->socket);
        unlink(daemon->socket); /* of a daemon that did not end well */
        unlink(lock);
        if (rmdir(daemon->dir) != 0)
            rc = fail(daemon->dir);
    }
    memset(daemon, 0, sizeof *daemon);
    return rc;
}

int bench_daemon_stop(struct bench_daemon *daemon)
{
    int rc = 0;
    if (daemon->pid > 0) {
        kill(daemon->pid, SIGTERM);
        int code = bench_reap(daemon->pid);
        if (code != 0) {
            fprintf(stderr, "mla-bench: mlad ended with %d\n", code);
            rc = -1;
        }
    }
    return remove_folder(daemon) != 0 ? -1 : rc;
}

int bench_daemon_kill(struct bench_daemon *daemon, uint64_t *at_ns)
{
    *at_ns = bench_now_ns();
    if (daemon->pid > 0 && kill(daemon->pid, SIGKILL) == 0)
        bench_reap(daemon->pid);
    return remove_folder(daemon);
}

/* Runs a program with its streams on /dev/null, or its input from a text; exit code, or -1. */
static int run_quietly(const char *const *argv, const char *mps, const char *input)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (mps)
            setenv("CUDA_MPS_PIPE_DIRECTORY", mps, 1), setenv("CUDA_MPS_LOG_DIRECTORY", mps, 1);
        if (null >= 0 && dup2(ends[0], STDIN_FILENO) >= 0 && dup2(null, STDOUT_FILENO) >= 0 &&
            dup2(null, STDERR_FILENO) >= 0)
            execvp(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[0]);
    bool sent = !input || write(ends[1], input, strlen(input)) == (ssize_t)strlen(input);
    close(ends[1]);
    int code = pid > 0 ? bench_reap(pid) : -1;
    return sent ? code : -1;
}

bool bench_daemon_takes(const char *mlad, const char *setting)
{
    const char *const argv[] = {mlad, "--config", "/dev/null", "--set", setting, "--check-config", NULL};
    return run_quietly(argv, NULL, NULL) == 0;
}

/* ---- MPS ---- */

int bench_mps_start(struct bench_mps *mps)
{
    const char *const argv[] = {MPS_CONTROL, "-d", NULL};
    *mps = (struct bench_mps){.running = false};
    snprintf(mps->dir, sizeof mps->dir, "/tmp/mla-mps-XXXXXX");
    if (!mkdtemp(mps->dir)) {
        mps->dir[0] = '\0';
        return fail("a folder for MPS");
    }
    int code = getenv("MLA_CUDA_DRIVER") ? 126 : run_quietly(argv, mps->dir, NULL);
    mps->running = code == 0;
    if (code != 0)
        snprintf(mps->why, sizeof mps->why, "%s",
                 code == 126   ? "the driver is not the machine's"
                 : code == 127 ? MPS_CONTROL " is not there"
                               : MPS_CONTROL " does not start");
    return 0;
}

void bench_mps_stop(struct bench_mps *mps)
{
    char text[256];
    if (!mps->dir[0])
        return;
    if (mps->running) {
        const char *const argv[] = {"timeout", "15", MPS_CONTROL, NULL};
        run_quietly(argv, mps->dir, "quit -t 5\n");
        /* Of the control process, should it not have obeyed. */
        snprintf(text, sizeof text, "%s/%s.pid", mps->dir, MPS_CONTROL);
        FILE *f = fopen(text, "re");
        int pid = 0;
        if (f && fscanf(f, "%d", &pid) == 1 && pid > 1)
            kill(pid, SIGKILL);
        if (f)
            fclose(f);
    }
    const char *const argv[] = {"rm", "-rf", mps->dir, NULL};
    run_quietly(argv, NULL, NULL);
    memset(mps, 0, sizeof *mps);
}
