/* What a peer may say, and what it hears: frames, versions, bodies, descriptors, over a real socket (D6, D18). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/integration/net_fixture.h"

#define REPLY(name) (MLA_MSG_##name | MLA_REPLY)

START_TEST(hello_and_requests)
{
    int fd = client_open();
    ck_assert_uint_eq(net_counters(fx.net)->peers, 1);
    client_request(fd, MLA_MSG_HEALTH, 5);
    client_expect(fd, REPLY(HEALTH), 5, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, 1);
    ck_assert_uint_eq(fx.seen[0].type, MLA_MSG_HEALTH);
    const struct net_counters *c = net_counters(fx.net);
    ck_assert_uint_eq(c->accepted, 1);
    ck_assert_uint_eq(c->frames_in, 2);
    ck_assert_uint_eq(c->frames_out, 2);
    ck_assert_uint_gt(c->bytes_in, 48);
    ck_assert_uint_gt(c->bytes_out, 48 + 255);
    close(fd);
    fx_turn();
    fx_turn();
    ck_assert_uint_eq(fx.closed, 1);
    ck_assert_uint_eq(net_counters(fx.net)->peers, 0);
    ck_assert_uint_eq(net_counters(fx.net)->closed, 1);
}
END_TEST

START_TEST(credentials)
{
    int fd = client_open();
    struct net_peer *peer = net_next_peer(fx.net, NULL);
    ck_assert_ptr_nonnull(peer);
    ck_assert_ptr_null(net_next_peer(fx.net, peer));
    const struct net_creds *c = net_peer_creds(peer);
    ck_assert_int_eq(c->pid, getpid());
    ck_assert_uint_eq(c->uid, geteuid());
    ck_assert_uint_eq(c->gid, getegid());
    gid_t mine[1024];
    int n = getgroups(1024, mine);
    ck_assert_int_ge(n, 0);
    ck_assert_uint_eq(c->n_groups, (size_t)n);
    ck_assert_mem_eq(c->groups, mine, (size_t)n * sizeof(gid_t));
    close(fd);
}
END_TEST

/* The same conversation, one byte per write. */
START_TEST(byte_by_byte)
{
    int fd = client_socket();
    struct mla_message m;
    uint8_t bytes[1024];
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "slow";
    size_t n = client_message(bytes, sizeof(bytes), &m, 1, 0);
    mla_message_init(&m, MLA_MSG_CANCEL);
    m.cancel.request_id = 99;
    for (uint64_t id = 2; id < 5; id++)
        n += client_message(bytes + n, sizeof(bytes) - n, &m, id, 0);
    for (size_t i = 0; i < n; i++) {
        client_write(fd, bytes + i, 1);
        fx_turn();
    }
    client_expect(fd, REPLY(HELLO), 1, MLA_OK);
    for (uint64_t id = 2; id < 5; id++)
        client_expect(fd, REPLY(CANCEL), id, MLA_OK);
    close(fd);
}
END_TEST

/* Many frames in one write, HELLO among them: answered all, in order, one per turn. */
START_TEST(merged_frames)
{
    static uint8_t bytes[512 + 200 * MLA_WIRE_HEADER_BYTES];
    int fd = client_socket();
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_HELLO);
    size_t n = client_message(bytes, 512, &m, 1, 0);
    for (unsigned i = 0; i < 200; i++)
        n += client_frame(bytes + n, MLA_MSG_HEALTH, 100 + i, 0, NULL, 0);
    client_write(fd, bytes, n);
    for (int turn = 0; turn < 300 && fx.n_seen < 200; turn++) {
        size_t before = fx.n_seen;
        fx_turn();
        ck_assert_uint_le(fx.n_seen, before + 1);
    }
    client_expect(fd, REPLY(HELLO), 1, MLA_OK);
    for (unsigned i = 0; i < 200; i++)
        client_expect(fd, REPLY(HEALTH), 100 + i, MLA_OK);
    close(fd);
}
END_TEST

START_TEST(large_body)
{
    static uint32_t pages[1 << 20];
    static uint8_t bytes[(5 << 20)];
    uint32_t q_len = 1, kv_len = 64u << 18;
    for (uint32_t i = 0; i < 1u << 18; i++)
        pages[i] = i;
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 3;
    m.put_table_set.q_len = &q_len;
    m.put_table_set.kv_len_max = &kv_len;
    m.put_table_set.pages = pages;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1;
    m.put_table_set.n_pages = 1u << 18;
    size_t n = client_message(bytes, sizeof(bytes), &m, 4, 0);
    ck_assert_uint_gt(n, 1u << 20);
    int fd = client_open();
    client_write(fd, bytes, n);
    client_expect(fd, REPLY(PUT_TABLE_SET), 4, MLA_OK);
    close(fd);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(other_major)
{
    int fd = client_socket();
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    struct mla_frame_header h = {.major = 9, .type = MLA_MSG_HELLO, .request_id = 6};
    mla_wire_pack(&h, bytes);
    client_write(fd, bytes, sizeof(bytes));
    const struct client_reply *r = client_expect(fd, REPLY(HELLO), 6, MLA_VERSION_MISMATCH);
    ck_assert_uint_eq(r->message.hello_reply.major, MLA_PROTO_MAJOR);
    ck_assert_ptr_nonnull(strstr(r->message.reply.status.text, "major 9"));
    ck_assert_ptr_nonnull(strstr(r->message.reply.status.text, "major 1"));
    client_expect_end(fd);
    close(fd);
    ck_assert_uint_eq(fx.closed, 0);

    fd = client_socket();
    h.type = 0x7777;
    mla_wire_pack(&h, bytes);
    client_write(fd, bytes, sizeof(bytes));
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_VERSION_MISMATCH);
    client_expect_end(fd);
    close(fd);
    ck_assert_uint_eq(net_counters(fx.net)->protocol_errors, 2);
}
END_TEST

START_TEST(hello_must_be_first_and_once)
{
    int fd = client_socket();
    client_request(fd, MLA_MSG_HEALTH, 1);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_HELLO_REQUIRED);
    client_expect_end(fd);
    close(fd);
    fd = client_open();
    client_request(fd, MLA_MSG_HELLO, 2);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_HELLO_REQUIRED);
    client_expect_end(fd);
    close(fd);
    ck_assert_uint_eq(fx.n_seen, 0);
    ck_assert_uint_eq(fx.hellos, 1);
    ck_assert_uint_eq(fx.closed, 1);
}
END_TEST

START_TEST(refused_hello)
{
    fx.refuse_hello = true;
    int fd = client_socket();
    client_request(fd, MLA_MSG_HELLO, 3);
    client_expect(fd, REPLY(HELLO), 3, MLA_PERMISSION_DENIED);
    client_expect_end(fd);
    close(fd);
    ck_assert_uint_eq(fx.closed, 0);
    ck_assert_ptr_null(net_next_peer(fx.net, NULL));
}
END_TEST

START_TEST(unknown_type_goes_on)
{
    int fd = client_open();
    client_request(fd, 0x2abc, 9);
    const struct client_reply *r = client_expect(fd, 0x2abc | MLA_REPLY, 9, MLA_UNKNOWN_MESSAGE);
    ck_assert_uint_eq(r->message.reply.status.value, 0x2abc);
    client_request(fd, MLA_MSG_HEALTH, 10);
    client_expect(fd, REPLY(HEALTH), 10, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, 1);
    close(fd);
}
END_TEST

START_TEST(malformed_body_goes_on)
{
    uint8_t bytes[256];
    int fd = client_open();
    client_write(fd, bytes, client_frame(bytes, MLA_MSG_CANCEL, 2, 0, "\xff\xff\xff\xff", 4));
    client_expect(fd, REPLY(CANCEL), 2, MLA_MALFORMED);
    client_request(fd, MLA_MSG_UNREGISTER_REGION, 3); /* without its id */
    const struct client_reply *r = client_expect(fd, REPLY(UNREGISTER_REGION), 3, MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(r->message.reply.status.field, "region");
    client_request(fd, MLA_MSG_HEALTH, 4);
    client_expect(fd, REPLY(HEALTH), 4, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, 1);
    ck_assert_uint_eq(net_counters(fx.net)->malformed_bodies, 2);
    ck_assert_uint_eq(net_counters(fx.net)->protocol_errors, 0);
    close(fd);
}
END_TEST

START_TEST(malformed_hello_may_be_repeated)
{
    uint8_t bytes[256];
    int fd = client_socket();
    client_write(fd, bytes, client_frame(bytes, MLA_MSG_HELLO, 2, 0, "\xff\xff\xff\xff", 4));
    client_expect(fd, REPLY(HELLO), 2, MLA_MALFORMED);
    client_request(fd, MLA_MSG_HELLO, 3);
    client_expect(fd, REPLY(HELLO), 3, MLA_OK);
    close(fd);
}
END_TEST

/* Each ends its own connection with a reason, and no other. */
START_TEST(broken_streams)
{
    static const struct {
        uint16_t type;
        uint8_t n_fds;
        uint32_t body_len;
        enum mla_status code;
    } rows[] = {{MLA_MSG_DECODE, 0, UINT32_MAX, MLA_TOO_LARGE},
                {MLA_MSG_PUT_TABLE_SET, 0, MLA_CAP_TABLE_BYTES + 1, MLA_TOO_LARGE},
                {MLA_MSG_HEALTH, 0, MLA_CAP_CONTROL_BYTES + 1, MLA_TOO_LARGE},
                {MLA_MSG_REGISTER_REGION, 17, 0, MLA_TOO_LARGE},
                {REPLY(HEALTH), 0, 0, MLA_PROTOCOL_ERROR},
                {MLA_NOTICE_GOAWAY, 0, 0, MLA_PROTOCOL_ERROR}};
    int other = client_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int fd = client_open();
        uint8_t bytes[MLA_WIRE_HEADER_BYTES + 100] = {0};
        struct mla_frame_header h = {
            .major = MLA_PROTO_MAJOR, .type = rows[i].type, .n_fds = rows[i].n_fds, .body_len = rows[i].body_len};
        mla_wire_pack(&h, bytes);
        client_write(fd, bytes, sizeof(bytes));
        client_expect(fd, MLA_NOTICE_ERROR, 0, rows[i].code);
        client_expect_end(fd);
        close(fd);
    }
    int fd = client_open();
    client_write(fd, "this is no frame, whatever it is", 32);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_PROTOCOL_ERROR);
    client_expect_end(fd);
    close(fd);
    client_request(other, MLA_MSG_HEALTH, 4);
    client_expect(other, REPLY(HEALTH), 4, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, 1);
    close(other);
}
END_TEST

/* A megabyte of empty sub-messages: refused or not, in bounded memory and time, and the peer goes on. */
START_TEST(empty_submessages)
{
    static uint8_t body[1 << 20], bytes[MLA_WIRE_HEADER_BYTES + sizeof(body)];
    for (size_t i = 0; i < sizeof(body); i += 2) {
        body[i] = 0x0a; /* field 1, length-delimited */
        body[i + 1] = 0;
    }
    int fd = client_open();
    for (int tag = 1; tag < 16; tag++) {
        for (size_t i = 0; i < sizeof(body); i += 2)
            body[i] = (uint8_t)(tag << 3 | 2);
        client_write(fd, bytes, client_frame(bytes, MLA_MSG_DECODE, 2, 0, body, sizeof(body)));
        static struct client_reply r;
        ck_assert_int_eq(client_receive(fd, &r), 1);
        ck_assert_uint_eq(r.header.type, REPLY(DECODE));
    }
    ck_assert_uint_eq(net_counters(fx.net)->malformed_bodies, 15);
    close(fd);
}
END_TEST

START_TEST(handler_fails_peer)
{
    int fd = client_open();
    fx.fail_next = true;
    client_request(fd, MLA_MSG_HEALTH, 1);
    client_request(fd, MLA_MSG_HEALTH, 2); /* not looked at any more */
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_INTERNAL);
    client_expect_end(fd);
    ck_assert_uint_eq(fx.n_seen, 1);
    ck_assert_uint_eq(fx.closed, 1);
    close(fd);
}
END_TEST

START_TEST(half_close_is_the_end)
{
    int fd = client_open();
    ck_assert_int_eq(shutdown(fd, SHUT_WR), 0);
    client_expect_end(fd);
    ck_assert_uint_eq(fx.closed, 1);
    close(fd);
}
END_TEST

START_TEST(close_from_a_handler)
{
    static uint8_t bytes[3 * MLA_WIRE_HEADER_BYTES];
    int a = client_open(), b = client_open();
    client_write(b, "MLAD", 4); /* mid-frame */
    size_t n = client_frame(bytes, MLA_MSG_HEALTH, 1, 0, NULL, 0);
    n += client_frame(bytes + n, MLA_MSG_HEALTH, 2, 0, NULL, 0);
    fx.close_next = true;
    client_write(a, bytes, n);
    client_expect_end(a);
    client_expect_end(b);
    ck_assert_uint_eq(fx.n_seen, 1);
    close(a);
    close(b);
}
END_TEST

START_TEST(send_rules)
{
    int fd = client_open();
    struct net_peer *peer = net_next_peer(fx.net, NULL);
    struct mla_message m = {.type = 0x2222};
    ck_assert_int_eq(net_send(peer, &m, 0), -EINVAL);
    static char help[60000];
    static struct mla_metric metrics[200];
    memset(help, 'h', sizeof(help) - 1);
    for (size_t i = 0; i < 200; i++)
        metrics[i] = (struct mla_metric){.name = "m", .help = help, .type = MLA_METRIC_GAUGE};
    mla_message_init(&m, REPLY(METRICS));
    m.metrics_reply.metrics = metrics;
    m.metrics_reply.n_metrics = 200; /* 12 MB */
    ck_assert_int_eq(net_send(peer, &m, 0), -E2BIG);
    ck_assert_uint_eq(net_peer_queued_bytes(peer), 0);
    /* Far over the cap of the queue, alone in it: taken, and arrives. */
    m.metrics_reply.n_metrics = 100;
    ck_assert_int_eq(net_send(peer, &m, 42), 0);
    size_t queued = net_peer_queued_bytes(peer), got = 0;
    ck_assert_uint_gt(queued, 5900000);
    static uint8_t sink[1 << 16];
    while (got < queued) {
        fx_turn();
        ssize_t k = recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
        if (k > 0)
            got += (size_t)k;
        else
            ck_assert_int_eq(errno, EAGAIN);
    }
    ck_assert_uint_eq(net_peer_queued_bytes(peer), 0);
    client_request(fd, MLA_MSG_HEALTH, 4);
    client_expect(fd, REPLY(HEALTH), 4, MLA_OK);
    struct mla_error err;
    mla_error_set(&err, MLA_INTERNAL, NULL, "over");
    net_fail(peer, &err);
    ck_assert_int_eq(net_send(peer, &m, 0), -EPIPE);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_INTERNAL);
    client_expect_end(fd);
    close(fd);
}
END_TEST

/* ---- descriptors ---- */

static int memfd(ino_t *inode)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    *inode = st.st_ino;
    return fd;
}

static size_t sync_frame(uint8_t *out, uint64_t request_id, uint8_t n_fds)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = 4096;
    return client_message(out, 128, &m, request_id, n_fds);
}

static unsigned open_fds(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Requests with and without descriptors, all in the socket before the daemon reads: each gets its own. */
START_TEST(fds_reach_their_frames)
{
    int fd = client_open();
    unsigned before = open_fds();
    ino_t inode[8];
    for (unsigned i = 0; i < 8; i++) {
        uint8_t bytes[512];
        client_request(fd, MLA_MSG_HEALTH, 100 + i);
        int m = memfd(&inode[i]);
        client_send_fds(fd, bytes, sync_frame(bytes, 200 + i, 1), &m, 1);
        close(m);
    }
    for (unsigned i = 0; i < 8; i++) {
        client_expect(fd, REPLY(HEALTH), 100 + i, MLA_OK);
        client_expect(fd, REPLY(REGISTER_SYNC), 200 + i, MLA_OK);
    }
    ck_assert_uint_eq(fx.n_seen, 16);
    for (unsigned i = 0; i < 8; i++) {
        ck_assert_uint_eq(fx.seen[2 * i].n_fds, 0);
        ck_assert_uint_eq(fx.seen[2 * i + 1].n_fds, 1);
        ck_assert_uint_eq(fx.seen[2 * i + 1].inode[0], inode[i]);
    }
    ck_assert_uint_eq(net_counters(fx.net)->fds_received, 8);
    ck_assert_uint_eq(open_fds(), before); /* what handlers do not keep is closed */
    close(fd);
}
END_TEST

START_TEST(fds_with_the_first_byte_only)
{
    int fd = client_open();
    uint8_t bytes[128];
    ino_t inode;
    int m = memfd(&inode);
    size_t n = sync_frame(bytes, 5, 1);
    client_send_fds(fd, bytes, 1, &m, 1);
    close(m);
    for (size_t i = 1; i < n; i++) {
        fx_turn();
        client_write(fd, bytes + i, 1);
    }
    client_expect(fd, REPLY(REGISTER_SYNC), 5, MLA_OK);
    ck_assert_uint_eq(fx.seen[0].inode[0], inode);
    close(fd);
}
END_TEST

START_TEST(surplus_fds_end_the_peer)
{
    for (int late = 0; late < 2; late++) {
        int fd = client_open();
        uint8_t bytes[128];
        ino_t inode;
        int m[2] = {memfd(&inode), memfd(&inode)};
        size_t n = sync_frame(bytes, 5, 1);
        if (late) { /* one with the frame, one in its middle */
            client_send_fds(fd, bytes, n - 1, m, 1);
            fx_turn();
            client_send_fds(fd, bytes + n - 1, 1, m + 1, 1);
        } else {
            client_send_fds(fd, bytes, n, m, 2);
        }
        client_expect(fd, REPLY(REGISTER_SYNC), 5, MLA_OK);
        client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_PROTOCOL_ERROR);
        client_expect_end(fd);
        close(fd);
        close(m[0]);
        close(m[1]);
    }
}
END_TEST

START_TEST(missing_fds_are_refused)
{
    int fd = client_open();
    uint8_t bytes[128];
    client_write(fd, bytes, sync_frame(bytes, 5, 1)); /* announced, not sent */
    client_expect(fd, REPLY(REGISTER_SYNC), 5, MLA_NO_DESCRIPTORS);
    client_write(fd, bytes, sync_frame(bytes, 6, 0)); /* needed, not announced */
    client_expect(fd, REPLY(REGISTER_SYNC), 6, MLA_NO_DESCRIPTORS);
    ino_t inode;
    int m = memfd(&inode);
    client_send_fds(fd, bytes, client_frame(bytes, MLA_MSG_HEALTH, 7, 1, NULL, 0), &m, 1); /* sent, not needed */
    client_expect(fd, REPLY(HEALTH), 7, MLA_NO_DESCRIPTORS);
    client_send_fds(fd, bytes, sync_frame(bytes, 8, 1), &m, 1);
    client_expect(fd, REPLY(REGISTER_SYNC), 8, MLA_OK);
    ck_assert_uint_eq(fx.n_seen, 1);
    close(m);
    close(fd);
}
END_TEST

/* The daemon has no descriptor left: the kernel cuts, that request fails, the next one succeeds. */
START_TEST(cut_off_fds)
{
    int fd = client_open();
    uint8_t bytes[256];
    ino_t inode;
    int m = memfd(&inode);
    size_t n = sync_frame(bytes, 5, 1);
    client_send_fds(fd, bytes, n, &m, 1);
    struct rlimit was, none;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    client_expect(fd, REPLY(REGISTER_SYNC), 5, MLA_NO_DESCRIPTORS);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
    n = sync_frame(bytes, 6, 1);
    client_send_fds(fd, bytes, n, &m, 1);
    client_expect(fd, REPLY(REGISTER_SYNC), 6, MLA_OK);
    ck_assert_uint_eq(fx.seen[0].inode[0], inode);
    close(m);
    close(fd);
}
END_TEST

START_TEST(a_hundred_fds_at_once)
{
    int fd = client_open();
    unsigned before = open_fds();
    uint8_t bytes[128];
    ino_t inode;
    int m = memfd(&inode), many[100];
    for (int i = 0; i < 100; i++)
        many[i] = m;
    client_send_fds(fd, bytes, sync_frame(bytes, 5, 1), many, 100);
    client_expect(fd, REPLY(REGISTER_SYNC), 5, MLA_OK);
    client_expect(fd, MLA_NOTICE_ERROR, 0, MLA_PROTOCOL_ERROR);
    client_expect_end(fd);
    ck_assert_uint_eq(open_fds(), before); /* the memfd came, the peer's descriptor went */
    close(m);
    close(fd);
}
END_TEST

MLA_SUITE(net_frames)
{
    TCase *tc = mla_tcase(suite, "talk");
    tcase_add_checked_fixture(tc, fx_open, fx_close);
    tcase_add_test(tc, hello_and_requests);
    tcase_add_test(tc, credentials);
    tcase_add_test(tc, byte_by_byte);
    tcase_add_test(tc, merged_frames);
    tcase_add_test(tc, large_body);
    tcase_add_test(tc, half_close_is_the_end);
    tcase_add_test(tc, close_from_a_handler);
    tcase_add_test(tc, send_rules);

    tc = mla_tcase(suite, "refusals");
    tcase_add_checked_fixture(tc, fx_open, fx_close);
    tcase_add_test(tc, other_major);
    tcase_add_test(tc, hello_must_be_first_and_once);
    tcase_add_test(tc, refused_hello);
    tcase_add_test(tc, unknown_type_goes_on);
    tcase_add_test(tc, malformed_body_goes_on);
    tcase_add_test(tc, malformed_hello_may_be_repeated);
    tcase_add_test(tc, broken_streams);
    tcase_add_test(tc, empty_submessages);
    tcase_add_test(tc, handler_fails_peer);

    tc = mla_tcase(suite, "descriptors");
    tcase_add_checked_fixture(tc, fx_open, fx_close);
    tcase_add_test(tc, fds_reach_their_frames);
    tcase_add_test(tc, fds_with_the_first_byte_only);
    tcase_add_test(tc, surplus_fds_end_the_peer);
    tcase_add_test(tc, missing_fds_are_refused);
    tcase_add_test(tc, cut_off_fds);
    tcase_add_test(tc, a_hundred_fds_at_once);
}
