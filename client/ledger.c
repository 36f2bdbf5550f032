#include "client/ledger.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/wire.h"

#define OWN_TABLES (UINT64_C(1) << 63) /* a bit of the ids of table sets that only the library knows */

void mlac_ledger_init(struct mlac_ledger *l, uint64_t seed)
{
    memset(l, 0, sizeof(*l));
    list_init(&l->objects);
    list_init(&l->tables);
    l->last_wire = seed | OWN_TABLES;
}

/* ---- objects ---- */

static struct mlac_object *add(struct mlac_ledger *l, enum mlac_kind kind, uint64_t id)
{
    struct mlac_object *o = calloc(1, sizeof(*o));
    if (!o)
        return NULL;
    o->kind = kind;
    o->id = o->wire = id;
    o->there = true;
    list_push_back(&l->objects, &o->node);
    HASH_ADD(hh, l->by_id, id, sizeof(o->id), o);
    return o;
}

static void copy_text(char *out, size_t cap, const char *in)
{
    snprintf(out, cap, "%s", in ? in : "");
}

static int keep_fd(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

/* What cannot be kept (descriptors are out) makes a region that is missing after the next reconnect. */
static void region_fill(struct mlac_region_spec *s, const struct mla_region_desc *d)
{
    s->desc = *d;
    copy_text(s->label, sizeof(s->label), d->label);
    copy_text(s->gpu_uuid, sizeof(s->gpu_uuid), d->gpu_uuid);
    s->desc.label = d->label ? s->label : NULL;
    s->desc.gpu_uuid = d->gpu_uuid ? s->gpu_uuid : NULL;
    s->desc.fd = d->kind == MLA_REGION_MEMFD ? keep_fd(d->fd) : -1;
    if (d->kind == MLA_REGION_CUDA_IPC && d->ipc_handle) {
        memcpy(s->handle, d->ipc_handle, sizeof(s->handle));
        s->desc.ipc_handle = s->handle;
    }
    s->desc.parts = NULL;
    if (d->kind != MLA_REGION_CUDA_VMM)
        return;
    bool reopens = d->open_part && d->open_done;
    if (reopens || (!d->open_part && d->n_parts <= MLA_MAX_FDS_PER_FRAME))
        s->parts = calloc(d->n_parts, sizeof(*s->parts));
    if (!s->parts) {
        s->desc.n_parts = 0;
        return;
    }
    for (size_t i = 0; i < d->n_parts; i++) {
        s->parts[i] = d->parts[i];
        s->parts[i].fd = reopens ? -1 : keep_fd(d->parts[i].fd);
    }
    s->desc.parts = s->parts;
}

static void region_clear(struct mlac_region_spec *s)
{
    if (s->desc.fd >= 0)
        close(s->desc.fd);
    for (size_t i = 0; s->parts && i < s->desc.n_parts; i++)
        if (s->parts[i].fd >= 0)
            close(s->parts[i].fd);
    free(s->parts);
    if (s->desc.open_done)
        s->desc.open_done(s->desc.open_user);
    memset(s, 0, sizeof(*s));
    s->desc.fd = -1;
}

struct mlac_object *mlac_ledger_region(struct mlac_ledger *l, uint64_t id, const struct mla_region_desc *desc)
{
    struct mlac_object *o = add(l, MLAC_REGION, id);
    if (o)
        region_fill(&o->region, desc);
    else if (desc->open_done)
        desc->open_done(desc->open_user);
    return o;
}

void mlac_ledger_resumed(struct mlac_ledger *l, struct mlac_object *region, const struct mla_region_desc *desc)
{
    struct mla_region_desc d = *desc;
    char label[MLA_MAX_NAME_BYTES + 1], gpu_uuid[MLA_MAX_NAME_BYTES + 1];
    const struct mla_region_desc *old = &region->region.desc;
    (void)l;
    copy_text(label, sizeof(label), old->label);
    copy_text(gpu_uuid, sizeof(gpu_uuid), old->gpu_uuid);
    d.access = old->access;
    d.label = old->label ? label : NULL;
    d.gpu_uuid = old->gpu_uuid ? gpu_uuid : NULL;
    region_clear(&region->region);
    region_fill(&region->region, &d);
    region->suspended = false;
}

struct mlac_object *mlac_ledger_page(struct mlac_ledger *l, uint64_t id, int fd, uint64_t size)
{
    struct mlac_object *o = add(l, MLAC_PAGE, id);
    if (o) {
        o->page.fd = fd;
        o->page.size = size;
    }
    return o;
}

struct mlac_object *mlac_ledger_cache(struct mlac_ledger *l, uint64_t id, const struct mla_cache_desc *desc,
                                      uint64_t tag)
{
    uint64_t *planes = desc->n_planes ? calloc(desc->n_planes, sizeof(*planes)) : NULL;
    struct mlac_object *o = desc->n_planes && !planes ? NULL : add(l, MLAC_CACHE, id);
    if (!o) {
        free(planes);
        return NULL;
    }
    if (planes)
        memcpy(planes, desc->plane_offset, desc->n_planes * sizeof(*planes));
    o->cache.desc = *desc;
    o->cache.planes = planes;
    o->cache.desc.plane_offset = planes;
    copy_text(o->cache.label, sizeof(o->cache.label), desc->label);
    o->cache.desc.label = desc->label ? o->cache.label : NULL;
    o->cache.tag = tag;
    return o;
}

struct mlac_object *mlac_ledger_attachment(struct mlac_ledger *l, const struct mla_cache_info *info, uint32_t owner_uid,
                                           const char *name, uint64_t tag)
{
    struct mlac_object *o = add(l, MLAC_ATTACHMENT, info->cache);
    if (!o)
        return NULL;
    o->attachment.owner_uid = owner_uid;
    copy_text(o->attachment.name, sizeof(o->attachment.name), name);
    o->attachment.tag = tag;
    o->attachment.info = *info;
    return o;
}

void mlac_ledger_remove(struct mlac_ledger *l, struct mlac_object *o)
{
    HASH_DELETE(hh, l->by_id, o);
    list_del(&o->node);
    if (o->kind == MLAC_REGION)
        region_clear(&o->region);
    else if (o->kind == MLAC_CACHE)
        free(o->cache.planes);
    free(o);
}

void mlac_ledger_free(struct mlac_ledger *l)
{
    list_for_each_safe (node, &l->objects)
        mlac_ledger_remove(l, list_entry(node, struct mlac_object, node));
    HASH_CLEAR(hh, l->live);
    list_for_each_safe (node, &l->tables)
        free(list_entry(node, struct mlac_tables, node));
    list_init(&l->tables);
}

struct mlac_object *mlac_ledger_find(const struct mlac_ledger *l, uint64_t id)
{
    struct mlac_object *o;
    HASH_FIND(hh, l->by_id, &id, sizeof(id), o);
    return o;
}

struct mlac_object *mlac_ledger_attached(const struct mlac_ledger *l, uint64_t wire)
{
    list_for_each (node, &l->objects) {
        struct mlac_object *o = list_entry(node, struct mlac_object, node);
        if (o->kind == MLAC_ATTACHMENT && o->there && o->wire == wire)
            return o;
    }
    return NULL;
}

bool mlac_ledger_has_caches(const struct mlac_ledger *l, uint64_t region)
{
    list_for_each (node, &l->objects) {
        const struct mlac_object *o = list_entry(node, struct mlac_object, node);
        if (o->kind == MLAC_CACHE && o->cache.desc.region == region)
            return true;
    }
    return false;
}

uint64_t mlac_ledger_wire(const struct mlac_ledger *l, uint64_t id)
{
    const struct mlac_object *o = l->remapped ? mlac_ledger_find(l, id) : NULL;
    return o && o->there ? o->wire : id;
}

void mlac_ledger_ended(struct mlac_ledger *l, uint16_t type, uint64_t id)
{
    struct mlac_object *o = mlac_ledger_find(l, id);
    if (!o)
        return;
    if (type == MLA_MSG_SUSPEND)
        o->suspended = true;
    else if (type == MLA_MSG_UNREGISTER_REGION || type == MLA_MSG_DROP_CACHE || type == MLA_MSG_DETACH_CACHE)
        mlac_ledger_remove(l, o);
}

/* ---- restoring ---- */

void mlac_ledger_cut(struct mlac_ledger *l)
{
    l->remapped = true;
    list_for_each (node, &l->objects) {
        struct mlac_object *o = list_entry(node, struct mlac_object, node);
        o->there = o->asked = false;
        if (o->kind == MLAC_CACHE)
            o->cache.name_due = o->cache.named;
    }
    list_for_each_safe (node, &l->tables) {
        struct mlac_tables *t = list_entry(node, struct mlac_tables, node);
        t->there = false;
        if (!t->refs) {
            list_del(node);
            free(t);
        }
    }
    l->n_garbage = 0;
}

static bool can_make(const struct mlac_ledger *l, const struct mlac_object *o)
{
    if (o->missing || o->suspended || o->kind == MLAC_ATTACHMENT)
        return false;
    if (o->kind != MLAC_CACHE)
        return !o->there;
    const struct mlac_object *region = mlac_ledger_find(l, o->cache.desc.region);
    return region && region->there && !region->suspended && (!o->there || o->cache.name_due);
}

struct mlac_object *mlac_ledger_next(const struct mlac_ledger *l)
{
    list_for_each (node, &l->objects) {
        struct mlac_object *o = list_entry(node, struct mlac_object, node);
        if (can_make(l, o))
            return o;
    }
    return NULL;
}

struct mlac_tables *mlac_ledger_next_tables(const struct mlac_ledger *l)
{
    list_for_each (node, &l->tables) {
        struct mlac_tables *t = list_entry(node, struct mlac_tables, node);
        if (!t->there && t->refs && !t->missing)
            return t;
    }
    return NULL;
}

/* ---- table sets ---- */

static uint32_t *put(uint32_t *at, const uint32_t **out, const uint32_t *in, size_t n)
{
    *out = in ? at : NULL;
    if (in && n)
        memcpy(at, in, n * sizeof(*at));
    return in ? at + n : at;
}

struct mlac_tables *mlac_tables_add(struct mlac_ledger *l, const struct mla_tables *tables)
{
    struct mlac_tables *t;
    HASH_FIND(hh, l->live, &tables->id, sizeof(tables->id), t);
    if (t)
        return NULL;
    size_t n = 2 * tables->n_seqs + tables->n_entries;
    t = malloc(sizeof(*t) + n * sizeof(t->data[0]));
    if (!t)
        return NULL;
    memset(t, 0, sizeof(*t));
    t->id = t->wire = tables->id;
    t->arrays = *tables;
    uint32_t *at = t->data;
    at = put(at, &t->arrays.q_len, tables->q_len, tables->n_seqs);
    at = put(at, &t->arrays.kv_len_max, tables->kv_len_max, tables->n_seqs);
    put(at, &t->arrays.entries, tables->entries, tables->n_entries);
    t->refs = 2;
    t->live = true;
    list_push_back(&l->tables, &t->node);
    HASH_ADD(hh, l->live, id, sizeof(t->id), t);
    return t;
}

struct mlac_tables *mlac_tables_use(struct mlac_ledger *l, uint64_t id)
{
    struct mlac_tables *t;
    HASH_FIND(hh, l->live, &id, sizeof(id), t);
    if (t)
        t->refs++;
    return t;
}

void mlac_tables_remove(struct mlac_ledger *l, struct mlac_tables *t)
{
    if (!t->live)
        return;
    struct mlac_tables *other;
    t->live = false;
    HASH_DELETE(hh, l->live, t);
    /* The id may be put again: for jobs that are yet to be sent this one has a name of its own. */
    do {
        t->wire = ++l->last_wire | OWN_TABLES;
        HASH_FIND(hh, l->live, &t->wire, sizeof(t->wire), other);
    } while (other);
    t->there = false;
    mlac_tables_unref(l, t);
}

void mlac_tables_unref(struct mlac_ledger *l, struct mlac_tables *t)
{
    if (!t || --t->refs)
        return;
    if (t->there) {
        l->n_garbage++;
        return;
    }
    list_del(&t->node);
    free(t);
}

bool mlac_tables_garbage(struct mlac_ledger *l, uint64_t *wire)
{
    list_for_each (node, &l->tables) {
        struct mlac_tables *t = list_entry(node, struct mlac_tables, node);
        if (t->refs)
            continue;
        *wire = t->wire;
        l->n_garbage--;
        list_del(node);
        free(t);
        return true;
    }
    return false;
}

/* ---- jobs ---- */

static bool is_away(const struct mlac_ledger *l, uint64_t id)
{
    const struct mlac_object *o = id ? mlac_ledger_find(l, id) : NULL;
    if (o && o->kind == MLAC_CACHE)
        o = mlac_ledger_find(l, o->cache.desc.region);
    return o && o->suspended && !o->there;
}

enum mlac_objects mlac_ledger_job(const struct mlac_ledger *l, const struct mla_decode_args *a, enum mla_status *why)
{
    const uint64_t ids[] = {a->cache,         a->q.region,          a->q_rope.region, a->o.region,     a->lse.region,
                            a->kv_len.region, a->visible_at.region, a->table.region,  a->status.region};
    if (!l->remapped)
        return MLAC_ALL_THERE;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        if (is_away(l, ids[i])) {
            *why = MLA_SUSPENDED;
            return MLAC_NOT_THERE;
        }
    }
    const struct mlac_object *cache = mlac_ledger_find(l, a->cache);
    if (!cache || cache->kind != MLAC_ATTACHMENT || cache->there)
        return MLAC_ALL_THERE;
    *why = MLA_CACHE_GONE;
    return cache->missing ? MLAC_NOT_THERE : MLAC_HOLD;
}
