#include <stdarg.h>
#include <stdio.h>

#include "proto/error.h"
#include "proto/text.h"

enum mla_status mla_error_set(struct mla_error *err, enum mla_status code, const char *field, const char *fmt, ...)
{
    if (!err)
        return code;
    *err = (struct mla_error){.code = code, .field = field};
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(err->text, sizeof(err->text), fmt, ap);
        va_end(ap);
        /* It may quote a peer's bytes or be cut inside a character; the receiving codec would refuse that. */
        mla_text_clean(err->text);
    }
    return code;
}

const char *mla_status_name(enum mla_status code)
{
    switch (code) {
#define CASE(name, number, text)                                                                                       \
    case MLA_##name:                                                                                                   \
        return #name;
        MLA_STATUS_LIST(CASE)
#undef CASE
    }
    return "UNKNOWN";
}

const char *mla_status_text(enum mla_status code)
{
    switch (code) {
#define CASE(name, number, text)                                                                                       \
    case MLA_##name:                                                                                                   \
        return text;
        MLA_STATUS_LIST(CASE)
#undef CASE
    }
    return "a status this version does not know";
}
