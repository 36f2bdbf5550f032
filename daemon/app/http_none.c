#include "daemon/app/http.h"

#include <errno.h>
#include <stdio.h>

bool http_is_built(void)
{
    return false;
}

int http_open(struct http **out, uv_loop_t *loop, uint16_t port, http_text_fn text, void *user, char *why,
              size_t why_bytes)
{
    (void)loop;
    (void)port;
    (void)text;
    (void)user;
    *out = NULL;
    snprintf(why, why_bytes, "this build has no HTTP endpoint");
    return -ENOTSUP;
}

void http_close(struct http *http)
{
    (void)http;
}
