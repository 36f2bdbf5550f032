/* mlad-crowd --clients N --seconds S [--seed N] [--backend cpu|cuda] [--mlad PATH] [--commit ID] [--json FILE]
 *
 * A daemon and N client processes at once, all connected for S seconds while nothing goes wrong: the workers of
 * mlad-chaos without the chaos. Beside them somebody reads everything there is to read and has the configuration read
 * again. Made for ThreadSanitizer: run.sh is that run. Exit code 0 when every submission was answered once and right,
 * all processes ended well, and all clients were there together. */
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/chaos/chaos.h"

#define PATIENCE_S 240 /* of the end, for a machine with few processors and a sanitizer */

struct shared *shared;

struct options {
    unsigned clients, seconds;
    uint64_t seed;
    bool cuda;
    const char *mlad, *commit, *json;
};

struct crowd {
    struct options o;
    char dir[64], socket[96], log[96], config[96];
    pid_t daemon, workers[WORKERS_MAX];
    struct mla_client *reader;
    uint64_t reads, reloads, most_clients;
    double launches, decodes; /* of the daemon, at the end */
    char fault[256];          /* the first one that is no worker's own */
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void nap(long ms)
{
    const struct timespec ts = {0, ms * 1000000};
    nanosleep(&ts, NULL);
}

static void say(struct crowd *w, const char *what, long value)
{
    if (!w->fault[0])
        snprintf(w->fault, sizeof(w->fault), "%.200s (%ld)", what, value);
}

/* ---- processes ---- */

static pid_t child(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(125);
    return 0;
}

/* Weights that change from one reload to the next. */
static void write_config(struct crowd *w)
{
    char fresh[112];
    snprintf(fresh, sizeof(fresh), "%s.new", w->config);
    FILE *f = fopen(fresh, "we");
    if (!f)
        return;
    fprintf(f, "[weights]\nclients = eager:%u stream:%u owner:3\n", 1 + (unsigned)(w->reloads % 5),
            1 + (unsigned)(w->reloads % 3));
    fclose(f);
    if (rename(fresh, w->config) != 0)
        say(w, "rename", 0);
}

static void start_daemon(struct crowd *w)
{
    char socket[128];
    const char *backend = w->o.cuda ? "cuda" : "cpu";
    w->daemon = child();
    if (w->daemon != 0)
        return;
    snprintf(socket, sizeof(socket), "daemon.socket=%s", w->socket);
    int log = open(w->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, STDERR_FILENO);
    execl(w->o.mlad, w->o.mlad, "--config", w->config, "--set", socket, "--backend", backend, "--set",
          "device.workspace_bytes=64M", "--set", "device.cpu_threads=2", "--set", "scheduler.max_backlog_ms=0", "--set",
          "scheduler.default_timeout_ms=0", (char *)NULL);
    _exit(126);
}

/* One owner of a published cache, and the rest in equal parts; workers say it by their index. */
static enum role role_of(unsigned i)
{
    static const enum role others[] = {EAGER, ATTACHER, STREAM};
    return i == 0 ? OWNER : others[i % 3];
}

static void start_worker(struct crowd *w, unsigned i)
{
    struct place p = {.role = role_of(i),
                      .index = i,
                      .seed = w->o.seed * 1000003 + i,
                      .patient = true,
                      .socket = w->socket,
                      .cuda = w->o.cuda};
    w->workers[i] = child();
    if (w->workers[i] == 0)
        exit(p.role == STREAM ? run_stream(&p) : run_worker(&p));
}

static bool prepared(struct crowd *w)
{
    struct place p = {.socket = w->socket, .cuda = w->o.cuda, .patient = true};
    int status = 0;
    pid_t pid = child();
    if (pid == 0)
        exit(prepare(&p));
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Those that have ended; what says that one should not have. */
static unsigned reap(struct crowd *w, bool may_end)
{
    unsigned alive = 0;
    int status;
    for (unsigned i = 0; i < w->o.clients; i++) {
        if (w->workers[i] != 0 && waitpid(w->workers[i], &status, WNOHANG) == w->workers[i]) {
            w->workers[i] = 0;
            if (!may_end || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
                say(w, "a worker ended with status", status);
        }
        alive += w->workers[i] != 0;
    }
    if (w->daemon != 0 && waitpid(w->daemon, &status, WNOHANG) == w->daemon) {
        w->daemon = 0;
        say(w, "the daemon ended with status", status);
    }
    return alive;
}

/* ---- beside them ---- */

static double metric(const struct mla_metrics_info *m, const char *name)
{
    double sum = 0;
    for (size_t i = 0; i < m->n_families; i++)
        for (size_t k = 0; strcmp(m->families[i]->name, name) == 0 && k < m->families[i]->n_samples; k++)
            sum += m->families[i]->samples[k].value;
    return sum;
}

static void read_all(struct crowd *w)
{
    struct mla_client *c = w->reader;
    struct mla_health_info *health = NULL;
    struct mla_daemon_info *daemon = NULL;
    struct mla_client_list *clients = NULL;
    struct mla_cache_list *caches = NULL;
    struct mla_metrics_info *metrics = NULL;
    if (mla_read_health(c, CALL_US, &health) != MLA_OK || mla_read_daemon(c, CALL_US, &daemon) != MLA_OK ||
        mla_read_clients(c, CALL_US, &clients) != MLA_OK || mla_read_caches(c, CALL_US, &caches) != MLA_OK ||
        mla_read_metrics(c, CALL_US, &metrics) != MLA_OK) {
        say(w, mla_last_error(c)->text, 0);
    } else {
        uint64_t there = clients->n_clients - 1; /* without this one */
        w->most_clients = there > w->most_clients ? there : w->most_clients;
        w->launches = metric(metrics, "mlad_batches_total");
        w->decodes = metric(metrics, "mlad_jobs_total");
    }
    mla_free(health);
    mla_free(daemon);
    mla_free(clients);
    mla_free(caches);
    mla_free(metrics);
    w->reads++;
}

static void reload(struct crowd *w)
{
    w->reloads++;
    write_config(w);
    if (w->reloads % 2 == 0)
        kill(w->daemon, SIGHUP);
    else if (mla_reload(w->reader, CALL_US) != MLA_OK)
        say(w, mla_last_error(w->reader)->text, 0);
}

/* ---- the whole ---- */

static bool begin(struct crowd *w)
{
    const struct place p = {.socket = w->socket, .cuda = w->o.cuda};
    snprintf(w->dir, sizeof(w->dir), "/tmp/mlad-crowd-XXXXXX");
    if (!mkdtemp(w->dir))
        return false;
    snprintf(w->socket, sizeof(w->socket), "%s/socket", w->dir);
    snprintf(w->log, sizeof(w->log), "%s/log", w->dir);
    snprintf(w->config, sizeof(w->config), "%s/mlad.conf", w->dir);
    write_config(w);
    start_daemon(w);
    if (!prepared(w))
        return false;
    for (unsigned i = 0; i < w->o.clients; i++)
        start_worker(w, i);
    for (unsigned i = 0; i < 15 && !w->reader; i++) /* the daemon may take its time */
        w->reader = open_client(&p, NULL, NULL);
    return w->reader != NULL;
}

static bool all_kinds(void)
{
    uint64_t steps = 0, stream_jobs = 0, attached = 0;
    for (unsigned i = 0; i < WORKERS_MAX; i++) {
        steps += __atomic_load_n(&shared->counts[i].steps, __ATOMIC_RELAXED);
        stream_jobs += __atomic_load_n(&shared->counts[i].stream_jobs, __ATOMIC_RELAXED);
        attached += __atomic_load_n(&shared->counts[i].attached, __ATOMIC_RELAXED);
    }
    return steps > 0 && stream_jobs > 0 && attached > 0;
}

/* All there first: the time begins then. It ends when there was some of each kind of work. */
static void run(struct crowd *w)
{
    uint64_t late_us = now_us() + PATIENCE_S * UINT64_C(1000000);
    while (!w->fault[0] && w->most_clients < w->o.clients && now_us() < late_us) {
        read_all(w);
        reap(w, false);
        nap(20);
    }
    uint64_t end_us = now_us() + w->o.seconds * UINT64_C(1000000);
    while (!w->fault[0] && now_us() < (all_kinds() ? end_us : late_us)) {
        read_all(w);
        if (w->reads % 8 == 0)
            reload(w);
        reap(w, false);
        nap(50);
    }
}

static void finish(struct crowd *w)
{
    uint64_t end_us = now_us() + PATIENCE_S * UINT64_C(1000000);
    int status = 0;
    shared->stop = 1;
    for (unsigned alive = w->o.clients; alive > 0 && now_us() < end_us; nap(5)) {
        alive = reap(w, true);
        if (alive <= 1) /* the owner stays until nobody needs it */
            shared->stop = 2;
    }
    for (unsigned i = 0; i < w->o.clients; i++) {
        if (w->workers[i] == 0)
            continue;
        say(w, "a worker does not end", (long)i);
        kill(w->workers[i], SIGKILL);
        waitpid(w->workers[i], NULL, 0);
    }
    if (w->reader && w->daemon != 0)
        read_all(w);
    mla_close(w->reader);
    if (w->daemon == 0)
        return;
    kill(w->daemon, SIGTERM);
    waitpid(w->daemon, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        say(w, "the daemon ended with status", status);
}

static void show_log(const struct crowd *w)
{
    char line[1024];
    FILE *f = fopen(w->log, "re");
    while (f && fgets(line, sizeof(line), f))
        fputs(line, stderr);
    if (f)
        fclose(f);
}

static void clean(const struct crowd *w)
{
    unlink(w->log);
    unlink(w->config);
    unlink(w->socket);
    char lock[112];
    snprintf(lock, sizeof(lock), "%s.lock", w->socket);
    unlink(lock);
    rmdir(w->dir);
}

static void report(FILE *f, const struct crowd *w, const struct counts *n, bool good)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"clients", w->o.clients},
                {"clients_at_once", w->most_clients},
                {"seconds", w->o.seconds},
                {"seed", w->o.seed},
                {"submitted", n->submitted},
                {"answered", n->answered},
                {"answered_ok", n->by_status[MLA_OK]},
                {"stream_jobs", n->stream_jobs},
                {"steps", n->steps},
                {"attached", n->attached},
                {"launches", (uint64_t)w->launches},
                {"jobs_of_daemon", (uint64_t)w->decodes},
                {"reads", w->reads},
                {"reloads", w->reloads},
                {"wrong", n->wrong},
                {"late", n->late},
                {"twice", n->twice},
                {"lost", n->lost},
                {"stuck", n->stuck},
                {"unexpected", n->unexpected},
                {"reconnected", n->reconnected}};
    char when[32];
    time_t now = time(NULL);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    fprintf(f,
            "{\n  \"what\": \"mlad-crowd\",\n  \"ended\": \"%s\",\n  \"commit\": \"%s\",\n  \"sanitizer\": \"%s\",\n",
            when, w->o.commit, MLA_CROWD_SANITIZER);
    fprintf(f, "  \"backend\": \"%s\",\n", w->o.cuda ? "cuda, on the fake driver" : "cpu");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        fprintf(f, "  \"%s\": %llu,\n", rows[i].name, (unsigned long long)rows[i].value);
    fprintf(f, "  \"first_fault\": \"%s\",\n  \"passed\": %s\n}\n", n->first_fault[0] ? n->first_fault : w->fault,
            good ? "true" : "false");
}

static void add(struct counts *sum, const struct counts *n)
{
    uint64_t *to = &sum->submitted;
    const uint64_t *from = &n->submitted;
    for (size_t i = 0; i < offsetof(struct counts, first_fault) / sizeof(*to); i++)
        to[i] += from[i];
    if (n->first_fault[0] && !sum->first_fault[0])
        memcpy(sum->first_fault, n->first_fault, sizeof(sum->first_fault));
}

static int usage(void)
{
    fprintf(stderr, "usage: mlad-crowd --clients N --seconds S [--seed N] [--backend cpu|cuda] [--mlad PATH] "
                    "[--commit ID] [--json FILE]\n");
    return 2;
}

static bool take_options(struct options *o, int argc, char **argv)
{
    static const struct option longs[] = {
        {"clients", 1, NULL, 'n'}, {"seconds", 1, NULL, 's'}, {"seed", 1, NULL, 'r'}, {"backend", 1, NULL, 'b'},
        {"mlad", 1, NULL, 'm'},    {"commit", 1, NULL, 'c'},  {"json", 1, NULL, 'j'}, {NULL, 0, NULL, 0}};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'n')
            o->clients = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 's')
            o->seconds = (unsigned)strtoul(optarg, NULL, 10);
        else if (c == 'r')
            o->seed = strtoull(optarg, NULL, 10);
        else if (c == 'b' && (strcmp(optarg, "cuda") == 0 || strcmp(optarg, "cpu") == 0))
            o->cuda = strcmp(optarg, "cuda") == 0;
        else if (c == 'm')
            o->mlad = optarg;
        else if (c == 'c')
            o->commit = optarg;
        else if (c == 'j')
            o->json = optarg;
        else
            return false;
    }
    return o->clients >= ROLES && o->clients <= WORKERS_MAX && o->seconds > 0 && optind == argc;
}

int main(int argc, char **argv)
{
    static struct crowd w = {.o = {.clients = 8, .seconds = 1, .seed = 1, .mlad = MLAD_PROGRAM, .commit = ""}};
    static struct counts sum;
    if (!take_options(&w.o, argc, argv))
        return usage();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    if (begin(&w))
        run(&w);
    else
        say(&w, "it does not begin", 0);
    finish(&w);
    for (unsigned i = 0; i < w.o.clients; i++)
        add(&sum, &shared->counts[i]);
    bool good = !w.fault[0] && !sum.first_fault[0] && sum.submitted == sum.answered && sum.by_status[MLA_OK] > 0 &&
                all_kinds() && sum.reconnected == 0 && w.most_clients >= w.o.clients;
    report(stdout, &w, &sum, good);
    FILE *f = w.o.json ? fopen(w.o.json, "we") : NULL;
    if (f) {
        report(f, &w, &sum, good);
        good = fclose(f) == 0 && good;
    }
    if (!good)
        show_log(&w);
    clean(&w);
    return good && (f || !w.o.json) ? 0 : 1;
}
