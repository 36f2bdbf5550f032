#include "client/client.h"

enum mla_status mlac_begin(struct mla_client *c)
{
    if (!c)
        return MLA_INVALID_ARGUMENT;
    if (c->core.ended && !c->core.over)
        mlac_recover_notice(c);
    if (c->core.over)
        return mlac_ended(c);
    memset(&c->error, 0, offsetof(struct mla_error_info, text) + 1);
    return MLA_OK;
}

static enum mla_status no_memory(struct mla_client *c)
{
    return mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for another request in flight");
}

enum mla_status mlac_was_cut(struct mla_client *c)
{
    return mlac_fail(c, MLA_DISCONNECTED, NULL, "the connection was cut, and is being made again: %s",
                     c->core.reason.text[0] ? c->core.reason.text : mla_status_text(c->core.reason.code));
}

/* An ending call that was given up, and whose answer came meanwhile. */
static enum mla_status take_closed(struct mla_client *c, struct mlac_request *r)
{
    enum mla_status status = r->result.error.status;
    if (status != MLA_OK)
        c->error = r->result.error;
    mlac_request_free(&c->core, r);
    return status;
}

static enum mla_status wait_for(struct mla_client *c, struct mlac_request *r, uint64_t deadline_ns,
                                const struct mla_message **reply, bool *cut)
{
    r->role = MLAC_CALL;
    enum mlac_outcome outcome = mlac_io_wait(c, r->id, deadline_ns);
    switch (outcome) {
    case MLAC_DONE: /* the step has freed r */
        if (c->core.msg.reply.status.code != MLA_OK)
            return mlac_refused(c, &c->core.msg.reply.status);
        if (reply)
            *reply = &c->core.msg;
        return MLA_OK;
    case MLAC_EXPIRED:
        mlac_request_leave(&c->core, r);
        return mlac_pending(c);
    default:
        mlac_request_free(&c->core, r);
        *cut = outcome == MLAC_CUT;
        return *cut ? mlac_was_cut(c) : mlac_refused(c, &c->core.reason);
    }
}

/* ---- cuts ---- */

/* A request that means the same on the next connection, whether the last daemon had carried it out or not. */
static bool repeats(uint16_t type)
{
    switch (type) {
    case MLA_MSG_UNREGISTER_REGION:
    case MLA_MSG_SUSPEND:
    case MLA_MSG_REGISTER_SYNC:
    case MLA_MSG_DEFINE_CACHE:
    case MLA_MSG_PUBLISH_CACHE:
    case MLA_MSG_ATTACH_CACHE:
    case MLA_MSG_DROP_CACHE:
    case MLA_MSG_HEALTH:
    case MLA_MSG_METRICS:
    case MLA_MSG_STATUS:
        return true;
    default:
        return false;
    }
}

static bool ends_object(uint16_t type)
{
    return type == MLA_MSG_UNREGISTER_REGION || type == MLA_MSG_DROP_CACHE || type == MLA_MSG_DETACH_CACHE;
}

/* Ends what this connection's daemon does not have (any more). True: *status is what the call returns. */
static bool end_here(struct mla_client *c, uint16_t type, uint64_t object, enum mla_status *status)
{
    struct mlac_object *o = ends_object(type) ? mlac_ledger_find(&c->ledger, object) : NULL;
    if (!o || o->there || (type == MLA_MSG_DETACH_CACHE) != (o->kind == MLAC_ATTACHMENT) ||
        (type == MLA_MSG_DROP_CACHE) != (o->kind == MLAC_CACHE))
        return false;
    if (o->kind == MLAC_REGION && mlac_ledger_has_caches(&c->ledger, object)) {
        *status = mlac_fail(c, MLA_BUSY, "region", "a cache is defined on it");
        return true;
    }
    mlac_ledger_remove(&c->ledger, o);
    *status = MLA_OK;
    return true;
}

/* There is no connection, and there was none in time. Calls that end something go on by themselves. */
static enum mla_status not_in_time(struct mla_client *c, uint16_t type, uint64_t object)
{
    if (ends_object(type) || type == MLA_MSG_SUSPEND) {
        struct mlac_request *r = mlac_request_find_closing(&c->core, type, object);
        if (!r && !(r = mlac_request_new(&c->core, type, MLAC_CLOSING)))
            return no_memory(c);
        r->object = object;
        if (r->state == MLAC_FLIGHT)
            mlac_request_hold(&c->core, r);
    }
    return mlac_pending(c);
}

/* ---- calls ---- */

static enum mla_status attempt(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                               uint64_t object, uint64_t deadline_ns, const struct mla_message **reply, bool *cut)
{
    struct mla_error err;
    struct mla_message wire = *msg;
    struct mlac_request *r = mlac_request_find_closing(&c->core, msg->type, object);
    *cut = false;
    if (r && r->state == MLAC_ANSWERED)
        return take_closed(c, r);
    enum mla_status status = mlac_up(c) ? MLA_OK : mlac_await_up(c, deadline_ns);
    if (status == MLA_PENDING)
        return not_in_time(c, msg->type, object);
    if (status != MLA_OK)
        return status;
    r = mlac_request_find_closing(&c->core, msg->type, object);
    if (r && r->state == MLAC_ANSWERED)
        return take_closed(c, r);
    if (r)
        return wait_for(c, r, deadline_ns, reply, cut);
    if (end_here(c, msg->type, object, &status))
        return status;
    if (!(r = mlac_request_new(&c->core, msg->type, MLAC_CALL)))
        return no_memory(c);
    mlac_translate(c, &wire);
    if (mlac_core_send(&c->core, r, &wire, fds, n_fds, &err)) {
        mlac_request_free(&c->core, r);
        return mlac_refused(c, &err);
    }
    r->object = object;
    return wait_for(c, r, deadline_ns, reply, cut);
}

enum mla_status mlac_call(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                          uint64_t object, uint64_t timeout_us, const struct mla_message **reply)
{
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    enum mla_status status;
    bool cut;
    do
        status = attempt(c, msg, fds, n_fds, object, deadline_ns, reply, &cut);
    while (cut && repeats(msg->type));
    if (cut && (msg->type == MLA_MSG_DETACH_CACHE || msg->type == MLA_MSG_TEMPLATE_CLOSE ||
                msg->type == MLA_MSG_DROP_TABLE_SET)) {
        /* It has ended with the connection. */
        mlac_ledger_ended(&c->ledger, msg->type, object);
        status = MLA_OK;
    }
    mlac_io_settle(c);
    return status;
}

enum mla_status mlac_post(struct mla_client *c, const struct mla_message *msg, uint64_t object,
                          struct mlac_tables *tables)
{
    struct mla_error err;
    struct mlac_request *r = mlac_request_new(&c->core, msg->type, MLAC_QUIET);
    if (!r)
        return no_memory(c);
    if (mlac_core_send(&c->core, r, msg, NULL, 0, &err)) {
        mlac_request_free(&c->core, r);
        return mlac_refused(c, &err);
    }
    r->object = object;
    if (tables) {
        tables->refs++;
        tables->there = true;
        r->tables = tables;
    }
    mlac_io_flush(c);
    return MLA_OK;
}
