/* Daemons and MPS servers that a benchmark starts and ends. Functions return 0, or -1 after a line on stderr. */
#ifndef MLA_TESTS_BENCH_DAEMON_H
#define MLA_TESTS_BENCH_DAEMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define BENCH_DAEMON_CPUS_MAX     8
#define BENCH_DAEMON_SETTINGS_MAX 12

struct bench_daemon_options {
    const char *mlad;                /* path of the program */
    const char *backend;             /* "null", "cuda" */
    const char *const *settings;     /* "section.key=value", ended by NULL; NULL: none */
    int cpus[BENCH_DAEMON_CPUS_MAX]; /* where it may run */
    size_t n_cpus;                   /* 0: anywhere */
    const char *mps;                 /* pipe folder of an MPS server; NULL: whatever the environment says */
};

/* A daemon on a socket in a folder of its own; it ends when the caller's thread ends. */
struct bench_daemon {
    pid_t pid;
    char dir[64];
    char socket[80];
};

int bench_daemon_start(struct bench_daemon *daemon, const struct bench_daemon_options *options);
/* Ends it the way an administrator does and removes the folder; also an error: an exit code other than 0. Nothing for
 * one that was never started. */
int bench_daemon_stop(struct bench_daemon *daemon);
/* Ends it by SIGKILL, at *at_ns (bench_now_ns()). */
int bench_daemon_kill(struct bench_daemon *daemon, uint64_t *at_ns);
/* Whether this daemon knows a setting. */
bool bench_daemon_takes(const char *mlad, const char *setting);

/* An MPS server of our own on a private pipe folder. */
struct bench_mps {
    bool running;
    char dir[64]; /* the pipe folder; also made, and empty, where no server starts */
    char why[128];
};

/* running says whether there is one; where not, why says so, and 0 is returned. */
int bench_mps_start(struct bench_mps *mps);
void bench_mps_stop(struct bench_mps *mps);

/* Exit code of a child, or -1 when a signal ended it. */
int bench_reap(pid_t pid);

/* In a child: ends with its parent, runs on these CPUs. 0, or -1. */
int bench_settle(pid_t parent, const int *cpus, size_t n);

#endif
