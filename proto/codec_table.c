/* Holds the tables against the descriptors: what the compiler cannot check, the unit tests ask for once. */
#include "proto/codec_table.h"

#include <stdio.h>
#include <string.h>

static char fault[160];

static const char *fault_at(const struct mla_body *b, unsigned i, const char *what)
{
    snprintf(fault, sizeof(fault), "%s, field %u: %s", b->schema->name, i + 1, what);
    return fault;
}

static size_t plain_size(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(bool);
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return 4;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    case PROTOBUF_C_TYPE_STRING:
        return sizeof(char *);
    case PROTOBUF_C_TYPE_BYTES:
        return 1;
    default:
        return 0; /* a type that the codec does not handle */
    }
}

static const char *field_fault(const struct mla_body *b, unsigned i)
{
    const struct mla_field *f = &b->fields[i];
    const ProtobufCFieldDescriptor *d = &b->schema->fields[i];
    const bool message = d->type == PROTOBUF_C_TYPE_MESSAGE;
    const bool repeated = d->label == PROTOBUF_C_LABEL_REPEATED;

    if (d->id != i + 1)
        return fault_at(b, i, "fields are not numbered from 1 without gaps");
    if (strcmp(d->name, f->name) != 0)
        return fault_at(b, i, "the table has another name");
    if (message != (f->sub != NULL) || (message && f->sub->schema != d->descriptor))
        return fault_at(b, i, "the table has another message");
    if (d->label == PROTOBUF_C_LABEL_REQUIRED)
        return fault_at(b, i, "is required in the schema");
    if (repeated && !message && !(d->flags & PROTOBUF_C_FIELD_FLAG_PACKED))
        return fault_at(b, i, "is repeated and not packed");
    if (repeated && !message && d->type != PROTOBUF_C_TYPE_FIXED32 && d->type != PROTOBUF_C_TYPE_UINT32 &&
        d->type != PROTOBUF_C_TYPE_UINT64)
        return fault_at(b, i, "is packed of a type that the codec does not handle");
    if (!(f->flags & MLA_F_INLINE) && f->size != (message ? f->sub->size : plain_size(d->type)))
        return fault_at(b, i, "the member has the wrong size");
    if (f->offset + (repeated ? sizeof(void *) : f->size) > b->size)
        return fault_at(b, i, "the member lies outside its struct");
    if ((repeated || d->type == PROTOBUF_C_TYPE_BYTES || (f->flags & MLA_F_HAS)) && f->aux == f->offset)
        return fault_at(b, i, "has no count");
    if ((d->type == PROTOBUF_C_TYPE_STRING && !(f->flags & MLA_F_INLINE) && b != &mla_body_status) !=
        ((f->flags & MLA_F_TEXT) != 0))
        return fault_at(b, i, "the table does not say whether it is a text");
    if (d->type == PROTOBUF_C_TYPE_STRING && f->max == 0)
        return fault_at(b, i, "a string without a longest length");
    if (repeated && message && f->count_max == 0)
        return fault_at(b, i, "repeated messages without a largest count");
    if (f->multiple & (f->multiple - 1))
        return fault_at(b, i, "multiple is no power of two");
    return NULL;
}

/* Tables below b are visited level by level; depth counts what is nested, so it also ends on a cycle. */
static const char *body_fault(const struct mla_body *b)
{
    const struct mla_body *now[64] = {b}, *next[64];
    size_t n_now = 1;
    for (unsigned depth = 1; n_now > 0; depth++) {
        size_t n_next = 0;
        if (depth > MLA_DEPTH_MAX)
            return fault_at(b, 0, "is nested deeper than the decoder's stack");
        for (size_t k = 0; k < n_now; k++) {
            if (now[k]->n_fields != now[k]->schema->n_fields || now[k]->n_fields > MLA_FIELDS_MAX)
                return fault_at(now[k], now[k]->n_fields, "the table has another number of fields");
            for (unsigned i = 0; i < now[k]->n_fields; i++) {
                const char *what = field_fault(now[k], i);
                if (what)
                    return what;
                if (now[k]->fields[i].sub && n_next == 64)
                    return fault_at(b, i, "has too many messages in it");
                if (now[k]->fields[i].sub)
                    next[n_next++] = now[k]->fields[i].sub;
            }
        }
        memcpy(now, next, n_next * sizeof(next[0]));
        n_now = n_next;
    }
    return NULL;
}

const char *mla_body_tables_fault(void)
{
    static const struct mla_body *const bodies[] = {
#define BODY(name, number, body, cap) &mla_body_##body##_request, &mla_body_##body##_reply,
        MLA_REQUEST_LIST(BODY)
#undef BODY
#define BODY(name, number, body, cap) &mla_body_##body,
            MLA_NOTICE_LIST(BODY)
#undef BODY
    };
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        const char *what = body_fault(bodies[i]);
        if (what)
            return what;
    }
    return NULL;
}
