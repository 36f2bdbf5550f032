/* Caches in regions, their publication, attachments, and what becomes of them when an owner goes. */
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/checked.h"
#include "daemon/util/clock.h"
#include "daemon/util/random.h"

static int refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t value, uint64_t limit,
                  const char *text)
{
    mla_error_set(err, code, field, "%s", text);
    err->value = value;
    err->limit = limit;
    return (int)code;
}

/* Last byte of the last row of a plane: the last page need not be followed by its gap, nor its last row by its pad. */
static int plane_bytes(uint64_t num_pages, uint64_t page_stride, uint64_t row_stride, uint64_t *out)
{
    uint64_t rows = (MLA_PAGE_TOKENS - 1) * row_stride + MLA_QK_DIM;
    return mla_mul_add_u64(num_pages - 1, page_stride, rows, out);
}

static int check_planes(const struct mla_define_cache_request *r, const struct app_region *region, uint64_t page_stride,
                        struct mla_error *err)
{
    uint64_t bytes;
    if (plane_bytes(r->num_pages, page_stride, r->row_stride, &bytes) != 0)
        return refuse(err, MLA_OUT_OF_BOUNDS, "num_pages", r->num_pages, region->mem.size, "a plane overflows 64 bits");
    uint64_t planes = r->n_plane_offset > 0 ? r->n_plane_offset : 1;
    for (uint64_t i = 0; i < planes; i++) {
        uint64_t plane = r->n_plane_offset > 0 ? r->plane_offset[i] : 0;
        uint64_t begin;
        if (plane % MLA_ALIGN_BYTES != 0) {
            refuse(err, MLA_MISALIGNED, "plane_offset", plane, MLA_ALIGN_BYTES, "planes begin at multiples of 16");
            err->index = i;
            return MLA_MISALIGNED;
        }
        if (mla_add_u64(r->offset, plane, &begin) != 0 || !mla_range_fits(begin, bytes, region->mem.size)) {
            refuse(err, MLA_OUT_OF_BOUNDS, r->n_plane_offset > 0 ? "plane_offset" : "num_pages",
                   r->n_plane_offset > 0 ? plane : r->num_pages, region->mem.size, "a plane leaves its region");
            err->index = i;
            return MLA_OUT_OF_BOUNDS;
        }
    }
    return 0;
}

static int check(struct app_client *client, const struct mla_define_cache_request *r, struct app_region **region,
                 struct mla_error *err)
{
    const struct app_config *config = client->app->config;
    uint64_t page_stride = r->page_stride;
    if (r->layout != MLA_CACHE_E4M3_576)
        return refuse(err, MLA_UNSUPPORTED, "layout", r->layout, MLA_CACHE_E4M3_576, "this daemon decodes E4M3_576");
    *region = memory_find(client, r->region, "region", err);
    if (*region == NULL)
        return (int)err->code;
    if ((*region)->mem.sync)
        return refuse(err, MLA_NOT_FOUND, "region", r->region, 0, "no such region on this connection");
    if (client->n_caches >= config->max_caches)
        return (int)client_over_quota(client, err, NULL, client->n_caches + 1u, config->max_caches,
                                      "the client has as many caches as it may");
    if (r->tokens_per_page != MLA_PAGE_TOKENS)
        return refuse(err, MLA_UNSUPPORTED, "tokens_per_page", r->tokens_per_page, MLA_PAGE_TOKENS,
                      "pages have 64 tokens");
    if (r->num_pages == 0 || r->num_pages > UINT32_MAX)
        return refuse(err, MLA_INVALID_ARGUMENT, "num_pages", r->num_pages, UINT32_MAX,
                      "a cache has 1 to 2^32 - 1 pages");
    if (r->num_pages % (r->tokens_per_entry / MLA_PAGE_TOKENS) != 0)
        return refuse(err, MLA_INVALID_ARGUMENT, "num_pages", r->num_pages, r->tokens_per_entry / MLA_PAGE_TOKENS,
                      "num_pages must be a multiple of the pages of a table entry");
    if (r->offset % MLA_ALIGN_BYTES != 0)
        return refuse(err, MLA_MISALIGNED, "offset", r->offset, MLA_ALIGN_BYTES, "offset must be a multiple of 16");
    if (r->row_stride < MLA_QK_DIM || r->row_stride % MLA_ALIGN_BYTES != 0 ||
        r->row_stride > UINT32_MAX / MLA_PAGE_TOKENS)
        return refuse(err, MLA_INVALID_ARGUMENT, "row_stride", r->row_stride, MLA_QK_DIM,
                      "row_stride must be a multiple of 16 of at least 576 bytes");
    if (page_stride == 0 || page_stride % MLA_ALIGN_BYTES != 0)
        return refuse(err, MLA_MISALIGNED, "page_stride", page_stride, MLA_ALIGN_BYTES,
                      "page_stride must be a multiple of 16");
    if (page_stride < (MLA_PAGE_TOKENS - 1) * r->row_stride + MLA_QK_DIM)
        return refuse(err, MLA_INVALID_ARGUMENT, "page_stride", page_stride,
                      (MLA_PAGE_TOKENS - 1) * r->row_stride + MLA_QK_DIM, "pages would overlap");
    return check_planes(r, *region, page_stride, err);
}

void cache_define(struct app_client *client, const struct net_request *request)
{
    const struct mla_define_cache_request *r = &request->message->define_cache;
    struct mla_error err = {0};
    struct app_region *region = NULL;
    struct app_cache *cache = NULL;
    uint32_t planes = r->n_plane_offset > 0 ? (uint32_t)r->n_plane_offset : 1;
    if (check(client, r, &region, &err) != 0)
        goto refused;
    cache = calloc(1, sizeof(*cache));
    if (cache == NULL || (cache->plane_offset = calloc(planes, sizeof(uint64_t))) == NULL ||
        mla_random_id(&cache->id) != 0) {
        mla_error_set(&err, MLA_OUT_OF_MEMORY, NULL, "no memory for the cache");
        goto refused;
    }
    cache->object.kind = APP_CACHE;
    cache->client = client;
    cache->region = region;
    cache->layout = r->layout;
    cache->offset = r->offset;
    cache->page_stride = r->page_stride;
    cache->num_pages = (uint32_t)r->num_pages;
    cache->row_stride = (uint32_t)r->row_stride;
    cache->tokens_per_entry = r->tokens_per_entry;
    cache->n_planes = planes;
    if (r->n_plane_offset > 0)
        memcpy(cache->plane_offset, r->plane_offset, planes * sizeof(uint64_t));
    strncpy(cache->label, r->label, sizeof(cache->label) - 1);
    list_init(&cache->attachments);
    list_init(&cache->in_published);
    sched_pin(&region->object.sched);
    region->n_caches++;
    client->n_caches++;
    HASH_ADD(hh, client->caches, id, sizeof(cache->id), cache);

    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_DEFINE_CACHE | MLA_REPLY);
    reply.define_cache_reply.cache = cache->id;
    app_reply(client, MLA_MSG_DEFINE_CACHE, request->request_id, &reply);
    return;
refused:
    if (cache != NULL)
        free(cache->plane_offset);
    free(cache);
    app_reply_status(client, MLA_MSG_DEFINE_CACHE, request->request_id, &err);
}

static struct app_cache *find_own(struct app_client *client, uint64_t id)
{
    struct app_cache *cache;
    HASH_FIND(hh, client->caches, &id, sizeof(id), cache);
    return cache;
}

struct app_cache *cache_find(struct app_client *client, uint64_t id, struct mla_error *err)
{
    struct app_cache *cache = find_own(client, id);
    if (cache != NULL)
        return cache;
    struct app_attachment *attachment;
    HASH_FIND(hh, client->attachments, &id, sizeof(id), attachment);
    if (attachment == NULL)
        refuse(err, MLA_NOT_FOUND, "cache", id, 0, "no such cache or attachment on this connection");
    else if (attachment->cache == NULL)
        refuse(err, MLA_CACHE_GONE, "cache", id, 0, "its owner has gone or has dropped it");
    else
        return attachment->cache;
    return NULL;
}

/* ---- publication ---- */

static struct app_cache *find_published(struct app *app, uint32_t uid, const char *name)
{
    list_for_each (node, &app->published) {
        struct app_cache *cache = list_entry(node, struct app_cache, in_published);
        if (cache->client->creds.uid == uid && strcmp(cache->name, name) == 0)
            return cache;
    }
    return NULL;
}

static bool may_attach(const struct app_client *client, const struct app_cache *cache)
{
    return client->creds.uid == cache->client->creds.uid ||
           access_in_groups(&client->creds, cache->gids, cache->n_gids);
}

static void attach(struct app_client *client, uint64_t request_id, struct app_cache *cache)
{
    struct mla_error err = {0};
    struct app_attachment *attachment = calloc(1, sizeof(*attachment));
    if (attachment == NULL || mla_random_id(&attachment->id) != 0) {
        free(attachment);
        mla_error_set(&err, MLA_OUT_OF_MEMORY, NULL, "no memory for the attachment");
        app_reply_status(client, MLA_MSG_ATTACH_CACHE, request_id, &err);
        return;
    }
    attachment->client = client;
    attachment->cache = cache;
    list_push_back(&cache->attachments, &attachment->in_cache);
    cache->n_attachments++;
    client->n_attachments++;
    HASH_ADD(hh, client->attachments, id, sizeof(attachment->id), attachment);

    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_ATTACH_CACHE | MLA_REPLY);
    reply.attach_cache_reply.cache = attachment->id;
    reply.attach_cache_reply.num_pages = cache->num_pages;
    reply.attach_cache_reply.planes = cache->n_planes;
    reply.attach_cache_reply.tokens_per_entry = cache->tokens_per_entry;
    reply.attach_cache_reply.layout = cache->layout;
    reply.attach_cache_reply.tag = cache->tag;
    app_reply(client, MLA_MSG_ATTACH_CACHE, request_id, &reply);
}

static void wait_end(struct app_attach_wait *wait)
{
    wait->client->n_attachments--;
    list_del(&wait->in_app);
    free(wait);
}

void cache_publish(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct mla_publish_cache_request *r = &request->message->publish_cache;
    struct mla_error err = {0};
    struct app_cache *cache = find_own(client, r->cache);
    if (cache == NULL) {
        refuse(&err, MLA_NOT_FOUND, "cache", r->cache, 0, "no such cache on this connection");
    } else if (cache->published) {
        refuse(&err, MLA_ALREADY_EXISTS, "cache", r->cache, 0, "the cache is published already");
    } else if (find_published(app, client->creds.uid, r->name) != NULL) {
        refuse(&err, MLA_ALREADY_EXISTS, "name", 0, 0, "this user has published a cache of that name");
    } else {
        cache->published = true;
        strncpy(cache->name, r->name, sizeof(cache->name) - 1);
        if (r->n_gids > 0)
            memcpy(cache->gids, r->gids, r->n_gids * sizeof(uint32_t));
        cache->n_gids = r->n_gids;
        cache->tag = r->tag;
        list_push_back(&app->published, &cache->in_published);
        app_reply_status(client, MLA_MSG_PUBLISH_CACHE, request->request_id, NULL);
        list_for_each_safe (node, &app->attach_waits) {
            struct app_attach_wait *wait = list_entry(node, struct app_attach_wait, in_app);
            if (wait->owner_uid == client->creds.uid && strcmp(wait->name, cache->name) == 0 &&
                may_attach(wait->client, cache)) {
                struct app_client *waiter = wait->client;
                uint64_t request_id = wait->request_id;
                wait_end(wait);
                attach(waiter, request_id, cache);
            }
        }
        return;
    }
    app_reply_status(client, MLA_MSG_PUBLISH_CACHE, request->request_id, &err);
}

static void not_published(struct app_client *client, uint64_t request_id)
{
    struct mla_error err = {0};
    refuse(&err, MLA_NOT_FOUND, "name", 0, 0, "no cache of that name is published to this client");
    app_reply_status(client, MLA_MSG_ATTACH_CACHE, request_id, &err);
}

/* One timer for all waits: they are few. */
void cache_attach_timer(struct app *app)
{
    uint64_t now = mla_now_ns(), next = UINT64_MAX;
    list_for_each_safe (node, &app->attach_waits) {
        struct app_attach_wait *wait = list_entry(node, struct app_attach_wait, in_app);
        if (wait->deadline_ns <= now) {
            struct app_client *waiter = wait->client;
            uint64_t request_id = wait->request_id;
            wait_end(wait);
            not_published(waiter, request_id);
        } else if (wait->deadline_ns < next) {
            next = wait->deadline_ns;
        }
    }
    app_arm_timer(&app->attach_timer, next);
}

static void no_wait(struct app_client *client, uint64_t request_id)
{
    struct mla_error err = {0};
    refuse(&err, MLA_DRAINING, NULL, 0, 0, "the daemon ends; the name is not published and will not be");
    app_reply_status(client, MLA_MSG_ATTACH_CACHE, request_id, &err);
}

void cache_drain(struct app *app)
{
    list_for_each_safe (node, &app->attach_waits) {
        struct app_attach_wait *wait = list_entry(node, struct app_attach_wait, in_app);
        struct app_client *waiter = wait->client;
        uint64_t request_id = wait->request_id;
        wait_end(wait);
        no_wait(waiter, request_id);
    }
}

void cache_attach(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct mla_attach_cache_request *r = &request->message->attach_cache;
    uint32_t uid = r->has_owner_uid ? r->owner_uid : (uint32_t)client->creds.uid;
    if (client->n_attachments >= app->config->max_caches) {
        struct mla_error err = {0};
        client_over_quota(client, &err, NULL, client->n_attachments + 1u, app->config->max_caches,
                          "the client has as many attachments as it may");
        app_reply_status(client, MLA_MSG_ATTACH_CACHE, request->request_id, &err);
        return;
    }
    struct app_cache *cache = find_published(app, uid, r->name);
    if (cache != NULL && may_attach(client, cache)) {
        attach(client, request->request_id, cache);
        return;
    }
    if (r->wait_us > 0 && app->health == MLA_HEALTH_DRAINING) {
        no_wait(client, request->request_id);
        return;
    }
    struct app_attach_wait *wait = r->wait_us == 0 ? NULL : calloc(1, sizeof(*wait));
    if (wait == NULL) {
        not_published(client, request->request_id);
        return;
    }
    uint64_t wait_ns;
    if (mla_mul_u64(r->wait_us, MLA_NS_PER_US, &wait_ns) != 0 ||
        mla_add_u64(mla_now_ns(), wait_ns, &wait->deadline_ns) != 0)
        wait->deadline_ns = UINT64_MAX - 1;
    wait->client = client;
    wait->request_id = request->request_id;
    wait->owner_uid = uid;
    strncpy(wait->name, r->name, sizeof(wait->name) - 1);
    client->n_attachments++; /* a wait holds the place of its attachment */
    list_push_back(&app->attach_waits, &wait->in_app);
    cache_attach_timer(app);
}

static void attachment_free(struct app_attachment *attachment)
{
    struct app_client *client = attachment->client;
    HASH_DELETE(hh, client->attachments, attachment);
    client->app->memory_generation++;
    if (attachment->cache != NULL) {
        list_del(&attachment->in_cache);
        attachment->cache->n_attachments--;
    }
    client->n_attachments--;
    free(attachment);
}

void cache_detach(struct app_client *client, const struct net_request *request)
{
    struct app_attachment *attachment;
    uint64_t id = request->message->detach_cache.cache;
    HASH_FIND(hh, client->attachments, &id, sizeof(id), attachment);
    if (attachment == NULL) {
        struct mla_error err = {0};
        refuse(&err, MLA_NOT_FOUND, "cache", id, 0, "no such attachment on this connection");
        app_reply_status(client, MLA_MSG_DETACH_CACHE, request->request_id, &err);
        return;
    }
    attachment_free(attachment);
    app_reply_status(client, MLA_MSG_DETACH_CACHE, request->request_id, NULL);
}

/* ---- the end of a cache ---- */

static void revoke_attachments(struct app_cache *cache)
{
    list_for_each_safe (node, &cache->attachments) {
        struct app_attachment *attachment = list_entry(node, struct app_attachment, in_cache);
        struct app_client *other = attachment->client;
        list_del(&attachment->in_cache);
        attachment->cache = NULL;
        cache->n_attachments--;
        if (other->peer != NULL) {
            struct mla_message notice;
            mla_message_init(&notice, MLA_NOTICE_CACHE_GONE);
            notice.cache_gone_notice.cache = attachment->id;
            notice.cache_gone_notice.name = cache->name;
            net_send(other->peer, &notice, 0);
        }
    }
}

/* All jobs of others on it, also those whose attachment has been let go of meanwhile. */
static void revoke_jobs(struct app *app, const struct app_cache *cache)
{
    list_for_each_safe (node, &app->clients) {
        struct app_client *client = list_entry(node, struct app_client, in_app);
        if (client != cache->client)
            decode_revoke_cache(client, cache);
    }
}

static void cache_leave(struct app_client *client, struct app_cache *cache)
{
    HASH_DELETE(hh, client->caches, cache);
    client->app->memory_generation++;
    cache->published = false;
    list_del(&cache->in_published);
    cache->region->n_caches--;
    sched_pin(&cache->object.sched); /* revoking answers jobs; the cache must outlive that */
    revoke_attachments(cache);
    revoke_jobs(client->app, cache);
    app_event(client->app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &cache->object.sched});
    sched_unpin(&client->app->sched, &cache->object.sched);
    app_pump(client->app);
}

void cache_drop(struct app_client *client, const struct net_request *request)
{
    struct app_cache *cache = find_own(client, request->message->drop_cache.cache);
    if (cache == NULL) {
        struct mla_error err = {0};
        refuse(&err, MLA_NOT_FOUND, "cache", request->message->drop_cache.cache, 0,
               "no such cache on this connection (an attachment is detached)");
        app_reply_status(client, MLA_MSG_DROP_CACHE, request->request_id, &err);
        return;
    }
    cache->answer = true;
    cache->answer_id = request->request_id;
    cache_leave(client, cache);
}

void cache_release(struct app *app, struct app_cache *cache)
{
    struct app_client *client = cache->client;
    if (cache->answer)
        app_reply_status(client, MLA_MSG_DROP_CACHE, cache->answer_id, NULL);
    sched_unpin(&app->sched, &cache->region->object.sched);
    client->n_caches--;
    free(cache->plane_offset);
    free(cache);
    client_maybe_free(client);
}

void cache_client_gone(struct app_client *client)
{
    struct app *app = client->app;
    list_for_each_safe (node, &app->attach_waits) {
        struct app_attach_wait *wait = list_entry(node, struct app_attach_wait, in_app);
        if (wait->client == client)
            wait_end(wait);
    }
    struct app_attachment *attachment, *next_attachment;
    HASH_ITER (hh, client->attachments, attachment, next_attachment) {
        attachment_free(attachment);
    }
    struct app_cache *cache, *next_cache;
    HASH_ITER (hh, client->caches, cache, next_cache) {
        cache_leave(client, cache);
    }
}
