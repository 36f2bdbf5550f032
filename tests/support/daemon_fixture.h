/* A real mlad in a process of its own, for tests: started on a socket in a fresh folder, waited for, looked at through
 * /proc, stopped, its exit code and log kept. Uses Check's assertions; the daemon ends with the process of the test in
 * any case. MLAD_PROGRAM (a compile definition) is the program's path.
 *
 *     struct daemon d;
 *     daemon_start(&d, "device.cpu_threads=1", "limits.max_regions=3", NULL);
 *     ... clients of d.socket ...
 *     daemon_stop(&d, SIGTERM, 0); // must end with code 0
 */
#ifndef MLA_TESTS_DAEMON_FIXTURE_H
#define MLA_TESTS_DAEMON_FIXTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SLOW 6 /* times that sanitizers make things slower, for bounds on time */
#else
#define TEST_SLOW 1
#endif

struct daemon {
    pid_t pid;       /* 0: not running */
    char dir[64];    /* removed by daemon_stop() and at exit */
    char socket[96]; /* dir/socket */
    char log[96];    /* standard error of all daemons started in dir */
    int exit_code;   /* 128 + n when signal n ended it */
};

/* Of daemons that are started from now on; NULL, which it is at first: the default. */
extern const char *daemon_backend;

/* Arguments: "section.key=value", ended by NULL. Always set beforehand: the socket, mode 0666, log level info, two CPU
 * threads, 64 MiB of workspace. */
void daemon_start(struct daemon *d, ...) __attribute__((sentinel));

/* Another one on the same socket, after the first has ended. */
void daemon_start_again(struct daemon *d, ...) __attribute__((sentinel));

/* Sends the signal, waits, checks the exit code and that a daemon that ended by itself has left no socket behind;
 * removes the folder. */
void daemon_stop(struct daemon *d, int signal, int exit_code);

/* Waits up to ms for the end; true with d->exit_code set. */
bool daemon_ended(struct daemon *d, unsigned ms);

/* Ends it by SIGKILL; folder and socket file stay. */
void daemon_kill(struct daemon *d);

/* ---- what it looks like from outside ---- */

uint64_t daemon_rss_bytes(const struct daemon *d);
/* Sum of the sizes of its mappings whose name contains what ("memfd:"); *n (may be NULL): their number. */
uint64_t daemon_mapped_bytes(const struct daemon *d, const char *what, unsigned *n);
unsigned daemon_fds(const struct daemon *d);
/* Number of log lines that contain text. */
unsigned daemon_log_count(const struct daemon *d, const char *text);

/* ---- small things that tests of processes need ---- */

/* A program run to its end (or up to 10 s): exit code; what it wrote to both streams in out, zero-terminated. */
int run_program(const char *const *argv, char *out, size_t cap);

/* A child that runs fn and ends with what it returns; it dies with this process. */
pid_t child_start(int (*fn)(void *), void *arg);
/* Waits; exit code, or 128 + signal. */
int child_wait(pid_t pid);
/* SIGKILL and wait. */
void child_kill(pid_t pid);

/* Waits until the condition holds, for up to ms; looks every millisecond. */
#define WAIT_FOR(condition, ms)                                                                                        \
    do {                                                                                                               \
        uint64_t wait_end = test_now_us() + (uint64_t)(ms)*1000;                                                       \
        while (!(condition)) {                                                                                         \
            ck_assert_msg(test_now_us() < wait_end, "not within %u ms: " #condition, (unsigned)(ms));                  \
            test_sleep_us(1000);                                                                                       \
        }                                                                                                              \
    } while (0)

uint64_t test_now_us(void);
void test_sleep_us(uint64_t us);

#endif
