/* Requests about memory: checked here, carried out by region.c. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/app/state.h"

#define SYNC_BYTES_MAX (1u << 20)

static int refuse(struct mla_error *err, enum mla_status code, const char *field, uint64_t value, uint64_t limit,
                  const char *text)
{
    mla_error_set(err, code, field, "%s", text);
    err->value = value;
    err->limit = limit;
    return (int)code;
}

static int over_quota(const struct app_client *client, uint64_t size, struct mla_error *err)
{
    const struct app_config *config = client->app->config;
    if (client->n_regions >= config->max_regions)
        return (int)client_over_quota(client, err, NULL, client->n_regions + 1u, config->max_regions,
                                      "the client has as many regions as it may");
    uint64_t most = config->max_mapped_bytes; /* which a reload may have made less than what is mapped */
    uint64_t left = most > client->mapped_bytes ? most - client->mapped_bytes : 0;
    if (size > left)
        return (int)client_over_quota(client, err, "size", size, left, "over the client's quota of mapped bytes");
    return 0;
}

static struct app_region *find(struct app_client *client, uint64_t id)
{
    struct app_region *region;
    HASH_FIND(hh, client->regions, &id, sizeof(id), region);
    return region;
}

struct app_region *memory_find(struct app_client *client, uint64_t id, const char *field, struct mla_error *err)
{
    struct app_region *region = find(client, id);
    if (region != NULL && region->state == REGION_MAPPED)
        return region;
    if (region == NULL || region->state == REGION_COLLECTING)
        refuse(err, MLA_NOT_FOUND, field, id, 0, "no such region on this connection");
    else
        refuse(err, MLA_SUSPENDED, field, id, 0, "the region is suspended");
    return NULL;
}

/* ---- what the frames carry, by kind ---- */

/* Handles of a REGISTER_REGION or a RESUME, which have them in common. */
struct handles {
    uint64_t offset;
    const uint8_t *cuda_ipc;
    size_t n_cuda_ipc;
    uint64_t block_size;
    const struct mla_region_part *parts;
    size_t n_parts;
    bool more;
};

static int one_descriptor(struct app_region *region, const struct net_request *request, struct mla_error *err)
{
    if (request->n_fds != 1)
        return refuse(err, MLA_NO_DESCRIPTORS, NULL, request->n_fds, 1,
                      "the frame must carry exactly one file descriptor");
    region->mem.fd = request->fds[0];
    request->fds[0] = -1;
    return 0;
}

static uint64_t sum_of_parts(const struct app_region *region)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < region->n_parts; i++)
        if (__builtin_add_overflow(sum, region->parts[i].size, &sum))
            return UINT64_MAX;
    return sum;
}

static int take_handles(struct app_region *region, const struct net_request *request, const struct handles *h,
                        struct mla_error *err)
{
    region->mem.offset = h->offset;
    switch (region->mem.kind) {
    case MLA_REGION_MEMFD:
        return one_descriptor(region, request, err);
    case MLA_REGION_CUDA_IPC:
        if (h->n_cuda_ipc != MLA_CUDA_IPC_BYTES)
            return refuse(err, MLA_INVALID_ARGUMENT, "cuda_ipc", h->n_cuda_ipc, MLA_CUDA_IPC_BYTES,
                          "a CUDA IPC handle has 64 bytes");
        memcpy(region->ipc_handle, h->cuda_ipc, MLA_CUDA_IPC_BYTES);
        region->mem.block_size = h->block_size;
        return 0;
    case MLA_REGION_CUDA_VMM:
        if (request->n_fds != h->n_parts || h->n_parts == 0)
            return refuse(err, MLA_NO_DESCRIPTORS, "parts", request->n_fds, h->n_parts,
                          "each part comes with one file descriptor");
        int r = region_add_parts(region, request, h->parts, h->n_parts, err);
        if (r == 0 && !h->more && sum_of_parts(region) != region->mem.size)
            r = refuse(err, MLA_INVALID_ARGUMENT, "parts", sum_of_parts(region), region->mem.size,
                       "the parts together must have the region's size");
        return r;
    }
    return refuse(err, MLA_INVALID_ARGUMENT, "kind", region->mem.kind, MLA_REGION_CUDA_VMM, "unknown kind");
}

/* ---- REGISTER_REGION ---- */

static struct handles handles_of_register(const struct mla_register_region_request *r)
{
    return (struct handles){r->offset, r->cuda_ipc, r->n_cuda_ipc, r->block_size, r->parts, r->n_parts, r->more};
}

static int check_kind(const struct app_client *client, const struct mla_register_region_request *r,
                      struct mla_error *err)
{
    const struct be_facts *facts = be_facts(&client->app->be);
    uint64_t needs = r->kind == MLA_REGION_MEMFD      ? MLA_FEATURE_MEMFD
                     : r->kind == MLA_REGION_CUDA_IPC ? MLA_FEATURE_CUDA_IPC
                                                      : MLA_FEATURE_CUDA_VMM;
    if (r->gpu_uuid[0] != '\0' && strcmp(r->gpu_uuid, facts->gpu_uuid) != 0)
        return (int)mla_error_set(err, MLA_WRONG_DEVICE, "gpu_uuid", "this daemon serves %s", facts->gpu_uuid);
    if ((facts->features & needs) == 0) {
        mla_error_set(err, MLA_UNSUPPORTED, "kind", "the %s backend takes regions of kind %s", facts->name,
                      facts->features & MLA_FEATURE_MEMFD ? "MEMFD" : "CUDA_IPC and CUDA_VMM");
        err->value = r->kind;
        return MLA_UNSUPPORTED;
    }
    if (r->kind != MLA_REGION_MEMFD && r->gpu_uuid[0] == '\0')
        return refuse(err, MLA_INVALID_ARGUMENT, "gpu_uuid", 0, 0, "CUDA memory must say which GPU it lives on");
    return 0;
}

/* The first frame of parts that come over several is answered with the id that the others continue. */
static void collect_more(struct app_region *region, const struct net_request *request)
{
    struct app_client *client = region->client;
    struct mla_message reply;
    region->state = REGION_COLLECTING;
    if (!region->in_hash)
        HASH_ADD(hh, client->regions, id, sizeof(region->id), region);
    region->in_hash = true;
    mla_message_init(&reply, request->message->type | MLA_REPLY);
    if (request->message->type == MLA_MSG_REGISTER_REGION)
        reply.register_region_reply.region = region->id;
    app_reply(client, request->message->type, request->request_id, &reply);
}

static void map_or_collect(struct app_region *region, const struct net_request *request, bool more)
{
    if (more)
        collect_more(region, request);
    else
        region_map(region, request->message->type, request->request_id);
}

static int register_first(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    const struct mla_register_region_request *r = &request->message->register_region;
    struct handles h = handles_of_register(r);
    int code = check_kind(client, r, err);
    if (code == 0)
        code = over_quota(client, r->size, err);
    if (code != 0)
        return code;
    struct app_region *region = region_new(client, r->size);
    if (region == NULL)
        return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "the daemon has no memory for the region");
    region->mem.kind = r->kind;
    region->mem.access = r->access;
    strncpy(region->label, r->label, sizeof(region->label) - 1);
    code = take_handles(region, request, &h, err);
    if (code == 0)
        map_or_collect(region, request, h.more);
    else
        region_free(region);
    return code;
}

static int register_continue(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    const struct mla_register_region_request *r = &request->message->register_region;
    struct handles h = handles_of_register(r);
    struct app_region *region = find(client, r->continues);
    if (region == NULL || region->state != REGION_COLLECTING || region->resuming)
        return refuse(err, MLA_NOT_FOUND, "continues", r->continues, 0, "no region waits for parts under that id");
    int code = take_handles(region, request, &h, err);
    if (code == 0) {
        map_or_collect(region, request, h.more);
        return 0;
    }
    region_leave(region); /* half a region is of no use */
    return code;
}

void memory_register(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    int code = request->message->register_region.has_continues ? register_continue(client, request, &err)
                                                               : register_first(client, request, &err);
    if (code != 0)
        app_reply_status(client, MLA_MSG_REGISTER_REGION, request->request_id, &err);
}

/* ---- REGISTER_SYNC ---- */

static int register_sync(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    const struct mla_register_sync_request *r = &request->message->register_sync;
    if (r->size == 0 || r->size > SYNC_BYTES_MAX || r->size % (uint64_t)sysconf(_SC_PAGESIZE) != 0)
        return refuse(err, MLA_INVALID_ARGUMENT, "size", r->size, SYNC_BYTES_MAX,
                      "a sync page has 1 byte to 1 MiB, in whole memory pages");
    int code = over_quota(client, r->size, err);
    if (code != 0)
        return code;
    struct app_region *region = region_new(client, r->size);
    if (region == NULL)
        return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "the daemon has no memory for the region");
    region->mem.kind = MLA_REGION_MEMFD;
    region->mem.access = MLA_ACCESS_READ_WRITE;
    region->mem.sync = true;
    strncpy(region->label, "sync", sizeof(region->label) - 1);
    code = one_descriptor(region, request, err);
    if (code == 0)
        region_map(region, MLA_MSG_REGISTER_SYNC, request->request_id);
    else
        region_free(region);
    return code;
}

void memory_register_sync(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (register_sync(client, request, &err) != 0)
        app_reply_status(client, MLA_MSG_REGISTER_SYNC, request->request_id, &err);
}

/* ---- UNREGISTER_REGION, SUSPEND, RESUME ---- */

static int unregister(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    uint64_t id = request->message->unregister_region.region;
    struct app_region *region = find(client, id);
    if (region == NULL)
        return refuse(err, MLA_NOT_FOUND, "region", id, 0, "no such region on this connection");
    if (region->n_caches > 0)
        return refuse(err, MLA_BUSY, "region", region->n_caches, 0, "a cache is defined on it; drop that first");
    if (region->state == REGION_MAPPING || region->state == REGION_SUSPENDING)
        return refuse(err, MLA_BUSY, "region", id, 0, "it is being suspended or resumed");
    region->answer_type = MLA_MSG_UNREGISTER_REGION;
    region->answer_id = request->request_id;
    region_leave(region);
    return 0;
}

void memory_unregister(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (unregister(client, request, &err) != 0)
        app_reply_status(client, MLA_MSG_UNREGISTER_REGION, request->request_id, &err);
}

static int suspend(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    uint64_t id = request->message->suspend.region;
    struct app_region *region = find(client, id);
    if ((be_facts(&client->app->be)->features & MLA_FEATURE_SUSPEND) == 0)
        return refuse(err, MLA_UNSUPPORTED, NULL, 0, 0, "this daemon does not offer SUSPEND (see HELLO's features)");
    if (region == NULL || region->state == REGION_COLLECTING)
        return refuse(err, MLA_NOT_FOUND, "region", id, 0, "no such region on this connection");
    if (region->mem.sync)
        return refuse(err, MLA_INVALID_ARGUMENT, "region", id, 0, "sync pages are not suspended");
    if (region->state != REGION_MAPPED)
        return refuse(err, MLA_SUSPENDED, "region", id, 0, "it is suspended, or on its way there or back");
    region_suspend(region, request->request_id);
    return 0;
}

void memory_suspend(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (suspend(client, request, &err) != 0)
        app_reply_status(client, MLA_MSG_SUSPEND, request->request_id, &err);
}

static int resume(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    const struct mla_resume_request *r = &request->message->resume;
    struct handles h = {r->offset, r->cuda_ipc, r->n_cuda_ipc, r->block_size, r->parts, r->n_parts, r->more};
    struct app_region *region = find(client, r->region);
    if ((be_facts(&client->app->be)->features & MLA_FEATURE_SUSPEND) == 0)
        return refuse(err, MLA_UNSUPPORTED, NULL, 0, 0, "this daemon does not offer RESUME (see HELLO's features)");
    if (region == NULL || (region->state == REGION_COLLECTING && !region->resuming))
        return refuse(err, MLA_NOT_FOUND, "region", r->region, 0, "no such region on this connection");
    if (region->state != REGION_SUSPENDED && region->state != REGION_COLLECTING)
        return refuse(err, MLA_BUSY, "region", r->region, 0, "it is not suspended");
    int code = take_handles(region, request, &h, err);
    if (code != 0) {
        region_close_descriptors(region);
        region->state = REGION_SUSPENDED;
        return code;
    }
    region->resuming = true;
    map_or_collect(region, request, h.more);
    return 0;
}

void memory_resume(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (resume(client, request, &err) != 0)
        app_reply_status(client, MLA_MSG_RESUME, request->request_id, &err);
}
