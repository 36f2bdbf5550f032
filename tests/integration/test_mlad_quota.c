/* Quotas of a client: the last that fits is taken, one more is refused with the numbers, and what is given back can be
 * used again at once. */
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/integration/ground.h"
#include "tests/support/check_main.h"
#include "tests/support/daemon_fixture.h"

static struct daemon d;
static struct raw r, second, third;
static struct mla_message m;

static void refused(const struct mla_error *e, const char *field, uint64_t value, uint64_t limit)
{
    ck_assert_str_eq(mla_status_name(e->code), "QUOTA");
    ck_assert_str_eq(e->field == NULL ? "" : e->field, field);
    ck_assert_uint_eq(e->value, value);
    ck_assert_uint_eq(e->limit, limit);
    ck_assert(e->text[0] != '\0');
}

/* Nothing of the client's is in flight: when it gives something back is its own affair. */
static void refused_for_good(const struct mla_error *e, const char *field, uint64_t value, uint64_t limit)
{
    refused(e, field, value, limit);
    ck_assert_uint_eq(e->retry_after_us, 0);
}

static void unregister(uint64_t region)
{
    mla_message_init(&m, MLA_MSG_UNREGISTER_REGION);
    m.unregister_region.region = region;
    raw_expect(&r, &m, MLA_OK, NULL);
}

static void region_request(uint64_t size)
{
    mla_message_init(&m, MLA_MSG_REGISTER_REGION);
    m.register_region.kind = MLA_REGION_MEMFD;
    m.register_region.access = MLA_ACCESS_READ_WRITE;
    m.register_region.size = size;
}

static void teardown(void)
{
    raw_close(&r);
    raw_close(&second);
    daemon_stop(&d, SIGTERM, 0);
}

START_TEST(regions)
{
    daemon_start(&d, "limits.max_regions=3", NULL);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    int fd = raw_memfd(4096, NULL);
    uint64_t *words;
    uint64_t a = raw_region(&r, fd, 4096, MLA_ACCESS_READ);
    raw_region(&r, fd, 4096, MLA_ACCESS_READ);
    raw_sync(&r, &words); /* a sync page is one too */
    region_request(4096);
    refused_for_good(&raw_call_fds(&r, &m, &fd, 1)->reply.status, "", 4, 3);
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = 4096;
    refused_for_good(&raw_call_fds(&r, &m, &fd, 1)->reply.status, "", 4, 3);
    raw_region(&second, fd, 4096, MLA_ACCESS_READ); /* per client */
    unregister(a);
    raw_region(&r, fd, 4096, MLA_ACCESS_READ);
    ck_assert_double_eq(raw_metric(&r, "mlad_replies_total", "status=\"QUOTA\""), 2);
    teardown();
}
END_TEST

START_TEST(mapped_bytes)
{
    daemon_start(&d, "limits.max_mapped_bytes=64K", NULL);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    int fd = raw_memfd(65536 + 4096, NULL);
    uint64_t a = raw_region(&r, fd, 65536 - 4096, MLA_ACCESS_READ);
    region_request(4097);
    refused_for_good(&raw_call_fds(&r, &m, &fd, 1)->reply.status, "size", 4097, 4096);
    uint64_t *words;
    raw_sync(&r, &words); /* takes what is left */
    region_request(1);
    refused_for_good(&raw_call_fds(&r, &m, &fd, 1)->reply.status, "size", 1, 0);
    region_request(65536 + 1);
    refused_for_good(&raw_call_fds(&second, &m, &fd, 1)->reply.status, "size", 65537, 65536);
    raw_region(&second, fd, 65536, MLA_ACCESS_READ);
    unregister(a);
    raw_region(&r, fd, 65536 - 4096, MLA_ACCESS_READ);
    /* A refused registration takes nothing of it. */
    raw_open(&third, d.socket);
    int shorter = raw_memfd(4096, NULL);
    for (unsigned i = 0; i < 3; i++) {
        region_request(40000);
        ck_assert_int_eq(raw_call_fds(&third, &m, &shorter, 1)->reply.status.code, MLA_OUT_OF_BOUNDS);
    }
    raw_region(&third, fd, 65536, MLA_ACCESS_READ);
    raw_close(&third);
    teardown();
}
END_TEST

START_TEST(caches_and_attachments)
{
    daemon_start(&d, "limits.max_caches=2", NULL);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    int fd = raw_memfd(64 * 576, NULL);
    uint64_t region = raw_region(&r, fd, 64 * 576, MLA_ACCESS_READ);
    uint64_t a = raw_cache(&r, region, 1);
    raw_cache(&r, region, 1);
    mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
    m.define_cache.layout = MLA_CACHE_E4M3_576;
    m.define_cache.region = region;
    m.define_cache.num_pages = 1;
    refused_for_good(&raw_call(&r, &m)->reply.status, "", 3, 2);
    mla_message_init(&m, MLA_MSG_DROP_CACHE);
    m.drop_cache.cache = a;
    raw_expect(&r, &m, MLA_OK, NULL);
    a = raw_cache(&r, region, 1);

    mla_message_init(&m, MLA_MSG_PUBLISH_CACHE);
    m.publish_cache.cache = a;
    m.publish_cache.name = "a";
    raw_expect(&r, &m, MLA_OK, NULL);
    mla_message_init(&m, MLA_MSG_ATTACH_CACHE);
    m.attach_cache.name = "a";
    uint64_t one = raw_call(&second, &m)->attach_cache_reply.cache;
    /* A wait holds the place of its attachment. */
    struct mla_message wait = m;
    wait.attach_cache.name = "b";
    wait.attach_cache.wait_us = 60000000;
    raw_send(&second, &wait, 500, NULL, 0);
    refused_for_good(&raw_call(&second, &m)->reply.status, "", 3, 2);
    struct mla_message detach;
    mla_message_init(&detach, MLA_MSG_DETACH_CACHE);
    detach.detach_cache.cache = one;
    raw_expect(&second, &detach, MLA_OK, NULL);
    raw_expect(&second, &m, MLA_OK, NULL);
    teardown();
}
END_TEST

START_TEST(table_sets)
{
    daemon_start(&d, "limits.max_table_sets=2", NULL);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    raw_tables(&r, 1, 1, 64);
    raw_tables(&r, 2, 1, 64);
    static const uint32_t one = 1, zero = 0;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 3;
    m.put_table_set.q_len = &one;
    m.put_table_set.kv_len_max = &zero;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1;
    struct mla_message put = m;
    refused_for_good(&raw_call(&r, &put)->reply.status, "id", 3, 2);
    mla_message_init(&m, MLA_MSG_DROP_TABLE_SET);
    m.drop_table_set.id = 1;
    raw_expect(&r, &m, MLA_OK, NULL);
    raw_expect(&r, &put, MLA_OK, NULL);
    teardown();
}
END_TEST

START_TEST(queued_bytes)
{
    static uint32_t q_len[1020], kv_len[1020], visible[2000];
    daemon_start(&d, "limits.max_queued_bytes=16K", NULL);
    struct ground g;
    ground_open(&g, d.socket);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    for (unsigned i = 0; i < 1020; i++)
        q_len[i] = 1;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 10;
    m.put_table_set.q_len = q_len;
    m.put_table_set.kv_len_max = kv_len;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1020;
    struct mla_message put = m; /* some 8,200 bytes and a little */
    raw_expect(&r, &put, MLA_OK, NULL);
    put.put_table_set.id = 11;
    const struct mla_error *e = &raw_call(&r, &put)->reply.status;
    ck_assert_str_eq(mla_status_name(e->code), "QUOTA");
    ck_assert_str_eq(e->field, "pages");
    ck_assert_uint_eq(e->limit, 16384);
    ck_assert_uint_gt(e->value, 16384);
    ck_assert_uint_lt(e->value, 17500);
    mla_message_init(&m, MLA_MSG_DROP_TABLE_SET);
    m.drop_table_set.id = 10;
    raw_expect(&r, &m, MLA_OK, NULL);
    raw_expect(&r, &put, MLA_OK, NULL);

    /* Counts that a job brings along are held for it too. */
    for (unsigned i = 0; i < 500; i++)
        q_len[i] = 4;
    put.put_table_set.n_q_len = put.put_table_set.n_kv_len_max = 500;
    put.put_table_set.id = 12;
    raw_expect(&g.r, &put, MLA_OK, NULL);
    ground_decode(&g, &m);
    m.decode.table_set = 12;
    m.decode.mask = MLA_MASK_VISIBLE;
    m.decode.visible = visible;
    m.decode.n_visible = 2000;
    m.decode.heads = 1;
    m.decode.q.head_stride = m.decode.q.token_stride = 0;
    m.decode.o.offset = 0;
    m.decode.o.head_stride = m.decode.o.token_stride = 512;
    m.decode.o.offset = 4096;
    m.decode.out_type = MLA_DTYPE_E4M3;
    m.decode.q.region = g.kv_region;
    m.decode.lse.present = false;
    m.decode.ready = ground_ref(g.sync, 0);
    raw_send(&g.r, &m, 900, NULL, 0);
    const struct mla_message *second_job = raw_call(&g.r, &m);
    e = &second_job->reply.status;
    ck_assert_str_eq(mla_status_name(e->code), "QUOTA");
    ck_assert_str_eq(e->field, "visible");
    ck_assert_uint_eq(e->limit, 16384);
    ck_assert_uint_gt(e->value, 16384);
    ck_assert_uint_gt(e->retry_after_us, 0);
    __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(raw_wait(&g.r, 900)->reply.status.code, MLA_OK);
    raw_expect(&g.r, &m, MLA_OK, NULL);
    ground_close(&g);
    teardown();
}
END_TEST

START_TEST(jobs_in_flight)
{
    struct ground g;
    daemon_start(&d, "limits.max_jobs_in_flight=2", "scheduler.retry_after_us=777", NULL);
    ground_open(&g, d.socket);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    ground_decode(&g, &m);
    m.decode.ready = ground_ref(g.sync, 0);
    struct mla_message job = m, cancel;
    raw_send(&g.r, &job, 901, NULL, 0);
    raw_send(&g.r, &job, 902, NULL, 0);
    const struct mla_error *e = &raw_call(&g.r, &job)->reply.status;
    refused(e, "", 3, 2);
    ck_assert_uint_ge(e->retry_after_us, 777);
    /* An answered job makes room: the next one may come right behind the answer. */
    uint64_t flying = 902;
    for (uint64_t round = 0; round < 50; round++) {
        mla_message_init(&cancel, MLA_MSG_CANCEL);
        cancel.cancel.request_id = flying;
        raw_send(&g.r, &cancel, 2000 + round, NULL, 0);
        ck_assert_str_eq(mla_status_name(raw_wait(&g.r, flying)->reply.status.code), "CANCELLED");
        flying = 3000 + round;
        raw_send(&g.r, &job, flying, NULL, 0);
        mla_message_init(&m, MLA_MSG_HEALTH);
        raw_send(&g.r, &m, 4000 + round, NULL, 0);
        ck_assert(raw_receive(&g.r));
        ck_assert_msg(g.r.header.request_id != flying, "round %u: the next job was refused: %s", (unsigned)round,
                      mla_status_name(g.r.message.reply.status.code));
    }
    __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
    ck_assert_int_eq(raw_wait(&g.r, flying)->reply.status.code, MLA_OK);
    ground_decodes(&g);
    ground_close(&g);
    teardown();
}
END_TEST

START_TEST(jobs_of_all_clients)
{
    struct ground g, h;
    daemon_start(&d, "scheduler.total_jobs_in_flight=3", "scheduler.retry_after_us=555", NULL);
    ground_open(&g, d.socket);
    ground_open(&h, d.socket);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    ground_decode(&g, &m);
    m.decode.ready = ground_ref(g.sync, 0);
    for (uint64_t i = 0; i < 3; i++)
        raw_send(&g.r, &m, 900 + i, NULL, 0);
    mla_message_init(&m, MLA_MSG_HEALTH);
    raw_expect(&g.r, &m, MLA_OK, NULL);
    ground_decode(&h, &m);
    const struct mla_error *e = raw_expect(&h.r, &m, MLA_OVERLOADED, NULL);
    ck_assert_uint_eq(e->limit, 3);
    ck_assert_uint_ge(e->retry_after_us, 555);
    __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
    for (uint64_t i = 0; i < 3; i++)
        ck_assert_int_eq(raw_wait(&g.r, 900 + i)->reply.status.code, MLA_OK);
    ground_decodes(&h);
    ground_close(&g);
    ground_close(&h);
    teardown();
}
END_TEST

/* Each refusal for a quota, while a job of the client is in flight (0) and while none is (1). */
START_TEST(when_to_try_again)
{
    static const uint32_t one = 1, zero = 0;
    struct ground g;
    daemon_start(&d, "limits.max_regions=3", "limits.max_caches=1", "limits.max_table_sets=2",
                 "limits.max_jobs_in_flight=1", "scheduler.retry_after_us=777", NULL);
    ground_open(&g, d.socket);
    raw_open(&r, d.socket);
    raw_open(&second, d.socket);
    ground_decode(&g, &m);
    m.decode.ready = ground_ref(g.sync, 0);
    struct mla_message job = m;
    if (_i == 0)
        raw_send(&g.r, &job, 901, NULL, 0);

    struct mla_message requests[4];
    int fd = raw_memfd(4096, NULL);
    region_request(4096);
    requests[0] = m;
    mla_message_init(&m, MLA_MSG_REGISTER_SYNC);
    m.register_sync.size = 4096;
    requests[1] = m;
    mla_message_init(&m, MLA_MSG_DEFINE_CACHE);
    m.define_cache.layout = MLA_CACHE_E4M3_576;
    m.define_cache.region = g.kv_region;
    m.define_cache.num_pages = 1;
    requests[2] = m;
    mla_message_init(&m, MLA_MSG_PUT_TABLE_SET);
    m.put_table_set.id = 77;
    m.put_table_set.q_len = &one;
    m.put_table_set.kv_len_max = &zero;
    m.put_table_set.n_q_len = m.put_table_set.n_kv_len_max = 1;
    requests[3] = m;
    for (unsigned i = 0; i < 4; i++) {
        const struct mla_error *e = &raw_call_fds(&g.r, &requests[i], &fd, i < 2 ? 1 : 0)->reply.status;
        ck_assert_msg(e->code == MLA_QUOTA, "request %u: %s", i, mla_status_name(e->code));
        if (_i == 0)
            ck_assert_msg(e->retry_after_us >= 777, "request %u: no time is said", i);
        else
            ck_assert_msg(e->retry_after_us == 0, "request %u: a time is said", i);
    }
    if (_i == 0) {
        const struct mla_error *e = &raw_call(&g.r, &job)->reply.status;
        refused(e, "", 2, 1);
        ck_assert_uint_ge(e->retry_after_us, 777);
        __atomic_store_n(&g.words[0], 1, __ATOMIC_RELEASE);
        ck_assert_int_eq(raw_wait(&g.r, 901)->reply.status.code, MLA_OK);
    }
    ground_close(&g);
    close(fd);
    teardown();
}
END_TEST

MLA_SUITE(mlad_quota)
{
    TCase *tc = mla_tcase(suite, "quota");
    tcase_add_test(tc, regions);
    tcase_add_test(tc, mapped_bytes);
    tcase_add_test(tc, caches_and_attachments);
    tcase_add_test(tc, table_sets);
    tcase_add_test(tc, queued_bytes);
    tcase_add_test(tc, jobs_in_flight);
    tcase_add_test(tc, jobs_of_all_clients);
    tcase_add_loop_test(tc, when_to_try_again, 0, 2);
}
