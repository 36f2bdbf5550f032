#include "client/client.h"

enum mla_status mlac_begin(struct mla_client *c)
{
    if (!c)
        return MLA_INVALID_ARGUMENT;
    if (c->core.ended)
        return mlac_ended(c);
    memset(&c->error, 0, offsetof(struct mla_error_info, text) + 1);
    return MLA_OK;
}

static enum mla_status no_memory(struct mla_client *c)
{
    return mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for another request in flight");
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

static enum mla_status wait_for(struct mla_client *c, struct mlac_request *r, uint64_t timeout_us,
                                const struct mla_message **reply)
{
    r->role = MLAC_CALL;
    switch (mlac_io_wait(c, r->id, mlac_deadline(timeout_us))) {
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
        return mlac_refused(c, &c->core.reason);
    }
}

enum mla_status mlac_call(struct mla_client *c, const struct mla_message *msg, const int *fds, size_t n_fds,
                          uint64_t object, uint64_t timeout_us, const struct mla_message **reply)
{
    enum mla_status status;
    struct mla_error err;
    struct mlac_request *r = mlac_request_find_closing(&c->core, msg->type, object);
    if (r && r->state == MLAC_ANSWERED) {
        status = take_closed(c, r);
    } else if (r) {
        status = wait_for(c, r, timeout_us, reply);
    } else if (!(r = mlac_request_new(&c->core, msg->type, MLAC_CALL))) {
        return no_memory(c);
    } else if (mlac_core_send(&c->core, r, msg, fds, n_fds, &err)) {
        mlac_request_free(&c->core, r);
        return mlac_refused(c, &err);
    } else {
        r->object = object;
        status = wait_for(c, r, timeout_us, reply);
    }
    mlac_io_settle(c);
    return status;
}

enum mla_status mlac_post(struct mla_client *c, const struct mla_message *msg, uint64_t object)
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
    mlac_io_flush(c);
    mlac_io_settle(c);
    return MLA_OK;
}
