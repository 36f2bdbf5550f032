/* mla-bench rtt: how long a round trip through the daemon takes, against the least a Unix socket can do, without a GPU:
 * the daemon runs its null backend, which has ended a decode when it is submitted. A round measures every scenario
 * (rtt.h), and in it every way in turn, so that whatever slows the machine slows all of them. Daemons and echo share
 * one CPU; the client runs on another (two CPUs) or on the same one. The bars compare medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/bench/bench.h"
#include "tests/bench/machine.h"
#include "tests/bench/rtt.h"
#include "tests/bench/stats.h"

#define ROUNDS_MAX       100000
#define SAMPLES_MAX      10000
#define WARM_UP          10 /* round trips before the samples of a round, in each way */
#define HEALTH_RATIO_MAX 2.0
#define BLOCKING_US_MAX  10.0 /* more than raw, on one CPU */
#define SPINNING_US_MAX  5.0
#define CPUS_MAX         1024

/* How the second daemon is told to poll its sockets without a pause for a while after the last request. */
static const char spin_setting[] = "daemon.spin_us=200";

static int complain(const char *what)
{
    fprintf(stderr, "mla-bench: %s\n", what);
    return -1;
}

static const char *placement_name(enum rtt_placement placement)
{
    return placement == RTT_TWO_CPUS ? "two CPUs" : "one CPU";
}

/* ---- measuring ---- */

static double us_of(struct timeval t)
{
    return 1e6 * (double)t.tv_sec + (double)t.tv_usec;
}

static int take_samples(struct rtt *r, size_t scenario, enum rtt_way way, double *us)
{
    const struct rtt_scenario *s = &rtt_scenarios[scenario];
    struct rtt_cpu *cpu = &r->cpu[scenario][way];
    struct rtt_times before, after;
    struct rusage own[2];
    pid_t server = rtt_server_of(r, s, way);
    /* The daemon's reply grows with its uptime: the echo follows what the daemon sent last. */
    atomic_store(&r->echo.sizes->request_bytes, r->request_bytes[s->exchange]);
    atomic_store(&r->echo.sizes->reply_bytes, r->reply_bytes[s->exchange]);
    atomic_store(&r->echo.sizes->spin, s->spinning && way == RTT_RAW);
    for (long i = -WARM_UP; i < r->samples; i++) {
        if (i == 0) {
            getrusage(RUSAGE_SELF, &own[0]);
            rtt_times_of(server, &before);
        }
        uint64_t start = bench_now_ns();
        if (rtt_turn(r, s, way) != 0)
            return -1;
        uint64_t end = bench_now_ns();
        if (i >= 0)
            us[i] = (double)(end - start) / 1000.0;
    }
    rtt_times_of(server, &after);
    getrusage(RUSAGE_SELF, &own[1]);
    cpu->client_user_us += us_of(own[1].ru_utime) - us_of(own[0].ru_utime);
    cpu->client_system_us += us_of(own[1].ru_stime) - us_of(own[0].ru_stime);
    cpu->server_us += 1e6 * (after.cpu_s - before.cpu_s);
    cpu->turns += (double)r->samples;
    if (s->spinning && way == RTT_RAW) { /* the echo leaves its loop with one more round trip */
        atomic_store(&r->echo.sizes->spin, 0);
        return rtt_turn(r, s, way);
    }
    return 0;
}

/* Every way once, beginning with another one each round, so that none always follows the same one. */
static int measure_scenario(struct rtt *r, size_t scenario, long round)
{
    const struct rtt_scenario *s = &rtt_scenarios[scenario];
    double medians[RTT_WAYS] = {0};
    if (bench_pin(r->client_cpu[s->placement]) != 0)
        return complain("the client cannot be pinned");
    for (long k = 0; k < RTT_WAYS; k++) {
        enum rtt_way way = (enum rtt_way)((round + k) % RTT_WAYS);
        if (!s->has[way])
            continue;
        double *us = r->us[scenario][way] + round * r->samples;
        if (take_samples(r, scenario, way, us) != 0)
            return -1;
        medians[way] = bench_stats(us, (size_t)r->samples).median;
    }
    r->ratio[scenario][round] = medians[RTT_LIBRARY] / medians[RTT_RAW];
    return 0;
}

static int measure(struct rtt *r)
{
    for (long round = 0; round < r->rounds; round++)
        for (size_t i = 0; i < RTT_SCENARIOS; i++)
            if (r->placed[rtt_scenarios[i].placement] && measure_scenario(r, i, round) != 0)
                return -1;
    return 0;
}

/* ---- the report ---- */

static void add_bar(const struct rtt_scenario *s, const double *medians, struct bench_report *report)
{
    char name[BENCH_TEXT_MAX];
    const char *where = placement_name(s->placement);
    double over = medians[RTT_LIBRARY] - medians[RTT_RAW];
    if (s->exchange == RTT_HEALTH) {
        snprintf(name, sizeof name, "mla_read_health / raw ping-pong, %s, medians", where);
        bench_bar_at_most(report, name, medians[RTT_LIBRARY] / medians[RTT_RAW], HEALTH_RATIO_MAX);
    } else if (s->spinning) {
        snprintf(name, sizeof name, "decode over raw, spinning, %s, p50, us", where);
        bench_bar_at_most(report, name, over, SPINNING_US_MAX);
    } else if (s->placement == RTT_ONE_CPU) {
        snprintf(name, sizeof name, "decode over raw, blocking, %s, p50, us", where);
        bench_bar_at_most(report, name, over, BLOCKING_US_MAX);
    }
}

static void report_scenario(struct rtt *r, size_t scenario, struct bench_report *report)
{
    const struct rtt_scenario *s = &rtt_scenarios[scenario];
    size_t n = (size_t)(r->rounds * r->samples);
    double medians[RTT_WAYS] = {0};
    const char *mode = s->spinning ? "spinning" : "blocking";
    for (int way = 0; way < RTT_WAYS; way++) {
        if (!s->has[way])
            continue;
        double *us = r->us[scenario][way];
        const struct rtt_cpu *cpu = &r->cpu[scenario][way];
        struct bench_stats stats = bench_stats(us, n);
        medians[way] = stats.median;
        struct bench_row *row = bench_row(report, "%s, %s%s, %s", s->exchange == RTT_HEALTH ? "health" : "decode",
                                          rtt_way_name(s, (enum rtt_way)way), s->spinning ? ", spinning" : "",
                                          placement_name(s->placement));
        bench_label(row, "exchange", s->exchange == RTT_HEALTH ? "health" : "decode");
        bench_label(row, "mode", mode);
        bench_label(row, "cpus", placement_name(s->placement));
        bench_label(row, "way", way == RTT_RAW ? "raw" : way == RTT_BARE ? "bare" : "library");
        bench_cell(row, "p50_us", stats.median, 2);
        bench_cell(row, "p99_us", bench_percentile(us, n, 99), 2);
        bench_cell(row, "p99.9_us", bench_percentile(us, n, 99.9), 2);
        bench_cell(row, "min_us", stats.min, 2);
        bench_cell(row, "mean_us", stats.mean, 2);
        bench_cell(row, "over_raw_us", stats.median - medians[RTT_RAW], 2);
        bench_cell(row, "to_raw", stats.median / medians[RTT_RAW], 3);
        bench_cell(row, "client_user_us", cpu->client_user_us / cpu->turns, 2);
        bench_cell(row, "client_system_us", cpu->client_system_us / cpu->turns, 2);
        bench_cell(row, "server_cpu_us", cpu->server_us / cpu->turns, 2);
    }
    struct bench_stats ratio = bench_stats(r->ratio[scenario], (size_t)r->rounds);
    char name[BENCH_TEXT_MAX];
    snprintf(name, sizeof name, "ratio_per_round_%s_%s_%s", s->exchange == RTT_HEALTH ? "health" : "decode", mode,
             s->placement == RTT_TWO_CPUS ? "two_cpus" : "one_cpu");
    bench_note(report, name, "library / raw: median %.3f, quartiles %.3f to %.3f", ratio.median, ratio.q1, ratio.q3);
    add_bar(s, medians, report);
}

static void fill_report(struct rtt *r, bool daemon_spins, struct bench_report *report)
{
    bench_note(report, "server_cpu", "CPU %d: both daemons and the echo processes", r->server_cpu);
    for (int p = 0; p < RTT_PLACEMENTS; p++) {
        const char *key = p == RTT_TWO_CPUS ? "client_cpu_two_cpus" : "client_cpu_one_cpu";
        if (r->placed[p])
            bench_note(report, key, "CPU %d", r->client_cpu[p]);
        else
            bench_note(report, key, "not measured: this process may run on one CPU only");
    }
    bench_note(report, "backend", "null: a decode has ended when it is submitted");
    bench_note(report, "spinning", "raw: both sides poll recv; decode: the client polls, the daemon %s",
               daemon_spins ? spin_setting : "blocks, as this one cannot be told to spin");
    bench_note(report, "health_bytes", "request %zu, reply %zu to %zu", r->health_bytes, r->reply_bytes_least,
               r->reply_bytes_most);
    bench_note(report, "decode_bytes", "request %zu, reply %zu: means, by the daemon's counters",
               r->request_bytes[RTT_DECODE], r->reply_bytes[RTT_DECODE]);
    bench_note(report, "samples", "%ld of each row: %ld rounds of %ld, interleaved; %d before them are not counted",
               r->rounds * r->samples, r->rounds, r->samples, WARM_UP);
    for (size_t i = 0; i < RTT_SCENARIOS; i++)
        if (r->placed[rtt_scenarios[i].placement])
            report_scenario(r, i, report);
}

/* ---- the subcommand ---- */

static bool make_room(struct rtt *r)
{
    for (size_t i = 0; i < RTT_SCENARIOS; i++) {
        r->ratio[i] = calloc((size_t)r->rounds, sizeof(double));
        if (!r->ratio[i])
            return false;
        for (int way = 0; way < RTT_WAYS; way++) {
            r->us[i][way] = calloc((size_t)(r->rounds * r->samples), sizeof(double));
            if (!r->us[i][way])
                return false;
        }
    }
    return true;
}

static int close_all(struct rtt *r)
{
    rtt_ways_close(r);
    int rc = bench_daemon_stop(&r->daemon);
    /* The later process has the earlier one's sockets, too. */
    if (bench_daemon_stop(&r->spinner) != 0 || rtt_echo_stop(&r->load_echo) != 0 || rtt_echo_stop(&r->echo) != 0)
        rc = -1;
    for (size_t i = 0; i < RTT_SCENARIOS; i++) {
        free(r->ratio[i]);
        for (int way = 0; way < RTT_WAYS; way++)
            free(r->us[i][way]);
    }
    return rc;
}

const struct bench_option bench_rtt_options[] = {
    {"--mlad", "PATH", "the daemon (the one beside this program, or of the same build)", 0, 0, 0},
    {"--rounds", "N", "of all ways, in turn", 200, 1, ROUNDS_MAX},
    {"--samples", "N", "of a way in a round", 100, 1, SAMPLES_MAX},
    {"--load", "MS", "of each number of clients at full rate", 1000, 10, 60000},
    {"--client-cpu", "N", "where the client runs, by default the first of this process", -1, 0, CPUS_MAX - 1},
    {"--server-cpu", "N", "where servers run, by default the last", -1, 0, CPUS_MAX - 1},
    {NULL, NULL, NULL, 0, 0, 0},
};

static int choose_cpus(struct rtt *r, int argc, char **argv)
{
    int cpus[CPUS_MAX];
    size_t n = bench_cpus(cpus, CPUS_MAX);
    if (n == 0)
        return complain("the CPUs of this process cannot be told");
    n = n > CPUS_MAX ? CPUS_MAX : n;
    r->client_cpu[RTT_TWO_CPUS] = (int)bench_number_or(bench_rtt_options, argc, argv, "--client-cpu", cpus[0]);
    r->server_cpu = (int)bench_number_or(bench_rtt_options, argc, argv, "--server-cpu", cpus[n - 1]);
    if (r->client_cpu[RTT_TWO_CPUS] < 0 || r->server_cpu < 0)
        return -1;
    r->client_cpu[RTT_ONE_CPU] = r->server_cpu;
    r->placed[RTT_ONE_CPU] = true;
    r->placed[RTT_TWO_CPUS] = r->client_cpu[RTT_TWO_CPUS] != r->server_cpu;
    return 0;
}

/* Processes first: what comes after is not theirs to inherit. */
static int start_servers(struct rtt *r, const char *mlad, bool daemon_spins)
{
    const char *const spin[] = {daemon_spins ? spin_setting : NULL, NULL};
    if (rtt_echo_start(&r->echo, r->server_cpu, 1) != 0 ||
        rtt_echo_start(&r->load_echo, r->server_cpu, RTT_LOAD_CLIENTS_MAX) != 0)
        return -1;
    struct bench_daemon_options options = {.mlad = mlad, .backend = "null", .cpus = {r->server_cpu}, .n_cpus = 1};
    if (bench_daemon_start(&r->daemon, &options) != 0)
        return -1;
    options.settings = spin;
    return bench_daemon_start(&r->spinner, &options);
}

int bench_rtt(int argc, char **argv, struct bench_report *report)
{
    static struct rtt r = {.bare = -1};
    char beside[1024];
    const char *mlad = bench_text(bench_rtt_options, argc, argv, "--mlad");
    r.rounds = bench_number(bench_rtt_options, argc, argv, "--rounds");
    r.samples = bench_number(bench_rtt_options, argc, argv, "--samples");
    long load_ms = bench_number(bench_rtt_options, argc, argv, "--load");
    if (r.rounds < 0 || r.samples < 0 || load_ms < 0 || choose_cpus(&r, argc, argv) != 0 ||
        bench_options_end(argc, argv) != 0)
        return -1;
    if (!mlad && bench_find_program("mlad", "../../daemon/mlad", beside, sizeof beside) != 0)
        return complain("no mlad was found: name it with --mlad");
    mlad = mlad ? mlad : beside;
    report->title = "rtt";
    bool daemon_spins = bench_daemon_takes(mlad, spin_setting);
    int rc = start_servers(&r, mlad, daemon_spins);
    if (rc == 0)
        rc = rtt_ways_open(&r);
    if (rc == 0)
        rc = make_room(&r) ? measure(&r) : complain("no memory for the samples");
    if (rc == 0)
        fill_report(&r, daemon_spins, report);
    if (rc == 0) {
        atomic_store(&r.load_echo.sizes->request_bytes, r.request_bytes[RTT_DECODE]);
        atomic_store(&r.load_echo.sizes->reply_bytes, r.reply_bytes[RTT_DECODE]);
        rc = rtt_load(&r, load_ms, report);
    }
    return close_all(&r) != 0 ? -1 : rc;
}
