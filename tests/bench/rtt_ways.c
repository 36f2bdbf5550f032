#include "tests/bench/rtt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/codec.h"

#define CLIENT_SPIN_US 10000

const struct rtt_scenario rtt_scenarios[RTT_SCENARIOS] = {
    {RTT_HEALTH, false, RTT_TWO_CPUS, {true, true, true}},  {RTT_HEALTH, false, RTT_ONE_CPU, {true, true, true}},
    {RTT_DECODE, false, RTT_TWO_CPUS, {true, false, true}}, {RTT_DECODE, false, RTT_ONE_CPU, {true, false, true}},
    {RTT_DECODE, true, RTT_TWO_CPUS, {true, false, true}},
};

static int complain(const char *what)
{
    fprintf(stderr, "mla-bench: %s\n", what);
    return -1;
}

const char *rtt_way_name(const struct rtt_scenario *scenario, enum rtt_way way)
{
    if (way == RTT_LIBRARY)
        return scenario->exchange == RTT_HEALTH ? "mla_read_health" : "mla_decode";
    return way == RTT_RAW ? "raw ping-pong" : "bare socket to mlad";
}

pid_t rtt_server_of(const struct rtt *r, const struct rtt_scenario *scenario, enum rtt_way way)
{
    return way == RTT_RAW ? r->echo.pid : scenario->spinning ? r->spinner.pid : r->daemon.pid;
}

/* ---- the ways ---- */

static int turn_raw(struct rtt *r, const struct rtt_scenario *scenario)
{
    size_t n = r->reply_bytes[scenario->exchange];
    if (rtt_write_all(r->echo.socks[0], r->request, r->request_bytes[scenario->exchange]) != 0)
        return -1;
    return scenario->spinning ? rtt_spin_all(r->echo.socks[0], r->reply, n)
                              : rtt_read_all(r->echo.socks[0], r->reply, n);
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
    r->reply_bytes[RTT_HEALTH] = have;
    return have == want ? 0 : -1;
}

static int turn_bare(struct rtt *r)
{
    if (rtt_write_all(r->bare, r->request, r->health_bytes) != 0 || read_frame(r) != 0)
        return -1;
    size_t n = r->reply_bytes[RTT_HEALTH];
    r->reply_bytes_least = r->reply_bytes_least == 0 || n < r->reply_bytes_least ? n : r->reply_bytes_least;
    r->reply_bytes_most = n > r->reply_bytes_most ? n : r->reply_bytes_most;
    return 0;
}

static int turn_library(struct rtt *r, const struct rtt_scenario *scenario)
{
    struct mla_health_info *health;
    if (scenario->exchange == RTT_HEALTH) {
        if (mla_read_health(r->client.client, SMALL_TIMEOUT_US, &health) != MLA_OK)
            return -1;
        mla_free(health);
        return 0;
    }
    struct small *s = scenario->spinning ? &r->spin_client : &r->client;
    return mla_decode(s->client, &s->args, SMALL_TIMEOUT_US, NULL) == MLA_OK ? 0 : -1;
}

int rtt_turn(struct rtt *r, const struct rtt_scenario *scenario, enum rtt_way way)
{
    int rc = way == RTT_RAW ? turn_raw(r, scenario) : way == RTT_BARE ? turn_bare(r) : turn_library(r, scenario);
    if (rc != 0)
        fprintf(stderr, "mla-bench: %s: a round trip failed\n", rtt_way_name(scenario, way));
    return rc;
}

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
    r->health_bytes = MLA_WIRE_HEADER_BYTES + body;
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
    r->reply_bytes_least = r->reply_bytes_most = 0;
    if (make_request(r, &message) != 0 || turn_bare(r) != 0 || check_reply(r, MLA_MSG_HEALTH) != 0)
        return complain("the daemon did not answer HEALTH");
    r->request_bytes[RTT_HEALTH] = r->health_bytes;
    return 0;
}

int rtt_ways_open(struct rtt *r)
{
    if (small_open(&r->client, r->daemon.socket, 0) != 0 ||
        small_open(&r->spin_client, r->spinner.socket, CLIENT_SPIN_US) != 0 || open_bare(r) != 0 ||
        small_sizes(&r->client, &r->request_bytes[RTT_DECODE], &r->reply_bytes[RTT_DECODE]) != 0)
        return -1;
    if (r->request_bytes[RTT_DECODE] > RTT_BYTES_MAX || r->reply_bytes[RTT_DECODE] > RTT_BYTES_MAX)
        return complain("a small decode has more bytes than the echo takes");
    return 0;
}

void rtt_ways_close(struct rtt *r)
{
    small_close(&r->client);
    small_close(&r->spin_client);
    if (r->bare >= 0)
        close(r->bare);
}
