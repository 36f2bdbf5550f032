/* Workers with eager jobs: on a cache of their own, on one that they publish, or on one that another publishes. */
#include "tests/chaos/chaos.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/prng.h"

#define SLOTS         8u
#define PATIENT_SLOTS 2u                 /* that are used by one of many */
#define END_US        UINT64_C(60000000) /* for the last answers, when nothing bad happens any more */
#define NO_POOL       UINT32_MAX
#define POISON        0xa5

enum state { IDLE, BUSY, RESTING }; /* RESTING: answered DISCONNECTED: its memory is not ours before a reconnect */

struct worker;
struct slot {
    struct worker *w;
    uint32_t index;
    enum state state;
    bool called_back;
    uint32_t variant;
    mla_request_id request;
    uint64_t hash; /* of the output when it was answered; 0: not known */
};

struct worker {
    const struct place *p;
    struct counts *n;
    struct prng random;
    struct mla_client *c;
    struct memory pool, in, out;
    mla_region_id pool_region, in_region, out_region;
    mla_cache_id cache;
    uint32_t pool_index; /* whose pages; NO_POOL: an attacher that has not seen any yet */
    bool over;           /* the handle has ended, or lost what it needs */
    bool attached;
    bool draining; /* the daemon takes nothing for a moment */
    struct slot slots[SLOTS];
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- books ---- */

void fault(const struct place *p, uint64_t *counter, const char *fmt, ...)
{
    struct counts *n = &shared->counts[p->index];
    COUNT(*counter);
    if (n->first_fault[0])
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(n->first_fault, sizeof(n->first_fault), fmt, args);
    va_end(args);
}

void count_answer(const struct place *p, enum mla_status status, bool expected)
{
    struct counts *n = &shared->counts[p->index];
    COUNT(n->answered);
    COUNT(n->by_status[(unsigned)status % STATUSES]);
    if (!expected)
        fault(p, &n->unexpected, "an answer of %s", mla_errname(status));
}

static void refused(struct worker *w, enum mla_status status)
{
    COUNT(w->n->refused[(unsigned)status % STATUSES]);
}

static bool is_expected(const struct slot *s, enum mla_status status)
{
    switch (status) {
    case MLA_OK:
        return s->variant != BAD_VARIANT;
    case MLA_LATE: /* with faults or without */
        return true;
    case MLA_PARTIAL:
        return s->variant == BAD_VARIANT;
    case MLA_CACHE_GONE:
        return s->w->p->role == ATTACHER;
    case MLA_TIMED_OUT:
    case MLA_CANCELLED:
    case MLA_DISCONNECTED:
    case MLA_DEVICE_LOST:
    case MLA_DRAINING:
    case MLA_OVERLOADED:
    case MLA_QUOTA:
    case MLA_OUT_OF_MEMORY:
        return true;
    default:
        return false;
    }
}

static uint8_t *output(const struct slot *s)
{
    return s->w->out.at + s->index * OUT_MAX;
}

static void check_bytes(struct slot *s)
{
    struct worker *w = s->w;
    for (uint32_t k = 1; w->pool_index == NO_POOL && k < POOLS; k++)
        if (output_is(output(s), k, s->variant))
            w->pool_index = k; /* and it stays the same as long as it is attached */
    if (w->pool_index == NO_POOL || !output_is(output(s), w->pool_index, s->variant))
        fault(w->p, &w->n->wrong, "wrong bytes of variant %u, role %d", s->variant, (int)w->p->role);
}

static void answered(struct slot *s, mla_request_id request, enum mla_status status)
{
    struct worker *w = s->w;
    if (s->state != BUSY || s->request != request) {
        fault(w->p, &w->n->twice, "a second answer, %s", mla_errname(status));
        return;
    }
    count_answer(w->p, status, is_expected(s, status));
    s->state = IDLE;
    s->hash = 0;
    if (status == MLA_DISCONNECTED || status == MLA_DEVICE_LOST) {
        s->state = RESTING;
        return;
    }
    if (status == MLA_OK || status == MLA_LATE || status == MLA_PARTIAL)
        check_bytes(s);
    s->hash = output_hash(output(s)); /* an answer: no byte is written any more */
    if (status == MLA_CACHE_GONE)
        w->attached = false;
    w->draining = w->draining || status == MLA_DRAINING;
}

static void check_rest(struct slot *s)
{
    if (s->hash && s->hash != output_hash(output(s)))
        fault(s->w->p, &s->w->n->late, "an output of variant %u changed after its answer", s->variant);
    s->hash = 0;
}

static void on_answer(struct mla_client *c, const struct mla_decode_result *r, void *user)
{
    (void)c;
    answered(user, r->request, r->status);
}

static void on_event(struct mla_client *c, const struct mla_event *e, void *user)
{
    struct worker *w = user;
    (void)c;
    switch (e->kind) {
    case MLA_EVENT_INTERRUPTED:
        COUNT(w->n->interrupted);
        break;
    case MLA_EVENT_RECONNECTED:
        COUNT(w->n->reconnected);
        if (e->restarted)
            COUNT(w->n->restarted);
        for (struct slot *s = w->slots; s < w->slots + SLOTS; s++)
            s->state = s->state == RESTING ? IDLE : s->state;
        break;
    case MLA_EVENT_LOST:
        COUNT(w->n->lost_objects);
        w->over = true;
        break;
    case MLA_EVENT_CACHE_GONE:
        COUNT(w->n->gone);
        if (e->cache == w->cache)
            w->attached = false;
        break;
    case MLA_EVENT_DISCONNECTED:
        COUNT(w->n->ended_by[(unsigned)e->error.status % STATUSES]);
        w->over = true;
        break;
    default:
        break;
    }
}

/* ---- sessions ---- */

const char *const role_names[ROLES] = {"eager", "owner", "attacher", "stream"};

struct mla_client *open_client(const struct place *p, mla_event_fn on_event_fn, void *user)
{
    struct mla_options o;
    struct mla_client *c = NULL;
    mla_options_init(&o);
    o.socket_path = p->socket;
    o.name = role_names[p->role];
    o.flags = MLA_OPEN_WAIT;
    o.timeout_us = 2000000;
    o.on_event = on_event_fn;
    o.user = user;
    mla_open(&o, &c, NULL);
    return c;
}

static void attach(struct worker *w)
{
    struct mla_cache_info info;
    if (w->cache)
        mla_cache_detach(w->c, w->cache, CALL_US);
    w->cache = 0;
    w->pool_index = NO_POOL;
    if (mla_cache_attach(w->c, MLA_UID_SELF, "kv", 300 * MS_US, 500 * MS_US, &info) != MLA_OK)
        return;
    w->cache = info.cache;
    w->attached = true;
    COUNT(w->n->attached);
}

static bool make_cache(struct worker *w)
{
    struct mla_cache_desc desc;
    if (w->p->role == OWNER)
        w->pool_index = 1 + __atomic_add_fetch(&shared->generation, 1, __ATOMIC_RELAXED) % 2;
    memory_new(&w->pool, POOL_BYTES);
    fill_pool(w->pool.at, w->pool_index);
    mla_cache_desc_init(&desc);
    desc.num_pages = PAGES;
    if (memory_share(w->c, &w->pool, MLA_ACCESS_READ, "pool", &desc.region) != MLA_OK ||
        mla_cache_define(w->c, &desc, CALL_US, &w->cache) != MLA_OK)
        return false;
    /* The owner before may not have been noticed to be gone. */
    for (unsigned i = 0; w->p->role == OWNER && i < 50; i++) {
        enum mla_status status = mla_cache_publish(w->c, w->cache, "kv", NULL, 0, CALL_US);
        if (status != MLA_ALREADY_EXISTS)
            return status == MLA_OK;
        usleep(20000);
    }
    return true;
}

static bool begin(struct worker *w)
{
    w->over = w->attached = false;
    w->cache = 0;
    w->pool_index = 0;
    w->c = open_client(w->p, on_event, w);
    if (!w->c)
        return false;
    COUNT(w->n->opens);
    memory_new(&w->in, input_bytes());
    memory_new(&w->out, SLOTS * OUT_MAX);
    fill_input(w->in.at);
    for (uint32_t i = 0; i < SLOTS; i++)
        w->slots[i] = (struct slot){.w = w, .index = i};
    if (memory_share(w->c, &w->in, MLA_ACCESS_READ, "in", &w->in_region) != MLA_OK ||
        memory_share(w->c, &w->out, MLA_ACCESS_READ_WRITE, "out", &w->out_region) != MLA_OK)
        return false;
    for (uint32_t v = 0; v < VARIANTS; v++)
        if (put_variant(w->c, v, v + 1, 0) != MLA_OK)
            return false;
    return w->p->role == ATTACHER || make_cache(w);
}

/* What is in flight is answered by the end; then the memory goes, which nobody minds. */
static void end(struct worker *w)
{
    bool was_open = w->c != NULL;
    for (struct slot *s = w->slots; was_open && s < w->slots + SLOTS; s++) {
        if (s->state != BUSY || s->called_back)
            continue;
        enum mla_status status = mla_wait(w->c, s->request, 0, NULL);
        if (status == MLA_PENDING) /* it ends with the handle, unasked for */
            status = MLA_DISCONNECTED;
        answered(s, s->request, status);
    }
    mla_close(w->c);
    w->c = NULL;
    for (struct slot *s = w->slots; was_open && s < w->slots + SLOTS; s++) {
        if (s->state == BUSY)
            fault(w->p, &w->n->lost, "not answered by mla_close()");
        else
            check_rest(s);
        s->state = IDLE;
    }
    memory_free(&w->in);
    memory_free(&w->out);
    memory_free(&w->pool);
}

/* ---- work ---- */

static void submit(struct worker *w, struct slot *s)
{
    struct mla_decode_args a;
    check_rest(s);
    s->variant = prng_below(&w->random, VARIANTS);
    mla_tables_id tables = s->variant + 1;
    bool own_tables = prng_below(&w->random, 4) == 0; /* dropped while the job is in flight */
    if (own_tables) {
        tables = 1000 + prng_below(&w->random, 4); /* and the id used again */
        enum mla_status status = put_variant(w->c, s->variant, tables, 0);
        if (status != MLA_OK) {
            refused(w, status);
            return;
        }
    }
    variant_args(&a, s->variant, w->cache, w->in_region, w->out_region, s->index * OUT_MAX, tables);
    if (prng_below(&w->random, 8) == 0)
        a.deadline_us = 1 + prng_below(&w->random, 300) * MS_US;
    memset(output(s), POISON, OUT_MAX);
    s->called_back = prng_below(&w->random, 3) != 0;
    enum mla_status status = mla_decode_submit(w->c, &a, s->called_back ? on_answer : NULL, s, &s->request);
    if (own_tables)
        mla_tables_drop(w->c, tables, 0);
    if (status != MLA_OK) {
        refused(w, status);
        return;
    }
    COUNT(w->n->submitted);
    s->state = BUSY;
    if (prng_below(&w->random, 12) == 0)
        mla_cancel(w->c, s->request);
}

static void look(struct worker *w, struct slot *s, uint64_t timeout_us)
{
    mla_request_id request = s->request;
    if (s->state != BUSY || s->called_back)
        return;
    enum mla_status status = mla_wait(w->c, request, timeout_us, NULL);
    if (status == MLA_PENDING)
        return;
    answered(s, request, status);
    if (mla_wait(w->c, request, 0, NULL) != MLA_NOT_FOUND)
        fault(w->p, &w->n->twice, "a request that is there after its answer");
}

static unsigned busy(const struct worker *w)
{
    unsigned n = 0;
    for (const struct slot *s = w->slots; s < w->slots + SLOTS; s++)
        n += s->state == BUSY;
    return n;
}

static void turn(struct worker *w)
{
    struct mla_health_info *health = NULL;
    if (w->p->role == ATTACHER && !w->attached && !busy(w))
        attach(w);
    bool may = w->p->role != ATTACHER || w->attached;
    uint32_t slots = w->p->patient ? PATIENT_SLOTS : SLOTS;
    for (struct slot *s = w->slots; may && s < w->slots + slots; s++)
        if (s->state == IDLE && prng_below(&w->random, 3) == 0)
            submit(w, s);
    for (struct slot *s = w->slots; s < w->slots + SLOTS; s++)
        look(w, s, prng_below(&w->random, 2000));
    if (prng_below(&w->random, 50) == 0 && mla_read_health(w->c, 2000, &health) == MLA_OK)
        mla_free(health);
    mla_dispatch(w->c, prng_below(&w->random, 8000));
    if (w->draining)
        usleep(20000);
    w->draining = false;
}

static void last_answers(struct worker *w)
{
    uint64_t end_us = now_us() + END_US;
    while (busy(w) && now_us() < end_us) {
        mla_dispatch(w->c, 5000);
        for (struct slot *s = w->slots; s < w->slots + SLOTS; s++)
            look(w, s, 1000);
    }
    for (struct slot *s = w->slots; s < w->slots + SLOTS; s++)
        if (s->state == BUSY)
            fault(w->p, &w->n->lost, "no answer %u s after all was calm: variant %u, role %d",
                  (unsigned)(END_US / 1000000), s->variant, (int)w->p->role);
}

/* An owner stays as long as somebody may wait for what it publishes. */
static bool done(const struct worker *w)
{
    return __atomic_load_n(&shared->stop, __ATOMIC_RELAXED) >= (w->p->role == OWNER ? 2 : 1);
}

int run_worker(const struct place *p)
{
    static struct worker w;
    w.p = p;
    w.n = &shared->counts[p->index];
    w.random.state = p->seed;
    memory_start(p->cuda);
    while (!done(&w)) {
        bool open = begin(&w);
        while (open && !shared->stop && !w.over)
            turn(&w);
        if (open && !w.over)
            last_answers(&w);
        while (open && !done(&w) && !w.over)
            mla_dispatch(w.c, 10 * MS_US);
        end(&w);
    }
    return 0;
}
