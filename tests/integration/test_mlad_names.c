/* D8: what another client owns does not exist, whatever message names it and as whatever. */
#include <signal.h>
#include <string.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

static struct daemon d;
static struct ground a, b;
static struct mla_message m;
static uint64_t attachment; /* of a, to a cache of its own */

static void setup(void)
{
    daemon_start(&d, NULL);
    ground_open(&a, d.socket);
    ground_open(&b, d.socket);
    mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
    m.publish_cache.cache = a.cache;
    m.publish_cache.name = "theirs";
    raw_expect(&a.r, &m, MLA_OK, NULL);
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = "theirs";
    attachment = raw_call(&a.r, &m)->attach_cache_reply.cache;
    ck_assert_uint_ne(attachment, 0);
    ck_assert_uint_ne(attachment, a.cache);
}

static void teardown(void)
{
    ground_decodes(&a);
    ground_decodes(&b);
    ground_close(&a);
    ground_close(&b);
    daemon_stop(&d, SIGTERM, 0);
}

#define REQUEST(type, body, member, id) (mla_message_init(&m, MLA_MSG_##type), m.body.member = (id), &m)

START_TEST(objects)
{
    setup();
    const uint64_t regions[] = {a.kv_region, a.io_region, a.sync, a.cache, b.cache, 1};
    for (size_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        raw_expect(&b.r, REQUEST(UNREGISTER_REGION, unregister_region, region, regions[i]), MLA_NOT_FOUND, "region");
        mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
        m.define_cache.layout = MLA_CACHE_E4M3_576;
        m.define_cache.region = regions[i];
        m.define_cache.num_pages = 1;
        raw_expect(&b.r, &m, MLA_NOT_FOUND, "region");
    }
    m.define_cache.region = b.sync; /* one's own, but not of that kind */
    raw_expect(&b.r, &m, MLA_NOT_FOUND, "region");

    const uint64_t caches[] = {a.cache, attachment, a.kv_region, b.kv_region, 1};
    for (size_t i = 0; i < sizeof(caches) / sizeof(caches[0]); i++) {
        mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
        m.publish_cache.cache = caches[i];
        m.publish_cache.name = "mine";
        raw_expect(&b.r, &m, MLA_NOT_FOUND, "cache");
        raw_expect(&b.r, REQUEST(DETACH_CACHE, detach_cache, cache, caches[i]), MLA_NOT_FOUND, "cache");
        raw_expect(&b.r, REQUEST(DROP_CACHE, drop_cache, cache, caches[i]), MLA_NOT_FOUND, "cache");
    }
    raw_expect(&b.r, REQUEST(DETACH_CACHE, detach_cache, cache, b.cache), MLA_NOT_FOUND, "cache"); /* not attached */
    raw_expect(&a.r, REQUEST(DROP_CACHE, drop_cache, cache, attachment), MLA_NOT_FOUND, "cache");  /* not owned */

    /* Table sets are numbered by the client: 5 of a is nothing to b. */
    raw_tables(&a.r, 5, 1, 64);
    raw_expect(&b.r, REQUEST(DROP_TABLE_SET, drop_table_set, id, 5), MLA_NOT_FOUND, "id");
    raw_tables(&b.r, 5, 1, 128);
    raw_expect(&b.r, REQUEST(DROP_TABLE_SET, drop_table_set, id, 5), MLA_OK, NULL);
    raw_expect(&a.r, REQUEST(DROP_TABLE_SET, drop_table_set, id, 5), MLA_OK, NULL);
    teardown();
}
END_TEST

START_TEST(jobs)
{
    setup();
    /* A job of a waits for its word; b cannot cancel it, and may have a request of the same number. */
    ground_decode(&a, &m);
    m.decode.ready = ground_ref(a.sync, 0);
    raw_send(&a.r, &m, 1000, NULL, 0);
    struct mla_message health;
    mla_message_init(&health, MLA_MSG_HEALTH);
    raw_expect(&a.r, &health, MLA_OK, NULL);
    raw_expect(&b.r, REQUEST(CANCEL, cancel, request_id, 1000), MLA_NOT_FOUND, "request_id");
    ck_assert_uint_eq(b.r.message.reply.status.value, 1000);
    ground_decode(&b, &m);
    raw_send(&b.r, &m, 1000, NULL, 0);
    ck_assert_int_eq(raw_wait(&b.r, 1000)->reply.status.code, MLA_OK);
    raw_expect(&b.r, REQUEST(CANCEL, cancel, request_id, 1000), MLA_NOT_FOUND, "request_id"); /* answered */
    raw_expect(&a.r, REQUEST(CANCEL, cancel, request_id, 999), MLA_NOT_FOUND, "request_id");
    /* Twice in flight is once too often. */
    ground_decode(&a, &m);
    raw_send(&a.r, &m, 1000, NULL, 0);
    const struct mla_message *reply = raw_wait(&a.r, 1000);
    ck_assert_int_eq(reply->reply.status.code, MLA_ALREADY_EXISTS);
    ck_assert_str_eq(reply->reply.status.field, "request_id");
    __atomic_store_n(&a.words[0], 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(raw_wait(&a.r, 1000)->reply.status.code, MLA_OK);
    teardown();
}
END_TEST

/* Every reference of a DECODE, to every kind of thing that is not the client's to name there. */
START_TEST(references_of_a_decode)
{
    setup();
    struct mla_decode_request *q = &m.decode;
    struct {
        uint64_t *id;
        bool *present;
        const char *field;
        bool word;
    } refs[] = {
        {&q->q.region, NULL, "q.region", false},
        {&q->q_rope.region, &q->q_rope.present, "q_rope.region", false},
        {&q->o.region, NULL, "o.region", false},
        {&q->lse.region, &q->lse.present, "lse.region", false},
        {&q->visible_ref.region, &q->visible_ref.present, "visible_ref.region", false},
        {&q->kv_len_ref.region, &q->kv_len_ref.present, "kv_len_ref.region", false},
        {&q->table_ref.region, &q->table_ref.present, "table_ref.region", false},
        {&q->ready.region, &q->ready.present, "ready.region", true},
        {&q->done.region, &q->done.present, "done.region", true},
        {&q->status_ref.region, &q->status_ref.present, "status_ref.region", false},
    };
    const uint64_t ids[] = {a.io_region, a.kv_region, a.sync, a.cache, attachment, b.cache, 1, UINT64_MAX};
    for (size_t k = 0; k < sizeof(refs) / sizeof(refs[0]); k++) {
        for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
            ground_decode(&b, &m);
            if (refs[k].present != NULL)
                *refs[k].present = true;
            q->q_rope.compact = true;
            if (refs[k].id == &q->table_ref.region) {
                q->table_set = GROUND_DEVICE;
                q->table_entries_per_seq = GROUND_PAGES;
            }
            if (refs[k].id == &q->visible_ref.region)
                q->mask = MLA_MASK_VISIBLE;
            *refs[k].id = ids[i];
            raw_expect(&b.r, &m, MLA_NOT_FOUND, refs[k].field);
            ck_assert_uint_eq(b.r.message.reply.status.value, ids[i]);
        }
        /* Words live in sync pages and nowhere else; tensors never do. */
        if (refs[k].word) {
            *refs[k].id = b.io_region;
            raw_expect(&b.r, &m, MLA_INVALID_ARGUMENT, refs[k].field);
        }
    }
    for (size_t k = 0; k < 4; k++) {
        ground_decode(&b, &m);
        if (refs[k].present != NULL)
            *refs[k].present = true;
        q->q_rope.compact = true;
        *refs[k].id = b.sync;
        raw_expect(&b.r, &m, MLA_NOT_FOUND, refs[k].field);
    }
    const uint64_t caches[] = {a.cache, attachment, a.kv_region, b.kv_region, 1};
    for (size_t i = 0; i < sizeof(caches) / sizeof(caches[0]); i++) {
        ground_decode(&b, &m);
        q->cache = caches[i];
        raw_expect(&b.r, &m, MLA_NOT_FOUND, "cache");
    }
    raw_tables(&a.r, 9, 2, 200);
    ground_decode(&b, &m);
    q->table_set = 9;
    raw_expect(&b.r, &m, MLA_NOT_FOUND, "table_set");
    ck_assert_double_eq(raw_metric(&b.r, "mlad_jobs_total", "status=\"OK\""), 0);
    teardown();
}
END_TEST

MLA_SUITE(mlad_names)
{
    TCase *tc = mla_tcase(suite, "names");
    tcase_add_test(tc, objects);
    tcase_add_test(tc, jobs);
    tcase_add_test(tc, references_of_a_decode);
}
