/* Caches and table sets. */
#include "client/client.h"

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
    mla_message_init(&msg, MLA_MSG_DEFINE_CACHE);
    msg.define_cache.layout = d.layout;
    msg.define_cache.region = d.region;
    msg.define_cache.offset = d.offset;
    msg.define_cache.plane_offset = d.plane_offset;
    msg.define_cache.n_plane_offset = d.n_planes;
    msg.define_cache.num_pages = d.num_pages;
    msg.define_cache.page_stride = d.page_stride;
    msg.define_cache.row_stride = d.row_stride;
    msg.define_cache.tokens_per_entry = d.tokens_per_entry;
    msg.define_cache.label = d.label;
    const struct mla_message *reply;
    status = mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
    if (status == MLA_OK)
        *out = reply->define_cache_reply.cache;
    return status;
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
    return mlac_call(client, &msg, NULL, 0, 0, timeout_us, NULL);
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
    mla_message_init(&msg, MLA_MSG_PUT_TABLE_SET);
    msg.put_table_set.id = t.id;
    msg.put_table_set.q_len = t.q_len;
    msg.put_table_set.n_q_len = t.n_seqs;
    msg.put_table_set.kv_len_max = t.kv_len_max;
    msg.put_table_set.n_kv_len_max = t.n_seqs;
    msg.put_table_set.pages = t.entries;
    msg.put_table_set.n_pages = t.n_entries;
    msg.put_table_set.entries_per_seq = t.entries_per_seq;
    msg.put_table_set.tokens_per_entry = t.tokens_per_entry;
    if (!timeout_us)
        return mlac_post(client, &msg, t.id);
    return mlac_call(client, &msg, NULL, 0, t.id, timeout_us, NULL);
}

enum mla_status mla_tables_drop(struct mla_client *client, mla_tables_id id, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_DROP_TABLE_SET);
    msg.drop_table_set.id = id;
    if (!timeout_us)
        return mlac_post(client, &msg, id);
    return mlac_call(client, &msg, NULL, 0, id, timeout_us, NULL);
}
