/* Batches: the first policy (oldest job first, compatible jobs join it) and the life of a launch. */
#include <assert.h>
#include <stddef.h>

#include "daemon/sched/internal.h"

struct load {
    uint32_t jobs;
    uint32_t seqs;
    uint64_t cost;
};

static bool fits(const struct sched_config *c, const struct load *load, const struct sched_job *job)
{
    if (load->jobs == 0)
        return true; /* whatever its size, a job runs */
    if (load->jobs >= c->batch_jobs_max)
        return false;
    if (load->seqs >= c->batch_seqs_max || job->seqs > c->batch_seqs_max - load->seqs)
        return false;
    if (c->batch_cost_max == 0)
        return true;
    return load->cost < c->batch_cost_max && job->cost <= c->batch_cost_max - load->cost;
}

static struct sched_batch *free_slot(struct sched *s)
{
    for (int i = 0; i < SCHED_BATCHES; i++)
        if (s->batches[i].state == SCHED_SLOT_FREE)
            return &s->batches[i];
    return NULL;
}

static void take(struct sched *s, struct sched_batch *batch, struct sched_job *job)
{
    list_del(&job->in_queue);
    s->counts.queued--;
    job->state = SCHED_STAGED;
    job->batch = batch;
    list_push_back(&batch->jobs, &job->in_queue);
    batch->n_jobs++;
    s->counts.staged++;
}

/* The head of the queue decides what is compatible, so no kind of job starves; the first compatible job that does not
 * fit closes the batch, so none is overtaken by one of its own kind. */
static void fill(struct sched *s, struct sched_batch *batch)
{
    struct load load = {0};
    batch->compat = sched_job_first(&s->queue)->compat;
    list_for_each_safe (node, &s->queue) {
        struct sched_job *job = list_entry(node, struct sched_job, in_queue);
        if (job->compat != batch->compat)
            continue;
        if (!fits(&s->config, &load, job))
            break;
        load.jobs++;
        load.seqs += job->seqs;
        load.cost += job->cost;
        take(s, batch, job);
    }
}

bool sched_batch_form(struct sched *s)
{
    if (s->staged)
        return s->staged->state == SCHED_SLOT_FORMED;
    struct sched_batch *batch = free_slot(s);
    if (!batch || list_empty(&s->queue))
        return false;
    batch->number = 0;
    batch->state = SCHED_SLOT_FORMED;
    s->staged = batch;
    fill(s, batch);
    return true;
}

static void give_up(struct sched *s, struct sched_batch *batch)
{
    batch->state = SCHED_SLOT_FREE;
    if (s->staged == batch)
        s->staged = NULL;
}

void sched_batch_job_left(struct sched *s, struct sched_batch *batch)
{
    batch->n_jobs--;
    batch->state = SCHED_SLOT_FORMED;
    if (batch->n_jobs == 0)
        give_up(s, batch);
}

void sched_batch_planned(struct sched *s, struct sched_batch *batch, uint32_t generation, enum mla_status code)
{
    if (batch->state != SCHED_SLOT_PLANNING || batch->generation != generation)
        return;
    if (code == MLA_OK)
        batch->state = SCHED_SLOT_PLANNED;
    else
        sched_batch_fail(s, batch, code);
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
    s->counts.staged -= batch->n_jobs;
    s->counts.running += batch->n_jobs;
    list_for_each (node, &batch->jobs) {
        struct sched_job *job = list_entry(node, struct sched_job, in_queue);
        job->state = SCHED_RUNNING;
        job->launched_ns = s->now_ns;
        job->batch_number = batch->number;
        job->batch_jobs = batch->n_jobs;
    }
}

static enum mla_status ending(const struct sched_job *job, enum mla_status code)
{
    if (code != MLA_OK)
        return code;
    if (job->cancelled)
        return MLA_CANCELLED;
    return job->late ? MLA_LATE : MLA_OK;
}

void sched_batch_done(struct sched *s, struct sched_batch *batch, enum mla_status code)
{
    if (batch->state != SCHED_SLOT_RUNNING)
        return;
    while (!list_empty(&batch->jobs)) {
        struct sched_job *job = sched_job_first(&batch->jobs);
        sched_job_answer(s, job, ending(job, code));
    }
    batch->n_jobs = 0;
    s->n_running--;
    give_up(s, batch);
}

void sched_batch_fail(struct sched *s, struct sched_batch *batch, enum mla_status code)
{
    if (batch->state == SCHED_SLOT_FREE)
        return;
    bool running = batch->state == SCHED_SLOT_RUNNING;
    while (!list_empty(&batch->jobs)) {
        struct sched_job *job = sched_job_first(&batch->jobs);
        sched_job_answer(s, job, code);
        job->batch = batch; /* the caller may keep the reason there */
    }
    batch->n_jobs = 0;
    if (running)
        s->n_running--;
    give_up(s, batch);
}
