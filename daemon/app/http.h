/* An HTTP endpoint for Prometheus, on 127.0.0.1: GET /metrics is what METRICS of the socket says, as text. Off unless
 * daemon.http_port names a port. Everything happens on the loop's thread; at most HTTP_CONNECTIONS at a time, each of
 * them cut after HTTP_IDLE_S without a byte. http.c is it, http_none.c stands for it in builds without it. */
#ifndef MLA_DAEMON_APP_HTTP_H
#define MLA_DAEMON_APP_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#define HTTP_CONNECTIONS 8u
#define HTTP_IDLE_S      5u

struct http;

/* The text of the metrics, malloc'd, or NULL when memory is out. */
typedef char *(*http_text_fn)(void *user, size_t *bytes);

/* Whether this build has it. */
bool http_is_built(void);

/* Listens. 0, or -errno with a sentence in why. */
int http_open(struct http **out, uv_loop_t *loop, uint16_t port, http_text_fn text, void *user, char *why,
              size_t why_bytes);

/* Ends all connections; its handles are closed by the loop, which frees the rest. NULL is fine. */
void http_close(struct http *http);

#endif
