/* Connecting and greeting; the handle's life. */
#include "client/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/util/clock.h"

#include "client/watch.h"

#define DEFAULT_SOCKET "/run/mlad/mlad.sock"
#define RETRY_FIRST_US 500
#define RETRY_LAST_US  20000
#define KNOWN_FEATURES                                                                                                 \
    (MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_CUDA_IPC | MLA_FEATURE_CUDA_VMM | MLA_FEATURE_SYNC |         \
     MLA_FEATURE_SUSPEND | MLA_FEATURE_PUBLISH)
#define STRINGIFY(x)     #x
#define VERSION(a, b, c) STRINGIFY(a) "." STRINGIFY(b) "." STRINGIFY(c)

const char *mla_version(void)
{
    return VERSION(MLA_VERSION_MAJOR, MLA_VERSION_MINOR, MLA_VERSION_PATCH);
}

const struct mla_server_info *mla_server(const struct mla_client *client)
{
    return client ? &client->server : NULL;
}

void mlac_destroy(struct mla_client *c)
{
    mlac_hang_up(c);
    mlac_watch_stop(c->core.watch);
    c->core.watch = NULL;
    mlac_template_orphan(c);
    mlac_sync_orphan(c);
    if (c->epoll >= 0)
        close(c->epoll);
    if (c->wake >= 0)
        close(c->wake);
    if (c->timer >= 0)
        close(c->timer);
    mlac_core_free(&c->core);
    mlac_ledger_free(&c->ledger);
    free(c);
}

enum mla_status mlac_system_error(struct mla_client *c, int why, const char *what)
{
    char name[64];
    const char *text = strerror_r(why, name, sizeof(name));
    mlac_fail(c, why == ENOMEM ? MLA_OUT_OF_MEMORY : MLA_SYSTEM_ERROR, NULL, "%s: %s", what, text);
    c->error.value = (uint64_t)why;
    return c->error.status;
}

static struct mla_client *create(const struct mla_options *o)
{
    struct mla_client *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->sock = c->epoll = c->wake = c->timer = -1;
    c->timer_ns = c->expire_ns = UINT64_MAX;
    mlac_ledger_init(&c->ledger, 0);
    c->on_event = o->on_event;
    c->spin_ns = (o->spin_us < MLA_NS_PER_S ? o->spin_us : MLA_NS_PER_S) * MLA_NS_PER_US;
    c->user = o->user;
    list_init(&c->syncs);
    size_t max_send = o->max_send_bytes > SIZE_MAX / 4 ? SIZE_MAX / 4 : (size_t)o->max_send_bytes;
    mlac_core_init(&c->core, max_send, o->on_event != NULL);
    return c;
}

static enum mla_status create_fds(struct mla_client *c)
{
    struct epoll_event ev = {.events = EPOLLIN};
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll < 0)
        return mlac_system_error(c, errno, "epoll_create1");
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->wake < 0)
        return mlac_system_error(c, errno, "eventfd");
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->wake, &ev) || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->sock, &ev))
        return mlac_system_error(c, errno, "epoll_ctl");
    return MLA_OK;
}

/* ---- connecting ---- */

static void pause_us(uint64_t us)
{
    const struct timespec ts = {.tv_sec = 0, .tv_nsec = (long)(us * MLA_NS_PER_US)};
    nanosleep(&ts, NULL);
}

/* A Unix socket connects at once or not at all: EAGAIN means that the daemon's backlog is full. 0 or -errno. */
int mlac_connect(struct mla_client *c)
{
    c->sock = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->sock < 0)
        return -errno;
    if (connect(c->sock, (const struct sockaddr *)&c->address, sizeof(c->address)) == 0)
        return 0;
    int rc = -errno;
    close(c->sock);
    c->sock = -1;
    return rc;
}

static enum mla_status connect_failed(struct mla_client *c, int why, const char *path)
{
    switch (why) {
    case ENOENT:
    case ECONNREFUSED:
        mlac_fail(c, MLA_DISCONNECTED, "socket_path", "no daemon listens at %s", path);
        break;
    case EACCES:
    case EPERM:
        mlac_fail(c, MLA_PERMISSION_DENIED, "socket_path", "this user may not connect to %s", path);
        break;
    default:
        return mlac_system_error(c, why, "connect");
    }
    c->error.value = (uint64_t)why;
    return c->error.status;
}

static enum mla_status connect_to(struct mla_client *c, const char *path, bool wait, uint64_t deadline_ns)
{
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof(c->address.sun_path)) {
        mlac_fail(c, MLA_INVALID_ARGUMENT, "socket_path", "a socket's path has 1 to %zu bytes",
                  sizeof(c->address.sun_path) - 1);
        c->error.value = n;
        c->error.limit = sizeof(c->address.sun_path) - 1;
        return c->error.status;
    }
    c->address.sun_family = AF_UNIX;
    memcpy(c->address.sun_path, path, n);
    for (uint64_t nap_us = RETRY_FIRST_US;; nap_us = nap_us * 2 < RETRY_LAST_US ? nap_us * 2 : RETRY_LAST_US) {
        int rc = mlac_connect(c);
        if (!rc)
            return MLA_OK;
        bool absent = rc == -ENOENT || rc == -ECONNREFUSED;
        if (rc != -EAGAIN && rc != -EINTR && !(wait && absent))
            return connect_failed(c, -rc, path);
        uint64_t now = mla_now_ns();
        if (now >= deadline_ns)
            return mlac_fail(c, MLA_TIMED_OUT, NULL, "%s at %s",
                             absent ? "no daemon listens" : "the daemon does not accept", path);
        uint64_t left_us = (deadline_ns - now) / MLA_NS_PER_US + 1;
        pause_us(nap_us < left_us ? nap_us : left_us);
    }
}

/* ---- greeting ---- */

/* The program's name, as far as it is printable ASCII. */
static void default_name(char out[MLA_MAX_NAME_BYTES + 1])
{
    const char *name = program_invocation_short_name;
    size_t n = 0;
    for (; name[n] && n < MLA_MAX_NAME_BYTES; n++)
        out[n] = (char)(name[n] > ' ' && name[n] <= '~' ? name[n] : '_');
    out[n] = '\0';
}

static void keep_server(struct mla_client *c, const struct mla_hello_reply *hello)
{
    snprintf(c->version, sizeof(c->version), "%s", hello->version);
    snprintf(c->backend, sizeof(c->backend), "%s", hello->backend);
    snprintf(c->gpu_uuid, sizeof(c->gpu_uuid), "%s", hello->gpu_uuid);
    snprintf(c->isolation, sizeof(c->isolation), "%s", hello->isolation);
    c->server = (struct mla_server_info){
        .protocol_major = hello->major,
        .protocol_minor = hello->minor,
        .features = hello->features,
        .boot_nonce = hello->boot_nonce,
        .client_id = hello->client_id,
        .version = c->version,
        .backend = c->backend,
        .gpu_uuid = c->gpu_uuid,
        .isolation = c->isolation,
        .max_regions = hello->limits.max_regions,
        .max_mapped_bytes = hello->limits.max_mapped_bytes,
        .max_jobs_in_flight = hello->limits.max_jobs_in_flight,
        .max_queued_bytes = hello->limits.max_queued_bytes,
        .max_table_sets = hello->limits.max_table_sets,
        .max_caches = hello->limits.max_caches,
        .max_body_bytes = hello->limits.max_body_bytes,
    };
}

void mlac_hello(const struct mla_client *c, struct mla_message *msg)
{
    mla_message_init(msg, MLA_MSG_HELLO);
    msg->hello.minor = MLA_PROTO_MINOR;
    msg->hello.features = KNOWN_FEATURES;
    msg->hello.client_name = c->name;
    msg->hello.pid_hint = (uint32_t)getpid();
    msg->hello.gpu_uuid = c->want_gpu[0] ? c->want_gpu : NULL;
}

enum mla_status mlac_greeted(struct mla_client *c, const struct mla_hello_reply *hello)
{
    keep_server(c, hello);
    uint64_t missing = c->want_features & ~c->server.features;
    if (missing) {
        mlac_fail(c, MLA_UNSUPPORTED, "features", "the daemon does not offer what the client needs");
        c->error.value = c->want_features;
        c->error.limit = c->server.features;
        return MLA_UNSUPPORTED;
    }
    return MLA_OK;
}

/* What HELLO says, now and after a reconnect. */
static enum mla_status keep_wishes(struct mla_client *c, const struct mla_options *o)
{
    if (o->name && strlen(o->name) > MLA_MAX_NAME_BYTES)
        return mlac_fail(c, MLA_INVALID_ARGUMENT, "name", "a name has at most %u bytes", MLA_MAX_NAME_BYTES);
    if (o->gpu_uuid && strlen(o->gpu_uuid) > MLA_MAX_NAME_BYTES)
        return mlac_fail(c, MLA_INVALID_ARGUMENT, "gpu_uuid", "a UUID has at most %u bytes", MLA_MAX_NAME_BYTES);
    default_name(c->name);
    if (o->name)
        snprintf(c->name, sizeof(c->name), "%s", o->name);
    if (o->gpu_uuid)
        snprintf(c->want_gpu, sizeof(c->want_gpu), "%s", o->gpu_uuid);
    c->want_features = o->features;
    return MLA_OK;
}

static enum mla_status greet(struct mla_client *c, uint64_t deadline_ns)
{
    struct mla_message msg;
    mlac_hello(c, &msg);
    const struct mla_message *reply;
    enum mla_status status = mlac_call(c, &msg, NULL, 0, 0, mlac_left_us(deadline_ns), &reply);
    if (status == MLA_PENDING)
        return mlac_fail(c, MLA_TIMED_OUT, NULL, "nobody answers at the socket yet: the daemon is starting, or hangs");
    if (status != MLA_OK)
        return status;
    return mlac_greeted(c, &reply->hello_reply);
}

static enum mla_status start_recovery(struct mla_client *c, uint64_t limit_us)
{
    struct epoll_event ev = {.events = EPOLLIN};
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (c->timer < 0)
        return mlac_system_error(c, errno, "timerfd_create");
    if (epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->timer, &ev))
        return mlac_system_error(c, errno, "epoll_ctl");
    mlac_recover_begin(c, limit_us);
    return MLA_OK;
}

static enum mla_status open_with(struct mla_client *c, const struct mla_options *o)
{
    const char *path = o->socket_path ? o->socket_path : getenv("MLAD_SOCKET");
    uint64_t deadline_ns = mlac_deadline(o->timeout_us);
    if (o->flags & ~(uint32_t)MLA_OPEN_WAIT)
        return mlac_fail(c, MLA_INVALID_ARGUMENT, "flags", "unknown flags");
    enum mla_status status = keep_wishes(c, o);
    if (status == MLA_OK)
        status = connect_to(c, path && *path ? path : DEFAULT_SOCKET, o->flags & MLA_OPEN_WAIT, deadline_ns);
    if (status == MLA_OK)
        status = create_fds(c);
    if (status == MLA_OK)
        status = greet(c, deadline_ns);
    if (status == MLA_OK && o->recover_us)
        status = start_recovery(c, o->recover_us);
    return status;
}

enum mla_status mla_open(const struct mla_options *options, struct mla_client **out, struct mla_error_info *error)
{
    struct mla_error_info nowhere;
    struct mla_error_info *e = error ? error : &nowhere;
    struct mla_options o;
    mla_options_init(&o);
    memset(e, 0, sizeof(*e));
    if (!out || (options && mlac_copy_in(&o, sizeof(o), options, MLAC_LEAST(struct mla_options, user)))) {
        const struct mla_error bad = {.code = MLA_INVALID_ARGUMENT, .field = out ? "size" : "out"};
        mlac_error_info(e, &bad);
        return MLA_INVALID_ARGUMENT;
    }
    *out = NULL;
    /* A program that was built before the library came back by itself: its header said that it does not. */
    if (options && options->size < MLAC_LEAST(struct mla_options, recover_us))
        o.recover_us = 0;
    struct mla_client *c = create(&o);
    if (!c) {
        const struct mla_error bad = {.code = MLA_OUT_OF_MEMORY};
        mlac_error_info(e, &bad);
        return MLA_OUT_OF_MEMORY;
    }
    enum mla_status status = open_with(c, &o);
    if (status == MLA_OK) {
        *out = c;
        return MLA_OK;
    }
    *e = c->error;
    mlac_destroy(c);
    return status;
}
