/* Bodies that do not parse, and what hostile ones cost. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/codec.h"
#include "tests/support/check_main.h"
#include "tests/support/messages.h"

static uint8_t arena_bytes[MLA_CAP_TABLE_BYTES + MLA_CODEC_SLACK_BYTES];
static uint8_t body[MLA_CAP_TABLE_BYTES + 64];
static struct mla_error err;
static struct mla_message out;

static int decode(uint16_t type, size_t n)
{
    struct mla_arena arena;
    mla_arena_init(&arena, arena_bytes, sizeof(arena_bytes));
    memset(&err, 0, sizeof(err));
    return mla_codec_decode(type, body, n, &arena, &out, &err);
}

/* ---- wire format ---- */

static void malformed(uint16_t type, const char *bytes, size_t n, const char *field)
{
    memcpy(body, bytes, n);
    ck_assert_int_eq(decode(type, n), 1);
    ck_assert_msg(err.code == MLA_MALFORMED, "%s: %s", mla_status_name(err.code), err.text);
    if (field)
        ck_assert_str_eq(err.field, field);
    else
        ck_assert_ptr_null(err.field);
}
#define MALFORMED(type, bytes, field) malformed(type, bytes, sizeof(bytes) - 1, field)

START_TEST(bad_wire_format)
{
    MALFORMED(MLA_MSG_CANCEL, "\x08\x01\x08\x02", "request_id");                             /* twice */
    MALFORMED(MLA_MSG_CANCEL, "\x09\x01\x02\x03\x04\x05\x06\x07\x08", "request_id");         /* wire type */
    MALFORMED(MLA_MSG_CANCEL, "\x08", "request_id");                                         /* cut off */
    MALFORMED(MLA_MSG_CANCEL, "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x02", "request_id"); /* 65 bits */
    MALFORMED(MLA_MSG_CANCEL, "\x08\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00", "request_id");
    MALFORMED(MLA_MSG_CANCEL, "\x00\x01", NULL);                             /* field 0 */
    MALFORMED(MLA_MSG_CANCEL, "\xf8\xff\xff\xff\x7f\x01", NULL);             /* field above 2^29 */
    MALFORMED(MLA_MSG_CANCEL, "\x08\x01\x90\x80\x80\x80\x80\x00\x01", NULL); /* a tag of six bytes */
    MALFORMED(MLA_MSG_HELLO,
              "\x1a\x81\x80\x80\x80\x80\x00"
              "a",
              "client_name");                        /* a length of six bytes */
    MALFORMED(MLA_MSG_CANCEL, "\x13\x14", NULL);     /* a group */
    MALFORMED(MLA_MSG_CANCEL, "\x12\x02\x01", NULL); /* unknown, cut off */
    MALFORMED(MLA_MSG_HELLO,
              "\x1a\x05"
              "abc",
              "client_name");
    MALFORMED(MLA_MSG_HELLO,
              "\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
              "a",
              "client_name");
    MALFORMED(MLA_MSG_PUT_TABLE_SET, "\x08\x01\x12\x03\x01\x00\x00", "q_len"); /* no whole element */
    MALFORMED(MLA_MSG_PUT_TABLE_SET, "\x08\x01\x15\x01\x00\x00\x00", "q_len"); /* not packed */
    MALFORMED(MLA_MSG_PUBLISH_CACHE, "\x1a\x02\x01\x80", "gids");              /* ends inside an element */
    MALFORMED(MLA_MSG_DECODE, "\x2a\x02\x08\x01", "q.region");                 /* wire type, nested */
    MALFORMED(MLA_MSG_TEMPLATE_OPEN, "\x08\x01\x12\x00\x12\x05", "layers");
}
END_TEST

START_TEST(values_beyond_their_type)
{
    static const uint8_t minor[] = {0x08, 0x80, 0x80, 0x80, 0x80, 0x10};
    static const uint8_t more[] = {0x50, 0x02};
    memcpy(body, minor, sizeof(minor));
    ck_assert_int_eq(decode(MLA_MSG_HELLO, sizeof(minor)), 1);
    ck_assert_int_eq(err.code, MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(err.field, "minor");
    ck_assert_uint_eq(err.value, 1ull << 32);
    memcpy(body, more, sizeof(more));
    ck_assert_int_eq(decode(MLA_MSG_REGISTER_REGION, sizeof(more)), 1);
    ck_assert_str_eq(err.field, "more");
}
END_TEST

START_TEST(unknown_types_and_caps)
{
    static const uint8_t unknown[3] = {0xf8, 0x06, 0x01}; /* field 111 */
    ck_assert_int_eq(decode(0x7777, 0), 1);
    ck_assert_int_eq(err.code, MLA_UNKNOWN_MESSAGE);
    ck_assert_uint_eq(err.value, 0x7777);
    memset(body, 0, MLA_CAP_CONTROL_BYTES + 1);
    ck_assert_int_eq(decode(MLA_MSG_HEALTH, MLA_CAP_CONTROL_BYTES + 1), 1);
    ck_assert_int_eq(err.code, MLA_TOO_LARGE);
    ck_assert_uint_eq(err.limit, MLA_CAP_CONTROL_BYTES);
    size_t n = 0;
    for (; n < 3 * MLA_CODEC_UNKNOWN_MAX; n += 3)
        memcpy(body + n, unknown, sizeof(unknown));
    ck_assert_int_eq(decode(MLA_MSG_HEALTH, n), 0);
    memcpy(body + n, unknown, sizeof(unknown));
    ck_assert_int_eq(decode(MLA_MSG_HEALTH, n + 3), 1);
    ck_assert_int_eq(err.code, MLA_MALFORMED);
}
END_TEST

/* ---- hostile input ---- */

/* Every prefix of every sample: a result, never a crash, and no read past the end (the copy ends at its allocation). */
START_TEST(truncation_at_every_byte)
{
    struct mla_message m;
    static uint8_t whole[1 << 16];
    size_t n;
    mla_sample_full(mla_all_types[_i], &m);
    ck_assert_int_eq(mla_codec_encode(&m, whole, sizeof(whole), &n), 0);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1);
        struct mla_arena arena;
        mla_arena_init(&arena, arena_bytes, sizeof(arena_bytes));
        memcpy(exact, whole, cut);
        int rc = mla_codec_decode(m.type, exact, cut, &arena, &out, &err);
        free(exact);
        ck_assert_int_ge(rc, 0);
        ck_assert(rc == 0 || err.code != MLA_OK);
    }
}
END_TEST

static uint64_t rng_state;
static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng_state >> 33);
}

/* What is taken must also survive another round. */
static void survives(uint16_t type, size_t n)
{
    static uint8_t again[1 << 17], second[1 << 17];
    int rc = decode(type, n);
    ck_assert(rc == 0 || rc == 1);
    if (rc)
        return;
    size_t len, len2;
    ck_assert_int_eq(mla_codec_encode(&out, again, sizeof(again), &len), 0);
    struct mla_arena arena;
    struct mla_message back;
    mla_arena_init(&arena, second, sizeof(second));
    ck_assert_int_eq(mla_codec_decode(type, again, len, &arena, &back, &err), 0);
    ck_assert(mla_message_equal(&out, &back));
    ck_assert_int_eq(mla_codec_encode(&back, body, sizeof(body), &len2), 0);
    ck_assert_uint_eq(len, len2);
    ck_assert_mem_eq(body, again, len);
}

START_TEST(bit_flips)
{
    struct mla_message m;
    static uint8_t whole[1 << 16];
    size_t n;
    rng_state = 20240 + (uint64_t)_i;
    mla_sample_full(mla_all_types[_i], &m);
    ck_assert_int_eq(mla_codec_encode(&m, whole, sizeof(whole), &n), 0);
    for (int round = 0; round < 2000 && n > 0; round++) {
        memcpy(body, whole, n);
        for (uint32_t flips = 1 + rng() % 4; flips > 0; flips--)
            body[rng() % n] ^= (uint8_t)(1u << rng() % 8);
        survives(m.type, n);
    }
}
END_TEST

START_TEST(type_confusion)
{
    struct mla_message m;
    for (size_t k = 0; k < mla_n_all_types; k++) {
        size_t n;
        mla_sample_full(mla_all_types[k], &m);
        ck_assert_int_eq(mla_codec_encode(&m, body, sizeof(body), &n), 0);
        survives(mla_all_types[_i], n);
    }
}
END_TEST

START_TEST(arena_is_the_limit)
{
    struct mla_message m;
    size_t n;
    mla_sample_full(mla_all_types[_i], &m);
    ck_assert_int_eq(mla_codec_encode(&m, body, sizeof(body), &n), 0);
    int rc = -ENOMEM;
    size_t cap = 0;
    for (; rc == -ENOMEM; cap++) {
        struct mla_arena arena;
        memset(arena_bytes, 0xee, cap + 64);
        mla_arena_init(&arena, arena_bytes, cap);
        rc = mla_codec_decode(m.type, body, n, &arena, &out, &err);
        ck_assert(rc == 0 || rc == -ENOMEM);
        for (size_t i = cap; i < cap + 64; i++)
            ck_assert_uint_eq(arena_bytes[i], 0xee);
    }
    ck_assert_uint_le(cap, n + MLA_CODEC_SLACK_BYTES);
}
END_TEST

static double milliseconds(uint16_t type, size_t n, int *rc, size_t *used)
{
    struct timespec a, b;
    double best = INFINITY;
    for (int round = 0; round < 5; round++) {
        struct mla_arena arena;
        mla_arena_init(&arena, arena_bytes, sizeof(arena_bytes));
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        *rc = mla_codec_decode(type, body, n, &arena, &out, &err);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        *used = arena.used_bytes;
        best = fmin(best, (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
    }
    return best;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOWER 20
#else
#define SLOWER 1
#endif

/* 1 MiB of two-byte sub-messages, in each place that may hold several: refused by their number, or at most the arena.
 */
START_TEST(empty_sub_messages)
{
    static const struct {
        uint16_t type;
        uint8_t tag;
        int rc;
    } rows[] = {{MLA_MSG_TEMPLATE_OPEN, 0x12, 1},      {MLA_MSG_DECODE, 0x2a, 1},
                {MLA_MSG_DECODE | MLA_REPLY, 0x12, 1}, {MLA_MSG_METRICS | MLA_REPLY, 0x12, 1},
                {MLA_MSG_STATUS | MLA_REPLY, 0x1a, 1}, {MLA_MSG_STATUS | MLA_REPLY, 0x22, 1},
                {MLA_MSG_PUT_TABLE_SET, 0x7a, 1}};
    const size_t n = 1u << 20;
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        int rc;
        size_t used;
        for (size_t i = 0; i < n; i += 2) {
            body[i] = rows[r].tag;
            body[i + 1] = 0;
        }
        double ms = milliseconds(rows[r].type, n, &rc, &used);
        ck_assert_msg(rc == rows[r].rc, "row %zu: %d", r, rc);
        ck_assert_msg(used < 4096, "row %zu: %zu bytes", r, used);
        ck_assert_msg(ms < 5.0 * SLOWER, "row %zu: %.2f ms", r, ms);
    }
}
END_TEST

START_TEST(largest_table)
{
    int rc;
    size_t used, n;
    static uint32_t pages[(MLA_CAP_TABLE_BYTES - 64) / 4];
    uint32_t q[] = {1}, kv[] = {64};
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.q_len = q;
    m.put_table_set.n_q_len = 1;
    m.put_table_set.kv_len_max = kv;
    m.put_table_set.n_kv_len_max = 1;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = sizeof(pages) / 4;
    m.put_table_set.entries_per_seq = sizeof(pages) / 4;
    ck_assert_int_eq(mla_codec_encode(&m, body, sizeof(body), &n), 0);
    double ms = milliseconds(m.type, n, &rc, &used);
    ck_assert_int_eq(rc, 0);
    ck_assert_uint_eq(out.put_table_set.n_pages, sizeof(pages) / 4);
    ck_assert_uint_le(used, sizeof(pages) + 64);
    ck_assert_msg(ms < 10.0 * SLOWER, "%.2f ms", ms);
}
END_TEST

MLA_SUITE(codec_hostile)
{
    TCase *tc = mla_tcase(suite, "wire format");
    tcase_add_test(tc, bad_wire_format);
    tcase_add_test(tc, values_beyond_their_type);
    tcase_add_test(tc, unknown_types_and_caps);
    tc = mla_tcase(suite, "hostile");
    tcase_add_loop_test(tc, truncation_at_every_byte, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, bit_flips, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, type_confusion, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, arena_is_the_limit, 0, (int)mla_n_all_types);
    tcase_add_test(tc, empty_sub_messages);
    tcase_add_test(tc, largest_table);
}
