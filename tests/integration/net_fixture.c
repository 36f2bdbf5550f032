#include "tests/integration/net_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/util/clock.h"
#include "daemon/util/log.h"

#define PATIENCE_NS (10 * MLA_NS_PER_S)

struct net_fixture fx;

static bool on_hello(void *app, const struct net_request *request)
{
    ck_assert_ptr_eq(app, &fx);
    ck_assert_uint_eq(request->message->type, MLA_MSG_HELLO);
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_HELLO | MLA_REPLY);
    reply.hello_reply.major = MLA_PROTO_MAJOR;
    reply.hello_reply.boot_nonce = 1;
    reply.hello_reply.client_id = 1;
    reply.hello_reply.gpu_uuid = "CPU-0";
    reply.hello_reply.backend = "null";
    reply.hello_reply.version = "0";
    reply.hello_reply.isolation = "host";
    if (fx.refuse_hello)
        mla_error_set(&reply.hello_reply.status, MLA_PERMISSION_DENIED, NULL, "not today");
    ck_assert_int_eq(net_send(request->peer, &reply, request->request_id), 0);
    if (fx.refuse_hello)
        return false;
    fx.hellos++;
    net_peer_set_user(request->peer, &fx.hellos);
    return true;
}

static void on_done(void *app)
{
    ck_assert_ptr_eq(app, &fx);
    fx.done++;
    fx.net = NULL;
}

static void on_message(void *app, const struct net_request *request)
{
    ck_assert_ptr_eq(app, &fx);
    if (fx.n_seen < NET_SEEN_MAX) {
        struct net_seen *s = &fx.seen[fx.n_seen];
        s->peer = request->peer;
        s->type = request->message->type;
        s->request_id = request->request_id;
        s->n_fds = request->n_fds;
        for (size_t i = 0; i < request->n_fds; i++) {
            struct stat st;
            ck_assert_int_eq(fstat(request->fds[i], &st), 0);
            s->inode[i] = st.st_ino;
        }
    }
    fx.n_seen++;
    if (fx.fail_next) {
        fx.fail_next = false;
        struct mla_error err;
        mla_error_set(&err, MLA_INTERNAL, NULL, "as the test wants it");
        net_fail(request->peer, &err);
        return;
    }
    if (fx.close_next) {
        fx.close_next = false;
        net_close(fx.net, on_done);
        return;
    }
    struct mla_message reply;
    mla_message_init(&reply, request->message->type | MLA_REPLY);
    memset(reply.reply.status.text, 'x', MLA_MAX_TEXT_BYTES - 1);
    for (unsigned i = 0; i < fx.copies; i++)
        (void)net_send(request->peer, &reply, request->request_id);
}

static void on_closed(void *app, struct net_peer *peer)
{
    ck_assert_ptr_eq(app, &fx);
    ck_assert_ptr_eq(net_peer_user(peer), &fx.hellos);
    fx.closed++;
}

void fx_prepare(void)
{
    memset(&fx, 0, sizeof(fx));
    mla_log_set_level(MLA_LOG_ERROR); /* what peers do is what is tested */
    fx.copies = 1;
    snprintf(fx.dir, sizeof(fx.dir), "/tmp/mlad-net-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(fx.dir));
    snprintf(fx.path, sizeof(fx.path), "%s/socket", fx.dir);
    fx.config = (struct net_config){.socket_path = fx.path,
                                    .socket_mode = 0660,
                                    .max_peers = 64,
                                    .write_queue_bytes = 64 << 10,
                                    .hello_timeout_ms = 10000,
                                    .frame_timeout_ms = 10000,
                                    .write_timeout_ms = 10000};
    ck_assert_int_eq(uv_loop_init(&fx.loop), 0);
}

void fx_start(void)
{
    static const struct net_handlers handlers = {.hello = on_hello, .message = on_message, .closed = on_closed};
    struct mla_error err = {0};
    int rc = net_open(&fx.net, &fx.loop, &fx.config, &handlers, &fx, &err);
    ck_assert_msg(rc == 0, "net_open: %s", err.text);
}

void fx_open(void)
{
    fx_prepare();
    fx_start();
}

void fx_close(void)
{
    if (fx.net)
        net_close(fx.net, on_done);
    uv_run(&fx.loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(fx.done, 1);
    ck_assert_uint_eq(fx.closed, fx.hellos);
    ck_assert_int_eq(uv_loop_close(&fx.loop), 0);
    ck_assert_int_ne(access(fx.path, F_OK), 0);
    ck_assert_int_eq(rmdir(fx.dir), 0); /* nothing is left in it */
}

struct sockaddr_un fx_address(void)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", fx.path);
    return addr;
}

void fx_turn(void)
{
    uv_run(&fx.loop, UV_RUN_NOWAIT);
}

void fx_turn_for(unsigned ms)
{
    uint64_t end = mla_now_ns() + ms * MLA_NS_PER_MS;
    while (mla_now_ns() < end) {
        fx_turn();
        usleep(1000);
    }
}

int client_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    struct sockaddr_un addr = fx_address();
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    return fd;
}

void client_send_fds(int fd, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(128 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    ck_assert_int_eq(sendmsg(fd, &msg, MSG_NOSIGNAL), (ssize_t)n);
}

void client_write(int fd, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;
    uint64_t end = mla_now_ns() + PATIENCE_NS;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0) {
            ck_assert_int_eq(errno, EAGAIN);
            ck_assert_msg(mla_now_ns() < end, "the daemon does not read");
            fx_turn();
            continue;
        }
        p += k;
        n -= (size_t)k;
    }
}

size_t client_frame(uint8_t *out, uint16_t type, uint64_t request_id, uint8_t n_fds, const void *body, size_t n)
{
    struct mla_frame_header h = {
        .major = MLA_PROTO_MAJOR, .type = type, .n_fds = n_fds, .body_len = (uint32_t)n, .request_id = request_id};
    mla_wire_pack(&h, out);
    if (n)
        memcpy(out + MLA_WIRE_HEADER_BYTES, body, n);
    return MLA_WIRE_HEADER_BYTES + n;
}

size_t client_message(uint8_t *out, size_t cap, const struct mla_message *message, uint64_t request_id, uint8_t n_fds)
{
    size_t n;
    ck_assert_int_eq(mla_codec_encode(message, out + MLA_WIRE_HEADER_BYTES, cap - MLA_WIRE_HEADER_BYTES, &n), 0);
    struct mla_frame_header h = {.major = MLA_PROTO_MAJOR,
                                 .type = message->type,
                                 .n_fds = n_fds,
                                 .body_len = (uint32_t)n,
                                 .request_id = request_id};
    mla_wire_pack(&h, out);
    return MLA_WIRE_HEADER_BYTES + n;
}

void client_request(int fd, uint16_t type, uint64_t request_id)
{
    uint8_t bytes[MLA_WIRE_HEADER_BYTES];
    client_write(fd, bytes, client_frame(bytes, type, request_id, 0, NULL, 0));
}

/* 1: n bytes are there; 0: end of stream before the first of them. */
static int receive_bytes(int fd, uint8_t *out, size_t n)
{
    uint64_t end = mla_now_ns() + PATIENCE_NS;
    size_t have = 0;
    while (have < n) {
        ssize_t k = recv(fd, out + have, n - have, MSG_DONTWAIT);
        if (k == 0 || (k < 0 && errno == ECONNRESET)) {
            ck_assert_uint_eq(have, 0);
            return 0;
        }
        if (k < 0) {
            ck_assert_int_eq(errno, EAGAIN);
            ck_assert_msg(mla_now_ns() < end, "no answer came");
            fx_turn();
            continue;
        }
        have += (size_t)k;
    }
    return 1;
}

int client_receive(int fd, struct client_reply *out)
{
    uint8_t header[MLA_WIRE_HEADER_BYTES];
    if (!receive_bytes(fd, header, sizeof(header)))
        return 0;
    ck_assert_int_eq(mla_wire_unpack(header, &out->header), 0);
    ck_assert_uint_eq(out->header.major, MLA_PROTO_MAJOR);
    ck_assert_uint_le(out->header.body_len, sizeof(out->body));
    if (out->header.body_len > 0)
        ck_assert_int_eq(receive_bytes(fd, out->body, out->header.body_len), 1);
    return 1;
}

const struct client_reply *client_expect(int fd, uint16_t type, uint64_t request_id, enum mla_status code)
{
    static struct client_reply reply;
    ck_assert_msg(client_receive(fd, &reply), "the daemon closed instead of sending %s", mla_wire_type_name(type));
    ck_assert_str_eq(mla_wire_type_name(reply.header.type), mla_wire_type_name(type));
    ck_assert_uint_eq(reply.header.type, type);
    ck_assert_uint_eq(reply.header.request_id, request_id);
    struct mla_arena arena;
    mla_arena_init(&arena, reply.arena, sizeof(reply.arena));
    struct mla_error err = {0};
    /* What answers a type that this codec does not know is read as a reply of nothing but a status. */
    uint16_t as = mla_wire_body_cap(type) ? type : MLA_MSG_UNREGISTER_REGION | MLA_REPLY;
    int rc = mla_codec_decode(as, reply.body, reply.header.body_len, &arena, &reply.message, &err);
    ck_assert_msg(rc == 0, "%s: %s %s", mla_wire_type_name(type), err.field ? err.field : "", err.text);
    ck_assert_str_eq(mla_status_name(reply.message.reply.status.code), mla_status_name(code));
    return &reply;
}

void client_expect_end(int fd)
{
    static struct client_reply reply;
    ck_assert_msg(!client_receive(fd, &reply), "a %s came instead of the end", mla_wire_type_name(reply.header.type));
}

int client_open(void)
{
    int fd = client_socket();
    struct mla_message hello;
    mla_message_init(&hello, MLA_MSG_HELLO);
    hello.hello.client_name = "test";
    uint8_t bytes[512];
    client_write(fd, bytes, client_message(bytes, sizeof(bytes), &hello, 1, 0));
    client_expect(fd, MLA_MSG_HELLO | MLA_REPLY, 1, MLA_OK);
    return fd;
}
