/* The frame header: the same 24 bytes, little-endian, for every protocol major, for ever.
 *
 *   offset 0  u32 magic      MLA_WIRE_MAGIC ("MLAD" in memory order)
 *          4  u16 major      protocol major of the body
 *          6  u8  n_fds      file descriptors that travel with this frame's first byte
 *          7  u8  flags      0 for now; receivers ignore unknown bits
 *          8  u16 type       enum mla_msg_type; a reply is its request | MLA_REPLY
 *         10  u16 reserved   0 when sent, ignored when read
 *         12  u32 body_len   bytes of the protobuf body that follows
 *         16  u64 request_id chosen by the client, unique among its requests in flight; 0 in notices
 *
 * Nothing here allocates or does I/O.
 */
#ifndef MLA_PROTO_WIRE_H
#define MLA_PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>

#define MLA_WIRE_MAGIC        0x44414c4du
#define MLA_WIRE_HEADER_BYTES 24u
#define MLA_PROTO_MAJOR       1u
#define MLA_PROTO_MINOR       0u
#define MLA_REPLY             0x8000u

/* X(NAME, type, body, cap): every request and notice; body is the message of mla.proto (request XRequest, reply
 * XReply), cap the class of its size limit (proto/limits.h). The reply to NAME has type | MLA_REPLY. */
#define MLA_REQUEST_LIST(X)                                                                                            \
    X(HELLO, 0x0001, hello, CONTROL)                                                                                   \
    X(REGISTER_REGION, 0x0010, register_region, CONTROL)                                                               \
    X(UNREGISTER_REGION, 0x0011, unregister_region, CONTROL)                                                           \
    X(SUSPEND, 0x0012, suspend, CONTROL)                                                                               \
    X(RESUME, 0x0013, resume, CONTROL)                                                                                 \
    X(REGISTER_SYNC, 0x0014, register_sync, CONTROL)                                                                   \
    X(DEFINE_CACHE, 0x0020, define_cache, CONTROL)                                                                     \
    X(PUBLISH_CACHE, 0x0021, publish_cache, CONTROL)                                                                   \
    X(ATTACH_CACHE, 0x0022, attach_cache, CONTROL)                                                                     \
    X(DETACH_CACHE, 0x0023, detach_cache, CONTROL)                                                                     \
    X(DROP_CACHE, 0x0024, drop_cache, CONTROL)                                                                         \
    X(PUT_TABLE_SET, 0x0030, put_table_set, TABLE)                                                                     \
    X(DROP_TABLE_SET, 0x0031, drop_table_set, CONTROL)                                                                 \
    X(DECODE, 0x0032, decode, TABLE)                                                                                   \
    X(TEMPLATE_OPEN, 0x0033, template_open, TABLE)                                                                     \
    X(STEP, 0x0034, step, CONTROL)                                                                                     \
    X(TEMPLATE_CLOSE, 0x0035, template_close, CONTROL)                                                                 \
    X(CANCEL, 0x0036, cancel, CONTROL)                                                                                 \
    X(HEALTH, 0x0040, health, CONTROL)                                                                                 \
    X(METRICS, 0x0041, metrics, CONTROL)                                                                               \
    X(STATUS, 0x0042, status, CONTROL)                                                                                 \
    X(DRAIN, 0x0050, drain, CONTROL)                                                                                   \
    X(EVICT, 0x0051, evict, CONTROL)                                                                                   \
    X(RELOAD, 0x0052, reload, CONTROL)

/* From the daemon, unasked; request_id 0. */
#define MLA_NOTICE_LIST(X)                                                                                             \
    X(ERROR, 0x4001, error_notice, CONTROL)                                                                            \
    X(GOAWAY, 0x4002, goaway_notice, CONTROL)                                                                          \
    X(CACHE_GONE, 0x4003, cache_gone_notice, CONTROL)

enum mla_msg_type {
#define MLA_MSG_ENUM(name, number, body, cap) MLA_MSG_##name = (number),
    MLA_REQUEST_LIST(MLA_MSG_ENUM)
#undef MLA_MSG_ENUM
#define MLA_MSG_ENUM(name, number, body, cap) MLA_NOTICE_##name = (number),
        MLA_NOTICE_LIST(MLA_MSG_ENUM)
#undef MLA_MSG_ENUM
};

struct mla_frame_header {
    uint16_t major;
    uint8_t n_fds;
    uint8_t flags;
    uint16_t type;
    uint32_t body_len;
    uint64_t request_id;
};

/* Writes the 24 bytes of h. */
void mla_wire_pack(const struct mla_frame_header *h, uint8_t out[MLA_WIRE_HEADER_BYTES]);

/* Reads 24 bytes. 0, or -EPROTO when the magic is wrong (the only thing that can be wrong without knowing the major).
 */
int mla_wire_unpack(const uint8_t in[MLA_WIRE_HEADER_BYTES], struct mla_frame_header *h);

/* Largest body that a frame of this type may announce (limits.h); 0 for a type that is not known, in either direction.
 */
uint32_t mla_wire_body_cap(uint16_t type);

/* Name of a type for logs and errors ("DECODE", "DECODE reply", "unknown"); static storage. */
const char *mla_wire_type_name(uint16_t type);

#endif
