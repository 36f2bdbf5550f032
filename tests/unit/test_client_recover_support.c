#include "tests/unit/test_client_recover.h"

struct fake *f;
struct mla_client *c;
struct ask seen[SEEN_MAX];
size_t n_seen;
uint64_t boot;        /* of the daemon */
uint16_t hold_type;   /* requests that are held */
uint16_t refuse_type; /* and refused, */
enum mla_status refuse_with;
unsigned refusals;        /* so often */
unsigned present;         /* STATUS answers about client 77 that still name it */
uint64_t attach_tag = 42; /* of published caches */

static bool handler(struct fake_conn *conn, const struct mla_message *m, uint64_t id, void *user)
{
    (void)user;
    struct mla_message reply;
    struct ask a = {.type = m->type};
    pthread_mutex_lock(&conn->f->lock);
    if (m->type == MLA_MSG_DECODE) {
        a.id = m->decode.table_set;
        a.region = m->decode.q.region;
        a.timeout_us = m->decode.timeout_us;
        a.mask_visible = m->decode.n_visible ? m->decode.visible[0] : 0;
    } else if (m->type == MLA_MSG_DEFINE_CACHE) {
        a.region = m->define_cache.region;
    } else if (m->type == MLA_MSG_PUBLISH_CACHE) {
        a.id = m->publish_cache.cache;
        a.tag = m->publish_cache.tag;
    } else if (m->type == MLA_MSG_PUT_TABLE_SET) {
        a.id = m->put_table_set.id;
    } else if (m->type == MLA_MSG_DROP_TABLE_SET) {
        a.id = m->drop_table_set.id;
    } else if (m->type == MLA_MSG_UNREGISTER_REGION) {
        a.id = m->unregister_region.region;
    } else if (m->type == MLA_MSG_DETACH_CACHE) {
        a.id = m->detach_cache.cache;
    }
    ck_assert_uint_lt(n_seen, SEEN_MAX);
    seen[n_seen++] = a;
    bool held = m->type == hold_type;
    bool refused = m->type == refuse_type && refusals && refusals--;
    bool still = m->type == MLA_MSG_STATUS && m->status.client_id == 77 && present && present--;
    uint64_t tag = attach_tag, nonce = boot;
    pthread_mutex_unlock(&conn->f->lock);
    if (held) {
        fake_hold(conn, m, id);
        return true;
    }
    if (refused) {
        const struct mla_error err = {.code = refuse_with};
        fake_refuse(conn, m->type, id, &err);
        return true;
    }
    mla_message_init(&reply, m->type | MLA_REPLY);
    if (m->type == MLA_MSG_HELLO) {
        reply.hello_reply = (struct mla_hello_reply){.major = MLA_PROTO_MAJOR,
                                                     .boot_nonce = nonce,
                                                     .gpu_uuid = "CPU-fake",
                                                     .backend = "cpu",
                                                     .version = "9.8.7",
                                                     .client_id = 77,
                                                     .isolation = "host"};
    } else if (m->type == MLA_MSG_ATTACH_CACHE) {
        reply.attach_cache_reply = (struct mla_attach_cache_reply){.cache = 5000 + nonce,
                                                                   .num_pages = 1000,
                                                                   .planes = 3,
                                                                   .tokens_per_entry = 128,
                                                                   .layout = MLA_CACHE_E4M3_576,
                                                                   .tag = tag};
    } else if (still) {
        static const struct mla_client_status rows[] = {{.client_id = 77, .name = "old"}};
        reply.status_reply.clients = rows;
        reply.status_reply.n_clients = 1;
    } else {
        return false;
    }
    fake_send(conn, &reply, id);
    return true;
}

/* ---- events and answers ---- */

struct seen_events events;

void note_event(struct mla_client *client, const struct mla_event *e, void *user)
{
    (void)client;
    (void)user;
    events.n[e->kind]++;
    events.last[e->kind] = *e;
}

void start_with(uint64_t recover_us)
{
    memset(&events, 0, sizeof(events));
    n_seen = 0;
    boot = 1;
    hold_type = refuse_type = 0;
    present = refusals = 0;
    attach_tag = 42;
    f = fake_start(handler, NULL);
    struct mla_options o = fake_options(f);
    o.on_event = note_event;
    o.recover_us = recover_us;
    ck_assert_int_eq(mla_open(&o, &c, NULL), MLA_OK);
}

void start(void)
{
    start_with(LONG_US);
}

void finish(void)
{
    mla_close(c);
    fake_stop(f);
}

void set_type(uint16_t *what, uint16_t value)
{
    pthread_mutex_lock(&f->lock);
    *what = value;
    pthread_mutex_unlock(&f->lock);
}

void restart(void)
{
    pthread_mutex_lock(&f->lock);
    boot++;
    pthread_mutex_unlock(&f->lock);
    fake_hang_up(fake_conn_of(f));
}

unsigned asked(uint16_t type, struct ask *last)
{
    unsigned n = 0;
    pthread_mutex_lock(&f->lock);
    for (size_t i = 0; i < n_seen; i++) {
        if (seen[i].type == type) {
            n++;
            if (last)
                *last = seen[i];
        }
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

void await_asked(uint16_t type, unsigned n)
{
    for (unsigned i = 0; asked(type, NULL) < n; i++) {
        ck_assert_uint_lt(i, 10000);
        usleep(1000);
    }
}

void reconnect(void)
{
    unsigned before = events.n[MLA_EVENT_RECONNECTED];
    for (unsigned i = 0; i < 1000 && events.n[MLA_EVENT_RECONNECTED] == before; i++)
        mla_dispatch(c, 10000);
    ck_assert_uint_eq(events.n[MLA_EVENT_RECONNECTED], before + 1);
}

void cut_off(void)
{
    unsigned before = events.n[MLA_EVENT_INTERRUPTED];
    set_type(&hold_type, MLA_MSG_HELLO);
    restart();
    while (events.n[MLA_EVENT_INTERRUPTED] == before)
        ck_assert_int_eq(mla_dispatch(c, LONG_US), MLA_OK);
    ck_assert_int_eq(mla_wait_connected(c, 1000), MLA_PENDING);
}

mla_region_id memory_region(struct mla_memory *memory)
{
    mla_region_id region;
    ck_assert_int_eq(mla_memory_create(4096, 0, memory), MLA_OK);
    ck_assert_int_eq(mla_memory_register(c, memory, MLA_ACCESS_READ, "m", LONG_US, &region), MLA_OK);
    return region;
}

struct mla_decode_args job_args(mla_region_id region, mla_cache_id cache, mla_tables_id tables)
{
    struct mla_decode_args a;
    mla_decode_args_init(&a);
    a.cache = cache;
    a.tables = tables;
    a.heads = 16;
    a.q = (struct mla_view){.region = region, .token_stride = 9216, .head_stride = 576, .compact = true};
    a.o = (struct mla_view){.region = region, .token_stride = 16384, .head_stride = 1024, .compact = true};
    a.softmax_scale = 0.125f;
    return a;
}

void put_table_set(mla_tables_id id)
{
    const uint32_t one = 1, len = 64, page = (uint32_t)id;
    struct mla_tables t;
    mla_tables_init(&t);
    t.id = id;
    t.n_seqs = 1;
    t.q_len = &one;
    t.kv_len_max = &len;
    t.entries = &page;
    t.n_entries = 1;
    ck_assert_int_eq(mla_tables_put(c, &t, 0), MLA_OK);
}

mla_cache_id cache_in(mla_region_id region)
{
    struct mla_cache_desc d;
    mla_cache_id cache;
    mla_cache_desc_init(&d);
    d.region = region;
    d.num_pages = 1;
    ck_assert_int_eq(mla_cache_define(c, &d, LONG_US, &cache), MLA_OK);
    return cache;
}
