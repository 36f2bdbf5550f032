/* The daemon's state. A reply is copied out of the core's arena into one block of exactly its size: the object, then
 * its arrays, then its strings; mla_free() frees the block. */
#include "client/client.h"

#include <stdlib.h>

/* Room for n elements of a type, alignment included. */
#define ROOM(type, n) (sizeof(type) * (size_t)(n) + _Alignof(max_align_t))

static size_t text_room(const char *s)
{
    return s ? strlen(s) + 1 : 1;
}

static const char *put_text(struct mla_arena *a, const char *s)
{
    size_t n = s ? strlen(s) : 0;
    char *out = mla_arena_take(a, n + 1, 1);
    if (n)
        memcpy(out, s, n);
    out[n] = '\0';
    return out;
}

/* n elements of size bytes, zeroed. The callers have reserved the room. */
static void *put(struct mla_arena *a, size_t n, size_t size)
{
    void *p = mla_arena_take(a, n * size, _Alignof(max_align_t));
    if (n)
        memset(p, 0, n * size);
    return p;
}

/* Block of room bytes whose first object is at its start; NULL with the last error set. */
static bool make_block(struct mla_client *c, struct mla_arena *a, size_t room)
{
    void *block = malloc(room);
    if (!block) {
        mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for a copy of the reply");
        return false;
    }
    mla_arena_init(a, block, room);
    return true;
}

void mla_free(void *object)
{
    free(object);
}

/* Sends a request without fields and waits. NULL: the last error says why. */
static const struct mla_message *ask(struct mla_client *c, uint16_t type, enum mla_status_what what,
                                     uint64_t timeout_us)
{
    const struct mla_message *reply = NULL;
    if (mlac_begin(c) != MLA_OK)
        return NULL;
    struct mla_message msg;
    mla_message_init(&msg, type);
    if (type == MLA_MSG_STATUS)
        msg.status.what = what;
    mlac_call(c, &msg, NULL, 0, 0, timeout_us, &reply);
    return reply;
}

static enum mla_status no_out(struct mla_client *c)
{
    return c ? mlac_fail(c, MLA_INVALID_ARGUMENT, "out", "out is needed") : MLA_INVALID_ARGUMENT;
}

static enum mla_status why_not(const struct mla_client *c)
{
    return c ? c->error.status : MLA_INVALID_ARGUMENT;
}

enum mla_status mla_read_health(struct mla_client *client, uint64_t timeout_us, struct mla_health_info **out)
{
    if (!out)
        return no_out(client);
    *out = NULL;
    const struct mla_message *reply = ask(client, MLA_MSG_HEALTH, 0, timeout_us);
    if (!reply)
        return why_not(client);
    const struct mla_health_reply *r = &reply->health_reply;
    struct mla_arena a = {0};
    if (!make_block(client, &a,
                    ROOM(struct mla_health_info, 1) + text_room(r->reason) + text_room(r->version) +
                        text_room(r->backend) + text_room(r->gpu_uuid) + text_room(r->isolation)))
        return MLA_OUT_OF_MEMORY;
    struct mla_health_info *h = put(&a, 1, sizeof(*h));
    h->state = r->state;
    h->reason = put_text(&a, r->reason);
    h->uptime_us = r->uptime_us;
    h->version = put_text(&a, r->version);
    h->backend = put_text(&a, r->backend);
    h->gpu_uuid = put_text(&a, r->gpu_uuid);
    h->isolation = put_text(&a, r->isolation);
    *out = h;
    return MLA_OK;
}

static size_t metrics_room(const struct mla_metrics_reply *r)
{
    size_t room = ROOM(struct mla_metrics_info, 1) + ROOM(struct mla_metric_family *, r->n_metrics) +
                  ROOM(struct mla_metric_family, r->n_metrics);
    for (size_t i = 0; i < r->n_metrics; i++) {
        const struct mla_metric *m = &r->metrics[i];
        room += text_room(m->name) + text_room(m->help) + ROOM(struct mla_metric_sample, m->n_samples);
        for (size_t k = 0; k < m->n_samples; k++)
            room += text_room(m->samples[k].suffix) + text_room(m->samples[k].labels);
    }
    return room;
}

enum mla_status mla_read_metrics(struct mla_client *client, uint64_t timeout_us, struct mla_metrics_info **out)
{
    if (!out)
        return no_out(client);
    *out = NULL;
    const struct mla_message *reply = ask(client, MLA_MSG_METRICS, 0, timeout_us);
    if (!reply)
        return why_not(client);
    const struct mla_metrics_reply *r = &reply->metrics_reply;
    struct mla_arena a = {0};
    if (!make_block(client, &a, metrics_room(r)))
        return MLA_OUT_OF_MEMORY;
    struct mla_metrics_info *info = put(&a, 1, sizeof(*info));
    const struct mla_metric_family **families = put(&a, r->n_metrics, sizeof(*families));
    struct mla_metric_family *family = put(&a, r->n_metrics, sizeof(*family));
    for (size_t i = 0; i < r->n_metrics; i++) {
        const struct mla_metric *m = &r->metrics[i];
        struct mla_metric_sample *samples = put(&a, m->n_samples, sizeof(*samples));
        families[i] = &family[i];
        family[i] = (struct mla_metric_family){.type = m->type, .samples = samples, .n_samples = m->n_samples};
        family[i].name = put_text(&a, m->name);
        family[i].help = put_text(&a, m->help);
        for (size_t k = 0; k < m->n_samples; k++) {
            samples[k].suffix = put_text(&a, m->samples[k].suffix);
            samples[k].labels = put_text(&a, m->samples[k].labels);
            samples[k].value = m->samples[k].value;
        }
    }
    info->families = families;
    info->n_families = r->n_metrics;
    *out = info;
    return MLA_OK;
}

enum mla_status mla_read_daemon(struct mla_client *client, uint64_t timeout_us, struct mla_daemon_info **out)
{
    if (!out)
        return no_out(client);
    *out = NULL;
    const struct mla_message *reply = ask(client, MLA_MSG_STATUS, MLA_STATUS_DAEMON, timeout_us);
    if (!reply)
        return why_not(client);
    const struct mla_daemon_status *r = &reply->status_reply.daemon;
    struct mla_arena a = {0};
    if (!make_block(client, &a,
                    ROOM(struct mla_daemon_info, 1) + text_room(r->version) + text_room(r->backend) +
                        text_room(r->gpu_uuid) + text_room(r->device_name)))
        return MLA_OUT_OF_MEMORY;
    struct mla_daemon_info *d = put(&a, 1, sizeof(*d));
    d->version = put_text(&a, r->version);
    d->backend = put_text(&a, r->backend);
    d->gpu_uuid = put_text(&a, r->gpu_uuid);
    d->device_name = put_text(&a, r->device_name);
    d->uptime_us = r->uptime_us;
    d->health = r->health;
    d->clients = r->clients;
    d->regions = r->regions;
    d->mapped_bytes = r->mapped_bytes;
    d->caches = r->caches;
    d->jobs_waiting = r->jobs_waiting;
    d->jobs_queued = r->jobs_queued;
    d->jobs_running = r->jobs_running;
    d->batches = r->batches;
    d->boot_nonce = r->boot_nonce;
    d->units = r->units;
    d->rows_per_unit = r->rows_per_unit;
    d->workspace_bytes = r->workspace_bytes;
    d->device_memory_bytes = r->device_memory_bytes;
    *out = d;
    return MLA_OK;
}

enum mla_status mla_read_clients(struct mla_client *client, uint64_t timeout_us, struct mla_client_list **out)
{
    if (!out)
        return no_out(client);
    *out = NULL;
    const struct mla_message *reply = ask(client, MLA_MSG_STATUS, MLA_STATUS_CLIENTS, timeout_us);
    if (!reply)
        return why_not(client);
    const struct mla_status_reply *r = &reply->status_reply;
    size_t n = r->n_clients;
    size_t room = ROOM(struct mla_client_list, 1) + ROOM(struct mla_client_info *, n) + ROOM(struct mla_client_info, n);
    for (size_t i = 0; i < n; i++)
        room += text_room(r->clients[i].name);
    struct mla_arena a = {0};
    if (!make_block(client, &a, room))
        return MLA_OUT_OF_MEMORY;
    struct mla_client_list *list = put(&a, 1, sizeof(*list));
    const struct mla_client_info **clients = put(&a, n, sizeof(*clients));
    struct mla_client_info *info = put(&a, n, sizeof(*info));
    for (size_t i = 0; i < n; i++) {
        const struct mla_client_status *s = &r->clients[i];
        clients[i] = &info[i];
        info[i] = (struct mla_client_info){.client_id = s->client_id,
                                           .name = put_text(&a, s->name),
                                           .pid = s->pid,
                                           .uid = s->uid,
                                           .connected_us = s->connected_us,
                                           .regions = s->regions,
                                           .mapped_bytes = s->mapped_bytes,
                                           .caches = s->caches,
                                           .table_sets = s->table_sets,
                                           .jobs_in_flight = s->jobs_in_flight,
                                           .jobs_answered = s->jobs_answered,
                                           .weight = s->weight};
    }
    list->clients = clients;
    list->n_clients = n;
    *out = list;
    return MLA_OK;
}

enum mla_status mla_read_caches(struct mla_client *client, uint64_t timeout_us, struct mla_cache_list **out)
{
    if (!out)
        return no_out(client);
    *out = NULL;
    const struct mla_message *reply = ask(client, MLA_MSG_STATUS, MLA_STATUS_CACHES, timeout_us);
    if (!reply)
        return why_not(client);
    const struct mla_status_reply *r = &reply->status_reply;
    size_t n = r->n_caches;
    size_t room = ROOM(struct mla_cache_list, 1) + ROOM(struct mla_cache_entry *, n) + ROOM(struct mla_cache_entry, n);
    for (size_t i = 0; i < n; i++)
        room += text_room(r->caches[i].name) + text_room(r->caches[i].label);
    struct mla_arena a = {0};
    if (!make_block(client, &a, room))
        return MLA_OUT_OF_MEMORY;
    struct mla_cache_list *list = put(&a, 1, sizeof(*list));
    const struct mla_cache_entry **caches = put(&a, n, sizeof(*caches));
    struct mla_cache_entry *entry = put(&a, n, sizeof(*entry));
    for (size_t i = 0; i < n; i++) {
        const struct mla_cache_status *s = &r->caches[i];
        caches[i] = &entry[i];
        entry[i] = (struct mla_cache_entry){.name = put_text(&a, s->name),
                                            .owner_uid = s->owner_uid,
                                            .owner = s->owner,
                                            .num_pages = s->num_pages,
                                            .planes = s->planes,
                                            .tokens_per_entry = s->tokens_per_entry,
                                            .attachments = s->attachments,
                                            .label = put_text(&a, s->label)};
    }
    list->caches = caches;
    list->n_caches = n;
    *out = list;
    return MLA_OK;
}

enum mla_status mla_drain(struct mla_client *client, const uint64_t *deadline_us, uint64_t timeout_us,
                          uint64_t *jobs_in_flight)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_DRAIN);
    msg.drain.has_deadline_us = deadline_us != NULL;
    msg.drain.deadline_us = deadline_us ? *deadline_us : 0;
    const struct mla_message *reply;
    status = mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
    if (status == MLA_OK && jobs_in_flight)
        *jobs_in_flight = reply->drain_reply.jobs_in_flight;
    return status;
}

enum mla_status mla_evict(struct mla_client *client, uint64_t client_id, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_EVICT);
    msg.evict.client_id = client_id;
    const struct mla_message *reply;
    return mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
}

enum mla_status mla_reload(struct mla_client *client, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_RELOAD);
    const struct mla_message *reply;
    return mlac_call(client, &msg, NULL, 0, 0, timeout_us, &reply);
}
