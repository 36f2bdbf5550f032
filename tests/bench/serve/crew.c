#include "tests/bench/serve/crew.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/daemon.h"
#include "tests/bench/machine.h"
#include "tests/bench/stats.h"

#define AHEAD_NS   UINT64_C(3000000)
#define ANSWER_S   60 /* a member that takes longer hangs, and is killed */
#define END_TRIES  2000
#define END_TRY_NS 10000000

static int fail(const char *what)
{
    fprintf(stderr, "mla-bench: %s: %s\n", what, strerror(errno));
    return -1;
}

int crew_start(struct crew_member *member, crew_fn fn, const void *arg, const char *mps, int cpu)
{
    int ends[2];
    member->result =
        mmap(NULL, sizeof *member->result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (member->result == MAP_FAILED)
        return fail("mmap");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return fail("socketpair");
    const struct timeval patience = {.tv_sec = ANSWER_S};
    if (setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
        return fail("setsockopt");
    pid_t parent = getpid();
    fflush(NULL);
    member->pid = fork();
    member->sock = ends[0];
    if (member->pid == 0) {
        struct crew_side side = {.sock = ends[1], .result = member->result};
        close(ends[0]);
        if (bench_settle(parent, &cpu, cpu >= 0) != 0)
            _exit(2);
        if (mps)
            setenv("CUDA_MPS_PIPE_DIRECTORY", mps, 1);
        int code = fn(&side, arg);
        fflush(NULL);
        _exit(code);
    }
    close(ends[1]);
    return member->pid < 0 ? fail("fork") : 0;
}

int crew_ready(struct crew_member *member)
{
    char word;
    ssize_t n;
    while ((n = recv(member->sock, &word, 1, 0)) < 0 && errno == EINTR)
        continue;
    if (n == 1)
        return 0;
    if (n < 0) {
        fprintf(stderr, "mla-bench: a worker does not answer in %d s\n", ANSWER_S);
        kill(member->pid, SIGKILL);
    }
    int code = bench_reap(member->pid);
    member->pid = 0;
    if (code == BENCH_SKIPPED)
        return BENCH_SKIPPED;
    fprintf(stderr, "mla-bench: a worker ended with %d\n", code);
    return -1;
}

int crew_tell(struct crew_member *member, const struct crew_command *command)
{
    ssize_t n = send(member->sock, command, sizeof *command, MSG_NOSIGNAL);
    return n == (ssize_t)sizeof *command ? 0 : fail("a worker is gone");
}

int crew_command(struct crew_member *members, size_t n, struct crew_command command, long run_ms)
{
    int rc = 0;
    command.start_ns = bench_now_ns() + AHEAD_NS;
    command.end_ns = command.start_ns + (uint64_t)run_ms * 1000000;
    for (size_t i = 0; i < n; i++)
        if (crew_tell(&members[i], &command) != 0)
            return -1;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = crew_ready(&members[i]) == 0 ? 0 : -1;
    return rc;
}

/* Exit code of a member that has been told to end, which it has some time for. */
static int end_of(pid_t pid)
{
    const struct timespec pause = {.tv_nsec = END_TRY_NS};
    siginfo_t info = {0};
    for (int i = 0; i < END_TRIES; i++) {
        if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid)
            return bench_reap(pid);
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGKILL);
    return bench_reap(pid);
}

int crew_stop(struct crew_member *members, size_t n)
{
    int rc = 0;
    for (size_t i = 0; i < n; i++)
        if (members[i].pid > 0)
            shutdown(members[i].sock, SHUT_RDWR);
    for (size_t i = 0; i < n; i++) {
        if (members[i].pid > 0 && end_of(members[i].pid) != 0)
            rc = -1;
        if (members[i].result) {
            close(members[i].sock);
            munmap(members[i].result, sizeof *members[i].result);
        }
        memset(&members[i], 0, sizeof members[i]);
    }
    if (rc != 0)
        fputs("mla-bench: a worker did not end well\n", stderr);
    return rc;
}

bool crew_next(struct crew_side *side, struct crew_command *command)
{
    char word = 'r';
    if (send(side->sock, &word, 1, MSG_NOSIGNAL) != 1)
        return false;
    ssize_t n;
    while ((n = recv(side->sock, command, sizeof *command, MSG_WAITALL)) < 0 && errno == EINTR)
        continue;
    return n == (ssize_t)sizeof *command;
}

void crew_turns(struct crew_side *side, const struct crew_command *command, void (*turn)(void *arg, uint64_t i),
                void *arg)
{
    struct crew_result *r = side->result;
    uint64_t most =
        command->turns_max != 0 && command->turns_max < CREW_SAMPLES_MAX ? command->turns_max : CREW_SAMPLES_MAX;
    uint64_t now = bench_now_ns();
    r->turns = 0;
    while (now < command->start_ns)
        now = bench_now_ns();
    r->start_ns = now;
    while (now < command->end_ns && r->turns < most) {
        uint64_t from = now;
        turn(arg, r->turns);
        now = bench_now_ns();
        r->us[r->turns++] = 1e-3f * (float)(now - from);
    }
    r->end_ns = now;
}

double crew_rate(const struct crew_member *members, size_t n)
{
    double rate = 0;
    for (size_t i = 0; i < n; i++) {
        const struct crew_result *r = members[i].result;
        rate += r->end_ns > r->start_ns ? 1e9 * (double)r->turns / (double)(r->end_ns - r->start_ns) : 0;
    }
    return rate;
}

size_t crew_samples(const struct crew_member *members, size_t n, double **us)
{
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total += members[i].result->turns;
    *us = calloc(total + 1, sizeof **us);
    if (!*us)
        return 0;
    for (size_t i = 0; i < n; i++)
        for (uint64_t k = 0; k < members[i].result->turns; k++)
            (*us)[at++] = (double)members[i].result->us[k];
    if (total > 0)
        bench_stats(*us, total);
    return total;
}
