/* mlad-soak [--seconds N] [--connections N] [--clients N] [--seed S] [--backend cpu|cuda] [--period-ms N] [--churn N]
 *           [--mlad PATH] [--commit ID] [--json FILE] [--csv FILE]
 *
 * A daemon with its defaults; N connections, of which --clients decode as fast as they are answered and the others are
 * there, ask for health now and then, and --churn of them a second go and come back. Exit code 0 when every answer had
 * the right bytes, nothing was lost, what was sampled stayed flat, and all was given back in the end; 1 when not, 2
 * when it could not run. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/soak/soak.h"

#define CROWDS_MOST (CONNECTIONS_MOST / PER_CROWD + 1)
#define FILL_US     UINT64_C(60000000) /* for all to be connected, for the right bytes, and for all to be gone */

struct shared *shared;
struct load_shared *load;

struct run {
    const struct options *o;
    char dir[64], socket[96], log[96];
    pid_t daemon, children[WORKERS_MOST + CROWDS_MOST];
    unsigned n_children;
    struct sampler sampler;
    struct soak_end end;
};

/* ---- processes ---- */

static pid_t start(void)
{
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(125);
    }
    return pid;
}

static void start_daemon(struct run *r)
{
    const char *backend = r->o->cuda ? "cuda" : "cpu";
    r->daemon = start();
    if (r->daemon != 0)
        return;
    int log = open(r->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(log, STDERR_FILENO);
    execl(r->o->mlad, r->o->mlad, "--config", "/dev/null", "--socket", r->socket, "--backend", backend, (char *)NULL);
    _exit(126);
}

static int wait_for(pid_t pid, uint64_t us)
{
    uint64_t end_us = soak_now_us() + us;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (soak_now_us() >= end_us) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 128 + SIGKILL;
        }
        soak_sleep_us(5000);
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static bool right_bytes(struct run *r)
{
    pid_t pid = start();
    if (pid == 0)
        _exit(prepare(&(struct place){.socket = r->socket, .cuda = r->o->cuda}));
    return wait_for(pid, FILL_US) == 0;
}

static void start_load(struct run *r)
{
    const struct options *o = r->o;
    unsigned crowd = o->connections - o->workers;
    for (unsigned i = 0; i < o->workers; i++) {
        pid_t pid = start();
        if (pid == 0)
            _exit(run_decoder(r->socket, o, i));
        r->children[r->n_children++] = pid;
    }
    for (unsigned i = 0; crowd > 0; i++) {
        unsigned n = crowd < PER_CROWD ? crowd : PER_CROWD;
        pid_t pid = start();
        if (pid == 0)
            _exit(run_crowd(r->socket, o, i, n));
        r->children[r->n_children++] = pid;
        crowd -= n;
    }
}

/* ---- the whole ---- */

static bool all_there(const struct run *r)
{
    uint64_t end_us = soak_now_us() + FILL_US;
    uint64_t crowd = r->o->connections - r->o->workers;
    while (__atomic_load_n(&load->held, __ATOMIC_RELAXED) < crowd) {
        if (soak_now_us() >= end_us || __atomic_load_n(&load->counts.failed, __ATOMIC_RELAXED) > 0)
            return false;
        soak_sleep_us(10000);
    }
    return true;
}

static int sample(struct run *r)
{
    uint64_t begin_us = soak_now_us(), next_us = begin_us, period_us = r->o->period_ms * MS_US;
    uint64_t end_us = begin_us + r->o->seconds * UINT64_C(1000000);
    r->sampler.start_us = begin_us;
    while (next_us + period_us <= end_us) {
        next_us += period_us;
        uint64_t now_us = soak_now_us();
        if (now_us < next_us)
            soak_sleep_us(next_us - now_us);
        if (sampler_take(&r->sampler) != 0)
            return -1;
    }
    return 0;
}

/* Everybody leaves; what the daemon holds then. */
static bool empty(struct run *r)
{
    struct sampler *s = &r->sampler;
    uint64_t end_us = soak_now_us() + FILL_US;
    bool good = true;
    __atomic_store_n(&load->stop, 1, __ATOMIC_RELAXED);
    for (unsigned i = 0; i < r->n_children; i++)
        good = wait_for(r->children[i], FILL_US) == 0 && good;
    do {
        soak_sleep_us(20000);
        s->n = s->n == s->cap ? s->n - 1 : s->n;
        if (sampler_take(s) != 0)
            return false;
        s->n--; /* read, and no sample of the run */
        r->end.clients = s->columns[COLUMN_clients][s->n];
        r->end.regions = s->columns[COLUMN_regions][s->n];
        r->end.mapped_kib = s->columns[COLUMN_mapped_kib][s->n];
        r->end.table_sets = s->columns[COLUMN_table_sets][s->n];
        r->end.descriptors_after = (unsigned)s->columns[COLUMN_descriptors][s->n];
    } while ((r->end.clients != 1 || r->end.descriptors_after != r->end.descriptors_before) && soak_now_us() < end_us);
    return good;
}

/* The last lines of what the daemon said. */
static void show_log(const struct run *r)
{
    char line[1024];
    FILE *f = fopen(r->log, "re");
    if (!f)
        return;
    if (fseek(f, -8192, SEEK_END) != 0)
        rewind(f);
    while (fgets(line, sizeof(line), f))
        fputs(line, stderr);
    fclose(f);
}

static bool soak(struct run *r)
{
    const struct options *o = r->o;
    struct sampler *s = &r->sampler;
    start_daemon(r);
    if (!right_bytes(r) || sampler_start(s, r->daemon, r->socket, (size_t)o->seconds * 1000 / o->period_ms + 2) != 0 ||
        sampler_take(s) != 0)
        return false;
    r->end.descriptors_before = (unsigned)sampler_last(s, COLUMN_descriptors);
    s->n = 0;
    start_load(r);
    bool good = all_there(r) && sample(r) == 0;
    good = empty(r) && good;
    kill(r->daemon, SIGTERM);
    r->end.exit_code = wait_for(r->daemon, FILL_US);
    r->daemon = 0;
    return good;
}

static void clean(const struct run *r)
{
    if (r->daemon > 0) {
        kill(r->daemon, SIGKILL);
        waitpid(r->daemon, NULL, 0);
    }
    char lock[128];
    snprintf(lock, sizeof(lock), "%s.lock", r->socket);
    (void)unlink(r->socket);
    (void)unlink(lock);
    (void)unlink(r->log);
    (void)rmdir(r->dir);
}

static int run(const struct options *o)
{
    static struct run r;
    r.o = o;
    /* A tenth, but no less than the first seconds: caches fill, pools grow to what the load needs. */
    r.end.warm_s = o->seconds >= 1200 ? 120 : o->seconds * 0.1 < 1 ? 1 : o->seconds * 0.1;
    snprintf(r.dir, sizeof(r.dir), "/tmp/mlad-soak-XXXXXX");
    if (!mkdtemp(r.dir))
        return 2;
    snprintf(r.socket, sizeof(r.socket), "%s/socket", r.dir);
    snprintf(r.log, sizeof(r.log), "%s/log", r.dir);
    bool ran = soak(&r);
    if (ran && o->csv && sampler_write_csv(&r.sampler, o->csv) != 0)
        return 2;
    FILE *json = o->json ? fopen(o->json, "we") : NULL;
    bool good = report(stdout, o, &r.sampler, &r.end) && ran;
    if (json) {
        (void)report(json, o, &r.sampler, &r.end);
        good = fclose(json) == 0 && good;
    }
    if (!good)
        show_log(&r);
    clean(&r);
    sampler_end(&r.sampler);
    return !good || (o->json && !json) ? 1 : 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: mlad-soak [--seconds N] [--connections N] [--clients N] [--seed S] [--backend cpu|cuda] "
                    "[--period-ms N] [--churn N] [--mlad PATH] [--commit ID] [--json FILE] [--csv FILE]\n");
    return 2;
}

static unsigned number(const char *text)
{
    unsigned long n = strtoul(text, NULL, 10);
    return n > 1000000 ? 0 : (unsigned)n;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        {"seconds", 1, NULL, 's'}, {"connections", 1, NULL, 'n'}, {"clients", 1, NULL, 'w'}, {"seed", 1, NULL, 'r'},
        {"backend", 1, NULL, 'b'}, {"mlad", 1, NULL, 'm'},        {"commit", 1, NULL, 'c'},  {"json", 1, NULL, 'j'},
        {"csv", 1, NULL, 'v'},     {"period-ms", 1, NULL, 'p'},   {"churn", 1, NULL, 'h'},   {NULL, 0, NULL, 0}};
    struct options o = {.seconds = 1200,
                        .period_ms = 1000,
                        .connections = 1000,
                        .workers = 8,
                        .churn = 1,
                        .seed = 1,
                        .mlad = MLAD_PROGRAM,
                        .commit = ""};
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 's':
            o.seconds = number(optarg);
            break;
        case 'n':
            o.connections = number(optarg);
            break;
        case 'w':
            o.workers = number(optarg);
            break;
        case 'p':
            o.period_ms = number(optarg);
            break;
        case 'h':
            o.churn = number(optarg);
            break;
        case 'r':
            o.seed = strtoull(optarg, NULL, 10);
            break;
        case 'b':
            o.cuda = strcmp(optarg, "cuda") == 0;
            if (!o.cuda && strcmp(optarg, "cpu") != 0)
                return usage();
            break;
        case 'm':
            o.mlad = optarg;
            break;
        case 'c':
            o.commit = optarg;
            break;
        case 'j':
            o.json = optarg;
            break;
        case 'v':
            o.csv = optarg;
            break;
        default:
            return usage();
        }
    }
    if (!o.seconds || !o.period_ms || !o.churn || !o.workers || o.workers > WORKERS_MOST ||
        o.connections <= o.workers || o.connections > CONNECTIONS_MOST || optind != argc)
        return usage();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    load = mmap(NULL, sizeof(*load), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || load == MAP_FAILED)
        return 2;
    return run(&o);
}
