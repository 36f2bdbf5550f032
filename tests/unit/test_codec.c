/* The codec on legal messages, and against protobuf-c's own. What it refuses: test_codec_refusals.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec_table.h"
#include "tests/support/check_main.h"
#include "tests/support/messages.h"

#define ARENA_BYTES (2u << 20)

static uint8_t arena_bytes[ARENA_BYTES];
static uint8_t body[1u << 20];

static struct mla_arena fresh_arena(void)
{
    struct mla_arena a;
    mla_arena_init(&a, arena_bytes, sizeof(arena_bytes));
    return a;
}

static size_t encode(const struct mla_message *m)
{
    size_t n;
    ck_assert_int_eq(mla_codec_encode(m, body, sizeof(body), &n), 0);
    ck_assert_uint_eq(mla_codec_encoded_size(m), n);
    return n;
}

static void round_trip(const struct mla_message *m)
{
    struct mla_arena arena = fresh_arena();
    struct mla_message back;
    struct mla_error err = {0};
    memset(&back, 0xa5, sizeof(back));
    size_t n = encode(m);
    int rc = mla_codec_decode(m->type, body, n, &arena, &back, &err);
    ck_assert_msg(rc == 0, "%s: %d %s", mla_wire_type_name(m->type), rc, err.text);
    memset(body, 0xee, n); /* nothing may point into the body */
    ck_assert_msg(mla_message_equal(m, &back), "%s came back changed", mla_wire_type_name(m->type));
}

START_TEST(tables_agree_with_the_schema)
{
    const char *fault = mla_body_tables_fault();
    ck_assert_msg(!fault, "%s", fault);
}
END_TEST

START_TEST(full_messages_come_back)
{
    struct mla_message m;
    mla_sample_full(mla_all_types[_i], &m);
    round_trip(&m);
}
END_TEST

START_TEST(minimal_messages_come_back)
{
    struct mla_message m;
    mla_sample_minimal(mla_all_types[_i], &m);
    round_trip(&m);
}
END_TEST

/* A full sample that leaves a field at its default would not test that field. */
START_TEST(full_messages_are_full)
{
    struct mla_message m;
    mla_sample_full(mla_all_types[_i], &m);
    const struct mla_body *b = mla_body_of_type(m.type);
    size_t n = encode(&m);
    ProtobufCMessage *pb = protobuf_c_message_unpack(b->schema, NULL, n, body);
    ck_assert_ptr_nonnull(pb);
    for (unsigned i = 0; i < b->n_fields; i++) {
        const ProtobufCFieldDescriptor *d = &b->schema->fields[i];
        const uint8_t *at = (const uint8_t *)pb;
        uint32_t quantifier;
        void *member;
        bool set;
        if (d->label == PROTOBUF_C_LABEL_OPTIONAL &&
            (d->type == PROTOBUF_C_TYPE_STRING || d->type == PROTOBUF_C_TYPE_MESSAGE)) {
            memcpy(&member, at + d->offset, sizeof(member));
            set = member != NULL;
        } else {
            memcpy(&quantifier, at + d->quantifier_offset, sizeof(quantifier));
            set = quantifier != 0;
        }
        /* These exclude others that are set. */
        bool excluded = strcmp(d->name, "visible_ref") == 0 ||
                        (m.type == MLA_MSG_REGISTER_REGION && (strcmp(d->name, "cuda_ipc") == 0 || d->id == 7)) ||
                        (m.type == MLA_MSG_RESUME && d->id >= 5);
        /* Their only legal value is the default. */
        excluded |= strcmp(d->name, "tokens_per_page") == 0;
        ck_assert_msg(set || excluded, "%s.%s", b->schema->name, d->name);
    }
    protobuf_c_message_free_unpacked(pb, NULL);
}
END_TEST

/* protobuf-c reads what this codec writes, and writes the same bytes again. */
START_TEST(protobuf_c_agrees)
{
    static uint8_t again[sizeof(body)];
    for (int full = 0; full < 2; full++) {
        struct mla_message m;
        (full ? mla_sample_full : mla_sample_minimal)(mla_all_types[_i], &m);
        size_t n = encode(&m);
        ProtobufCMessage *pb = protobuf_c_message_unpack(mla_body_of_type(m.type)->schema, NULL, n, body);
        ck_assert_ptr_nonnull(pb);
        ck_assert_uint_eq(protobuf_c_message_get_packed_size(pb), n);
        ck_assert_uint_eq(protobuf_c_message_pack(pb, again), n);
        ck_assert_mem_eq(again, body, n);
        protobuf_c_message_free_unpacked(pb, NULL);
    }
}
END_TEST

/* Bytes worked out by hand from the schema. */
START_TEST(golden_attach_cache)
{
    static const uint8_t golden[] = {0x08, 0x00,                     /* owner_uid 0, because has_owner_uid */
                                     0x12, 0x04, 'm', 'a', 'i', 'n', /* name */
                                     0x18, 0xac, 0x02};              /* wait_us 300 */
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.has_owner_uid = true;
    m.attach_cache.name = "main";
    m.attach_cache.wait_us = 300;
    ck_assert_uint_eq(encode(&m), sizeof(golden));
    ck_assert_mem_eq(body, golden, sizeof(golden));
}
END_TEST

START_TEST(golden_put_table_set)
{
    static const uint8_t golden[] = {
        0x08, 0x07,                                                   /* id */
        0x12, 0x08, 1,  0, 0, 0, 0,  1, 0, 0,                         /* q_len 1, 256 */
        0x1a, 0x08, 65, 0, 0, 0, 64, 0, 0, 0,                         /* kv_len_max 65, 64 */
        0x22, 0x0c, 5,  0, 0, 0, 6,  0, 0, 0, 0xff, 0xff, 0xff, 0xff, /* pages */
    };
    struct mla_arena arena = fresh_arena();
    struct mla_message m;
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_PUT_TABLE_SET, golden, sizeof(golden), &arena, &m, NULL), 0);
    ck_assert_uint_eq(m.put_table_set.id, 7);
    ck_assert_uint_eq(m.put_table_set.n_q_len, 2);
    ck_assert_uint_eq(m.put_table_set.q_len[1], 256);
    ck_assert_uint_eq(m.put_table_set.kv_len_max[0], 65);
    ck_assert_uint_eq(m.put_table_set.n_pages, 3);
    ck_assert_uint_eq(m.put_table_set.pages[2], UINT32_MAX);
    ck_assert_uint_eq(m.put_table_set.entries_per_seq, 0);
    ck_assert_uint_eq(m.put_table_set.tokens_per_entry, 64);
    ck_assert_uint_eq((uintptr_t)m.put_table_set.pages % 4, 0);
    ck_assert_uint_eq(encode(&m), sizeof(golden));
    ck_assert_mem_eq(body, golden, sizeof(golden));
}
END_TEST

START_TEST(golden_negative_stride)
{
    static const uint8_t golden[] = {0x09, 1,    0, 0, 0, 0, 0, 0, 0, /* region */
                                     0x20, 0x1f,                      /* token_stride -16: zigzag 31 */
                                     0x28, 0x20,                      /* head_stride 16 */
                                     0x30, 0x01};                     /* compact */
    struct mla_message m;
    mla_sample_minimal(MLA_MSG_DECODE, &m);
    m.decode.q =
        (struct mla_tensor){.present = true, .region = 1, .token_stride = -16, .head_stride = 16, .compact = true};
    size_t n = encode(&m);
    static const uint8_t before[] = {0x09, 1, 0, 0, 0, 0, 0, 0, 0, 0x18, 2, 0x20, 0x80, 0x01, 0x2a, sizeof(golden)};
    ck_assert_uint_gt(n, sizeof(before) + sizeof(golden));
    ck_assert_mem_eq(body, before, sizeof(before));
    ck_assert_mem_eq(body + sizeof(before), golden, sizeof(golden));
}
END_TEST

START_TEST(defaults_are_filled_in)
{
    struct mla_arena arena = fresh_arena();
    struct mla_message m, back;
    mla_sample_minimal(MLA_MSG_DECODE, &m);
    size_t n = encode(&m);
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_DECODE, body, n, &arena, &back, NULL), 0);
    ck_assert_int_eq(back.decode.mask, MLA_MASK_CAUSAL);
    ck_assert(back.decode.q_scale == 1.0f && back.decode.kv_scale == 1.0f && back.decode.out_scale == 1.0f);
    ck_assert_uint_eq(back.decode.ready_value, 1);
    ck_assert_uint_eq(back.decode.done_value, 1);
    ck_assert(!back.decode.lse.present && !back.decode.ready.present && !back.decode.batch_invariant);

    mla_sample_minimal(MLA_MSG_DEFINE_CACHE, &m);
    m.define_cache.row_stride = 592;
    m.define_cache.page_stride = 0;
    n = encode(&m);
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_DEFINE_CACHE, body, n, &arena, &back, NULL), 0);
    ck_assert_uint_eq(back.define_cache.page_stride, 64 * 592);
    ck_assert_uint_eq(back.define_cache.tokens_per_page, 64);
    ck_assert_str_eq(back.define_cache.label, "");

    ck_assert_int_eq(mla_codec_decode(MLA_MSG_STATUS, NULL, 0, &arena, &back, NULL), 0);
    ck_assert_int_eq(back.status.what, MLA_STATUS_DAEMON);
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_HELLO, NULL, 0, &arena, &back, NULL), 0);
    ck_assert_str_eq(back.hello.client_name, "");
    mla_message_init(&m, MLA_MSG_STATUS | MLA_REPLY);
    ck_assert_str_eq(m.status_reply.daemon.version, "");
    ck_assert_ptr_null(m.reply.status.field);
}
END_TEST

/* The encoder takes 0 and NULL for "absent". */
START_TEST(zero_enums_and_null_strings_are_absent)
{
    struct mla_message m;
    mla_sample_minimal(MLA_MSG_DECODE, &m);
    size_t n = encode(&m);
    m.decode.mask = 0;
    ck_assert_uint_eq(encode(&m), n);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = NULL;
    ck_assert_uint_eq(encode(&m), 0);
}
END_TEST

START_TEST(unknown_fields_of_a_later_minor_are_skipped)
{
    static const uint8_t later[] = {0x98, 0x06, 0x05,                            /* field 99 varint */
                                    0x99, 0x06, 1,    2,    3,    4, 5, 6, 7, 8, /* 64 bit */
                                    0x9a, 0x06, 2,    0xff, 0xff,                /* bytes */
                                    0x9d, 0x06, 1,    2,    3,    4,             /* 32 bit */
                                    0x08, 0x2a};                                 /* id 42 */
    struct mla_arena arena = fresh_arena();
    struct mla_message m;
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_DROP_TABLE_SET, later, sizeof(later), &arena, &m, NULL), 0);
    ck_assert_uint_eq(m.drop_table_set.id, 42);
}
END_TEST

START_TEST(a_status_of_a_later_minor_is_kept)
{
    static const uint8_t reply[] = {0x0a, 0x03, 0x08, 0x8f, 0x03}; /* status { code: 399 } */
    struct mla_arena arena = fresh_arena();
    struct mla_message m;
    ck_assert_int_eq(mla_codec_decode(MLA_MSG_DRAIN | MLA_REPLY, reply, sizeof(reply), &arena, &m, NULL), 0);
    ck_assert_int_eq((int)m.reply.status.code, 399);
}
END_TEST

START_TEST(encode_says_how_much_it_needs)
{
    struct mla_message m;
    uint8_t small[8];
    size_t n = 0;
    memset(small, 0xee, sizeof(small));
    mla_sample_full(MLA_MSG_DECODE, &m);
    ck_assert_int_eq(mla_codec_encode(&m, small, sizeof(small), &n), -ENOBUFS);
    ck_assert_uint_eq(n, mla_codec_encoded_size(&m));
    ck_assert_uint_eq(small[0], 0xee);
    ck_assert_int_eq(mla_codec_encode(&m, body, n, &n), 0);
    ck_assert_int_eq(mla_codec_encode(&m, body, n - 1, &n), -ENOBUFS);
    m.type = 0x7777;
    ck_assert_int_eq(mla_codec_encode(&m, body, sizeof(body), &n), -EINVAL);
    ck_assert_uint_eq(mla_codec_encoded_size(&m), 0);
}
END_TEST

START_TEST(expected_descriptors)
{
    struct mla_message m;
    struct mla_error err;
    mla_sample_minimal(MLA_MSG_REGISTER_REGION, &m);
    ck_assert_int_eq(mla_codec_check_fds(&m, 1, &err), 0);
    ck_assert_int_eq(mla_codec_check_fds(&m, 0, &err), 1);
    ck_assert_int_eq(err.code, MLA_NO_DESCRIPTORS);
    ck_assert_uint_eq(err.limit, 1);
    ck_assert_int_eq(mla_codec_check_fds(&m, 2, &err), 1);
    m.register_region.kind = MLA_REGION_CUDA_IPC;
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 0);
    mla_sample_full(MLA_MSG_REGISTER_REGION, &m);
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 2);
    mla_sample_minimal(MLA_MSG_REGISTER_SYNC, &m);
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 1);
    mla_sample_minimal(MLA_MSG_RESUME, &m);
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 1);
    mla_sample_full(MLA_MSG_RESUME, &m);
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 0);
    mla_sample_minimal(MLA_MSG_DECODE, &m);
    ck_assert_uint_eq(mla_codec_expected_fds(&m), 0);
}
END_TEST

START_TEST(arena_keeps_its_bounds)
{
    uint8_t buffer[64 + 16];
    struct mla_arena a;
    mla_arena_init(&a, buffer + 1, 64);
    uint8_t *p = mla_arena_take(&a, 1, 1), *q = mla_arena_take(&a, 8, 8);
    ck_assert_ptr_eq(p, buffer + 1);
    ck_assert_uint_eq((uintptr_t)q % 8, 0);
    ck_assert_ptr_null(mla_arena_take(&a, 64, 1));
    ck_assert_ptr_null(mla_arena_take(&a, SIZE_MAX, 8));
    size_t left = a.cap_bytes - a.used_bytes;
    ck_assert_ptr_nonnull(mla_arena_take(&a, left, 1));
    ck_assert_ptr_null(mla_arena_take(&a, 1, 1));
    mla_arena_reset(&a);
    ck_assert_ptr_eq(mla_arena_take(&a, 1, 1), buffer + 1);
}
END_TEST

/* ---- the schema's numbers ---- */

static void add_new(const ProtobufCMessageDescriptor *d, const ProtobufCMessageDescriptor **all, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        if (all[i] == d)
            return;
    ck_assert_uint_lt(*n, 128);
    all[(*n)++] = d;
}

static void print_fields(FILE *out, const ProtobufCMessageDescriptor *d)
{
    for (unsigned i = 0; i < d->n_fields; i++)
        fprintf(out, "%s %u %s type %d label %d%s\n", d->short_name, d->fields[i].id, d->fields[i].name,
                (int)d->fields[i].type, (int)d->fields[i].label,
                d->fields[i].flags & PROTOBUF_C_FIELD_FLAG_PACKED ? " packed" : "");
}

/* Numbers and types of all fields are part of the protocol: tests/unit/schema.golden only ever grows. */
START_TEST(field_numbers_are_frozen)
{
    const ProtobufCMessageDescriptor *all[128];
    size_t n = 0, now_bytes;
    char *now;
    for (size_t i = 0; i < mla_n_all_types; i++)
        add_new(mla_body_of_type(mla_all_types[i])->schema, all, &n);
    FILE *out = open_memstream(&now, &now_bytes);
    for (size_t k = 0; k < n; k++) { /* n grows by the messages inside */
        print_fields(out, all[k]);
        for (unsigned i = 0; i < all[k]->n_fields; i++)
            if (all[k]->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
                add_new(all[k]->fields[i].descriptor, all, &n);
    }
    fclose(out);

    static char golden[1u << 16];
    FILE *in = fopen(mla_test_path("schema.golden", MLA_SCHEMA_GOLDEN), "r");
    ck_assert_ptr_nonnull(in);
    golden[fread(golden, 1, sizeof(golden) - 1, in)] = '\0';
    fclose(in);
    const char *other = getenv("MLA_SCHEMA_WRITE");
    if (other) {
        FILE *w = fopen(other, "w");
        ck_assert_ptr_nonnull(w);
        fputs(now, w);
        fclose(w);
    }
    size_t same = 0;
    while (now[same] && now[same] == golden[same])
        same++;
    ck_assert_msg(now[same] == golden[same], "differs at byte %zu, near \"%.60s\"", same, now + same);
    free(now);
}
END_TEST

MLA_SUITE(codec)
{
    TCase *tc = mla_tcase(suite, "every type");
    tcase_add_test(tc, tables_agree_with_the_schema);
    tcase_add_loop_test(tc, full_messages_come_back, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, minimal_messages_come_back, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, full_messages_are_full, 0, (int)mla_n_all_types);
    tcase_add_loop_test(tc, protobuf_c_agrees, 0, (int)mla_n_all_types);
    tc = mla_tcase(suite, "bytes");
    tcase_add_test(tc, golden_attach_cache);
    tcase_add_test(tc, golden_put_table_set);
    tcase_add_test(tc, golden_negative_stride);
    tcase_add_test(tc, field_numbers_are_frozen);
    tc = mla_tcase(suite, "contract");
    tcase_add_test(tc, defaults_are_filled_in);
    tcase_add_test(tc, zero_enums_and_null_strings_are_absent);
    tcase_add_test(tc, unknown_fields_of_a_later_minor_are_skipped);
    tcase_add_test(tc, a_status_of_a_later_minor_is_kept);
    tcase_add_test(tc, encode_says_how_much_it_needs);
    tcase_add_test(tc, expected_descriptors);
    tcase_add_test(tc, arena_keeps_its_bounds);
}
