/* What the codec refuses, with which words. Bodies that do not parse: test_codec_hostile.c. */
#include <string.h>

#include "proto/codec_table.h"
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

static int decode_message(const struct mla_message *m)
{
    size_t n;
    ck_assert_int_eq(mla_codec_encode(m, body, sizeof(body), &n), 0);
    return decode(m->type, n);
}

/* m must be refused with exactly this. */
static void refused(const struct mla_message *m, enum mla_status code, const char *field, uint64_t index,
                    uint64_t value, uint64_t limit)
{
    int rc = decode_message(m);
    ck_assert_msg(rc == 1, "%s.%s was taken", mla_wire_type_name(m->type), field);
    ck_assert_msg(err.code == code, "%s: %s, not %s", field, mla_status_name(err.code), mla_status_name(code));
    ck_assert_str_eq(err.field, field);
    ck_assert_msg(err.index == index && err.value == value && err.limit == limit, "%s: index %ju value %ju limit %ju",
                  field, (uintmax_t)err.index, (uintmax_t)err.value, (uintmax_t)err.limit);
    ck_assert_msg(strlen(err.text) > strlen(field), "%s", err.text);
}

static void taken(const struct mla_message *m)
{
    ck_assert_msg(decode_message(m) == 0, "%s: %s", mla_wire_type_name(m->type), err.text);
}

/* ---- presence, by cutting each top-level field out of the encoded message ---- */

static uint64_t varint(const uint8_t *b, size_t *at)
{
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        uint8_t c = b[(*at)++];
        v |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80))
            return v;
    }
}

/* Bytes of all fields but number, from in to out. */
static size_t without(const uint8_t *in, size_t n, unsigned number, uint8_t *to)
{
    size_t at = 0, kept = 0;
    while (at < n) {
        size_t start = at;
        uint64_t tag = varint(in, &at);
        switch (tag & 7) {
        case 0:
            varint(in, &at);
            break;
        case 1:
            at += 8;
            break;
        case 2: {
            uint64_t len = varint(in, &at);
            at += len;
            break;
        }
        default:
            at += 4;
            break;
        }
        if (tag >> 3 != number) {
            memcpy(to + kept, in + start, at - start);
            kept += at - start;
        }
    }
    return kept;
}

START_TEST(each_required_field)
{
    struct mla_message m;
    static uint8_t whole[1 << 16];
    size_t n;
    mla_sample_minimal(mla_all_types[_i], &m);
    const struct mla_body *b = mla_body_of_type(m.type);
    ck_assert_int_eq(mla_codec_encode(&m, whole, sizeof(whole), &n), 0);
    for (unsigned i = 0; i < b->n_fields; i++) {
        bool required = (b->fields[i].flags & MLA_F_REQUIRED) || strcmp(b->fields[i].name, "layers") == 0;
        size_t left = without(whole, n, i + 1, body);
        int rc = decode(m.type, left);
        ck_assert_msg(rc == required, "%s.%s", b->schema->name, b->fields[i].name);
        if (!required)
            continue;
        ck_assert_int_eq(err.code, MLA_INVALID_ARGUMENT);
        ck_assert_str_eq(err.field, b->fields[i].name);
        ck_assert_ptr_nonnull(strstr(err.text, "is required"));
    }
}
END_TEST

/* The list above comes from the table; this one from reading the schema. */
START_TEST(required_as_the_schema_says)
{
    static const struct {
        uint16_t type;
        unsigned bits;
    } rows[] = {{MLA_MSG_HELLO, 0},
                {MLA_MSG_REGISTER_REGION, 0x7},
                {MLA_MSG_UNREGISTER_REGION, 1},
                {MLA_MSG_SUSPEND, 1},
                {MLA_MSG_RESUME, 1},
                {MLA_MSG_REGISTER_SYNC, 1},
                {MLA_MSG_DEFINE_CACHE, 1 | 2 | 1 << 4},
                {MLA_MSG_PUBLISH_CACHE, 3},
                {MLA_MSG_ATTACH_CACHE, 2},
                {MLA_MSG_DETACH_CACHE, 1},
                {MLA_MSG_DROP_CACHE, 1},
                {MLA_MSG_PUT_TABLE_SET, 1},
                {MLA_MSG_DROP_TABLE_SET, 1},
                {MLA_MSG_DECODE, 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 17},
                {MLA_MSG_TEMPLATE_OPEN, 1},
                {MLA_MSG_STEP, 1},
                {MLA_MSG_TEMPLATE_CLOSE, 1},
                {MLA_MSG_CANCEL, 1},
                {MLA_MSG_HEALTH, 0},
                {MLA_MSG_METRICS, 0},
                {MLA_MSG_STATUS, 0},
                {MLA_MSG_DRAIN, 0},
                {MLA_MSG_EVICT, 1},
                {MLA_MSG_RELOAD, 0}};
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        const struct mla_body *b = mla_body_of_type(rows[r].type), *reply = mla_body_of_type(rows[r].type | MLA_REPLY);
        unsigned bits = 0;
        for (unsigned i = 0; i < b->n_fields; i++)
            bits |= (b->fields[i].flags & MLA_F_REQUIRED ? 1u : 0u) << i;
        ck_assert_msg(bits == rows[r].bits, "%s: 0x%x", b->schema->name, bits);
        ck_assert(reply->fields[0].flags & MLA_F_REQUIRED);
        ck_assert_str_eq(reply->fields[0].name, "status");
    }
}
END_TEST

/* ---- ranges ---- */

#define DECODE_WITH(member, v) (mla_sample_minimal(MLA_MSG_DECODE, &m), m.decode.member = (v), &m)

START_TEST(decode_ranges)
{
    struct mla_message m;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;
    refused(DECODE_WITH(heads, 0), bad, "heads", 0, 0, 1);
    taken(DECODE_WITH(heads, 1));
    taken(DECODE_WITH(heads, 128));
    refused(DECODE_WITH(heads, 129), bad, "heads", 0, 129, 128);
    ck_assert_str_eq(err.text, "heads is 129, above its largest value 128");
    refused(DECODE_WITH(out_type, 0), bad, "out_type", 0, 0, 3);
    refused(DECODE_WITH(out_type, 4), bad, "out_type", 0, 4, 3);
    refused(DECODE_WITH(mask, 4), bad, "mask", 0, 4, 3);
    taken(DECODE_WITH(priority, 3));
    refused(DECODE_WITH(priority, 4), bad, "priority", 0, 4, 3);

    refused(DECODE_WITH(q.offset, 8), MLA_MISALIGNED, "q.offset", 0, 8, 16);
    refused(DECODE_WITH(q.head_stride, -8), MLA_MISALIGNED, "q.head_stride", 0, (uint64_t)-8, 16);
    ck_assert_str_eq(err.text, "q.head_stride is -8, not a multiple of 16");
    refused(DECODE_WITH(o.token_stride, 17), MLA_MISALIGNED, "o.token_stride", 0, 17, 16);
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.lse.head_stride = 4;
    m.decode.lse.offset = 12;
    taken(&m);
    m.decode.lse.head_stride = 2;
    refused(&m, MLA_MISALIGNED, "lse.head_stride", 0, 2, 4);
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.kv_len_ref.offset = 6;
    refused(&m, MLA_MISALIGNED, "kv_len_ref.offset", 0, 6, 4);
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.ready.offset = 8;
    refused(&m, MLA_MISALIGNED, "ready.offset", 0, 8, 64);
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.status_ref.offset = 4;
    refused(&m, MLA_MISALIGNED, "status_ref.offset", 0, 4, 8);
}
END_TEST

START_TEST(decode_scales)
{
    struct mla_message m;
    static const uint32_t bad[] = {0, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001};
    static const char *const names[] = {"q_scale", "kv_scale", "softmax_scale", "out_scale"};
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            mla_sample_minimal(MLA_MSG_DECODE, &m);
            float *f[] = {&m.decode.q_scale, &m.decode.kv_scale, &m.decode.softmax_scale, &m.decode.out_scale};
            memcpy(f[k], &bad[i], 4);
            refused(&m, MLA_NON_FINITE, names[k], 0, bad[i], 0);
        }
        mla_sample_minimal(MLA_MSG_DECODE, &m);
        float *f[] = {&m.decode.q_scale, &m.decode.kv_scale, &m.decode.softmax_scale, &m.decode.out_scale};
        *f[k] = -1e-40f; /* a subnormal is a number */
        taken(&m);
    }
}
END_TEST

START_TEST(decode_combinations)
{
    struct mla_message m;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.mask = MLA_MASK_CAUSAL;
    refused(&m, bad, "visible", 0, 3, 0);
    m.decode.mask = MLA_MASK_VISIBLE;
    m.decode.visible_ref = m.decode.kv_len_ref;
    refused(&m, bad, "visible_ref", 0, 3, 0);
    m.decode.n_visible = 0;
    taken(&m);
    m.decode.mask = MLA_MASK_NONE;
    refused(&m, bad, "visible_ref", 0, 0, 0);
    mla_sample_full(MLA_MSG_DECODE, &m);
    m.decode.table_entries_per_seq = 0;
    refused(&m, bad, "table_entries_per_seq", 0, 0, 0);
    m.decode.table_entries_per_seq = 7;
    m.decode.table_ref.present = false;
    refused(&m, bad, "table_entries_per_seq", 0, 7, 0);
}
END_TEST

/* { region, token_stride, head_stride } without seq_stride and compact; and no region. */
START_TEST(tensor_needs_its_strides)
{
    static const uint8_t q[] = {0x2a, 13, 0x09, 1, 0, 0, 0, 0, 0, 0, 0, 0x20, 0x20, 0x28, 0x20};
    static const uint8_t none[] = {0x2a, 0};
    struct mla_message m;
    static uint8_t whole[4096];
    size_t n;
    mla_sample_minimal(MLA_MSG_DECODE, &m);
    ck_assert_int_eq(mla_codec_encode(&m, whole, sizeof(whole), &n), 0);
    size_t left = without(whole, n, 5, body);
    memcpy(body + left, q, sizeof(q));
    ck_assert_int_eq(decode(MLA_MSG_DECODE, left + sizeof(q)), 1);
    ck_assert_int_eq(err.code, MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(err.field, "q.seq_stride");
    memcpy(body + left, none, sizeof(none));
    ck_assert_int_eq(decode(MLA_MSG_DECODE, left + sizeof(none)), 1);
    ck_assert_str_eq(err.field, "q.region");
}
END_TEST

START_TEST(layers_are_named_by_index)
{
    struct mla_message m;
    mla_sample_full(MLA_MSG_TEMPLATE_OPEN, &m);
    struct mla_decode_request layers[2] = {m.template_open.layers[0], m.template_open.layers[1]};
    m.template_open.layers = layers;
    layers[1].q.offset = 4;
    refused(&m, MLA_MISALIGNED, "q.offset", 1, 4, 16);
    layers[1].q.offset = 0;
    layers[1].heads = 0;
    refused(&m, MLA_INVALID_ARGUMENT, "heads", 1, 0, 1);
    layers[1].heads = 1;
    layers[1].table_entries_per_seq = 5;
    refused(&m, MLA_INVALID_ARGUMENT, "table_entries_per_seq", 1, 5, 0);
    layers[1].table_entries_per_seq = 0;
    layers[1].done.present = false;
    refused(&m, MLA_INVALID_ARGUMENT, "done", 1, 0, 0);
    static struct mla_decode_request many[MLA_LAYERS_MAX + 1];
    for (size_t i = 0; i <= MLA_LAYERS_MAX; i++)
        many[i] = layers[0];
    m.template_open.layers = many;
    m.template_open.n_layers = MLA_LAYERS_MAX;
    taken(&m);
    ck_assert_uint_eq(out.template_open.n_layers, MLA_LAYERS_MAX);
    m.template_open.n_layers = MLA_LAYERS_MAX + 1;
    refused(&m, MLA_TOO_LARGE, "layers", 0, MLA_LAYERS_MAX + 1, MLA_LAYERS_MAX);
}
END_TEST

static uint32_t big[MLA_SEQS_PER_JOB_MAX + 1];

static struct mla_message table_set(uint32_t *q, uint32_t *kv, size_t n)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.q_len = q;
    m.put_table_set.n_q_len = n;
    m.put_table_set.kv_len_max = kv;
    m.put_table_set.n_kv_len_max = n;
    return m;
}

START_TEST(table_set_limits)
{
    uint32_t q[2] = {1, MLA_Q_LEN_MAX}, kv[2] = {MLA_KV_LEN_MAX, 0};
    struct mla_message m = table_set(q, kv, 2);
    taken(&m);
    q[1]++;
    refused(&m, MLA_TOO_LARGE, "q_len", 1, MLA_Q_LEN_MAX + 1, MLA_Q_LEN_MAX);
    q[1] = 0;
    kv[1] = MLA_KV_LEN_MAX + 1;
    refused(&m, MLA_TOO_LARGE, "kv_len_max", 1, MLA_KV_LEN_MAX + 1, MLA_KV_LEN_MAX);
    m.put_table_set.n_kv_len_max = 1;
    refused(&m, MLA_INVALID_ARGUMENT, "kv_len_max", 0, 1, 2);
    m = table_set(q, kv, 0);
    taken(&m);
    m = table_set(big, big, MLA_SEQS_PER_JOB_MAX);
    taken(&m);
    m = table_set(big, big, MLA_SEQS_PER_JOB_MAX + 1);
    refused(&m, MLA_TOO_LARGE, "q_len", 0, MLA_SEQS_PER_JOB_MAX + 1, MLA_SEQS_PER_JOB_MAX);
    for (size_t i = 0; i < MLA_SEQS_PER_JOB_MAX; i++)
        big[i] = MLA_Q_LEN_MAX;
    m = table_set(big, big, MLA_ROWS_PER_JOB_MAX / MLA_Q_LEN_MAX);
    taken(&m);
    m = table_set(big, big, MLA_ROWS_PER_JOB_MAX / MLA_Q_LEN_MAX + 1);
    refused(&m, MLA_TOO_LARGE, "q_len", 0, MLA_ROWS_PER_JOB_MAX + MLA_Q_LEN_MAX, MLA_ROWS_PER_JOB_MAX);
}
END_TEST

START_TEST(table_set_entries)
{
    const enum mla_status bad = MLA_INVALID_ARGUMENT;
    uint32_t q[3] = {1, 1, 1}, kv[3] = {129, 0, 64}, pages[16] = {0};
    struct mla_message m = table_set(q, kv, 3);
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = 4; /* 3 + 0 + 1 */
    taken(&m);
    m.put_table_set.n_pages = 3;
    refused(&m, bad, "pages", 0, 3, 4);
    m.put_table_set.n_pages = 5;
    refused(&m, bad, "pages", 0, 5, 4);
    m.put_table_set.tokens_per_entry = 128; /* 2 + 0 + 1 */
    m.put_table_set.n_pages = 3;
    taken(&m);

    m.put_table_set.tokens_per_entry = 64;
    m.put_table_set.entries_per_seq = 3;
    m.put_table_set.n_pages = 9;
    taken(&m);
    m.put_table_set.n_pages = 7; /* the last sequence needs one entry */
    taken(&m);
    m.put_table_set.n_pages = 6;
    refused(&m, bad, "pages", 2, 6, 7);
    m.put_table_set.n_pages = 10;
    refused(&m, bad, "pages", 0, 10, 9);
    m.put_table_set.n_pages = 6;
    m.put_table_set.entries_per_seq = 2;
    refused(&m, bad, "entries_per_seq", 0, 2, 3);
    m.put_table_set.tokens_per_entry = 96;
    refused(&m, MLA_MISALIGNED, "tokens_per_entry", 0, 96, 64);
    m.put_table_set.tokens_per_entry = 32;
    refused(&m, bad, "tokens_per_entry", 0, 32, 64);
    m.put_table_set.tokens_per_entry = 4096 + 64;
    refused(&m, MLA_TOO_LARGE, "tokens_per_entry", 0, 4096 + 64, 4096);
}
END_TEST

START_TEST(region_kinds)
{
    struct mla_message m;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;
    static const uint8_t ipc[MLA_CUDA_IPC_BYTES + 1];
    struct mla_region_part part[17] = {{0}};

    mla_sample_minimal(MLA_MSG_REGISTER_REGION, &m);
    struct mla_register_region_request *r = &m.register_region;
    r->kind = 4;
    refused(&m, bad, "kind", 0, 4, 3);
    r->kind = MLA_REGION_MEMFD;
    r->access = 3;
    refused(&m, bad, "access", 0, 3, 2);
    r->access = MLA_ACCESS_READ;
    r->size = 0;
    refused(&m, bad, "size", 0, 0, 1);
    r->size = UINT64_MAX - 15;
    r->offset = 16;
    refused(&m, MLA_OUT_OF_BOUNDS, "size", 0, UINT64_MAX - 15, UINT64_MAX - 16);
    r->offset = 8;
    refused(&m, MLA_MISALIGNED, "offset", 0, 8, 16);
    r->offset = 0;
    r->size = 64;
    r->cuda_ipc = ipc;
    r->n_cuda_ipc = MLA_CUDA_IPC_BYTES;
    refused(&m, bad, "cuda_ipc", 0, 64, 0);

    r->kind = MLA_REGION_CUDA_IPC;
    refused(&m, bad, "gpu_uuid", 0, 0, 0);
    r->gpu_uuid = "GPU-1";
    refused(&m, bad, "block_size", 0, 0, 0);
    r->block_size = 80;
    r->offset = 16;
    taken(&m);
    r->size = 65;
    refused(&m, MLA_OUT_OF_BOUNDS, "size", 0, 65, 80);
    r->size = 64;
    r->n_cuda_ipc = 63;
    refused(&m, bad, "cuda_ipc", 0, 63, 64);
    r->n_cuda_ipc = 65;
    refused(&m, bad, "cuda_ipc", 0, 65, 64);
    r->n_cuda_ipc = 0;
    refused(&m, bad, "cuda_ipc", 0, 0, 64);

    r->kind = MLA_REGION_CUDA_VMM;
    r->block_size = 0;
    refused(&m, bad, "parts", 0, 0, 16);
    r->parts = part;
    r->n_parts = 2;
    part[0].size = 1;
    refused(&m, bad, "size", 1, 0, 1);
    part[1] = (struct mla_region_part){.offset = 32, .size = UINT64_MAX};
    refused(&m, MLA_OUT_OF_BOUNDS, "size", 1, UINT64_MAX, UINT64_MAX - 32);
    for (size_t i = 0; i < 17; i++)
        part[i] = (struct mla_region_part){.size = 1};
    r->n_parts = 16;
    taken(&m);
    r->n_parts = 17;
    refused(&m, MLA_TOO_LARGE, "parts", 0, 17, 16);
}
END_TEST

START_TEST(cache_shapes)
{
    struct mla_message m;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;
    static uint64_t planes[MLA_PLANES_MAX + 1];
    mla_sample_full(MLA_MSG_DEFINE_CACHE, &m);
    struct mla_define_cache_request *c = &m.define_cache;
    c->layout = 4;
    refused(&m, bad, "layout", 0, 4, 3);
    c->layout = MLA_CACHE_BF16_576; /* known; whether it is offered is not the codec's to say */
    taken(&m);
    c->row_stride = 560;
    refused(&m, bad, "row_stride", 0, 560, 576);
    c->row_stride = 584;
    refused(&m, MLA_MISALIGNED, "row_stride", 0, 584, 16);
    c->row_stride = 1ull << 60;
    refused(&m, bad, "row_stride", 0, 1ull << 60, UINT64_MAX / 64);
    c->row_stride = 576;
    c->page_stride = 8 + 64 * 576;
    refused(&m, MLA_MISALIGNED, "page_stride", 0, 8 + 64 * 576, 16);
    c->page_stride = 64 * 576;
    c->tokens_per_page = 32;
    refused(&m, bad, "tokens_per_page", 0, 32, 64);
    c->tokens_per_page = 128;
    refused(&m, bad, "tokens_per_page", 0, 128, 64);
    c->tokens_per_page = 64;
    c->num_pages = 0;
    refused(&m, bad, "num_pages", 0, 0, 1);
    c->num_pages = 1;
    c->plane_offset = planes;
    c->n_plane_offset = MLA_PLANES_MAX;
    taken(&m);
    planes[300] = 15;
    refused(&m, MLA_MISALIGNED, "plane_offset", 300, 15, 16);
    c->n_plane_offset = MLA_PLANES_MAX + 1;
    refused(&m, MLA_TOO_LARGE, "plane_offset", 0, 513, 512);
}
END_TEST

START_TEST(strings)
{
    struct mla_message m;
    char s[67];
    memset(s, 'a', 66);
    s[66] = 0;
    mla_sample_minimal(MLA_MSG_PUBLISH_CACHE, &m);
    m.publish_cache.name = s + 2;
    taken(&m);
    m.publish_cache.name = s + 1;
    refused(&m, MLA_TOO_LARGE, "name", 0, 65, 64);
    m.publish_cache.name = "";
    refused(&m, MLA_INVALID_ARGUMENT, "name", 0, 0, 64);
    m.publish_cache.name = "a/b";
    refused(&m, MLA_INVALID_ARGUMENT, "name", 1, '/', 0);
    m.publish_cache.name = "a b";
    refused(&m, MLA_INVALID_ARGUMENT, "name", 1, ' ', 0);
    mla_message_init(&m, MLA_MSG_HELLO);
    m.hello.client_name = "a b~";
    taken(&m);
    m.hello.client_name = "caf\xc3\xa9";
    refused(&m, MLA_INVALID_ARGUMENT, "client_name", 3, 0xc3, 0);
    m.hello.client_name = "x\x1b[2J";
    refused(&m, MLA_INVALID_ARGUMENT, "client_name", 1, 0x1b, 0);
    static const uint8_t embedded[] = {0x1a, 3, 'a', 0, 'b'};
    memcpy(body, embedded, sizeof(embedded));
    ck_assert_int_eq(decode(MLA_MSG_HELLO, sizeof(embedded)), 1);
    ck_assert_uint_eq(err.index, 1);
}
END_TEST

START_TEST(other_enums_and_counts)
{
    struct mla_message m;
    uint32_t gids[17] = {0};
    mla_message_init(&m, MLA_MSG_STATUS);
    m.status.what = 4;
    refused(&m, MLA_INVALID_ARGUMENT, "what", 0, 4, 3);
    mla_message_init(&m, MLA_NOTICE_GOAWAY);
    m.goaway_notice.reason = 3;
    refused(&m, MLA_INVALID_ARGUMENT, "reason", 0, 3, 2);
    mla_sample_minimal(MLA_MSG_PUBLISH_CACHE, &m);
    m.publish_cache.gids = gids;
    m.publish_cache.n_gids = 16;
    taken(&m);
    m.publish_cache.n_gids = 17;
    refused(&m, MLA_TOO_LARGE, "gids", 0, 17, 16);
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = (1 << 20) + 4096;
    refused(&m, MLA_TOO_LARGE, "size", 0, (1 << 20) + 4096, 1 << 20);
    m.register_sync.size = 100;
    refused(&m, MLA_MISALIGNED, "size", 0, 100, 4096);
    struct mla_sequence_fault faults[65];
    for (size_t i = 0; i < 65; i++)
        faults[i] = (struct mla_sequence_fault){.code = MLA_PAGE_OUT_OF_RANGE};
    mla_message_init(&m, MLA_MSG_DECODE | MLA_REPLY);
    m.decode_reply.faults = faults;
    m.decode_reply.n_faults = 64;
    taken(&m);
    m.decode_reply.n_faults = 65;
    refused(&m, MLA_TOO_LARGE, "faults", 0, 65, 64);
}
END_TEST

MLA_SUITE(codec_refusals)
{
    TCase *tc = mla_tcase(suite, "presence");
    tcase_add_loop_test(tc, each_required_field, 0, (int)mla_n_all_types);
    tcase_add_test(tc, required_as_the_schema_says);
    tc = mla_tcase(suite, "values");
    tcase_add_test(tc, decode_ranges);
    tcase_add_test(tc, decode_scales);
    tcase_add_test(tc, decode_combinations);
    tcase_add_test(tc, tensor_needs_its_strides);
    tcase_add_test(tc, layers_are_named_by_index);
    tcase_add_test(tc, table_set_limits);
    tcase_add_test(tc, table_set_entries);
    tcase_add_test(tc, region_kinds);
    tcase_add_test(tc, cache_shapes);
    tcase_add_test(tc, strings);
    tcase_add_test(tc, other_enums_and_counts);
}
