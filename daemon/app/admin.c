/* What needs the admin right: DRAIN, EVICT and RELOAD; and the reload itself, which SIGHUP asks for too. */
#include "daemon/app/state.h"
#include "daemon/util/clock.h"
#include "daemon/util/notify.h"

static bool refused(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    if (client->admin)
        return false;
    mla_error_set(&err, MLA_PERMISSION_DENIED, NULL,
                  "that is for root, the daemon's user and those of access.admin_users and access.admin_groups");
    mla_log(MLA_LOG_WARNING, "admin_refused", "client=%016llx uid=%u request=%s", (unsigned long long)client->id,
            (unsigned)client->creds.uid, mla_wire_type_name(request->message->type));
    app_reply_status(client, request->message->type, request->request_id, &err);
    return true;
}

static void log_admin(const struct app_client *client, const struct net_request *request)
{
    mla_log(MLA_LOG_NOTICE, "admin", "client=%016llx uid=%u pid=%d request=%s", (unsigned long long)client->id,
            (unsigned)client->creds.uid, (int)client->creds.pid, mla_wire_type_name(request->message->type));
}

void admin_drain(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct mla_drain_request *r = &request->message->drain;
    if (refused(client, request))
        return;
    log_admin(client, request);
    struct sched_counts counts;
    sched_counts(&app->sched, &counts);
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_DRAIN | MLA_REPLY);
    reply.drain_reply.jobs_in_flight = counts.waiting + counts.queued + counts.staged + counts.running + app->n_steps;
    app_reply(client, MLA_MSG_DRAIN, request->request_id, &reply);
    app_drain(app, r->has_deadline_us ? r->deadline_us : app->config->drain_timeout_ms * 1000);
}

/* Ends the connection; the rest is what the end of any connection does. Who may connect may come again: access lists
 * are what keeps somebody out. */
void admin_evict(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    struct mla_error err = {0};
    struct app_client *found = NULL;
    if (refused(client, request))
        return;
    list_for_each (node, &app->clients) {
        struct app_client *each = list_entry(node, struct app_client, in_app);
        if (each->id == request->message->evict.client_id && each->peer != NULL)
            found = each;
    }
    if (found == NULL) {
        mla_error_set(&err, MLA_NOT_FOUND, "client_id", "there is no client of that id");
        app_reply_status(client, MLA_MSG_EVICT, request->request_id, &err);
        return;
    }
    log_admin(client, request);
    mla_log(MLA_LOG_NOTICE, "evicted", "client=%016llx name=%s uid=%u", (unsigned long long)found->id, found->name,
            (unsigned)found->creds.uid);
    app_reply_status(client, MLA_MSG_EVICT, request->request_id, NULL);
    mla_error_set(&err, MLA_PERMISSION_DENIED, NULL, "evicted by an administrator");
    net_fail(found->peer, &err);
}

static int take(struct app *app, char *why, size_t why_bytes)
{
    static struct app_config fresh;
    static struct weight_rules weights;
    struct access_rights rights;
    char later[512];
    if (app->load == NULL) {
        snprintf(why, why_bytes, "this daemon was started without a way to read its configuration again");
        return -1;
    }
    if (app->load(&fresh, why, why_bytes) != 0 || access_resolve(&rights, &fresh, why, why_bytes) != 0 ||
        weights_resolve(&weights, &fresh, why, why_bytes) != 0)
        return -1;
    size_t changed = config_reload(&app->live, &fresh, later, sizeof(later));
    app->access = rights;
    app->weights = weights;
    list_for_each (node, &app->clients) { /* who is connected stays so; the right of an admin may come and go */
        struct app_client *client = list_entry(node, struct app_client, in_app);
        client->admin = access_may_admin(&rights, &client->creds);
        sched_peer_weigh(&app->sched, &client->sched, weights_find(&weights, &client->creds, client->name));
    }
    enum mla_log_level level = MLA_LOG_INFO;
    mla_log_level_parse(app->live.log_level, &level);
    mla_log_set_level(level);
    const struct app_config *c = &app->live;
    service_descriptors(c->max_clients);
    net_set_limits(app->net, &(struct net_limits){.max_peers = (uint32_t)c->max_clients,
                                                  .write_queue_bytes = (uint32_t)c->max_write_queue_bytes,
                                                  .hello_timeout_ms = (uint32_t)c->hello_timeout_ms,
                                                  .frame_timeout_ms = (uint32_t)c->frame_timeout_ms,
                                                  .write_timeout_ms = (uint32_t)c->write_timeout_ms});
    mla_log(MLA_LOG_NOTICE, "reloaded", "changed=%zu", changed);
    if (later[0] != '\0')
        mla_log(MLA_LOG_WARNING, "restart_needed", "keys=%s", later);
    return 0;
}

int admin_reload_config(struct app *app, char *why, size_t why_bytes)
{
    mla_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(mla_now_ns() / MLA_NS_PER_US));
    int result = take(app, why, why_bytes);
    if (result != 0)
        mla_log(MLA_LOG_ERROR, "reload_failed", "text=%s", why);
    mla_notify("READY=1");
    return result;
}

void admin_reload(struct app_client *client, const struct net_request *request)
{
    struct mla_error err = {0};
    char why[512];
    if (refused(client, request))
        return;
    log_admin(client, request);
    if (admin_reload_config(client->app, why, sizeof(why)) != 0)
        mla_error_set(&err, MLA_INVALID_ARGUMENT, NULL, "nothing was changed: %s", why);
    app_reply_status(client, MLA_MSG_RELOAD, request->request_id, err.code == MLA_OK ? NULL : &err);
}
