/* A worker whose jobs are ordered by words: single decodes, and steps of two layers. The process itself plays the
 * stream: it writes ready words and waits for done words. */
#include "tests/chaos/chaos.h"

#include <string.h>
#include <time.h>

#include "tests/support/prng.h"

#define LAYERS     2u
#define WORDS      8u
#define RELEASE_US UINT64_C(30000000)  /* a done word comes to its value, or to its abort value, within this */
#define PATIENT_US UINT64_C(200000000) /* the same on a machine that many share, under a sanitizer */

/* Words: 0 and 1 of single jobs, from 2 on ready and done of each layer. */
struct stream {
    const struct place *p;
    struct counts *n;
    struct prng random;
    struct mla_client *c;
    struct memory pool, in, out;
    mla_region_id in_region, out_region;
    mla_cache_id cache;
    struct mla_sync *sync;
    struct mla_template *tmpl;
    uint32_t variant; /* of the template */
    uint64_t value;   /* of the last single job */
    bool over;
};

static uint64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void on_event(struct mla_client *c, const struct mla_event *e, void *user)
{
    struct stream *s = user;
    (void)c;
    if (e->kind == MLA_EVENT_INTERRUPTED)
        COUNT(s->n->interrupted);
    if (e->kind == MLA_EVENT_RECONNECTED) {
        COUNT(s->n->reconnected);
        if (e->restarted)
            COUNT(s->n->restarted);
    }
    if (e->kind == MLA_EVENT_LOST) {
        COUNT(s->n->lost_objects);
        s->over = true;
    }
    if (e->kind == MLA_EVENT_DISCONNECTED) {
        COUNT(s->n->ended_by[(unsigned)e->error.status % STATUSES]);
        s->over = true;
    }
}

/* A stream waits for its word whatever the library does meanwhile. False: aborted. */
static bool wait_word(struct stream *s, size_t word, uint64_t value)
{
    uint64_t *at = mla_sync_word(s->sync, word), end_us = now_us() + (s->p->patient ? PATIENT_US : RELEASE_US);
    while (!mla_word_reached(mla_word_load(at), value)) {
        const struct timespec nap = {0, s->p->patient ? 2000000 : 50000};
        if (now_us() > end_us) {
            fault(s->p, &s->n->stuck, "word %zu has not come to %llu: it is %llu", word, (unsigned long long)value,
                  (unsigned long long)mla_word_load(at));
            s->over = true;
            return false;
        }
        nanosleep(&nap, NULL);
    }
    return !mla_word_aborted(mla_word_load(at), value);
}

static bool went_through(enum mla_status status)
{
    return status == MLA_OK || status == MLA_LATE || status == MLA_PARTIAL;
}

static bool is_expected(enum mla_status status, uint32_t variant)
{
    switch (status) {
    case MLA_OK:
        return variant != BAD_VARIANT;
    case MLA_LATE:
        return true;
    case MLA_PARTIAL:
        return variant == BAD_VARIANT;
    case MLA_TIMED_OUT:
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

static void check(struct stream *s, uint32_t variant, uint32_t at)
{
    if (!output_is(s->out.at + at * OUT_MAX, 0, variant))
        fault(s->p, &s->n->wrong, "wrong bytes of variant %u, role %d", variant, (int)s->p->role);
}

/* After a failure: what the words and the memory were used for is over when there is a connection again. */
static void settle(struct stream *s)
{
    enum mla_status status;
    while ((status = mla_wait_connected(s->c, 100 * MS_US)) == MLA_PENDING)
        ;
    if (status != MLA_OK)
        s->over = true;
    mla_dispatch(s->c, 0);
}

/* ---- single jobs ---- */

static void one_job(struct stream *s)
{
    uint32_t variant = prng_below(&s->random, VARIANTS);
    struct mla_decode_args a;
    mla_request_id request;
    variant_args(&a, variant, s->cache, s->in_region, s->out_region, 0, variant + 1);
    a.ready = mla_sync_location(s->sync, 0);
    a.done = mla_sync_location(s->sync, 1);
    a.ready_value = a.done_value = ++s->value;
    memset(s->out.at, 0xa5, OUT_MAX);
    enum mla_status status = mla_decode_submit(s->c, &a, NULL, NULL, &request);
    if (status != MLA_OK) {
        COUNT(s->n->refused[(unsigned)status % STATUSES]);
        settle(s);
        return;
    }
    COUNT(s->n->submitted);
    COUNT(s->n->stream_jobs);
    mla_dispatch(s->c, 0);
    mla_word_store(mla_sync_word(s->sync, 0), s->value);
    if (wait_word(s, 1, s->value))
        check(s, variant, 0);
    status = mla_wait(s->c, request, CALL_US, NULL);
    if (status == MLA_PENDING) {
        fault(s->p, &s->n->lost, "no answer to a job whose word has come");
        s->over = true;
        return;
    }
    count_answer(s->p, status, is_expected(status, variant));
    if (went_through(status))
        return;
    settle(s);
    mla_word_store(mla_sync_word(s->sync, 0), s->value);
    mla_word_store(mla_sync_word(s->sync, 1), s->value);
}

/* ---- steps ---- */

static bool open_template(struct stream *s)
{
    struct mla_decode_args layers[LAYERS];
    s->variant = prng_below(&s->random, BAD_VARIANT);
    for (uint32_t i = 0; i < LAYERS; i++) {
        variant_args(&layers[i], s->variant, s->cache, s->in_region, s->out_region, (1 + i) * OUT_MAX, s->variant + 1);
        layers[i].ready = mla_sync_location(s->sync, 2 + 2 * i);
        layers[i].done = mla_sync_location(s->sync, 3 + 2 * i);
    }
    enum mla_status status = mla_template_open(s->c, layers, LAYERS, CALL_US, &s->tmpl);
    if (status == MLA_OK)
        return true;
    COUNT(s->n->refused[(unsigned)status % STATUSES]);
    settle(s);
    return false;
}

static void close_template(struct stream *s)
{
    for (unsigned i = 0; s->tmpl && i < 100; i++)
        if (mla_template_close(s->tmpl, CALL_US) == MLA_OK)
            s->tmpl = NULL;
}

/* The replay goes first, as a graph would, and the message behind it; or the other way round. */
static void one_step(struct stream *s)
{
    mla_request_id request = 0;
    struct mla_step_result result;
    bool through = true;
    if (!s->tmpl && !open_template(s))
        return;
    memset(s->out.at + OUT_MAX, 0xa5, LAYERS * OUT_MAX);
    enum mla_status status = mla_step_submit(s->tmpl, NULL, NULL, NULL, &request);
    if (status != MLA_OK) {
        COUNT(s->n->refused[(unsigned)status % STATUSES]);
        close_template(s);
        settle(s);
        return;
    }
    COUNT(s->n->submitted);
    COUNT(s->n->steps);
    mla_dispatch(s->c, 0);
    for (uint32_t i = 0; i < LAYERS && !s->over; i++) {
        mla_word_store(mla_sync_word(s->sync, 2 + 2 * i), 1);
        through = wait_word(s, 3 + 2 * i, 1) && through;
        if (through)
            check(s, s->variant, 1 + i);
    }
    mla_step_result_init(&result);
    status = mla_step_wait(s->c, request, CALL_US, &result);
    if (status == MLA_PENDING) {
        fault(s->p, &s->n->lost, "no answer to a step whose words have come");
        s->over = true;
        return;
    }
    count_answer(s->p, status, is_expected(status, s->variant));
    if (!went_through(status)) {
        close_template(s);
        settle(s);
    }
}

/* ---- sessions ---- */

static bool begin(struct stream *s)
{
    struct mla_cache_desc desc;
    s->over = false;
    s->value = 0;
    s->c = open_client(s->p, on_event, s);
    if (!s->c)
        return false;
    COUNT(s->n->opens);
    memory_new(&s->pool, POOL_BYTES);
    memory_new(&s->in, input_bytes());
    memory_new(&s->out, (1 + LAYERS) * OUT_MAX);
    fill_pool(s->pool.at, 0);
    fill_input(s->in.at);
    mla_cache_desc_init(&desc);
    desc.num_pages = PAGES;
    if (mla_watch_start(s->c) != MLA_OK ||
        memory_share(s->c, &s->pool, MLA_ACCESS_READ, "pool", &desc.region) != MLA_OK ||
        memory_share(s->c, &s->in, MLA_ACCESS_READ, "in", &s->in_region) != MLA_OK ||
        memory_share(s->c, &s->out, MLA_ACCESS_READ_WRITE, "out", &s->out_region) != MLA_OK ||
        mla_cache_define(s->c, &desc, CALL_US, &s->cache) != MLA_OK ||
        mla_sync_create(s->c, WORDS, CALL_US, &s->sync) != MLA_OK)
        return false;
    for (uint32_t v = 0; v < VARIANTS; v++)
        if (put_variant(s->c, v, v + 1, 0) != MLA_OK)
            return false;
    return true;
}

static void end(struct stream *s)
{
    if (s->c)
        close_template(s);
    mla_close(s->c);
    mla_template_close(s->tmpl, 0);
    mla_sync_destroy(s->sync, 0);
    s->c = NULL;
    s->tmpl = NULL;
    s->sync = NULL;
    memory_free(&s->pool);
    memory_free(&s->in);
    memory_free(&s->out);
}

int run_stream(const struct place *p)
{
    static struct stream s;
    s.p = p;
    s.n = &shared->counts[p->index];
    s.random.state = p->seed;
    memory_start(p->cuda);
    while (!shared->stop) {
        bool open = begin(&s);
        while (open && !shared->stop && !s.over) {
            if (prng_below(&s.random, 2))
                one_job(&s);
            else
                one_step(&s);
            mla_dispatch(s.c, prng_below(&s.random, 4000));
        }
        end(&s);
    }
    return 0;
}
