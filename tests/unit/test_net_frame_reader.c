/* The frame assembler by itself: every cut of a byte stream, descriptors in and out of order, announcements that are
 * never kept; and the write queue. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/net/frame_reader.h"
#include "daemon/net/write_queue.h"
#include "tests/support/check_main.h"

static struct frame_reader reader;
static struct frame frame;
static struct mla_error err;

static void setup(void)
{
    frame_reader_init(&reader);
    reader.greeted = true;
}

static void teardown(void)
{
    frame_reader_free(&reader);
}

static size_t put(uint8_t *out, uint16_t type, uint64_t id, uint8_t n_fds, const void *body, uint32_t n)
{
    struct mla_frame_header h = {
        .major = MLA_PROTO_MAJOR, .type = type, .n_fds = n_fds, .body_len = n, .request_id = id};
    mla_wire_pack(&h, out);
    if (n)
        memcpy(out + MLA_WIRE_HEADER_BYTES, body, n);
    return MLA_WIRE_HEADER_BYTES + n;
}

/* Gives n bytes in as many pieces as the reader's space asks for; they must not hold a whole frame before the last. */
static void feed(const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        size_t room;
        uint8_t *p = frame_reader_space(&reader, &room);
        ck_assert_ptr_nonnull(p);
        ck_assert_uint_gt(room, 0);
        if (room > n)
            room = n;
        memcpy(p, bytes, room);
        frame_reader_feed(&reader, room, NULL, 0, false);
        bytes += room;
        n -= room;
        if (n > 0)
            ck_assert_int_eq(frame_reader_next(&reader, &frame, &err), FRAME_NONE);
    }
}

static void feed_with_fds(const uint8_t *bytes, size_t n, const int *fds, size_t n_fds, bool lost)
{
    size_t room;
    uint8_t *p = frame_reader_space(&reader, &room);
    ck_assert_uint_ge(room, n);
    memcpy(p, bytes, n);
    frame_reader_feed(&reader, n, fds, n_fds, lost);
}

static int some_fd(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static enum frame_result next(void)
{
    return frame_reader_next(&reader, &frame, &err);
}

static void expect_broken(enum mla_status code)
{
    ck_assert_int_eq(next(), FRAME_BROKEN);
    ck_assert_str_eq(mla_status_name(err.code), mla_status_name(code));
    ck_assert_str_ne(err.text, "");
    ck_assert_int_eq(next(), FRAME_BROKEN); /* for good */
}

/* Three frames, cut at every pair of places, come out the same. */
START_TEST(every_cut)
{
    uint8_t bytes[256];
    size_t n = put(bytes, MLA_MSG_HEALTH, 11, 0, NULL, 0);
    n += put(bytes + n, MLA_MSG_CANCEL, 12, 0, "0123456789", 10);
    n += put(bytes + n, MLA_MSG_DECODE, 13, 0, "abc", 3);
    static const uint16_t types[] = {MLA_MSG_HEALTH, MLA_MSG_CANCEL, MLA_MSG_DECODE};
    static const char *const bodies[] = {"", "0123456789", "abc"};
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n; b++) {
            const size_t cuts[] = {0, a, b, n};
            unsigned seen = 0;
            for (int piece = 0; piece < 3; piece++) {
                if (cuts[piece + 1] > cuts[piece])
                    feed_with_fds(bytes + cuts[piece], cuts[piece + 1] - cuts[piece], NULL, 0, false);
                while (next() == FRAME_READY) {
                    ck_assert_uint_lt(seen, 3);
                    ck_assert_uint_eq(frame.header.type, types[seen]);
                    ck_assert_uint_eq(frame.header.request_id, 11 + seen);
                    ck_assert_uint_eq(frame.header.body_len, strlen(bodies[seen]));
                    ck_assert_mem_eq(frame.body, bodies[seen], strlen(bodies[seen]));
                    ck_assert(frame.known);
                    frame_reader_release(&reader);
                    seen++;
                }
            }
            ck_assert_uint_eq(seen, 3);
            ck_assert(!frame_reader_partial(&reader));
        }
    }
}
END_TEST

START_TEST(partial_is_told)
{
    uint8_t bytes[64];
    size_t n = put(bytes, MLA_MSG_CANCEL, 1, 0, "xy", 2);
    ck_assert(!frame_reader_partial(&reader));
    for (size_t i = 0; i < n; i++) {
        ck_assert(!frame_reader_has_frame(&reader));
        feed(bytes + i, 1);
        ck_assert(frame_reader_partial(&reader));
    }
    ck_assert(frame_reader_has_frame(&reader));
    ck_assert_int_eq(next(), FRAME_READY);
    frame_reader_release(&reader);
    ck_assert(!frame_reader_partial(&reader));
}
END_TEST

/* The largest announcement that is allowed costs what has come, at most twice, and is given back afterwards. */
START_TEST(memory_follows_bytes)
{
    static uint8_t bytes[MLA_WIRE_HEADER_BYTES + MLA_CAP_TABLE_BYTES];
    size_t n = put(bytes, MLA_MSG_PUT_TABLE_SET, 1, 0, NULL, 0);
    struct mla_frame_header h = {
        .major = MLA_PROTO_MAJOR, .type = MLA_MSG_PUT_TABLE_SET, .body_len = MLA_CAP_TABLE_BYTES, .request_id = 1};
    mla_wire_pack(&h, bytes);
    for (size_t i = 0; i < MLA_CAP_TABLE_BYTES; i++)
        bytes[MLA_WIRE_HEADER_BYTES + i] = (uint8_t)(i * 31 >> 3);
    feed(bytes, n);
    ck_assert_int_eq(next(), FRAME_NONE);
    ck_assert_uint_eq(reader.cap_bytes, FRAME_BUFFER_BASE_BYTES);
    size_t come = n;
    while (come < sizeof(bytes)) {
        size_t piece = sizeof(bytes) - come < 100000 ? sizeof(bytes) - come : 100000;
        feed(bytes + come, piece);
        come += piece;
        ck_assert_uint_le(reader.cap_bytes, 2 * come < FRAME_BUFFER_BASE_BYTES ? FRAME_BUFFER_BASE_BYTES : 2 * come);
    }
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert_uint_eq(reader.cap_bytes, sizeof(bytes));
    ck_assert_mem_eq(frame.body, bytes + MLA_WIRE_HEADER_BYTES, MLA_CAP_TABLE_BYTES);
    frame_reader_release(&reader);
    ck_assert_uint_eq(reader.cap_bytes, FRAME_BUFFER_BASE_BYTES);
}
END_TEST

/* In steady state the buffer stays the same one. */
START_TEST(small_frames_share_one_buffer)
{
    static uint8_t bytes[MLA_WIRE_HEADER_BYTES + 3000];
    static const uint8_t body[3000];
    size_t n = put(bytes, MLA_MSG_DECODE, 1, 0, body, sizeof(body));
    feed(bytes, n);
    ck_assert_int_eq(next(), FRAME_READY);
    frame_reader_release(&reader);
    const uint8_t *buffer = reader.buffer;
    for (int i = 0; i < 1000; i++) {
        feed(bytes, n / 3);
        ck_assert_int_eq(next(), FRAME_NONE);
        feed(bytes + n / 3, n - n / 3);
        ck_assert_int_eq(next(), FRAME_READY);
        frame_reader_release(&reader);
    }
    ck_assert_ptr_eq(reader.buffer, buffer);
    ck_assert_uint_eq(reader.cap_bytes, FRAME_BUFFER_BASE_BYTES);
}
END_TEST

static void announce(uint16_t major, uint16_t type, uint8_t n_fds, uint32_t body_len)
{
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    struct mla_frame_header h = {.major = major, .type = type, .n_fds = n_fds, .body_len = body_len, .request_id = 77};
    mla_wire_pack(&h, bytes);
    feed(bytes, sizeof(bytes));
}

START_TEST(caps_before_memory)
{
    announce(MLA_PROTO_MAJOR, MLA_MSG_DECODE, 0, UINT32_MAX);
    expect_broken(MLA_TOO_LARGE);
    ck_assert_uint_eq(err.value, UINT32_MAX);
    ck_assert_uint_eq(err.limit, MLA_CAP_TABLE_BYTES);
    ck_assert_uint_eq(frame.header.request_id, 77);
    ck_assert_uint_eq(reader.cap_bytes, FRAME_BUFFER_BASE_BYTES);
}
END_TEST

START_TEST(caps_by_type)
{
    static const struct {
        uint16_t type;
        uint32_t cap;
    } rows[] = {{MLA_MSG_DECODE, MLA_CAP_TABLE_BYTES},
                {MLA_MSG_CANCEL, MLA_CAP_CONTROL_BYTES},
                {0x3fff, MLA_CAP_CONTROL_BYTES}}; /* not known */
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        announce(MLA_PROTO_MAJOR, rows[i].type, 0, rows[i].cap);
        ck_assert_int_eq(next(), FRAME_NONE);
        teardown();
        setup();
        announce(MLA_PROTO_MAJOR, rows[i].type, 0, rows[i].cap + 1);
        expect_broken(MLA_TOO_LARGE);
        teardown();
        setup();
    }
}
END_TEST

START_TEST(too_many_fds_announced)
{
    announce(MLA_PROTO_MAJOR, MLA_MSG_REGISTER_REGION, MLA_MAX_FDS_PER_FRAME + 1, 0);
    expect_broken(MLA_TOO_LARGE);
    ck_assert_uint_eq(err.value, MLA_MAX_FDS_PER_FRAME + 1);
}
END_TEST

START_TEST(no_magic)
{
    uint8_t bytes[MLA_WIRE_HEADER_BYTES] = "GET / HTTP/1.1\r\nHost: x\r";
    feed(bytes, sizeof(bytes));
    expect_broken(MLA_PROTOCOL_ERROR);
    ck_assert_uint_eq(frame.header.type, 0);
}
END_TEST

START_TEST(other_major)
{
    announce(7, 0xffff, 200, UINT32_MAX); /* whatever else it says */
    expect_broken(MLA_VERSION_MISMATCH);
    ck_assert_uint_eq(err.value, 7);
    ck_assert_uint_eq(err.limit, MLA_PROTO_MAJOR);
}
END_TEST

START_TEST(types_of_the_daemon)
{
    static const uint16_t types[] = {MLA_MSG_HELLO | MLA_REPLY, MLA_NOTICE_ERROR, 0xffff, 0x4fff};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        announce(MLA_PROTO_MAJOR, types[i], 0, 0);
        expect_broken(MLA_PROTOCOL_ERROR);
        teardown();
        setup();
    }
}
END_TEST

START_TEST(hello_first)
{
    reader.greeted = false;
    announce(MLA_PROTO_MAJOR, MLA_MSG_DECODE, 0, 100);
    expect_broken(MLA_HELLO_REQUIRED);
    teardown();
    setup();
    reader.greeted = false;
    announce(MLA_PROTO_MAJOR, MLA_MSG_HELLO, 0, 0);
    ck_assert_int_eq(next(), FRAME_READY);
}
END_TEST

START_TEST(unknown_type_comes_out)
{
    announce(MLA_PROTO_MAJOR, 0x3abc, 0, 0);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert(!frame.known);
    ck_assert_uint_eq(frame.header.type, 0x3abc);
}
END_TEST

/* One read: a frame without descriptors, then the one that they came with, then half of a header. */
START_TEST(fds_go_to_their_frame)
{
    uint8_t bytes[256];
    size_t n = put(bytes, MLA_MSG_HEALTH, 1, 0, NULL, 0);
    n += put(bytes + n, MLA_MSG_REGISTER_REGION, 2, 2, "b", 1);
    size_t half = n + 12;
    n += put(bytes + n, MLA_MSG_REGISTER_SYNC, 3, 1, NULL, 0);
    int fds[3] = {some_fd(), some_fd(), some_fd()};
    feed_with_fds(bytes, half, fds, 2, false);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert_uint_eq(frame.header.request_id, 1);
    ck_assert_uint_eq(frame.n_fds, 0);
    frame_reader_release(&reader);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert_uint_eq(frame.header.request_id, 2);
    ck_assert_uint_eq(frame.n_fds, 2);
    ck_assert_int_eq(frame.fds[0], fds[0]);
    ck_assert_int_eq(frame.fds[1], fds[1]);
    frame.fds[1] = -1; /* kept */
    frame_reader_release(&reader);
    ck_assert(!is_open(fds[0]));
    ck_assert(is_open(fds[1]));
    close(fds[1]);
    ck_assert_int_eq(next(), FRAME_NONE);
    feed_with_fds(bytes + half, n - half, &fds[2], 1, false);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert_uint_eq(frame.header.request_id, 3);
    ck_assert_int_eq(frame.fds[0], fds[2]);
    frame_reader_release(&reader);
    ck_assert(!is_open(fds[2]));
}
END_TEST

/* With the first byte of a frame that goes on byte by byte. */
START_TEST(fds_before_the_header_is_whole)
{
    uint8_t bytes[64];
    size_t n = put(bytes, MLA_MSG_REGISTER_SYNC, 1, 1, "zz", 2);
    int fd = some_fd();
    feed_with_fds(bytes, 1, &fd, 1, false);
    for (size_t i = 1; i < n; i++) {
        ck_assert_int_eq(next(), FRAME_NONE);
        feed(bytes + i, 1);
    }
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert_uint_eq(frame.n_fds, 1);
    ck_assert_int_eq(frame.fds[0], fd);
}
END_TEST

START_TEST(surplus_fds)
{
    uint8_t bytes[64];
    size_t n = put(bytes, MLA_MSG_REGISTER_SYNC, 1, 1, NULL, 0);
    int fds[2] = {some_fd(), some_fd()};
    feed_with_fds(bytes, n, fds, 2, false);
    ck_assert_int_eq(next(), FRAME_READY);
    frame_reader_release(&reader);
    expect_broken(MLA_PROTOCOL_ERROR);
    teardown();
    ck_assert(!is_open(fds[0]));
    ck_assert(!is_open(fds[1]));
}
END_TEST

START_TEST(fds_in_the_middle_of_a_body)
{
    uint8_t bytes[64];
    size_t n = put(bytes, MLA_MSG_REGISTER_SYNC, 1, 1, "abcd", 4);
    int fds[2] = {some_fd(), some_fd()};
    feed_with_fds(bytes, n - 2, fds, 1, false);
    ck_assert_int_eq(next(), FRAME_NONE);
    feed_with_fds(bytes + n - 2, 1, fds + 1, 1, false);
    expect_broken(MLA_PROTOCOL_ERROR);
    teardown();
    ck_assert(!is_open(fds[0]) && !is_open(fds[1]));
}
END_TEST

START_TEST(missing_fds)
{
    uint8_t bytes[128];
    size_t n = put(bytes, MLA_MSG_REGISTER_REGION, 1, 3, NULL, 0);
    n += put(bytes + n, MLA_MSG_HEALTH, 2, 0, NULL, 0);
    int fd = some_fd();
    feed_with_fds(bytes, n, &fd, 1, false);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert(frame.fds_missing);
    ck_assert(!frame.fds_cut);
    ck_assert_uint_eq(frame.n_fds, 0);
    ck_assert(!is_open(fd));
    frame_reader_release(&reader);
    ck_assert_int_eq(next(), FRAME_READY); /* the stream goes on */
    ck_assert_uint_eq(frame.header.request_id, 2);
    ck_assert(!frame.fds_missing);
}
END_TEST

START_TEST(cut_fds)
{
    uint8_t bytes[128];
    size_t n = put(bytes, MLA_MSG_REGISTER_REGION, 1, 2, NULL, 0);
    int fds[2] = {some_fd(), some_fd()};
    feed_with_fds(bytes, n, fds, 1, true);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert(frame.fds_missing);
    ck_assert(frame.fds_cut);
    frame_reader_release(&reader);
    ck_assert_int_eq(next(), FRAME_NONE);
    /* The next one has all of its own. */
    n = put(bytes, MLA_MSG_REGISTER_SYNC, 2, 1, NULL, 0);
    feed_with_fds(bytes, n, fds + 1, 1, false);
    ck_assert_int_eq(next(), FRAME_READY);
    ck_assert(!frame.fds_missing && !frame.fds_cut);
    ck_assert_int_eq(frame.fds[0], fds[1]);
}
END_TEST

START_TEST(pending_fds_have_a_cap)
{
    uint8_t bytes[64];
    put(bytes, MLA_MSG_REGISTER_SYNC, 1, 1, NULL, 0);
    int last = -1;
    for (unsigned i = 0; i < 5; i++) {
        int fds[13];
        for (int k = 0; k < 13; k++)
            fds[k] = some_fd();
        last = fds[12];
        ck_assert_int_eq(next(), FRAME_NONE);
        feed_with_fds(bytes + i, 1, fds, 13, false); /* 65 in all */
    }
    ck_assert(!is_open(last));
    expect_broken(MLA_NO_DESCRIPTORS);
}
END_TEST

/* The same numbers everywhere. */
static uint32_t pseudo_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

START_TEST(queue_keeps_order_and_memory)
{
    struct write_queue q = {0};
    uint32_t in = 0, out = 0;
    uint32_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        size_t n = (size_t)(pseudo_random(&seed) % 64 + 1) * 4, room;
        uint8_t *p = write_queue_reserve(&q, n, &room);
        ck_assert_uint_ge(room, n);
        for (size_t i = 0; i < n; i += 4, in++)
            memcpy(p + i, &in, 4);
        write_queue_commit(&q, n);
        size_t take = (size_t)(pseudo_random(&seed) % 66) * 4;
        if (take > write_queue_bytes(&q))
            take = write_queue_bytes(&q);
        for (size_t i = 0; i < take; i += 4, out++)
            ck_assert_mem_eq(q.buffer + q.start + i, &out, 4);
        write_queue_consume(&q, take);
        ck_assert_uint_eq(write_queue_bytes(&q), (size_t)(in - out) * 4);
        ck_assert_uint_le(q.cap_bytes, 4 * write_queue_bytes(&q) + 8 * WRITE_QUEUE_BASE_BYTES);
    }
    write_queue_consume(&q, write_queue_bytes(&q));
    size_t room;
    ck_assert_ptr_nonnull(write_queue_reserve(&q, 1 << 20, &room));
    write_queue_commit(&q, 1 << 20);
    write_queue_consume(&q, 1 << 20);
    ck_assert_uint_eq(q.cap_bytes, 0);
    write_queue_free(&q);
}
END_TEST

MLA_SUITE(net_frame_reader)
{
    TCase *tc = mla_tcase(suite, "frames");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, every_cut);
    tcase_add_test(tc, partial_is_told);
    tcase_add_test(tc, memory_follows_bytes);
    tcase_add_test(tc, small_frames_share_one_buffer);
    tcase_add_test(tc, caps_before_memory);
    tcase_add_test(tc, caps_by_type);
    tcase_add_test(tc, too_many_fds_announced);
    tcase_add_test(tc, no_magic);
    tcase_add_test(tc, other_major);
    tcase_add_test(tc, types_of_the_daemon);
    tcase_add_test(tc, hello_first);
    tcase_add_test(tc, unknown_type_comes_out);

    tc = mla_tcase(suite, "descriptors");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, fds_go_to_their_frame);
    tcase_add_test(tc, fds_before_the_header_is_whole);
    tcase_add_test(tc, surplus_fds);
    tcase_add_test(tc, fds_in_the_middle_of_a_body);
    tcase_add_test(tc, missing_fds);
    tcase_add_test(tc, cut_fds);
    tcase_add_test(tc, pending_fds_have_a_cap);

    tc = mla_tcase(suite, "write_queue");
    tcase_add_test(tc, queue_keeps_order_and_memory);
}
