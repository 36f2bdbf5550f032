#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "proto/limits.h"
#include "proto/wire.h"
#include "tests/support/check_main.h"

/* Written out by hand from the table in wire.h. */
static const uint8_t golden[MLA_WIRE_HEADER_BYTES] = {
    'M',  'L',  'A',  'D',                          /* magic */
    0x02, 0x01,                                     /* major 0x0102 */
    0x03,                                           /* n_fds */
    0x80,                                           /* flags */
    0x32, 0x80,                                     /* DECODE reply */
    0x00, 0x00,                                     /* reserved */
    0x44, 0x33, 0x22, 0x11,                         /* body_len */
    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, /* request_id */
};

START_TEST(packs_the_golden_bytes)
{
    struct mla_frame_header h = {.major = 0x0102,
                                 .n_fds = 3,
                                 .flags = 0x80,
                                 .type = MLA_MSG_DECODE | MLA_REPLY,
                                 .body_len = 0x11223344,
                                 .request_id = 0x1122334455667788};
    uint8_t out[MLA_WIRE_HEADER_BYTES + 1];
    memset(out, 0xee, sizeof(out));
    mla_wire_pack(&h, out);
    ck_assert_mem_eq(out, golden, sizeof(golden));
    ck_assert_uint_eq(out[MLA_WIRE_HEADER_BYTES], 0xee);
}
END_TEST

START_TEST(unpacks_what_it_packs)
{
    struct mla_frame_header h;
    ck_assert_int_eq(mla_wire_unpack(golden, &h), 0);
    ck_assert_uint_eq(h.major, 0x0102);
    ck_assert_uint_eq(h.n_fds, 3);
    ck_assert_uint_eq(h.flags, 0x80);
    ck_assert_uint_eq(h.type, 0x8032);
    ck_assert_uint_eq(h.body_len, 0x11223344);
    ck_assert_uint_eq(h.request_id, 0x1122334455667788);
}
END_TEST

START_TEST(ignores_reserved)
{
    uint8_t in[MLA_WIRE_HEADER_BYTES];
    struct mla_frame_header a, b;
    memcpy(in, golden, sizeof(in));
    in[10] = in[11] = 0xff;
    ck_assert_int_eq(mla_wire_unpack(golden, &a), 0);
    ck_assert_int_eq(mla_wire_unpack(in, &b), 0);
    ck_assert_uint_eq(a.type, b.type);
    ck_assert_uint_eq(a.body_len, b.body_len);
}
END_TEST

START_TEST(refuses_every_wrong_magic_byte)
{
    for (int i = 0; i < 4; i++) {
        uint8_t in[MLA_WIRE_HEADER_BYTES];
        struct mla_frame_header h;
        memcpy(in, golden, sizeof(in));
        in[i] ^= 0x20;
        ck_assert_int_eq(mla_wire_unpack(in, &h), -EPROTO);
    }
}
END_TEST

START_TEST(caps_by_type)
{
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_HELLO), 4096);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_REGISTER_REGION), 4096);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_PUT_TABLE_SET), 8u << 20);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_DECODE), 8u << 20);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_TEMPLATE_OPEN), 8u << 20);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_MSG_HELLO | MLA_REPLY), MLA_CAP_REPLY_BYTES);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_NOTICE_GOAWAY), 4096);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_NOTICE_GOAWAY | MLA_REPLY), 0);
    ck_assert_uint_eq(mla_wire_body_cap(0), 0);
    ck_assert_uint_eq(mla_wire_body_cap(MLA_REPLY), 0);
    ck_assert_uint_eq(mla_wire_body_cap(0xffff), 0);
}
END_TEST

START_TEST(names)
{
    ck_assert_str_eq(mla_wire_type_name(MLA_MSG_DECODE), "DECODE");
    ck_assert_str_eq(mla_wire_type_name(MLA_MSG_DECODE | MLA_REPLY), "DECODE reply");
    ck_assert_str_eq(mla_wire_type_name(MLA_NOTICE_GOAWAY), "GOAWAY notice");
    ck_assert_str_eq(mla_wire_type_name(0x1234), "unknown");
}
END_TEST

/* A name for every type with a cap, and for no other: the lists agree over the whole range. */
START_TEST(all_65536_types)
{
    unsigned known = 0;
    for (unsigned t = 0; t <= 0xffff; t++) {
        bool named = strcmp(mla_wire_type_name((uint16_t)t), "unknown") != 0;
        ck_assert_int_eq(named, mla_wire_body_cap((uint16_t)t) > 0);
        known += named;
    }
    ck_assert_uint_eq(known, 2 * 24 + 3);
}
END_TEST

MLA_SUITE(wire)
{
    TCase *tc = mla_tcase(suite, "header");
    tcase_add_test(tc, packs_the_golden_bytes);
    tcase_add_test(tc, unpacks_what_it_packs);
    tcase_add_test(tc, ignores_reserved);
    tcase_add_test(tc, refuses_every_wrong_magic_byte);
    tc = mla_tcase(suite, "types");
    tcase_add_test(tc, caps_by_type);
    tcase_add_test(tc, names);
    tcase_add_test(tc, all_65536_types);
}
