/* Two bytes of type, little-endian, then a body: what decodes must encode to what decodes to the same, and protobuf-c
 * must be able to read what this codec takes and what it writes. */
#include <errno.h>
#include <string.h>

#include "proto/codec_table.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/messages.h"

static uint8_t arena_bytes[2][2u << 20];
static uint8_t encoded[2][1u << 20];

static int decode(uint16_t type, const uint8_t *body, size_t n, unsigned which, struct mla_message *m)
{
    struct mla_arena arena;
    struct mla_error err = {0};
    mla_arena_init(&arena, arena_bytes[which], sizeof(arena_bytes[which]));
    int rc = mla_codec_decode(type, body, n, &arena, m, &err);
    FUZZ_CHECK(rc == 0 || rc == 1 || rc == -ENOMEM);
    FUZZ_CHECK(rc != 1 || (err.code != MLA_OK && err.text[0] != '\0' && strlen(err.text) < MLA_MAX_TEXT_BYTES));
    FUZZ_CHECK(rc != -ENOMEM || (type & MLA_REPLY) || n > sizeof(arena_bytes[0]) - MLA_CODEC_SLACK_BYTES);
    return rc;
}

static void readable_by_protobuf_c(const struct mla_body *b, const uint8_t *body, size_t n)
{
    ProtobufCMessage *pb = protobuf_c_message_unpack(b->schema, NULL, n, body);
    FUZZ_CHECK(pb);
    protobuf_c_message_free_unpacked(pb, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mla_message first, second;
    size_t n[2];
    if (size < 2)
        return 0;
    uint16_t type = (uint16_t)(data[0] | data[1] << 8);
    if (decode(type, data + 2, size - 2, 0, &first))
        return 0;
    const struct mla_body *b = mla_body_of_type(type);
    readable_by_protobuf_c(b, data + 2, size - 2);

    if (mla_codec_encode(&first, encoded[0], sizeof(encoded[0]), &n[0]))
        return 0;
    FUZZ_CHECK(n[0] == mla_codec_encoded_size(&first));
    readable_by_protobuf_c(b, encoded[0], n[0]);
    FUZZ_CHECK(decode(type, encoded[0], n[0], 1, &second) == 0);
    FUZZ_CHECK(mla_message_equal(&first, &second));
    FUZZ_CHECK(mla_codec_encode(&second, encoded[1], sizeof(encoded[1]), &n[1]) == 0);
    FUZZ_CHECK(n[0] == n[1] && memcmp(encoded[0], encoded[1], n[0]) == 0);
    return 0;
}
