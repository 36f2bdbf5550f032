#include "tests/chaos/world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
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

#define DEVICE_LOST_EXIT 3
#define END_US           UINT64_C(90000000) /* for workers to end */

const char *const event_names[EVENTS] = {"kill_daemon", "drain_daemon", "stop_daemon", "kill_worker",
                                         "stop_worker", "cut",          "evict",       "device_fault"};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static uint64_t random_us(struct world *w, uint32_t least_ms, uint32_t most_ms)
{
    return (least_ms + prng_below(&w->random, most_ms - least_ms + 1)) * MS_US;
}

static void say_fault(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say_fault(struct world *w, const char *fmt, ...)
{
    va_list args;
    if (w->first_fault[0])
        return;
    va_start(args, fmt);
    vsnprintf(w->first_fault, sizeof(w->first_fault), fmt, args);
    va_end(args);
}

/* ---- processes ---- */

static char worker_socket[96];

/* A cut: every connection of this process to the daemon, whatever it is in the middle of. */
static void on_cut(int signal)
{
    int saved = errno;
    (void)signal;
    for (int fd = 3; fd < 64; fd++) {
        struct sockaddr_un peer;
        socklen_t n = sizeof(peer);
        memset(&peer, 0, sizeof(peer));
        if (getpeername(fd, (struct sockaddr *)&peer, &n) == 0 && peer.sun_family == AF_UNIX &&
            strcmp(peer.sun_path, worker_socket) == 0)
            shutdown(fd, shared->cut_how);
    }
    errno = saved;
}

static pid_t start(struct world *w, void (*fn)(struct world *, void *), void *arg)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        fn(w, arg);
    _exit(125);
}

static void be_daemon(struct world *w, void *arg)
{
    char socket[128], environment[192];
    const char *argv[32] = {w->o->mlad, "--config", "/dev/null"};
    const char *sets[] = {socket,
                          "daemon.socket_mode=0666",
                          "daemon.drain_timeout_ms=300",
                          "device.workspace_bytes=64M",
                          "device.cpu_threads=2",
                          "limits.write_timeout_ms=1000",
                          w->o->cuda ? "daemon.backend=cuda" : "daemon.backend=cpu"};
    size_t n = 3;
    (void)arg;
    snprintf(socket, sizeof(socket), "daemon.socket=%s", w->socket);
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        argv[n++] = "--set";
        argv[n++] = sets[i];
    }
    snprintf(environment, sizeof(environment), "faults=%s", w->rules);
    if (w->o->cuda)
        setenv("MLA_FAKE_CUDA", environment, 1);
    int log = open(w->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, STDERR_FILENO);
    execv(w->o->mlad, (char *const *)(uintptr_t)argv);
    _exit(126);
}

static void be_worker(struct world *w, void *arg)
{
    struct place *p = arg;
    (void)w;
    exit(p->role == STREAM ? run_stream(p) : run_worker(p));
}

static void be_prepared(struct world *w, void *arg)
{
    (void)w;
    exit(prepare(arg));
}

static void start_daemon(struct world *w)
{
    w->daemon = (struct process){.pid = start(w, be_daemon, NULL)};
}

static struct place place_of(struct world *w, unsigned i)
{
    return (struct place){.role = (enum role)(i % ROLES),
                          .index = i,
                          .seed = w->o->seed * 1000003 + ++w->lives,
                          .socket = w->socket,
                          .cuda = w->o->cuda};
}

static void start_worker(struct world *w, unsigned i)
{
    struct place p = place_of(w, i);
    w->workers[i] = (struct process){.pid = start(w, be_worker, &p)};
}

/* ---- ends ---- */

static void daemon_ended(struct world *w, int status)
{
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    /* Killed by us, or before it knew of drains; drained, in time or not; a device that was lost, which is why the
     * supervisor starts another. */
    bool fine = (w->daemon.killed && (code == 128 + SIGKILL || code == 0 || code == 4 || code == 128 + SIGTERM)) ||
                (w->o->cuda && (code == DEVICE_LOST_EXIT || code == 128 + SIGKILL));
    if (!fine) {
        w->daemon_crashes++;
        say_fault(w, "the daemon ended with code %d", code);
    }
    w->daemon = (struct process){.start_us = now_us() + random_us(w, 0, 400)};
}

static void worker_ended(struct world *w, unsigned i, int status)
{
    struct counts *n = &shared->counts[i];
    struct process *p = &w->workers[i];
    int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (!(p->killed && code == 128 + SIGKILL) && !(shared->stop && code == 0)) {
        w->worker_crashes++;
        say_fault(w, "worker %u ended with code %d", i, code);
    }
    /* What was in flight ended with the one who asked. */
    if (code != 0)
        n->abandoned = n->submitted - n->answered;
    *p = (struct process){.start_us = now_us() + random_us(w, 0, 300)};
}

static void reap(struct world *w)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == w->daemon.pid)
            daemon_ended(w, status);
        for (unsigned i = 0; i < w->o->workers; i++)
            if (pid == w->workers[i].pid)
                worker_ended(w, i, status);
    }
}

/* ---- events ---- */

static void stop(struct process *p, uint64_t for_us)
{
    if (p->stopped)
        return;
    kill(p->pid, SIGSTOP);
    p->stopped = true;
    p->wake_us = now_us() + for_us;
}

static void wake(struct process *p)
{
    if (p->pid && p->stopped)
        kill(p->pid, SIGCONT);
    p->stopped = false;
    p->wake_us = 0;
}

static void evict(struct world *w)
{
    struct mla_options o;
    struct mla_client *c;
    struct mla_client_list *list = NULL;
    mla_options_init(&o);
    o.socket_path = w->socket;
    o.name = "chaos";
    o.timeout_us = 100 * MS_US;
    o.recover_us = 0;
    if (mla_open(&o, &c, NULL) != MLA_OK)
        return;
    if (mla_read_clients(c, 100 * MS_US, &list) == MLA_OK && list->n_clients > 1) {
        uint32_t which = prng_below(&w->random, (uint32_t)list->n_clients);
        if (list->clients[which]->client_id != mla_server(c)->client_id &&
            mla_evict(c, list->clients[which]->client_id, 100 * MS_US) == MLA_OK)
            w->events[EVICT]++;
    }
    mla_free(list);
    mla_close(c);
}

static void device_rules(const struct world *w, const char *rules)
{
    char fresh[128];
    snprintf(fresh, sizeof(fresh), "%s.new", w->rules);
    FILE *f = fopen(fresh, "we");
    if (!f)
        return;
    fputs(rules, f);
    fclose(f);
    (void)rename(fresh, w->rules);
}

static void device_fault(struct world *w)
{
    static const char *const rules[] = {"kernel@3=lose ILLEGAL_ADDRESS",
                                        "kernel@5=lose ECC_UNCORRECTABLE",
                                        "cuLaunchKernelEx@2=lose LAUNCH_FAILED",
                                        "kernel@4=kill",
                                        "kernel@1=delay 60",
                                        "cuIpcOpenMemHandle@1=fail OUT_OF_MEMORY"};
    device_rules(w, rules[prng_below(&w->random, sizeof(rules) / sizeof(rules[0]))]);
    w->events[FAULT]++;
}

static enum event pick(struct world *w)
{
    static const uint32_t weight[EVENTS] = {18, 8, 10, 16, 12, 26, 4, 10};
    uint32_t at = prng_below(&w->random, w->o->cuda ? 104 : 94);
    for (unsigned e = 0; e < EVENTS; e++) {
        if (at < weight[e])
            return (enum event)e;
        at -= weight[e];
    }
    return CUT;
}

static void bad_thing(struct world *w)
{
    static const int hows[] = {SHUT_RDWR, SHUT_RDWR, SHUT_WR, SHUT_RD};
    struct process *worker = &w->workers[prng_below(&w->random, w->o->workers)];
    enum event e = pick(w);
    switch (e) {
    case KILL_DAEMON:
    case DRAIN_DAEMON:
        if (!w->daemon.pid || (e == DRAIN_DAEMON && w->daemon.stopped))
            return;
        w->daemon.killed = true;
        kill(w->daemon.pid, e == KILL_DAEMON ? SIGKILL : SIGTERM);
        break;
    case STOP_DAEMON:
        if (!w->daemon.pid)
            return;
        stop(&w->daemon, random_us(w, 5, 700));
        break;
    case KILL_WORKER:
        if (!worker->pid)
            return;
        worker->killed = true;
        kill(worker->pid, SIGKILL);
        break;
    case STOP_WORKER:
        if (!worker->pid)
            return;
        stop(worker, random_us(w, 5, 1500));
        break;
    case CUT:
        if (!worker->pid)
            return;
        shared->cut_how = hows[prng_below(&w->random, 4)];
        kill(worker->pid, SIGUSR1);
        break;
    case EVICT:
        if (w->daemon.pid && !w->daemon.stopped)
            evict(w); /* counts itself */
        return;
    default:
        device_fault(w);
        return;
    }
    w->events[e]++;
}

/* Restarts, and what goes on again. */
static void keep_up(struct world *w)
{
    uint64_t now = now_us();
    reap(w);
    if (!w->daemon.pid && now >= w->daemon.start_us) {
        device_rules(w, "");
        start_daemon(w);
    }
    if (w->daemon.stopped && now >= w->daemon.wake_us)
        wake(&w->daemon);
    for (unsigned i = 0; i < w->o->workers; i++) {
        struct process *p = &w->workers[i];
        bool wanted = !shared->stop || (shared->stop == 1 && i % ROLES == OWNER);
        if (!p->pid && wanted && now >= p->start_us)
            start_worker(w, i);
        if (p->stopped && now >= p->wake_us)
            wake(p);
    }
}

/* ---- the whole ---- */

static void nap(void)
{
    const struct timespec ts = {0, 2000000};
    nanosleep(&ts, NULL);
}

static bool begin(struct world *w)
{
    struct place p = {.socket = w->socket, .cuda = w->o->cuda};
    int status = 0;
    snprintf(w->dir, sizeof(w->dir), "/tmp/mlad-chaos-XXXXXX");
    if (!mkdtemp(w->dir))
        return false;
    snprintf(w->socket, sizeof(w->socket), "%s/socket", w->dir);
    snprintf(w->log, sizeof(w->log), "%s/log", w->dir);
    snprintf(w->rules, sizeof(w->rules), "%s/rules", w->dir);
    device_rules(w, "");
    /* Before the workers, which may be told to cut in their first moment. */
    struct sigaction cut = {.sa_handler = on_cut, .sa_flags = SA_RESTART};
    snprintf(worker_socket, sizeof(worker_socket), "%s", w->socket);
    sigaction(SIGUSR1, &cut, NULL);
    start_daemon(w);
    pid_t pid = start(w, be_prepared, &p);
    if (waitpid(pid, &status, 0) != pid)
        return false;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void show_log(const struct world *w)
{
    char line[1024];
    FILE *f = fopen(w->log, "re");
    if (!f)
        return;
    if (fseek(f, -8192, SEEK_END) != 0)
        rewind(f);
    while (fgets(line, sizeof(line), f))
        fputs(line, stderr);
    fclose(f);
}

static void clean(struct world *w)
{
    DIR *dir = opendir(w->dir);
    struct dirent *e;
    if (w->daemon.pid) {
        kill(w->daemon.pid, SIGKILL);
        waitpid(w->daemon.pid, NULL, 0);
    }
    while (dir && (e = readdir(dir)) != NULL)
        (void)unlinkat(dirfd(dir), e->d_name, 0);
    if (dir)
        closedir(dir);
    (void)rmdir(w->dir);
}

/* No more bad things: what is in flight is answered, and the workers end. */
static void calm(struct world *w)
{
    uint64_t end_us = now_us() + END_US;
    bool any = true;
    device_rules(w, "");
    wake(&w->daemon);
    shared->stop = 1;
    for (unsigned i = 0; i < w->o->workers; i++)
        wake(&w->workers[i]);
    while (any && now_us() < end_us) {
        keep_up(w);
        any = false;
        for (unsigned i = 0; i < w->o->workers; i++)
            any = any || (w->workers[i].pid && (shared->stop == 2 || i % ROLES != OWNER));
        if (!any && shared->stop == 1) {
            shared->stop = 2;
            any = true;
        }
        nap();
    }
    for (unsigned i = 0; i < w->o->workers; i++) {
        if (!w->workers[i].pid)
            continue;
        w->worker_crashes++;
        say_fault(w, "worker %u does not end", i);
        kill(w->workers[i].pid, SIGKILL);
        waitpid(w->workers[i].pid, NULL, 0);
    }
}

int world_run(struct world *w, const struct options *o)
{
    w->o = o;
    w->random.state = o->seed;
    bool good = begin(w);
    if (!good)
        show_log(w);
    uint64_t end_us = now_us() + o->seconds * UINT64_C(1000000), next_us = now_us() + 300 * MS_US;
    for (unsigned i = 0; good && i < o->workers; i++)
        start_worker(w, i);
    while (good && now_us() < end_us) {
        keep_up(w);
        if (now_us() >= next_us) {
            bad_thing(w);
            next_us = now_us() + random_us(w, 10, 250);
        }
        nap();
    }
    if (good)
        calm(w);
    if (w->daemon_crashes || w->worker_crashes)
        show_log(w);
    clean(w);
    return good ? 0 : 1;
}
