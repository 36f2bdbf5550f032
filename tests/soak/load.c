/* Who keeps the daemon busy: clients that decode as fast as they are answered, and a crowd that is just there. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/soak/soak.h"
#include "tests/support/prng.h"

#define SLOTS       2u
#define POISON      0xa5
#define LONG        4u /* a variant that takes a hundred times what the others do */
#define PING_US     (40 * MS_US)
#define OPEN_US     (10000 * MS_US)
#define TABLES_EACH 64u  /* answers: a table set goes and another comes */
#define REGION_EACH 512u /* the same for a region */

uint64_t soak_now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

void soak_sleep_us(uint64_t us)
{
    const struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static bool stopped(void)
{
    return __atomic_load_n(&load->stop, __ATOMIC_RELAXED) != 0;
}

static void say(uint64_t *counter, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(uint64_t *counter, const char *fmt, ...)
{
    va_list args;
    COUNT(*counter);
    if (load->counts.first_fault[0])
        return;
    va_start(args, fmt);
    vsnprintf(load->counts.first_fault, sizeof(load->counts.first_fault), fmt, args);
    va_end(args);
}

static void on_event(struct mla_client *c, const struct mla_event *e, void *user)
{
    (void)c;
    (void)user;
    if (!stopped())
        say(&load->counts.failed, "event %d: %s", (int)e->kind, e->error.text);
}

/* For whoever prepares the right bytes, too (chaos/data.c). A connection that ends stays ended: it must not. */
struct mla_client *open_client(const struct place *p, mla_event_fn on_event_fn, void *user)
{
    struct mla_options o;
    struct mla_client *c = NULL;
    mla_options_init(&o);
    o.socket_path = p->socket;
    o.name = "soak";
    o.flags = MLA_OPEN_WAIT;
    o.timeout_us = OPEN_US;
    o.recover_us = 0;
    o.on_event = on_event_fn;
    o.user = user;
    mla_open(&o, &c, NULL);
    return c;
}

/* ---- decoders ---- */

struct slot {
    uint32_t variant;
    mla_request_id request;
    uint64_t at_us;
    bool busy;
};

struct decoder {
    struct mla_client *c;
    struct prng random;
    struct memory pool, in, out;
    mla_region_id pool_region, in_region, out_region;
    mla_cache_id cache;
    uint64_t answers, tables;
    mla_tables_id own[VARIANTS]; /* by variant */
    struct slot slots[SLOTS];
};

static bool begin(struct decoder *d, const struct place *p)
{
    struct mla_cache_desc desc;
    d->c = open_client(p, on_event, NULL);
    if (!d->c)
        return false;
    memory_new(&d->pool, POOL_BYTES);
    memory_new(&d->in, input_bytes());
    memory_new(&d->out, SLOTS * OUT_MAX);
    fill_pool(d->pool.at, 0);
    fill_input(d->in.at);
    mla_cache_desc_init(&desc);
    desc.num_pages = PAGES;
    if (memory_share(d->c, &d->pool, MLA_ACCESS_READ, "pool", &desc.region) != MLA_OK ||
        memory_share(d->c, &d->in, MLA_ACCESS_READ, "in", &d->in_region) != MLA_OK ||
        memory_share(d->c, &d->out, MLA_ACCESS_READ_WRITE, "out", &d->out_region) != MLA_OK ||
        mla_cache_define(d->c, &desc, CALL_US, &d->cache) != MLA_OK)
        return false;
    for (uint32_t v = 0; v < VARIANTS; v++) {
        d->own[v] = ++d->tables;
        if (put_variant(d->c, v, d->own[v], CALL_US) != MLA_OK)
            return false;
    }
    return true;
}

static void submit(struct decoder *d, struct slot *s)
{
    struct mla_decode_args a;
    uint64_t out_at = (uint64_t)(s - d->slots) * OUT_MAX;
    s->variant = prng_below(&d->random, VARIANTS - 1);
    s->variant += s->variant >= LONG;
    variant_args(&a, s->variant, d->cache, d->in_region, d->out_region, out_at, d->own[s->variant]);
    memset(d->out.at + out_at, POISON, OUT_MAX);
    s->at_us = soak_now_us();
    enum mla_status status = mla_decode_submit(d->c, &a, NULL, NULL, &s->request);
    s->busy = status == MLA_OK;
    if (!s->busy)
        say(&load->counts.failed, "a decode was not taken: %s", mla_errname(status));
}

static void take(struct decoder *d, struct slot *s)
{
    enum mla_status status = mla_wait(d->c, s->request, CALL_US, NULL);
    hist_add(&load->decode_us, soak_now_us() - s->at_us);
    s->busy = false;
    COUNT(load->counts.answers);
    d->answers++;
    if (status != (s->variant == BAD_VARIANT ? MLA_PARTIAL : MLA_OK))
        say(&load->counts.unexpected, "variant %u was answered %s", s->variant, mla_errname(status));
    else if (!output_is(d->out.at + (uint64_t)(s - d->slots) * OUT_MAX, 0, s->variant))
        say(&load->counts.wrong, "wrong bytes of variant %u", s->variant);
}

/* What a client does beside decoding, so that it is in what stays flat. */
static void change(struct decoder *d)
{
    if (d->answers % TABLES_EACH == 0) {
        uint32_t v = prng_below(&d->random, VARIANTS);
        mla_tables_id old = d->own[v];
        d->own[v] = ++d->tables;
        if (put_variant(d->c, v, d->own[v], 0) != MLA_OK || mla_tables_drop(d->c, old, 0) != MLA_OK)
            say(&load->counts.failed, "a table set");
        COUNT(load->counts.tables_put);
    }
    if (d->answers % REGION_EACH == REGION_EACH / 2) {
        for (struct slot *s = d->slots; s < d->slots + SLOTS; s++)
            if (s->busy)
                take(d, s);
        if (mla_region_unregister(d->c, d->out_region, CALL_US) != MLA_OK ||
            memory_share(d->c, &d->out, MLA_ACCESS_READ_WRITE, "out", &d->out_region) != MLA_OK)
            say(&load->counts.failed, "a region: %s", mla_last_error(d->c)->text);
        COUNT(load->counts.regions_made);
    }
}

int run_decoder(const char *socket, const struct options *o, unsigned index)
{
    static struct decoder d;
    struct place p = {.socket = socket, .cuda = o->cuda};
    d.random.state = o->seed * 1000003 + index;
    memory_start(o->cuda);
    if (!begin(&d, &p)) {
        say(&load->counts.failed, "a client that decodes could not begin");
        return 1;
    }
    for (unsigned i = 0; !stopped(); i++) {
        struct slot *s = &d.slots[i % SLOTS];
        if (s->busy)
            take(&d, s);
        change(&d);
        submit(&d, s);
        if (!s->busy)
            return 1;
    }
    for (struct slot *s = d.slots; s < d.slots + SLOTS; s++)
        if (s->busy)
            take(&d, s);
    mla_close(d.c);
    return 0;
}

/* ---- the crowd ---- */

static struct mla_client *arrive(const char *socket)
{
    struct mla_client *c = open_client(&(struct place){.socket = socket}, on_event, NULL);
    if (!c) {
        say(&load->counts.failed, "one of the crowd could not connect");
        return NULL;
    }
    COUNT(load->counts.opened);
    COUNT(load->held);
    return c;
}

static void leave(struct mla_client *c)
{
    mla_close(c);
    COUNT(load->counts.closed);
    __atomic_sub_fetch(&load->held, 1, __ATOMIC_RELAXED);
}

static void ping(struct mla_client *c)
{
    struct mla_health_info *health = NULL;
    uint64_t at_us = soak_now_us();
    enum mla_status status = mla_read_health(c, CALL_US, &health);
    mla_free(health);
    if (status == MLA_OK) {
        hist_add(&load->ping_us, soak_now_us() - at_us);
        COUNT(load->counts.pings);
    } else {
        say(&load->counts.pings_failed, "health: %s", mla_errname(status));
        if (status == MLA_DISCONNECTED)
            COUNT(load->counts.lost);
    }
}

int run_crowd(const char *socket, const struct options *o, unsigned index, unsigned connections)
{
    struct mla_client *clients[PER_CROWD] = {NULL};
    struct prng random = {o->seed * 7919 + index};
    unsigned crowds = (o->connections - o->workers + PER_CROWD - 1) / PER_CROWD;
    for (unsigned i = 0; i < connections; i++) {
        clients[i] = arrive(socket);
        if (!clients[i])
            return 1;
    }
    uint64_t each_us = crowds * UINT64_C(1000000) / o->churn, change_us = soak_now_us() + each_us, ping_us = 0;
    while (!stopped()) {
        uint64_t now_us = soak_now_us();
        if (now_us >= ping_us) {
            ping(clients[prng_below(&random, connections)]);
            ping_us = now_us + PING_US;
        }
        if (now_us >= change_us) {
            unsigned i = prng_below(&random, connections);
            leave(clients[i]);
            clients[i] = arrive(socket);
            if (!clients[i])
                return 1;
            change_us += each_us;
        }
        uint64_t next_us = change_us < ping_us ? change_us : ping_us;
        now_us = soak_now_us();
        if (now_us < next_us)
            soak_sleep_us(next_us - now_us);
    }
    for (unsigned i = 0; i < connections; i++)
        leave(clients[i]);
    return 0;
}
