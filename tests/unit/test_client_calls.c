/* Memory, caches, table sets, reads: each call's way through the fake daemon, and its refusals. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/test_client_server.h"

#include "tests/support/check_main.h"

#define LONG_US 10000000

/* ---- memory ---- */

START_TEST(memory_is_sealed_and_zero)
{
    struct mla_memory m;
    ck_assert_int_eq(mla_memory_create(5000, 0, &m), MLA_OK);
    ck_assert_uint_eq(m.size, 8192);
    ck_assert_int_eq(fcntl(m.fd, F_GET_SEALS), F_SEAL_SHRINK | F_SEAL_GROW);
    ck_assert_int_eq(ftruncate(m.fd, 0), -1);
    for (size_t i = 0; i < m.size; i++)
        ck_assert_uint_eq(((uint8_t *)m.addr)[i], 0);
    ((uint8_t *)m.addr)[8191] = 7;
    mla_memory_free(&m);
    ck_assert_ptr_null(m.addr);
    mla_memory_free(&m);
    ck_assert_int_eq(mla_memory_create(0, 0, &m), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(m.fd, -1);
    ck_assert_int_eq(mla_memory_create(1, 1, &m), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_memory_create(UINT64_MAX, 0, &m), MLA_INVALID_ARGUMENT);
    mla_memory_free(&m);
}
END_TEST

static bool look_at_region(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    (void)id, (void)user;
    if (request->type == MLA_MSG_REGISTER_REGION) {
        ck_assert_uint_eq(request->register_region.kind, MLA_REGION_MEMFD);
        ck_assert_uint_eq(request->register_region.access, MLA_ACCESS_READ_WRITE);
        ck_assert_uint_eq(request->register_region.offset, 4096);
        ck_assert_uint_eq(request->register_region.size, 8192);
        ck_assert_str_eq(request->register_region.label, "outputs");
        ck_assert_uint_eq(conn->f->n_fds, 1);
    }
    return false;
}

START_TEST(regions)
{
    struct fake *f = fake_start(look_at_region, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_memory m;
    struct mla_region_desc d;
    mla_region_id region = 0;
    ck_assert_int_eq(mla_memory_create(12288, 0, &m), MLA_OK);
    mla_region_desc_init(&d);
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_NO_DESCRIPTORS);
    d.fd = m.fd;
    d.offset = 4096;
    d.bytes = 8192;
    d.access = MLA_ACCESS_READ_WRITE;
    d.label = "outputs";
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_OK);
    ck_assert_uint_eq(region, 1001);
    ck_assert_int_eq(mla_region_unregister(c, region, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->last_object, 1001);
    d.kind = (enum mla_region_kind)9;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "kind");
    d.kind = MLA_REGION_MEMFD;
    d.size = 16;
    ck_assert_int_eq(mla_region_register(c, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_region_register(c, NULL, LONG_US, &region), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_region_register(NULL, &d, LONG_US, &region), MLA_INVALID_ARGUMENT);
    mla_memory_free(&m);
    mla_close(c);
    fake_stop(f);
}
END_TEST

static bool refuse_regions(struct fake_conn *conn, const struct mla_message *request, uint64_t id, void *user)
{
    (void)user;
    if (request->type != MLA_MSG_REGISTER_REGION)
        return false;
    struct mla_error err = {.code = MLA_QUOTA,
                            .field = "size",
                            .index = 3,
                            .value = 4096,
                            .limit = 1024,
                            .retry_after_us = 99,
                            .text = "this client may map 1024 bytes"};
    fake_refuse(conn, request->type, id, &err);
    return true;
}

START_TEST(refusals_carry_everything)
{
    struct fake *f = fake_start(refuse_regions, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_memory m;
    mla_region_id region = 55;
    ck_assert_int_eq(mla_memory_create(4096, 0, &m), MLA_OK);
    ck_assert_int_eq(mla_memory_register(c, &m, MLA_ACCESS_READ, NULL, LONG_US, &region), MLA_QUOTA);
    const struct mla_error_info *e = mla_last_error(c);
    ck_assert_int_eq(e->status, MLA_QUOTA);
    ck_assert_str_eq(e->field, "size");
    ck_assert_uint_eq(e->index, 3);
    ck_assert_uint_eq(e->value, 4096);
    ck_assert_uint_eq(e->limit, 1024);
    ck_assert_uint_eq(e->retry_after_us, 99);
    ck_assert_str_eq(e->text, "this client may map 1024 bytes");
    ck_assert_uint_eq(region, 55);
    /* The next call that succeeds clears it. */
    ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_last_error(c)->status, MLA_OK);
    ck_assert_str_eq(mla_errname(MLA_QUOTA), "QUOTA");
    ck_assert_str_eq(mla_strerror(MLA_QUOTA), "over a quota of this client");
    ck_assert_str_eq(mla_errname((enum mla_status)999), "UNKNOWN");
    mla_memory_free(&m);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(sync_pages)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_sync *s;
    ck_assert_int_eq(mla_sync_create(c, 0, LONG_US, &s), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_sync_create(c, 16385, LONG_US, &s), MLA_TOO_LARGE);
    ck_assert_uint_eq(mla_last_error(c)->limit, 16384);
    ck_assert_int_eq(mla_sync_create(c, 16384, LONG_US, &s), MLA_OK);
    ck_assert_uint_eq(mla_sync_words(s), 16384);
    ck_assert_int_eq(mla_sync_destroy(s, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->last_object, 1001);
    ck_assert_int_eq(mla_sync_create(c, 3, LONG_US, &s), MLA_OK);
    ck_assert_uint_eq(mla_sync_words(s), 64);
    ck_assert_uint_eq((uintptr_t)mla_sync_word(s, 1) - (uintptr_t)mla_sync_word(s, 0), 64);
    ck_assert_ptr_null(mla_sync_word(s, 64));
    ck_assert_uint_eq(mla_sync_location(s, 2).region, 1002);
    ck_assert_uint_eq(mla_sync_location(s, 2).offset, 128);
    ck_assert_uint_eq(mla_sync_location(s, 64).region, 0);
    mla_word_store(mla_sync_word(s, 2), 41);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 2)), 41);
    ck_assert(!mla_word_reached(41, 42));
    ck_assert(mla_word_reached(42, 42) && mla_word_reached(43, 42) && !mla_word_aborted(43, 42));
    ck_assert(mla_word_reached(42 + MLA_ABORT_OFFSET, 42) && mla_word_aborted(42 + MLA_ABORT_OFFSET, 42));
    ck_assert(mla_word_reached(1, UINT64_MAX) && !mla_word_reached(UINT64_MAX, 1));
    mla_close(c);
    ck_assert_uint_eq(mla_word_load(mla_sync_word(s, 2)), 41);
    ck_assert_int_eq(mla_sync_destroy(s, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_sync_destroy(NULL, 0), MLA_OK);
    fake_stop(f);
}
END_TEST

/* ---- caches and table sets ---- */

static bool look_at_caches(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)conn, (void)id, (void)user;
    switch (m->type) {
    case MLA_MSG_DEFINE_CACHE:
        ck_assert_uint_eq(m->define_cache.region, 9);
        ck_assert_uint_eq(m->define_cache.n_plane_offset, 2);
        ck_assert_uint_eq(m->define_cache.plane_offset[1], 640000);
        ck_assert_uint_eq(m->define_cache.num_pages, 10);
        ck_assert_uint_eq(m->define_cache.row_stride, 592);
        ck_assert_uint_eq(m->define_cache.page_stride, 64 * 592);
        ck_assert_uint_eq(m->define_cache.tokens_per_entry, 128);
        break;
    case MLA_MSG_PUBLISH_CACHE:
        ck_assert_str_eq(m->publish_cache.name, "kv");
        ck_assert_uint_eq(m->publish_cache.n_gids, 2);
        ck_assert_uint_eq(m->publish_cache.gids[1], 20);
        break;
    case MLA_MSG_ATTACH_CACHE:
        ck_assert(m->attach_cache.has_owner_uid == !strcmp(m->attach_cache.name, "other"));
        ck_assert_uint_eq(m->attach_cache.wait_us, 5);
        break;
    case MLA_MSG_PUT_TABLE_SET:
        ck_assert_uint_eq(m->put_table_set.n_q_len, 2);
        ck_assert_uint_eq(m->put_table_set.q_len[0], 4);
        ck_assert_uint_eq(m->put_table_set.kv_len_max[1], 64);
        ck_assert_uint_eq(m->put_table_set.n_pages, 3);
        ck_assert_uint_eq(m->put_table_set.pages[2], 8);
        break;
    default:
        break;
    }
    return false;
}

START_TEST(caches_are_defined_and_shared)
{
    struct fake *f = fake_start(look_at_caches, NULL);
    struct mla_client *c = fake_open(f);
    const uint64_t planes[2] = {0, 640000};
    const uint32_t gids[2] = {10, 20};
    struct mla_cache_desc d;
    mla_cache_id cache;
    struct mla_cache_info info;
    mla_cache_desc_init(&d);
    d.region = 9;
    d.plane_offset = planes;
    d.n_planes = 2;
    d.num_pages = 10;
    d.row_stride = 592;
    d.tokens_per_entry = 128;
    ck_assert_int_eq(mla_cache_define(c, &d, LONG_US, &cache), MLA_OK);
    ck_assert_uint_eq(cache, 1001);
    ck_assert_int_eq(mla_cache_publish(c, cache, "kv", gids, 2, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_cache_publish(c, cache, NULL, gids, 2, LONG_US), MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_cache_attach(c, MLA_UID_SELF, "mine", 5, LONG_US, &info), MLA_OK);
    ck_assert_uint_eq(info.cache, 1002);
    ck_assert_uint_eq(info.num_pages, 1000);
    ck_assert_uint_eq(info.planes, 3);
    ck_assert_uint_eq(info.tokens_per_entry, 128);
    ck_assert_int_eq(info.layout, MLA_CACHE_E4M3_576);
    ck_assert_int_eq(mla_cache_attach(c, 0, "other", 5, LONG_US, &info), MLA_OK);
    ck_assert_int_eq(mla_cache_detach(c, info.cache, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->last_object, 1003);
    ck_assert_int_eq(mla_cache_drop(c, cache, LONG_US), MLA_OK);
    ck_assert_uint_eq(f->last_object, 1001);
    /* Refused by the daemon's own codec: the field's name comes through. */
    d.num_pages = 0;
    ck_assert_int_eq(mla_cache_define(c, &d, LONG_US, &cache), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "num_pages");
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(table_sets)
{
    struct fake *f = fake_start(look_at_caches, NULL);
    struct mla_client *c = fake_open(f);
    const uint32_t q_len[2] = {4, 1}, kv_len[2] = {65, 64}, pages[3] = {6, 7, 8};
    struct mla_tables t;
    mla_tables_init(&t);
    t.id = 0;
    t.n_seqs = 2;
    t.q_len = q_len;
    t.kv_len_max = kv_len;
    t.entries = pages;
    t.n_entries = 3;
    ck_assert_int_eq(mla_tables_put(c, &t, 0), MLA_OK);
    ck_assert_int_eq(mla_tables_put(c, &t, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_tables_drop(c, 0, 0), MLA_OK);
    ck_assert_int_eq(mla_tables_drop(c, 0, LONG_US), MLA_OK);
    fake_await_seen(f, MLA_MSG_DROP_TABLE_SET, 2);
    t.q_len = NULL;
    ck_assert_int_eq(mla_tables_put(c, &t, LONG_US), MLA_INVALID_ARGUMENT);
    ck_assert_str_eq(mla_last_error(c)->field, "q_len");
    /* A frame larger than any of its type is refused here. */
    t.q_len = q_len;
    t.n_entries = 3u << 20;
    uint32_t *many = calloc(t.n_entries, sizeof(uint32_t));
    t.entries = many;
    ck_assert_int_eq(mla_tables_put(c, &t, LONG_US), MLA_TOO_LARGE);
    ck_assert_uint_eq(mla_last_error(c)->limit, MLA_CAP_TABLE_BYTES);
    free(many);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- giving up ---- */

static bool hold_memory(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    if (m->type != MLA_MSG_REGISTER_REGION && m->type != MLA_MSG_DROP_CACHE && m->type != MLA_MSG_HEALTH)
        return false;
    fake_hold(conn, m, id);
    return true;
}

START_TEST(what_was_given_up_is_undone)
{
    struct fake *f = fake_start(hold_memory, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_memory m;
    mla_region_id region;
    ck_assert_int_eq(mla_memory_create(1, 0, &m), MLA_OK);
    ck_assert_int_eq(mla_memory_register(c, &m, MLA_ACCESS_READ, NULL, 1000, &region), MLA_PENDING);
    ck_assert_int_eq(mla_last_error(c)->status, MLA_PENDING);
    fake_await_held(f, 1);
    fake_answer_held(f, 0);
    ck_assert_int_eq(mla_dispatch(c, 1000), MLA_PENDING);
    while (mla_dispatch(c, 1000) == MLA_PENDING && !f->n_seen[MLA_MSG_UNREGISTER_REGION])
        ;
    fake_await_seen(f, MLA_MSG_UNREGISTER_REGION, 1);
    ck_assert_uint_eq(f->last_object, 1001);
    mla_memory_free(&m);
    mla_close(c);
    fake_stop(f);
}
END_TEST

START_TEST(an_ending_call_goes_on)
{
    struct fake *f = fake_start(hold_memory, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_health_info *health;
    ck_assert_int_eq(mla_cache_drop(c, 7, 0), MLA_PENDING);
    ck_assert_int_eq(mla_cache_drop(c, 7, 1000), MLA_PENDING);
    ck_assert_int_eq(mla_cache_drop(c, 8, 1000), MLA_PENDING);
    ck_assert_int_eq(mla_read_health(c, 1000, &health), MLA_PENDING);
    ck_assert_ptr_null(health);
    fake_await_held(f, 3);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_DROP_CACHE], 2);
    fake_answer_held(f, 0);
    ck_assert_int_eq(mla_cache_drop(c, 7, LONG_US), MLA_OK);
    /* The answer to 8 comes while nobody asks. */
    fake_answer_held(f, 1);
    ck_assert_int_eq(mla_region_unregister(c, 1, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_cache_drop(c, 8, 0), MLA_OK);
    ck_assert_uint_eq(f->n_seen[MLA_MSG_DROP_CACHE], 2);
    mla_close(c);
    fake_stop(f);
}
END_TEST

/* ---- reads ---- */

START_TEST(reads)
{
    struct fake *f = fake_start(NULL, NULL);
    struct mla_client *c = fake_open(f);
    struct mla_health_info *h;
    ck_assert_int_eq(mla_read_health(c, LONG_US, &h), MLA_OK);
    ck_assert_int_eq(h->state, MLA_HEALTH_DEGRADED);
    ck_assert_str_eq(h->reason, "tired");
    ck_assert_str_eq(h->gpu_uuid, "");
    ck_assert_uint_eq(h->uptime_us, 123);
    mla_free(h);

    struct mla_metrics_info *m;
    ck_assert_int_eq(mla_read_metrics(c, LONG_US, &m), MLA_OK);
    ck_assert_uint_eq(m->n_families, 2);
    ck_assert_str_eq(m->families[0]->name, "mlad_requests_total");
    ck_assert_int_eq(m->families[0]->type, MLA_METRIC_COUNTER);
    ck_assert_uint_eq(m->families[0]->n_samples, 2);
    ck_assert_str_eq(m->families[0]->samples[1].labels, "outcome=\"refused\"");
    ck_assert_double_eq(m->families[0]->samples[1].value, 0.5);
    ck_assert_uint_eq(m->families[1]->n_samples, 0);
    mla_free(m);

    struct mla_daemon_info *d;
    ck_assert_int_eq(mla_read_daemon(c, LONG_US, &d), MLA_OK);
    ck_assert_str_eq(d->device_name, "a CPU");
    ck_assert_int_eq(d->health, MLA_HEALTH_READY);
    ck_assert_uint_eq(d->clients, 2);
    ck_assert_uint_eq(d->units, 4);
    ck_assert_uint_eq(d->device_memory_bytes, UINT64_C(5) << 32);
    mla_free(d);

    struct mla_client_list *clients;
    ck_assert_int_eq(mla_read_clients(c, LONG_US, &clients), MLA_OK);
    ck_assert_uint_eq(clients->n_clients, 2);
    ck_assert_str_eq(clients->clients[0]->name, "one");
    ck_assert_uint_eq(clients->clients[0]->jobs_answered, 8);
    ck_assert_uint_eq(clients->clients[0]->weight, 3);
    ck_assert_uint_eq(clients->clients[1]->uid, 60);
    mla_free(clients);

    struct mla_cache_list *caches;
    ck_assert_int_eq(mla_read_caches(c, LONG_US, &caches), MLA_OK);
    ck_assert_uint_eq(caches->n_caches, 1);
    ck_assert_str_eq(caches->caches[0]->name, "kv");
    ck_assert_str_eq(caches->caches[0]->label, "layer");
    ck_assert_uint_eq(caches->caches[0]->num_pages, 9);
    mla_free(caches);

    uint64_t jobs = 0, deadline = 17;
    ck_assert_int_eq(mla_drain(c, NULL, LONG_US, &jobs), MLA_OK);
    ck_assert_uint_eq(jobs, 4242);
    ck_assert_int_eq(mla_drain(c, &deadline, LONG_US, &jobs), MLA_OK);
    ck_assert_uint_eq(jobs, 17);
    ck_assert_int_eq(mla_drain(c, NULL, LONG_US, NULL), MLA_OK);
    ck_assert_int_eq(mla_read_health(c, LONG_US, NULL), MLA_INVALID_ARGUMENT);
    mla_close(c);
    fake_stop(f);
}
END_TEST

MLA_SUITE(client_calls)
{
    TCase *tc = mla_tcase(suite, "memory");
    tcase_add_test(tc, memory_is_sealed_and_zero);
    tcase_add_test(tc, regions);
    tcase_add_test(tc, refusals_carry_everything);
    tcase_add_test(tc, sync_pages);
    tc = mla_tcase(suite, "caches");
    tcase_add_test(tc, caches_are_defined_and_shared);
    tcase_add_test(tc, table_sets);
    tc = mla_tcase(suite, "giving up");
    tcase_add_test(tc, what_was_given_up_is_undone);
    tcase_add_test(tc, an_ending_call_goes_on);
    tc = mla_tcase(suite, "reads");
    tcase_add_test(tc, reads);
}
