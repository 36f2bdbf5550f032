/* Captured steps: templates, and a step per replay. */
#include "client/client.h"
#include "client/template.h"

#include <stdlib.h>

/* ---- opening ---- */

static enum mla_status fail_at(struct mla_client *c, const char *field, size_t layer, const char *text)
{
    mlac_fail(c, MLA_INVALID_ARGUMENT, field, "layer %zu: %s", layer, text);
    c->error.index = layer;
    return MLA_INVALID_ARGUMENT;
}

/* One layer of the caller's into the message; its words into w and *ready. */
static enum mla_status take_layer(struct mla_client *c, const void *layer, size_t i, struct mla_decode_request *out,
                                  struct mlac_words *w, uint64_t **ready, uint64_t *ready_value)
{
    struct mla_decode_args a;
    mla_decode_args_init(&a);
    if (mlac_copy_in(&a, sizeof(a), layer, MLAC_LEAST(struct mla_decode_args, priority)))
        return fail_at(c, "size", i, "it was not initialised");
    if (a.visible || a.n_visible)
        return fail_at(c, "visible", i, "the counts of a template are in a region: visible_at");
    w->done = mlac_sync_find(c, &a.done, 1);
    *ready = mlac_sync_find(c, &a.ready, 1);
    if (!w->done || !*ready)
        return fail_at(c, w->done ? "ready" : "done", i, "it names no word of this client's sync pages");
    w->value = a.done_value;
    w->status = a.n_status ? mlac_sync_find(c, &a.status, a.n_status) : NULL;
    w->n_status = w->status ? a.n_status : 0;
    *ready_value = a.ready_value;
    mlac_put_args(out, &a);
    return MLA_OK;
}

static enum mla_status open_on(struct mla_client *c, const struct mla_decode_args *layers, size_t n_layers,
                               uint64_t timeout_us, struct mla_decode_request *requests, struct mla_template *t)
{
    size_t stride;
    memcpy(&stride, layers, sizeof(stride));
    for (size_t i = 0; i < n_layers; i++) {
        const uint8_t *layer = (const uint8_t *)layers + i * stride;
        struct mla_message msg;
        uint64_t *ready, ready_value;
        mla_message_init(&msg, MLA_MSG_DECODE);
        enum mla_status status = take_layer(c, layer, i, &msg.decode, &t->words[i], &ready, &ready_value);
        if (status != MLA_OK)
            return status;
        requests[i] = msg.decode;
        mla_word_store(ready, ready_value - 1);
        mla_word_store(t->words[i].done, t->words[i].value - 1);
    }
    const uint64_t deadline_ns = mlac_deadline(timeout_us);
    if (!mlac_up(c)) {
        enum mla_status status = mlac_await_up(c, deadline_ns);
        if (status != MLA_OK)
            return status;
    }
    for (size_t i = 0; i < n_layers; i++)
        mlac_translate_job(c, &requests[i]);
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_TEMPLATE_OPEN);
    t->id = ++c->last_template;
    msg.template_open.id = t->id;
    msg.template_open.layers = requests;
    msg.template_open.n_layers = n_layers;
    return mlac_call(c, &msg, NULL, 0, t->id, mlac_left_us(deadline_ns), NULL);
}

enum mla_status mla_template_open(struct mla_client *client, const struct mla_decode_args *layers, size_t n_layers,
                                  uint64_t timeout_us, struct mla_template **out)
{
    enum mla_status status = mlac_begin(client);
    if (out)
        *out = NULL;
    if (status != MLA_OK)
        return status;
    if (!out || !layers || !n_layers)
        return mlac_fail(client, MLA_INVALID_ARGUMENT, out ? "layers" : "out", "a template has at least one layer");
    if (n_layers > MLA_LAYERS_MAX) {
        mlac_fail(client, MLA_TOO_LARGE, "layers", "a template has at most %u layers", MLA_LAYERS_MAX);
        client->error.value = n_layers;
        client->error.limit = MLA_LAYERS_MAX;
        return MLA_TOO_LARGE;
    }
    struct mla_template *t = calloc(1, sizeof(*t) + n_layers * sizeof(t->words[0]));
    struct mla_decode_request *requests = calloc(n_layers, sizeof(*requests));
    if (t && requests)
        status = open_on(client, layers, n_layers, timeout_us, requests, t);
    else
        status = mlac_fail(client, MLA_OUT_OF_MEMORY, NULL, "no memory for a template");
    free(requests);
    if (!t || status != MLA_OK) {
        free(t);
        return status;
    }
    t->client = client;
    t->n_layers = (uint32_t)n_layers;
    mlac_template_add(&client->core, t);
    *out = t;
    return MLA_OK;
}

/* ---- closing ---- */

void mlac_template_orphan(struct mla_client *c)
{
    list_for_each_safe (node, &c->core.templates) {
        struct mla_template *t = list_entry(node, struct mla_template, node);
        mlac_template_remove(&c->core, t);
        t->client = NULL;
    }
}

static enum mla_status close_there(struct mla_template *t, uint64_t timeout_us)
{
    struct mla_client *c = t->client;
    struct mla_message msg;
    enum mla_status status = mlac_begin(c);
    if (status == MLA_OK && mlac_template_in_flight(&c->core, t))
        return mlac_fail(c, MLA_BUSY, NULL, "a step of the template is in flight");
    if (status != MLA_OK || t->gone)
        return MLA_OK;
    mla_message_init(&msg, MLA_MSG_TEMPLATE_CLOSE);
    msg.template_close.id = t->id;
    status = mlac_call(c, &msg, NULL, 0, t->id, timeout_us, NULL);
    return status == MLA_NOT_FOUND || c->core.over ? MLA_OK : status;
}

enum mla_status mla_template_close(struct mla_template *tmpl, uint64_t timeout_us)
{
    if (!tmpl)
        return MLA_OK;
    if (tmpl->client) {
        enum mla_status status = close_there(tmpl, timeout_us);
        if (status != MLA_OK)
            return status;
        mlac_template_remove(&tmpl->client->core, tmpl);
    }
    free(tmpl);
    return MLA_OK;
}

/* ---- steps ---- */

static enum mla_status may_step(struct mla_client *c, struct mla_template *t)
{
    if (mlac_template_in_flight(&c->core, t))
        return mlac_fail(c, MLA_BUSY, NULL, "a step of the template is in flight");
    if (t->broken)
        return mlac_fail(c, MLA_NOT_FOUND, NULL, "a step of this template has failed: close it and open it anew");
    return MLA_OK;
}

static struct mlac_request *send_step(struct mla_template *t, const struct mla_step_args *a)
{
    struct mla_client *c = t->client;
    struct mla_message msg;
    struct mla_error err;
    mla_message_init(&msg, MLA_MSG_STEP);
    msg.step.template_id = t->id;
    msg.step.has_table_set = a->has_tables;
    msg.step.table_set = a->has_tables ? a->tables : 0;
    msg.step.timeout_us = a->deadline_us;
    struct mlac_request *r = mlac_request_new(&c->core, MLA_MSG_STEP, MLAC_JOB);
    if (!r) {
        mlac_fail(c, MLA_OUT_OF_MEMORY, NULL, "no memory for another request in flight");
    } else if (mlac_core_send(&c->core, r, &msg, NULL, 0, &err)) {
        mlac_request_free(&c->core, r);
        mlac_refused(c, &err);
        r = NULL;
    }
    if (!r)
        mlac_template_break(t, c->error.status);
    return r;
}

/* The request in flight, or NULL with the last error set. */
static struct mlac_request *submit(struct mla_template *t, const struct mla_step_args *args, mla_step_fn callback,
                                   void *user)
{
    struct mla_client *c = t->client;
    struct mla_step_args a;
    if (mlac_begin(c) != MLA_OK || may_step(c, t) != MLA_OK)
        return NULL;
    mla_step_args_init(&a);
    if (args && mlac_copy_in(&a, sizeof(a), args, MLAC_LEAST(struct mla_step_args, deadline_us))) {
        mlac_fail(c, MLA_INVALID_ARGUMENT, "size", "args were not initialised");
        return NULL;
    }
    struct mlac_request *r = send_step(t, &a);
    if (!r)
        return NULL;
    r->step_callback = callback;
    r->user = user;
    r->tmpl = t;
    t->request = r->id;
    mlac_io_flush(c);
    return r;
}

static enum mla_status take_answer(struct mla_client *c, struct mlac_request *r, struct mla_step_result *result)
{
    enum mla_status status = r->step.status;
    if (status != MLA_OK)
        c->error = r->step.error;
    if (result) {
        size_t size = result->size < sizeof(*result) ? result->size : sizeof(*result);
        memcpy(result, &r->step, size);
        result->size = size;
    }
    mlac_request_free(&c->core, r);
    return status;
}

static enum mla_status wait_step(struct mla_client *c, struct mlac_request *r, uint64_t timeout_us,
                                 struct mla_step_result *result)
{
    uint64_t deadline_ns = mlac_deadline(timeout_us);
    while (r->state != MLAC_ANSWERED)
        if (mlac_io_wait(c, r->id, deadline_ns) == MLAC_EXPIRED)
            return mlac_pending(c);
    return take_answer(c, r, result);
}

static bool result_is_bad(const struct mla_step_result *result)
{
    return result && result->size < MLAC_LEAST(struct mla_step_result, run_us);
}

enum mla_status mla_step_submit(struct mla_template *tmpl, const struct mla_step_args *args, mla_step_fn callback,
                                void *user, mla_request_id *request)
{
    if (!tmpl)
        return MLA_INVALID_ARGUMENT;
    if (!tmpl->client)
        return MLA_DISCONNECTED;
    const struct mlac_request *r = submit(tmpl, args, callback, user);
    if (r && request)
        *request = r->id;
    enum mla_status status = r ? MLA_OK : tmpl->client->error.status;
    mlac_io_settle(tmpl->client);
    return status;
}

enum mla_status mla_step(struct mla_template *tmpl, const struct mla_step_args *args, uint64_t timeout_us,
                         struct mla_step_result *result)
{
    if (!tmpl)
        return MLA_INVALID_ARGUMENT;
    struct mla_client *c = tmpl->client;
    if (!c)
        return MLA_DISCONNECTED;
    if (result_is_bad(result))
        return mlac_fail(c, MLA_INVALID_ARGUMENT, "size", "result was not initialised");
    struct mlac_request *r = submit(tmpl, args, NULL, NULL);
    mla_request_id id = r ? r->id : 0;
    enum mla_status status = r ? wait_step(c, r, timeout_us, result) : c->error.status;
    if (r && status == MLA_PENDING && !result)
        mlac_request_leave(&c->core, r);
    if (result && (!r || status == MLA_PENDING)) {
        result->request = id;
        result->status = status;
        result->error = c->error;
    }
    mlac_io_settle(c);
    return status;
}

enum mla_status mla_step_wait(struct mla_client *client, mla_request_id request, uint64_t timeout_us,
                              struct mla_step_result *result)
{
    if (!client)
        return MLA_INVALID_ARGUMENT;
    if (result_is_bad(result))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, "size", "result was not initialised");
    struct mlac_request *r = mlac_job_find(client, request, MLA_MSG_STEP);
    if (!r)
        return MLA_NOT_FOUND;
    enum mla_status status = wait_step(client, r, timeout_us, result);
    mlac_io_settle(client);
    return status;
}
