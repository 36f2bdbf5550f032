#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/clock.h"
#include "daemon/util/random.h"

struct app_client *client_new(struct app *app, struct net_peer *peer, const struct mla_hello_request *hello)
{
    struct app_client *client = calloc(1, sizeof(*client));
    if (client == NULL)
        return NULL;
    const struct net_creds *creds = net_peer_creds(peer);
    client->creds = *creds;
    client->creds.groups = NULL;
    client->creds.n_groups = 0;
    if (creds->n_groups > 0) {
        gid_t *groups = malloc(creds->n_groups * sizeof(*groups));
        if (groups == NULL) {
            free(client);
            return NULL;
        }
        memcpy(groups, creds->groups, creds->n_groups * sizeof(*groups));
        client->creds.groups = groups;
        client->creds.n_groups = creds->n_groups;
    }
    client->app = app;
    client->peer = peer;
    job_index_init(client);
    client->admin = access_may_admin(&app->access, creds);
    client->connected_ns = mla_now_ns();
    strncpy(client->name, hello->client_name, sizeof(client->name) - 1);
    client->sched.weight = weights_find(&app->weights, creds, client->name);
    if (mla_random_id(&client->id) != 0) {
        free((void *)client->creds.groups);
        free(client);
        return NULL;
    }
    list_push_back(&app->clients, &client->in_app);
    app->n_clients++;
    net_peer_set_user(peer, client);
    mla_log(MLA_LOG_INFO, "client_in", "client=%016llx name=%s pid=%d uid=%u", (unsigned long long)client->id,
            client->name, (int)creds->pid, (unsigned)creds->uid);
    return client;
}

void client_maybe_free(struct app_client *client)
{
    if (client->peer != NULL || client->sched.in_flight > 0 || client->n_jobs > 0 || client->n_regions > 0 ||
        client->n_caches > 0 || client->n_table_sets > 0 || client->n_attachments > 0 || client->n_templates > 0)
        return;
    struct app *app = client->app;
    list_del(&client->in_app);
    app->n_clients--;
    metrics_observe_ns(&app->metrics.release_seconds, mla_now_ns() - client->gone_ns);
    mla_log(MLA_LOG_INFO, "client_released", "client=%016llx name=%s", (unsigned long long)client->id, client->name);
    free((void *)client->creds.groups);
    free(client);
}

uint32_t client_weight(const struct app_client *client, uint32_t priority)
{
    uint32_t weight = client->sched.weight < SCHED_WEIGHT_MAX ? client->sched.weight : SCHED_WEIGHT_MAX;
    uint32_t level = priority < SCHED_PRIORITIES ? priority : SCHED_PRIORITIES - 1;
    return (weight > 1 ? weight : 1) << 2 * level;
}

enum mla_status client_over_quota(const struct app_client *client, struct mla_error *err, const char *field,
                                  uint64_t value, uint64_t limit, const char *text)
{
    mla_error_set(err, MLA_QUOTA, field, "%s", text);
    err->value = value;
    err->limit = limit;
    if (client->n_unanswered > 0)
        err->retry_after_us = sched_retry_after_us(&client->app->sched, &client->sched);
    return MLA_QUOTA;
}

void app_on_closed(void *user, struct net_peer *peer)
{
    struct app *app = user;
    struct app_client *client = net_peer_user(peer);
    client->peer = NULL;
    client->gone_ns = mla_now_ns();
    if (app->exit_pending || app->closing) /* the process ends; what is registered goes with it */
        return;
    mla_log(MLA_LOG_INFO, "client_out", "client=%016llx name=%s jobs=%u", (unsigned long long)client->id, client->name,
            client->sched.in_flight);
    /* Held so that the steps below can look at it even when the last object goes in the middle of them. */
    client->n_jobs++;
    app_event(app, (struct sched_event){.kind = SCHED_PEER_GONE, .peer = &client->sched});
    template_client_gone(client);
    cache_client_gone(client);
    struct app_region *region, *next_region;
    HASH_ITER (hh, client->regions, region, next_region) {
        region_leave(region);
    }
    struct app_table_set *set, *next_set;
    HASH_ITER (hh, client->table_sets, set, next_set) {
        tables_leave(client, set);
    }
    client->n_jobs--;
    client_maybe_free(client);
}
