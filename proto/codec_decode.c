/* The one loop that reads every body, driven by the tables (codec_table.h). It keeps its own short stack of messages
 * within messages, whose depth is the schema's, never the input's. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proto/codec_table.h"
#include "proto/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packed fixed32 fields are copied as they lie on the wire");

enum wire_type { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

struct level {
    const struct mla_body *body;
    const char *const *names; /* NULL: the table's own */
    const uint8_t *p, *end;
    void *plain;
    uint64_t index; /* of this message in its parent's repeated field */
    uint32_t seen;
    uint32_t unknown;
};

struct reader {
    struct level stack[MLA_DEPTH_MAX];
    unsigned depth;
    const uint8_t *start;
    struct mla_arena *arena;
    struct mla_error *err;
};

static const char *name_of(const struct level *l, unsigned i)
{
    return l->names ? l->names[i] : l->body->fields[i].name;
}

static int malformed(struct reader *r, const struct level *l, const char *field, const char *what)
{
    mla_error_set(r->err, MLA_MALFORMED, field, "%s%s%s", field ? field : "the body", " ", what);
    if (r->err) {
        r->err->index = l->index;
        r->err->value = (uint64_t)(l->p - r->start);
    }
    return 1;
}

#define VALUE_BYTES_MAX 10u
#define HEAD_BYTES_MAX  5u /* of tags and lengths, which have 32 bits */

static bool get_varint(const uint8_t **p, const uint8_t *end, unsigned bytes_max, uint64_t *v)
{
    uint64_t x = 0;
    for (unsigned shift = 0; shift < 7 * bytes_max && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        if (shift == 63 && b > 1)
            return false;
        x |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *v = x;
            return true;
        }
    }
    return false;
}

static bool get_fixed(const uint8_t **p, const uint8_t *end, size_t bytes, uint64_t *v)
{
    if ((size_t)(end - *p) < bytes)
        return false;
    *v = 0;
    memcpy(v, *p, bytes);
    *p += bytes;
    return true;
}

/* A length and as many bytes behind it. */
static bool get_bytes(const uint8_t **p, const uint8_t *end, const uint8_t **bytes, size_t *n)
{
    uint64_t len;
    if (!get_varint(p, end, HEAD_BYTES_MAX, &len) || len > (size_t)(end - *p))
        return false;
    *bytes = *p;
    *n = (size_t)len;
    *p += len;
    return true;
}

static bool skip(const uint8_t **p, const uint8_t *end, unsigned wire_type)
{
    uint64_t v;
    const uint8_t *b;
    size_t n;
    switch (wire_type) {
    case WIRE_VARINT:
        return get_varint(p, end, VALUE_BYTES_MAX, &v);
    case WIRE_64:
        return get_fixed(p, end, 8, &v);
    case WIRE_BYTES:
        return get_bytes(p, end, &b, &n);
    case WIRE_32:
        return get_fixed(p, end, 4, &v);
    default:
        return false; /* groups */
    }
}

static unsigned wire_type_of(const ProtobufCFieldDescriptor *d)
{
    if (d->label == PROTOBUF_C_LABEL_REPEATED)
        return WIRE_BYTES; /* packed, or messages: the tables hold nothing else */
    switch (d->type) {
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_64;
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_32;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT;
    }
}

/* Refuses a number for its distance to a bound; the text has both, for those who print nothing else. */
static int refuse_number(struct reader *r, const ProtobufCFieldDescriptor *d, enum mla_status code, const char *name,
                         uint64_t index, uint64_t v, uint64_t limit, const char *relation)
{
    char what[96];
    int64_t stride = (int64_t)v; /* the one kind of number that has a sign */
    if (d->type == PROTOBUF_C_TYPE_SINT64 && stride < 0)
        snprintf(what, sizeof(what), "is %lld, %s %llu", (long long)stride, relation, (unsigned long long)limit);
    else
        snprintf(what, sizeof(what), "is %llu, %s %llu", (unsigned long long)v, relation, (unsigned long long)limit);
    return mla_refuse(r->err, code, name, index, v, limit, what);
}

/* One scalar, or one element of a packed field. */
static int check_value(struct reader *r, const struct mla_field *f, const ProtobufCFieldDescriptor *d, const char *name,
                       uint64_t v, uint64_t index)
{
    if (f->flags & MLA_F_SCALE) {
        float x;
        uint32_t bits = (uint32_t)v;
        memcpy(&x, &bits, sizeof(x));
        if (!isfinite(x) || x == 0.0f)
            return mla_refuse(r->err, MLA_NON_FINITE, name, index, v, 0, "must be finite and not zero");
        return 0;
    }
    if (d->type == PROTOBUF_C_TYPE_UINT32 && v > UINT32_MAX)
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, index, v, UINT32_MAX, "passes 32 bits");
    if (d->type == PROTOBUF_C_TYPE_BOOL && v > 1)
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, index, v, 1, "is neither 0 nor 1");
    if ((f->flags & MLA_F_ENUM) && (v < f->min || v > f->max))
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, index, v, f->max, "is no known value");
    if (v < f->min)
        return refuse_number(r, d, MLA_INVALID_ARGUMENT, name, index, v, f->min, "below its least value");
    if (f->max && v > f->max)
        return refuse_number(r, d, f->flags & MLA_F_CAP ? MLA_TOO_LARGE : MLA_INVALID_ARGUMENT, name, index, v, f->max,
                             "above its largest value");
    if (f->multiple && (v & (f->multiple - 1)))
        return refuse_number(r, d, MLA_MISALIGNED, name, index, v, f->multiple, "not a multiple of");
    return 0;
}

static bool name_char(uint8_t c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

static int check_text(struct reader *r, const struct mla_field *f, const char *name, const uint8_t *s, size_t n)
{
    if (n > f->max)
        return mla_refuse(r->err, MLA_TOO_LARGE, name, 0, n, f->max, "is too long");
    if (n == 0 && (f->flags & MLA_F_NAME))
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, 0, 0, f->max, "is empty");
    size_t i = mla_text_span(s, n);
    if (i < n)
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, i, s[i], 0,
                          "has a control character or is no valid UTF-8");
    for (i = 0; i < n && (f->flags & (MLA_F_ASCII | MLA_F_NAME)); i++)
        if (s[i] > 0x7e || ((f->flags & MLA_F_NAME) && !name_char(s[i])))
            return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name, i, s[i], 0,
                              "has a character that names may not have");
    return 0;
}

static int read_string(struct reader *r, const struct mla_field *f, const char *name, uint8_t *x, const uint8_t *s,
                       size_t n)
{
    int rc = check_text(r, f, name, s, n);
    if (rc || n == 0)
        return rc;
    if (f->flags & MLA_F_INLINE) {
        memcpy(x, s, n);
        x[n] = '\0';
        return 0;
    }
    char *copy = mla_arena_take(r->arena, n + 1, 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, s, n);
    copy[n] = '\0';
    memcpy(x, &copy, sizeof(copy));
    return 0;
}

static void set_array(const struct mla_field *f, void *plain, const void *x, size_t n)
{
    memcpy((uint8_t *)plain + f->offset, &x, sizeof(x));
    memcpy((uint8_t *)plain + f->aux, &n, sizeof(n));
}

static int read_byte_array(struct reader *r, const struct level *l, unsigned i, const uint8_t *s, size_t n)
{
    const struct mla_field *f = &l->body->fields[i];
    if (n < f->min || n > f->max)
        return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name_of(l, i), 0, n, f->max, "has the wrong length");
    uint8_t *copy = mla_arena_take(r->arena, n, 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, s, n);
    set_array(f, l->plain, copy, n);
    return 0;
}

static int check_count(struct reader *r, const struct level *l, unsigned i, size_t n)
{
    const struct mla_field *f = &l->body->fields[i];
    if (f->count_max && n > f->count_max)
        return mla_refuse(r->err, MLA_TOO_LARGE, name_of(l, i), 0, n, f->count_max, "has too many elements");
    return 0;
}

static int read_packed(struct reader *r, const struct level *l, unsigned i, const uint8_t *s, size_t n)
{
    const struct mla_field *f = &l->body->fields[i];
    const ProtobufCFieldDescriptor *d = &l->body->schema->fields[i];
    const char *name = name_of(l, i);
    const bool fixed = d->type == PROTOBUF_C_TYPE_FIXED32;

    size_t count = 0;
    if (fixed && n % sizeof(uint32_t))
        return malformed(r, l, name, "is no whole number of elements");
    if (fixed)
        count = n / sizeof(uint32_t);
    for (size_t b = 0; !fixed && b < n; b++)
        count += !(s[b] & 0x80);
    int rc = check_count(r, l, i, count);
    if (rc)
        return rc;
    if (n == 0)
        return 0;
    uint8_t *x = mla_arena_take(r->arena, count * f->size, f->size);
    if (!x)
        return -ENOMEM;

    const uint8_t *p = s, *end = s + n;
    if (fixed)
        memcpy(x, s, n);
    for (size_t k = 0; k < count && (!fixed || f->min || f->max || f->multiple); k++) {
        uint64_t v;
        if (!(fixed ? get_fixed(&p, end, sizeof(uint32_t), &v) : get_varint(&p, end, VALUE_BYTES_MAX, &v)))
            return malformed(r, l, name, "has a bad varint");
        rc = check_value(r, f, d, name, v, k);
        if (rc)
            return rc;
        mla_scalar_store(x + k * f->size, v, f->size);
    }
    if (!fixed && p != end)
        return malformed(r, l, name, "has a bad varint");
    set_array(f, l->plain, x, count);
    return 0;
}

static int read_scalar(struct reader *r, struct level *l, unsigned i)
{
    const struct mla_field *f = &l->body->fields[i];
    const ProtobufCFieldDescriptor *d = &l->body->schema->fields[i];
    unsigned wt = wire_type_of(d);
    uint64_t v;
    if (!(wt == WIRE_VARINT ? get_varint(&l->p, l->end, VALUE_BYTES_MAX, &v)
                            : get_fixed(&l->p, l->end, wt == WIRE_64 ? 8 : 4, &v)))
        return malformed(r, l, name_of(l, i), "is cut off");
    if (d->type == PROTOBUF_C_TYPE_SINT64)
        v = v >> 1 ^ -(v & 1);
    int rc = check_value(r, f, d, name_of(l, i), v, l->index);
    if (rc)
        return rc;
    mla_scalar_store((uint8_t *)l->plain + f->offset, v, f->size);
    if (f->flags & MLA_F_HAS)
        *((uint8_t *)l->plain + f->aux) = true;
    return 0;
}

static bool is_repeated_message(const struct mla_body *body, uint64_t number)
{
    const ProtobufCFieldDescriptor *d = &body->schema->fields[number - 1];
    return d->label == PROTOBUF_C_LABEL_REPEATED && d->type == PROTOBUF_C_TYPE_MESSAGE;
}

/* Occurrences of field number from here to the end of the message; the array is taken for all of them at once. Ends
 * early, with those so far, behind a field that will be refused: one over the cap, one too many that is unknown, or one
 * that must have come before; so a body that is refused is not walked through to its end. */
static bool count_field(const struct level *l, uint32_t number, size_t *count)
{
    const uint8_t *p = l->p;
    const struct mla_body *body = l->body;
    size_t cap = body->fields[number - 1].count_max, unknown = 0, others = 0;
    uint64_t tag;
    *count = 0;
    while (p < l->end && (cap == 0 || *count <= cap) && unknown <= MLA_CODEC_UNKNOWN_MAX && others <= body->n_fields) {
        if (!get_varint(&p, l->end, HEAD_BYTES_MAX, &tag) || !skip(&p, l->end, tag & 7))
            return false;
        uint64_t is = tag >> 3;
        *count += is == number;
        unknown += is == 0 || is > body->n_fields;
        others += is > 0 && is <= body->n_fields && !is_repeated_message(body, is);
    }
    return true;
}

/* Room for one more element of a repeated message; l->p stands behind the tag of its first when seen is not set. */
static int take_element(struct reader *r, struct level *l, unsigned i, const uint8_t *tag, void **element,
                        size_t *index)
{
    const struct mla_field *f = &l->body->fields[i];
    uint8_t *plain = l->plain, *array;
    if (!(l->seen & 1u << i)) {
        struct level from = *l;
        size_t count;
        from.p = tag;
        if (!count_field(&from, i + 1, &count))
            return malformed(r, l, name_of(l, i), "is followed by bytes that do not parse");
        int rc = check_count(r, l, i, count);
        if (rc)
            return rc;
        array = mla_arena_take(r->arena, count * f->size, _Alignof(max_align_t));
        if (!array)
            return -ENOMEM;
        set_array(f, plain, array, 0);
    }
    memcpy(&array, plain + f->offset, sizeof(array));
    memcpy(index, plain + f->aux, sizeof(*index));
    *element = array + *index * f->size;
    size_t n = *index + 1;
    memcpy(plain + f->aux, &n, sizeof(n));
    return 0;
}

static int enter_message(struct reader *r, struct level *l, unsigned i, const uint8_t *tag, const uint8_t *s, size_t n)
{
    const struct mla_field *f = &l->body->fields[i];
    void *plain = (uint8_t *)l->plain + f->offset;
    size_t index = l->index;
    if (l->body->schema->fields[i].label == PROTOBUF_C_LABEL_REPEATED) {
        int rc = take_element(r, l, i, tag, &plain, &index);
        if (rc)
            return rc;
        mla_body_init(f->sub, plain);
    } else if (!(f->flags & MLA_F_STATUS)) {
        *(bool *)plain = true; /* present is the first member */
    }
    if (r->depth == MLA_DEPTH_MAX)
        return malformed(r, l, name_of(l, i), "is nested too deeply");
    r->stack[r->depth++] =
        (struct level){.body = f->sub, .names = f->names, .p = s, .end = s + n, .plain = plain, .index = index};
    return 0;
}

static int read_field(struct reader *r, struct level *l)
{
    const uint8_t *start = l->p;
    uint64_t tag;
    if (!get_varint(&l->p, l->end, HEAD_BYTES_MAX, &tag) || tag >> 3 == 0 || tag > UINT32_MAX)
        return malformed(r, l, NULL, "has a bad field number");
    if (tag >> 3 > l->body->n_fields) {
        if (++l->unknown > MLA_CODEC_UNKNOWN_MAX)
            return malformed(r, l, NULL, "has too many unknown fields");
        return skip(&l->p, l->end, tag & 7) ? 0 : malformed(r, l, NULL, "has an unknown field that does not parse");
    }

    const unsigned i = (unsigned)(tag >> 3) - 1;
    const ProtobufCFieldDescriptor *d = &l->body->schema->fields[i];
    const bool repeated_message = d->label == PROTOBUF_C_LABEL_REPEATED && d->type == PROTOBUF_C_TYPE_MESSAGE;
    if ((tag & 7) != wire_type_of(d))
        return malformed(r, l, name_of(l, i), "has the wrong wire type");
    if ((l->seen & 1u << i) && !repeated_message)
        return malformed(r, l, name_of(l, i), "comes more than once");

    int rc;
    const uint8_t *s = NULL;
    size_t n = 0;
    if ((tag & 7) == WIRE_BYTES && !get_bytes(&l->p, l->end, &s, &n))
        return malformed(r, l, name_of(l, i), "is cut off");
    if (d->type == PROTOBUF_C_TYPE_MESSAGE)
        rc = enter_message(r, l, i, start, s, n);
    else if (d->label == PROTOBUF_C_LABEL_REPEATED)
        rc = read_packed(r, l, i, s, n);
    else if (d->type == PROTOBUF_C_TYPE_STRING)
        rc = read_string(r, &l->body->fields[i], name_of(l, i), (uint8_t *)l->plain + l->body->fields[i].offset, s, n);
    else if (d->type == PROTOBUF_C_TYPE_BYTES)
        rc = read_byte_array(r, l, i, s, n);
    else
        rc = read_scalar(r, l, i);
    l->seen |= 1u << i;
    return rc;
}

static int finish_message(struct reader *r, const struct level *l)
{
    for (unsigned i = 0; i < l->body->n_fields; i++)
        if ((l->body->fields[i].flags & MLA_F_REQUIRED) && !(l->seen & 1u << i))
            return mla_refuse(r->err, MLA_INVALID_ARGUMENT, name_of(l, i), l->index, 0, 0, "is required");
    if (!l->body->check)
        return 0;
    int rc = l->body->check(l->plain, l->seen, l->names, r->err);
    /* An element's own check does not know which element it is. */
    if (rc && r->err && r->depth > 1 && r->err->index == 0)
        r->err->index = l->index;
    return rc;
}

int mla_body_decode(const struct mla_body *body, const uint8_t *bytes, size_t n, struct mla_arena *arena, void *plain,
                    struct mla_error *err)
{
    struct reader r = {.depth = 1, .start = bytes, .arena = arena, .err = err};
    r.stack[0] = (struct level){.body = body, .p = bytes, .end = bytes + n, .plain = plain};
    mla_body_init(body, plain);
    while (r.depth > 0) {
        struct level *l = &r.stack[r.depth - 1];
        int rc;
        if (l->p == l->end) {
            rc = finish_message(&r, l);
            r.depth--;
        } else {
            rc = read_field(&r, l);
        }
        if (rc)
            return rc;
    }
    return 0;
}
