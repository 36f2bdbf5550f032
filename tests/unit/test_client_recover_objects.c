/* What is registered again on another connection, and what is not. */
#include <sys/mman.h>

#include "tests/unit/test_client_recover.h"

/* ---- streams ---- */

START_TEST(what_streams_wait_for_fails)
{
    struct mla_sync *s;
    struct mla_template *t;
    struct mla_step_result step;
    struct mla_decode_result result;
    mla_request_id job, step_id;
    start();
    ck_assert_int_eq(mla_sync_create(c, 8, LONG_US, &s), MLA_OK);
    ck_assert_int_eq(mla_watch_start(c), MLA_OK);
    struct mla_decode_args a = job_args(1, 3, 5), layer = a;
    layer.ready = mla_sync_location(s, 0);
    layer.done = mla_sync_location(s, 1);
    ck_assert_int_eq(mla_template_open(c, &layer, 1, LONG_US, &t), MLA_OK);
    a.done = mla_sync_location(s, 2);
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &job), MLA_OK);
    fake_await_held(f, 1);
    set_type(&hold_type, MLA_MSG_STEP);
    ck_assert_int_eq(mla_step_submit(t, NULL, NULL, NULL, &step_id), MLA_OK);
    fake_await_held(f, 2);
    set_type(&hold_type, 0);
    restart();
    /* Whatever the thread of the handle does: the streams go on. */
    while (!mla_word_aborted(mla_word_load(mla_sync_word(s, 1)), 1) ||
           !mla_word_aborted(mla_word_load(mla_sync_word(s, 2)), 1))
        usleep(1000);
    mla_decode_result_init(&result);
    mla_step_result_init(&step);
    ck_assert_int_eq(mla_wait(c, job, LONG_US, &result), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_step_wait(c, step_id, LONG_US, &step), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_wait_connected(c, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 1);
    ck_assert_uint_eq(asked(MLA_MSG_STEP, NULL), 1);
    ck_assert_int_eq(mla_step(t, NULL, LONG_US, &step), MLA_NOT_FOUND);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_TEMPLATE_CLOSE, NULL), 0);
    /* The page is there again, and all works anew; the watcher as well. */
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_SYNC, NULL), 2);
    ck_assert_int_eq(mla_template_open(c, &layer, 1, LONG_US, &t), MLA_OK);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 1)), 0);
    ck_assert_int_eq(mla_step(t, NULL, LONG_US, &step), MLA_OK);
    mla_word_store(mla_sync_word(s, 2), 0);
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &job), MLA_OK);
    fake_await_held(f, 3);
    restart();
    while (!mla_word_aborted(mla_word_load(mla_sync_word(s, 2)), 1))
        usleep(1000);
    ck_assert_int_eq(mla_wait(c, job, LONG_US, &result), MLA_DISCONNECTED);
    ck_assert_int_eq(mla_template_close(t, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(s, LONG_US), MLA_OK);
    finish();
}
END_TEST

/* ---- caches of others ---- */

START_TEST(attachments_wait_for_their_owner)
{
    struct mla_cache_info info;
    struct mla_memory memory;
    mla_request_id held, other;
    start();
    mla_region_id region = memory_region(&memory);
    ck_assert_int_eq(mla_cache_attach(c, MLA_UID_SELF, "kv", 0, LONG_US, &info), MLA_OK);
    set_type(&hold_type, MLA_MSG_ATTACH_CACHE);
    restart();
    reconnect();
    struct mla_decode_args a = job_args(region, info.cache, 5);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &held), MLA_OK);
    a.cache = 3;
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &other), MLA_OK);
    ck_assert_int_eq(mla_wait(c, other, LONG_US, NULL), MLA_OK); /* who does not use it does not wait */
    ck_assert_int_eq(mla_wait(c, held, 20000, NULL), MLA_PENDING);
    ck_assert_uint_eq(asked(MLA_MSG_DECODE, NULL), 1);
    /* That daemon goes before the owner has come; to the next one it has. */
    set_type(&hold_type, 0);
    restart();
    ck_assert_int_eq(mla_wait(c, held, LONG_US, NULL), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_ATTACH_CACHE, NULL), 3);
    ck_assert_int_eq(mla_cache_detach(c, info.cache, LONG_US), MLA_OK);
    struct ask last;
    asked(MLA_MSG_DETACH_CACHE, &last);
    ck_assert_uint_eq(last.id, 5003);
    mla_memory_free(&memory);
    finish();
}
END_TEST

/* Another owner's pages under the same name are not what the jobs were about. */
START_TEST(another_cache_of_that_name_is_not_taken)
{
    struct mla_cache_info info;
    mla_request_id id;
    struct ask last;
    start();
    ck_assert_int_eq(mla_cache_attach(c, MLA_UID_SELF, "kv", 0, LONG_US, &info), MLA_OK);
    struct mla_decode_args a = job_args(1, info.cache, 5);
    set_type(&hold_type, MLA_MSG_DECODE);
    ck_assert_int_eq(mla_decode_submit(c, &a, NULL, NULL, &id), MLA_OK);
    fake_await_held(f, 1);
    pthread_mutex_lock(&f->lock);
    attach_tag = 43;
    hold_type = 0;
    pthread_mutex_unlock(&f->lock);
    restart();
    ck_assert_int_eq(mla_wait(c, id, LONG_US, NULL), MLA_CACHE_GONE);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_CACHE_GONE);
    mla_dispatch(c, 0);
    ck_assert_uint_eq(events.n[MLA_EVENT_CACHE_GONE], 1);
    ck_assert_uint_eq(events.last[MLA_EVENT_CACHE_GONE].cache, info.cache);
    ck_assert_str_eq(events.last[MLA_EVENT_CACHE_GONE].name, "kv");
    await_asked(MLA_MSG_DETACH_CACHE, 1);
    asked(MLA_MSG_DETACH_CACHE, &last);
    ck_assert_uint_eq(last.id, 5002);
    ck_assert_int_eq(mla_cache_detach(c, info.cache, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_DETACH_CACHE, NULL), 1); /* it was not there */
    finish();
}
END_TEST

START_TEST(names_are_published_again_with_their_tag)
{
    struct mla_memory memory;
    struct ask first, second;
    const uint32_t gid = 5;
    start();
    mla_region_id region = memory_region(&memory);
    mla_cache_id cache = cache_in(region);
    ck_assert_int_eq(mla_cache_publish(c, cache, "kv", &gid, 1, LONG_US), MLA_OK);
    asked(MLA_MSG_PUBLISH_CACHE, &first);
    ck_assert_uint_ne(first.tag, 0);
    restart();
    reconnect();
    ck_assert_uint_eq(asked(MLA_MSG_PUBLISH_CACHE, &second), 2);
    ck_assert_uint_eq(second.tag, first.tag);
    ck_assert_uint_ne(second.id, cache);
    /* Somebody else has the name now: the cache stays, and the owner is told. */
    pthread_mutex_lock(&f->lock);
    refuse_type = MLA_MSG_PUBLISH_CACHE;
    refuse_with = MLA_ALREADY_EXISTS;
    refusals = 1;
    pthread_mutex_unlock(&f->lock);
    restart();
    reconnect();
    ck_assert_uint_eq(events.n[MLA_EVENT_LOST], 1);
    ck_assert_uint_eq(events.last[MLA_EVENT_LOST].cache, cache);
    ck_assert_str_eq(events.last[MLA_EVENT_LOST].name, "kv");
    ck_assert_int_eq(events.last[MLA_EVENT_LOST].error.status, MLA_ALREADY_EXISTS);
    ck_assert_int_eq(mla_cache_drop(c, cache, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_DROP_CACHE, NULL), 1);
    mla_memory_free(&memory);
    finish();
}
END_TEST

/* ---- regions ---- */

START_TEST(a_region_that_is_refused_is_lost)
{
    struct mla_memory memory;
    start();
    mla_region_id region = memory_region(&memory);
    mla_cache_id cache = cache_in(region);
    pthread_mutex_lock(&f->lock);
    refuse_type = MLA_MSG_REGISTER_REGION;
    refuse_with = MLA_BAD_DESCRIPTOR;
    refusals = 1;
    pthread_mutex_unlock(&f->lock);
    restart();
    reconnect();
    ck_assert_uint_eq(events.n[MLA_EVENT_LOST], 1);
    ck_assert_uint_eq(events.last[MLA_EVENT_LOST].region, region);
    ck_assert_int_eq(events.last[MLA_EVENT_LOST].error.status, MLA_BAD_DESCRIPTOR);
    ck_assert_uint_eq(asked(MLA_MSG_DEFINE_CACHE, NULL), 1); /* nor is what lay in it made again */
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_BUSY);
    ck_assert_int_eq(mla_cache_drop(c, cache, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_UNREGISTER_REGION, NULL), 0);
    mla_memory_free(&memory);
    finish();
}
END_TEST

START_TEST(a_quota_that_is_still_full_passes)
{
    struct mla_memory memory;
    start();
    memory_region(&memory);
    pthread_mutex_lock(&f->lock);
    refuse_type = MLA_MSG_REGISTER_REGION;
    refuse_with = MLA_QUOTA;
    refusals = 5;
    pthread_mutex_unlock(&f->lock);
    restart();
    reconnect();
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 7);
    ck_assert_uint_eq(events.n[MLA_EVENT_LOST], 0);
    mla_memory_free(&memory);
    finish();
}
END_TEST

START_TEST(suspended_regions_come_back_when_resumed)
{
    struct mla_memory memory;
    struct mla_region_desc d;
    struct ask last;
    start();
    mla_region_id region = memory_region(&memory);
    mla_cache_id cache = cache_in(region);
    ck_assert_int_eq(mla_cache_publish(c, cache, "kv", NULL, 0, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_region_suspend(c, region, LONG_US), MLA_OK);
    restart();
    reconnect();
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 1);
    struct mla_decode_args a = job_args(region, cache, 5);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_SUSPENDED);
    mla_region_desc_init(&d);
    d.fd = memory.fd;
    d.bytes = memory.size;
    ck_assert_int_eq(mla_region_resume(c, region, &d, LONG_US), MLA_OK);
    ck_assert_uint_eq(asked(MLA_MSG_RESUME, NULL), 0);
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 2);
    ck_assert_uint_eq(asked(MLA_MSG_DEFINE_CACHE, NULL), 2);
    ck_assert_uint_eq(asked(MLA_MSG_PUBLISH_CACHE, NULL), 2);
    ck_assert_int_eq(mla_decode(c, &a, LONG_US, NULL), MLA_OK);
    asked(MLA_MSG_DECODE, &last);
    ck_assert_uint_ne(last.region, region);
    mla_dispatch(c, 0);
    ck_assert_uint_eq(events.n[MLA_EVENT_RECONNECTED], 1);
    restart();
    reconnect();
    ck_assert_uint_eq(asked(MLA_MSG_REGISTER_REGION, NULL), 3);
    mla_memory_free(&memory);
    finish();
}
END_TEST

static unsigned opened, done;

static int open_part(void *user, size_t part)
{
    (void)user;
    (void)part;
    opened++;
    return memfd_create("part", MFD_CLOEXEC);
}

static void open_done(void *user)
{
    (void)user;
    done++;
}

START_TEST(parts_are_opened_again)
{
    enum { PARTS = 40 };
    struct mla_vmm_part parts[PARTS];
    struct mla_region_desc d;
    mla_region_id region, plain;
    unsigned fds = fake_open_fds();
    opened = done = 0;
    start();
    for (unsigned i = 0; i < PARTS; i++)
        parts[i] = (struct mla_vmm_part){.fd = -1, .bytes = 2 << 20};
    mla_region_desc_init(&d);
    d.kind = MLA_REGION_CUDA_VMM;
    d.bytes = PARTS * (UINT64_C(2) << 20);
    d.parts = parts;
    d.n_parts = PARTS;
    d.open_part = open_part;
    d.open_user = &d;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &plain), MLA_OK);
    d.open_done = open_done;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    memset(parts, 0xee, sizeof(parts)); /* copied */
    ck_assert_uint_eq(opened, 2 * PARTS);
    ck_assert_uint_eq(done, 0);
    restart();
    reconnect();
    ck_assert_uint_eq(opened, 3 * PARTS);
    ck_assert_uint_eq(f->n_fds, 3 * PARTS);
    ck_assert_uint_eq(events.n[MLA_EVENT_LOST], 1); /* without open_done nothing of the caller's outlives the call */
    ck_assert_uint_eq(events.last[MLA_EVENT_LOST].region, plain);
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_OK);
    ck_assert_uint_eq(done, 1);
    d.parts = NULL; /* refused */
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_uint_eq(done, 2);
    finish();
    ck_assert_uint_eq(fake_open_fds(), fds);
}
END_TEST

MLA_SUITE(client_recover_objects)
{
    TCase *tc = mla_tcase(suite, "objects");
    tcase_add_test(tc, what_streams_wait_for_fails);
    tcase_add_test(tc, attachments_wait_for_their_owner);
    tcase_add_test(tc, another_cache_of_that_name_is_not_taken);
    tcase_add_test(tc, names_are_published_again_with_their_tag);
    tcase_add_test(tc, a_region_that_is_refused_is_lost);
    tcase_add_test(tc, a_quota_that_is_still_full_passes);
    tcase_add_test(tc, suspended_regions_come_back_when_resumed);
    tcase_add_test(tc, parts_are_opened_again);
}
