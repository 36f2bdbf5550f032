/* The only place that runs callbacks. */
#include "client/client.h"

static void hand_out_end(struct mla_client *c)
{
    struct mla_event event = {.kind = MLA_EVENT_DISCONNECTED};
    mlac_error_info(&event.error, &c->core.reason);
    c->told_end = true;
    c->on_event(c, &event, c->user);
}

/* Runs the callbacks of what is ready now, the DISCONNECTED event included when events are wanted. Number of items. */
static size_t hand_out(struct mla_client *c, bool events)
{
    size_t n = 0;
    struct mlac_ready *item;
    c->in_callback = true;
    while ((item = mlac_core_take(&c->core))) {
        if (item->is_event) {
            struct mlac_event *e = (struct mlac_event *)item;
            if (events) {
                c->on_event(c, &e->event, c->user);
                n++;
            }
            mlac_event_free(e);
        } else {
            struct mlac_request *r = (struct mlac_request *)item;
            /* Off the books first: the callback may submit, and must not find this request. */
            mlac_request_retire(&c->core, r);
            if (r->step_callback)
                r->step_callback(c, &r->step, r->user);
            else
                r->callback(c, &r->result, r->user);
            mlac_request_free(&c->core, r);
            n++;
        }
    }
    if (events && c->core.over && c->on_event && !c->told_end) {
        hand_out_end(c);
        n++;
    }
    c->in_callback = false;
    return n;
}

enum mla_status mla_dispatch(struct mla_client *client, uint64_t timeout_us)
{
    if (!client)
        return MLA_INVALID_ARGUMENT;
    if (client->in_callback)
        return mlac_fail(client, MLA_BUSY, NULL, "mla_dispatch inside a callback");
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    enum mlac_outcome outcome;
    do /* a cut that answered nothing, and told nothing, is not what was waited for */
        outcome = mlac_io_wait(client, 0, deadline_ns);
    while (outcome == MLAC_CUT && list_empty(&client->core.ready));
    size_t n = hand_out(client, true);
    enum mla_status status = MLA_OK;
    if (!n)
        status = outcome == MLAC_LOST ? mlac_ended(client) : mlac_pending(client);
    mlac_io_settle(client);
    return status;
}

int mla_fd(const struct mla_client *client)
{
    return client ? client->epoll : -1;
}

enum mla_status mla_close(struct mla_client *client)
{
    if (!client)
        return MLA_OK;
    if (client->in_callback)
        return mlac_fail(client, MLA_BUSY, NULL, "mla_close inside a callback");
    client->core.recovers = false;
    mlac_core_end_with(&client->core, MLA_DISCONNECTED, "the client was closed");
    hand_out(client, false);
    mlac_destroy(client);
    return MLA_OK;
}
