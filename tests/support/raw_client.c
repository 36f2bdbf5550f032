#include "tests/support/raw_client.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/daemon_fixture.h"

#define PATIENCE_MS (10000 * TEST_SLOW)
#define BODY_MAX    MLA_CAP_REPLY_BYTES
#define ARENA_BYTES (2 * BODY_MAX + MLA_CODEC_SLACK_BYTES)

void raw_connect(struct raw *r, const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    memset(r, 0, sizeof(*r));
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    r->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(r->fd, 0);
    ck_assert_msg(connect(r->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0, "connect: %s", strerror(errno));
    r->memory = malloc(BODY_MAX + ARENA_BYTES);
    ck_assert_ptr_nonnull(r->memory);
}

void raw_open(struct raw *r, const char *path)
{
    struct mla_message hello;
    raw_connect(r, path);
    mla_message_init(&hello, MLA_MSG_HELLO);
    hello.hello.client_name = "raw";
    ck_assert_int_eq(raw_call(r, &hello)->hello_reply.status.code, MLA_OK);
}

void raw_close(struct raw *r)
{
    if (r->fd >= 0)
        close(r->fd);
    r->fd = -1;
    free(r->memory);
    r->memory = NULL;
}

bool raw_bytes(const struct raw *r, const void *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control;
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        memset(&control, 0, sizeof(control));
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    while (iov.iov_len > 0) {
        ssize_t k = sendmsg(r->fd, &msg, MSG_NOSIGNAL);
        if (k < 0) {
            ck_assert_msg(errno == EPIPE || errno == ECONNRESET, "sendmsg: %s", strerror(errno));
            return false;
        }
        iov.iov_base = (uint8_t *)iov.iov_base + k;
        iov.iov_len -= (size_t)k;
        msg.msg_control = NULL;
        msg.msg_controllen = 0;
    }
    return true;
}

void raw_send(const struct raw *r, const struct mla_message *message, uint64_t request_id, const int *fds, size_t n_fds)
{
    size_t n = mla_codec_encoded_size(message);
    uint8_t *frame = malloc(MLA_WIRE_HEADER_BYTES + n);
    ck_assert_ptr_nonnull(frame);
    ck_assert_int_eq(mla_codec_encode(message, frame + MLA_WIRE_HEADER_BYTES, n, &n), 0);
    struct mla_frame_header h = {.major = MLA_PROTO_MAJOR,
                                 .n_fds = (uint8_t)n_fds,
                                 .type = message->type,
                                 .body_len = (uint32_t)n,
                                 .request_id = request_id};
    mla_wire_pack(&h, frame);
    ck_assert_msg(raw_bytes(r, frame, MLA_WIRE_HEADER_BYTES + n, fds, n_fds), "the daemon has closed");
    free(frame);
}

bool raw_readable(const struct raw *r, unsigned ms)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    return poll(&p, 1, (int)ms) == 1;
}

/* False: the connection ended before the first byte. */
static bool receive(const struct raw *r, uint8_t *out, size_t n)
{
    size_t have = 0;
    while (have < n) {
        ck_assert_msg(raw_readable(r, PATIENCE_MS), "no answer came");
        ssize_t k = recv(r->fd, out + have, n - have, 0);
        if (k == 0 || (k < 0 && errno == ECONNRESET)) {
            ck_assert_uint_eq(have, 0);
            return false;
        }
        ck_assert_int_gt(k, 0);
        have += (size_t)k;
    }
    return true;
}

bool raw_receive(struct raw *r)
{
    uint8_t header[MLA_WIRE_HEADER_BYTES];
    if (!receive(r, header, sizeof(header)))
        return false;
    ck_assert_int_eq(mla_wire_unpack(header, &r->header), 0);
    ck_assert_uint_eq(r->header.major, MLA_PROTO_MAJOR);
    ck_assert_uint_le(r->header.body_len, BODY_MAX);
    if (r->header.body_len > 0)
        ck_assert(receive(r, r->memory, r->header.body_len));
    struct mla_arena arena;
    struct mla_error err = {0};
    mla_arena_init(&arena, r->memory + BODY_MAX, ARENA_BYTES);
    /* The reply to a type that the codec does not know is a status alone. */
    uint16_t as = mla_wire_body_cap(r->header.type) != 0 ? r->header.type : MLA_MSG_UNREGISTER_REGION | MLA_REPLY;
    int rc = mla_codec_decode(as, r->memory, r->header.body_len, &arena, &r->message, &err);
    ck_assert_msg(rc == 0, "%s: %s", mla_wire_type_name(r->header.type), err.text);
    return true;
}

const struct mla_message *raw_wait(struct raw *r, uint64_t request_id)
{
    for (;;) {
        ck_assert_msg(raw_receive(r), "the daemon closed instead of answering");
        if (r->header.request_id == request_id)
            return &r->message;
        if (r->header.request_id == 0) {
            ck_assert_msg(r->header.type != MLA_NOTICE_ERROR, "ERROR notice: %s", r->message.error_notice.status.text);
            r->notice = r->message;
            r->notices++;
        }
    }
}

const struct mla_message *raw_call_fds(struct raw *r, const struct mla_message *message, const int *fds, size_t n_fds)
{
    uint64_t id = ++r->last_id;
    raw_send(r, message, id, fds, n_fds);
    const struct mla_message *reply = raw_wait(r, id);
    ck_assert_uint_eq(r->header.type, message->type | MLA_REPLY);
    return reply;
}

const struct mla_message *raw_call(struct raw *r, const struct mla_message *message)
{
    return raw_call_fds(r, message, NULL, 0);
}

const struct mla_error *raw_expect(struct raw *r, const struct mla_message *message, enum mla_status code,
                                   const char *field)
{
    const struct mla_error *e = &raw_call(r, message)->reply.status;
    ck_assert_msg(e->code == code && strcmp(e->field == NULL ? "" : e->field, field == NULL ? "" : field) == 0,
                  "%s: %s of field \"%s\" (%s), not %s of \"%s\"", mla_wire_type_name(message->type),
                  mla_status_name(e->code), e->field == NULL ? "" : e->field, e->text, mla_status_name(code),
                  field == NULL ? "" : field);
    if (code != MLA_OK)
        ck_assert_msg(e->text[0] != '\0', "%s: no text", mla_wire_type_name(message->type));
    return e;
}

double raw_metric(struct raw *r, const char *name, const char *labels)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_METRICS);
    const struct mla_metrics_reply *reply = &raw_call(r, &m)->metrics_reply;
    for (size_t i = 0; i < reply->n_metrics; i++)
        for (size_t k = 0; strcmp(reply->metrics[i].name, name) == 0 && k < reply->metrics[i].n_samples; k++)
            if (strcmp(reply->metrics[i].samples[k].labels, labels) == 0)
                return reply->metrics[i].samples[k].value;
    ck_abort_msg("no series %s{%s}", name, labels);
    return 0;
}

/* ---- objects ---- */

int raw_memfd(uint64_t bytes, void **addr)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    if (addr != NULL) {
        *addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(*addr, MAP_FAILED);
    }
    return fd;
}

uint64_t raw_region(struct raw *r, int fd, uint64_t bytes, enum mla_access access)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = access;
    m.register_region.size = bytes;
    const struct mla_register_region_reply *reply = &raw_call_fds(r, &m, &fd, 1)->register_region_reply;
    ck_assert_msg(reply->status.code == MLA_OK, "%s", reply->status.text);
    ck_assert_uint_ne(reply->region, 0);
    return reply->region;
}

uint64_t raw_sync(struct raw *r, uint64_t **words)
{
    struct mla_message m;
    void *addr;
    int fd = raw_memfd(4096, &addr);
    *words = addr;
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = 4096;
    const struct mla_register_sync_reply *reply = &raw_call_fds(r, &m, &fd, 1)->register_sync_reply;
    ck_assert_msg(reply->status.code == MLA_OK, "%s", reply->status.text);
    close(fd);
    return reply->region;
}

uint64_t raw_cache(struct raw *r, uint64_t region, uint64_t num_pages)
{
    struct mla_message m;
    mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
    m.define_cache.layout = MLA_CACHE_E4M3_576;
    m.define_cache.region = region;
    m.define_cache.num_pages = num_pages;
    const struct mla_define_cache_reply *reply = &raw_call(r, &m)->define_cache_reply;
    ck_assert_msg(reply->status.code == MLA_OK, "%s", reply->status.text);
    return reply->cache;
}

void raw_tables(struct raw *r, uint64_t id, uint32_t q_len, uint32_t kv_len)
{
    struct mla_message m;
    static uint32_t pages[4096];
    for (uint32_t i = 0; i < 4096; i++)
        pages[i] = i;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = id;
    m.put_table_set.q_len = &q_len;
    m.put_table_set.kv_len_max = &kv_len;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1;
    m.put_table_set.pages = pages;
    m.put_table_set.n_pages = (kv_len + 63) / 64;
    raw_expect(r, &m, MLA_OK, NULL);
}
