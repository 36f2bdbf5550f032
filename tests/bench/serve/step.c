/* mla-bench step: a decode step of 24 layers, a product with weights and attention each, as one CUDA graph of the
 * worker's: the attention in the worker's process through libmla-kernels; by mlad under one MPS server (shared), with
 * both sides of the socket sleeping or spinning between two steps; by mlad without one (isolated). One worker, and four
 * at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/bench/gpu/weights.h"
#include "tests/bench/serve/serve.h"
#include "tests/bench/serve/stepper.h"
#include "tests/bench/stats.h"

#define WORKERS_MAX     4
#define LAYERS          24
#define PRODUCT_GRAPHS  5
#define ADDED_US_MAX    15.0
#define RELEASED_MS_MAX 100.0
#define CLIENT_SPIN_US  10000

enum way { OWN, OWN_MPS, SHARED, SPINNING, ISOLATED, WAYS };
static const char *const way_names[WAYS] = {"in process", "in process, MPS", "mlad, shared", "mlad, shared, spinning",
                                            "mlad, isolated"};
static const char *const spin_settings[] = {"daemon.spin_us=1000", NULL};
static const unsigned counts[] = {1, WORKERS_MAX};
#define COUNTS (sizeof counts / sizeof counts[0])

struct cell {
    struct serve_series p50_us, p99_us, steps_per_s, ahead;
};

struct step {
    struct serve serve;
    struct stepper_config configs[WAYS];
    struct bench_daemon daemons[WAYS];
    struct crew_member members[WAYS][WORKERS_MAX];
    bool has[WAYS];
    unsigned most;
    struct cell cells[STEPPER_LENGTHS_MAX][COUNTS][WAYS];
    struct serve_series product_us;
};

static int start_way(struct step *s, enum way way)
{
    const char *mps = way == OWN || way == ISOLATED ? s->serve.none.dir : s->serve.mps.dir;
    int rc = 0;
    if (way >= SHARED) {
        rc = serve_daemon(&s->serve, &s->daemons[way], mps, way == SPINNING ? spin_settings : NULL);
        s->configs[way].socket = s->daemons[way].socket;
        s->configs[way].spin_us = way == SPINNING ? CLIENT_SPIN_US : 0;
    }
    for (unsigned i = 0; i < s->most && rc == 0; i++)
        rc = crew_start(&s->members[way][i], stepper_main, &s->configs[way], mps, serve_cpu(&s->serve, i));
    for (unsigned i = 0; i < s->most && rc == 0; i++)
        rc = crew_ready(&s->members[way][i]);
    s->has[way] = rc == 0;
    return rc;
}

struct counters {
    double launches, ahead;
};

static struct counters read_counters(const struct step *s, enum way way)
{
    const char *socket = s->daemons[way].socket;
    return (struct counters){.launches = serve_metric(socket, "mlad_step_launches_total"),
                             .ahead = serve_metric(socket, "mlad_step_launches_ahead_total")};
}

static int run_cell(struct step *s, uint32_t length, size_t count, enum way way)
{
    struct crew_command run = {.op = STEPPER_RUN, .which = length};
    struct crew_member *members = s->members[way];
    struct cell *cell = &s->cells[length][count][way];
    double *us;
    struct counters before = {0};
    if (way >= SHARED)
        before = read_counters(s, way);
    if (crew_command(members, counts[count], run, s->serve.ms) != 0)
        return -1;
    if (way >= SHARED) {
        struct counters after = read_counters(s, way);
        serve_add(&cell->ahead, (after.ahead - before.ahead) / (after.launches - before.launches));
    }
    size_t n = crew_samples(members, counts[count], &us);
    if (n == 0 || !us) {
        fputs("mla-bench: no step ended in time: --ms is too short\n", stderr);
        return -1;
    }
    serve_add(&cell->p50_us, bench_percentile(us, n, 50));
    serve_add(&cell->p99_us, bench_percentile(us, n, 99));
    serve_add(&cell->steps_per_s, crew_rate(members, counts[count]));
    free(us);
    return 0;
}

static int measure(struct step *s)
{
    for (long round = 0; round < s->serve.rounds; round++) {
        struct crew_command products = {.op = STEPPER_WEIGHTS, .turns_max = PRODUCT_GRAPHS};
        if (crew_command(s->members[OWN], 1, products, 0) != 0)
            return -1;
        serve_add(&s->product_us, s->members[OWN][0].result->value);
        for (uint32_t i = 0; i < s->configs[OWN].n_lengths; i++)
            for (size_t c = 0; c < COUNTS && counts[c] <= s->most; c++)
                for (int k = 0; k < WAYS; k++) {
                    enum way way = (enum way)((round + k) % WAYS);
                    if (s->has[way] && run_cell(s, i, c, way) != 0)
                        return -1;
                }
    }
    return 0;
}

/* Columns: a layer's share of a step; what that is more than in process alone, and, of several workers, than in process
 * under MPS; steps of all workers per second over those of the best way without mlad; of mlad's launches those whose
 * prepare kernel had run before their words came. */
static void report_cell(struct step *s, uint32_t length, size_t c)
{
    const struct stepper_config *config = &s->configs[OWN];
    double us[WAYS], rate[WAYS];
    for (int way = 0; way < WAYS; way++) {
        us[way] = serve_median(&s->cells[length][c][way].p50_us) / config->layers;
        rate[way] = serve_median(&s->cells[length][c][way].steps_per_s);
    }
    double own = us[OWN], own_rate = rate[OWN];
    if (s->has[OWN_MPS] && counts[c] > 1) {
        own = fmin(own, us[OWN_MPS]);
        own_rate = fmax(own_rate, rate[OWN_MPS]);
    }
    for (int way = 0; way < WAYS; way++) {
        if (!s->has[way])
            continue;
        struct bench_row *row =
            bench_row(s->serve.report, "KV%u, %u workers, %s", config->lengths[length], counts[c], way_names[way]);
        bench_label(row, "table", "step");
        bench_label(row, "way", way_names[way]);
        bench_cell(row, "kv_len", config->lengths[length], 0);
        bench_cell(row, "workers", counts[c], 0);
        bench_cell(row, "layers", config->layers, 0);
        bench_cell(row, "step_us", us[way] * config->layers, 1);
        bench_cell(row, "step_p99_us", serve_median(&s->cells[length][c][way].p99_us), 1);
        bench_cell(row, "layer_us", us[way], 2);
        bench_cell(row, "added_per_layer_us", us[way] - own, 2);
        bench_cell(row, "steps_per_s", rate[way], 1);
        bench_cell(row, "over_in_process", rate[way] / own_rate, 4);
        if (way >= SHARED)
            bench_cell(row, "ahead", serve_median(&s->cells[length][c][way].ahead), 3);
    }
    if (s->serve.own_shapes || counts[c] != 1)
        return;
    char name[BENCH_TEXT_MAX];
    for (int way = SHARED; way <= SPINNING; way++) {
        snprintf(name, sizeof name, "KV%u, one worker: added per layer by %s, us", config->lengths[length],
                 way_names[way]);
        bench_bar_at_most(s->serve.report, name, us[way] - us[OWN], ADDED_US_MAX);
    }
}

/* The stream of a worker that waits in its first layer when the daemon is killed. */
static int measure_death(struct step *s, enum way way)
{
    const struct timespec until_it_waits = {.tv_nsec = 50000000};
    struct crew_command abandon = {.op = STEPPER_ABANDON};
    struct crew_member *member = &s->members[way][0];
    uint64_t killed_ns;
    if (crew_tell(member, &abandon) != 0)
        return -1;
    nanosleep(&until_it_waits, NULL);
    if (bench_daemon_kill(&s->daemons[way], &killed_ns) != 0 || crew_ready(member) != 0)
        return -1;
    double ms = 1e-6 * ((double)member->result->end_ns - (double)killed_ns);
    struct bench_row *row = bench_row(s->serve.report, "%s: the daemon is killed", way_names[way]);
    bench_label(row, "table", "death");
    bench_label(row, "way", way_names[way]);
    bench_cell(row, "released_after_ms", ms, 2);
    char name[BENCH_TEXT_MAX];
    snprintf(name, sizeof name, "%s: a killed daemon's worker has its stream back, ms", way_names[way]);
    if (!s->serve.own_shapes)
        bench_bar_at_most(s->serve.report, name, ms, RELEASED_MS_MAX);
    return 0;
}

const struct bench_option bench_step_options[] = {
    SERVE_OPTIONS(200, 3),
    {"--kv-len", "N", "keys of every layer, by default 4096, 16384 and 65536 in turn", 0, 64, 1 << 20},
    {"--layers", "N", "of a step", LAYERS, 1, STEPPER_LAYERS_MAX},
    {"--weight-rows", "N", "of the kernel that stands for a layer's other work", WEIGHTS_ROWS, 1, 1 << 20},
    {"--workers", "N", "at most", WORKERS_MAX, 1, WORKERS_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

static int take_shapes(struct step *s, int argc, char **argv)
{
    static const uint32_t lengths[] = {4096, 16384, 65536};
    struct stepper_config *c = &s->configs[OWN];
    long kv = bench_number(bench_step_options, argc, argv, "--kv-len");
    long layers = bench_number(bench_step_options, argc, argv, "--layers");
    long rows = bench_number(bench_step_options, argc, argv, "--weight-rows");
    long most = bench_number(bench_step_options, argc, argv, "--workers");
    if (kv < 0 || layers < 0 || rows < 0 || most < 0)
        return -1;
    s->serve.own_shapes = kv != 0 || layers != LAYERS || rows != WEIGHTS_ROWS;
    s->most = (unsigned)most;
    *c = (struct stepper_config){
        .name = "bench-step", .q_len = 4, .layers = (uint32_t)layers, .weight_rows = (uint32_t)rows};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0] && (kv == 0 || i == 0); i++)
        c->lengths[c->n_lengths++] = kv != 0 ? (uint32_t)kv : lengths[i];
    return 0;
}

static int start_all(struct step *s)
{
    int rc = 0;
    s->configs[OWN].heads = s->serve.heads;
    for (int way = 1; way < WAYS; way++)
        s->configs[way] = s->configs[OWN];
    for (int way = 0; way < WAYS && rc == 0; way++)
        if (s->serve.mps.running || way == OWN || way == ISOLATED)
            rc = start_way(s, (enum way)way);
    return rc;
}

static void fill_report(struct step *s)
{
    const struct stepper_config *c = &s->configs[OWN];
    serve_note(&s->serve, "every worker for each step: its graph, and with mlad the answer, too");
    bench_note(s->serve.report, "step", "%u layers of y = W x, bf16, %.1f MB, and attention B1 Q%u H%u", c->layers,
               2e-6 * WEIGHTS_COLUMNS * c->weight_rows, c->q_len, c->heads);
    bench_note(s->serve.report, "product_us", "%.2f, of a layer, in graphs of the products alone",
               serve_median(&s->product_us));
    bench_note(s->serve.report, "spinning", "client %d us, %s", CLIENT_SPIN_US, spin_settings[0]);
    if (!s->serve.mps.running)
        bench_note(s->serve.report, "mps", "not measured: %s", s->serve.mps.why);
    for (uint32_t i = 0; i < c->n_lengths; i++)
        for (size_t k = 0; k < COUNTS && counts[k] <= s->most; k++)
            report_cell(s, i, k);
}

int bench_step(int argc, char **argv, struct bench_report *report)
{
    static struct step s = {.serve = {.options = bench_step_options}};
    report->title = "step";
    int rc = take_shapes(&s, argc, argv);
    if (rc == 0)
        rc = serve_open(&s.serve, argc, argv, report, true);
    if (rc != 0)
        return rc;
    rc = start_all(&s);
    if (rc == 0)
        rc = measure(&s);
    if (rc == 0)
        fill_report(&s);
    for (int way = SHARED; way <= ISOLATED && rc == 0; way++)
        if (s.has[way] && way != SPINNING)
            rc = measure_death(&s, (enum way)way);
    bool failed = false;
    for (int way = 0; way < WAYS; way++)
        failed |= crew_stop(s.members[way], WORKERS_MAX) != 0;
    for (int way = 0; way < WAYS; way++)
        failed |= bench_daemon_stop(&s.daemons[way]) != 0;
    serve_close(&s.serve);
    return rc != 0 ? rc : failed ? -1 : 0;
}
