/* mla-bench rtt: how long a health round trip takes, against the least a Unix socket can do. One round measures three
 * ways in turn, in every placement of the client, so that whatever slows the machine slows all of them:
 *   raw ping-pong   an echo process with blocking reads and writes; request and reply have the bytes of the real ones
 *   bare socket     the same blocking calls, HEALTH frames, the real daemon: what the daemon adds
 *   library         mla_read_health(), as mlactl calls it, the real daemon: what the library adds
 * Daemon and echo share one CPU; the client runs on another (two CPUs) or on the same one. The bars compare medians. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/codec.h"
#include "tests/bench/bench.h"
#include "tests/bench/machine.h"
#include "tests/bench/rtt_servers.h"
#include "tests/bench/stats.h"

#include <mla/mla.h>

#define ROUNDS_MAX  100000
#define SAMPLES_MAX 10000
#define WARM_UP     10       /* round trips before the samples of a round, in each way */
#define TIMEOUT_US  10000000 /* mlactl's own has a limit too: waiting costs the same */
#define RATIO_MAX   2.0
#define CPUS_MAX    1024

enum way { RAW, BARE, LIBRARY, WAYS };
static const char *const way_names[WAYS] = {"raw ping-pong", "bare socket to mlad", "mla_read_health"};

enum placement { TWO_CPUS, ONE_CPU, PLACEMENTS };
static const char *const placement_names[PLACEMENTS] = {"two CPUs", "one CPU"};

struct rtt {
    struct rtt_daemon daemon;
    struct rtt_echo echo;
    struct mla_client *client;
    int bare; /* a connection of our own to the daemon */
    uint8_t request[RTT_BYTES_MAX], reply[RTT_BYTES_MAX];
    size_t request_bytes, reply_bytes;          /* of the HEALTH exchange seen last */
    size_t reply_bytes_least, reply_bytes_most; /* seen while measuring: the uptime's length varies */
    int client_cpu[PLACEMENTS], server_cpu;
    bool placed[PLACEMENTS]; /* measured at all */
    long rounds, samples;
    double *us[PLACEMENTS][WAYS]; /* every sample */
    double *ratio[PLACEMENTS];    /* of a round's medians, library to raw */
};

static int complain(const char *what)
{
    fprintf(stderr, "mla-bench: %s\n", what);
    return -1;
}

/* ---- the three ways; each is one round trip, 0 or -1 ---- */

static int turn_raw(struct rtt *r)
{
    if (rtt_write_all(r->echo.sock, r->request, r->request_bytes) != 0)
        return -1;
    return rtt_read_all(r->echo.sock, r->reply, r->reply_bytes);
}

/* Reads a frame into reply as it comes; its length is learnt from the header, as the library does. */
static int read_frame(struct rtt *r)
{
    size_t have = 0, want = MLA_WIRE_HEADER_BYTES;
    while (have < want) {
        ssize_t got = recv(r->bare, r->reply + have, sizeof r->reply - have, 0);
        if (got <= 0)
            return -1;
        have += (size_t)got;
        if (have < MLA_WIRE_HEADER_BYTES)
            continue;
        struct mla_frame_header header;
        if (mla_wire_unpack(r->reply, &header) != 0 || header.body_len > sizeof r->reply - MLA_WIRE_HEADER_BYTES)
            return -1;
        want = MLA_WIRE_HEADER_BYTES + header.body_len;
    }
    r->reply_bytes = have;
    return have == want ? 0 : -1;
}

static int turn_bare(struct rtt *r)
{
    if (rtt_write_all(r->bare, r->request, r->request_bytes) != 0)
        return -1;
    return read_frame(r);
}

static int turn_library(struct rtt *r)
{
    struct mla_health_info *health;
    if (mla_read_health(r->client, TIMEOUT_US, &health) != MLA_OK)
        return -1;
    mla_free(health);
    return 0;
}

static int (*const turns[WAYS])(struct rtt *) = {turn_raw, turn_bare, turn_library};

/* ---- the bare client ---- */

static int make_request(struct rtt *r, struct mla_message *message)
{
    size_t body = 0;
    if (mla_codec_encode(message, r->request + MLA_WIRE_HEADER_BYTES, sizeof r->request - MLA_WIRE_HEADER_BYTES,
                         &body) != 0)
        return -1;
    const struct mla_frame_header header = {
        .major = MLA_PROTO_MAJOR, .type = message->type, .body_len = (uint32_t)body, .request_id = 1};
    mla_wire_pack(&header, r->request);
    r->request_bytes = MLA_WIRE_HEADER_BYTES + body;
    return 0;
}

/* The reply read last is of this request and says OK. */
static int check_reply(const struct rtt *r, uint16_t request_type)
{
    static uint8_t memory[RTT_BYTES_MAX + MLA_CODEC_SLACK_BYTES];
    struct mla_frame_header header;
    struct mla_arena arena;
    struct mla_message message;
    struct mla_error error;
    mla_arena_init(&arena, memory, sizeof memory);
    if (mla_wire_unpack(r->reply, &header) != 0 || header.type != (request_type | MLA_REPLY) ||
        mla_codec_decode(header.type, r->reply + MLA_WIRE_HEADER_BYTES, header.body_len, &arena, &message, &error) != 0)
        return -1;
    return message.reply.status.code == MLA_OK ? 0 : -1;
}

/* Leaves the HEALTH request in r->request, with the sizes of a real exchange. */
static int open_bare(struct rtt *r)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct mla_message message;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", r->daemon.socket);
    r->bare = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (r->bare < 0 || connect(r->bare, (const struct sockaddr *)&address, sizeof address) != 0)
        return complain("the bare client cannot connect");
    mla_message_init(&message, MLA_MSG_HELLO);
    message.hello.minor = MLA_PROTO_MINOR;
    message.hello.client_name = "bare";
    if (make_request(r, &message) != 0 || turn_bare(r) != 0 || check_reply(r, MLA_MSG_HELLO) != 0)
        return complain("the daemon did not greet the bare client");
    mla_message_init(&message, MLA_MSG_HEALTH);
    if (make_request(r, &message) != 0 || turn_bare(r) != 0 || check_reply(r, MLA_MSG_HEALTH) != 0)
        return complain("the daemon did not answer HEALTH");
    r->reply_bytes_least = r->reply_bytes_most = r->reply_bytes;
    return 0;
}

static int open_client(struct rtt *r)
{
    struct mla_options options;
    struct mla_error_info error;
    mla_options_init(&options);
    options.socket_path = r->daemon.socket;
    options.name = "mla-bench";
    options.timeout_us = TIMEOUT_US;
    options.flags = MLA_OPEN_WAIT;
    if (mla_open(&options, &r->client, &error) == MLA_OK)
        return 0;
    return complain(error.text);
}

/* ---- measuring ---- */

static int take_samples(struct rtt *r, enum way way, double *us)
{
    /* The daemon's reply grows with its uptime: the echo follows what the daemon sent last. */
    atomic_store(&r->echo.sizes->request_bytes, r->request_bytes);
    atomic_store(&r->echo.sizes->reply_bytes, r->reply_bytes);
    for (long i = -WARM_UP; i < r->samples; i++) {
        uint64_t start = bench_now_ns();
        if (turns[way](r) != 0) {
            fprintf(stderr, "mla-bench: %s: a round trip failed\n", way_names[way]);
            return -1;
        }
        uint64_t end = bench_now_ns();
        if (i >= 0)
            us[i] = (double)(end - start) / 1000.0;
    }
    if (way == BARE && r->reply_bytes < r->reply_bytes_least)
        r->reply_bytes_least = r->reply_bytes;
    if (way == BARE && r->reply_bytes > r->reply_bytes_most)
        r->reply_bytes_most = r->reply_bytes;
    return 0;
}

/* Every way once, beginning with another one each round, so that none always follows the same one. */
static int measure_round(struct rtt *r, enum placement placement, long round)
{
    double medians[WAYS];
    if (bench_pin(r->client_cpu[placement]) != 0)
        return complain("the client cannot be pinned");
    for (long k = 0; k < WAYS; k++) {
        enum way way = (enum way)((round + k) % WAYS);
        double *us = r->us[placement][way] + round * r->samples;
        if (take_samples(r, way, us) != 0)
            return -1;
        medians[way] = bench_stats(us, (size_t)r->samples).median;
    }
    r->ratio[placement][round] = medians[LIBRARY] / medians[RAW];
    return 0;
}

static int measure(struct rtt *r)
{
    for (long round = 0; round < r->rounds; round++)
        for (int p = 0; p < PLACEMENTS; p++)
            if (r->placed[p] && measure_round(r, (enum placement)p, round) != 0)
                return -1;
    return 0;
}

/* ---- the report ---- */

static void report_placement(struct rtt *r, enum placement placement, struct bench_report *report)
{
    size_t n = (size_t)(r->rounds * r->samples);
    double medians[WAYS];
    char name[BENCH_TEXT_MAX];
    for (int way = 0; way < WAYS; way++) {
        double *us = r->us[placement][way];
        struct bench_stats stats = bench_stats(us, n);
        medians[way] = stats.median;
        struct bench_row *row = bench_row(report, "%s, %s", way_names[way], placement_names[placement]);
        bench_cell(row, "p50_us", stats.median, 2);
        bench_cell(row, "p99_us", bench_percentile(us, n, 99), 2);
        bench_cell(row, "p99.9_us", bench_percentile(us, n, 99.9), 2);
        bench_cell(row, "min_us", stats.min, 2);
        bench_cell(row, "mean_us", stats.mean, 2);
        bench_cell(row, "p50_to_raw", stats.median / medians[RAW], 3);
    }
    struct bench_stats ratio = bench_stats(r->ratio[placement], (size_t)r->rounds);
    snprintf(name, sizeof name, "ratio_per_round_%s", placement == TWO_CPUS ? "two_cpus" : "one_cpu");
    bench_note(report, name, "mla_read_health / raw ping-pong: median %.3f, quartiles %.3f to %.3f", ratio.median,
               ratio.q1, ratio.q3);
    snprintf(name, sizeof name, "mla_read_health / raw ping-pong, %s, medians", placement_names[placement]);
    bench_bar_at_most(report, name, medians[LIBRARY] / medians[RAW], RATIO_MAX);
}

static void fill_report(struct rtt *r, struct bench_report *report)
{
    bench_note(report, "server_cpu", "CPU %d: mlad and the echo process", r->server_cpu);
    for (int p = 0; p < PLACEMENTS; p++) {
        char key[BENCH_TEXT_MAX];
        snprintf(key, sizeof key, "client_cpu_%s", p == TWO_CPUS ? "two_cpus" : "one_cpu");
        if (r->placed[p])
            bench_note(report, key, "CPU %d", r->client_cpu[p]);
        else
            bench_note(report, key, "not measured: this process may run on one CPU only");
    }
    bench_note(report, "request_bytes", "%zu", r->request_bytes);
    bench_note(report, "reply_bytes", r->reply_bytes_least == r->reply_bytes_most ? "%zu" : "%zu to %zu",
               r->reply_bytes_least, r->reply_bytes_most);
    bench_note(report, "samples", "%ld of each row: %ld rounds of %ld, interleaved; %d before them are not counted",
               r->rounds * r->samples, r->rounds, r->samples, WARM_UP);
    for (int p = 0; p < PLACEMENTS; p++)
        if (r->placed[p])
            report_placement(r, (enum placement)p, report);
}

/* ---- the subcommand ---- */

static bool make_room(struct rtt *r)
{
    for (int p = 0; p < PLACEMENTS; p++) {
        r->ratio[p] = calloc((size_t)r->rounds, sizeof(double));
        if (!r->ratio[p])
            return false;
        for (int way = 0; way < WAYS; way++) {
            r->us[p][way] = calloc((size_t)(r->rounds * r->samples), sizeof(double));
            if (!r->us[p][way])
                return false;
        }
    }
    return true;
}

static int close_all(struct rtt *r)
{
    mla_close(r->client);
    if (r->bare >= 0)
        close(r->bare);
    int rc = rtt_daemon_stop(&r->daemon);
    if (rtt_echo_stop(&r->echo) != 0)
        rc = -1;
    for (int p = 0; p < PLACEMENTS; p++) {
        free(r->ratio[p]);
        for (int way = 0; way < WAYS; way++)
            free(r->us[p][way]);
    }
    return rc;
}

/* The daemon of the build tree, else the one beside this program. */
static int find_mlad(char *out, size_t bytes)
{
    static const char *const beside[] = {"../../daemon/mlad", "mlad"};
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return complain("/proc/self/exe cannot be read: name the daemon with --mlad");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    *slash = '\0';
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        snprintf(out, bytes, "%s/%s", self, beside[i]);
        if (access(out, X_OK) == 0)
            return 0;
    }
    return complain("no mlad was found: name it with --mlad");
}

static int choose_cpus(struct rtt *r, int argc, char **argv)
{
    int cpus[CPUS_MAX];
    size_t n = bench_cpus(cpus, CPUS_MAX);
    if (n == 0)
        return complain("the CPUs of this process cannot be told");
    n = n > CPUS_MAX ? CPUS_MAX : n;
    r->client_cpu[TWO_CPUS] = (int)bench_option(argc, argv, "--client-cpu", cpus[0], 0, CPUS_MAX - 1);
    r->server_cpu = (int)bench_option(argc, argv, "--server-cpu", cpus[n - 1], 0, CPUS_MAX - 1);
    if (r->client_cpu[TWO_CPUS] < 0 || r->server_cpu < 0)
        return -1;
    r->client_cpu[ONE_CPU] = r->server_cpu;
    r->placed[ONE_CPU] = true;
    r->placed[TWO_CPUS] = r->client_cpu[TWO_CPUS] != r->server_cpu;
    return 0;
}

int bench_rtt(int argc, char **argv, struct bench_report *report)
{
    static struct rtt r = {.echo.sock = -1, .bare = -1};
    char beside[1024];
    const char *mlad = bench_text_option(argc, argv, "--mlad", NULL);
    r.rounds = bench_option(argc, argv, "--rounds", 400, 1, ROUNDS_MAX);
    r.samples = bench_option(argc, argv, "--samples", 100, 1, SAMPLES_MAX);
    if (r.rounds < 0 || r.samples < 0 || choose_cpus(&r, argc, argv) != 0 || bench_options_end(argc, argv) != 0)
        return -1;
    if (!mlad && find_mlad(beside, sizeof beside) != 0)
        return -1;
    report->title = "rtt";
    /* Processes first: what comes after is not theirs to inherit. */
    int rc = rtt_echo_start(&r.echo, r.server_cpu);
    if (rc == 0)
        rc = rtt_daemon_start(&r.daemon, mlad ? mlad : beside, r.server_cpu);
    if (rc == 0)
        rc = open_client(&r);
    if (rc == 0)
        rc = open_bare(&r);
    if (rc == 0)
        rc = make_room(&r) ? measure(&r) : complain("no memory for the samples");
    if (rc == 0)
        fill_report(&r, report);
    return close_all(&r) != 0 ? -1 : rc;
}
