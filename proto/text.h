/* What may stand in the strings of a message: no control characters, so that a log or a terminal can show them. */
#ifndef MLA_PROTO_TEXT_H
#define MLA_PROTO_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the one character at s (n bytes left): 1..4, or 0 when it is no valid UTF-8, a C0 or C1 control or DEL. */
size_t mla_text_char(const uint8_t *s, size_t n);

/* n when all n bytes are such characters, else the position of the first that is not. */
size_t mla_text_span(const uint8_t *s, size_t n);

/* Puts '?' for every byte that does not belong to such a character, in place. */
void mla_text_clean(char *s);

#endif
