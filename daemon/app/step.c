/* STEP: from its frame to its reply. The device thread runs the layers; here the objects they use are held meanwhile,
 * and the words of layers that do not run get their abort values. */
#include <stdlib.h>
#include <string.h>

#include "daemon/app/template.h"
#include "daemon/util/checked.h"
#include "daemon/util/clock.h"

#define ABORT_OFFSET (UINT64_C(1) << 62)

static struct app_template *template_of(struct app_request *request)
{
    return request->owner;
}

static bool went_through(enum mla_status code)
{
    return code == MLA_OK || code == MLA_LATE;
}

/* ---- the answer ---- */

static uint64_t us_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns == 0 || to_ns <= from_ns ? 0 : (to_ns - from_ns) / MLA_NS_PER_US;
}

static uint64_t collect_faults(struct app_template *t, struct mla_sequence_fault *faults, size_t *n_faults)
{
    uint64_t n = 0;
    uint32_t n_seqs = t->step.plan.n_seqs;
    *n_faults = 0;
    for (uint32_t i = 0; i < t->step.layers_done; i++) {
        for (uint32_t s = 0; s < n_seqs; s++) {
            uint64_t word = t->status[(uint64_t)i * n_seqs + s];
            if (word == 0)
                continue;
            enum mla_status code = (enum mla_status)(word >> 32);
            metrics_count_fault(&t->client->app->metrics, code);
            if (*n_faults < MLA_FAULTS_PER_REPLY_MAX)
                faults[(*n_faults)++] = (struct mla_sequence_fault){s, code, (uint32_t)word, i};
            n++;
        }
    }
    return n;
}

static void describe(const struct app_template *t, uint64_t n_faults, const struct mla_sequence_fault *first,
                     struct mla_error *status)
{
    if (t->code == MLA_OK && n_faults > 0) {
        mla_error_set(status, MLA_PARTIAL, NULL,
                      "%llu faulted, the first in layer %u is sequence %u: %s, index %u; all others are complete",
                      (unsigned long long)n_faults, first->layer, first->sequence, mla_status_name(first->code),
                      first->index);
        status->index = first->sequence;
        status->value = n_faults;
    } else if (t->code != MLA_OK) {
        mla_error_set(status, t->code, NULL, "%s; %u of %u layers have run", mla_status_text(t->code),
                      t->step.layers_done, t->n_layers);
    }
}

static void reply(struct app_template *t)
{
    struct mla_message message;
    struct mla_sequence_fault faults[MLA_FAULTS_PER_REPLY_MAX];
    mla_message_init(&message, MLA_MSG_STEP | MLA_REPLY);
    struct mla_step_reply *r = &message.step_reply;
    uint64_t n_faults = collect_faults(t, faults, &r->n_faults);
    r->faults = faults;
    describe(t, n_faults, faults, &r->status);
    r->layers_done = t->step.layers_done;
    r->layers_shared = t->step.layers_shared;
    r->timing.present = true;
    r->timing.wait_us = us_between(t->received_ns, t->step.first_ready_ns);
    r->timing.queue_us = t->step.queue_ns / MLA_NS_PER_US;
    r->timing.run_us = t->step.run_ns / MLA_NS_PER_US;
    metrics_count_step(&t->client->app->metrics, r->status.code, t->step.layers_done);
    t->client->app->metrics.step_run_ns += t->step.run_ns;
    metrics_count_step_work(&t->client->app->metrics, &t->step.work);
    t->client->jobs_answered++;
    t->client->n_unanswered--;
    app_reply(t->client, MLA_MSG_STEP, t->request_id, &message);
}

/* Nothing of the step is at the backend any more. */
static void finish(struct app_template *t)
{
    struct app_client *client = t->client;
    struct app *app = client->app;
    bool leaves = client->peer == NULL || !went_through(t->code);
    reply(t);
    t->running = false;
    list_del(&t->in_app);
    app->n_steps--;
    for (uint32_t i = 0; i < t->n_pins; i++)
        sched_unpin(&app->sched, t->pins[i]);
    if (leaves)
        template_leave(t);
    client->n_jobs--;
    client_maybe_free(client);
    app_pump(app);
}

static void maybe_finish(struct app_template *t)
{
    if (t->ended && t->pending == 0)
        finish(t);
}

static void on_aborted(struct app *app, struct app_request *request, const struct be_event *event)
{
    (void)app;
    (void)event;
    template_of(request)->pending--;
    maybe_finish(template_of(request));
}

/* By the device thread, so that the status words are there first; those of layers that have run say how that went. All
 * done words, since replays may be queued behind this one that nobody will run. */
static void abort_layers(struct app_template *t)
{
    for (uint32_t i = 0; i < t->n_layers; i++) {
        const struct be_layer *layer = &t->layers[i];
        struct app_request *request = &t->aborts[i];
        request->be = (struct be_request){.op = BE_ABORT,
                                          .abort = {.word = layer->done,
                                                    .value = layer->done_value + ABORT_OFFSET,
                                                    .user_status = i < t->step.layers_done ? 0 : layer->job.user_status,
                                                    .n_seqs = layer->job.n_seqs,
                                                    .code = t->code}};
        request->done = on_aborted;
        request->owner = t;
        t->pending++;
        app_submit(t->client->app, request);
    }
}

static void on_ended(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_template *t = template_of(request);
    (void)app;
    t->ended = true;
    t->code = event->error.code;
    if (!went_through(t->code))
        abort_layers(t);
    maybe_finish(t);
}

/* ---- ending it before its time ---- */

static void on_end_noted(struct app *app, struct app_request *request, const struct be_event *event);

static void send_end(struct app_template *t)
{
    t->end.be = (struct be_request){.op = BE_STEP_END,
                                    .step_end = {.step = &t->request.be, .code = t->end_code, .at_ns = t->end_at_ns}};
    t->end.done = on_end_noted;
    t->end.owner = t;
    t->end_wanted = false;
    t->end_sent = true;
    t->pending++;
    app_submit(t->client->app, &t->end);
}

static void on_end_noted(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_template *t = template_of(request);
    (void)app;
    (void)event;
    t->pending--;
    t->end_sent = false;
    if (t->end_wanted && !t->ended)
        send_end(t);
    maybe_finish(t);
}

void step_end(struct app_template *t, enum mla_status code, uint64_t at_ns)
{
    if (t->ended || t->end_at_ns <= at_ns) /* there is an earlier end */
        return;
    t->end_code = code;
    t->end_at_ns = at_ns;
    t->end_wanted = true;
    if (!t->end_sent)
        send_end(t);
}

static struct app_template *in_flight(const struct app_client *client, uint64_t request_id)
{
    struct app_template *t, *next;
    HASH_ITER (hh, client->templates, t, next) {
        if (t->running && t->request_id == request_id)
            return t;
    }
    return NULL;
}

bool step_has_id(const struct app_client *client, uint64_t request_id)
{
    return in_flight(client, request_id) != NULL;
}

bool step_cancel(struct app_client *client, uint64_t request_id)
{
    struct app_template *t = in_flight(client, request_id);
    if (t != NULL)
        step_end(t, MLA_CANCELLED, 0);
    return t != NULL;
}

void step_revoke_cache(struct app_client *client, const struct app_cache *cache)
{
    list_for_each (node, &client->app->steps) {
        struct app_template *t = list_entry(node, struct app_template, in_app);
        for (uint32_t i = 0; t->client == client && i < t->n_pins; i++)
            if (t->pins[i] == &cache->object.sched)
                step_end(t, MLA_CACHE_GONE, 0);
    }
}

void step_drain(struct app *app, uint64_t deadline_ns)
{
    list_for_each (node, &app->steps)
        step_end(list_entry(node, struct app_template, in_app), MLA_DRAINING, deadline_ns);
}

/* The device thread touches no step any more. What it had launched may still run, or never end. */
void step_device_lost(struct app *app)
{
    list_for_each_safe (node, &app->steps) {
        struct app_template *t = list_entry(node, struct app_template, in_app);
        t->ended = true;
        t->code = MLA_DEVICE_LOST;
        t->pending = 0;
        for (uint32_t i = 0; i < t->n_layers; i++)
            __atomic_store_n(t->layers[i].done, t->layers[i].done_value + ABORT_OFFSET, __ATOMIC_RELEASE);
        finish(t);
    }
}

/* ---- submission ---- */

static uint64_t deadline(const struct app *app, uint64_t timeout_us)
{
    uint64_t ns, at;
    uint64_t us = timeout_us > 0 ? timeout_us : app->config->default_timeout_ms * 1000;
    if (us == 0 || mla_mul_u64(us, MLA_NS_PER_US, &ns) != 0 || mla_add_u64(mla_now_ns(), ns, &at) != 0)
        return 0;
    return at;
}

static int admit(struct app_client *client, uint64_t request_id, struct mla_error *err)
{
    struct app *app = client->app;
    const struct app_config *config = app->config;
    if (job_find(client, request_id) != NULL || step_has_id(client, request_id))
        return (int)mla_error_set(err, MLA_ALREADY_EXISTS, "request_id", "a request of that id is in flight");
    if (app->device_lost)
        return (int)mla_error_set(err, MLA_DEVICE_LOST, NULL, "%s", mla_status_text(MLA_DEVICE_LOST));
    if (app->health == MLA_HEALTH_DRAINING)
        return (int)mla_error_set(err, MLA_DRAINING, NULL, "%s", mla_status_text(MLA_DRAINING));
    if (client->n_unanswered >= config->max_jobs_in_flight)
        return (int)client_over_quota(client, err, NULL, client->n_unanswered + 1u, config->max_jobs_in_flight,
                                      "the client has as many jobs in flight as it may");
    if (app->n_steps < config->total_jobs_in_flight)
        return 0;
    mla_error_set(err, MLA_OVERLOADED, NULL, "the daemon has as many steps in flight as it takes");
    err->limit = config->total_jobs_in_flight;
    err->retry_after_us = config->retry_after_us > 0 ? config->retry_after_us : 1;
    return (int)err->code;
}

static void begin(struct app_template *t, uint64_t request_id, uint64_t timeout_us)
{
    struct app_client *client = t->client;
    struct app *app = client->app;
    memset(t->status, 0, (uint64_t)t->n_layers * t->step.plan.n_seqs * sizeof(uint64_t));
    for (uint32_t i = 0; i < t->n_pins; i++)
        sched_pin(t->pins[i]);
    client->n_jobs++;
    client->n_unanswered++;
    app->n_steps++;
    list_push_back(&app->steps, &t->in_app);
    t->running = true;
    t->ended = t->end_wanted = t->end_sent = false;
    t->end_at_ns = UINT64_MAX;
    t->request_id = request_id;
    t->received_ns = mla_now_ns();
    be_step_clear(&t->step); /* the device may be lost before it begins */
    t->step.deadline_ns = deadline(app, timeout_us);
    t->step.flow = &client->flow;
    t->step.weight = client_weight(client, t->requests[0].priority);
    t->request.be = (struct be_request){.op = BE_STEP, .step = &t->step};
    t->request.done = on_ended;
    t->request.owner = t;
    app_submit(app, &t->request);
    mirror_used(app, t->tables);
}

/* The graph may be under way: its waits end, and the template with them. */
static void refuse(struct app_template *t)
{
    for (uint32_t i = 0; i < t->n_layers; i++)
        decode_abort_refused(t->client, &t->requests[i]);
    template_leave(t);
}

void step_submit(struct app_client *client, const struct net_request *request)
{
    const struct mla_step_request *r = &request->message->step;
    struct mla_error err = {0};
    struct app_template *t = template_find(client, r->template_id);
    if (t == NULL) {
        mla_error_set(&err, MLA_NOT_FOUND, "template_id",
                      "no template of that id is open; a step that failed ends its own");
        err.value = r->template_id;
    } else if (t->running) {
        mla_error_set(&err, MLA_BUSY, "template_id", "a step of the template is in flight");
        err.value = r->template_id;
    } else if (admit(client, request->request_id, &err) == 0 &&
               template_resolve(t, r->has_table_set ? r->table_set : t->requests[0].table_set, &err) == 0) {
        begin(t, request->request_id, r->timeout_us);
        return;
    } else {
        refuse(t);
    }
    metrics_count_step(&client->app->metrics, err.code, 0);
    app_reply_status(client, MLA_MSG_STEP, request->request_id, &err);
}
