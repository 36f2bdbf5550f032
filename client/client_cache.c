/* Caches and table sets. */
#include "client/client.h"

#include <stdio.h>

static enum mla_status too_short(struct mla_client *c)
{
    return mlac_fail(c, MLA_INVALID_ARGUMENT, "size", "an argument is missing, or a struct was not initialised");
}

/* ---- caches ---- */

enum mla_status mla_cache_define(struct mla_client *client, const struct mla_cache_desc *desc, uint64_t timeout_us,
                                 mla_cache_id *out)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_cache_desc d;
    mla_cache_desc_init(&d);
    if (!out || !desc || mlac_copy_in(&d, sizeof(d), desc, MLAC_LEAST(struct mla_cache_desc, label)))
        return too_short(client);
    if (d.n_planes && !d.plane_offset)
        return mlac_fail(client, MLA_INVALID_ARGUMENT, "plane_offset", "n_planes without plane_offset");

    struct mla_message msg;
    mlac_put_cache(&msg, &d);
    const struct mla_message *reply;
    status = mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
    if (status != MLA_OK)
        return status;
    *out = reply->define_cache_reply.cache;
    if (client->core.ledger)
        mlac_ledger_cache(&client->ledger, *out, &d, mlac_random());
    return MLA_OK;
}

enum mla_status mla_cache_publish(struct mla_client *client, mla_cache_id cache, const char *name, const uint32_t *gids,
                                  size_t n_gids, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    if (!name || (n_gids && !gids))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, name ? "gids" : "name",
                         "a name is needed, and gids with n_gids");
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_PUBLISH_CACHE);
    msg.publish_cache.cache = cache;
    msg.publish_cache.name = name;
    msg.publish_cache.gids = gids;
    msg.publish_cache.n_gids = n_gids;
    const struct mlac_object *known = mlac_ledger_find(&client->ledger, cache);
    msg.publish_cache.tag = known && known->kind == MLAC_CACHE ? known->cache.tag : 0;
    status = mlac_call(client, &msg, NULL, 0, 0, timeout_us, NULL);
    struct mlac_object *o = mlac_ledger_find(&client->ledger, cache);
    if (status == MLA_OK && o && o->kind == MLAC_CACHE && n_gids <= MLA_MAX_GIDS) {
        o->cache.named = true;
        snprintf(o->cache.name, sizeof(o->cache.name), "%s", name);
        if (n_gids)
            memcpy(o->cache.gids, gids, n_gids * sizeof(*gids));
        o->cache.n_gids = n_gids;
    }
    return status;
}

enum mla_status mla_cache_attach(struct mla_client *client, uint32_t owner_uid, const char *name, uint64_t wait_us,
                                 uint64_t timeout_us, struct mla_cache_info *out)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    if (!name || !out)
        return mlac_fail(client, MLA_INVALID_ARGUMENT, name ? "out" : "name", "name and out are needed");
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_ATTACH_CACHE);
    msg.attach_cache.has_owner_uid = owner_uid != MLA_UID_SELF;
    msg.attach_cache.owner_uid = msg.attach_cache.has_owner_uid ? owner_uid : 0;
    msg.attach_cache.name = name;
    msg.attach_cache.wait_us = wait_us;
    const struct mla_message *reply;
    status = mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
    if (status != MLA_OK)
        return status;
    const struct mla_attach_cache_reply *r = &reply->attach_cache_reply;
    *out = (struct mla_cache_info){.cache = r->cache,
                                   .layout = r->layout,
                                   .planes = r->planes,
                                   .tokens_per_entry = r->tokens_per_entry,
                                   .num_pages = r->num_pages};
    if (client->core.ledger)
        mlac_ledger_attachment(&client->ledger, out, owner_uid, name, r->tag);
    return MLA_OK;
}

enum mla_status mla_cache_detach(struct mla_client *client, mla_cache_id cache, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_DETACH_CACHE);
    msg.detach_cache.cache = cache;
    return mlac_call(client, &msg, NULL, 0, cache, timeout_us, NULL);
}

enum mla_status mla_cache_drop(struct mla_client *client, mla_cache_id cache, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_DROP_CACHE);
    msg.drop_cache.cache = cache;
    return mlac_call(client, &msg, NULL, 0, cache, timeout_us, NULL);
}

/* ---- table sets ---- */

/* Behind what a recovery is about to put again. */
static enum mla_status put_later(struct mla_client *c, const struct mlac_tables *kept, uint64_t timeout_us)
{
    if (!kept)
        return mlac_fail(c, MLA_ALREADY_EXISTS, "id", "a table set of that id is there, or there is no memory for it");
    return timeout_us ? mlac_await_up(c, mlac_deadline(timeout_us)) : MLA_OK;
}

static enum mla_status put_and_wait(struct mla_client *c, const struct mla_tables *t, const struct mla_message *msg,
                                    struct mlac_tables *kept, uint64_t timeout_us)
{
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    const uint64_t epoch = c->epoch;
    if (kept)
        kept->there = true;
    enum mla_status status = mlac_call(c, msg, NULL, 0, t->id, timeout_us, NULL);
    if (status == MLA_OK || status == MLA_PENDING || !kept)
        return status;
    if (c->epoch == epoch || c->core.over) {
        mlac_tables_remove(&c->ledger, kept);
        return status;
    }
    return put_later(c, kept, mlac_left_us(deadline_ns) + 1); /* recovery puts it */
}

static enum mla_status put(struct mla_client *c, const struct mla_tables *t, const struct mla_message *msg,
                           uint64_t timeout_us)
{
    struct mlac_tables *kept = c->core.ledger ? mlac_tables_add(&c->ledger, t) : NULL;
    enum mla_status status;
    if (!mlac_up(c)) {
        status = put_later(c, kept, timeout_us);
    } else if (timeout_us) {
        status = put_and_wait(c, t, msg, kept, timeout_us);
    } else {
        status = mlac_post(c, msg, t->id, kept);
        if (status != MLA_OK && kept)
            mlac_tables_remove(&c->ledger, kept);
    }
    if (kept)
        mlac_tables_unref(&c->ledger, kept);
    return status;
}

enum mla_status mla_tables_put(struct mla_client *client, const struct mla_tables *tables, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_tables t;
    mla_tables_init(&t);
    if (!tables || mlac_copy_in(&t, sizeof(t), tables, MLAC_LEAST(struct mla_tables, tokens_per_entry)))
        return too_short(client);
    if (t.n_seqs && (!t.q_len || !t.kv_len_max))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, t.q_len ? "kv_len_max" : "q_len", "an array is missing");
    if (t.n_entries && !t.entries)
        return mlac_fail(client, MLA_INVALID_ARGUMENT, "pages", "n_entries without entries");

    struct mla_message msg;
    mlac_put_tables(&msg, &t, t.id);
    status = put(client, &t, &msg, timeout_us);
    mlac_io_settle(client);
    return status;
}

enum mla_status mla_tables_drop(struct mla_client *client, mla_tables_id id, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_DROP_TABLE_SET);
    msg.drop_table_set.id = id;
    /* Jobs that are yet to be sent again keep it. */
    struct mlac_tables *known = mlac_tables_use(&client->ledger, id);
    if (known) {
        mlac_tables_remove(&client->ledger, known);
        mlac_tables_unref(&client->ledger, known);
    }
    if (known && !mlac_up(client))
        status = MLA_OK; /* the daemon has not got it */
    else if (!timeout_us && mlac_up(client))
        status = mlac_post(client, &msg, id, NULL);
    else
        return mlac_call(client, &msg, NULL, 0, id, timeout_us, NULL);
    mlac_io_settle(client);
    return status;
}
