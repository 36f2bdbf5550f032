/* The two processes that answer mla-bench rtt. Both are pinned before they run, end when the caller's thread ends, and
 * are given up by their stop function. Functions return 0, or -1 after a line on stderr. */
#ifndef MLA_TESTS_BENCH_RTT_SERVERS_H
#define MLA_TESTS_BENCH_RTT_SERVERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

/* The real daemon, on a socket in a directory of its own. */
struct rtt_daemon {
    pid_t pid;
    char dir[64];
    char socket[80];
};

int rtt_daemon_start(struct rtt_daemon *daemon, const char *mlad, int cpu);
/* Ends it the way an administrator does and removes the directory; also an error: an exit code other than 0. */
int rtt_daemon_stop(struct rtt_daemon *daemon);

/* A process that reads request_bytes, writes reply_bytes and starts over, blocking, until its socket ends. */
struct rtt_echo_sizes {
    _Atomic size_t request_bytes, reply_bytes; /* up to RTT_BYTES_MAX; changed between round trips only */
};

#define RTT_BYTES_MAX 4096

struct rtt_echo {
    pid_t pid;
    int sock;
    struct rtt_echo_sizes *sizes; /* shared with the process */
};

int rtt_echo_start(struct rtt_echo *echo, int cpu);
int rtt_echo_stop(struct rtt_echo *echo);

/* The whole of it, blocking. 0, or -1 (no line: the caller says what it was about). */
int rtt_write_all(int sock, const void *bytes, size_t n);
int rtt_read_all(int sock, void *bytes, size_t n);

#endif
