/* mlad-chaos --seconds N --seed S [--backend cpu|cuda] [--workers N] [--mlad PATH] [--commit ID] [--json FILE]
 *
 * Exit code 0 when every submission was answered once, with the right bytes or a status that the events explain. */
#include "tests/chaos/world.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

struct shared *shared;
static struct counts by_role[ROLES];

static void add(struct counts *sum, const struct counts *n)
{
    uint64_t *to = &sum->submitted;
    const uint64_t *from = &n->submitted;
    for (size_t i = 0; i < offsetof(struct counts, first_fault) / sizeof(*to); i++)
        to[i] += from[i];
    if (n->first_fault[0] && !sum->first_fault[0])
        memcpy(sum->first_fault, n->first_fault, sizeof(sum->first_fault));
}

static void write_statuses(FILE *f, const char *name, const uint64_t *by_status)
{
    const char *comma = "";
    fprintf(f, "  \"%s\": {", name);
    for (unsigned i = 0; i < STATUSES; i++) {
        if (by_status[i]) {
            fprintf(f, "%s\"%s\": %llu", comma, mla_errname(i), (unsigned long long)by_status[i]);
            comma = ", ";
        }
    }
    fprintf(f, "},\n");
}

static void write_report(FILE *f, const struct options *o, const struct world *w, const struct counts *n, bool good)
{
#define U(name) fprintf(f, "  \"%s\": %llu,\n", #name, (unsigned long long)n->name)
    char when[32];
    time_t now = time(NULL);
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    fprintf(f, "{\n  \"what\": \"mlad-chaos\",\n  \"ended\": \"%s\",\n  \"commit\": \"%s\",\n", when, o->commit);
    fprintf(f, "  \"backend\": \"%s\",\n  \"seed\": %llu,\n  \"seconds\": %u,\n  \"workers\": %u,\n",
            o->cuda ? "cuda, on the fake driver" : "cpu", (unsigned long long)o->seed, o->seconds, o->workers);
    fprintf(f, "  \"events\": {");
    for (unsigned i = 0; i < EVENTS; i++)
        fprintf(f, "%s\"%s\": %llu", i ? ", " : "", event_names[i], (unsigned long long)w->events[i]);
    fprintf(f, "},\n");
    U(submitted);
    U(answered);
    U(abandoned);
    write_statuses(f, "answers", n->by_status);
    for (unsigned role = 0; role < ROLES; role++) {
        char name[64];
        snprintf(name, sizeof(name), "answers_%s", role_names[role]);
        write_statuses(f, name, by_role[role].by_status);
    }
    write_statuses(f, "not_taken", n->refused);
    write_statuses(f, "handles_ended", n->ended_by);
    U(stream_jobs);
    U(steps);
    U(opens);
    U(interrupted);
    U(reconnected);
    U(restarted);
    U(gone);
    U(attached);
    U(lost_objects);
    U(wrong);
    U(late);
    U(twice);
    U(lost);
    U(stuck);
    U(unexpected);
    fprintf(f, "  \"daemon_crashes\": %llu,\n  \"worker_crashes\": %llu,\n", (unsigned long long)w->daemon_crashes,
            (unsigned long long)w->worker_crashes);
    fprintf(f, "  \"first_fault\": \"%s\",\n  \"passed\": %s\n}\n", n->first_fault[0] ? n->first_fault : w->first_fault,
            good ? "true" : "false");
#undef U
}

static int usage(void)
{
    fprintf(stderr, "usage: mlad-chaos --seconds N --seed S [--backend cpu|cuda] [--workers N] [--mlad PATH] "
                    "[--commit ID] [--json FILE]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"seconds", 1, NULL, 's'}, {"seed", 1, NULL, 'r'}, {"backend", 1, NULL, 'b'},
                                          {"workers", 1, NULL, 'w'}, {"mlad", 1, NULL, 'm'}, {"commit", 1, NULL, 'c'},
                                          {"json", 1, NULL, 'j'},    {NULL, 0, NULL, 0}};
    struct options o = {.seconds = 6, .seed = 1, .workers = 6, .mlad = MLAD_PROGRAM, .commit = ""};
    const char *json = NULL;
    int c;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 's':
            o.seconds = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'r':
            o.seed = strtoull(optarg, NULL, 10);
            break;
        case 'b':
            o.cuda = strcmp(optarg, "cuda") == 0;
            if (!o.cuda && strcmp(optarg, "cpu") != 0)
                return usage();
            break;
        case 'w':
            o.workers = (unsigned)strtoul(optarg, NULL, 10);
            break;
        case 'm':
            o.mlad = optarg;
            break;
        case 'c':
            o.commit = optarg;
            break;
        case 'j':
            json = optarg;
            break;
        default:
            return usage();
        }
    }
    if (!o.seconds || o.workers < ROLES || o.workers > WORKERS_MAX || optind != argc)
        return usage();
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    printf("mlad-chaos: seed %llu, %u s, %u workers, %s\n", (unsigned long long)o.seed, o.seconds, o.workers,
           o.cuda ? "cuda on the fake driver" : "cpu");
    fflush(stdout);

    static struct world w;
    static struct counts sum;
    if (world_run(&w, &o) != 0)
        return 1;
    for (unsigned i = 0; i < o.workers; i++) {
        add(&sum, &shared->counts[i]);
        add(&by_role[i % ROLES], &shared->counts[i]);
    }
    bool good = !sum.wrong && !sum.late && !sum.twice && !sum.lost && !sum.stuck && !sum.unexpected &&
                !w.daemon_crashes && !w.worker_crashes && sum.by_status[MLA_OK] > 0 &&
                sum.submitted == sum.answered + sum.abandoned;
    write_report(stdout, &o, &w, &sum, good);
    FILE *f = json ? fopen(json, "we") : NULL;
    if (json && !f)
        return 2;
    if (f) {
        write_report(f, &o, &w, &sum, good);
        if (fclose(f) != 0)
            return 2;
    }
    return good ? 0 : 1;
}
