/* Peers that are slow, never read, flood, or are too many (D7, D13); others go on, and memory stays flat. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "tests/integration/net_fixture.h"

#define REPLY(name) (MLA_MSG_##name | MLA_REPLY)

static uint64_t ms_since(uint64_t start_ns)
{
    return (mla_now_ns() - start_ns) / MLA_NS_PER_MS;
}

static void health(int fd, uint64_t id)
{
    client_request(fd, MLA_MSG_HEALTH, id);
    client_expect(fd, REPLY(HEALTH), id, MLA_OK);
}

/* One byte now and then: cut when the frame's time is over, with the reason. */
START_TEST(slow_frame_is_cut)
{
    fx.config.frame_timeout_ms = 200;
    fx_start();
    int good = client_open(), fd = client_open();
    uint8_t bytes[MLA_WIRE_HEADER_BYTES + 1000] = {0};
    client_frame(bytes, MLA_MSG_CANCEL, 1, 0, NULL, 0);
    struct mla_frame_header h = {.major = MLA_PROTO_MAJOR, .type = MLA_MSG_CANCEL, .body_len = 1000};
    mla_wire_pack(&h, bytes);
    uint64_t start = mla_now_ns();
    size_t sent = 0;
    while (net_counters(fx.net)->slow_peers == 0 && sent < sizeof(bytes)) {
        ck_assert_int_eq(send(fd, bytes + sent++, 1, MSG_NOSIGNAL), 1);
        fx_turn_for(10);
        health(good, sent);
    }
    ck_assert_uint_ge(ms_since(start), 198); /* the loop counts whole milliseconds */
    ck_assert_uint_le(ms_since(start), 1500);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_SLOW_PEER);
    client_expect_end(fd);
    health(good, 0);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 1);
    close(fd);
    close(good);
}
END_TEST

/* Whole frames, each in time, may come for as long as they like; so may silence between them. */
START_TEST(steady_frames_are_not_cut)
{
    fx.config.frame_timeout_ms = 100;
    fx_start();
    int fd = client_open();
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    client_frame(bytes, MLA_MSG_HEALTH, 1, 0, NULL, 0);
    for (int i = 0; i < 6; i++) {
        client_write(fd, bytes, 10);
        fx_turn_for(50);
        client_write(fd, bytes + 10, sizeof(bytes) - 10);
        client_expect(fd, REPLY(HEALTH), 1, MLA_OK);
    }
    fx_turn_for(300);
    health(fd, 2);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 0);
    close(fd);
}
END_TEST

START_TEST(no_hello_is_cut)
{
    fx.config.hello_timeout_ms = 150;
    fx_start();
    int good = client_open();
    uint64_t start = mla_now_ns();
    int fd = client_socket();
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_SLOW_PEER);
    ck_assert_uint_ge(ms_since(start), 148);
    ck_assert_uint_le(ms_since(start), 1500);
    client_expect_end(fd);
    health(good, 1);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 1);
    close(fd);
    close(good);
}
END_TEST

/* The daemon itself was held up: what came meanwhile counts. */
START_TEST(stalled_loop_blames_nobody)
{
    fx.config.frame_timeout_ms = 100;
    fx_start();
    int fd = client_open();
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    client_frame(bytes, MLA_MSG_HEALTH, 1, 0, NULL, 0);
    client_write(fd, bytes, 10);
    fx_turn_for(20);
    client_write(fd, bytes + 10, sizeof(bytes) - 10);
    usleep(400000);
    client_expect(fd, REPLY(HEALTH), 1, MLA_OK);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 0);
    close(fd);
}
END_TEST

/* Writes as many requests as the daemon takes; returns how many were whole. */
static unsigned write_until_full(int fd, unsigned max)
{
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    unsigned n = 0, refused = 0;
    while (n < max && refused < 400) {
        client_frame(bytes, MLA_MSG_HEALTH, n, 0, NULL, 0);
        ssize_t k = send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k == (ssize_t)sizeof(bytes)) {
            n++;
            refused = 0;
            continue;
        }
        ck_assert_int_lt(k, 0); /* frames this small go whole or not at all */
        if (errno != EAGAIN)
            break;
        refused++;
        fx_turn();
    }
    return n;
}

/* Never reads: no longer read from at half of the cap, cut when its write time is over. */
START_TEST(never_reading_peer_is_cut)
{
    fx.config.write_timeout_ms = 200;
    fx_start();
    int good = client_open(), fd = client_open();
    struct net_peer *peer = net_next_peer(fx.net, net_next_peer(fx.net, NULL));
    ck_assert_ptr_nonnull(peer);
    uint64_t start = mla_now_ns();
    unsigned n = write_until_full(fd, 100000);
    ck_assert_uint_lt(n, 100000);
    if (fx.closed == 0) {
        ck_assert_uint_ge(net_peer_queued_bytes(peer), fx.config.write_queue_bytes / 2);
        ck_assert_uint_le(net_peer_queued_bytes(peer), fx.config.write_queue_bytes);
    }
    unsigned rounds = 0;
    while (fx.closed == 0 && ms_since(start) < 5000)
        health(good, ++rounds);
    ck_assert_uint_eq(fx.closed, 1);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 1);
    health(good, 0);
    close(fd);
    close(good);
}
END_TEST

/* A peer that reads late is not cut: all is answered, in order, and its queue stays under the cap. */
START_TEST(late_reader_gets_everything)
{
    fx_start();
    int fd = client_open();
    struct net_peer *peer = net_next_peer(fx.net, NULL);
    unsigned sent = write_until_full(fd, 100000), answered = 0;
    ck_assert_uint_lt(sent, 100000);
    size_t stuck = fx.n_seen;
    ck_assert_uint_lt(stuck, sent);
    for (int i = 0; i < 100; i++)
        fx_turn();
    ck_assert_uint_eq(fx.n_seen, stuck); /* paused */
    ck_assert_uint_le(net_peer_queued_bytes(peer), fx.config.write_queue_bytes);
    for (; answered < sent; answered++)
        client_expect(fd, REPLY(HEALTH), answered, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, sent);
    health(fd, 7);
    close(fd);
}
END_TEST

/* What it has not read does not keep a peer's end from being seen. */
START_TEST(paused_peer_may_leave)
{
    fx_start();
    int fd = client_open();
    (void)write_until_full(fd, 100000);
    close(fd);
    for (int i = 0; i < 4; i++)
        fx_turn();
    ck_assert_uint_eq(fx.closed, 1);
}
END_TEST

/* More replies at once than the cap and the socket hold: cut at the cap, others go on. */
START_TEST(write_cap_cuts)
{
    fx_start();
    int good = client_open(), fd = client_open();
    fx.copies = 10000; /* 2.9 MB */
    client_request(fd, MLA_MSG_HEALTH, 1);
    for (int i = 0; i < 4; i++)
        fx_turn();
    ck_assert_uint_eq(fx.closed, 1);
    ck_assert_uint_eq(net_counters(fx.net)->slow_peers, 1);
    fx.copies = 1;
    health(good, 2);
    close(fd);
    close(good);
}
END_TEST

/* Below the cap of both together nothing is lost, even when the queue alone is smaller. */
START_TEST(burst_uses_the_socket_first)
{
    fx_start();
    int fd = client_open();
    fx.copies = 400; /* 116 KB: over the 64 KiB of queue, within socket and queue */
    client_request(fd, MLA_MSG_HEALTH, 1);
    for (int i = 0; i < 400; i++)
        client_expect(fd, REPLY(HEALTH), 1, MLA_OK);
    ck_assert_uint_eq(fx.closed, 0);
    close(fd);
}
END_TEST

/* Ten peers with hundreds of frames buffered delay an eleventh by one frame each. */
START_TEST(flooding_is_fair)
{
    enum { FLOODERS = 10, FRAMES = 300 };
    static uint8_t bytes[FRAMES * MLA_WIRE_HEADER_BYTES];
    fx_start();
    int flood[FLOODERS], fd = client_open();
    struct net_peer *quiet = net_next_peer(fx.net, NULL);
    size_t n = 0;
    for (unsigned i = 0; i < FRAMES; i++)
        n += client_frame(bytes + n, MLA_MSG_HEALTH, i, 0, NULL, 0);
    for (int i = 0; i < FLOODERS; i++)
        flood[i] = client_open();
    for (int i = 0; i < FLOODERS; i++)
        ck_assert_int_eq(send(flood[i], bytes, n, 0), (ssize_t)n);
    for (int i = 0; i < 5; i++)
        fx_turn();
    for (unsigned round = 0; round < 20; round++) {
        size_t before = fx.n_seen;
        client_request(fd, MLA_MSG_HEALTH, 1000 + round);
        bool handled = false;
        while (!handled) {
            size_t from = fx.n_seen;
            fx_turn();
            for (size_t i = from; i < fx.n_seen; i++)
                handled = handled || fx.seen[i].peer == quiet;
            ck_assert_uint_le(fx.n_seen - before, 2 * (FLOODERS + 1));
        }
        client_expect(fd, REPLY(HEALTH), 1000 + round, MLA_OK);
    }
    ck_assert_uint_lt(fx.n_seen, FLOODERS * FRAMES); /* the flood was still there */
    while (fx.n_seen < FLOODERS * FRAMES + 20) {
        size_t before = fx.n_seen;
        static uint8_t sink[1 << 16];
        for (int i = 0; i < FLOODERS; i++) /* replies that nobody reads would pause them */
            (void)!recv(flood[i], sink, sizeof(sink), MSG_DONTWAIT);
        fx_turn();
        ck_assert_uint_gt(fx.n_seen, before); /* and no turn is idle */
    }
    for (int i = 0; i < FLOODERS; i++)
        close(flood[i]);
    close(fd);
}
END_TEST

START_TEST(max_peers)
{
    fx.config.max_peers = 2;
    fx_start();
    int a = client_open(), b = client_open();
    int c = client_socket();
    const struct client_reply *r = client_expect(c, MLA_NOTICE_ERROR, 0, MLA_OVERLOADED);
    ck_assert_uint_eq(r->message.reply.status.limit, 2);
    ck_assert_uint_gt(r->message.reply.status.retry_after_us, 0);
    client_expect_end(c);
    close(c);
    ck_assert_uint_eq(net_counters(fx.net)->refused, 1);
    health(a, 1);
    close(b);
    fx_turn();
    c = client_open();
    health(c, 2);
    close(a);
    close(c);
}
END_TEST

/* Sets the limit so that n more descriptors can be opened. */
static void allow_fds(unsigned n, rlim_t hard)
{
    rlim_t limit = 0;
    for (n++; n > 0; limit++)
        n -= fcntl((int)limit, F_GETFD) < 0;
    struct rlimit r = {.rlim_cur = limit - 1, .rlim_max = hard};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
}

START_TEST(out_of_descriptors)
{
    fx_start();
    struct rlimit was;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    int first = client_open(), more[10];
    const struct net_counters *c = net_counters(fx.net);
    for (int i = 0; i < 10; i++)
        more[i] = client_socket();
    allow_fds(3, was.rlim_max);
    for (int i = 0; i < 10; i++)
        fx_turn();
    ck_assert_uint_eq(c->peers, 4);
    ck_assert_uint_eq(c->accept_pauses, 1);
    health(first, 1);
    /* One leaves: its two descriptors (both ends are ours here) let two of the waiting in, before any timer. */
    close(more[0]);
    for (int i = 0; i < 10; i++)
        fx_turn();
    ck_assert_uint_eq(c->accepted, 6);
    ck_assert_uint_eq(c->accept_pauses, 2);
    health(first, 2);
    /* The limit rises, nobody leaves: the timer finds out. */
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    uint64_t start = mla_now_ns();
    while (c->accepted < 11 && ms_since(start) < 5000)
        fx_turn();
    ck_assert_uint_eq(c->accepted, 11);
    ck_assert_uint_eq(c->peers, 10);
    health(first, 3);
    for (int i = 1; i < 10; i++)
        close(more[i]);
    close(first);
}
END_TEST

START_TEST(a_thousand_peers)
{
    enum { PEERS = 1000 };
    static int fds[PEERS];
    struct rlimit was, r;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    r = was;
    r.rlim_cur = was.rlim_max < 4096 ? was.rlim_max : 4096;
    ck_assert_uint_ge(r.rlim_cur, 2 * PEERS + 64);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &r), 0);
    fx.config.max_peers = PEERS;
    fx_start();
    for (int i = 0; i < PEERS; i++)
        fds[i] = client_open();
    ck_assert_uint_eq(net_counters(fx.net)->peers, PEERS);
    for (int i = 0; i < PEERS; i++)
        health(fds[i], (uint64_t)i);
    for (int i = 0; i < PEERS; i++)
        close(fds[i]);
    fx_turn();
    fx_turn();
    ck_assert_uint_eq(net_counters(fx.net)->peers, 0);
    ck_assert_uint_eq(fx.closed, PEERS);
}
END_TEST

static size_t heap_bytes(void)
{
    return mallinfo2().uordblks;
}

START_TEST(memory_is_flat)
{
    fx_start();
    size_t before = 0;
    int probe = -1;
    for (int i = 0; i < 10000; i++) {
        int fd = client_open();
        if (i % 4 == 1) /* mid-frame */
            client_write(fd, "MLAD", 4);
        if (i % 4 == 2)
            client_request(fd, MLA_MSG_HEALTH, 1); /* unread reply */
        fx_turn();
        close(fd);
        fx_turn();
        fx_turn();
        if (i == 99) {
            before = heap_bytes();
            probe = fd;
        }
        if (i > 99)
            ck_assert_int_eq(fd, probe); /* descriptors are flat too */
    }
    ck_assert_uint_eq(fx.closed, 10000);
    ck_assert_uint_eq(heap_bytes(), before);
}
END_TEST

MLA_SUITE(net_limits)
{
    TCase *tc = mla_tcase(suite, "slow");
    tcase_add_checked_fixture(tc, fx_prepare, fx_close);
    tcase_add_test(tc, slow_frame_is_cut);
    tcase_add_test(tc, steady_frames_are_not_cut);
    tcase_add_test(tc, stalled_loop_blames_nobody);
    tcase_add_test(tc, no_hello_is_cut);
    tcase_add_test(tc, never_reading_peer_is_cut);
    tcase_add_test(tc, late_reader_gets_everything);
    tcase_add_test(tc, paused_peer_may_leave);
    tcase_add_test(tc, write_cap_cuts);
    tcase_add_test(tc, burst_uses_the_socket_first);

    tc = mla_tcase(suite, "many");
    tcase_add_checked_fixture(tc, fx_prepare, fx_close);
    tcase_add_test(tc, flooding_is_fair);
    tcase_add_test(tc, max_peers);
    tcase_add_test(tc, out_of_descriptors);
    tcase_add_test(tc, a_thousand_peers);
    tcase_add_test(tc, memory_is_flat);
}
