/* Writes JSON to a stream, with the commas and escapes right. Keys are NULL inside arrays. Nesting up to 32 levels;
 * numbers that JSON does not know (NaN, infinities) become null. Not thread safe. */
#ifndef MLA_UTIL_JSON_H
#define MLA_UTIL_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
    FILE *out;
    unsigned depth;
    uint64_t filled; /* bit per level: something stands before */
};

void json_init(struct json *j, FILE *out);
void json_object(struct json *j, const char *key); /* ... json_end */
void json_array(struct json *j, const char *key);  /* ... json_end_array */
void json_end(struct json *j);
void json_end_array(struct json *j);
void json_string(struct json *j, const char *key, const char *value);
void json_u64(struct json *j, const char *key, uint64_t value);
void json_double(struct json *j, const char *key, double value); /* 15 significant digits */
void json_bool(struct json *j, const char *key, bool value);

#endif
