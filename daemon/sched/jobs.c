/* Transitions of one job: the state table of sched.h. */
#include <assert.h>
#include <stddef.h>

#include "daemon/sched/internal.h"

struct sched_job *sched_job_first(const struct list *jobs)
{
    return list_entry(jobs->next, struct sched_job, in_queue);
}

/* The gauge that counts jobs in this state. */
static uint32_t *gauge(struct sched *s, enum sched_job_state state)
{
    switch (state) {
    case SCHED_WAITING:
        return &s->counts.waiting;
    case SCHED_QUEUED:
        return &s->counts.queued;
    case SCHED_STAGED:
        return &s->counts.staged;
    default:
        return &s->counts.running;
    }
}

static enum mla_status admission(const struct sched *s, struct sched_job *job, enum mla_status refused)
{
    if (job->peer->gone)
        return MLA_DISCONNECTED;
    if (refused != MLA_OK)
        return refused;
    if (s->fatal)
        return MLA_DEVICE_LOST;
    if (s->draining)
        return MLA_DRAINING;
    if (sched_objects_leaving(job->pins, job->n_pins))
        return MLA_NOT_FOUND;
    enum mla_status room = sched_admit(s, job);
    if (room != MLA_OK)
        return room;
    if (job->deadline_ns != 0 && job->deadline_ns <= s->now_ns)
        return MLA_TIMED_OUT;
    return MLA_OK;
}

static void to_answered(struct sched *s, struct sched_job *job, enum mla_status code)
{
    job->state = SCHED_ANSWERED;
    job->code = code;
    job->ended_ns = s->now_ns;
    list_push_back(&s->answered, &job->in_queue);
    s->counts.answered++;
}

static void to_queued(struct sched *s, struct sched_job *job)
{
    job->state = SCHED_QUEUED;
    job->ready_ns = s->now_ns;
    sched_flow_push(s, job);
    s->counts.queued++;
}

void sched_job_submit(struct sched *s, struct sched_job *job, enum mla_status refused)
{
    struct sched_peer *peer = job->peer;
    assert(job->state == SCHED_RECEIVED);
    if (!peer->jobs.next)
        list_init(&peer->jobs);
    list_push_back(&peer->jobs, &job->in_peer);
    peer->in_flight++;
    job->peer_gone = peer->gone;
    job->received_ns = s->now_ns;
    job->order = ++s->n_submitted;

    enum mla_status code = admission(s, job, refused);
    if (code != MLA_OK) {
        to_answered(s, job, code);
        return;
    }
    sched_objects_pin(job->pins, job->n_pins);
    sched_backlog_add(s, job);
    if (job->deadline_ns != 0)
        sched_deadline_add(s, job);
    if (job->has_ready) {
        job->state = SCHED_WAITING;
        list_push_back(&s->to_watch, &job->in_queue);
        s->counts.waiting++;
    } else {
        to_queued(s, job);
    }
}

void sched_job_answer(struct sched *s, struct sched_job *job, enum mla_status code)
{
    assert(job->state != SCHED_RECEIVED && job->state != SCHED_ANSWERED);
    --*gauge(s, job->state);
    sched_backlog_less(s, job, sched_job_parts(job) - job->parts_launched);
    if (job->state == SCHED_WAITING)
        list_del(&job->in_queue);
    sched_flow_remove(s, job);
    sched_deadline_remove(s, job);
    job->state = SCHED_ANSWERED;
    job->parts_running = 0;
    for (int i = 0; i < SCHED_BATCHES; i++)
        sched_batch_drop(s, &s->batches[i], job);
    to_answered(s, job, code);
    sched_objects_unpin(s, job->pins, job->n_pins);
}

/* The backlog keeps what will not be launched until the job is answered: its peer has not got rid of it yet. */
void sched_job_stop(struct sched *s, struct sched_job *job, enum mla_status code)
{
    if (job->stopped != MLA_OK)
        return;
    if (job->parts_running == 0) {
        sched_job_answer(s, job, code);
        return;
    }
    job->stopped = code;
    sched_flow_remove(s, job);
    sched_deadline_remove(s, job);
    if (s->staged)
        sched_batch_drop(s, s->staged, job);
}

static enum mla_status ending(const struct sched_job *job)
{
    if (job->stopped != MLA_OK)
        return job->stopped;
    if (job->cancelled)
        return MLA_CANCELLED;
    return job->late ? MLA_LATE : MLA_OK;
}

static bool all_launched(const struct sched_job *job)
{
    return job->parts_launched == sched_job_parts(job);
}

void sched_job_part_done(struct sched *s, struct sched_job *job, enum mla_status code)
{
    job->parts_running--;
    if (code != MLA_OK)
        sched_job_stop(s, job, code);
    if (job->state == SCHED_RUNNING && job->parts_running == 0 && (all_launched(job) || job->stopped != MLA_OK))
        sched_job_answer(s, job, ending(job));
}

void sched_job_ready(struct sched *s, struct sched_job *job, bool aborted)
{
    if (job->state != SCHED_WAITING) {
        /* It was answered first, and its UNWATCH may not have been given yet: the watch has ended by itself. */
        job->watched = false;
        return;
    }
    job->watched = false;
    if (aborted) {
        sched_job_answer(s, job, MLA_READY_ABORTED);
        return;
    }
    list_del(&job->in_queue);
    s->counts.waiting--;
    to_queued(s, job);
}

/* Before all of a job is launched an event stops it; after it, nothing can be undone and the flag that the caller set
 * decides when the last batch ends. */
static void stop_if_not_launched(struct sched *s, struct sched_job *job, enum mla_status code)
{
    if (job->state != SCHED_ANSWERED && !all_launched(job))
        sched_job_stop(s, job, code);
}

void sched_job_cancel(struct sched *s, struct sched_job *job)
{
    if (job->state == SCHED_RECEIVED || job->state == SCHED_ANSWERED)
        return;
    job->cancelled = true;
    stop_if_not_launched(s, job, MLA_CANCELLED);
}

void sched_job_overdue(struct sched *s, struct sched_job *job)
{
    if (all_launched(job)) {
        job->late = true;
        sched_deadline_remove(s, job);
    } else {
        sched_job_stop(s, job, MLA_TIMED_OUT);
    }
}

void sched_job_peer_gone(struct sched *s, struct sched_job *job)
{
    job->peer_gone = true;
    stop_if_not_launched(s, job, MLA_DISCONNECTED);
}
