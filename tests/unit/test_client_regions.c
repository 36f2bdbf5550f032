/* Regions of CUDA kinds: what is sent, in how many frames, and what becomes of half a region. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

#include "tests/support/check_main.h"

#define LONG_US 10000000
#define PARTS   40 /* frames of 16, 16 and 8 */

/* ---- what the server saw ---- */

struct seen {
    unsigned frames;
    size_t n_parts[8];
    uint64_t continues[8]; /* or RESUME's region */
    bool more[8];
    uint64_t size, offset, block_size;
    uint64_t parts_bytes;
    enum mla_region_kind kind;
    enum mla_access access;
    uint8_t ipc[64];
    size_t n_ipc[8];
    char gpu_uuid[64];
    char label[64];
    int refuse_at; /* frame to refuse, or -1 */
    int hold_at;   /* frame not to answer at first, or -1 */
};

static void look_at_register(struct seen *s, const struct mla_register_region_request *r)
{
    if (!s->frames) {
        s->kind = r->kind;
        s->access = r->access;
        s->size = r->size;
        s->offset = r->offset;
        s->block_size = r->block_size;
        strcpy(s->gpu_uuid, r->gpu_uuid);
        strcpy(s->label, r->label);
        ck_assert(!r->has_continues);
    } else {
        ck_assert(r->has_continues);
    }
    if (r->n_cuda_ipc)
        memcpy(s->ipc, r->cuda_ipc, 64);
    s->n_ipc[s->frames] = r->n_cuda_ipc;
    s->continues[s->frames] = r->continues;
    s->n_parts[s->frames] = r->n_parts;
    s->more[s->frames] = r->more;
    for (size_t i = 0; i < r->n_parts; i++)
        s->parts_bytes += r->parts[i].size;
}

static void look_at_resume(struct seen *s, const struct mla_resume_request *r)
{
    s->offset = r->offset;
    s->block_size = r->block_size;
    if (r->n_cuda_ipc)
        memcpy(s->ipc, r->cuda_ipc, 64);
    s->n_ipc[s->frames] = r->n_cuda_ipc;
    s->continues[s->frames] = r->region;
    s->n_parts[s->frames] = r->n_parts;
    s->more[s->frames] = r->more;
    for (size_t i = 0; i < r->n_parts; i++)
        s->parts_bytes += r->parts[i].size;
}

static bool look(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    struct seen *s = user;
    if (m->type == MLA_MSG_REGISTER_REGION)
        look_at_register(s, &m->register_region);
    else if (m->type == MLA_MSG_RESUME)
        look_at_resume(s, &m->resume);
    else
        return false;
    int frame = (int)s->frames++;
    if (frame == s->refuse_at) {
        struct mla_error err = {.code = MLA_BAD_HANDLE, .field = "parts.fd", .index = 3, .text = "no such thing"};
        fake_refuse(conn, m->type, id, &err);
        return true;
    }
    if (frame == s->hold_at) {
        fake_hold(conn, m, id);
        return true;
    }
    if (m->type == MLA_MSG_REGISTER_REGION) {
        struct mla_message reply;
        mla_message_init(&reply, MLA_MSG_REGISTER_REGION | MLA_REPLY);
        reply.register_region_reply.region = 4711;
        fake_send(conn, &reply, id);
        return true;
    }
    return false;
}

static struct seen nothing_seen(void)
{
    return (struct seen){.refuse_at = -1, .hold_at = -1};
}

/* ---- parts ---- */

static struct mla_region_desc parts_of(struct mla_vmm_part *parts, size_t n, int fd)
{
    struct mla_region_desc d;
    mla_region_desc_init(&d);
    d.kind = MLA_REGION_CUDA_VMM;
    d.access = MLA_ACCESS_READ_WRITE;
    d.label = "kv";
    d.parts = parts;
    d.n_parts = n;
    for (size_t i = 0; i < n; i++) {
        parts[i] = (struct mla_vmm_part){.fd = fd, .offset = i ? 0 : 4096, .bytes = 1000 * (i + 1)};
        d.bytes += parts[i].bytes;
    }
    return d;
}

START_TEST(parts_go_in_frames_of_16)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_vmm_part parts[PARTS];
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct mla_region_desc d = parts_of(parts, PARTS, fd);
    mla_region_id region = 0;
    unsigned before = fake_open_fds();
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    ck_assert_uint_eq(region, 4711);
    ck_assert_uint_eq(s.frames, 3);
    ck_assert_uint_eq(s.n_parts[0], 16);
    ck_assert_uint_eq(s.n_parts[1], 16);
    ck_assert_uint_eq(s.n_parts[2], 8);
    ck_assert(s.more[0] && s.more[1] && !s.more[2]);
    ck_assert_uint_eq(s.continues[1], 4711);
    ck_assert_uint_eq(s.continues[2], 4711);
    ck_assert_int_eq(s.kind, MLA_REGION_CUDA_VMM);
    ck_assert_int_eq(s.access, MLA_ACCESS_READ_WRITE);
    ck_assert_uint_eq(s.size, 1000 * PARTS * (PARTS + 1) / 2);
    ck_assert_uint_eq(s.parts_bytes, s.size);
    ck_assert_str_eq(s.gpu_uuid, "CPU-fake"); /* the daemon's, since none was named */
    ck_assert_str_eq(s.label, "kv");
    ck_assert_uint_eq(f->n_fds, PARTS);
    ck_assert_uint_eq(fake_open_fds(), before); /* copies of the library are closed, the caller's are not */
    ck_assert_int_ne(fcntl(fd, F_GETFD), -1);

    /* Exactly one frame's worth is one frame. */
    s = nothing_seen();
    d = parts_of(parts, 16, fd);
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    ck_assert_uint_eq(s.frames, 1);
    ck_assert(!s.more[0]);
    close(fd);
    mla_close(c);
    fake_stop(f);
}
END_TEST

struct opener {
    unsigned opened;
    int fail_at;
    size_t last;
    unsigned most_open;
    unsigned base;
};

static int open_null(void *user, size_t part)
{
    struct opener *o = user;
    ck_assert_uint_eq(part, o->opened); /* in order, each once */
    if ((int)part == o->fail_at)
        return -EMFILE;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    unsigned now = fake_open_fds() - o->base;
    o->opened++;
    o->last = part;
    if (now > o->most_open)
        o->most_open = now;
    return fd;
}

START_TEST(parts_are_opened_when_they_are_sent)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_vmm_part parts[PARTS];
    struct mla_region_desc d = parts_of(parts, PARTS, -1);
    mla_region_id region = 77;
    unsigned before = fake_open_fds();
    struct opener o = {.fail_at = -1, .base = before};
    d.open_part = open_null;
    d.open_user = &o;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    ck_assert_uint_eq(o.opened, PARTS);
    /* 16 of the frame and copies of the server, which shares this process. */
    ck_assert_uint_le(o.most_open, 2 * 16);
    fake_await_seen(f, MLA_MSG_REGISTER_REGION, 3);

    /* The 21st fails: the daemon is told to drop the first 16, and the caller what happened. */
    s = nothing_seen();
    o = (struct opener){.fail_at = 20, .base = before};
    region = 77;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_SYSTEM_ERROR);
    ck_assert_uint_eq(mla_last_error(c)->value, EMFILE);
    ck_assert_uint_eq(mla_last_error(c)->index, 20);
    ck_assert_str_eq(mla_last_error(c)->field, "parts");
    ck_assert_uint_eq(region, 77);
    ck_assert_uint_eq(s.frames, 1);
    fake_await_seen(f, MLA_MSG_UNREGISTER_REGION, 1);
    ck_assert_uint_eq(f->last_object, 4711);

    /* The first fails: there is nothing to drop. */
    s = nothing_seen();
    o = (struct opener){.fail_at = 0, .base = before};
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_SYSTEM_ERROR);
    ck_assert_int_eq(mla_region_suspend(c, 5, LONG_US), MLA_OK);
    ck_assert_uint_eq(s.frames, 0);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_UNREGISTER_REGION], 1);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(half_a_region_is_dropped)
{
    struct seen s = nothing_seen();
    s.refuse_at = 1;
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_vmm_part parts[PARTS];
    struct mla_region_desc d = parts_of(parts, PARTS, 0);
    mla_region_id region = 77;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_BAD_HANDLE);
    ck_assert_str_eq(mla_last_error(c)->field, "parts.fd");
    ck_assert_str_eq(mla_last_error(c)->text, "no such thing");
    ck_assert_uint_eq(s.frames, 2);
    fake_await_seen(f, MLA_MSG_UNREGISTER_REGION, 1);
    ck_assert_uint_eq(region, 77);

    /* Given up between frames: the answer that comes later is undone. */
    s = nothing_seen();
    s.hold_at = 1;
    ck_assert_int_eq(mla_region_register(c, &d, 50000, &region), MLA_PENDING);
    fake_await_held(f, 1);
    fake_answer_held(f, 0);
    for (int i = 0; i < 1000 && f->n_seen[MLA_MSG_UNREGISTER_REGION] < 2; i++)
        mla_dispatch(c, 10000);
    fake_await_seen(f, MLA_MSG_UNREGISTER_REGION, 2);
    ck_assert_uint_eq(s.frames, 2);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(an_ipc_handle_is_one_frame)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_region_desc d;
    uint8_t handle[64];
    mla_region_id region = 0;
    for (int i = 0; i < 64; i++)
        handle[i] = (uint8_t)(i * 3);
    mla_region_desc_init(&d);
    d.kind = MLA_REGION_CUDA_IPC;
    d.bytes = 1 << 20;
    d.offset = 4096;
    d.block_bytes = 2 << 20;
    d.gpu_uuid = "GPU-1234";
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "ipc_handle");
    d.ipc_handle = handle;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    ck_assert_uint_eq(region, 4711);
    ck_assert_uint_eq(s.frames, 1);
    ck_assert_mem_eq(s.ipc, handle, 64);
    ck_assert_uint_eq(s.n_ipc[0], 64);
    ck_assert_uint_eq(s.size, 1 << 20);
    ck_assert_uint_eq(s.offset, 4096);
    ck_assert_uint_eq(s.block_size, 2 << 20);
    ck_assert_str_eq(s.gpu_uuid, "GPU-1234");
    ck_assert_uint_eq(f->n_fds, 0);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(bad_descriptions_are_not_sent)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    static struct mla_vmm_part parts[4097];
    struct mla_region_desc d = parts_of(parts, 4097, 0);
    mla_region_id region;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_TOO_LARGE);
    ck_assert_uint_eq(mla_last_error(c)->value, 4097);
    ck_assert_uint_eq(mla_last_error(c)->limit, 4096);
    d.n_parts = 0;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "parts");
    d = parts_of(parts, 3, 0);
    parts[2].fd = -1;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_NO_DESCRIPTORS);
    ck_assert_uint_eq(mla_last_error(c)->index, 2);
    ck_assert_int_eq(mla_region_resume(c, 1, NULL, LONG_US), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_region_resume(NULL, 1, &d, LONG_US), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_region_suspend(NULL, 1, LONG_US), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_region_suspend(c, 1, LONG_US), MLA_OK);
    ck_assert_uint_eq(s.frames, 0);
    /* A caller of the first version, whose struct ends with label, still shares memfds. */
    struct mla_memory m;
    ck_assert_int_eq(mla_memory_create(4096, 0, &m), MLA_OK);
    memset(&d, 0xff, sizeof(d));
    d.size = offsetof(struct mla_region_desc, label) + sizeof(d.label);
    d.kind = MLA_REGION_MEMFD;
    d.access = MLA_ACCESS_READ;
    d.fd = m.fd;
    d.offset = 0;
    d.bytes = 4096;
    d.label = NULL;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    mla_memory_free(&m);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- suspend and resume ---- */

START_TEST(resume_goes_in_frames_too)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_vmm_part parts[PARTS];
    struct mla_region_desc d = parts_of(parts, PARTS, 0);
    ck_assert_int_eq(mla_region_suspend(c, 4711, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_SUSPEND], 1);
    ck_assert_int_eq(mla_region_resume(c, 4711, &d, LONG_US), MLA_OK);
    ck_assert_uint_eq(s.frames, 3);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(s.continues[i], 4711);
    ck_assert(s.more[0] && s.more[1] && !s.more[2]);
    ck_assert_uint_eq(s.parts_bytes, d.bytes);
    ck_assert_uint_eq(f->n_fds, PARTS);

    /* Stopped between frames: the daemon drops what it has, by a RESUME that it refuses. */
    s = nothing_seen();
    struct opener o = {.fail_at = 33, .base = fake_open_fds()};
    d.open_part = open_null;
    d.open_user = &o;
    ck_assert_int_eq(mla_region_resume(c, 4711, &d, LONG_US), MLA_SYSTEM_ERROR);
    fake_await_seen(f, MLA_MSG_RESUME, 3 + 3);
    ck_assert_int_eq(mla_region_suspend(c, 1, LONG_US), MLA_OK);
    ck_assert_uint_eq(s.frames, 3);
    ck_assert_uint_eq(s.n_parts[2], 0);
    ck_assert_uint_eq(s.n_ipc[2], 64);
    ck_assert_uint_eq(s.continues[2], 4711);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(resume_of_the_other_kinds)
{
    struct seen s = nothing_seen();
    struct fake *f = fake_start(look, &s);
    struct mla_client *c = fake_open(f);
    struct mla_region_desc d;
    uint8_t handle[64];
    memset(handle, 0x5a, sizeof(handle));
    mla_region_desc_init(&d);
    d.kind = MLA_REGION_CUDA_IPC;
    d.ipc_handle = handle;
    d.block_bytes = 1 << 21;
    d.offset = 64;
    d.bytes = 100;
    ck_assert_int_eq(mla_region_resume(c, 8, &d, LONG_US), MLA_OK);
    ck_assert_uint_eq(s.n_ipc[0], 64);
    ck_assert_mem_eq(s.ipc, handle, 64);
    ck_assert_uint_eq(s.block_size, 1 << 21);
    ck_assert_uint_eq(s.offset, 64);
    ck_assert_uint_eq(s.continues[0], 8);
    mla_region_desc_init(&d);
    d.fd = 0;
    ck_assert_int_eq(mla_region_resume(c, 9, &d, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->n_fds, 1);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static bool hold_suspends(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    if (m->type != MLA_MSG_SUSPEND)
        return false;
    fake_hold(conn, m, id);
    return true;
}

START_TEST(a_suspend_that_was_given_up_goes_on)
{
    struct fake *f = fake_start(hold_suspends, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_region_desc d;
    struct mla_health_info *health;
    ck_assert_int_eq(mla_region_suspend(c, 7, 0), MLA_PENDING);
    ck_assert_int_eq(mla_region_suspend(c, 7, 1000), MLA_PENDING);
    fake_await_held(f, 1);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_SUSPEND], 1);
    fake_answer_held(f, 0);
    ck_assert_int_eq(mla_region_suspend(c, 7, LONG_US), MLA_OK);
    /* Given up, answered while nobody asks, resumed: the next one is a new request. */
    ck_assert_int_eq(mla_region_suspend(c, 7, 0), MLA_PENDING);
    fake_await_held(f, 2);
    fake_answer_held(f, 1);
    ck_assert_int_eq(mla_read_health(c, LONG_US, &health), MLA_OK);
    mla_free(health);
    mla_region_desc_init(&d);
    d.fd = 0;
    ck_assert_int_eq(mla_region_resume(c, 7, &d, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_region_suspend(c, 7, 1000), MLA_PENDING);
    fake_await_held(f, 3);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_SUSPEND], 3);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(libraries_on_top_tell_their_errors)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_error_info e = {.status = MLA_WRONG_DEVICE, .field = "address", .value = 3, .text = "elsewhere"};
    ck_assert_int_eq(mla_set_error(c, &e), MLA_WRONG_DEVICE);
    ck_assert_str_eq(mla_last_error(c)->text, "elsewhere");
    ck_assert_uint_eq(mla_last_error(c)->value, 3);
    ck_assert_int_eq(mla_set_error(NULL, &e), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_set_error(c, NULL), MLA_INVALID_ARGUMENT);
    mla_close(c);
    fake_stop(f);
}
END_TEST

MLA_SUITE(client_regions)
{
    TCase *tc = mla_tcase(suite, "register");
    tcase_add_test(tc, parts_go_in_frames_of_16);
    tcase_add_test(tc, parts_are_opened_when_they_are_sent);
    tcase_add_test(tc, half_a_region_is_dropped);
    tcase_add_test(tc, an_ipc_handle_is_one_frame);
    tcase_add_test(tc, bad_descriptions_are_not_sent);
    tc = mla_tcase(suite, "suspend");
    tcase_add_test(tc, resume_goes_in_frames_too);
    tcase_add_test(tc, resume_of_the_other_kinds);
    tcase_add_test(tc, a_suspend_that_was_given_up_goes_on);
    tcase_add_test(tc, libraries_on_top_tell_their_errors);
}
