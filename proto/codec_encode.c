/* The one loop that writes every body, driven by the tables (codec_table.h). It writes from the end to the front: so
 * the length of a sub-message is known when it is due, in front of it. Without a buffer, or once that is full, it
 * counts. The stack's depth is the schema's. */
#include <string.h>

#include "proto/codec_table.h"

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct sink {
    uint8_t *end; /* NULL: count only */
    size_t room;  /* in front of end */
    size_t n;     /* bytes in front of end so far */
};

/* So many more bytes; false: they are counted and not written, nor is what follows. */
static bool take(struct sink *s, size_t n)
{
    s->n += n;
    if (s->n > s->room)
        s->end = NULL;
    return s->end != NULL;
}

struct level {
    const struct mla_body *body;
    const uint8_t *plain;
    unsigned left;        /* fields still to write: the next is at left - 1 */
    bool in_array;        /* of the field at left - 1 */
    size_t elements_left; /* then: elements of it still to write */
    size_t end_at;        /* sink's n before this message */
};

static void put_bytes(struct sink *s, const void *bytes, size_t n)
{
    if (take(s, n) && n > 0)
        memcpy(s->end - s->n, bytes, n);
}

static void put_varint(struct sink *s, uint64_t v)
{
    size_t n = 1;
    for (uint64_t rest = v >> 7; rest; rest >>= 7)
        n++;
    if (!take(s, n))
        return;
    uint8_t *p = s->end - s->n;
    for (; n > 1; n--, v >>= 7)
        *p++ = (uint8_t)(v | 0x80);
    *p = (uint8_t)v;
}

static void put_tag(struct sink *s, unsigned number, enum wire_type type)
{
    put_varint(s, number << 3 | type);
}

/* Length and tag of what lies between here and end_at. */
static void put_head(struct sink *s, unsigned number, size_t end_at)
{
    put_varint(s, s->n - end_at);
    put_tag(s, number, WIRE_BYTES);
}

static void put_scalar(struct sink *s, unsigned number, const struct mla_field *f, ProtobufCType type,
                       const uint8_t *plain)
{
    uint64_t v = mla_scalar_load(plain + f->offset, f->size);
    if (f->flags & MLA_F_HAS) {
        if (!*(const bool *)(plain + f->aux))
            return;
    } else if (!(f->flags & MLA_F_REQUIRED) && (v == f->def || ((f->flags & MLA_F_ENUM) && v == 0))) {
        return;
    }
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        put_bytes(s, &v, 8);
        put_tag(s, number, WIRE_64);
        return;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        put_bytes(s, &v, 4);
        put_tag(s, number, WIRE_32);
        return;
    case PROTOBUF_C_TYPE_SINT64:
        v = v << 1 ^ -(v >> 63);
        break;
    default:
        break;
    }
    put_varint(s, v);
    put_tag(s, number, WIRE_VARINT);
}

static void put_string(struct sink *s, unsigned number, const struct mla_field *f, const uint8_t *plain)
{
    const char *x;
    if (f->flags & MLA_F_INLINE)
        x = (const char *)plain + f->offset;
    else
        memcpy(&x, plain + f->offset, sizeof(x));
    size_t n = (f->flags & MLA_F_INLINE) || x ? strlen(x) : 0;
    size_t end_at = s->n;
    if (n == 0 && !(f->flags & MLA_F_REQUIRED))
        return;
    put_bytes(s, x, n);
    put_head(s, number, end_at);
}

static void get_array(const struct mla_field *f, const uint8_t *plain, const uint8_t **x, size_t *n)
{
    memcpy(x, plain + f->offset, sizeof(*x));
    memcpy(n, plain + f->aux, sizeof(*n));
}

/* bytes, and packed fields */
static void put_array(struct sink *s, unsigned number, const struct mla_field *f, ProtobufCType type,
                      const uint8_t *plain)
{
    const uint8_t *x;
    size_t n, end_at = s->n;
    get_array(f, plain, &x, &n);
    if (n == 0)
        return;
    if (type == PROTOBUF_C_TYPE_FIXED32 || type == PROTOBUF_C_TYPE_BYTES) {
        put_bytes(s, x, n * f->size);
    } else {
        while (n-- > 0) {
            put_varint(s, mla_scalar_load(x + n * f->size, f->size));
        }
    }
    put_head(s, number, end_at);
}

static void put_plain_field(struct sink *s, const struct level *l, unsigned i)
{
    const struct mla_field *f = &l->body->fields[i];
    const ProtobufCFieldDescriptor *d = &l->body->schema->fields[i];
    if (d->label == PROTOBUF_C_LABEL_REPEATED || d->type == PROTOBUF_C_TYPE_BYTES)
        put_array(s, i + 1, f, d->type, l->plain);
    else if (d->type == PROTOBUF_C_TYPE_STRING)
        put_string(s, i + 1, f, l->plain);
    else
        put_scalar(s, i + 1, f, d->type, l->plain);
}

/* The next message inside l to write, from the last one on: a present singular one, or an element. False when the field
 * at left - 1 has none (any more), and l then stands at the field before it. */
static bool next_message(struct level *l, const uint8_t **inner)
{
    const unsigned i = l->left - 1;
    const struct mla_field *f = &l->body->fields[i];
    if (l->body->schema->fields[i].label != PROTOBUF_C_LABEL_REPEATED) {
        *inner = l->plain + f->offset;
        l->left--;
        return (f->flags & MLA_F_STATUS) || *(const bool *)*inner;
    }
    size_t n;
    get_array(f, l->plain, inner, &n);
    if (!l->in_array)
        l->elements_left = n;
    l->in_array = l->elements_left > 0;
    if (!l->in_array) {
        l->left--;
        return false;
    }
    *inner += --l->elements_left * f->size;
    return true;
}

size_t mla_body_encode(const struct mla_body *body, const void *plain, uint8_t *end, size_t room)
{
    struct sink s = {.end = end, .room = room};
    struct level stack[MLA_DEPTH_MAX] = {{.body = body, .plain = plain, .left = body->n_fields}};
    unsigned numbers[MLA_DEPTH_MAX] = {0}; /* of each level's field in the level below it */
    unsigned depth = 1;
    while (depth > 0) {
        struct level *l = &stack[depth - 1];
        if (l->left == 0) {
            depth--;
            if (depth > 0)
                put_head(&s, numbers[depth], l->end_at);
            continue;
        }
        const unsigned i = l->left - 1;
        const struct mla_body *sub = l->body->fields[i].sub;
        if (!sub) {
            put_plain_field(&s, l, i);
            l->left--;
            continue;
        }
        const uint8_t *inner;
        if (!next_message(l, &inner))
            continue;
        numbers[depth] = i + 1;
        stack[depth++] = (struct level){.body = sub, .plain = inner, .left = sub->n_fields, .end_at = s.n};
    }
    return s.n;
}
