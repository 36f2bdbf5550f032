/* mla-bench rtt, shared by its files: what is measured, and what came of it.
 *
 * A scenario is an exchange (HEALTH, a small decode), blocking or spinning, with the client on another CPU than the
 * servers or on the same one. In each, the ways are measured in turn:
 *   raw        an echo process; request and reply have the bytes of the real ones
 *   bare       HEALTH frames over the same blocking calls to the real daemon: what the daemon adds
 *   library    libmla and the real daemon: what the library adds
 */
#ifndef MLA_TESTS_BENCH_RTT_H
#define MLA_TESTS_BENCH_RTT_H

#include "tests/bench/daemon.h"
#include "tests/bench/report.h"
#include "tests/bench/rtt_servers.h"
#include "tests/bench/small.h"

enum rtt_way { RTT_RAW, RTT_BARE, RTT_LIBRARY, RTT_WAYS };
enum rtt_exchange { RTT_HEALTH, RTT_DECODE, RTT_EXCHANGES };
enum rtt_placement { RTT_TWO_CPUS, RTT_ONE_CPU, RTT_PLACEMENTS };

struct rtt_scenario {
    enum rtt_exchange exchange;
    bool spinning;
    enum rtt_placement placement;
    bool has[RTT_WAYS];
};
#define RTT_SCENARIOS 5
extern const struct rtt_scenario rtt_scenarios[RTT_SCENARIOS];

/* CPU time of a scenario's way, all round trips together. */
struct rtt_cpu {
    double client_user_us, client_system_us, server_us;
    double turns;
};

struct rtt {
    struct bench_daemon daemon, spinner; /* the second is set to spin, where it can */
    struct rtt_echo echo, load_echo;
    struct small client, spin_client;
    int bare; /* a connection of our own to the daemon */
    uint8_t request[RTT_BYTES_MAX], reply[RTT_BYTES_MAX];
    size_t health_bytes;                                             /* of the request that lies in request */
    size_t request_bytes[RTT_EXCHANGES], reply_bytes[RTT_EXCHANGES]; /* of HEALTH: seen last */
    size_t reply_bytes_least, reply_bytes_most;                      /* of HEALTH: the uptime's length varies */
    int client_cpu[RTT_PLACEMENTS], server_cpu;
    bool placed[RTT_PLACEMENTS]; /* measured at all */
    long rounds, samples;
    double *us[RTT_SCENARIOS][RTT_WAYS]; /* every sample */
    double *ratio[RTT_SCENARIOS];        /* of a round's medians, library to raw */
    struct rtt_cpu cpu[RTT_SCENARIOS][RTT_WAYS];
};

/* rtt_ways.c: the connections, and one round trip of a way. 0, or -1 after a line on stderr. */
int rtt_ways_open(struct rtt *r);
void rtt_ways_close(struct rtt *r);
int rtt_turn(struct rtt *r, const struct rtt_scenario *scenario, enum rtt_way way);
const char *rtt_way_name(const struct rtt_scenario *scenario, enum rtt_way way);
/* The process that answers. */
pid_t rtt_server_of(const struct rtt *r, const struct rtt_scenario *scenario, enum rtt_way way);

/* rtt_load.c: requests per second of 1, 8 and 64 connections that always have one decode in flight, all in one process,
 * against as many socket pairs of the echo. Adds rows. 0, or -1 after a line on stderr. */
#define RTT_LOAD_CLIENTS_MAX 64
int rtt_load(struct rtt *r, long load_ms, struct bench_report *report);

#endif
