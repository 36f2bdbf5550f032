/* Opening and closing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

#include "daemon/util/clock.h"
#include "tests/support/check_main.h"

#define LONG_US 10000000

START_TEST(open_learns_about_the_server)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    const struct mla_server_info *s = mla_server(c);
    ck_assert_uint_eq(s->protocol_major, MLA_PROTO_MAJOR);
    ck_assert_uint_eq(s->boot_nonce, 0xb007);
    ck_assert_uint_eq(s->client_id, 77);
    ck_assert_uint_eq(s->max_regions, 11);
    ck_assert_uint_eq(s->max_jobs_in_flight, 12);
    ck_assert_str_eq(s->version, "9.8.7");
    ck_assert_str_eq(s->backend, "cpu");
    ck_assert_str_eq(s->gpu_uuid, "CPU-fake");
    ck_assert_str_eq(s->isolation, "host");
    ck_assert(s->features & MLA_FEATURE_DECODE);
    ck_assert_int_eq(mla_close(c), MLA_OK);
    ck_assert_int_eq(mla_close(NULL), MLA_OK);
    fake_stop(f);
}
END_TEST

START_TEST(open_takes_the_path_from_the_environment)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c;
    setenv("MLAD_SOCKET", f->path, 1);
    ck_assert_int_eq(mla_open(NULL, &c, NULL), MLA_OK);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(open_without_a_daemon)
{
    struct mla_options o;
    struct mla_client *c = (struct mla_client *)&o;
    struct mla_error_info e;
    mla_options_init(&o);
    o.socket_path = "/tmp/no-daemon-listens-here";
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_DISCONNECTED);
    ck_assert_ptr_null(c);
    ck_assert_int_eq(e.status, MLA_DISCONNECTED);
    ck_assert_str_eq(e.field, "socket_path");
    ck_assert_uint_eq(e.value, ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "/tmp/no-daemon-listens-here"));

    o.flags = MLA_OPEN_WAIT;
    o.timeout_us = 50000;
    uint64_t start = mla_now_ns();
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_TIMED_OUT);
    ck_assert_uint_ge(mla_now_ns() - start, 50 * MLA_NS_PER_MS);

    char path[200];
    memset(path, 'x', sizeof(path));
    path[199] = '\0';
    o.socket_path = path;
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_INVALID_ARGUMENT);
    ck_assert_uint_eq(e.value, 199);
    ck_assert_uint_eq(e.limit, 107);

    mla_options_init(&o);
    o.flags = 1u << 30;
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(e.field, "flags");
    o.size = 8;
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(e.field, "size");
    ck_assert_int_eq(mla_open(&o, NULL, NULL), MLA_INVALID_ARGUMENT);
}
END_TEST

static char late_path[64];

static void *start_late(void *arg)
{
    struct fake **f = arg;
    struct fake *other = fake_start(NULL, NULL);
    usleep(50000);
    ck_assert_int_eq(rename(other->path, late_path), 0);
    *f = other;
    return NULL;
}

START_TEST(open_waits_for_the_daemon)
{
    struct mla_options o;
    struct mla_client *c;
    struct fake *f = NULL;
    pthread_t t;
    mla_options_init(&o);
    snprintf(late_path, sizeof(late_path), "/tmp/mla-client-late-%d", (int)getpid());
    o.socket_path = late_path;
    o.flags = MLA_OPEN_WAIT;
    o.timeout_us = LONG_US;
    pthread_create(&t, NULL, start_late, &f);
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
    pthread_join(t, NULL);
    mla_close(c);
    unlink(late_path);
    fake_stop(f);
}
END_TEST

static bool say_nothing(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    (void)conn, (void)request, (void)id, (void)user;
    return true;
}

START_TEST(open_has_a_deadline)
{
    struct fake *f = fake_start(say_nothing, NULL);
    struct mla_options o = fake_options(f);
    struct mla_client *c;
    struct mla_error_info e;
    o.timeout_us = 30000;
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_TIMED_OUT);
    ck_assert_str_eq(e.text, "nobody answers at the socket yet: the daemon is starting, or hangs");
    fake_stop(f);
}
END_TEST

static bool refuse_hello(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    struct mla_error err = {0};
    ck_assert_str_eq(request->hello.client_name, "tester");
    ck_assert_str_eq(request->hello.gpu_uuid, "GPU-1");
    ck_assert_uint_eq(request->hello.pid_hint, getpid());
    mla_error_set(&err, *(enum mla_status *)user, "gpu_uuid", "CPU-fake is served");
    fake_refuse(conn, request->type, id, &err);
    return true;
}

START_TEST(open_refused)
{
    enum mla_status status = MLA_WRONG_DEVICE;
    struct fake *f = fake_start(refuse_hello, &status);
    struct mla_options o = fake_options(f);
    struct mla_client *c;
    struct mla_error_info e;
    o.name = "tester";
    o.gpu_uuid = "GPU-1";
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_WRONG_DEVICE);
    ck_assert_str_eq(e.field, "gpu_uuid");
    ck_assert_str_eq(e.text, "CPU-fake is served");
    fake_stop(f);
}
END_TEST

START_TEST(open_needs_features)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_options o = fake_options(f);
    struct mla_client *c;
    struct mla_error_info e;
    o.features = MLA_FEATURE_DECODE | MLA_FEATURE_STEP;
    ck_assert_int_eq(mla_open(&o, &c, &e), MLA_UNSUPPORTED);
    ck_assert_str_eq(e.field, "features");
    ck_assert_uint_eq(e.value, o.features);
    fake_stop(f);
}
END_TEST

START_TEST(no_descriptor_is_left)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    mla_close(c);
    unsigned before = fake_open_fds();
    for (int i = 0; i < 20; i++) {
        struct mla_memory m;
        mla_region_id region;
        struct mla_sync *sync;
        c = fake_open(f);
        ck_assert_int_eq(mla_memory_create(100, 0, &m), MLA_OK);
        ck_assert_int_eq(mla_memory_register(c, &m, MLA_ACCESS_READ, NULL, LONG_US, &region), MLA_OK);
        ck_assert_int_eq(mla_sync_create(c, 1, LONG_US, &sync), MLA_OK);
        if (i & 1)
            ck_assert_int_eq(mla_sync_destroy(sync, LONG_US), MLA_OK);
        mla_close(c);
        if (!(i & 1))
            ck_assert_int_eq(mla_sync_destroy(sync, LONG_US), MLA_OK);
        mla_memory_free(&m);
    }
    /* The server keeps its ends until it stops. */
    ck_assert_uint_eq(fake_open_fds(), before + 20);
    fake_stop(f);
}
END_TEST

MLA_SUITE(client_open)
{
    TCase *tc = mla_tcase(suite, "open");
    tcase_add_test(tc, open_learns_about_the_server);
    tcase_add_test(tc, open_takes_the_path_from_the_environment);
    tcase_add_test(tc, open_without_a_daemon);
    tcase_add_test(tc, open_waits_for_the_daemon);
    tcase_add_test(tc, open_has_a_deadline);
    tcase_add_test(tc, open_refused);
    tcase_add_test(tc, open_needs_features);
    tcase_add_test(tc, no_descriptor_is_left);
}
