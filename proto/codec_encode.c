/* The one loop that writes every body, driven by the tables (codec_table.h). Run without a buffer it counts; a
 * sub-message is counted first, because its length precedes it. The nesting is the schema's: three levels. */
#include <string.h>

#include "proto/codec_table.h"

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct sink {
    uint8_t *p; /* NULL: count only */
    size_t n;
};

static void put_bytes(struct sink *s, const void *bytes, size_t n)
{
    if (s->p && n > 0)
        memcpy(s->p + s->n, bytes, n);
    s->n += n;
}

static void put_varint(struct sink *s, uint64_t v)
{
    for (; v > 0x7f; v >>= 7, s->n++)
        if (s->p)
            s->p[s->n] = (uint8_t)(v | 0x80);
    if (s->p)
        s->p[s->n] = (uint8_t)v;
    s->n++;
}

static void put_tag(struct sink *s, unsigned number, enum wire_type type)
{
    put_varint(s, number << 3 | type);
}

static void put_run(struct sink *s, unsigned number, const void *bytes, size_t n)
{
    put_tag(s, number, WIRE_BYTES);
    put_varint(s, n);
    put_bytes(s, bytes, n);
}

static void put_scalar(struct sink *s, unsigned number, const struct mla_field *f, ProtobufCType type,
                       const uint8_t *plain)
{
    uint64_t v = 0;
    memcpy(&v, plain + f->offset, f->size);
    if (f->flags & MLA_F_HAS) {
        if (!*(const bool *)(plain + f->aux))
            return;
    } else if (!(f->flags & MLA_F_REQUIRED) && (v == f->def || ((f->flags & MLA_F_ENUM) && v == 0))) {
        return;
    }
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        put_tag(s, number, WIRE_64);
        put_bytes(s, &v, 8);
        return;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        put_tag(s, number, WIRE_32);
        put_bytes(s, &v, 4);
        return;
    case PROTOBUF_C_TYPE_SINT64:
        v = v << 1 ^ -(v >> 63);
        break;
    default:
        break;
    }
    put_tag(s, number, WIRE_VARINT);
    put_varint(s, v);
}

static void put_string(struct sink *s, unsigned number, const struct mla_field *f, const uint8_t *plain)
{
    const char *x = (const char *)plain + f->offset;
    if (!(f->flags & MLA_F_INLINE))
        memcpy(&x, plain + f->offset, sizeof(x));
    size_t n = x ? strlen(x) : 0;
    if (n > 0 || (f->flags & MLA_F_REQUIRED))
        put_run(s, number, x, n);
}

static void put_varints(struct sink *s, const struct mla_field *f, const uint8_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t v = 0;
        memcpy(&v, x + i * f->size, f->size);
        put_varint(s, v);
    }
}

static void put_packed(struct sink *s, unsigned number, const struct mla_field *f, ProtobufCType type, const uint8_t *x,
                       size_t n)
{
    if (n == 0)
        return;
    if (type == PROTOBUF_C_TYPE_FIXED32 || type == PROTOBUF_C_TYPE_BYTES) {
        put_run(s, number, x, n * f->size);
        return;
    }
    struct sink count = {0};
    put_varints(&count, f, x, n);
    put_tag(s, number, WIRE_BYTES);
    put_varint(s, count.n);
    put_varints(s, f, x, n);
}

static void put_body(struct sink *s, const struct mla_body *body, const uint8_t *plain);

static void put_message(struct sink *s, unsigned number, const struct mla_body *sub, const uint8_t *plain)
{
    struct sink count = {0};
    put_body(&count, sub, plain);
    put_tag(s, number, WIRE_BYTES);
    put_varint(s, count.n);
    if (s->p)
        put_body(s, sub, plain);
    else
        s->n += count.n;
}

static void put_field(struct sink *s, const struct mla_body *body, unsigned i, const uint8_t *plain)
{
    const struct mla_field *f = &body->fields[i];
    const ProtobufCFieldDescriptor *d = &body->schema->fields[i];
    const bool message = d->type == PROTOBUF_C_TYPE_MESSAGE;

    if (d->label == PROTOBUF_C_LABEL_REPEATED || d->type == PROTOBUF_C_TYPE_BYTES) {
        const uint8_t *x;
        size_t n;
        memcpy(&x, plain + f->offset, sizeof(x));
        memcpy(&n, plain + f->aux, sizeof(n));
        if (!message)
            put_packed(s, i + 1, f, d->type, x, n);
        for (size_t k = 0; message && k < n; k++)
            put_message(s, i + 1, f->sub, x + k * f->size);
    } else if (message) {
        if ((f->flags & MLA_F_STATUS) || *(const bool *)(plain + f->offset))
            put_message(s, i + 1, f->sub, plain + f->offset);
    } else if (d->type == PROTOBUF_C_TYPE_STRING) {
        put_string(s, i + 1, f, plain);
    } else {
        put_scalar(s, i + 1, f, d->type, plain);
    }
}

static void put_body(struct sink *s, const struct mla_body *body, const uint8_t *plain)
{
    for (unsigned i = 0; i < body->n_fields; i++)
        put_field(s, body, i, plain);
}

size_t mla_body_encode(const struct mla_body *body, const void *plain, uint8_t *out)
{
    struct sink s = {.p = out};
    put_body(&s, body, plain);
    return s.n;
}
