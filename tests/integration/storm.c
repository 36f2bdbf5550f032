#include "tests/integration/storm.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/raw_client.h"

/* In place of ck_assert_msg where it would be said a million times: Check writes down each one that holds. */
#define REQUIRE(condition, ...)                                                                                        \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            ck_abort_msg(__VA_ARGS__);                                                                                 \
    } while (0)

#define FRAME_BYTES (MLA_WIRE_HEADER_BYTES + MLA_CAP_TABLE_BYTES)
#define ARENA_BYTES (2 * MLA_CAP_REPLY_BYTES + MLA_CODEC_SLACK_BYTES)
#define PATIENCE_MS 10000

static void make_fds(int *fds, void **words)
{
    int pipes[2], pair[2];
    char name[] = "/tmp/mla-storm-XXXXXX";
    fds[STORM_SEALED] = raw_memfd(1u << 20, NULL);
    fds[STORM_SYNC] = raw_memfd(4096, words);
    fds[STORM_UNSEALED] = memfd_create("storm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(ftruncate(fds[STORM_UNSEALED], 1u << 20), 0);
    fds[STORM_SEALED_FOR_WRITING] = raw_memfd(1u << 20, NULL);
    fcntl(fds[STORM_SEALED_FOR_WRITING], F_ADD_SEALS, F_SEAL_WRITE);
    char self[64];
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fds[STORM_SEALED]);
    fds[STORM_READ_ONLY] = open(self, O_RDONLY | O_CLOEXEC);
    fds[STORM_PATH] = open("/", O_PATH | O_CLOEXEC);
    fds[STORM_FILE] = mkostemp(name, O_CLOEXEC);
    unlink(name);
    ck_assert_int_eq(ftruncate(fds[STORM_FILE], 1u << 20), 0);
    fds[STORM_NULL] = open("/dev/null", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    close(pipes[1]);
    fds[STORM_PIPE] = pipes[0];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    close(pair[1]);
    fds[STORM_SOCKET] = pair[0];
    fds[STORM_FOLDER] = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fds[STORM_EPOLL] = epoll_create1(EPOLL_CLOEXEC);
    fds[STORM_EVENT] = eventfd(0, EFD_CLOEXEC);
    for (unsigned i = 0; i < STORM_FD_KINDS; i++)
        ck_assert_int_ge(fds[i], 0);
}

void storm_open(struct storm *s, const char *socket, uint64_t seed)
{
    memset(s, 0, sizeof(*s));
    s->socket = socket;
    s->prng.state = seed;
    s->frame = malloc(FRAME_BYTES);
    s->arena = malloc(ARENA_BYTES);
    s->numbers = calloc(6 * (size_t)MLA_SEQS_PER_JOB_MAX + 2, sizeof(*s->numbers));
    s->layers = calloc(MLA_PLANES_MAX + 1, sizeof(*s->layers));
    ck_assert(s->frame && s->arena && s->numbers && s->layers);
    void *words;
    make_fds(s->fds, &words);
    s->words = words;
    for (unsigned i = 0; i < STORM_PEERS; i++) {
        s->peers[i].storm = s;
        s->peers[i].fd = -1;
        snprintf(s->peers[i].token, sizeof(s->peers[i].token), "zq%04xp%ux", (unsigned)(seed & 0xffff), i);
    }
}

static void hang_up(struct storm_peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    free(p->rest);
    p->rest = NULL;
    p->rest_bytes = p->in_bytes = 0;
    p->fd = -1;
    p->greeted = p->wild = p->plain = false;
    p->built = 0;
    memset(p->pending, 0, sizeof(p->pending));
    p->regions.n = p->syncs.n = p->caches.n = p->attached.n = 0;
}

void storm_hang_up(struct storm *s)
{
    for (unsigned i = 0; i < STORM_PEERS; i++)
        hang_up(&s->peers[i]);
}

void storm_close(struct storm *s)
{
    storm_hang_up(s);
    for (unsigned i = 0; i < STORM_PEERS; i++)
        free(s->peers[i].in);
    for (unsigned i = 0; i < STORM_FD_KINDS; i++)
        close(s->fds[i]);
    munmap((void *)(uintptr_t)s->words, 4096);
    free(s->frame);
    free(s->arena);
    free(s->numbers);
    free(s->layers);
}

static void connect_peer(struct storm_peer *p)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", p->storm->socket);
    p->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(p->fd >= 0, "socket: %s", strerror(errno));
    REQUIRE(connect(p->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0, "connect: %s", strerror(errno));
}

/* ---- what comes back ---- */

static void remember(struct storm_peer *p, struct storm_ids *ids, uint64_t id)
{
    ids->id[ids->n < STORM_IDS ? ids->n++ : prng_below(&p->storm->prng, STORM_IDS)] = id;
}

/* Texts of refusals are for the one who asked: what others are called is none of its business. */
static void check_text(const struct storm_peer *p, const struct mla_error *status)
{
    for (unsigned i = 0; i < STORM_PEERS; i++) {
        const char *token = p->storm->peers[i].token;
        REQUIRE(&p->storm->peers[i] == p || strstr(status->text, token) == NULL, "%s was told \"%s\"", p->token,
                status->text);
    }
}

static void take_answer(struct storm_peer *p, const struct mla_frame_header *h, const struct mla_message *m)
{
    uint16_t *pending = &p->pending[h->request_id % STORM_PENDING];
    const struct mla_error *status = &m->reply.status;
    check_text(p, status);
    REQUIRE(p->wild || *pending == (h->type & ~MLA_REPLY), "%s answered, but %s was asked with id %llu",
            mla_wire_type_name(h->type), *pending ? mla_wire_type_name(*pending) : "nothing",
            (unsigned long long)h->request_id);
    *pending = 0;
    p->storm->answers++;
    p->storm->refused += status->code != MLA_OK;
    if (status->code != MLA_OK)
        return;
    if (m->type == (MLA_MSG_REGISTER_REGION | MLA_REPLY))
        remember(p, &p->regions, m->register_region_reply.region);
    else if (m->type == (MLA_MSG_REGISTER_SYNC | MLA_REPLY))
        remember(p, &p->syncs, m->register_sync_reply.region);
    else if (m->type == (MLA_MSG_DEFINE_CACHE | MLA_REPLY))
        remember(p, &p->caches, m->define_cache_reply.cache);
    else if (m->type == (MLA_MSG_ATTACH_CACHE | MLA_REPLY))
        remember(p, &p->attached, m->attach_cache_reply.cache);
    else if (m->type == (MLA_MSG_HELLO | MLA_REPLY))
        p->greeted = true;
}

/* Takes the first frame of what was received; false when there is no whole one. */
static bool take_frame(struct storm_peer *p)
{
    struct mla_frame_header h;
    struct mla_arena arena;
    struct mla_message m;
    struct mla_error err = {0};
    if (p->in_bytes < MLA_WIRE_HEADER_BYTES)
        return false;
    REQUIRE(mla_wire_unpack(p->in, &h) == 0, "%s: not a frame", p->token);
    REQUIRE(h.body_len <= MLA_CAP_REPLY_BYTES, "%s: %u bytes of body", p->token, h.body_len);
    REQUIRE(h.n_fds == 0, "%s: a frame with descriptors", p->token);
    size_t n = MLA_WIRE_HEADER_BYTES + (size_t)h.body_len;
    if (p->in_bytes < n)
        return false;
    mla_arena_init(&arena, p->storm->arena, ARENA_BYTES);
    uint16_t as = mla_wire_body_cap(h.type) != 0 ? h.type : MLA_MSG_UNREGISTER_REGION | MLA_REPLY;
    int rc = mla_codec_decode(as, p->in + MLA_WIRE_HEADER_BYTES, h.body_len, &arena, &m, &err);
    REQUIRE(rc == 0, "%s: %s", mla_wire_type_name(h.type), err.text);
    if (h.type & MLA_REPLY)
        take_answer(p, &h, &m);
    else if (h.type == MLA_NOTICE_ERROR)
        check_text(p, &m.error_notice.status);
    memmove(p->in, p->in + n, p->in_bytes - n);
    p->in_bytes -= n;
    return true;
}

/* What is there to read; false: the daemon has ended the connection. */
static bool drain(struct storm_peer *p)
{
    for (;;) {
        if (p->in_cap - p->in_bytes < (64u << 10)) {
            p->in_cap = 2 * p->in_cap + (128u << 10);
            p->in = realloc(p->in, p->in_cap);
            REQUIRE(p->in, "no memory");
        }
        ssize_t n = recv(p->fd, p->in + p->in_bytes, p->in_cap - p->in_bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n <= 0)
            return false;
        p->in_bytes += (size_t)n;
        while (take_frame(p))
            ;
    }
}

/* ---- what goes out ---- */

/* All n bytes, while answers are read; false: the connection has ended. */
static bool send_all(struct storm_peer *p, const uint8_t *bytes, size_t n, const int *fds, size_t n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(STORM_FDS * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (n_fds > 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
    }
    p->storm->bytes += n;
    while (iov.iov_len > 0) {
        ssize_t k = sendmsg(p->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = p->fd, .events = POLLIN | POLLOUT};
            REQUIRE(poll(&wait, 1, PATIENCE_MS) == 1, "%s: the daemon neither reads nor writes", p->token);
            if ((wait.revents & (POLLIN | POLLHUP)) && !drain(p))
                return false;
            continue;
        }
        if (k < 0)
            return false;
        iov.iov_base = (uint8_t *)iov.iov_base + k;
        iov.iov_len -= (size_t)k;
        msg.msg_control = NULL;
        msg.msg_controllen = 0;
    }
    return true;
}

static void flip(struct storm *s, uint8_t *bytes, size_t n)
{
    for (uint32_t k = 1 + prng_below(&s->prng, 3); k > 0 && n > 0; k--)
        bytes[prng_below(&s->prng, (uint32_t)n)] ^= (uint8_t)(1u << prng_below(&s->prng, 8));
}

/* The frame of m, or what the dice make of it; false: the peer is to hang up. */
static bool send_frame(struct storm_peer *p, const struct mla_message *m, const int *fds, size_t n_fds)
{
    struct storm *s = p->storm;
    struct mla_frame_header h = {.major = MLA_PROTO_MAJOR, .n_fds = (uint8_t)n_fds, .type = m->type};
    size_t body;
    if (mla_codec_encode(m, s->frame + MLA_WIRE_HEADER_BYTES, MLA_CAP_TABLE_BYTES, &body) != 0)
        return true;
    h.body_len = (uint32_t)body;
    h.request_id = ++p->last_id;
    uint32_t dice = p->plain ? 500 : prng_below(&s->prng, 1000);
    if (dice < 5)
        h.n_fds = (uint8_t)prng_below(&s->prng, 20);
    mla_wire_pack(&h, s->frame);
    if (dice < 12)
        flip(s, s->frame, MLA_WIRE_HEADER_BYTES);
    struct mla_frame_header bent;
    if (mla_wire_unpack(s->frame, &bent) == 0 && bent.type == MLA_MSG_DRAIN)
        mla_wire_pack(&h, s->frame); /* root may end the daemon, and tests run as root */
    if (dice < 12)
        p->wild = true;
    else if (dice < 60)
        flip(s, s->frame + MLA_WIRE_HEADER_BYTES, body);
    p->pending[h.request_id % STORM_PENDING] = m->type;
    s->frames++;
    size_t n = MLA_WIRE_HEADER_BYTES + body;
    if (dice >= 940) { /* in part: the rest later, or never */
        size_t now = 1 + prng_below(&s->prng, (uint32_t)n);
        if (now > n)
            now = n;
        p->rest = malloc(n - now + 1);
        REQUIRE(p->rest, "no memory");
        memcpy(p->rest, s->frame + now, n - now);
        p->rest_bytes = n - now;
        n = now;
    }
    return send_all(p, s->frame, n, fds, n_fds);
}

static bool send_rest(struct storm_peer *p)
{
    uint8_t *rest = p->rest;
    bool there = send_all(p, rest, p->rest_bytes, NULL, 0);
    p->rest = NULL;
    free(rest);
    return there;
}

void storm_act(struct storm *s)
{
    struct storm_peer *p = &s->peers[prng_below(&s->prng, STORM_PEERS)];
    struct mla_message m;
    int fds[STORM_FDS];
    /* Words are memory: anybody who has them writes what it likes, when it likes. */
    s->words[8 * prng_below(&s->prng, 64)] = prng_below(&s->prng, 8) == 0 ? prng_u64(&s->prng) : 0;
    if (p->fd < 0)
        connect_peer(p);
    bool there = drain(p);
    if (there && p->rest)
        there = prng_below(&s->prng, 12) > 0 && send_rest(p);
    else if (there && prng_below(&s->prng, 1000) > 0) {
        size_t n_fds = storm_build(p, &m, fds);
        there = send_frame(p, &m, fds, n_fds);
        /* How a connection begins is answered before it goes on, so that most of what follows gets in. */
        const uint16_t *asked = &p->pending[p->last_id % STORM_PENDING];
        for (int i = 0; there && p->built < STORM_BEGINNING && *asked != 0 && !p->wild && !p->rest && i < 10; i++) {
            poll(&(struct pollfd){.fd = p->fd, .events = POLLIN}, 1, 100);
            there = drain(p);
        }
    } else {
        there = false; /* it leaves by itself, whatever is under way */
    }
    if (!there) {
        s->ended++;
        hang_up(p);
    }
}
