/* STAGE and LAUNCH: from the jobs of a batch to a plan and records that items read, and back from the device's status
 * words to the jobs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/app/state.h"
#include "daemon/util/clock.h"

static struct app_job *job_at(struct list *node)
{
    return (struct app_job *)(void *)sched_part_at(node)->job;
}

static enum plan_policy policy(const struct app_config *config)
{
    return strcmp(config->policy, "seed") == 0       ? PLAN_SEED
           : strcmp(config->policy, "balanced") == 0 ? PLAN_BALANCED
                                                     : PLAN_AUTO;
}

/* Which part of the job is in this batch. */
static uint32_t part_in(const struct app *app, const struct app_batch *b, const struct app_job *job)
{
    return b->sched == NULL ? 0 : job->sched.parts[b->sched - app->sched.batches].index;
}

static bool is_last_part(const struct app *app, const struct app_batch *b, const struct app_job *job)
{
    return job->sched.n_parts <= 1 || part_in(app, b, job) == job->sched.n_parts - 1;
}

/* The cost model weighs an item alone; a launch has its own costs besides, and may be spread unevenly. */
uint64_t batch_part_max_ns(const struct app *app)
{
    uint64_t us = app->config->max_launch_us;
    return us == 0 ? UINT64_MAX : us * MLA_NS_PER_US * 3 / 4;
}

/* The request for one job alone, of a request that has it; job: its copy. */
static struct plan_request alone(const struct app *app, const struct plan_request *request, struct plan_job *job)
{
    struct plan_request r = *request;
    r.jobs = job;
    r.n_jobs = 1;
    r.seqs = request->seqs + job->first_seq;
    r.n_seqs = job->n_seqs;
    job->first_seq = 0;
    be_fit(&app->be, &r);
    return r;
}

/* Kernels round differently. A batch-invariant job takes those that it takes alone, so jobs of two kinds of kernels
 * have nothing in common. */
uint64_t batch_kernels(const struct app *app, const struct plan_request *request)
{
    uint32_t rows = request->device.rows_per_unit;
    return request->jobs[0].batch_invariant && rows != be_facts(&app->be)->device.rows_per_unit ? (uint64_t)rows << 32
                                                                                                : 0;
}

/* Shapes of the jobs, one after the other. */
static bool describe(const struct app *app, struct app_batch *b, struct app_job *const *jobs, uint32_t n_jobs,
                     uint32_t n_seqs, struct plan_request *request)
{
    if (!app_grow_host(&b->plan_jobs, &b->plan_jobs_cap, n_jobs, sizeof(*b->plan_jobs)) ||
        !app_grow_host(&b->plan_seqs, &b->plan_seqs_cap, n_seqs, sizeof(*b->plan_seqs)))
        return false;
    uint32_t s = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        const struct app_table_set *set = jobs[j]->tables;
        b->plan_jobs[j] = (struct plan_job){.first_seq = s,
                                            .n_seqs = set->n_seqs,
                                            .mask = jobs[j]->abi.mask,
                                            .batch_invariant = jobs[j]->batch_invariant};
        for (uint32_t i = 0; i < set->n_seqs; i++)
            b->plan_seqs[s++] = (struct plan_seq){set->q_len[i], set->kv_len_max[i]};
        request->heads = jobs[j]->abi.heads;
    }
    request->jobs = b->plan_jobs;
    request->seqs = b->plan_seqs;
    request->n_jobs = n_jobs;
    request->n_seqs = n_seqs;
    for (uint32_t j = 0; b->sched != NULL && j < n_jobs; j++) {
        if (jobs[j]->sched.n_parts <= 1)
            continue;
        struct plan_job job = b->plan_jobs[j];
        struct plan_request one = alone(app, request, &job);
        plan_part_rows(&one, batch_part_max_ns(app), part_in(app, b, jobs[j]), &b->plan_jobs[j].skip_rows,
                       &b->plan_jobs[j].n_rows);
    }
    return true;
}

struct plan_request batch_request(const struct app *app)
{
    const struct be_facts *facts = be_facts(&app->be);
    return (struct plan_request){
        .device = facts->device, .costs = facts->costs, .policy = policy(app->config), .tile_rows = facts->tile_rows};
}

/* The plan of these jobs, which is kept until plans_let_go(). */
static int make_plan(struct app *app, struct app_batch *b, struct app_job *const *jobs, uint32_t n_jobs,
                     uint32_t n_seqs)
{
    struct plan_request request = batch_request(app);
    if (!describe(app, b, jobs, n_jobs, n_seqs, &request))
        return -ENOMEM;
    plans_let_go(b);
    return plans_get(app, b, &request);
}

/* How heavy a job is, and in how many parts it is launched. That follows from its own shape and the configuration, so
 * that the bits of batch-invariant jobs do. */
static void weigh(const struct app *app, const struct plan_request *request, struct app_job *job)
{
    uint64_t load_ns;
    job->sched.n_parts = plan_parts(request, batch_part_max_ns(app), &load_ns);
    job->sched.load_ns = (load_ns + job->sched.n_parts - 1) / job->sched.n_parts;
}

/* What kernels need beside partials is known of each job, and no less together. The splits of a batch-invariant job are
 * its own, so their partials are known before it has company, too; those of others are cut to what is left, but for
 * contexts that are cut for their length. The scheduler keeps the sum over a batch within the device's workspace. */
static int find_cost(struct app *app, struct app_job *job, struct mla_error *err)
{
    const struct be_facts *facts = be_facts(&app->be);
    struct app_batch *b = &app->probe;
    struct plan_request request = batch_request(app);
    if (!describe(app, b, &job, 1, job->tables->n_seqs, &request))
        return (int)mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory to plan the job");
    be_fit(&app->be, &request); /* as describe() will for its parts */
    job->kernels = batch_kernels(app, &request);
    uint64_t scratch = be_scratch_bytes(&app->be, &request);
    if (be_workspace_for(&app->be, &request, &request.workspace_bytes_max) != 0) {
        mla_error_set(err, MLA_TOO_LARGE, "table_set", "the job's records and page tables do not fit the workspace");
        err->value = scratch;
        err->limit = facts->workspace_bytes + facts->scratch_bytes;
        return (int)err->code;
    }
    weigh(app, &request, job);
    uint64_t partials = plan_least_partial_bytes(&request, batch_part_max_ns(app));
    if (partials > request.workspace_bytes_max) {
        mla_error_set(err, MLA_TOO_LARGE, "table_set",
                      "the partial results of the job's contexts do not fit the workspace");
        err->value = partials;
        err->limit = request.workspace_bytes_max;
        return (int)err->code;
    }
    job->sched.cost = scratch + partials;
    if (job->batch_invariant && job->sched.n_parts > 1)
        job->sched.cost = facts->workspace_bytes; /* each part has splits of its own: no company */
    else if (job->batch_invariant && make_plan(app, b, &job, 1, job->tables->n_seqs) == 0)
        job->sched.cost = scratch + b->plan.workspace_bytes;
    plans_let_go(b);
    app_batch_forget(app, b);
    return 0;
}

/* The jobs of a table set are mostly alike. */
int batch_cost(struct app *app, struct app_job *job, struct mla_error *err)
{
    struct app_weight *w = &job->tables->weight;
    uint64_t part_max_ns = batch_part_max_ns(app);
    if (w->n_parts == 0 || w->heads != job->abi.heads || w->mask != job->abi.mask ||
        w->batch_invariant != job->batch_invariant || w->part_max_ns != part_max_ns) {
        int rc = find_cost(app, job, err);
        if (rc != 0)
            return rc;
        *w = (struct app_weight){.heads = job->abi.heads,
                                 .mask = job->abi.mask,
                                 .batch_invariant = job->batch_invariant,
                                 .part_max_ns = part_max_ns,
                                 .n_parts = job->sched.n_parts,
                                 .kernels = job->kernels,
                                 .cost = job->sched.cost,
                                 .load_ns = job->sched.load_ns};
    }
    job->sched.n_parts = w->n_parts;
    job->kernels = w->kernels;
    job->sched.cost = w->cost;
    job->sched.load_ns = w->load_ns;
    return 0;
}

static bool make_records(struct app *app, struct app_batch *b, struct app_job *const *batch_jobs, uint32_t n_jobs,
                         uint32_t n_seqs)
{
    if (!app_grow_device(app, &b->jobs, n_jobs * sizeof(struct mla_abi_job)) ||
        !app_grow_device(app, &b->seqs, n_seqs * sizeof(struct mla_abi_seq)) ||
        !app_grow_device(app, &b->status, n_seqs * sizeof(uint64_t)) ||
        !app_grow_host(&b->done, &b->done_cap, n_jobs, sizeof(*b->done)))
        return false;
    struct mla_abi_job *jobs = b->jobs.memory;
    struct mla_abi_seq *seqs = b->seqs.memory;
    memset(b->status.memory, 0, n_seqs * sizeof(uint64_t));
    uint32_t s = 0, n_done = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        const struct app_job *job = batch_jobs[j];
        const struct app_table_set *set = job->tables;
        jobs[j] = job->abi;
        jobs[j].first_seq = s;
        jobs[j].status = job->status != NULL ? job->status_address : b->status.address + s * sizeof(uint64_t);
        uint32_t token = 0;
        uint64_t row = 0;
        uint64_t entry = 0;
        for (uint32_t i = 0; i < set->n_seqs; i++) {
            uint32_t per_seq = job->table_entries_per_seq, rows = set->q_len[i] * job->abi.heads, first, end;
            plan_part_of_sequence(&b->plan_jobs[j], row, rows, &first, &end);
            row += rows;
            /* A sequence that is in another part counts as empty: nothing of it is read or reported. */
            seqs[s++] = (struct mla_abi_seq){.job = j,
                                             .q_len = first < end ? set->q_len[i] : 0,
                                             .kv_len_max = set->kv_len_max[i],
                                             .first_token = token,
                                             .table_first = per_seq > 0 ? (uint64_t)i * per_seq : entry};
            token += set->q_len[i];
            entry += (set->kv_len_max[i] + set->tokens_per_entry - 1) / set->tokens_per_entry;
        }
        if (job->done_word != NULL && is_last_part(app, b, job))
            b->done[n_done++] = (struct be_done_word){job->done_word, job->done_value};
    }
    b->be = (struct be_batch){.plan = &b->plan,
                              .jobs = jobs,
                              .seqs = seqs,
                              .n_jobs = n_jobs,
                              .n_seqs = n_seqs,
                              .done = b->done,
                              .n_done = n_done,
                              .plan_id = b->kept != NULL ? b->kept->id : 0,
                              .gap_ns = BE_GAP_UNKNOWN};
    return true;
}

/* What each reply says of its job's share of the plan, of all its parts together. */
static void share_out(struct app_batch *b)
{
    uint32_t t = 0, end = 0;
    list_for_each (node, &b->sched->jobs) {
        struct app_job *of_job = job_at(node);
        end += of_job->tables->n_seqs;
        for (; t < b->plan.n_tiles && b->plan.tiles[t].seq < end; t++) {
            of_job->tiles++;
            of_job->items += b->plan.tiles[t].n_items;
            if (b->plan.tiles[t].n_items > of_job->splits)
                of_job->splits = b->plan.tiles[t].n_items;
        }
    }
}

static enum mla_status plan_status(int r)
{
    return r == -ENOMEM || r == -ENOSPC ? MLA_OUT_OF_MEMORY : r == -EOVERFLOW ? MLA_TOO_LARGE : MLA_INTERNAL;
}

void batch_stage(struct app *app, struct sched_batch *batch, uint32_t generation)
{
    struct app_batch *b = batch->user;
    if (b == NULL) {
        for (b = app->batches; b->sched != NULL; b++)
            ; /* one record per slot of the scheduler: there is a free one */
        b->sched = batch;
        batch->user = b;
    }
    uint32_t n_jobs = 0;
    uint64_t n_seqs = 0;
    int r = app_grow_host(&b->members, &b->members_cap, batch->n_jobs, sizeof(*b->members)) ? 0 : -ENOMEM;
    b->staged_ns = mla_now_ns();
    app->metrics.stages++;
    list_for_each (node, &batch->jobs) {
        if (r == 0)
            b->members[n_jobs++] = job_at(node);
        n_seqs += job_at(node)->tables->n_seqs;
    }
    if (r == 0)
        r = n_seqs > UINT32_MAX ? -EOVERFLOW : make_plan(app, b, b->members, n_jobs, (uint32_t)n_seqs);
    if (r == 0 && !make_records(app, b, b->members, n_jobs, (uint32_t)n_seqs))
        r = -ENOMEM;
    if (r != 0) {
        mla_log(batch->n_jobs > 1 ? MLA_LOG_WARNING : MLA_LOG_ERROR, "plan_failed", "jobs=%u seqs=%llu errno=%d",
                batch->n_jobs, (unsigned long long)n_seqs, -r);
        app->metrics.plans_failed++;
        plans_let_go(b); /* what it took stands in nobody's way */
        app_batch_forget(app, b);
        if (batch->n_jobs == 1) /* of more than one, none is to blame yet */
            mla_error_set(&job_at(batch->jobs.next)->plan_error, plan_status(r), NULL,
                          "its launch could not be planned");
    }
    app_event(app, (struct sched_event){.kind = SCHED_PLANNED,
                                        .batch = batch,
                                        .generation = generation,
                                        .predicted_ns = b->plan.predicted_ns,
                                        .code = r == 0 ? MLA_OK : plan_status(r)});
}

/* ---- launch and end ---- */

static void count(struct app *app, const struct app_batch *b)
{
    struct metrics *m = &app->metrics;
    const struct plan *plan = &b->plan;
    m->batches++;
    m->few_rows_batches += plan->rows_per_unit != be_facts(&app->be)->device.rows_per_unit;
    m->tiles += plan->n_tiles;
    m->items += plan->n_items;
    m->reduces += plan->n_reduces;
    m->useful_rows += plan->useful_rows;
    m->row_slots += plan->row_slots;
    m->item_units += plan->item_units;
    m->unit_slots += (uint64_t)plan->waves * b->resident_units;
    m->waves += plan->waves;
    for (uint32_t i = 0; i < plan->n_items; i++)
        m->pages += plan->items[i].page_end - plan->items[i].page_begin;
    metrics_observe_jobs(&m->batch_jobs, b->sched->n_jobs);
}

static void collect_job_faults(struct app *app, struct app_job *job, const uint64_t *status)
{
    for (uint32_t i = 0; i < job->tables->n_seqs; i++) {
        if (status[i] == 0)
            continue;
        enum mla_status code = (enum mla_status)(status[i] >> 32);
        metrics_count_fault(&app->metrics, code);
        if (job->n_faults < MLA_FAULTS_PER_REPLY_MAX)
            job->faults[job->n_faults] =
                (struct mla_sequence_fault){.sequence = i, .code = code, .index = (uint32_t)status[i]};
        job->n_faults++;
    }
}

static void collect_faults(struct app *app, struct app_batch *b)
{
    const uint64_t *status = b->status.memory;
    list_for_each (node, &b->sched->jobs) {
        struct app_job *job = job_at(node);
        if (is_last_part(app, b, job))
            collect_job_faults(app, job, job->status != NULL ? job->status : status);
        status += job->tables->n_seqs;
    }
}

static void on_launch_event(struct app *app, struct app_request *request, const struct be_event *event)
{
    struct app_batch *b = request->owner;
    if (event->kind == BE_SUBMITTED) {
        app_event(app, (struct sched_event){.kind = SCHED_SUBMITTED, .batch = b->sched, .at_ns = b->be.submitted_ns});
        return;
    }
    b->heard_ns = mla_now_ns();
    checkup_launch_taken(app, b);
    if (b->be.taken_ns >= b->launched_ns)
        metrics_observe_ns(&app->metrics.taken_seconds, b->be.taken_ns - b->launched_ns);
    metrics_launch_end(&app->metrics, b->be.gap_ns, b->be.started_ns, b->be.ended_ns, b->plan.predicted_ns);
    collect_faults(app, b);
    plans_let_go(b);
    app_event(app, (struct sched_event){
                       .kind = SCHED_BATCH_DONE, .batch = b->sched, .code = MLA_OK, .at_ns = b->be.ended_ns});
}

/* Of the clients that have jobs in it, or behind it. */
static uint32_t weight_of(struct app *app, const struct app_batch *b)
{
    uint64_t weight = sched_backlog_weight(&app->sched);
    app->n_weighed++;
    list_for_each (node, &b->sched->jobs) {
        const struct app_job *job = job_at(node);
        if (job->client->weighed != app->n_weighed && job->client->sched.backlog_ns == 0)
            weight += client_weight(job->client, job->sched.priority);
        job->client->weighed = app->n_weighed;
    }
    return weight < UINT32_MAX ? (uint32_t)weight : UINT32_MAX;
}

void batch_launch(struct app *app, struct sched_batch *batch)
{
    struct app_batch *b = batch->user;
    b->be.weight = weight_of(app, b);
    count(app, b);
    b->launched_ns = mla_now_ns();
    share_out(b);
    b->request.be = (struct be_request){.op = BE_LAUNCH, .batch = &b->be};
    b->request.done = on_launch_event;
    b->request.owner = b;
    app_submit(app, &b->request);
}

void batch_free_buffers(struct app *app)
{
    plans_free(app);
    for (unsigned i = 0; i <= SCHED_BATCHES; i++) {
        struct app_batch *b = i < SCHED_BATCHES ? &app->batches[i] : &app->probe;
        app_batch_forget(app, b);
        free(b->scratch);
        free(b->plan_jobs);
        free(b->plan_seqs);
        free(b->done);
        free(b->members);
        memset(b, 0, sizeof(*b));
    }
}
