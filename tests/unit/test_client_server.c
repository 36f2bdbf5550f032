#include "tests/unit/test_client_server.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define IN_CAP    (MLA_CAP_TABLE_BYTES + MLA_WIRE_HEADER_BYTES)
#define FRAME_CAP (1u << 20)

/* ---- sending ---- */

void fake_bytes(struct fake_conn *conn, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    pthread_mutex_lock(&conn->write_lock);
    while (n) {
        ssize_t sent = send(conn->fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0 && errno != EINTR)
            break;
        if (sent > 0) {
            p += sent;
            n -= (size_t)sent;
        }
    }
    pthread_mutex_unlock(&conn->write_lock);
}

void fake_send(struct fake_conn *conn, const struct mla_message *msg, uint64_t id)
{
    uint8_t *frame = malloc(FRAME_CAP);
    size_t n = 0;
    ck_assert_int_eq(mla_codec_encode(msg, frame + MLA_WIRE_HEADER_BYTES, FRAME_CAP - MLA_WIRE_HEADER_BYTES, &n), 0);
    const struct mla_frame_header h = {
        .major = MLA_PROTO_MAJOR, .type = msg->type, .body_len = (uint32_t)n, .request_id = id};
    mla_wire_pack(&h, frame);
    fake_bytes(conn, frame, MLA_WIRE_HEADER_BYTES + n);
    free(frame);
}

void fake_refuse(struct fake_conn *conn, uint16_t request_type, uint64_t id, const struct mla_error *err)
{
    struct mla_message msg;
    mla_message_init(&msg, request_type | MLA_REPLY);
    msg.reply.status = *err;
    fake_send(conn, &msg, id);
}

void fake_hang_up(struct fake_conn *conn)
{
    shutdown(conn->fd, SHUT_RDWR);
}

/* ---- answers ---- */

static uint64_t new_object(struct fake *f)
{
    pthread_mutex_lock(&f->lock);
    uint64_t id = ++f->next_object;
    pthread_mutex_unlock(&f->lock);
    return id;
}

static void answer_hello(struct mla_message *m)
{
    m->hello_reply.major = MLA_PROTO_MAJOR;
    m->hello_reply.minor = MLA_PROTO_MINOR;
    m->hello_reply.features = MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_SYNC | MLA_FEATURE_PUBLISH;
    m->hello_reply.boot_nonce = 0xb007;
    m->hello_reply.gpu_uuid = "CPU-fake";
    m->hello_reply.backend = "cpu";
    m->hello_reply.version = "9.8.7";
    m->hello_reply.client_id = 77;
    m->hello_reply.isolation = "host";
    m->hello_reply.limits.present = true;
    m->hello_reply.limits.max_regions = 11;
    m->hello_reply.limits.max_jobs_in_flight = 12;
}

static void answer_metrics(struct mla_message *m)
{
    static const struct mla_sample requests[] = {{"", "outcome=\"ok\"", 3.0}, {"", "outcome=\"refused\"", 0.5}};
    static const struct mla_metric metrics[] = {
        {"mlad_requests_total", "Requests.", MLA_METRIC_COUNTER, requests, 2},
        {"mlad_nothing", "", MLA_METRIC_GAUGE, NULL, 0},
    };
    m->metrics_reply.metrics = metrics;
    m->metrics_reply.n_metrics = 2;
}

static void answer_status(struct mla_message *m, enum mla_status_what what)
{
    static const struct mla_client_status clients[] = {
        {.client_id = 5, .name = "one", .pid = 50, .jobs_answered = 8, .weight = 3},
        {.client_id = 6, .name = "two", .uid = 60}};
    static const struct mla_cache_status caches[] = {{.name = "kv", .owner = 5, .num_pages = 9, .label = "layer"}};
    if (what == MLA_STATUS_CLIENTS) {
        m->status_reply.clients = clients;
        m->status_reply.n_clients = 2;
    } else if (what == MLA_STATUS_CACHES) {
        m->status_reply.caches = caches;
        m->status_reply.n_caches = 1;
    } else {
        m->status_reply.daemon = (struct mla_daemon_status){.present = true,
                                                            .version = "9.8.7",
                                                            .backend = "cpu",
                                                            .device_name = "a CPU",
                                                            .health = MLA_HEALTH_READY,
                                                            .clients = 2,
                                                            .units = 4,
                                                            .device_memory_bytes = UINT64_C(5) << 32};
    }
}

void fake_answer(struct fake_conn *conn, const struct mla_message *request, uint64_t id)
{
    struct mla_message m;
    mla_message_init(&m, request->type | MLA_REPLY);
    switch (request->type) {
    case MLA_MSG_HELLO:
        answer_hello(&m);
        break;
    case MLA_MSG_REGISTER_REGION:
        m.register_region_reply.region = new_object(conn->f);
        break;
    case MLA_MSG_REGISTER_SYNC:
        m.register_sync_reply.region = new_object(conn->f);
        break;
    case MLA_MSG_DEFINE_CACHE:
        m.define_cache_reply.cache = new_object(conn->f);
        break;
    case MLA_MSG_ATTACH_CACHE:
        m.attach_cache_reply = (struct mla_attach_cache_reply){.cache = new_object(conn->f),
                                                               .num_pages = 1000,
                                                               .planes = 3,
                                                               .tokens_per_entry = 128,
                                                               .layout = MLA_CACHE_E4M3_576};
        break;
    case MLA_MSG_DECODE:
        m.decode_reply.timing = (struct mla_timing){.present = true, .wait_us = 1, .queue_us = 2, .run_us = 3};
        m.decode_reply.batch = 4;
        m.decode_reply.batch_jobs = 5;
        m.decode_reply.tiles = request->decode.heads;
        m.decode_reply.items = 7;
        m.decode_reply.splits = 8;
        break;
    case MLA_MSG_HEALTH:
        m.health_reply.state = MLA_HEALTH_DEGRADED;
        m.health_reply.reason = "tired";
        m.health_reply.uptime_us = 123;
        m.health_reply.version = "9.8.7";
        break;
    case MLA_MSG_METRICS:
        answer_metrics(&m);
        break;
    case MLA_MSG_STATUS:
        answer_status(&m, request->status.what);
        break;
    case MLA_MSG_DRAIN:
        m.drain_reply.jobs_in_flight = request->drain.has_deadline_us ? request->drain.deadline_us : 4242;
        break;
    default:
        break;
    }
    fake_send(conn, &m, id);
}

/* ---- receiving ---- */

static void note(struct fake_conn *conn, const struct mla_message *m)
{
    struct fake *f = conn->f;
    pthread_mutex_lock(&f->lock);
    f->n_seen[m->type]++;
    if (m->type == MLA_MSG_UNREGISTER_REGION)
        f->last_object = m->unregister_region.region;
    else if (m->type == MLA_MSG_DROP_CACHE)
        f->last_object = m->drop_cache.cache;
    else if (m->type == MLA_MSG_DETACH_CACHE)
        f->last_object = m->detach_cache.cache;
    else if (m->type == MLA_MSG_CANCEL)
        f->last_object = m->cancel.request_id;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

static void handle_frame(struct fake_conn *conn, const struct mla_frame_header *h, const uint8_t *body)
{
    struct mla_message m;
    struct mla_arena arena;
    struct mla_error err = {0};
    size_t room = h->body_len + MLA_CODEC_SLACK_BYTES;
    void *bytes = malloc(room);
    mla_arena_init(&arena, bytes, room);
    int rc = mla_codec_decode(h->type, body, h->body_len, &arena, &m, &err);
    if (rc) {
        fake_refuse(conn, h->type, h->request_id, &err);
    } else {
        note(conn, &m);
        if (!conn->f->handler || !conn->f->handler(conn, &m, h->request_id, conn->f->user))
            fake_answer(conn, &m, h->request_id);
    }
    free(bytes);
}

/* Handles the whole frames in conn->in. */
static void handle_input(struct fake_conn *conn)
{
    struct mla_frame_header h;
    size_t at = 0;
    while (conn->in_len - at >= MLA_WIRE_HEADER_BYTES) {
        ck_assert_int_eq(mla_wire_unpack(conn->in + at, &h), 0);
        ck_assert_uint_le(h.body_len, mla_wire_body_cap(h.type));
        if (conn->in_len - at < MLA_WIRE_HEADER_BYTES + h.body_len)
            break;
        handle_frame(conn, &h, conn->in + at + MLA_WIRE_HEADER_BYTES);
        at += MLA_WIRE_HEADER_BYTES + h.body_len;
    }
    memmove(conn->in, conn->in + at, conn->in_len - at);
    conn->in_len -= at;
}

static ssize_t receive(struct fake_conn *conn)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * MLA_MAX_FDS_PER_FRAME)];
    } control;
    struct iovec iov = {.iov_base = conn->in + conn->in_len, .iov_len = IN_CAP - conn->in_len};
    struct msghdr mh = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    ssize_t n = recvmsg(conn->fd, &mh, MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n;
    for (struct cmsghdr *cm = CMSG_FIRSTHDR(&mh); cm; cm = CMSG_NXTHDR(&mh, cm)) {
        size_t n_fds = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n_fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
            close(fd);
        }
        pthread_mutex_lock(&conn->f->lock);
        conn->f->n_fds += (unsigned)n_fds;
        pthread_mutex_unlock(&conn->f->lock);
    }
    return n;
}

static void *serve(void *arg)
{
    struct fake_conn *conn = arg;
    ssize_t n;
    while ((n = receive(conn)) > 0) {
        conn->in_len += (size_t)n;
        handle_input(conn);
    }
    shutdown(conn->fd, SHUT_RDWR);
    return NULL;
}

static void *accept_all(void *arg)
{
    struct fake *f = arg;
    int fd;
    while ((fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        struct fake_conn *conn = calloc(1, sizeof(*conn));
        conn->f = f;
        conn->fd = fd;
        conn->in = malloc(IN_CAP);
        pthread_mutex_init(&conn->write_lock, NULL);
        pthread_mutex_lock(&f->lock);
        conn->next = f->conns;
        f->conns = conn;
        pthread_mutex_unlock(&f->lock);
        ck_assert_int_eq(pthread_create(&conn->thread, NULL, serve, conn), 0);
    }
    return NULL;
}

/* ---- life ---- */

struct fake *fake_start(fake_handler handler, void *user)
{
    struct fake *f = calloc(1, sizeof(*f));
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    f->handler = handler;
    f->user = user;
    f->next_object = 1000;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    snprintf(f->dir, sizeof(f->dir), "/tmp/mla-client-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(f->dir));
    snprintf(f->path, sizeof(f->path), "%s/s", f->dir);
    snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(f->listener, (struct sockaddr *)&sa, sizeof(sa)), 0);
    ck_assert_int_eq(listen(f->listener, 64), 0);
    ck_assert_int_eq(pthread_create(&f->acceptor, NULL, accept_all, f), 0);
    return f;
}

void fake_stop(struct fake *f)
{
    shutdown(f->listener, SHUT_RDWR);
    pthread_join(f->acceptor, NULL);
    close(f->listener);
    for (struct fake_conn *conn = f->conns, *next; conn; conn = next) {
        next = conn->next;
        fake_hang_up(conn);
        pthread_join(conn->thread, NULL);
        close(conn->fd);
        pthread_mutex_destroy(&conn->write_lock);
        free(conn->in);
        free(conn);
    }
    unlink(f->path);
    rmdir(f->dir);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

struct mla_options fake_options(const struct fake *f)
{
    struct mla_options o;
    mla_options_init(&o);
    o.recover_us = 0; /* tests of recovery ask for it */
    o.socket_path = f->path;
    o.timeout_us = 10000000;
    return o;
}

struct mla_client *fake_open(const struct fake *f)
{
    struct mla_options o = fake_options(f);
    struct mla_client *c = NULL;
    struct mla_error_info e;
    ck_assert_msg(mla_open(&o, &c, &e) == MLA_OK, "%s", e.text);
    return c;
}

struct fake_conn *fake_conn_of(struct fake *f)
{
    pthread_mutex_lock(&f->lock);
    struct fake_conn *conn = f->conns;
    pthread_mutex_unlock(&f->lock);
    return conn;
}

/* ---- holding ---- */

void fake_hold(struct fake_conn *conn, const struct mla_message *request, uint64_t id)
{
    struct fake *f = conn->f;
    pthread_mutex_lock(&f->lock);
    ck_assert_uint_lt(f->n_held, FAKE_HELD_MAX);
    f->held[f->n_held++] = (struct fake_held){.conn = conn, .id = id, .type = request->type};
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}

void fake_answer_held(struct fake *f, size_t index)
{
    pthread_mutex_lock(&f->lock);
    ck_assert_uint_lt(index, f->n_held);
    struct fake_held held = f->held[index];
    pthread_mutex_unlock(&f->lock);
    struct mla_message m;
    mla_message_init(&m, held.type | MLA_REPLY);
    if (held.type == MLA_MSG_DECODE)
        m.decode_reply.batch = index;
    if (held.type == MLA_MSG_REGISTER_REGION)
        m.register_region_reply.region = new_object(f);
    if (held.type == MLA_MSG_DEFINE_CACHE)
        m.define_cache_reply.cache = new_object(f);
    fake_send(held.conn, &m, held.id);
}

static void await(struct fake *f, const char *what, bool (*there)(const struct fake *, uint16_t, size_t), uint16_t type,
                  size_t n)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    pthread_mutex_lock(&f->lock);
    while (!there(f, type, n))
        if (pthread_cond_timedwait(&f->changed, &f->lock, &until))
            ck_abort_msg("the server has not %s %zu of type 0x%x", what, n, type);
    pthread_mutex_unlock(&f->lock);
}

static bool has_seen(const struct fake *f, uint16_t type, size_t n)
{
    return f->n_seen[type] >= n;
}

static bool has_held(const struct fake *f, uint16_t type, size_t n)
{
    (void)type;
    return f->n_held >= n;
}

void fake_await_seen(struct fake *f, uint16_t type, unsigned n)
{
    await(f, "seen", has_seen, type, n);
}

void fake_await_held(struct fake *f, size_t n)
{
    await(f, "held", has_held, 0, n);
}

bool fake_hold_decodes(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    (void)user;
    if (request->type != MLA_MSG_DECODE)
        return false;
    fake_hold(conn, request, id);
    return true;
}

unsigned fake_open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    unsigned n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}
