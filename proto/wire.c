#include "proto/wire.h"

#include <errno.h>

#include "proto/limits.h"

static void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void put_u32(uint8_t *p, uint32_t v)
{
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}

static uint16_t get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get_u32(const uint8_t *p)
{
    return get_u16(p) | (uint32_t)get_u16(p + 2) << 16;
}

void mla_wire_pack(const struct mla_frame_header *h, uint8_t out[MLA_WIRE_HEADER_BYTES])
{
    put_u32(out, MLA_WIRE_MAGIC);
    put_u16(out + 4, h->major);
    out[6] = h->n_fds;
    out[7] = h->flags;
    put_u16(out + 8, h->type);
    put_u16(out + 10, 0);
    put_u32(out + 12, h->body_len);
    put_u32(out + 16, (uint32_t)h->request_id);
    put_u32(out + 20, (uint32_t)(h->request_id >> 32));
}

int mla_wire_unpack(const uint8_t in[MLA_WIRE_HEADER_BYTES], struct mla_frame_header *h)
{
    if (get_u32(in) != MLA_WIRE_MAGIC)
        return -EPROTO;
    h->major = get_u16(in + 4);
    h->n_fds = in[6];
    h->flags = in[7];
    h->type = get_u16(in + 8);
    h->body_len = get_u32(in + 12);
    h->request_id = get_u32(in + 16) | (uint64_t)get_u32(in + 20) << 32;
    return 0;
}

uint32_t mla_wire_body_cap(uint16_t type)
{
    switch (type) {
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return MLA_CAP_##cap##_BYTES;                                                                                  \
    case (number) | MLA_REPLY:                                                                                         \
        return MLA_CAP_REPLY_BYTES;
        MLA_REQUEST_LIST(CASE)
#undef CASE
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return MLA_CAP_##cap##_BYTES;
        MLA_NOTICE_LIST(CASE)
#undef CASE
    default:
        return 0;
    }
}

const char *mla_wire_type_name(uint16_t type)
{
    switch (type) {
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return #name;                                                                                                  \
    case (number) | MLA_REPLY:                                                                                         \
        return #name " reply";
        MLA_REQUEST_LIST(CASE)
#undef CASE
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return #name " notice";
        MLA_NOTICE_LIST(CASE)
#undef CASE
    default:
        return "unknown";
    }
}
