/* SUSPEND and RESUME: the mapping goes and comes back, the id and the cache on it stay. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define KV_BYTES ((uint64_t)GROUND_PAGES * 64 * 576)

static struct daemon d;
static struct ground g;
static struct mla_message m;

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&g, d.socket);
}

static void teardown(void)
{
    ground_close(&g);
    daemon_stop(&d, SIGTERM, 0);
}

static unsigned maps(void)
{
    unsigned n;
    daemon_mapped_bytes(&d, "memfd:", &n);
    return n;
}

static const struct mla_error *suspend(uint64_t region, enum mla_status code, const char *field)
{
    mla_message_init(&m, MLA_MSG_SUSPEND);
    m.suspend.region = region;
    return raw_expect(&g.r, &m, code, field);
}

/* The pages again, in other memory; the descriptor may be closed once it is answered. */
static int copy_of_pages(void)
{
    void *pages;
    int fd = raw_memfd(KV_BYTES, &pages);
    memcpy(pages, g.kv, KV_BYTES);
    return fd;
}

static const struct mla_error *resume(uint64_t region, int fd)
{
    mla_message_init(&m, MLA_MSG_RESUME);
    m.resume.region = region;
    return &raw_call_fds(&g.r, &m, &fd, 1)->reply.status;
}

static uint64_t region_size(void)
{
    return (KV_BYTES + 4095) / 4096 * 4096;
}

START_TEST(sleeps_and_wakes)
{
    setup();
    for (unsigned round = 0; round < 3; round++) {
        unsigned before = maps();
        suspend(g.kv_region, MLA_OK, NULL);
        ck_assert_uint_eq(maps(), before - 1);
        ground_decode(&g, &m);
        raw_expect(&g.r, &m, MLA_SUSPENDED, "cache");
        suspend(g.kv_region, MLA_SUSPENDED, "region");
        int fd = copy_of_pages();
        ck_assert_int_eq(resume(g.kv_region, fd)->code, MLA_OK);
        close(fd);
        ck_assert_uint_eq(maps(), before);
        ground_decodes(&g);
    }
    teardown();
}
END_TEST

START_TEST(outputs_and_inputs_sleep_too)
{
    setup();
    suspend(g.io_region, MLA_OK, NULL);
    ground_decode(&g, &m);
    raw_expect(&g.r, &m, MLA_SUSPENDED, "q.region");
    teardown();
}
END_TEST

START_TEST(what_cannot_be_suspended_or_resumed)
{
    setup();
    unsigned before = maps();
    suspend(g.sync, MLA_INVALID_ARGUMENT, "region");
    suspend(g.kv_region ^ 1, MLA_NOT_FOUND, "region");
    int fd = copy_of_pages(), ends[2];
    ck_assert_int_eq(resume(g.kv_region, fd)->code, MLA_BUSY);
    ck_assert_int_eq(resume(g.kv_region ^ 1, fd)->code, MLA_NOT_FOUND);
    ck_assert_uint_eq(maps(), before);

    /* New memory that will not do leaves it asleep. */
    suspend(g.kv_region, MLA_OK, NULL);
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(resume(g.kv_region, ends[0])->code, MLA_BAD_DESCRIPTOR);
    int small = raw_memfd(region_size() / 2 / 4096 * 4096, NULL);
    ck_assert_int_eq(resume(g.kv_region, small)->code, MLA_OUT_OF_BOUNDS);
    ground_decode(&g, &m);
    raw_expect(&g.r, &m, MLA_SUSPENDED, "cache");
    ck_assert_int_eq(resume(g.kv_region, fd)->code, MLA_OK);
    ground_decodes(&g);
    teardown();
}
END_TEST

/* The id stays busy while a cache is on it, asleep or not; without one it may go, and takes nothing along. */
START_TEST(unregistered_asleep)
{
    setup();
    unsigned before = maps();
    suspend(g.kv_region, MLA_OK, NULL);
    mla_message_init(&m, MLA_MSG_UNREGISTER_REGION);
    m.unregister_region.region = g.kv_region;
    raw_expect(&g.r, &m, MLA_BUSY, "region");
    mla_message_init(&m, MLA_MSG_DROP_CACHE);
    m.drop_cache.cache = g.cache;
    raw_expect(&g.r, &m, MLA_OK, NULL);
    mla_message_init(&m, MLA_MSG_UNREGISTER_REGION);
    m.unregister_region.region = g.kv_region;
    raw_expect(&g.r, &m, MLA_OK, NULL);
    suspend(g.kv_region, MLA_NOT_FOUND, "region");
    ck_assert_uint_eq(maps(), before - 1);
    teardown();
}
END_TEST

/* A job that has been accepted keeps the mapping: SUSPEND is answered behind it, and new jobs are refused meanwhile. */
START_TEST(waits_for_the_jobs_that_use_it)
{
    setup();
    ground_decode(&g, &m);
    m.decode.ready = ground_ref(g.sync, 0);
    m.decode.ready_value = 1;
    raw_send(&g.r, &m, 1001, NULL, 0);
    mla_message_init(&m, MLA_MSG_SUSPEND);
    m.suspend.region = g.kv_region;
    raw_send(&g.r, &m, 1002, NULL, 0);
    ground_decode(&g, &m);
    raw_send(&g.r, &m, 1003, NULL, 0);
    const struct mla_message *reply = raw_wait(&g.r, 1003);
    ck_assert_int_eq(reply->reply.status.code, MLA_SUSPENDED);
    ck_assert(!raw_readable(&g.r, 100));
    __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
    ck_assert(raw_receive(&g.r));
    ck_assert_uint_eq(g.r.header.request_id, 1001);
    ck_assert_int_eq(g.r.message.reply.status.code, MLA_OK);
    ck_assert(raw_receive(&g.r));
    ck_assert_uint_eq(g.r.header.request_id, 1002);
    ck_assert_int_eq(g.r.message.reply.status.code, MLA_OK);
    teardown();
}
END_TEST

/* A client that goes while it waits for SUSPEND, or asleep, leaves nothing mapped. */
START_TEST(the_client_goes)
{
    setup();
    suspend(g.io_region, MLA_OK, NULL);
    ground_decode(&g, &m);
    mla_message_init(&m, MLA_MSG_SUSPEND);
    m.suspend.region = g.kv_region;
    raw_send(&g.r, &m, 1002, NULL, 0);
    close(g.r.fd);
    for (unsigned i = 0; i < 100 && maps() > 0; i++)
        usleep(10000);
    ck_assert_uint_eq(maps(), 0);
    g.r.fd = -1;
    daemon_stop(&d, SIGTERM, 0);
}
END_TEST

MLA_SUITE(mlad_suspend)
{
    TCase *tc = mla_tcase(suite, "suspend");
    tcase_add_test(tc, sleeps_and_wakes);
    tcase_add_test(tc, outputs_and_inputs_sleep_too);
    tcase_add_test(tc, what_cannot_be_suspended_or_resumed);
    tcase_add_test(tc, unregistered_asleep);
    tcase_add_test(tc, waits_for_the_jobs_that_use_it);
    tcase_add_test(tc, the_client_goes);
}
