/* The echo processes of mla-bench rtt, and what a process has used. They are pinned before they run, end when the
 * caller's thread ends, and are given up by the stop function. Functions return 0, or -1 after a line on stderr. */
#ifndef MLA_TESTS_BENCH_RTT_SERVERS_H
#define MLA_TESTS_BENCH_RTT_SERVERS_H

#include <stdatomic.h>
#include <stddef.h>
#include <sys/types.h>

/* A process that, on each of its sockets, reads request_bytes, writes reply_bytes and starts over, until they end. With
 * one socket it blocks in recv, or polls it without a pause while spin is set; with more it waits in epoll. */
struct rtt_echo_sizes {
    _Atomic size_t request_bytes, reply_bytes; /* up to RTT_BYTES_MAX; changed between round trips only */
    _Atomic int spin;
};

#define RTT_BYTES_MAX 4096
#define RTT_SOCKS_MAX 64

struct rtt_echo {
    pid_t pid;
    unsigned n;
    int socks[RTT_SOCKS_MAX];
    struct rtt_echo_sizes *sizes; /* shared with the process */
};

int rtt_echo_start(struct rtt_echo *echo, int cpu, unsigned n);
int rtt_echo_stop(struct rtt_echo *echo);

/* The whole of it, blocking; spinning. 0, or -1 (no line: the caller says what it was about). */
int rtt_write_all(int sock, const void *bytes, size_t n);
int rtt_read_all(int sock, void *bytes, size_t n);
int rtt_spin_all(int sock, void *bytes, size_t n);

/* CPU time that a process has used, by its clock; its ticks, which are coarse, divide a difference into user and
 * system. 0, or -1. */
struct rtt_times {
    double cpu_s, user_ticks, system_ticks;
};
int rtt_times_of(pid_t pid, struct rtt_times *times);
void rtt_times_split(const struct rtt_times *from, const struct rtt_times *to, double *user_s, double *system_s);

#endif
