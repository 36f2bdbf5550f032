/* Decodes: submit, wait, cancel. */
#include "client/client.h"

#include <stdlib.h>

#define UNSENT_BYTES 512u /* of one request, counted against max_send_bytes while there is no connection */

static void put_view(struct mla_tensor *out, const struct mla_view *in)
{
    *out = (struct mla_tensor){.present = in->region != 0,
                               .region = in->region,
                               .offset = in->offset,
                               .seq_stride = in->compact ? 0 : in->seq_stride,
                               .token_stride = in->token_stride,
                               .head_stride = in->head_stride,
                               .compact = in->compact};
}

static void put_location(struct mla_ref *out, const struct mla_location *in)
{
    *out = (struct mla_ref){.present = in->region != 0, .region = in->region, .offset = in->offset};
}

void mlac_put_args(struct mla_decode_request *out, const struct mla_decode_args *a)
{
    out->cache = a->cache;
    out->plane = a->plane;
    out->table_set = a->tables;
    out->heads = a->heads;
    put_view(&out->q, &a->q);
    put_view(&out->q_rope, &a->q_rope);
    put_view(&out->o, &a->o);
    put_view(&out->lse, &a->lse);
    out->out_type = a->out_type;
    out->mask = a->mask;
    out->visible = (const uint32_t *)a->visible;
    out->n_visible = a->n_visible;
    put_location(&out->visible_ref, &a->visible_at);
    put_location(&out->kv_len_ref, &a->kv_len);
    put_location(&out->table_ref, &a->table);
    out->table_entries_per_seq = a->table_entries_per_seq;
    out->q_scale = a->q_scale;
    out->kv_scale = a->kv_scale;
    out->softmax_scale = a->softmax_scale;
    out->out_scale = a->out_scale;
    out->batch_invariant = a->batch_invariant;
    out->timeout_us = a->deadline_us;
    put_location(&out->ready, &a->ready);
    out->ready_value = a->ready_value;
    put_location(&out->done, &a->done);
    out->done_value = a->done_value;
    put_location(&out->status_ref, &a->status);
    out->priority = a->priority;
}

static enum mla_status send_plain(struct mla_client *c, struct mlac_request *r, const struct mla_decode_args *a)
{
    struct mla_message msg;
    struct mla_error err;
    mla_message_init(&msg, MLA_MSG_DECODE);
    mlac_put_args(&msg.decode, a);
    return mlac_core_send(&c->core, r, &msg, NULL, 0, &err) ? mlac_refused(c, &err) : MLA_OK;
}

/* With all that is needed to send it again. */
static enum mla_status send_kept(struct mla_client *c, struct mlac_request *r, const struct mla_decode_args *a)
{
    r->args = *a;
    if (a->n_visible) {
        r->visible = malloc(a->n_visible * sizeof(*a->visible));
        if (!r->visible)
            return mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for the visible counts");
        memcpy(r->visible, a->visible, a->n_visible * sizeof(*a->visible));
        r->args.visible = r->visible;
    }
    r->facts.ordered = a->ready.region || a->done.region;
    if (a->deadline_us)
        r->facts.expire_ns = mlac_deadline(a->deadline_us);
    r->tables = mlac_tables_use(&c->ledger, a->tables);
    return mlac_job_send(c, r);
}

/* Without a connection: a job that can be sent later, as long as there are not too many. */
static bool may_wait(struct mla_client *c, const struct mla_decode_args *a)
{
    if (a->ready.region || a->done.region) {
        mlac_was_cut(c);
        return false;
    }
    uint64_t held_bytes = c->core.n_unsent * UNSENT_BYTES;
    if (!held_bytes || held_bytes + a->n_visible * sizeof(*a->visible) <= c->core.max_send_bytes)
        return true;
    mlac_fail(c, MLA_OVERLOADED, NULL, "as many requests as may wait for a connection do");
    c->error.value = held_bytes;
    c->error.limit = c->core.max_send_bytes;
    return false;
}

/* Sends; the request in flight, or NULL with the last error set. */
static struct mlac_request *submit(struct mla_client *c, const struct mla_decode_args *args, mla_decode_fn callback,
                                   void *user)
{
    struct mla_decode_args a;
    if (mlac_begin(c) != MLA_OK)
        return NULL;
    mla_decode_args_init(&a);
    if (!args || mlac_copy_in(&a, sizeof(a), args, MLAC_LEAST(struct mla_decode_args, priority))) {
        mlac_fail(c, MLA_INVALID_ARGUMENT, "size", "args are missing or were not initialised");
        return NULL;
    }
    if (a.n_visible && !a.visible) {
        mlac_fail(c, MLA_INVALID_ARGUMENT, "visible", "n_visible without visible");
        return NULL;
    }

    if (!mlac_up(c) && !may_wait(c, &a))
        return NULL;
    struct mlac_request *r = mlac_request_new(&c->core, MLA_MSG_DECODE, MLAC_JOB);
    if (!r) {
        mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for another request in flight");
        return NULL;
    }
    r->callback = callback;
    r->user = user;
    if ((c->core.ledger ? send_kept(c, r, &a) : send_plain(c, r, &a)) != MLA_OK) {
        mlac_request_free(&c->core, r);
        return NULL;
    }
    if (r->state == MLAC_ANSWERED)
        return r;
    uint64_t *status_word = a.n_status ? mlac_sync_find(c, &a.status, a.n_status) : NULL;
    mlac_request_arm(&c->core, r, mlac_sync_find(c, &a.done, 1), a.done_value, status_word,
                     status_word ? a.n_status : 0);
    mlac_io_flush(c);
    return r;
}

/* Hands the answer of r to the caller. */
static enum mla_status take_answer(struct mla_client *c, struct mlac_request *r, struct mla_decode_result *result)
{
    enum mla_status status = r->result.status;
    if (status != MLA_OK)
        c->error = r->result.error;
    if (result) {
        size_t size = result->size < sizeof(*result) ? result->size : sizeof(*result);
        memcpy(result, &r->result, size);
        result->size = size;
    }
    mlac_request_free(&c->core, r);
    return status;
}

static enum mla_status wait_job(struct mla_client *c, struct mlac_request *r, uint64_t timeout_us,
                                struct mla_decode_result *result)
{
    /* A job that is held for a lost device is answered by the end of the connection. */
    uint64_t deadline_ns = mlac_deadline(timeout_us);
    while (r->state != MLAC_ANSWERED)
        if (mlac_io_wait(c, r->id, deadline_ns) == MLAC_EXPIRED)
            return mlac_pending(c);
    list_del(&r->ready.node); /* answered on this side, it waits to be handed out */
    return take_answer(c, r, result);
}

/* Whether the caller's result can be written; its first version is whole. */
static bool result_is_bad(const struct mla_decode_result *result)
{
    return result && result->size < MLAC_LEAST(struct mla_decode_result, splits);
}

enum mla_status mla_decode_submit(struct mla_client *client, const struct mla_decode_args *args, mla_decode_fn callback,
                                  void *user, mla_request_id *request)
{
    if (!client)
        return MLA_INVALID_ARGUMENT;
    const struct mlac_request *r = submit(client, args, callback, user);
    if (!r)
        return client->error.status;
    if (request)
        *request = r->id;
    mlac_io_settle(client);
    return MLA_OK;
}

enum mla_status mla_decode(struct mla_client *client, const struct mla_decode_args *args, uint64_t timeout_us,
                           struct mla_decode_result *result)
{
    if (!client)
        return MLA_INVALID_ARGUMENT;
    if (result_is_bad(result))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, "size", "result was not initialised");
    struct mlac_request *r = submit(client, args, NULL, NULL);
    mla_request_id id = r ? r->id : 0;
    enum mla_status status = r ? wait_job(client, r, timeout_us, result) : client->error.status;
    if (r && status == MLA_PENDING && !result)
        mlac_request_leave(&client->core, r);
    if (result && (!r || status == MLA_PENDING)) {
        result->request = id;
        result->status = status;
        result->error = client->error;
    }
    mlac_io_settle(client);
    return status;
}

struct mlac_request *mlac_job_find(struct mla_client *c, mla_request_id request, uint16_t type)
{
    struct mlac_request *r = mlac_request_find(&c->core, request);
    if (r && r->role == MLAC_JOB && (!type || r->type == type))
        return r;
    mlac_fail(c, MLA_NOT_FOUND, "request_id", "no such request in flight: it was answered, or never submitted");
    c->error.value = request;
    return NULL;
}

enum mla_status mla_wait(struct mla_client *client, mla_request_id request, uint64_t timeout_us,
                         struct mla_decode_result *result)
{
    if (!client)
        return MLA_INVALID_ARGUMENT;
    if (result_is_bad(result))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, "size", "result was not initialised");
    struct mlac_request *r = mlac_job_find(client, request, MLA_MSG_DECODE);
    if (!r)
        return MLA_NOT_FOUND;
    enum mla_status status = wait_job(client, r, timeout_us, result);
    mlac_io_settle(client);
    return status;
}

enum mla_status mla_cancel(struct mla_client *client, mla_request_id request)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mlac_request *r = mlac_job_find(client, request, 0);
    if (!r)
        return MLA_NOT_FOUND;
    if (r->state != MLAC_FLIGHT)
        return MLA_OK; /* answered, and about to be handed out */
    r->facts.cancelled = true;
    if (r->unsent) {
        mlac_expire(client);
        mlac_io_settle(client);
        return MLA_OK;
    }
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_CANCEL);
    msg.cancel.request_id = request;
    status = mlac_post(client, &msg, 0, NULL);
    mlac_io_settle(client);
    return status;
}

size_t mla_in_flight(const struct mla_client *client)
{
    return client ? client->core.n_jobs : 0;
}
