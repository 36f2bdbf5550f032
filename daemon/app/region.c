/* The states of a region (state.h): what the backend is asked for, and what follows from its answers and from the
 * scheduler's RELEASEs. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/app/state.h"
#include "daemon/util/random.h"

struct app_region *region_new(struct app_client *client, uint64_t size)
{
    struct app_region *region = calloc(1, sizeof(*region));
    if (region == NULL || mla_random_id(&region->id) != 0) {
        free(region);
        return NULL;
    }
    region->object.kind = APP_REGION;
    region->use.kind = APP_REGION_USE;
    region->client = client;
    region->mem.size = size;
    region->mem.fd = -1;
    region->request.owner = region;
    client->n_regions++;
    client->mapped_bytes += size;
    return region;
}

void region_close_descriptors(struct app_region *region)
{
    if (region->mem.fd >= 0)
        close(region->mem.fd);
    region->mem.fd = -1;
    for (size_t i = 0; i < region->n_parts; i++)
        close(region->parts[i].fd);
    free(region->parts);
    region->parts = NULL;
    region->n_parts = region->parts_cap = 0;
}

void region_free(struct app_region *region)
{
    struct app_client *client = region->client;
    region_close_descriptors(region);
    client->n_regions--;
    client->mapped_bytes -= region->mem.size;
    free(region);
    client_maybe_free(client);
}

int region_add_parts(struct app_region *region, const struct net_request *request, const struct mla_region_part *parts,
                     size_t n_parts, struct mla_error *err)
{
    size_t total = region->n_parts + n_parts;
    if (total > MLA_MAX_REGION_PARTS) {
        mla_error_set(err, MLA_TOO_LARGE, "parts", "too many allocations for one region");
        err->value = total;
        err->limit = MLA_MAX_REGION_PARTS;
        return MLA_TOO_LARGE;
    }
    if (total > region->parts_cap) {
        struct be_part *grown = realloc(region->parts, 2 * total * sizeof(*grown));
        if (grown == NULL)
            return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, "parts", "no memory for the region");
        region->parts = grown;
        region->parts_cap = 2 * total;
    }
    for (size_t i = 0; i < n_parts; i++) {
        region->parts[region->n_parts++] =
            (struct be_part){request->fds[i], parts[i].offset, parts[i].size, parts[i].allocation_size};
        request->fds[i] = -1;
    }
    return 0;
}

static void answer(struct app_region *region, const struct mla_error *err)
{
    uint16_t type = region->answer_type;
    region->answer_type = 0;
    if (type != 0)
        app_reply_status(region->client, type, region->answer_id, err);
}

/* ---- unmapping ---- */

static void finish(struct app_region *region, const struct mla_error *err)
{
    answer(region, err);
    region_free(region);
}

static void on_unmapped(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_region *region = request->owner;
    const struct mla_error *err = event->error.code == MLA_OK ? NULL : &event->error;
    (void)app;
    if (err != NULL)
        mla_log(MLA_LOG_ERROR, "unmap_failed", "region=%016llx status=%s text=%s", (unsigned long long)region->id,
                mla_status_name(err->code), err->text);
    if (region->state == REGION_UNMAPPING) {
        finish(region, err);
        return;
    }
    region->state = REGION_SUSPENDED;
    region->mem.address = 0;
    answer(region, err);
    if (region->release_due)
        region_free(region);
}

static void unmap(struct app *app, struct app_region *region)
{
    region->request.be = (struct be_request){.op = BE_UNMAP, .region = &region->mem};
    region->request.done = on_unmapped;
    app_submit(app, &region->request);
}

void region_suspend(struct app_region *region, uint64_t answer_id)
{
    region->state = REGION_SUSPENDING;
    region->client->app->memory_generation++;
    region->answer_type = MLA_MSG_SUSPEND;
    region->answer_id = answer_id;
    app_event(region->client->app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &region->use.sched});
}

void region_use_released(struct app *app, struct app_region *region)
{
    if (region->state == REGION_SUSPENDING && !app->device_lost)
        unmap(app, region);
}

/* ---- mapping ---- */

static void reply_mapped(struct app_region *region)
{
    struct mla_message reply;
    uint16_t type = region->answer_type;
    region->answer_type = 0;
    mla_message_init(&reply, type | MLA_REPLY);
    if (type == MLA_MSG_REGISTER_SYNC)
        reply.register_sync_reply.region = region->id;
    else if (type == MLA_MSG_REGISTER_REGION)
        reply.register_region_reply.region = region->id;
    app_reply(region->client, type, region->answer_id, &reply);
}

static void on_mapped(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_region *region = request->owner;
    struct app_client *client = region->client;
    bool ok = event->error.code == MLA_OK;
    region_close_descriptors(region);
    if (ok && (client->peer == NULL || region->release_due)) { /* gone while it was mapped */
        region->state = REGION_UNMAPPING;
        unmap(app, region);
        return;
    }
    if (ok) {
        region->state = REGION_MAPPED;
        app->memory_generation += region->resuming;
        if (!region->in_hash)
            HASH_ADD(hh, client->regions, id, sizeof(region->id), region);
        region->in_hash = true;
        reply_mapped(region);
        return;
    }
    if (region->resuming && !region->release_due) {
        region->state = REGION_SUSPENDED;
        answer(region, &event->error);
        return;
    }
    if (region->in_hash) /* a region whose parts came over several frames: its id was known */
        HASH_DELETE(hh, client->regions, region);
    finish(region, &event->error);
}

void region_map(struct app_region *region, uint16_t answer_type, uint64_t answer_id)
{
    region->resuming = region->state == REGION_SUSPENDED || (region->state == REGION_COLLECTING && region->resuming);
    region->state = REGION_MAPPING;
    region->answer_type = answer_type;
    region->answer_id = answer_id;
    region->mem.ipc_handle = region->ipc_handle;
    region->mem.parts = region->parts;
    region->mem.n_parts = region->n_parts;
    region->use.sched = (struct sched_object){0};
    region->request.be = (struct be_request){.op = BE_MAP, .region = &region->mem};
    region->request.done = on_mapped;
    app_submit(region->client->app, &region->request);
}

/* ---- leaving ---- */

void region_leave(struct app_region *region)
{
    HASH_DELETE(hh, region->client->regions, region);
    region->in_hash = false;
    region->client->app->memory_generation++;
    app_event(region->client->app, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &region->object.sched});
}

void region_released(struct app *app, struct app_region *region)
{
    if (app->device_lost) { /* the backend answers nothing any more; the process ends */
        region_free(region);
        return;
    }
    switch (region->state) {
    case REGION_MAPPED:
        region->state = REGION_UNMAPPING;
        unmap(app, region);
        break;
    case REGION_COLLECTING:
    case REGION_SUSPENDED:
        finish(region, NULL);
        break;
    default: /* its MAP or UNMAP is at the backend */
        region->release_due = true;
    }
}
