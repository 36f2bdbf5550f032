/* A decode job from its frame to its reply. The scheduler decides when; here the objects it uses are held (from before
 * SUBMIT until nothing of the job is at the backend any more) and its answer is put together. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/checked.h"
#include "daemon/util/clock.h"

#define ABORT_OFFSET (UINT64_C(1) << 62)
#define WORD_BYTES   64 /* a word of a sync page has a cache line of its own */

static struct app_job *job_of(struct app_request *request)
{
    return request->owner;
}

/* The record goes when it is answered and the backend holds nothing of it; only then may its objects go. */
static void job_maybe_free(struct app *app, struct app_job *job)
{
    if (!job->answered || (job->pending > 0 && !app->device_lost))
        return;
    struct app_client *client = job->client;
    client->queued_bytes -= job->visible_bytes;
    host_give(app, job->visible, job->abi.visible, job->visible_bytes);
    host_give(app, job->status, job->status_address, job->status_bytes);
    for (uint32_t i = 0; i < job->sched.n_pins; i++)
        sched_unpin(&app->sched, job->pins[i]);
    client->n_jobs--;
    job_free(app, job);
    client_maybe_free(client);
    app_pump(app);
}

/* ---- submission ---- */

static enum mla_status take_visible(struct app_client *client, const struct mla_decode_request *d, struct app_job *job,
                                    struct mla_error *err)
{
    struct app *app = client->app;
    if (d->n_visible == 0)
        return MLA_OK;
    uint64_t bytes = d->n_visible * sizeof(int32_t);
    uint64_t most = app->config->max_queued_bytes; /* which a reload may have made less than what is held */
    if (bytes > most || client->queued_bytes > most - bytes)
        return client_over_quota(client, err, "visible", client->queued_bytes + bytes, most,
                                 "over the client's quota of queued bytes");
    job->visible = host_take(app, bytes, &job->abi.visible);
    if (job->visible == NULL)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, "visible", "no device-readable memory for the counts");
    memcpy(job->visible, d->visible, bytes);
    job->visible_bytes = bytes;
    client->queued_bytes += bytes;
    return MLA_OK;
}

/* Launches of one job follow each other on the device, so the later ones see what the earlier ones have reported. */
static enum mla_status take_status(struct app *app, struct app_job *job, struct mla_error *err)
{
    if (job->sched.n_parts <= 1)
        return MLA_OK;
    job->status_bytes = job->tables->n_seqs * sizeof(uint64_t);
    job->status = host_take(app, job->status_bytes, &job->status_address);
    if (job->status == NULL)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no device-readable memory for the status words");
    memset(job->status, 0, job->status_bytes);
    return MLA_OK;
}

static uint64_t deadline(const struct app *app, const struct mla_decode_request *d)
{
    uint64_t ns, at;
    uint64_t us = d->timeout_us > 0 ? d->timeout_us : app->config->default_timeout_ms * 1000;
    if (us == 0 || mla_mul_u64(us, MLA_NS_PER_US, &ns) != 0 || mla_add_u64(mla_now_ns(), ns, &at) != 0)
        return 0;
    return at;
}

/* What planning a launch with this job takes: a record per sequence and one per tile. */
static uint32_t plan_records(const struct app *app, const struct app_job *job)
{
    const struct app_table_set *set = job->tables;
    uint32_t tile_rows = be_facts(&app->be)->tile_rows, n = 0;
    for (uint32_t s = 0; s < set->n_seqs; s++)
        n += (set->q_len[s] * job->abi.heads + tile_rows - 1) / tile_rows;
    return n > set->n_seqs ? n : set->n_seqs;
}

static enum mla_status admit(struct app_client *client, const struct net_request *request, struct mla_error *err)
{
    const struct app_config *config = client->app->config;
    if (job_find(client, request->request_id) != NULL || step_has_id(client, request->request_id))
        return mla_error_set(err, MLA_ALREADY_EXISTS, "request_id", "a request of that id is in flight");
    if (client->n_unanswered >= config->max_jobs_in_flight)
        return client_over_quota(client, err, NULL, client->n_unanswered + 1u, config->max_jobs_in_flight,
                                 "the client has as many jobs in flight as it may");
    return MLA_OK;
}

/* The stream behind a DECODE that is refused may wait for its done word already. There is no job that a batch could
 * write for, so a plain store from here does; a reference that is not good itself stands for no word. */
void decode_abort_refused(struct app_client *client, const struct mla_decode_request *d)
{
    struct mla_error ignored = {0};
    const struct app_region *region =
        d->done.present ? memory_find(client, d->done.region, "done.region", &ignored) : NULL;
    if (region == NULL || !region->mem.sync || d->done.offset % WORD_BYTES != 0 ||
        !mla_range_fits(d->done.offset, sizeof(uint64_t), region->mem.size))
        return;
    uint64_t *word = (uint64_t *)(void *)((char *)region->mem.host + d->done.offset);
    __atomic_store_n(word, d->done_value + ABORT_OFFSET, __ATOMIC_RELEASE);
}

void decode_submit(struct app_client *client, const struct net_request *request)
{
    struct app *app = client->app;
    const struct mla_decode_request *d = &request->message->decode;
    struct mla_error err = {0};
    struct app_job *job = NULL;
    uint64_t came_ns = mla_now_ns();
    if (admit(client, request, &err) != MLA_OK)
        goto refused;
    job = job_new(app);
    if (job == NULL) {
        mla_error_set(&err, MLA_OUT_OF_MEMORY, NULL, "no memory for the job");
        goto refused;
    }
    if (decode_check(client, d, job, &err) != 0 || batch_cost(app, job, &err) != 0 ||
        take_status(app, job, &err) != MLA_OK || take_visible(client, d, job, &err) != MLA_OK)
        goto refused;
    job->client = client;
    job->request_id = request->request_id;
    job->came_ns = came_ns;
    job->watch.owner = job->unwatch.owner = job->abort.owner = job;
    job->sched.peer = &client->sched;
    job->sched.pins = job->pins;
    job->sched.deadline_ns = deadline(app, d);
    /* What one launch of the kernels has in common. */
    job->sched.compat =
        (uint64_t)d->heads | (uint64_t)d->out_type << 16 | (uint64_t)job->cache->layout << 24 | job->kernels;
    job->sched.seqs = plan_records(app, job);
    job->sched.priority = d->priority;
    job->sched.has_ready = job->ready_word != NULL;
    for (uint32_t i = 0; i < job->sched.n_pins; i++)
        sched_pin(job->pins[i]);
    client->n_jobs++;
    client->n_unanswered++;
    job_index(job);
    struct app_table_set *tables = job->tables;
    app_event(app, (struct sched_event){.kind = SCHED_SUBMIT, .job = &job->sched});
    mirror_used(app, tables); /* behind the job, whose launch may have gone out */
    return;
refused:
    if (job != NULL)
        host_give(app, job->status, job->status_address, job->status_bytes);
    job_free(app, job);
    if (err.code != MLA_ALREADY_EXISTS) /* then the word is that of the job in flight */
        decode_abort_refused(client, d);
    metrics_count_job(&app->metrics, err.code);
    app_reply_status(client, MLA_MSG_DECODE, request->request_id, &err);
}

void decode_cancel(struct app_client *client, const struct net_request *request)
{
    uint64_t id = request->message->cancel.request_id;
    struct app_job *job = job_find(client, id);
    if (job == NULL && step_cancel(client, id)) {
        app_reply_status(client, MLA_MSG_CANCEL, request->request_id, NULL);
        return;
    }
    if (job == NULL) {
        struct mla_error err;
        mla_error_set(&err, MLA_NOT_FOUND, "request_id", "no request of that id is in flight");
        err.value = id;
        app_reply_status(client, MLA_MSG_CANCEL, request->request_id, &err);
        return;
    }
    app_reply_status(client, MLA_MSG_CANCEL, request->request_id, NULL);
    app_event(client->app, (struct sched_event){.kind = SCHED_CANCEL, .job = &job->sched});
}

static bool all_launched(const struct app_job *job)
{
    return job->sched.parts_launched > 0 && job->sched.parts_launched >= job->sched.n_parts;
}

/* What has not been launched ends; what runs ends by itself. The jobs end together: were each carried out before the
 * next, the batch that they are staged in would be planned again for every one. */
void decode_revoke_cache(struct app_client *client, const struct app_cache *cache)
{
    struct app *app = client->app;
    bool within = app->in_actions;
    step_revoke_cache(client, cache);
    app->in_actions = true;
    for (struct list *node = client->sched.jobs.next; node != NULL && node != &client->sched.jobs; node = node->next) {
        struct app_job *job = (struct app_job *)(void *)list_entry(node, struct sched_job, in_peer);
        if (job->cache != cache || job->sched.state == SCHED_ANSWERED || all_launched(job))
            continue;
        job->revoked = true;
        app_event(app, (struct sched_event){.kind = SCHED_CANCEL, .job = &job->sched});
    }
    app->in_actions = within;
    app_pump(app);
}

/* ---- ready words ---- */

static void on_ready(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_job *job = job_of(request);
    if (!job->watching) /* its UNWATCH was on the way */
        return;
    job->watching = false;
    job->pending--;
    if (!job->answered)
        app_event(app, (struct sched_event){.kind = SCHED_READY, .job = &job->sched, .aborted = event->aborted});
    else
        job_maybe_free(app, job);
}

void decode_watch(struct app *app, struct app_job *job)
{
    job->watch.be = (struct be_request){.op = BE_WATCH, .watch = {job->ready_word, job->ready_value}};
    job->watch.done = on_ready;
    job->watching = true;
    job->pending++;
    app_submit(app, &job->watch);
}

static void on_unwatched(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_job *job = job_of(request);
    (void)event;
    job->pending--;
    if (job->watching) {
        job->watching = false;
        job->pending--;
    }
    job_maybe_free(app, job);
}

void decode_unwatch(struct app *app, struct app_job *job)
{
    if (!job->watching)
        return;
    job->unwatch.be = (struct be_request){.op = BE_UNWATCH, .unwatch = &job->watch.be};
    job->unwatch.done = on_unwatched;
    job->pending++;
    app_submit(app, &job->unwatch);
}

/* ---- the answer ---- */

static uint64_t us_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns == 0 || to_ns <= from_ns ? 0 : (to_ns - from_ns) / MLA_NS_PER_US;
}

static enum mla_status final_code(const struct app_job *job)
{
    if (job->sched.code == MLA_CANCELLED && job->revoked)
        return MLA_CACHE_GONE;
    if (job->sched.code == MLA_OK && job->n_faults > 0)
        return MLA_PARTIAL;
    return job->sched.code;
}

static void describe(const struct app *app, const struct app_job *job, struct mla_error *status)
{
    switch (status->code) {
    case MLA_PARTIAL:
        mla_error_set(status, MLA_PARTIAL, NULL,
                      "%llu faulted, the first is sequence %u: %s, index %u; all others are complete",
                      (unsigned long long)job->n_faults, job->faults[0].sequence, mla_status_name(job->faults[0].code),
                      job->faults[0].index);
        status->index = job->faults[0].sequence;
        status->value = job->n_faults;
        break;
    case MLA_OVERLOADED:
        mla_error_set(status, MLA_OVERLOADED, NULL, "as much work is waiting as the daemon takes from all or from one");
        status->limit = app->config->total_jobs_in_flight;
        status->retry_after_us = job->sched.retry_after_us;
        break;
    case MLA_OK:
        break;
    default:
        if (job->plan_error.code == status->code)
            *status = job->plan_error;
        else
            mla_error_set(status, status->code, NULL, "%s", mla_status_text(status->code));
    }
}

/* Where its time went, of a job that had no ready word to wait for and ran in one launch. */
static void observe_stages(struct app *app, const struct app_job *job)
{
    const struct sched_job *s = &job->sched;
    const struct app_batch *b = s->batch == NULL ? NULL : s->batch->user;
    if (b == NULL || s->code != MLA_OK || s->has_ready || s->n_parts > 1)
        return;
    const uint64_t points_ns[METRICS_STAGES + 1] = {job->came_ns,   s->received_ns, b->staged_ns,
                                                    b->launched_ns, b->be.taken_ns, b->be.submitted_ns,
                                                    b->be.ended_ns, b->heard_ns,    mla_now_ns()};
    metrics_observe_stages(&app->metrics, points_ns);
}

static void send_reply(struct app *app, struct app_job *job)
{
    const struct sched_job *s = &job->sched;
    struct mla_message reply;
    mla_message_init(&reply, MLA_MSG_DECODE | MLA_REPLY);
    struct mla_decode_reply *r = &reply.decode_reply;
    r->status.code = final_code(job);
    describe(app, job, &r->status);
    r->faults = job->faults;
    r->n_faults = job->n_faults < MLA_FAULTS_PER_REPLY_MAX ? job->n_faults : MLA_FAULTS_PER_REPLY_MAX;
    r->timing.present = true;
    r->timing.wait_us = us_between(s->received_ns, s->ready_ns);
    r->timing.queue_us = us_between(s->ready_ns, s->launched_ns);
    r->timing.run_us = us_between(s->launched_ns, s->ended_ns);
    r->batch = s->batch_number;
    r->batch_jobs = s->batch_jobs;
    if (s->batch_number != 0) {
        r->tiles = job->tiles;
        r->items = job->items;
        r->splits = job->splits;
        metrics_observe_us(&app->metrics.wait_seconds, r->timing.wait_us);
        metrics_observe_us(&app->metrics.queue_seconds, r->timing.queue_us);
        metrics_observe_us(&app->metrics.run_seconds, r->timing.run_us);
        metrics_observe_job_us(&app->metrics.job_seconds, r->timing.wait_us + r->timing.queue_us + r->timing.run_us);
    }
    metrics_count_job(&app->metrics, r->status.code);
    job->client->jobs_answered++;
    job->client->n_unanswered--;
    app_reply(job->client, MLA_MSG_DECODE, job->request_id, &reply);
    observe_stages(app, job);
    job->answered = true;
    job_maybe_free(app, job);
}

static void on_aborted(struct app *app, struct app_request *request, const struct be_event *event)
{
    (void)event;
    job_of(request)->pending--;
    send_reply(app, job_of(request));
}

/* A stream may wait for the done word of a job that will never run: it gets the abort value, by the device thread so
 * that the status words are there first; after a loss of the device by a plain store from here. */
void decode_answer(struct app *app, struct app_job *job)
{
    job_unindex(job);
    if (job->done_word != NULL && app->device_lost) {
        __atomic_store_n(job->done_word, job->done_value + ABORT_OFFSET, __ATOMIC_RELEASE);
    } else if (job->done_word != NULL && !all_launched(job)) {
        job->abort.be = (struct be_request){.op = BE_ABORT,
                                            .abort = {.word = job->done_word,
                                                      .value = job->done_value + ABORT_OFFSET,
                                                      .user_status = job->abi.user_status,
                                                      .n_seqs = job->tables->n_seqs,
                                                      .code = final_code(job)}};
        job->abort.done = on_aborted;
        job->pending++;
        app_submit(app, &job->abort);
        return;
    }
    send_reply(app, job);
}
