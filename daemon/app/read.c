/* HEALTH, STATUS and METRICS: answered on the loop from what it knows, whatever the device is doing. */
#include <stdlib.h>
#include <string.h>

#include "daemon/app/metrics_text.h"
#include "daemon/app/state.h"
#include "daemon/util/clock.h"

/* Of one list: more would keep the loop from others for longer than a frame may. The daemon's status has the numbers.
 */
#define ROWS_MAX 2048u
_Static_assert(ROWS_MAX <= MLA_STATUS_ROWS_MAX, "readers take as many");

static uint64_t uptime_us(const struct app *app)
{
    return (mla_now_ns() - app->started_ns) / MLA_NS_PER_US;
}

void read_health(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct be_facts *facts = be_facts(&app->be);
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_HEALTH | MLA_REPLY);
    struct mla_health_reply *r = &reply.health_reply;
    r->state = app->health;
    r->reason = app->health_reason;
    r->uptime_us = uptime_us(app);
    r->version = MLAD_VERSION;
    r->backend = facts->name;
    r->gpu_uuid = facts->gpu_uuid;
    r->isolation = facts->isolation;
    app_reply(client, MLA_MSG_HEALTH, request->request_id, &reply);
}

struct totals {
    uint64_t regions, mapped_bytes, caches, published, attachments, table_sets;
};

static void add_up(const struct app *app, struct totals *t)
{
    memset(t, 0, sizeof(*t));
    list_for_each (node, &app->clients) {
        const struct app_client *client = list_entry(node, struct app_client, in_app);
        t->regions += client->n_regions;
        t->mapped_bytes += client->mapped_bytes;
        t->caches += client->n_caches;
        t->attachments += client->n_attachments;
        t->table_sets += client->n_table_sets;
    }
    list_for_each (node, &app->published) {
        t->published++;
    }
}

static void fill_daemon(const struct app *app, struct mla_daemon_status *d)
{
    const struct be_facts *facts = be_facts(&app->be);
    struct totals totals;
    struct sched_counts counts;
    add_up(app, &totals);
    sched_counts(&app->sched, &counts);
    *d = (struct mla_daemon_status){
        .present = true,
        .version = MLAD_VERSION,
        .backend = facts->name,
        .gpu_uuid = facts->gpu_uuid,
        .device_name = facts->device_name,
        .uptime_us = uptime_us(app),
        .health = app->health,
        .clients = app->n_clients,
        .regions = totals.regions,
        .mapped_bytes = totals.mapped_bytes,
        .caches = totals.caches,
        .jobs_waiting = counts.waiting,
        .jobs_queued = counts.queued + counts.staged,
        .jobs_running = counts.running,
        .batches = counts.batches,
        .boot_nonce = app->boot_nonce,
        .units = facts->device.resident_units,
        .rows_per_unit = facts->device.rows_per_unit,
        .workspace_bytes = facts->workspace_bytes,
        .device_memory_bytes = facts->device_memory_bytes,
    };
}

/* only: 0, or the id of the client that is asked for. */
static size_t fill_clients(const struct app *app, uint64_t only, struct mla_client_status *rows, size_t cap)
{
    size_t n = 0;
    uint64_t now = mla_now_ns();
    list_for_each (node, &app->clients) {
        const struct app_client *client = list_entry(node, struct app_client, in_app);
        if (n == cap)
            break;
        if (only != 0 && client->id != only)
            continue;
        rows[n++] = (struct mla_client_status){.client_id = client->id,
                                               .name = client->name,
                                               .pid = (uint32_t)client->creds.pid,
                                               .uid = (uint32_t)client->creds.uid,
                                               .connected_us = (now - client->connected_ns) / MLA_NS_PER_US,
                                               .regions = client->n_regions,
                                               .mapped_bytes = client->mapped_bytes,
                                               .caches = client->n_caches,
                                               .table_sets = client->n_table_sets,
                                               .jobs_in_flight = client->n_unanswered,
                                               .jobs_answered = client->jobs_answered,
                                               .weight = client->sched.weight};
    }
    return n;
}

static size_t fill_caches(const struct app *app, struct mla_cache_status *rows, size_t cap)
{
    size_t n = 0;
    list_for_each (node, &app->clients) {
        const struct app_client *client = list_entry(node, struct app_client, in_app);
        const struct app_cache *cache, *next;
        HASH_ITER (hh, client->caches, cache, next) {
            if (n == cap)
                return n;
            rows[n++] = (struct mla_cache_status){.name = cache->name,
                                                  .owner_uid = (uint32_t)client->creds.uid,
                                                  .owner = client->id,
                                                  .num_pages = cache->num_pages,
                                                  .planes = cache->n_planes,
                                                  .tokens_per_entry = cache->tokens_per_entry,
                                                  .attachments = cache->n_attachments,
                                                  .label = cache->label};
        }
    }
    return n;
}

void read_status(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    struct mla_message reply;
    struct totals totals;
    mla_message_init(&reply, MLA_MSG_STATUS | MLA_REPLY);
    struct mla_status_reply *r = &reply.status_reply;
    void *rows = NULL;
    size_t cap = 0;
    switch (request->message->status.what) {
    case MLA_STATUS_CLIENTS:
        cap = app->n_clients < ROWS_MAX ? app->n_clients : ROWS_MAX;
        rows = calloc(cap + 1, sizeof(struct mla_client_status));
        if (rows != NULL)
            r->n_clients = fill_clients(app, request->message->status.client_id, rows, cap);
        r->clients = rows;
        break;
    case MLA_STATUS_CACHES:
        add_up(app, &totals);
        cap = totals.caches < ROWS_MAX ? totals.caches : ROWS_MAX;
        rows = calloc(cap + 1, sizeof(struct mla_cache_status));
        if (rows != NULL)
            r->n_caches = fill_caches(app, rows, cap);
        r->caches = rows;
        break;
    default:
        fill_daemon(app, &r->daemon);
    }
    if (cap > 0 && rows == NULL)
        mla_error_set(&r->status, MLA_OUT_OF_MEMORY, NULL, "no memory for the list");
    app_reply(client, MLA_MSG_STATUS, request->request_id, &reply);
    free(rows);
}

static void fill_gauges(const struct app *app, struct metrics_gauges *g)
{
    const struct be_facts *facts = be_facts(&app->be);
    const struct net_counters *net = net_counters(app->net);
    struct sched_counts counts;
    struct totals totals;
    sched_counts(&app->sched, &counts);
    add_up(app, &totals);
    *g = (struct metrics_gauges){
        .clients = app->n_clients,
        .regions = totals.regions,
        .mapped_bytes = totals.mapped_bytes,
        .caches = totals.caches,
        .published = totals.published,
        .attachments = totals.attachments,
        .table_sets = totals.table_sets,
        .mirror_bytes = app->mirror_bytes,
        .jobs_waiting = counts.waiting,
        .jobs_queued = counts.queued,
        .jobs_staged = counts.staged,
        .jobs_running = counts.running,
        .uptime_us = uptime_us(app),
        .workspace_bytes = facts->workspace_bytes,
        .device_memory_bytes = facts->device_memory_bytes,
        .units = facts->device.resident_units,
        .accepted = net->accepted,
        .refused = net->refused,
        .closed = net->closed,
        .frames_in = net->frames_in,
        .frames_out = net->frames_out,
        .bytes_in = net->bytes_in,
        .bytes_out = net->bytes_out,
        .protocol_errors = net->protocol_errors,
        .malformed_bodies = net->malformed_bodies,
        .slow_peers = net->slow_peers,
        .accept_pauses = net->accept_pauses,
        .version = MLAD_VERSION,
        .backend = facts->name,
        .gpu_uuid = facts->gpu_uuid,
        .ready = app_takes_work(app),
        .health = app->health,
        .checks = &app->checks,
    };
}

/* One row a client; *rows is the caller's to free. Without memory there are none. */
static void fill_per_client(const struct app *app, struct metrics_gauges *g, struct metrics_client **rows)
{
    size_t cap = app->n_clients < ROWS_MAX ? app->n_clients : ROWS_MAX;
    *rows = calloc(cap + 1, sizeof(**rows));
    if (*rows == NULL)
        return;
    list_for_each (node, &app->clients) {
        if (g->n_per_client == cap)
            break;
        const struct app_client *client = list_entry(node, struct app_client, in_app);
        (*rows)[g->n_per_client++] = (struct metrics_client){client->id, client->mapped_bytes, client->name};
    }
    g->per_client = *rows;
}

/* The reply lives in *memory, which is the caller's to free; NULL: there was none. */
static void fill_metrics(const struct app *app, struct mla_metrics_reply *reply, void **memory)
{
    struct metrics_gauges gauges;
    struct metrics_client *rows;
    struct mla_arena arena;
    size_t bytes = METRICS_ARENA_BYTES(app->n_clients);
    *memory = malloc(bytes);
    fill_gauges(app, &gauges);
    fill_per_client(app, &gauges, &rows);
    mla_arena_init(&arena, *memory, *memory == NULL ? 0 : bytes);
    if (rows == NULL || metrics_render(&app->metrics, &gauges, &arena, reply) != 0)
        mla_error_set(&reply->status, MLA_OUT_OF_MEMORY, NULL, "no memory for the metrics");
    free(rows);
}

void read_metrics(struct app_client *client, const struct net_request *request)
{
    struct mla_message reply;
    void *memory;
    mla_message_init(&reply, MLA_MSG_METRICS | MLA_REPLY);
    fill_metrics(client->app, &reply.metrics_reply, &memory);
    app_reply(client, MLA_MSG_METRICS, request->request_id, &reply);
    free(memory);
}

char *read_metrics_text(const struct app *app, size_t *bytes)
{
    struct mla_message reply;
    void *memory;
    mla_message_init(&reply, MLA_MSG_METRICS | MLA_REPLY);
    fill_metrics(app, &reply.metrics_reply, &memory);
    char *text = reply.metrics_reply.status.code == MLA_OK ? metrics_text(&reply.metrics_reply, bytes) : NULL;
    free(memory);
    return text;
}
