#include "proto/text.h"

#include <string.h>

size_t mla_text_char(const uint8_t *s, size_t n)
{
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f ? 1 : 0;

    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || len > n)
        return 0;
    uint32_t c = s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (s[i] & 0x3fu);
    }
    static const uint32_t smallest[5] = {0, 0, 0xa0, 0x800, 0x10000}; /* 0x80..0x9f are the C1 controls */
    if (c < smallest[len] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return 0;
    return len;
}

size_t mla_text_span(const uint8_t *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        size_t len = mla_text_char(s + i, n - i);
        if (len == 0)
            break;
        i += len;
    }
    return i;
}

void mla_text_clean(char *s)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n;) {
        size_t len = mla_text_char((const uint8_t *)s + i, n - i);
        if (len == 0)
            s[i] = '?';
        i += len ? len : 1;
    }
}
