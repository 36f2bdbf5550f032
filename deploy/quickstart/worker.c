/* What a worker asks of mlad, in the order of an engine's life: open, share memory, make a cache (or attach to one),
 * then per round put the table set and decode every layer, all layers in flight at a time; at last let go. */
#include "deploy/quickstart/worker.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "deploy/quickstart/content.h"

#define TIMEOUT_US   UINT64_C(30000000)
#define PUBLISHED_US UINT64_C(20000000) /* how long to wait for the other worker */
#define TABLES_ID    1u

/* "A: ..." on stdout, at once. */
__attribute__((format(printf, 2, 3))) static void say(const struct worker *w, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    printf("  %s: ", w->options.name);
    vprintf(format, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static _Noreturn void die(const char *name, const char *what, const struct mla_error_info *e)
{
    fprintf(stderr, "%s: %s: %s%s%s: %s\n", name, what, mla_errname(e->status), e->field[0] ? " in " : "", e->field,
            e->text[0] ? e->text : mla_strerror(e->status));
    exit(1);
}

static void must(const struct worker *w, enum mla_status status, const char *what)
{
    if (status != MLA_OK)
        die(w->options.name, what, mla_last_error(w->client));
}

static void *get(const struct worker *w, size_t n, size_t bytes)
{
    void *memory = calloc(n, bytes);
    if (memory == NULL) {
        fprintf(stderr, "%s: out of memory\n", w->options.name);
        exit(1);
    }
    return memory;
}

static void share(const struct worker *w, const struct shared *memory, enum mla_access access, const char *label,
                  mla_region_id *region)
{
    must(w, w->memory->share(w->client, memory, access, label, TIMEOUT_US, region), "register memory");
}

/* Memory calls that have said why they failed. */
static void done(int result)
{
    if (result != 0)
        exit(1);
}

static void open_daemon(struct worker *w)
{
    struct mla_options o;
    struct mla_error_info error;
    mla_options_init(&o);
    o.socket_path = w->options.socket;
    o.name = w->options.name;
    o.flags = MLA_OPEN_WAIT;
    o.features = MLA_FEATURE_DECODE | MLA_FEATURE_PUBLISH;
    if (mla_open(&o, &w->client, &error) != MLA_OK)
        die(w->options.name, "open", &error);
    const struct mla_server_info *s = mla_server(w->client);
    say(w, "pid %ld, connected to mlad %s, backend %s", (long)getpid(), s->version, s->backend);
    w->memory = s->features & MLA_FEATURE_CUDA_IPC ? memory_cuda() : &memory_memfd;
    if (w->memory == NULL)
        exit(1);
}

/* ---- the cache ---- */

static void make_cache(struct worker *w)
{
    const struct worker_options *o = &w->options;
    uint64_t plane_bytes = (uint64_t)o->pages * CONTENT_PAGE_BYTES;
    done(w->memory->create(o->layers * plane_bytes, &w->kv));
    uint64_t *plane_offset = get(w, o->layers, sizeof(*plane_offset));
    for (uint32_t layer = 0; layer < o->layers; layer++) {
        plane_offset[layer] = layer * plane_bytes;
        content_pages(o->seed, layer, o->pages, (uint8_t *)w->kv.host.addr + plane_offset[layer]);
    }
    done(w->memory->push(&w->kv));
    share(w, &w->kv, MLA_ACCESS_READ, "kv", &w->kv_region);
    struct mla_cache_desc d;
    mla_cache_desc_init(&d);
    d.region = w->kv_region;
    d.plane_offset = plane_offset;
    d.n_planes = o->layers;
    d.num_pages = o->pages;
    d.label = "quickstart";
    must(w, mla_cache_define(w->client, &d, TIMEOUT_US, &w->cache.cache), "define cache");
    free(plane_offset);
    w->cache.planes = o->layers;
    w->cache.num_pages = o->pages;
    w->cache.tokens_per_entry = d.tokens_per_entry;
    must(w, mla_cache_publish(w->client, w->cache.cache, o->cache, NULL, 0, TIMEOUT_US), "publish cache");
    say(w, "published \"%s\": %u layers of %u pages, %.1f MiB of random e4m3%s", o->cache, o->layers, o->pages,
        (double)w->kv.host.size / (1 << 20), w->kv.device != 0 ? " in device memory" : "");
}

static void attach_cache(struct worker *w)
{
    const struct worker_options *o = &w->options;
    must(w, mla_cache_attach(w->client, MLA_UID_SELF, o->cache, PUBLISHED_US, PUBLISHED_US + TIMEOUT_US, &w->cache),
         "attach to the cache");
    say(w, "attached to \"%s\": %u layers of %llu pages, none of them mapped in this process", o->cache,
        w->cache.planes, (unsigned long long)w->cache.num_pages);
}

/* Until the cache has so many attachments. */
static void wait_for_attachments(const struct worker *w, uint64_t least, uint64_t most, const char *what)
{
    const struct timespec pause = {.tv_nsec = 5000000};
    for (int tries = 0; tries < 12000; tries++) {
        struct mla_cache_list *list;
        bool found = false;
        must(w, mla_read_caches(w->client, TIMEOUT_US, &list), "read caches");
        for (size_t i = 0; i < list->n_caches; i++)
            found |= strcmp(list->caches[i]->name, w->options.cache) == 0 && list->caches[i]->attachments >= least &&
                     list->caches[i]->attachments <= most;
        mla_free(list);
        if (found)
            return;
        nanosleep(&pause, NULL);
    }
    fprintf(stderr, "%s: %s in a minute\n", w->options.name, what);
    exit(1);
}

/* The owner waits for the guest and says that it has seen it by an attachment of its own, which it keeps until the
 * guest has gone; the guest waits for that. So neither misses the other, however fast it is. */
static void meet(struct worker *w)
{
    const struct worker_options *o = &w->options;
    if (!o->owner) {
        wait_for_attachments(w, 2, UINT64_MAX, "the owner has not seen this worker");
        return;
    }
    wait_for_attachments(w, 1, UINT64_MAX, "the other worker has not come");
    must(w, mla_cache_attach(w->client, MLA_UID_SELF, o->cache, 0, TIMEOUT_US, &w->met), "attach to its own cache");
}

/* The owner's sequences take pages from the front of the shuffled ones, the guest's from the back. Entries behind the
 * last page of a sequence are never read: they hold a number that is no page. */
static void choose_pages(struct worker *w)
{
    const struct worker_options *o = &w->options;
    uint32_t n_pages = (uint32_t)w->cache.num_pages, longest = 0, next = 0;
    uint32_t *shuffled = get(w, n_pages, sizeof(*shuffled));
    content_shuffle(o->seed, n_pages, shuffled);
    for (uint32_t s = 0; s < o->n_seqs; s++)
        longest = o->kv_len[s] > longest ? o->kv_len[s] : longest;
    uint32_t grown = (o->rounds - 1) * o->q_len;
    w->entries_per_seq = (longest + grown + PAGE_TOKENS - 1) / PAGE_TOKENS;
    w->entries = get(w, (size_t)o->n_seqs * w->entries_per_seq, sizeof(*w->entries));
    for (uint32_t s = 0; s < o->n_seqs; s++) {
        uint32_t pages = (o->kv_len[s] + grown + PAGE_TOKENS - 1) / PAGE_TOKENS;
        for (uint32_t e = 0; e < w->entries_per_seq; e++) {
            if (e < pages && next == n_pages) {
                fprintf(stderr, "%s: the cache has too few pages for these sequences\n", o->name);
                exit(1);
            }
            uint32_t *entry = &w->entries[(size_t)s * w->entries_per_seq + e];
            if (e >= pages)
                *entry = UINT32_MAX;
            else
                *entry = o->owner ? shuffled[next] : shuffled[n_pages - 1 - next];
            next += e < pages;
        }
    }
    free(shuffled);
}

/* ---- decodes ---- */

/* Where Q, O and LSE of every answer lie in the worker's own region. O has room for the widest type. */
static uint64_t io_offset(uint64_t rows, size_t i, int part)
{
    uint64_t q = rows * ROW_BYTES, o = rows * V_DIM * 4, lse = (rows * 4 + 15) / 16 * 16;
    return i * (q + o + lse) + (part > 0 ? q : 0) + (part > 1 ? o : 0);
}

static void prepare(struct worker *w)
{
    static const enum mla_dtype types[] = {MLA_DTYPE_BF16, MLA_DTYPE_E4M3, MLA_DTYPE_F32};
    const struct worker_options *o = &w->options;
    uint64_t rows = (uint64_t)o->n_seqs * o->q_len * o->heads;
    size_t n = (size_t)o->rounds * w->cache.planes;
    done(w->memory->create(io_offset(rows, n, 0), &w->io));
    w->answers = get(w, n, sizeof(*w->answers));
    for (size_t i = 0; i < n; i++) {
        struct answer *a = &w->answers[i];
        a->round = (uint32_t)(i / w->cache.planes);
        a->layer = (uint32_t)(i % w->cache.planes);
        for (uint32_t s = 0; s < o->n_seqs; s++)
            a->kv_len[s] = o->kv_len[s] + a->round * o->q_len;
        a->out_type = types[a->round % 3];
        uint8_t *q = (uint8_t *)w->io.host.addr + io_offset(rows, i, 0);
        content_queries(o->seed, (uint64_t)o->owner << 32 | i, rows * ROW_BYTES, q);
        a->q = q;
        a->o = (uint8_t *)w->io.host.addr + io_offset(rows, i, 1);
        a->lse = (uint8_t *)w->io.host.addr + io_offset(rows, i, 2);
    }
    done(w->memory->push(&w->io));
    share(w, &w->io, MLA_ACCESS_READ_WRITE, "io", &w->io_region);
    w->q_scale = 1.25f;
    w->kv_scale = 0.75f;
    w->softmax_scale = 1.0f / sqrtf(192.0f);
    w->out_scale = 1.0f / 64.0f;
}

static struct mla_view view(const struct worker *w, const uint8_t *at, uint32_t row_bytes)
{
    struct mla_view v = {.region = w->io_region,
                         .offset = (uint64_t)(at - (const uint8_t *)w->io.host.addr),
                         .token_stride = (int64_t)w->options.heads * row_bytes,
                         .head_stride = row_bytes,
                         .compact = true};
    return v;
}

static mla_request_id submit(const struct worker *w, const struct answer *a)
{
    uint32_t element_bytes = a->out_type == MLA_DTYPE_F32 ? 4 : a->out_type == MLA_DTYPE_BF16 ? 2 : 1;
    struct mla_decode_args args;
    mla_request_id id;
    mla_decode_args_init(&args);
    args.cache = w->cache.cache;
    args.plane = a->layer;
    args.tables = TABLES_ID;
    args.heads = w->options.heads;
    args.q = view(w, a->q, ROW_BYTES);
    args.o = view(w, a->o, V_DIM * element_bytes);
    args.lse = view(w, a->lse, 4);
    args.out_type = a->out_type;
    args.q_scale = w->q_scale;
    args.kv_scale = w->kv_scale;
    args.softmax_scale = w->softmax_scale;
    args.out_scale = w->out_scale;
    must(w, mla_decode_submit(w->client, &args, NULL, NULL, &id), "submit a decode");
    return id;
}

static void one_round(const struct worker *w, uint32_t round)
{
    const struct worker_options *o = &w->options;
    struct answer *answers = &w->answers[(size_t)round * w->cache.planes];
    uint32_t q_len[WORKER_SEQS_MAX];
    mla_request_id *ids = get(w, w->cache.planes, sizeof(*ids));
    struct mla_tables t;
    mla_tables_init(&t);
    for (uint32_t s = 0; s < o->n_seqs; s++)
        q_len[s] = o->q_len;
    t.id = TABLES_ID;
    t.n_seqs = o->n_seqs;
    t.q_len = q_len;
    t.kv_len_max = answers[0].kv_len;
    t.entries = w->entries;
    t.n_entries = (size_t)o->n_seqs * w->entries_per_seq;
    t.entries_per_seq = w->entries_per_seq;
    must(w, mla_tables_put(w->client, &t, TIMEOUT_US), "put the table set");
    for (uint32_t layer = 0; layer < w->cache.planes; layer++)
        ids[layer] = submit(w, &answers[layer]);
    for (uint32_t layer = 0; layer < w->cache.planes; layer++) {
        mla_decode_result_init(&answers[layer].result);
        must(w, mla_wait(w->client, ids[layer], TIMEOUT_US, &answers[layer].result), "decode");
    }
    must(w, mla_tables_drop(w->client, TABLES_ID, TIMEOUT_US), "drop the table set");
    free(ids);
}

static void let_go(struct worker *w)
{
    if (w->options.owner) {
        wait_for_attachments(w, 0, 1, "the other worker has not gone"); /* a cache goes with its owner */
        must(w, mla_cache_detach(w->client, w->met.cache, TIMEOUT_US), "detach from its own cache");
        must(w, mla_cache_drop(w->client, w->cache.cache, TIMEOUT_US), "drop the cache");
        must(w, mla_region_unregister(w->client, w->kv_region, TIMEOUT_US), "unregister the cache's memory");
    } else {
        must(w, mla_cache_detach(w->client, w->cache.cache, TIMEOUT_US), "detach from the cache");
    }
    must(w, mla_region_unregister(w->client, w->io_region, TIMEOUT_US), "unregister queries and outputs");
    mla_close(w->client);
    w->memory->drop(&w->kv);
}

int main(int argc, char **argv)
{
    static struct worker w;
    worker_parse(argc, argv, &w.options);
    content_init(w.options.seed);
    open_daemon(&w);
    if (w.options.owner)
        make_cache(&w);
    else
        attach_cache(&w);
    choose_pages(&w);
    prepare(&w);
    meet(&w);
    for (uint32_t round = 0; round < w.options.rounds; round++)
        one_round(&w, round);
    done(w.memory->pull(&w.io));
    size_t n = (size_t)w.options.rounds * w.cache.planes;
    say(&w, "%zu decodes answered; checking each against float64", n);
    let_go(&w);
    int wrong = worker_check(&w);
    if (wrong == 0)
        say(&w, "all %zu answers are right", n);
    w.memory->drop(&w.io);
    free(w.answers);
    free(w.entries);
    return wrong == 0 ? 0 : 1;
}
