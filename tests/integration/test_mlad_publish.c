/* Caches shared between processes: names, groups, waiting for them, and their end. */
#include <grp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

#define SOME_GID  54321u
#define OTHER_UID 65534u

static struct daemon d;
static struct ground owner, other;
static struct mla_message m;

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&owner, d.socket);
    ground_open(&other, d.socket);
}

static void teardown(void)
{
    ground_decodes(&other);
    ground_close(&owner);
    ground_close(&other);
    daemon_stop(&d, SIGTERM, 0);
}

static struct mla_message *publish(uint64_t cache, const char *name)
{
    mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
    m.publish_cache.cache = cache;
    m.publish_cache.name = name;
    return &m;
}

static struct mla_message *attach(const char *name, uint64_t wait_us)
{
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = name;
    m.attach_cache.wait_us = wait_us;
    return &m;
}

static struct mla_message *drop(uint64_t cache)
{
    mla_message_init(&m, MLA_MSG_DROP_CACHE);
    m.drop_cache.cache = cache;
    return &m;
}

static struct mla_message *detach(uint64_t cache)
{
    mla_message_init(&m, MLA_MSG_DETACH_CACHE);
    m.detach_cache.cache = cache;
    return &m;
}

static uint64_t attached(struct ground *g, const char *name)
{
    const struct mla_attach_cache_reply *reply = &raw_call(&g->r, attach(name, 0))->attach_cache_reply;
    ck_assert_msg(reply->status.code == MLA_OK, "%s", reply->status.text);
    ck_assert_uint_eq(reply->num_pages, GROUND_PAGES);
    ck_assert_uint_eq(reply->planes, 2);
    ck_assert_uint_eq(reply->tokens_per_entry, 64);
    ck_assert_int_eq(reply->layout, MLA_CACHE_E4M3_576);
    return reply->cache;
}

static enum mla_status decode_with(struct ground *g, uint64_t cache)
{
    ground_decode(g, &m);
    m.decode.cache = cache;
    return raw_call(&g->r, &m)->reply.status.code;
}

/* The CACHE_GONE notice for this attachment, waited for. */
static void gone(struct ground *g, uint64_t cache, const char *name)
{
    if (g->r.notices == 0) {
        ck_assert(raw_receive(&g->r));
        ck_assert_uint_eq(g->r.header.type, MLA_NOTICE_CACHE_GONE);
        ck_assert_uint_eq(g->r.header.request_id, 0);
    }
    const struct mla_message *n = g->r.notices == 0 ? &g->r.message : &g->r.notice;
    ck_assert_uint_eq(n->cache_gone_notice.cache, cache);
    if (g->r.notices == 0)
        ck_assert_str_eq(n->cache_gone_notice.name, name);
}

START_TEST(names)
{
    setup();
    uint64_t second = raw_cache(&owner.r, owner.kv_region, 4);
    raw_expect(&owner.r, publish(owner.cache, "a"), MLA_OK, NULL);
    raw_expect(&owner.r, publish(owner.cache, "b"), MLA_ALREADY_EXISTS, "cache");
    raw_expect(&owner.r, publish(second, "a"), MLA_ALREADY_EXISTS, "name");
    raw_expect(&other.r, publish(other.cache, "a"), MLA_ALREADY_EXISTS, "name"); /* names are per user */
    raw_expect(&owner.r, publish(second, "b"), MLA_OK, NULL);
    static const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    ck_assert_uint_eq(strlen(long_name), MLA_MAX_NAME_BYTES);
    raw_expect(&other.r, publish(other.cache, ""), MLA_INVALID_ARGUMENT, "name");
    raw_expect(&other.r, publish(other.cache, "a b"), MLA_INVALID_ARGUMENT, "name");
    raw_expect(&other.r, publish(other.cache, "../x"), MLA_INVALID_ARGUMENT, "name");
    raw_expect(&other.r, publish(other.cache, "0123456789012345678901234567890123456789012345678901234567890123x"),
               MLA_TOO_LARGE, "name");
    ck_assert_uint_eq(m.publish_cache.n_gids, 0);
    publish(other.cache, "g");
    static const uint32_t gids[17] = {0};
    m.publish_cache.gids = gids;
    m.publish_cache.n_gids = 17;
    raw_expect(&other.r, &m, MLA_TOO_LARGE, "gids");
    raw_expect(&other.r, publish(other.cache, long_name), MLA_OK, NULL);
    ck_assert_double_eq(raw_metric(&other.r, "mlad_published_caches", ""), 3);

    raw_expect(&owner.r, attach("c", 0), MLA_NOT_FOUND, "name");
    attach("a", 0);
    m.attach_cache.has_owner_uid = true;
    m.attach_cache.owner_uid = (uint32_t)getuid() + 1;
    raw_expect(&owner.r, &m, MLA_NOT_FOUND, "name");
    m.attach_cache.owner_uid = (uint32_t)getuid();
    raw_expect(&owner.r, &m, MLA_OK, NULL);
    (void)attached(&owner, long_name);
    /* Dropped, the name is free. */
    raw_expect(&owner.r, drop(second), MLA_OK, NULL);
    raw_expect(&other.r, attach("b", 0), MLA_NOT_FOUND, "name");
    uint64_t third = raw_cache(&owner.r, owner.kv_region, 4);
    raw_expect(&owner.r, publish(third, "b"), MLA_OK, NULL);
    teardown();
}
END_TEST

START_TEST(attach_use_detach)
{
    setup();
    raw_expect(&owner.r, publish(owner.cache, "main"), MLA_OK, NULL);
    uint64_t a = attached(&other, "main"), b = attached(&other, "main");
    ck_assert_uint_ne(a, b);
    ck_assert_double_eq(raw_metric(&other.r, "mlad_attachments", ""), 2);
    memset(owner.kv, 0x40, GROUND_PAGES * 64 * 576); /* all 2 now: it is the owner's memory that is read */
    ck_assert_int_eq(decode_with(&other, a), MLA_OK);
    const float *o = (const float *)(const void *)(other.io + GROUND_O);
    ck_assert_double_eq_tol(o[0], 2, 1e-5);
    ck_assert_int_eq(decode_with(&other, b), MLA_OK);
    raw_expect(&other.r, detach(a), MLA_OK, NULL);
    raw_expect(&other.r, detach(a), MLA_NOT_FOUND, "cache");
    ck_assert_int_eq(decode_with(&other, a), MLA_NOT_FOUND);
    ck_assert_int_eq(decode_with(&other, b), MLA_OK);
    ck_assert_int_eq(decode_with(&owner, b), MLA_NOT_FOUND); /* an attachment is its connection's own */
    raw_expect(&other.r, detach(b), MLA_OK, NULL);
    ck_assert_double_eq(raw_metric(&other.r, "mlad_attachments", ""), 0);
    teardown();
}
END_TEST

/* ---- users and groups ---- */

struct stranger {
    bool supplementary; /* has SOME_GID among its groups */
    gid_t gid;
    enum mla_status expected;
};

static int as_other_user(void *arg)
{
    const struct stranger *s = arg;
    const gid_t groups[] = {SOME_GID};
    ck_assert_int_eq(setgroups(s->supplementary ? 1 : 0, groups), 0);
    ck_assert_int_eq(setgid(s->gid), 0);
    ck_assert_int_eq(setuid(OTHER_UID), 0);
    struct ground g;
    struct mla_message drain;
    ground_open(&g, d.socket);
    raw_expect(&g.r, attach("main", 0), MLA_NOT_FOUND, "name"); /* of its own uid there is none */
    attach("main", 0);
    m.attach_cache.has_owner_uid = true;
    m.attach_cache.owner_uid = 0;
    const struct mla_attach_cache_reply *reply = &raw_call(&g.r, &m)->attach_cache_reply;
    ck_assert_str_eq(mla_status_name(reply->status.code), mla_status_name(s->expected));
    uint64_t cache = reply->cache;
    if (s->expected == MLA_OK)
        ck_assert_int_eq(decode_with(&g, cache), MLA_OK);
    else
        ck_assert_str_eq(reply->status.field, "name");        /* as if it did not exist */
    raw_expect(&g.r, publish(g.cache, "main"), MLA_OK, NULL); /* names are per user */
    mla_message_init(&drain, MLA_MSG_DRAIN);
    raw_expect(&g.r, &drain, MLA_PERMISSION_DENIED, NULL);
    ground_close(&g);
    return 0;
}

START_TEST(groups)
{
    if (getuid() != 0)
        return; /* other users can only be played by root */
    setup();
    static const uint32_t gids[2] = {SOME_GID + 1, SOME_GID};
    publish(owner.cache, "main");
    m.publish_cache.gids = gids;
    m.publish_cache.n_gids = 2;
    raw_expect(&owner.r, &m, MLA_OK, NULL);
    struct stranger strangers[] = {{.supplementary = false, .gid = OTHER_UID, .expected = MLA_NOT_FOUND},
                                   {.supplementary = true, .gid = OTHER_UID, .expected = MLA_OK},
                                   {.supplementary = false, .gid = SOME_GID + 1, .expected = MLA_OK}};
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++)
        ck_assert_int_eq(child_wait(child_start(as_other_user, &strangers[i])), 0);
    teardown();
}
END_TEST

/* ---- waiting ---- */

START_TEST(waiting_for_a_name)
{
    setup();
    uint64_t start = test_now_us();
    raw_expect(&other.r, attach("late", 50000), MLA_NOT_FOUND, "name");
    ck_assert_uint_ge(test_now_us() - start, 50000);
    /* Two wait, one for too short a time, a third for another name; others are served meanwhile. */
    raw_send(&other.r, attach("late", 10000000), 501, NULL, 0);
    raw_send(&other.r, attach("late", 30000), 502, NULL, 0);
    raw_send(&other.r, attach("never", UINT64_MAX), 503, NULL, 0);
    ck_assert_int_eq(raw_wait(&other.r, 502)->reply.status.code, MLA_NOT_FOUND);
    ck_assert_int_eq(decode_with(&other, other.cache), MLA_OK);
    raw_expect(&owner.r, publish(owner.cache, "late"), MLA_OK, NULL);
    uint64_t cache = raw_wait(&other.r, 501)->attach_cache_reply.cache;
    ck_assert_int_eq(decode_with(&other, cache), MLA_OK);
    ck_assert(!raw_readable(&other.r, 50));
    /* One that leaves while it waits takes its wait along. */
    struct raw third;
    raw_open(&third, d.socket);
    raw_send(&third, attach("never", 10000000), 1, NULL, 0);
    mla_message_init(&m, MLA_MSG_HEALTH);
    raw_expect(&third, &m, MLA_OK, NULL);
    raw_close(&third);
    WAIT_FOR(raw_metric(&owner.r, "mlad_clients", "") == 2, 1000 * TEST_SLOW);
    uint64_t second = raw_cache(&owner.r, owner.kv_region, 4);
    raw_expect(&owner.r, publish(second, "never"), MLA_OK, NULL);
    ck_assert_int_eq(raw_wait(&other.r, 503)->reply.status.code, MLA_OK);
    teardown();
}
END_TEST

/* ---- the end ---- */

/* A job of g on this cache that waits for word 0; returns when the daemon has it. */
static void waiting_job(struct ground *g, uint64_t cache, uint64_t request_id)
{
    ground_decode(g, &m);
    m.decode.cache = cache;
    m.decode.ready = ground_ref(g->sync, 0);
    m.decode.done = ground_ref(g->sync, 64);
    m.decode.status_ref = ground_ref(g->io_region, GROUND_STATUS);
    m.decode.timeout_us = 60000000;
    raw_send(&g->r, &m, request_id, NULL, 0);
    mla_message_init(&m, MLA_MSG_HEALTH);
    raw_expect(&g->r, &m, MLA_OK, NULL);
}

/* 0: the owner drops it; 1: the owner dies. */
START_TEST(revoked)
{
    setup();
    raw_expect(&owner.r, publish(owner.cache, "main"), MLA_OK, NULL);
    uint64_t cache = attached(&other, "main");
    waiting_job(&other, cache, 700);
    uint64_t mapped = daemon_mapped_bytes(&d, "memfd:", NULL);
    uint64_t start = test_now_us();
    if (_i == 0)
        raw_expect(&owner.r, drop(owner.cache), MLA_OK, NULL);
    else
        raw_close(&owner.r);
    const struct mla_message *reply = raw_wait(&other.r, 700);
    ck_assert_str_eq(mla_status_name(reply->reply.status.code), "CACHE_GONE");
    gone(&other, cache, "main");
    ck_assert_uint_lt(test_now_us() - start, 1000000 * TEST_SLOW);
    /* What a stream sees of it. */
    ck_assert_uint_eq(__atomic_load_n(&other.words[8], __ATOMIC_ACQUIRE), 1 + (UINT64_C(1) << 62));
    ck_assert_uint_eq(*(uint64_t *)(void *)(other.io + GROUND_STATUS), (uint64_t)MLA_CACHE_GONE << 32);
    ck_assert_int_eq(decode_with(&other, cache), MLA_CACHE_GONE);
    raw_expect(&other.r, attach("main", 0), MLA_NOT_FOUND, "name");
    raw_expect(&other.r, detach(cache), MLA_OK, NULL);
    ck_assert_int_eq(decode_with(&other, cache), MLA_NOT_FOUND);
    if (_i == 1)
        WAIT_FOR(daemon_mapped_bytes(&d, "memfd:", NULL) <= mapped / 2, 1000 * TEST_SLOW);
    teardown();
}
END_TEST

/* The attacher has let go of its attachment, but not its job: the owner's memory must not wait for that. */
START_TEST(revoked_behind_a_detached_attachment)
{
    setup();
    raw_expect(&owner.r, publish(owner.cache, "main"), MLA_OK, NULL);
    uint64_t cache = attached(&other, "main");
    waiting_job(&other, cache, 700);
    raw_expect(&other.r, detach(cache), MLA_OK, NULL);
    uint64_t mapped = daemon_mapped_bytes(&d, "memfd:", NULL);
    raw_close(&owner.r);
    const struct mla_message *reply = raw_wait(&other.r, 700);
    ck_assert_str_eq(mla_status_name(reply->reply.status.code), "CACHE_GONE");
    WAIT_FOR(daemon_mapped_bytes(&d, "memfd:", NULL) <= mapped / 2, 1000 * TEST_SLOW);
    WAIT_FOR(raw_metric(&other.r, "mlad_clients", "") == 1, 1000 * TEST_SLOW);
    ck_assert_uint_eq(other.r.notices, 0); /* of an attachment that is no more nothing is said */
    teardown();
}
END_TEST

/* The attacher dies while its job waits: the owner's cache can be dropped at once. */
START_TEST(attacher_dies)
{
    setup();
    raw_expect(&owner.r, publish(owner.cache, "main"), MLA_OK, NULL);
    struct ground third;
    ground_open(&third, d.socket);
    uint64_t cache = attached(&third, "main");
    waiting_job(&third, cache, 700);
    raw_close(&third.r);
    WAIT_FOR(raw_metric(&owner.r, "mlad_clients", "") == 2, 1000 * TEST_SLOW);
    ck_assert_double_eq(raw_metric(&owner.r, "mlad_attachments", ""), 0);
    raw_expect(&owner.r, drop(owner.cache), MLA_OK, NULL);
    teardown();
}
END_TEST

/* The owner's own waiting job holds its cache until it ends. */
START_TEST(dropped_under_ones_own_job)
{
    setup();
    waiting_job(&owner, owner.cache, 700);
    raw_send(&owner.r, drop(owner.cache), 701, NULL, 0);
    ck_assert(!raw_readable(&owner.r, 50));
    __atomic_store_n(&owner.words[0], 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(raw_wait(&owner.r, 700)->reply.status.code, MLA_OK);
    ck_assert_int_eq(raw_wait(&owner.r, 701)->reply.status.code, MLA_OK);
    ck_assert_int_eq(decode_with(&owner, owner.cache), MLA_NOT_FOUND);
    teardown();
}
END_TEST

MLA_SUITE(mlad_publish)
{
    TCase *tc = mla_tcase(suite, "publish");
    tcase_add_test(tc, names);
    tcase_add_test(tc, attach_use_detach);
    tcase_add_test(tc, groups);
    tcase_add_test(tc, waiting_for_a_name);
    tcase_add_loop_test(tc, revoked, 0, 2);
    tcase_add_test(tc, revoked_behind_a_detached_attachment);
    tcase_add_test(tc, attacher_dies);
    tcase_add_test(tc, dropped_under_ones_own_job);
}
