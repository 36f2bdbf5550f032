/* Inside the codec: how the plain structs of codec.h hang together with the schema.
 *
 * The wire side (number, type, repeated, packed) is read from the descriptors that protoc-c generates from mla.proto,
 * so the schema is written down once. This table adds what a schema cannot say: where the field lies in the plain
 * struct, what is required, defaults, ranges. One loop then decodes every message straight into its struct, and one
 * encodes it; protobuf-c's own unpack is not used, because it allocates for each sub-message and unknown field it meets
 * and keeps the last of several copies of a field. The unit tests hold this codec against protobuf-c's in both
 * directions.
 */
#ifndef MLA_PROTO_CODEC_TABLE_H
#define MLA_PROTO_CODEC_TABLE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/codec.h"

enum mla_field_flags {
    MLA_F_REQUIRED = 1 << 0, /* must come; always sent (a sub-message: when present) */
    MLA_F_HAS = 1 << 1,      /* aux is the offset of has_x */
    MLA_F_ENUM = 1 << 2,     /* 0 in the struct is absence; min .. max are its values */
    MLA_F_CAP = 1 << 3,      /* above max is TOO_LARGE, not INVALID_ARGUMENT */
    MLA_F_SCALE = 1 << 4,    /* float: finite and not zero, else NON_FINITE */
    MLA_F_ASCII = 1 << 5,    /* string: printable ASCII */
    MLA_F_NAME = 1 << 6,     /* string: [A-Za-z0-9._-]+ */
    MLA_F_INLINE = 1 << 7,   /* string: a char array in the struct */
    MLA_F_STATUS = 1 << 8,   /* sub-message: a struct mla_error, which has no member present; always sent */
    MLA_F_TEXT = 1 << 9,     /* string: "" where none came, not NULL */
};

struct mla_body;

/* One field, at index number - 1 of its message. */
struct mla_field {
    const char *name;           /* as reported */
    const struct mla_body *sub; /* of a message field */
    const char *const *names;   /* of a singular message field: names of its fields, as reported */
    uint64_t def;               /* default, as stored (floats: their bits) */
    uint64_t min, max;          /* of values, or of a string's or bytes' length; max 0: none */
    uint32_t multiple;          /* of values: power of two, else MISALIGNED; 0: none */
    uint32_t count_max;         /* of elements of a repeated field; 0: none */
    uint16_t offset, aux;       /* of x; of n_x or has_x */
    uint16_t size;              /* of x, or of one element */
    uint16_t flags;
};

/* One message. check sees the whole struct once its fields are in, may derive defaults, and refuses with *err and 1;
 * seen has bit number - 1 set for each field that came; names are the reported ones. */
struct mla_body {
    const ProtobufCMessageDescriptor *schema;
    const struct mla_field *fields;
    uint16_t n_fields;
    uint16_t size;
    int (*check)(void *plain, uint32_t seen, const char *const *names, struct mla_error *err);
};

#define MLA_FIELDS_MAX 32 /* of one message: bits of seen */
#define MLA_DEPTH_MAX  4  /* the schema needs 3: TemplateOpenRequest, DecodeRequest, Tensor */

/* x is a member of struct T, which the including table defines as a macro. */
#define MLA_X(x, bits, ...)                                                                                            \
    {                                                                                                                  \
        .name = #x, .offset = offsetof(T, x), .size = sizeof(((T *)0)->x), .flags = (bits), __VA_ARGS__                \
    }
#define MLA_HAS_X(x, ...)                                                                                              \
    {                                                                                                                  \
        .name = #x, .offset = offsetof(T, x), .size = sizeof(((T *)0)->x), .aux = offsetof(T, has_##x),                \
        .flags = MLA_F_HAS, __VA_ARGS__                                                                                \
    }
#define MLA_N_X(x, bits, ...)                                                                                          \
    {                                                                                                                  \
        .name = #x, .offset = offsetof(T, x), .size = sizeof(*((T *)0)->x), .aux = offsetof(T, n_##x),                 \
        .flags = (bits), __VA_ARGS__                                                                                   \
    }
#define MLA_ENUM_X(x, bits, last)    MLA_X(x, (bits) | MLA_F_ENUM, .min = 1, .max = (last))
#define MLA_TEXT_X(x, bits, longest) MLA_X(x, (bits) | MLA_F_TEXT, .max = (longest))
#define MLA_STATUS_X                 MLA_X(status, MLA_F_REQUIRED | MLA_F_STATUS, .sub = &mla_body_status, .names = mla_status_names)

/* A message whose plain struct and table carry its own name. */
#define MLA_BODY_OF(name, check_fn)                                                                                    \
    const struct mla_body mla_body_##name = {.schema = &mla__wire__##name##__descriptor,                               \
                                             .fields = name##_fields,                                                  \
                                             .n_fields = sizeof(name##_fields) / sizeof(name##_fields[0]),             \
                                             .size = sizeof(struct mla_##name),                                        \
                                             .check = (check_fn)}
#define MLA_BODY_EMPTY(name)                                                                                           \
    const struct mla_body mla_body_##name = {.schema = &mla__wire__##name##__descriptor,                               \
                                             .size = sizeof(struct mla_##name)}

/* XReply with nothing but its Status: the table of all such. */
extern const struct mla_field mla_status_only_fields[1];
#define MLA_BODY_STATUS_ONLY(name)                                                                                     \
    const struct mla_body mla_body_##name = {.schema = &mla__wire__##name##__descriptor,                               \
                                             .fields = mla_status_only_fields,                                         \
                                             .n_fields = 1,                                                            \
                                             .size = sizeof(struct mla_##name)}

#define MLA_BODY_DECLARE(name, number, body, cap)                                                                      \
    extern const struct mla_body mla_body_##body##_request;                                                            \
    extern const struct mla_body mla_body_##body##_reply;
MLA_REQUEST_LIST(MLA_BODY_DECLARE)
#undef MLA_BODY_DECLARE
#define MLA_BODY_DECLARE(name, number, body, cap) extern const struct mla_body mla_body_##body;
MLA_NOTICE_LIST(MLA_BODY_DECLARE)
#undef MLA_BODY_DECLARE

extern const struct mla_body mla_body_status;
extern const char *const mla_status_names[];

/* Scalars as they lie in their structs: 1, 4 or 8 bytes (mla_body_tables_fault()). */
static inline uint64_t mla_scalar_load(const void *at, size_t size)
{
    uint8_t byte;
    uint32_t narrow;
    uint64_t v;
    switch (size) {
    case 1:
        memcpy(&byte, at, sizeof(byte));
        return byte;
    case 4:
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    default:
        memcpy(&v, at, sizeof(v));
        return v;
    }
}

static inline void mla_scalar_store(void *at, uint64_t v, size_t size)
{
    uint8_t byte = (uint8_t)v;
    uint32_t narrow = (uint32_t)v;
    if (size == 1)
        memcpy(at, &byte, sizeof(byte));
    else if (size == 4)
        memcpy(at, &narrow, sizeof(narrow));
    else
        memcpy(at, &v, sizeof(v));
}

/* The table of a type, NULL when it is not known. */
const struct mla_body *mla_body_of_type(uint16_t type);

/* NULL when every table agrees with its descriptor (order, sizes, depth), else a sentence that names what does not. */
const char *mla_body_tables_fault(void);

/* Zeroes the struct and puts its defaults in. */
void mla_body_init(const struct mla_body *body, void *plain);

/* As mla_codec_decode and mla_codec_encode, for one table. Encoding writes in front of end, where there is so much
 * room, and returns the bytes of all; when those are more, what lies in the room means nothing. end NULL counts only.
 */
int mla_body_decode(const struct mla_body *body, const uint8_t *bytes, size_t n, struct mla_arena *arena, void *plain,
                    struct mla_error *err);
size_t mla_body_encode(const struct mla_body *body, const void *plain, uint8_t *end, size_t room);

/* Fills *err; text is "<field> <what>". Returns 1. */
int mla_refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t index, uint64_t value,
               uint64_t limit, const char *what);

#endif
