/* A frame as it comes from a peer: header, type, cap, then as much of the body as is there. */
#include <string.h>

#include "proto/codec.h"
#include "tests/fuzz/fuzz.h"

static uint8_t arena_bytes[1u << 20];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mla_frame_header h;
    uint8_t again[MLA_WIRE_HEADER_BYTES];
    if (size < MLA_WIRE_HEADER_BYTES || mla_wire_unpack(data, &h))
        return 0;

    /* Packing gives the same bytes, but for reserved, which is sent as 0. */
    mla_wire_pack(&h, again);
    FUZZ_CHECK(memcmp(again, data, 10) == 0);
    FUZZ_CHECK(again[10] == 0 && again[11] == 0);
    FUZZ_CHECK(memcmp(again + 12, data + 12, 12) == 0);

    uint32_t cap = mla_wire_body_cap(h.type);
    FUZZ_CHECK((cap == 0) == (strcmp(mla_wire_type_name(h.type), "unknown") == 0));
    if (h.body_len > cap || h.body_len > size - MLA_WIRE_HEADER_BYTES)
        return 0;

    struct mla_arena arena;
    struct mla_message m;
    struct mla_error err = {0};
    mla_arena_init(&arena, arena_bytes, sizeof(arena_bytes));
    int rc = mla_codec_decode(h.type, data + MLA_WIRE_HEADER_BYTES, h.body_len, &arena, &m, &err);
    FUZZ_CHECK(rc != 1 || (err.code != MLA_OK && err.text[0] != '\0'));
    if (rc == 0)
        mla_codec_check_fds(&m, h.n_fds, &err);
    return 0;
}
