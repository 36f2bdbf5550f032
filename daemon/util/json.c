#include "daemon/util/json.h"

#include <inttypes.h>
#include <math.h>

static void quote(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fputc(c, out);
    }
    fputc('"', out);
}

static void begin(struct json *j, const char *key)
{
    if (j->filled & UINT64_C(1) << j->depth)
        fputs(", ", j->out);
    j->filled |= UINT64_C(1) << j->depth;
    if (key != NULL) {
        quote(j->out, key);
        fputs(": ", j->out);
    }
}

static void open(struct json *j, const char *key, char bracket)
{
    begin(j, key);
    fputc(bracket, j->out);
    j->depth++;
    j->filled &= ~(UINT64_C(1) << j->depth);
}

void json_init(struct json *j, FILE *out)
{
    *j = (struct json){.out = out};
}

void json_object(struct json *j, const char *key)
{
    open(j, key, '{');
}

void json_array(struct json *j, const char *key)
{
    open(j, key, '[');
}

void json_end(struct json *j)
{
    j->depth--;
    fputc('}', j->out);
}

void json_end_array(struct json *j)
{
    j->depth--;
    fputc(']', j->out);
}

void json_string(struct json *j, const char *key, const char *value)
{
    begin(j, key);
    quote(j->out, value);
}

void json_u64(struct json *j, const char *key, uint64_t value)
{
    begin(j, key);
    fprintf(j->out, "%" PRIu64, value);
}

void json_double(struct json *j, const char *key, double value)
{
    begin(j, key);
    if (isfinite(value))
        fprintf(j->out, "%.15g", value);
    else
        fputs("null", j->out);
}

void json_bool(struct json *j, const char *key, bool value)
{
    begin(j, key);
    fputs(value ? "true" : "false", j->out);
}
