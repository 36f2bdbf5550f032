/* Regions and sync pages: registered through the backend's MAP, gone through the scheduler's RELEASE and then UNMAP. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/app/state.h"
#include "daemon/util/random.h"

#define SYNC_BYTES_MAX (1u << 20)

static uint16_t register_type(const struct app_region *region)
{
    return region->mem.sync ? MLA_MSG_REGISTER_SYNC : MLA_MSG_REGISTER_REGION;
}

static void region_free(struct app_region *region)
{
    struct app_client *client = region->client;
    client->n_regions--;
    client->mapped_bytes -= region->mem.size;
    free(region);
    client_maybe_free(client);
}

static void on_unmapped(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_region *region = request->owner;
    (void)app;
    if (event->error.code != MLA_OK)
        mla_log(MLA_LOG_ERROR, "unmap_failed", "region=%016llx status=%s text=%s", (unsigned long long)region->id,
                mla_status_name(event->error.code), event->error.text);
    if (region->answer)
        app_reply_status(region->client, MLA_MSG_UNREGISTER_REGION, region->answer_id,
                         event->error.code == MLA_OK ? NULL : &event->error);
    region_free(region);
}

static void unmap(struct app *app, struct app_region *region)
{
    region->request.be = (struct be_request){.op = BE_UNMAP, .region = &region->mem};
    region->request.done = on_unmapped;
    app_submit(app, &region->request);
}

static void on_mapped(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_region *region = request->owner;
    struct app_client *client = region->client;
    if (region->mem.fd >= 0) {
        close(region->mem.fd);
        region->mem.fd = -1;
    }
    if (event->error.code != MLA_OK) {
        app_reply_status(client, register_type(region), region->answer_id, &event->error);
        region_free(region);
        return;
    }
    if (client->peer == NULL) { /* gone while it was mapped */
        unmap(app, region);
        return;
    }
    HASH_ADD(hh, client->regions, id, sizeof(region->id), region);
    struct mla_message reply;
    mla_message_init(&reply, register_type(region) | MLA_REPLY);
    if (region->mem.sync)
        reply.register_sync_reply.region = region->id;
    else
        reply.register_region_reply.region = region->id;
    app_reply(client, register_type(region), region->answer_id, &reply);
}

static enum mla_status over_quota(const struct app_client *client, uint64_t size, struct mla_error *err)
{
    const struct app_config *config = client->app->config;
    if (client->n_regions >= config->max_regions) {
        enum mla_status code = mla_error_set(err, MLA_QUOTA, NULL, "the client has as many regions as it may");
        err->value = client->n_regions + 1u;
        err->limit = config->max_regions;
        return code;
    }
    if (size > config->max_mapped_bytes - client->mapped_bytes) {
        enum mla_status code = mla_error_set(err, MLA_QUOTA, "size", "over the client's quota of mapped bytes");
        err->value = size;
        err->limit = config->max_mapped_bytes - client->mapped_bytes;
        return code;
    }
    return MLA_OK;
}

/* The frame's descriptor, if it has just the one, becomes the region's. */
static struct app_region *region_new(struct app_client *client, const struct net_request *request,
                                     const struct be_region *mem, const char *label, struct mla_error *err)
{
    if (request->n_fds != 1) {
        mla_error_set(err, MLA_NO_DESCRIPTORS, NULL, "the frame must carry exactly one file descriptor");
        err->value = request->n_fds;
        err->limit = 1;
        return NULL;
    }
    if (over_quota(client, mem->size, err) != MLA_OK)
        return NULL;
    struct app_region *region = calloc(1, sizeof(*region));
    if (region == NULL || mla_random_id(&region->id) != 0) {
        free(region);
        mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "the daemon has no memory for the region");
        return NULL;
    }
    region->object.kind = APP_REGION;
    region->client = client;
    region->mem = *mem;
    region->mem.fd = request->fds[0];
    request->fds[0] = -1;
    strncpy(region->label, label, sizeof(region->label) - 1);
    region->answer_id = request->request_id;
    region->request.owner = region;
    region->request.done = on_mapped;
    region->request.be = (struct be_request){.op = BE_MAP, .region = &region->mem};
    client->n_regions++;
    client->mapped_bytes += mem->size;
    app_submit(client->app, &region->request);
    return region;
}

void memory_register(struct app_client *client, const struct net_request *request)
{
    const struct mla_register_region_request *r = &request->message->register_region;
    struct mla_error err = {0};
    uint64_t features = be_facts(&client->app->be)->features;
    uint64_t needs = r->kind == MLA_REGION_MEMFD      ? MLA_FEATURE_MEMFD
                     : r->kind == MLA_REGION_CUDA_IPC ? MLA_FEATURE_CUDA_IPC
                                                      : MLA_FEATURE_CUDA_VMM;
    if (r->gpu_uuid[0] != '\0' && strcmp(r->gpu_uuid, be_facts(&client->app->be)->gpu_uuid) != 0) {
        mla_error_set(&err, MLA_WRONG_DEVICE, "gpu_uuid", "this daemon serves %s",
                      be_facts(&client->app->be)->gpu_uuid);
    } else if ((features & needs) == 0) {
        mla_error_set(&err, MLA_UNSUPPORTED, "kind", "the %s backend takes regions of kind MEMFD",
                      be_facts(&client->app->be)->name);
        err.value = r->kind;
    } else {
        struct be_region mem = {.kind = r->kind, .access = r->access, .offset = r->offset, .size = r->size, .fd = -1};
        if (region_new(client, request, &mem, r->label, &err) != NULL)
            return;
    }
    app_reply_status(client, MLA_MSG_REGISTER_REGION, request->request_id, &err);
}

void memory_register_sync(struct app_client *client, const struct net_request *request)
{
    const struct mla_register_sync_request *r = &request->message->register_sync;
    struct mla_error err = {0};
    if (r->size == 0 || r->size > SYNC_BYTES_MAX || r->size % (uint64_t)sysconf(_SC_PAGESIZE) != 0) {
        mla_error_set(&err, MLA_INVALID_ARGUMENT, "size", "a sync page has 1 byte to 1 MiB, in whole memory pages");
        err.value = r->size;
        err.limit = SYNC_BYTES_MAX;
    } else {
        struct be_region mem = {
            .kind = MLA_REGION_MEMFD, .access = MLA_ACCESS_READ_WRITE, .sync = true, .size = r->size, .fd = -1};
        if (region_new(client, request, &mem, "sync", &err) != NULL)
            return;
    }
    app_reply_status(client, MLA_MSG_REGISTER_SYNC, request->request_id, &err);
}

struct app_region *memory_find(struct app_client *client, uint64_t id)
{
    struct app_region *region;
    HASH_FIND(hh, client->regions, &id, sizeof(id), region);
    return region;
}

/* From here on no job can name the region; RELEASE comes when none uses it. */
void memory_leave(struct app_client *client, struct app_region *region)
{
    HASH_DELETE(hh, client->regions, region);
    region->leaving = true;
    app_event(client->app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &region->object.sched});
}

void memory_unregister(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    struct app_region *region = memory_find(client, request->message->unregister_region.region);
    if (region == NULL) {
        mla_error_set(&err, MLA_NOT_FOUND, "region", "no such region on this connection");
    } else if (region->n_caches > 0) {
        mla_error_set(&err, MLA_BUSY, "region", "a cache is defined on it; drop that first");
        err.value = region->n_caches;
    } else {
        region->answer = true;
        region->answer_id = request->request_id;
        memory_leave(client, region);
        return;
    }
    app_reply_status(client, MLA_MSG_UNREGISTER_REGION, request->request_id, &err);
}

void memory_release(struct app *app, struct app_region *region)
{
    if (app->device_lost) /* the backend answers nothing any more; the process ends */
        region_free(region);
    else
        unmap(app, region);
}
