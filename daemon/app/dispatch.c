/* Requests of peers to the functions that carry them out, and replies back. */
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/clock.h"

typedef void (*handler)(struct app_client *client, const struct net_request *request);

void app_reply(struct app_client *client, uint16_t request_type, uint64_t request_id, struct mla_message *reply)
{
    reply->type = request_type | MLA_REPLY;
    metrics_count_reply(&client->app->metrics, reply->reply.status.code);
    if (client->peer == NULL || net_send(client->peer, reply, request_id) != -E2BIG)
        return;
    struct mla_message refusal; /* a bare status, which always fits */
    mla_message_init(&refusal, reply->type);
    mla_error_set(&refusal.reply.status, MLA_TOO_LARGE, NULL, "the reply is over the protocol's cap");
    net_send(client->peer, &refusal, request_id);
}

void app_reply_status(struct app_client *client, uint16_t request_type, uint64_t request_id,
                      const struct mla_error *err)
{
    struct mla_message reply;
    mla_message_init(&reply, request_type | MLA_REPLY);
    if (err != NULL)
        reply.reply.status = *err;
    app_reply(client, request_type, request_id, &reply);
}

/* ---- HELLO ---- */

static void fill_hello(const struct app *app, struct mla_hello_reply *r)
{
    const struct be_facts *facts = be_facts(&app->be);
    const struct app_config *config = app->config;
    r->major = MLA_PROTO_MAJOR;
    r->minor = MLA_PROTO_MINOR;
    r->features = facts->features | MLA_FEATURE_EVICT | MLA_FEATURE_RELOAD;
    r->boot_nonce = app->boot_nonce;
    r->gpu_uuid = facts->gpu_uuid;
    r->backend = facts->name;
    r->version = MLAD_VERSION;
    r->isolation = facts->isolation;
    r->limits = (struct mla_limits){.present = true,
                                    .max_regions = config->max_regions,
                                    .max_mapped_bytes = config->max_mapped_bytes,
                                    .max_jobs_in_flight = config->max_jobs_in_flight,
                                    .max_queued_bytes = config->max_queued_bytes,
                                    .max_table_sets = config->max_table_sets,
                                    .max_caches = config->max_caches,
                                    .max_body_bytes = MLA_CAP_TABLE_BYTES};
}

bool app_on_hello(void *user, const struct net_request *request)
{
    struct app *app = user;
    const struct mla_hello_request *hello = &request->message->hello;
    const char *uuid = be_facts(&app->be)->gpu_uuid;
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_HELLO | MLA_REPLY);
    struct mla_hello_reply *r = &reply.hello_reply;
    fill_hello(app, r);
    metrics_count_request(&app->metrics, MLA_MSG_HELLO);
    struct app_client *client = NULL;
    if (hello->gpu_uuid[0] != '\0' && strcmp(hello->gpu_uuid, uuid) != 0)
        mla_error_set(&r->status, MLA_WRONG_DEVICE, "gpu_uuid", "this daemon serves %s", uuid);
    else if (!access_may_connect(&app->access, net_peer_creds(request->peer)))
        mla_error_set(&r->status, MLA_PERMISSION_DENIED, NULL,
                      "the configuration ([access]) does not name this user, nor one of its groups");
    else if ((client = client_new(app, request->peer, hello)) == NULL)
        mla_error_set(&r->status, MLA_OUT_OF_MEMORY, NULL, "the daemon has no memory for the client");
    else
        r->client_id = client->id;
    metrics_count_reply(&app->metrics, r->status.code);
    net_send(request->peer, &reply, request->request_id);
    return client != NULL;
}

static const struct {
    uint16_t type;
    handler fn;
} handlers[] = {
    {MLA_MSG_REGISTER_REGION, memory_register},
    {MLA_MSG_UNREGISTER_REGION, memory_unregister},
    {MLA_MSG_SUSPEND, memory_suspend},
    {MLA_MSG_RESUME, memory_resume},
    {MLA_MSG_REGISTER_SYNC, memory_register_sync},
    {MLA_MSG_DEFINE_CACHE, cache_define},
    {MLA_MSG_PUBLISH_CACHE, cache_publish},
    {MLA_MSG_ATTACH_CACHE, cache_attach},
    {MLA_MSG_DETACH_CACHE, cache_detach},
    {MLA_MSG_DROP_CACHE, cache_drop},
    {MLA_MSG_PUT_TABLE_SET, tables_put},
    {MLA_MSG_DROP_TABLE_SET, tables_drop},
    {MLA_MSG_DECODE, decode_submit},
    {MLA_MSG_TEMPLATE_OPEN, template_open},
    {MLA_MSG_STEP, step_submit},
    {MLA_MSG_TEMPLATE_CLOSE, template_close},
    {MLA_MSG_CANCEL, decode_cancel},
    {MLA_MSG_HEALTH, read_health},
    {MLA_MSG_METRICS, read_metrics},
    {MLA_MSG_STATUS, read_status},
    {MLA_MSG_DRAIN, admin_drain},
    {MLA_MSG_EVICT, admin_evict},
    {MLA_MSG_RELOAD, admin_reload},
};

void app_on_refused(void *user, uint16_t type, enum mla_status code)
{
    struct app *app = user;
    metrics_count_request(&app->metrics, type);
    metrics_count_reply(&app->metrics, code);
    if (type == MLA_MSG_DECODE)
        metrics_count_job(&app->metrics, code);
    else if (type == MLA_MSG_STEP)
        metrics_count_step(&app->metrics, code, 0);
}

void app_on_message(void *user, const struct net_request *request)
{
    struct app *app = user;
    struct app_client *client = net_peer_user(request->peer);
    metrics_count_request(&app->metrics, request->message->type);
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (handlers[i].type == request->message->type) {
            handlers[i].fn(client, request);
            return;
        }
    }
}
