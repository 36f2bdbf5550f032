/* libmicrohttpd without threads of its own: its epoll descriptor is one more of the loop's, and its timeout a timer. */
#include "daemon/app/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of one connection, for the request's head; a longer one is answered 431 by the library. */
#define MEMORY_BYTES (8u << 10)

/* It is run at least this often. */
#define LOOK_MS 1000u

#define TEXT_TYPE "text/plain; version=0.0.4; charset=utf-8"

struct http {
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    unsigned n_handles;
    http_text_fn text;
    void *user;
};

bool http_is_built(void)
{
    return true;
}

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *header, const char *value,
                              char *body, size_t bytes, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(bytes, body, mode);
    if (response == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(body);
        return MHD_NO;
    }
    enum MHD_Result r = MHD_add_response_header(response, header, value);
    if (r == MHD_YES)
        r = MHD_queue_response(connection, code, response);
    MHD_destroy_response(response);
    return r;
}

static enum MHD_Result answer_fixed(struct MHD_Connection *connection, unsigned code, const char *header,
                                    const char *value, const char *text)
{
    char copy[64]; /* the library's parameter is not const; it copies this one */
    snprintf(copy, sizeof(copy), "%s\n", text);
    return answer(connection, code, header, value, copy, strlen(copy), MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
                                  const char *version, const char *upload, size_t *upload_bytes, void **state)
{
    struct http *http = user;
    (void)version;
    (void)upload;
    bool get = strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (*state == NULL && get) { /* the head is there; the request has ended when this is called again */
        *state = http;
        return MHD_YES;
    }
    if (!get)
        return answer_fixed(connection, MHD_HTTP_METHOD_NOT_ALLOWED, MHD_HTTP_HEADER_ALLOW, "GET, HEAD",
                            "only GET and HEAD");
    if (*upload_bytes > 0) {
        *upload_bytes = 0; /* a body means nothing here */
        return MHD_YES;
    }
    if (strcmp(url, "/metrics") != 0)
        return answer_fixed(connection, MHD_HTTP_NOT_FOUND, MHD_HTTP_HEADER_CONTENT_TYPE, TEXT_TYPE,
                            "there is nothing but /metrics");
    size_t bytes = 0;
    char *text = http->text(http->user, &bytes);
    if (text == NULL)
        return answer_fixed(connection, MHD_HTTP_SERVICE_UNAVAILABLE, MHD_HTTP_HEADER_CONTENT_TYPE, TEXT_TYPE,
                            "no memory for the metrics");
    return answer(connection, MHD_HTTP_OK, MHD_HTTP_HEADER_CONTENT_TYPE, TEXT_TYPE, text, bytes, MHD_RESPMEM_MUST_FREE);
}

/* ---- the loop ---- */

static void go_on(struct http *http);

static void on_timer(uv_timer_t *timer)
{
    go_on(timer->data);
}

static void on_poll(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    go_on(poll->data);
}

static unsigned connections(struct http *http)
{
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
    return info == NULL ? 0 : info->num_connections;
}

/* What is there to do, and when to look again though nothing comes. At its limit of connections the library stops to
 * listen, and begins again in the run behind the one that ended a connection, which nothing else may ask for. */
static void go_on(struct http *http)
{
    MHD_UNSIGNED_LONG_LONG ms = 0;
    for (unsigned i = 0; i <= HTTP_CONNECTIONS; i++) {
        unsigned before = connections(http);
        MHD_run(http->daemon);
        if (connections(http) >= before)
            break;
    }
    if (MHD_get_timeout(http->daemon, &ms) != MHD_YES || ms > LOOK_MS)
        ms = LOOK_MS;
    uv_timer_start(&http->timer, on_timer, ms, 0);
}

/* ---- beginning and end ---- */

static void no_log(void *user, const char *format, va_list arguments)
{
    (void)user;
    (void)format;
    (void)arguments;
}

static int start(struct http *http, uint16_t port, char *why, size_t why_bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    errno = 0;
    http->daemon = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_USE_ERROR_LOG, port, NULL, NULL, on_request, http, MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL,
        MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY_BYTES, MHD_OPTION_END);
    if (http->daemon == NULL) {
        int error = errno == 0 ? EINVAL : errno;
        snprintf(why, why_bytes, "cannot listen on 127.0.0.1:%u: %s", port, strerror(error));
        return -error;
    }
    return 0;
}

int http_open(struct http **out, uv_loop_t *loop, uint16_t port, http_text_fn text, void *user, char *why,
              size_t why_bytes)
{
    *out = NULL;
    struct http *http = calloc(1, sizeof(*http));
    if (http == NULL) {
        snprintf(why, why_bytes, "no memory for the HTTP endpoint");
        return -ENOMEM;
    }
    http->text = text;
    http->user = user;
    int r = start(http, port, why, why_bytes);
    if (r != 0) {
        free(http);
        return r;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    r = info == NULL ? UV_EINVAL : uv_poll_init(loop, &http->poll, info->epoll_fd);
    if (r != 0) {
        snprintf(why, why_bytes, "cannot watch the HTTP endpoint: %s", uv_strerror(r));
        MHD_stop_daemon(http->daemon);
        free(http);
        return r;
    }
    uv_timer_init(loop, &http->timer);
    http->poll.data = http->timer.data = http;
    http->n_handles = 2;
    uv_poll_start(&http->poll, UV_READABLE, on_poll);
    *out = http;
    return 0;
}

static void on_closed(uv_handle_t *handle)
{
    struct http *http = handle->data;
    if (--http->n_handles == 0)
        free(http);
}

void http_close(struct http *http)
{
    if (http == NULL)
        return;
    /* The poll handle lets go of the descriptor before the library closes it. */
    uv_close((uv_handle_t *)&http->poll, on_closed);
    uv_close((uv_handle_t *)&http->timer, on_closed);
    MHD_stop_daemon(http->daemon);
}
