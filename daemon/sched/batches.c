/* Batches: what goes into the next one, and the life of a launch. */
#include <assert.h>
#include <stddef.h>

#include "daemon/sched/internal.h"

struct load {
    uint32_t jobs;
    uint32_t seqs;
    uint64_t cost;
    uint64_t ns; /* as predicted */
};

static bool fits(const struct sched *s, const struct load *load, const struct sched_job *job)
{
    const struct sched_config *c = &s->config;
    if (load->jobs == 0)
        return true; /* whatever its size, a job runs */
    if (load->jobs >= c->batch_jobs_max)
        return false;
    if (load->seqs >= c->batch_seqs_max || job->seqs > c->batch_seqs_max - load->seqs)
        return false;
    if (c->batch_cost_max != 0 && (load->cost >= c->batch_cost_max || job->cost > c->batch_cost_max - load->cost))
        return false;
    if (c->launch_max_ns == 0)
        return true;
    return job->load_ns <= UINT64_MAX - load->ns && sched_pace_scaled(s, load->ns + job->load_ns) <= c->launch_max_ns;
}

static struct sched_batch *free_slot(struct sched *s)
{
    for (int i = 0; i < SCHED_BATCHES; i++)
        if (s->batches[i].state == SCHED_SLOT_FREE)
            return &s->batches[i];
    return NULL;
}

static struct sched_part *place_in(struct sched *s, const struct sched_batch *batch, struct sched_job *job)
{
    return &job->parts[batch - s->batches];
}

static void take(struct sched *s, struct sched_batch *batch, struct sched_job *job, bool in_order)
{
    struct sched_part *part = place_in(s, batch, job);
    assert(!part->in);
    *part = (struct sched_part){.job = job, .index = job->parts_taken, .in = true, .start = sched_flow_of(job)->start};
    list_push_back(&batch->jobs, &part->in_batch);
    batch->n_jobs++;
    if (job->parts_launched == 0)
        job->batch = batch;
    sched_flow_looked(sched_flow_of(job), job);
    sched_flow_serve(s, job, in_order);
    if (job->state == SCHED_QUEUED) {
        job->state = SCHED_STAGED;
        s->counts.queued--;
        s->counts.staged++;
    }
}

/* sched.h, "Batches". A flow that has given a job is looked at again where its new tag puts it. */
static void fill(struct sched *s, struct sched_batch *batch)
{
    struct load load = {.ns = s->config.launch_fixed_ns};
    s->n_formed++;
    batch->compat = sched_job_first(&sched_flow_at(s->flows.next)->queue)->compat;
    struct list *node = s->flows.next;
    bool in_order = true; /* nobody was passed over */
    while (node != &s->flows && load.jobs < s->config.batch_jobs_max && load.jobs < s->plan_jobs_max) {
        struct sched_flow *flow = sched_flow_at(node);
        struct list *next = node->next;
        struct sched_job *job = sched_flow_look(s, flow, batch->compat);
        if (!job || !fits(s, &load, job) || (!in_order && flow->start > s->virtual_ns)) {
            in_order = false;
            node = next;
            continue;
        }
        load.jobs++;
        load.seqs += job->seqs;
        load.cost += job->cost;
        load.ns += job->load_ns;
        take(s, batch, job, in_order);
        node = !list_empty(&flow->queue) && flow->in_flows.next == next ? &flow->in_flows : next;
    }
}

bool sched_batch_form(struct sched *s)
{
    if (s->staged)
        return s->staged->state == SCHED_SLOT_FORMED;
    uint64_t at_ns = sched_pace_form_ns(s);
    if (at_ns == UINT64_MAX || at_ns > s->now_ns)
        return false;
    struct sched_batch *batch = free_slot(s);
    sched_pace_formed(s, batch);
    batch->number = 0;
    batch->predicted_ns = 0;
    batch->state = SCHED_SLOT_FORMED;
    s->plan_alone = false;
    s->staged = batch;
    fill(s, batch);
    return true;
}

static void give_up(struct sched *s, struct sched_batch *batch)
{
    batch->state = SCHED_SLOT_FREE;
    s->slot_since = s->now_ns;
    if (s->staged == batch)
        s->staged = NULL;
}

static void take_out(struct sched_batch *batch, struct sched_part *part)
{
    list_del(&part->in_batch);
    part->in = false;
    batch->n_jobs--;
}

void sched_batch_drop(struct sched *s, struct sched_batch *batch, struct sched_job *job)
{
    struct sched_part *part = place_in(s, batch, job);
    if (!part->in)
        return;
    take_out(batch, part);
    if (batch != s->staged)
        return;
    if (job->parts_launched == 0)
        job->batch = NULL;
    batch->state = SCHED_SLOT_FORMED;
    if (batch->n_jobs == 0)
        give_up(s, batch);
}

/* sched.h, "Plans that fail". */
static void put_back_half(struct sched *s, struct sched_batch *batch)
{
    uint32_t keep = batch->n_jobs / 2;
    s->plan_jobs_max = keep > 0 ? keep : 1;
    while (batch->n_jobs > keep) {
        struct sched_part *part = sched_part_at(batch->jobs.prev);
        struct sched_job *job = part->job;
        take_out(batch, part);
        if (job->parts_launched == 0)
            job->batch = NULL;
        if (job->state == SCHED_STAGED) {
            job->state = SCHED_QUEUED;
            s->counts.staged--;
            s->counts.queued++;
        }
        sched_flow_put_back(s, job, part->start);
    }
    batch->state = SCHED_SLOT_FORMED;
    if (keep == 0) {
        s->plan_alone = true;
        give_up(s, batch);
    }
}

static void planned_well(struct sched *s, struct sched_batch *batch)
{
    batch->state = SCHED_SLOT_PLANNED;
    if (!sched_batch_may_launch(s))
        sched_pace_waits(s, batch);
    s->plan_jobs_max = s->plan_jobs_max < (s->config.batch_jobs_max - 1) / 2 + 1 ? s->plan_jobs_max * 2 : UINT32_MAX;
}

void sched_batch_planned(struct sched *s, const struct sched_event *e)
{
    struct sched_batch *batch = e->batch;
    if (batch->state != SCHED_SLOT_PLANNING || batch->generation != e->generation)
        return;
    batch->predicted_ns = e->predicted_ns;
    if (e->code == MLA_OK)
        planned_well(s, batch);
    else if (batch->n_jobs > 1 || s->n_running > 0)
        put_back_half(s, batch);
    else
        sched_batch_fail(s, batch, e->code, false);
}

bool sched_batch_may_launch(const struct sched *s)
{
    return s->staged && s->staged->state == SCHED_SLOT_PLANNED && s->n_running < s->config.max_running;
}

void sched_batch_launch(struct sched *s, struct sched_batch *batch)
{
    assert(batch == s->staged && batch->state == SCHED_SLOT_PLANNED);
    s->staged = NULL;
    s->n_running++;
    batch->state = SCHED_SLOT_RUNNING;
    batch->number = ++s->counts.batches;
    sched_pace_launched(s, batch);
    list_for_each (node, &batch->jobs) {
        struct sched_job *job = sched_part_at(node)->job;
        if (job->state == SCHED_STAGED) {
            job->state = SCHED_RUNNING;
            job->launched_ns = s->now_ns;
            s->counts.staged--;
            s->counts.running++;
        }
        job->parts_launched++;
        job->parts_running++;
        job->batch = batch;
        job->batch_number = batch->number;
        job->batch_jobs = batch->n_jobs;
        sched_backlog_less(s, job, 1);
    }
}

void sched_batch_done(struct sched *s, const struct sched_event *e)
{
    struct sched_batch *batch = e->batch;
    if (batch->state != SCHED_SLOT_RUNNING)
        return;
    s->n_running--;
    sched_pace_ended(s, batch, e->code == MLA_OK, e->at_ns);
    while (!list_empty(&batch->jobs)) {
        struct sched_part *part = sched_part_at(batch->jobs.next);
        take_out(batch, part);
        sched_job_part_done(s, part->job, e->code);
    }
    give_up(s, batch);
}

void sched_batch_fail(struct sched *s, struct sched_batch *batch, enum mla_status code, bool lost)
{
    if (batch->state == SCHED_SLOT_FREE)
        return;
    if (batch->state == SCHED_SLOT_RUNNING)
        s->n_running--;
    while (!list_empty(&batch->jobs)) {
        struct sched_part *part = sched_part_at(batch->jobs.next);
        struct sched_job *job = part->job;
        take_out(batch, part);
        if (lost)
            sched_job_answer(s, job, code);
        else
            sched_job_stop(s, job, code);
        job->batch = batch; /* the caller may keep the reason there */
    }
    give_up(s, batch);
}
