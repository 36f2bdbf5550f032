/* Jobs and calls that go to the daemon of another connection, or did not get to any yet. */
#include "client/client.h"

#include "daemon/util/clock.h"

static void answer(struct mla_client *c, struct mlac_request *r, enum mla_status status, const char *field,
                   const char *text)
{
    struct mla_error err;
    mla_error_set(&err, status, field, "%s", text);
    mlac_core_answer(&c->core, r, &err);
    if (r->role == MLAC_LEFT) /* nobody asks */
        mlac_request_free(&c->core, r);
}

/* False: it has been answered. */
static bool is_due(struct mla_client *c, struct mlac_request *r)
{
    enum mla_status status = MLA_OK;
    /* Between the end of a connection and what the machine makes of it nothing is clear either. */
    bool clear = !c->core.ended && (c->recover.state == MLAC_RECOVER_UP || c->recover.state == MLAC_RECOVER_RESTORE);
    if (mlac_job_due(&r->facts, clear, mla_now_ns(), &status) == MLAC_KEEP)
        return true;
    answer(c, r, status, NULL,
           status == MLA_CANCELLED ? "cancelled while there was no connection"
           : status == MLA_TIMED_OUT
               ? "its deadline passed while there was no connection"
               : "its deadline passed while there was no connection to learn whether it still runs");
    return false;
}

void mlac_expire(struct mla_client *c)
{
    c->expire_ns = UINT64_MAX;
    c->core.held_more = false;
    list_for_each_safe (node, &c->core.flight) {
        struct mlac_request *r = list_entry(node, struct mlac_request, order);
        if (!r->unsent || r->type != MLA_MSG_DECODE || r->state != MLAC_FLIGHT || !is_due(c, r))
            continue;
        if (r->facts.expire_ns < c->expire_ns)
            c->expire_ns = r->facts.expire_ns;
    }
}

static void hold(struct mla_client *c, struct mlac_request *r)
{
    mlac_request_hold(&c->core, r);
    if (r->facts.expire_ns < c->expire_ns)
        c->expire_ns = r->facts.expire_ns;
}

/* The table set first, where this connection's daemon does not have it. */
static enum mla_status need_tables(struct mla_client *c, struct mlac_tables *t)
{
    struct mla_message msg;
    if (!t || t->there || t->missing)
        return MLA_OK;
    mlac_put_tables(&msg, &t->arrays, t->wire);
    return mlac_post(c, &msg, t->id, t);
}

static enum mla_status send_now(struct mla_client *c, struct mlac_request *r)
{
    struct mla_message msg;
    struct mla_error err;
    enum mla_status status = need_tables(c, r->tables);
    if (status != MLA_OK)
        return status;
    mla_message_init(&msg, MLA_MSG_DECODE);
    mlac_put_args(&msg.decode, &r->args);
    if (c->ledger.remapped)
        mlac_translate_job(c, &msg.decode);
    if (r->tables)
        msg.decode.table_set = r->tables->wire;
    if (r->facts.expire_ns != UINT64_MAX && r->facts.ends) {
        uint64_t now_ns = mla_now_ns();
        msg.decode.timeout_us = now_ns < r->facts.expire_ns ? (r->facts.expire_ns - now_ns) / MLA_NS_PER_US + 1 : 1;
    }
    if (mlac_core_send(&c->core, r, &msg, NULL, 0, &err))
        return mlac_refused(c, &err);
    mlac_request_sent(&c->core, r);
    r->facts.sent = true;
    return MLA_OK;
}

enum mla_status mlac_job_send(struct mla_client *c, struct mlac_request *r)
{
    enum mla_status why;
    if (!mlac_up(c)) {
        hold(c, r);
        return MLA_OK;
    }
    switch (mlac_ledger_job(&c->ledger, &r->args, &why)) {
    case MLAC_ALL_THERE:
        return send_now(c, r);
    case MLAC_HOLD:
        hold(c, r);
        return MLA_OK;
    default:
        answer(c, r, why, NULL, mla_status_text(why));
        return MLA_OK;
    }
}

static void resend_job(struct mla_client *c, struct mlac_request *r)
{
    const struct mla_error_info before = c->error;
    if (!is_due(c, r))
        return;
    enum mla_status status = mlac_job_send(c, r);
    if (status != MLA_OK)
        answer(c, r, status, NULL, c->error.text);
    c->error = before;
}

/* Of the calls that are kept, these have a message of their object alone. */
static void resend_closing(struct mla_client *c, struct mlac_request *r)
{
    struct mla_message msg;
    struct mla_error err = {.code = MLA_OK};
    struct mlac_object *o = mlac_ledger_find(&c->ledger, r->object);
    if (o && !o->there && r->type != MLA_MSG_SUSPEND) {
        mlac_ledger_remove(&c->ledger, o);
        o = NULL;
    }
    mlac_request_sent(&c->core, r);
    mla_message_init(&msg, r->type);
    if (r->type == MLA_MSG_DROP_CACHE)
        msg.drop_cache.cache = r->object;
    else if (r->type == MLA_MSG_DETACH_CACHE)
        msg.detach_cache.cache = r->object;
    else if (r->type == MLA_MSG_SUSPEND)
        msg.suspend.region = r->object;
    else
        msg.unregister_region.region = r->object;
    mlac_translate(c, &msg);
    if (o && !mlac_core_send(&c->core, r, &msg, NULL, 0, &err))
        return;
    mlac_error_info(&r->result.error, &err); /* gone already; or there is no memory to say that it should */
    r->state = MLAC_ANSWERED;
}

void mlac_resend(struct mla_client *c)
{
    /* What is in flight has been accepted: the limit is for what is new. */
    size_t limit = c->core.max_send_bytes;
    c->core.max_send_bytes = SIZE_MAX / 4;
    c->expire_ns = UINT64_MAX;
    list_for_each_safe (job, &c->core.flight) {
        struct mlac_request *r = list_entry(job, struct mlac_request, order);
        if (r->unsent && r->type == MLA_MSG_DECODE && r->state == MLAC_FLIGHT)
            resend_job(c, r);
    }
    list_for_each_safe (call, &c->core.flight) {
        struct mlac_request *r = list_entry(call, struct mlac_request, order);
        if (r->unsent && r->role == MLAC_CLOSING)
            resend_closing(c, r);
    }
    c->core.max_send_bytes = limit;
}

void mlac_drop_garbage(struct mla_client *c)
{
    uint64_t wire;
    while (c->ledger.n_garbage && mlac_tables_garbage(&c->ledger, &wire)) {
        struct mla_message msg;
        const struct mla_error_info before = c->error;
        mla_message_init(&msg, MLA_MSG_DROP_TABLE_SET);
        msg.drop_table_set.id = wire;
        mlac_post(c, &msg, 0, NULL); /* refused: it goes with the connection */
        c->error = before;
    }
}
