/* Requests of a storm: mostly what a worker would send, each field now and then something else. */
#include <string.h>
#include <unistd.h>

#include "tests/integration/storm.h"

#define REGION_BYTES (1u << 20)
#define PAGES        16u

static uint32_t below(struct storm_peer *p, uint32_t n)
{
    return prng_below(&p->storm->prng, n);
}

static bool one_in(struct storm_peer *p, uint32_t n)
{
    return below(p, n) == 0 && !p->plain;
}

static uint64_t odd(struct storm_peer *p)
{
    static const uint64_t all[] = {0,
                                   1,
                                   15,
                                   16,
                                   63,
                                   64,
                                   576,
                                   4095,
                                   4096,
                                   4097,
                                   36864,
                                   1u << 20,
                                   INT32_MAX,
                                   1u << 31,
                                   UINT32_MAX,
                                   UINT64_C(1) << 32,
                                   1u << 24,
                                   INT64_MAX,
                                   UINT64_C(1) << 63,
                                   UINT64_MAX - 15,
                                   UINT64_MAX};
    uint32_t i = below(p, sizeof(all) / sizeof(all[0]) + 1);
    return i < sizeof(all) / sizeof(all[0]) ? all[i] : prng_u64(&p->storm->prng);
}

/* usual, but now and then something odd. */
static uint64_t or_odd(struct storm_peer *p, uint64_t usual)
{
    return one_in(p, 40) ? odd(p) : usual;
}

static uint64_t any_of(struct storm_peer *p, const struct storm_ids *ids)
{
    return ids->n == 0 ? odd(p) : ids->id[below(p, ids->n)];
}

/* An id of its own, of another peer, or of nobody. at: offset of the kind in struct storm_peer. */
static uint64_t id_of(struct storm_peer *p, size_t at)
{
    struct storm_peer *of = p;
    if (one_in(p, 20))
        of = &p->storm->peers[below(p, STORM_PEERS)];
    if (one_in(p, 40))
        return odd(p);
    return any_of(p, (const struct storm_ids *)(const void *)((const char *)of + at));
}

#define REGION(p) id_of(p, offsetof(struct storm_peer, regions))
#define SYNC(p)   id_of(p, offsetof(struct storm_peer, syncs))
#define CACHE(p)                                                                                                       \
    id_of(p, one_in(p, 4) && (p)->attached.n > 0 ? offsetof(struct storm_peer, attached)                               \
                                                 : offsetof(struct storm_peer, caches))

static int fd_of(struct storm_peer *p, enum storm_fd usual)
{
    return p->storm->fds[one_in(p, 5) ? below(p, STORM_FD_KINDS) : usual];
}

static size_t some_fds(struct storm_peer *p, enum storm_fd usual, int fds[STORM_FDS])
{
    size_t n = one_in(p, 12) ? below(p, STORM_FDS + 1) : 1;
    for (size_t i = 0; i < n; i++)
        fds[i] = fd_of(p, usual);
    return n;
}

static size_t register_region(struct storm_peer *p, struct mla_register_region_request *r, int fds[STORM_FDS])
{
    static struct mla_region_part parts[3];
    r->kind = one_in(p, 10) ? (enum mla_region_kind)(below(p, 5)) : MLA_REGION_MEMFD;
    r->access = one_in(p, 4) ? MLA_ACCESS_READ : MLA_ACCESS_READ_WRITE;
    r->size = or_odd(p, REGION_BYTES);
    r->offset = one_in(p, 12) ? odd(p) : 0;
    r->label = p->token;
    r->n_parts = one_in(p, 20) ? below(p, 4) : 0;
    for (size_t i = 0; i < r->n_parts; i++)
        parts[i] = (struct mla_region_part){odd(p), odd(p), odd(p)};
    r->parts = parts;
    r->more = one_in(p, 40);
    if (one_in(p, 40)) {
        r->has_continues = true;
        r->continues = REGION(p);
    }
    return some_fds(p, STORM_SEALED, fds);
}

static void define_cache(struct storm_peer *p, struct mla_define_cache_request *r)
{
    static uint64_t planes[512];
    r->layout = (enum mla_cache_layout)or_odd(p, MLA_CACHE_E4M3_576);
    r->region = REGION(p);
    r->offset = one_in(p, 10) ? odd(p) : 0;
    r->num_pages = or_odd(p, PAGES);
    r->n_plane_offset = one_in(p, 20) ? 400 : below(p, 3);
    for (size_t i = 0; i < r->n_plane_offset; i++)
        planes[i] = or_odd(p, 0);
    r->plane_offset = planes;
    r->tokens_per_page = (uint32_t)or_odd(p, 64);
    r->tokens_per_entry = (uint32_t)or_odd(p, 64);
    r->page_stride = one_in(p, 10) ? odd(p) : 0;
    r->row_stride = or_odd(p, 576);
    r->label = p->token;
}

static void put_tables(struct storm_peer *p, struct mla_put_table_set_request *r)
{
    uint32_t *q = p->storm->numbers, *kv = q + MLA_SEQS_PER_JOB_MAX + 1, *pages = kv + MLA_SEQS_PER_JOB_MAX + 1;
    uint32_t n = one_in(p, 40) ? MLA_SEQS_PER_JOB_MAX + below(p, 2) : below(p, 5);
    size_t entries = 0;
    for (uint32_t i = 0; i < n; i++) {
        q[i] = n > 5 ? 1 : below(p, 5);
        kv[i] = n > 5 ? below(p, 2) : (uint32_t)or_odd(p, below(p, 300));
        entries += (size_t)kv[i] / 64 + (kv[i] % 64 != 0);
    }
    if (entries > 4 * MLA_SEQS_PER_JOB_MAX || one_in(p, 12))
        entries = below(p, 4 * MLA_SEQS_PER_JOB_MAX);
    for (size_t i = 0; i < entries; i++)
        pages[i] = entries > 100 ? 0 : (uint32_t)or_odd(p, below(p, PAGES));
    r->id = 1 + below(p, one_in(p, 8) ? 8 : 2);
    r->q_len = q;
    r->n_q_len = n;
    r->kv_len_max = kv;
    r->n_kv_len_max = one_in(p, 30) ? n / 2 : n;
    r->pages = pages;
    r->n_pages = one_in(p, 6) ? 0 : entries;
    r->entries_per_seq = one_in(p, 8) ? (uint32_t)odd(p) : 0;
    r->tokens_per_entry = (uint32_t)or_odd(p, 64);
}

static struct mla_ref ref_of(struct storm_peer *p, uint64_t region, uint64_t offset)
{
    return (struct mla_ref){.present = true, .region = region, .offset = or_odd(p, offset)};
}

static struct mla_tensor tensor(struct storm_peer *p, uint64_t offset, int64_t row_bytes, uint32_t heads)
{
    return (struct mla_tensor){.present = true,
                               .region = REGION(p),
                               .offset = or_odd(p, offset),
                               .seq_stride = (int64_t)or_odd(p, 8192),
                               .token_stride = (int64_t)or_odd(p, (uint64_t)(row_bytes * heads)),
                               .head_stride = (int64_t)or_odd(p, (uint64_t)row_bytes),
                               .compact = !one_in(p, 6)};
}

static void decode(struct storm_peer *p, struct mla_decode_request *d, bool layer, uint32_t word)
{
    d->cache = CACHE(p);
    d->plane = one_in(p, 10) ? (uint32_t)odd(p) : 0;
    d->table_set = 1 + below(p, one_in(p, 8) ? 8 : 2);
    d->heads = (uint32_t)or_odd(p, 1 + below(p, 8));
    d->q = tensor(p, 589824, 576, d->heads);
    if (one_in(p, 8))
        d->q_rope = tensor(p, 671744, 64, d->heads);
    d->o = tensor(p, 720896, 2048, d->heads);
    if (!one_in(p, 4))
        d->lse = tensor(p, 983040, 4, d->heads);
    d->out_type = one_in(p, 10) ? (enum mla_dtype)below(p, 6) : MLA_DTYPE_F32;
    d->mask = one_in(p, 6) ? (enum mla_mask)below(p, 5) : MLA_MASK_CAUSAL;
    if (one_in(p, 10) && !layer) {
        d->visible = p->storm->numbers;
        d->n_visible = below(p, 20);
    }
    if (one_in(p, 10))
        d->kv_len_ref = ref_of(p, REGION(p), 1003520);
    if (one_in(p, 10)) {
        d->table_ref = ref_of(p, REGION(p), 1007616);
        d->table_entries_per_seq = (uint32_t)or_odd(p, 4);
    }
    d->softmax_scale = one_in(p, 20) ? 0.0f : 1.0f / 24;
    d->batch_invariant = one_in(p, 6);
    d->timeout_us = one_in(p, 20) ? odd(p) : 20000;
    d->priority = (uint32_t)or_odd(p, below(p, 4));
    if (layer || one_in(p, 3)) {
        d->ready = ref_of(p, SYNC(p), UINT64_C(64) * (2 * word));
        d->done = ref_of(p, SYNC(p), UINT64_C(64) * (2 * word + 1));
        d->ready_value = one_in(p, 3) ? prng_u64(&p->storm->prng) : 0; /* 0 has come already */
        d->done_value = or_odd(p, 1);
    }
    if (one_in(p, 6))
        d->status_ref = ref_of(p, REGION(p), 1011712);
}

static void template_open(struct storm_peer *p, struct mla_template_open_request *r)
{
    struct mla_message m;
    uint32_t n = one_in(p, 20) ? MLA_PLANES_MAX + below(p, 2) : 1 + below(p, 4);
    mla_message_init(&m, MLA_MSG_DECODE);
    for (uint32_t i = 0; i < n; i++) {
        p->storm->layers[i] = m.decode;
        decode(p, &p->storm->layers[i], true, i);
        if (i > 0 && !one_in(p, 6)) { /* the same but for the words */
            struct mla_decode_request *l = &p->storm->layers[i];
            struct mla_ref ready = l->ready, done = l->done;
            *l = p->storm->layers[0];
            l->ready = ready;
            l->done = done;
        }
    }
    r->id = 1 + below(p, one_in(p, 4) ? 4 : 2);
    r->layers = p->storm->layers;
    r->n_layers = n;
}

static const char *name_of(struct storm_peer *p)
{
    return p->storm->peers[below(p, STORM_PEERS)].token;
}

size_t storm_build(struct storm_peer *p, struct mla_message *m, int fds[STORM_FDS])
{
    static const uint16_t types[] = {MLA_MSG_REGISTER_REGION,
                                     MLA_MSG_REGISTER_REGION,
                                     MLA_MSG_UNREGISTER_REGION,
                                     MLA_MSG_SUSPEND,
                                     MLA_MSG_RESUME,
                                     MLA_MSG_REGISTER_SYNC,
                                     MLA_MSG_DEFINE_CACHE,
                                     MLA_MSG_DEFINE_CACHE,
                                     MLA_MSG_PUBLISH_CACHE,
                                     MLA_MSG_ATTACH_CACHE,
                                     MLA_MSG_DETACH_CACHE,
                                     MLA_MSG_DROP_CACHE,
                                     MLA_MSG_PUT_TABLE_SET,
                                     MLA_MSG_PUT_TABLE_SET,
                                     MLA_MSG_DROP_TABLE_SET,
                                     MLA_MSG_DECODE,
                                     MLA_MSG_DECODE,
                                     MLA_MSG_DECODE,
                                     MLA_MSG_DECODE,
                                     MLA_MSG_TEMPLATE_OPEN,
                                     MLA_MSG_STEP,
                                     MLA_MSG_STEP,
                                     MLA_MSG_TEMPLATE_CLOSE,
                                     MLA_MSG_CANCEL,
                                     MLA_MSG_HEALTH,
                                     MLA_MSG_METRICS,
                                     MLA_MSG_STATUS,
                                     MLA_MSG_EVICT};
    static const uint16_t beginning[STORM_BEGINNING] = {
        MLA_MSG_REGISTER_REGION, MLA_MSG_REGISTER_SYNC, MLA_MSG_DEFINE_CACHE, MLA_MSG_PUT_TABLE_SET,
        MLA_MSG_PUT_TABLE_SET,   MLA_MSG_TEMPLATE_OPEN, MLA_MSG_PUBLISH_CACHE};
    p->plain = p->greeted && (p->built < STORM_BEGINNING || prng_below(&p->storm->prng, 4) == 0);
    if (p->greeted && p->built < STORM_BEGINNING)
        mla_message_init(m, beginning[p->built++]);
    else
        mla_message_init(m, p->greeted && !one_in(p, 200) ? types[below(p, sizeof(types) / sizeof(types[0]))]
                                                          : MLA_MSG_HELLO);
    switch (m->type) {
    case MLA_MSG_HELLO:
        m->hello.client_name = p->token;
        m->hello.minor = (uint32_t)or_odd(p, 0);
        return 0;
    case MLA_MSG_REGISTER_REGION:
        return register_region(p, &m->register_region, fds);
    case MLA_MSG_UNREGISTER_REGION:
        m->unregister_region.region = one_in(p, 4) ? SYNC(p) : REGION(p);
        return 0;
    case MLA_MSG_SUSPEND:
        m->suspend.region = REGION(p);
        return 0;
    case MLA_MSG_RESUME:
        m->resume.region = REGION(p);
        m->resume.offset = one_in(p, 12) ? odd(p) : 0;
        return some_fds(p, STORM_SEALED, fds);
    case MLA_MSG_REGISTER_SYNC:
        m->register_sync.size = or_odd(p, 4096);
        return some_fds(p, STORM_SYNC, fds);
    case MLA_MSG_DEFINE_CACHE:
        define_cache(p, &m->define_cache);
        return 0;
    case MLA_MSG_PUBLISH_CACHE:
        m->publish_cache.cache = CACHE(p);
        m->publish_cache.name = name_of(p);
        return 0;
    case MLA_MSG_ATTACH_CACHE:
        m->attach_cache.name = name_of(p);
        m->attach_cache.wait_us = one_in(p, 4) ? odd(p) : 0;
        m->attach_cache.has_owner_uid = one_in(p, 3);
        m->attach_cache.owner_uid = (uint32_t)or_odd(p, getuid());
        return 0;
    case MLA_MSG_DETACH_CACHE:
        m->detach_cache.cache = CACHE(p);
        return 0;
    case MLA_MSG_DROP_CACHE:
        m->drop_cache.cache = CACHE(p);
        return 0;
    case MLA_MSG_PUT_TABLE_SET:
        put_tables(p, &m->put_table_set);
        return 0;
    case MLA_MSG_DROP_TABLE_SET:
        m->drop_table_set.id = or_odd(p, 1 + below(p, 8));
        return 0;
    case MLA_MSG_DECODE:
        decode(p, &m->decode, false, below(p, 4));
        return 0;
    case MLA_MSG_TEMPLATE_OPEN:
        template_open(p, &m->template_open);
        return 0;
    case MLA_MSG_STEP:
        m->step.template_id = or_odd(p, 1 + below(p, 2));
        m->step.has_table_set = one_in(p, 6);
        m->step.table_set = 1 + below(p, 8);
        m->step.timeout_us = or_odd(p, 20000);
        return 0;
    case MLA_MSG_TEMPLATE_CLOSE:
        m->template_close.id = or_odd(p, 1 + below(p, 4));
        return 0;
    case MLA_MSG_CANCEL:
        m->cancel.request_id = or_odd(p, p->last_id - below(p, 8));
        return 0;
    case MLA_MSG_STATUS:
        m->status.what = (enum mla_status_what)below(p, 5);
        return 0;
    case MLA_MSG_EVICT:
        m->evict.client_id = odd(p);
        return 0;
    default:
        return 0;
    }
}
