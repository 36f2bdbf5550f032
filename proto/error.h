/* A refusal on its way to a peer: what mla.proto calls Status, as a plain value without ownership. */
#ifndef MLA_PROTO_ERROR_H
#define MLA_PROTO_ERROR_H

#include <stdint.h>

#include "proto/limits.h"
#include "proto/status.h"

struct mla_error {
    enum mla_status code;
    const char *field; /* static string as written in mla.proto ("q.offset"), or NULL */
    uint64_t index;    /* element of a repeated field, or sequence */
    uint64_t value;    /* what was sent */
    uint64_t limit;    /* what would have been allowed */
    uint64_t retry_after_us;
    char text[MLA_MAX_TEXT_BYTES]; /* one sentence for a person; "" when there is none */
};

/* Fills *err (may be NULL) with code, field and a printf-style text; other members become 0. Returns code, so that
 * "return mla_error_set(...)" works where positive results are refusals. */
enum mla_status mla_error_set(struct mla_error *err, enum mla_status code, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* "INVALID_ARGUMENT" and "a field is missing, ..."; "UNKNOWN" for numbers not in the list. Static storage. */
const char *mla_status_name(enum mla_status code);
const char *mla_status_text(enum mla_status code);

#endif
