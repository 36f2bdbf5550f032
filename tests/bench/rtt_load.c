#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/bench/machine.h"
#include "tests/bench/rtt.h"

static const unsigned sizes[] = {1, 8, RTT_LOAD_CLIENTS_MAX};

struct load {
    struct rtt *r;
    unsigned n;
    int epoll;
    struct small clients[RTT_LOAD_CLIENTS_MAX];
    uint64_t end_ns;
    uint64_t answered, failed;
    unsigned in_flight;
};

/* ---- decodes ---- */

static void resubmit(struct load *l, struct small *s);

struct link {
    struct load *load;
    struct small *small;
};
static struct link links[RTT_LOAD_CLIENTS_MAX];

static void on_answer(struct mla_client *client, const struct mla_decode_result *result, void *user)
{
    struct link *link = user;
    (void)client;
    link->load->in_flight--;
    link->load->answered++;
    link->load->failed += result->status != MLA_OK;
    if (result->status == MLA_OK && bench_now_ns() < link->load->end_ns)
        resubmit(link->load, link->small);
}

static void resubmit(struct load *l, struct small *s)
{
    struct link *link = &links[s - l->clients];
    *link = (struct link){l, s};
    if (mla_decode_submit(s->client, &s->args, on_answer, link, NULL) == MLA_OK)
        l->in_flight++;
    else
        l->failed++;
}

static void run_library(struct load *l)
{
    struct epoll_event events[RTT_LOAD_CLIENTS_MAX];
    for (unsigned i = 0; i < l->n; i++)
        resubmit(l, &l->clients[i]);
    while (l->in_flight > 0 && l->failed == 0) {
        int n = epoll_wait(l->epoll, events, RTT_LOAD_CLIENTS_MAX, 1000);
        for (int i = 0; i < n; i++)
            mla_dispatch(l->clients[events[i].data.u32].client, 0);
        l->failed += n == 0;
    }
}

/* ---- the same bytes through socket pairs ---- */

static void run_raw(struct load *l)
{
    struct rtt *r = l->r;
    struct epoll_event events[RTT_LOAD_CLIENTS_MAX];
    size_t want = r->reply_bytes[RTT_DECODE];
    for (unsigned i = 0; i < l->n; i++, l->in_flight++)
        l->failed += rtt_write_all(r->load_echo.socks[i], r->request, r->request_bytes[RTT_DECODE]) != 0;
    while (l->in_flight > 0 && l->failed == 0) {
        int n = epoll_wait(l->epoll, events, RTT_LOAD_CLIENTS_MAX, 1000);
        l->failed += n == 0;
        for (int i = 0; i < n; i++) {
            int sock = r->load_echo.socks[events[i].data.u32];
            l->failed += rtt_read_all(sock, r->reply, want) != 0;
            l->in_flight--;
            l->answered++;
            if (bench_now_ns() >= l->end_ns)
                continue;
            l->failed += rtt_write_all(sock, r->request, r->request_bytes[RTT_DECODE]) != 0;
            l->in_flight++;
        }
    }
}

/* ---- one row ---- */

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + 1e-6 * (double)t.tv_usec;
}

static int listen_to(struct load *l, bool raw)
{
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0)
        return -1;
    for (unsigned i = 0; i < l->n; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        int fd = raw ? l->r->load_echo.socks[i] : mla_fd(l->clients[i].client);
        if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &event) != 0)
            return -1;
    }
    return 0;
}

static int measure(struct load *l, bool raw, long load_ms, struct bench_report *report)
{
    struct rtt_times before = {0}, after = {0};
    struct rusage own[2];
    pid_t server = raw ? l->r->load_echo.pid : l->r->daemon.pid;
    l->answered = l->failed = 0;
    l->in_flight = 0;
    if (listen_to(l, raw) != 0 || rtt_times_of(server, &before) != 0) {
        fprintf(stderr, "mla-bench: load: %s\n", strerror(errno));
        return -1;
    }
    getrusage(RUSAGE_SELF, &own[0]);
    uint64_t start = bench_now_ns();
    l->end_ns = start + (uint64_t)load_ms * 1000000;
    (raw ? run_raw : run_library)(l);
    double s = 1e-9 * (double)(bench_now_ns() - start);
    getrusage(RUSAGE_SELF, &own[1]);
    rtt_times_of(server, &after);
    close(l->epoll);
    if (l->failed != 0 || l->answered == 0) {
        fprintf(stderr, "mla-bench: %u %s: a request failed\n", l->n, raw ? "socket pairs" : "clients");
        return -1;
    }
    double user_s, system_s;
    rtt_times_split(&before, &after, &user_s, &system_s);
    double per = 1e6 / (double)l->answered;
    struct bench_row *row = bench_row(report, "%u %s", l->n, raw ? "raw socket pairs" : "clients, mla_decode_submit");
    bench_label(row, "table", "load");
    bench_label(row, "way", raw ? "raw" : "library");
    bench_cell(row, "clients", l->n, 0);
    bench_cell(row, "requests_per_s", (double)l->answered / s, 0);
    bench_cell(row, "requests", (double)l->answered, 0);
    bench_cell(row, "client_user_us", per * (seconds_of(own[1].ru_utime) - seconds_of(own[0].ru_utime)), 2);
    bench_cell(row, "client_system_us", per * (seconds_of(own[1].ru_stime) - seconds_of(own[0].ru_stime)), 2);
    bench_cell(row, "server_user_us", per * user_s, 2);
    bench_cell(row, "server_system_us", per * system_s, 2);
    bench_cell(row, "server_cpu_us", per * (after.cpu_s - before.cpu_s), 2);
    return 0;
}

int rtt_load(struct rtt *r, long load_ms, struct bench_report *report)
{
    static struct load l;
    int rc = 0;
    l.r = r;
    enum rtt_placement placement = r->placed[RTT_TWO_CPUS] ? RTT_TWO_CPUS : RTT_ONE_CPU;
    if (bench_pin(r->client_cpu[placement]) != 0)
        return -1;
    unsigned opened = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        l.n = sizes[i];
        for (; opened < l.n && rc == 0; opened++)
            rc = small_open(&l.clients[opened], r->daemon.socket, 0);
        if (rc == 0)
            rc = measure(&l, true, load_ms, report);
        if (rc == 0)
            rc = measure(&l, false, load_ms, report);
    }
    for (unsigned i = 0; i < opened; i++)
        small_close(&l.clients[i]);
    return rc;
}
