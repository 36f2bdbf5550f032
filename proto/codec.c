#include "proto/codec.h"

#include <errno.h>
#include <string.h>

#include "proto/codec_table.h"

_Static_assert(MLA_LAYERS_MAX * sizeof(struct mla_decode_request) + 4096 <= MLA_CODEC_SLACK_BYTES,
               "an arena of body_len + slack holds the largest TEMPLATE_OPEN");

#define SHORT_BYTES 512u

const struct mla_body *mla_body_of_type(uint16_t type)
{
    switch (type) {
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return &mla_body_##body##_request;                                                                             \
    case (number) | MLA_REPLY:                                                                                         \
        return &mla_body_##body##_reply;
        MLA_REQUEST_LIST(CASE)
#undef CASE
#define CASE(name, number, body, cap)                                                                                  \
    case (number):                                                                                                     \
        return &mla_body_##body;
        MLA_NOTICE_LIST(CASE)
#undef CASE
    default:
        return NULL;
    }
}

/* Strings and defaults of one message; the messages in it are left to the caller. */
static void init_fields(const struct mla_body *body, uint8_t *plain)
{
    static const char *const empty = "";
    for (unsigned i = 0; i < body->n_fields; i++) {
        const struct mla_field *f = &body->fields[i];
        if (f->flags & MLA_F_TEXT)
            memcpy(plain + f->offset, &empty, sizeof(empty));
        else if (f->def)
            mla_scalar_store(plain + f->offset, f->def, f->size);
    }
}

void mla_body_init(const struct mla_body *body, void *plain)
{
    memset(plain, 0, body->size);
    init_fields(body, plain);
    for (unsigned i = 0; i < body->n_fields; i++)
        if (body->fields[i].sub && body->schema->fields[i].label != PROTOBUF_C_LABEL_REPEATED)
            init_fields(body->fields[i].sub, (uint8_t *)plain + body->fields[i].offset);
}

void mla_message_init(struct mla_message *msg, uint16_t type)
{
    const struct mla_body *body = mla_body_of_type(type);
    memset(msg, 0, sizeof(*msg));
    msg->type = type;
    if (body)
        mla_body_init(body, &msg->reply);
}

int mla_refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t index, uint64_t value,
               uint64_t limit, const char *what)
{
    mla_error_set(err, code, field, "%s %s", field, what);
    if (err) {
        err->index = index;
        err->value = value;
        err->limit = limit;
    }
    return 1;
}

int mla_codec_decode(uint16_t type, const uint8_t *body, size_t n, struct mla_arena *arena, struct mla_message *out,
                     struct mla_error *err)
{
    static const uint8_t nothing[1];
    const struct mla_body *table = mla_body_of_type(type);
    if (!table) {
        mla_error_set(err, MLA_UNKNOWN_MESSAGE, NULL, "message type 0x%04x is not known", type);
        if (err)
            err->value = type;
        return 1;
    }
    uint32_t cap = mla_wire_body_cap(type);
    if (n > cap) {
        mla_error_set(err, MLA_TOO_LARGE, NULL, "the body of %s has %zu bytes, at most %u are taken",
                      mla_wire_type_name(type), n, cap);
        if (err) {
            err->value = n;
            err->limit = cap;
        }
        return 1;
    }
    out->type = type;
    return mla_body_decode(table, n > 0 ? body : nothing, n, arena, &out->reply, err);
}

size_t mla_codec_encoded_size(const struct mla_message *msg)
{
    const struct mla_body *table = mla_body_of_type(msg->type);
    return table ? mla_body_encode(table, &msg->reply, NULL, 0) : 0;
}

int mla_codec_encode(const struct mla_message *msg, uint8_t *out, size_t cap, size_t *n)
{
    const struct mla_body *table = mla_body_of_type(msg->type);
    *n = 0;
    if (!table)
        return -EINVAL;
    /* From its end to its front: most are short, and written before their length is known. */
    size_t first = cap < SHORT_BYTES ? cap : SHORT_BYTES;
    *n = mla_body_encode(table, &msg->reply, out + first, first);
    if (*n > cap)
        return -ENOBUFS;
    if (*n > first)
        mla_body_encode(table, &msg->reply, out + *n, *n);
    else if (*n > 0 && *n < first)
        memmove(out, out + first - *n, *n);
    return 0;
}

unsigned mla_codec_expected_fds(const struct mla_message *msg)
{
    switch (msg->type) {
    case MLA_MSG_REGISTER_SYNC:
        return 1;
    case MLA_MSG_REGISTER_REGION:
        if (msg->register_region.kind == MLA_REGION_CUDA_VMM)
            return (unsigned)msg->register_region.n_parts;
        return msg->register_region.kind == MLA_REGION_MEMFD;
    case MLA_MSG_RESUME:
        if (msg->resume.n_parts > 0)
            return (unsigned)msg->resume.n_parts;
        return msg->resume.n_cuda_ipc == 0;
    default:
        return 0;
    }
}

int mla_codec_check_fds(const struct mla_message *msg, unsigned n_fds, struct mla_error *err)
{
    unsigned expected = mla_codec_expected_fds(msg);
    if (n_fds == expected)
        return 0;
    mla_error_set(err, MLA_NO_DESCRIPTORS, NULL, "%s must come with %u file descriptors, not %u",
                  mla_wire_type_name(msg->type), expected, n_fds);
    if (err) {
        err->value = n_fds;
        err->limit = expected;
    }
    return 1;
}
