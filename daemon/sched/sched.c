/* Events: each is brought to the jobs, batches and objects that it concerns. */
#include "daemon/sched/sched.h"

#include <assert.h>
#include <string.h>

#include "daemon/sched/internal.h"

void sched_init(struct sched *s, const struct sched_config *config)
{
    memset(s, 0, sizeof(*s));
    s->plan_jobs_max = UINT32_MAX;
    list_init(&s->to_watch);
    list_init(&s->waiting);
    list_init(&s->flows);
    list_init(&s->answered);
    for (int i = 0; i < SCHED_BATCHES; i++)
        list_init(&s->batches[i].jobs);
    sched_configure(s, config);
}

static uint32_t clamp(uint32_t v, uint32_t lo, uint32_t hi)
{
    if (v < lo)
        return lo;
    return v > hi ? hi : v;
}

void sched_configure(struct sched *s, const struct sched_config *config)
{
    s->config = *config;
    s->config.max_running = clamp(config->max_running, 1, SCHED_BATCHES);
    s->config.batch_jobs_max = clamp(config->batch_jobs_max, 1, UINT32_MAX);
    s->config.batch_seqs_max = clamp(config->batch_seqs_max, 1, UINT32_MAX);
}

static void answer_all(struct sched *s, struct list *jobs, enum mla_status code)
{
    while (!list_empty(jobs))
        sched_job_answer(s, sched_job_first(jobs), code);
}

static void stop_not_launched(struct sched *s, enum mla_status code)
{
    if (s->staged)
        sched_batch_fail(s, s->staged, code, false);
    while (!list_empty(&s->flows))
        sched_job_stop(s, sched_job_first(&sched_flow_at(s->flows.next)->queue), code);
    answer_all(s, &s->waiting, code);
    answer_all(s, &s->to_watch, code);
}

/* Whatever the event is, what is overdue at its time is so before it: a job is never launched past its deadline because
 * the timer was slow. */
static void expire(struct sched *s)
{
    while (s->deadlines && s->deadlines->deadline_ns <= s->now_ns)
        sched_job_overdue(s, s->deadlines);
    if (s->draining && s->drain_deadline_ns != 0 && s->drain_deadline_ns <= s->now_ns && !s->drain_expired) {
        const struct sched_counts *c = &s->counts;
        if (c->waiting + c->queued + c->staged + c->running == 0)
            return; /* drained, EXIT not given yet */
        s->drain_expired = true;
        stop_not_launched(s, MLA_DRAINING);
    }
}

/* Running launches in the order of their numbers. */
static void fatal(struct sched *s)
{
    s->fatal = true;
    while (s->n_running > 0) {
        struct sched_batch *oldest = NULL;
        for (int i = 0; i < SCHED_BATCHES; i++) {
            struct sched_batch *b = &s->batches[i];
            if (b->state == SCHED_SLOT_RUNNING && (!oldest || b->number < oldest->number))
                oldest = b;
        }
        assert(oldest);
        sched_batch_fail(s, oldest, MLA_DEVICE_LOST, true);
    }
    stop_not_launched(s, MLA_DEVICE_LOST);
}

static void peer_gone(struct sched *s, struct sched_peer *peer)
{
    peer->gone = true;
    if (!peer->jobs.next)
        list_init(&peer->jobs);
    list_for_each (node, &peer->jobs)
        sched_job_peer_gone(s, list_entry(node, struct sched_job, in_peer));
}

static void drain(struct sched *s, uint64_t deadline_ns)
{
    s->draining = true;
    s->drain_deadline_ns = deadline_ns;
}

void sched_step(struct sched *s, const struct sched_event *e)
{
    if (s->exited)
        return;
    if (e->now_ns > s->now_ns)
        s->now_ns = e->now_ns;
    expire(s);
    switch (e->kind) {
    case SCHED_SUBMIT:
        sched_job_submit(s, e->job, e->code);
        break;
    case SCHED_READY:
        sched_job_ready(s, e->job, e->aborted);
        break;
    case SCHED_CANCEL:
        sched_job_cancel(s, e->job);
        break;
    case SCHED_TIMER:
        s->armed_ns = 0; /* it went off, perhaps early: what is left is armed anew */
        break;
    case SCHED_SUBMITTED: /* the job counts as running since its LAUNCH */
        sched_pace_submitted(s, e->batch, e->at_ns);
        break;
    case SCHED_BATCH_DONE:
        sched_batch_done(s, e);
        break;
    case SCHED_PLANNED:
        sched_batch_planned(s, e);
        break;
    case SCHED_FATAL:
        fatal(s);
        break;
    case SCHED_PEER_GONE:
        peer_gone(s, e->peer);
        break;
    case SCHED_UNREGISTER:
        sched_object_leave(s, e->object);
        break;
    case SCHED_DRAIN:
        drain(s, e->deadline_ns);
        expire(s);
        break;
    }
}

void sched_counts(const struct sched *s, struct sched_counts *out)
{
    *out = s->counts;
    out->backlog_ns = sched_pace_scaled(s, s->backlog_ns);
}
