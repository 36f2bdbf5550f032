/* Objects that are made again on another connection, one request after the other; attachments, all at once. */
#include "client/client.h"

#include <stdio.h>

#include "daemon/util/clock.h"

/* ---- ids ---- */

void mlac_translate(const struct mla_client *c, struct mla_message *msg)
{
    const struct mlac_ledger *l = &c->ledger;
    if (!l->remapped)
        return;
    switch (msg->type) {
    case MLA_MSG_DEFINE_CACHE:
        msg->define_cache.region = mlac_ledger_wire(l, msg->define_cache.region);
        break;
    case MLA_MSG_PUBLISH_CACHE:
        msg->publish_cache.cache = mlac_ledger_wire(l, msg->publish_cache.cache);
        break;
    case MLA_MSG_DROP_CACHE:
        msg->drop_cache.cache = mlac_ledger_wire(l, msg->drop_cache.cache);
        break;
    case MLA_MSG_DETACH_CACHE:
        msg->detach_cache.cache = mlac_ledger_wire(l, msg->detach_cache.cache);
        break;
    case MLA_MSG_UNREGISTER_REGION:
        msg->unregister_region.region = mlac_ledger_wire(l, msg->unregister_region.region);
        break;
    case MLA_MSG_SUSPEND:
        msg->suspend.region = mlac_ledger_wire(l, msg->suspend.region);
        break;
    case MLA_MSG_RESUME:
        msg->resume.region = mlac_ledger_wire(l, msg->resume.region);
        break;
    default:
        break;
    }
}

void mlac_translate_job(const struct mla_client *c, struct mla_decode_request *job)
{
    uint64_t *ids[] = {&job->cache,        &job->q.region,           &job->q_rope.region,     &job->o.region,
                       &job->lse.region,   &job->visible_ref.region, &job->kv_len_ref.region, &job->table_ref.region,
                       &job->ready.region, &job->done.region,        &job->status_ref.region};
    if (!c->ledger.remapped)
        return;
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
        if (*ids[i])
            *ids[i] = mlac_ledger_wire(&c->ledger, *ids[i]);
}

/* ---- messages ---- */

void mlac_put_tables(struct mla_message *msg, const struct mla_tables *t, uint64_t id)
{
    mla_message_init(msg, MLA_MSG_PUT_TABLE_SET);
    msg->put_table_set.id = id;
    msg->put_table_set.q_len = t->q_len;
    msg->put_table_set.n_q_len = t->n_seqs;
    msg->put_table_set.kv_len_max = t->kv_len_max;
    msg->put_table_set.n_kv_len_max = t->n_seqs;
    msg->put_table_set.pages = t->entries;
    msg->put_table_set.n_pages = t->n_entries;
    msg->put_table_set.entries_per_seq = t->entries_per_seq;
    msg->put_table_set.tokens_per_entry = t->tokens_per_entry;
}

void mlac_put_cache(struct mla_message *msg, const struct mla_cache_desc *d)
{
    mla_message_init(msg, MLA_MSG_DEFINE_CACHE);
    msg->define_cache.layout = d->layout;
    msg->define_cache.region = d->region;
    msg->define_cache.offset = d->offset;
    msg->define_cache.plane_offset = d->plane_offset;
    msg->define_cache.n_plane_offset = d->n_planes;
    msg->define_cache.num_pages = d->num_pages;
    msg->define_cache.page_stride = d->page_stride;
    msg->define_cache.row_stride = d->row_stride;
    msg->define_cache.tokens_per_entry = d->tokens_per_entry;
    msg->define_cache.label = d->label;
}

static enum mla_status send_region(struct mla_client *c, const struct mlac_object *o)
{
    const struct mla_region_desc *d = &o->region.desc;
    const struct mla_error_info before = c->error;
    struct mlac_frame frame;
    struct mla_message msg;
    if ((d->kind == MLA_REGION_MEMFD && d->fd < 0) || (d->kind == MLA_REGION_CUDA_VMM && !d->n_parts))
        return MLA_NO_DESCRIPTORS; /* they could not be kept */
    mla_message_init(&msg, MLA_MSG_REGISTER_REGION);
    enum mla_status status = mlac_frame_open(c, d, c->restoring_part, c->restoring_region, &frame, &msg);
    if (status == MLA_OK) {
        status = mlac_own(c, &msg, frame.fds, frame.n, o->id);
        mlac_frame_close(&frame, d);
        c->restoring_part += d->kind == MLA_REGION_CUDA_VMM ? frame.n : 0;
    }
    c->error = before;
    return status;
}

static enum mla_status send_object(struct mla_client *c, const struct mlac_object *o)
{
    struct mla_message msg;
    switch (o->kind) {
    case MLAC_REGION:
        return send_region(c, o);
    case MLAC_PAGE:
        mla_message_init(&msg, MLA_MSG_REGISTER_SYNC);
        msg.register_sync.size = o->page.size;
        return mlac_own(c, &msg, &o->page.fd, 1, o->id);
    default:
        break;
    }
    if (!o->there) {
        mlac_put_cache(&msg, &o->cache.desc);
    } else {
        mla_message_init(&msg, MLA_MSG_PUBLISH_CACHE);
        msg.publish_cache.cache = o->id;
        msg.publish_cache.name = o->cache.name;
        msg.publish_cache.gids = o->cache.gids;
        msg.publish_cache.n_gids = o->cache.n_gids;
        msg.publish_cache.tag = o->cache.tag;
    }
    mlac_translate(c, &msg);
    return mlac_own(c, &msg, NULL, 0, o->id);
}

/* ---- one after the other ---- */

enum mla_status mlac_restore_next(struct mla_client *c, bool *more)
{
    struct mla_message msg;
    struct mlac_object *o = mlac_ledger_next(&c->ledger);
    struct mlac_tables *t = o ? NULL : mlac_ledger_next_tables(&c->ledger);
    if (o != c->restoring || c->restoring_tables) {
        mlac_restore_stop(c);
        c->restoring = o;
    }
    *more = o || t;
    if (o)
        return send_object(c, o);
    if (!t)
        return MLA_OK;
    t->refs++;
    c->restoring_tables = t;
    mlac_put_tables(&msg, &t->arrays, t->wire);
    return mlac_own(c, &msg, NULL, 0, t->id);
}

void mlac_restore_stop(struct mla_client *c)
{
    mlac_tables_unref(&c->ledger, c->restoring_tables);
    c->restoring_tables = NULL;
    c->restoring = NULL;
    c->restoring_part = 0;
    c->restoring_region = 0;
}

static void region_made(struct mla_client *c, struct mlac_object *o, uint64_t wire)
{
    c->restoring_region = wire;
    if (o->region.desc.kind == MLA_REGION_CUDA_VMM && c->restoring_part < o->region.desc.n_parts)
        return; /* its next frame is the next thing that is restored */
    o->wire = wire;
    o->there = true;
}

bool mlac_restore_answered(struct mla_client *c, enum mla_status *status)
{
    const struct mla_message *reply = &c->core.msg;
    struct mlac_object *o = c->restoring;
    *status = reply->reply.status.code;
    if (*status != MLA_OK) {
        c->restoring_part = 0; /* a region begins anew */
        c->restoring_region = 0;
        c->why = reply->reply.status;
        c->why.field = NULL;
        return false;
    }
    if (c->restoring_tables) {
        c->restoring_tables->there = true;
    } else if (c->core.own_type == MLA_MSG_REGISTER_REGION) {
        region_made(c, o, reply->register_region_reply.region);
    } else if (c->core.own_type == MLA_MSG_REGISTER_SYNC) {
        o->wire = reply->register_sync_reply.region;
        o->there = true;
    } else if (c->core.own_type == MLA_MSG_DEFINE_CACHE) {
        o->wire = reply->define_cache_reply.cache;
        o->there = true;
    } else {
        o->cache.name_due = false;
    }
    return true;
}

void mlac_restore_skip(struct mla_client *c)
{
    struct mlac_object *o = c->restoring;
    struct mlac_tables *t = c->restoring_tables;
    struct mla_event *event = mlac_tell(c, t ? MLA_EVENT_REFUSED : MLA_EVENT_LOST);
    if (event) {
        mlac_error_info(&event->error, &c->why);
        if (t)
            event->tables = t->id;
        else if (o->kind == MLAC_CACHE)
            event->cache = o->id;
        else
            event->region = o->id;
        if (o && o->kind == MLAC_CACHE && o->there)
            snprintf(event->name, sizeof(event->name), "%s", o->cache.name);
    }
    if (t) {
        t->missing = true;
        mlac_tables_remove(&c->ledger, t);
    } else if (o->kind == MLAC_CACHE && o->there) {
        o->cache.named = o->cache.name_due = false; /* the cache itself is there */
    } else {
        o->missing = true;
    }
    mlac_restore_stop(c);
}

/* ---- attachments ---- */

static void gone(struct mla_client *c, struct mlac_object *o, const struct mla_error *why)
{
    struct mla_event *event = mlac_tell(c, MLA_EVENT_CACHE_GONE);
    o->missing = true;
    if (!event)
        return;
    event->cache = o->id;
    snprintf(event->name, sizeof(event->name), "%s", o->attachment.name);
    mlac_error_info(&event->error, why);
}

/* Each waits at the daemon until its owner has published it again, and jobs on it wait here. */
void mlac_reattach(struct mla_client *c)
{
    const uint64_t limit_ns = c->recover.config.limit_ns;
    list_for_each (node, &c->ledger.objects) {
        struct mlac_object *o = list_entry(node, struct mlac_object, node);
        struct mla_message msg;
        if (o->kind != MLAC_ATTACHMENT || o->there || o->missing || o->asked)
            continue;
        mla_message_init(&msg, MLA_MSG_ATTACH_CACHE);
        msg.attach_cache.has_owner_uid = o->attachment.owner_uid != MLA_UID_SELF;
        msg.attach_cache.owner_uid = msg.attach_cache.has_owner_uid ? o->attachment.owner_uid : 0;
        msg.attach_cache.name = o->attachment.name;
        msg.attach_cache.wait_us = limit_ns / MLA_NS_PER_US;
        struct mla_error err = {.code = mlac_own(c, &msg, NULL, 0, o->id)};
        if (err.code != MLA_OK)
            gone(c, o, &err);
        else
            o->asked = true;
    }
}

static bool is_the_same(const struct mlac_attachment_spec *a, const struct mla_attach_cache_reply *r)
{
    return a->tag && r->tag == a->tag && r->layout == a->info.layout && r->planes == a->info.planes &&
           r->tokens_per_entry == a->info.tokens_per_entry && r->num_pages == a->info.num_pages;
}

static void detach(struct mla_client *c, uint64_t wire)
{
    struct mla_message msg;
    const struct mla_error_info before = c->error;
    mla_message_init(&msg, MLA_MSG_DETACH_CACHE);
    msg.detach_cache.cache = wire;
    mlac_post(c, &msg, 0, NULL);
    c->error = before;
}

void mlac_reattached(struct mla_client *c, uint64_t id)
{
    const struct mla_attach_cache_reply *r = &c->core.msg.attach_cache_reply;
    struct mlac_object *o = mlac_ledger_find(&c->ledger, id);
    struct mla_error err = r->status;
    if (err.code == MLA_DRAINING) /* the connection ends soon, and the next daemon is asked */
        return;
    if (o)
        o->asked = false;
    if (err.code == MLA_OK && (!o || !is_the_same(&o->attachment, r))) {
        detach(c, r->cache);
        mla_error_set(&err, MLA_CACHE_GONE, NULL, "another cache has been published under that name");
    }
    if (!o)
        return;
    if (err.code != MLA_OK) {
        gone(c, o, &err);
    } else {
        o->wire = r->cache;
        o->there = true;
    }
    mlac_resend(c);
}
