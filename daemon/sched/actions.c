/* What is to be done next, derived from the state. The order among kinds is the contract of sched_next(). */
#include "daemon/sched/internal.h"

static bool reply(struct sched *s, struct sched_action *a)
{
    if (list_empty(&s->answered))
        return false;
    struct sched_job *job = sched_job_first(&s->answered);
    a->job = job;
    if (job->watched) {
        job->watched = false;
        a->kind = SCHED_UNWATCH;
        return true;
    }
    list_del(&job->in_queue);
    list_del(&job->in_peer);
    job->peer->in_flight--;
    a->kind = SCHED_REPLY;
    a->code = job->code;
    a->retry_after_us = job->retry_after_us;
    return true;
}

static bool watch(struct sched *s, struct sched_action *a)
{
    if (list_empty(&s->to_watch))
        return false;
    struct sched_job *job = sched_job_first(&s->to_watch);
    list_del(&job->in_queue);
    list_push_back(&s->waiting, &job->in_queue);
    job->watched = true;
    a->kind = SCHED_WATCH;
    a->job = job;
    return true;
}

static bool launch(struct sched *s, struct sched_action *a)
{
    if (!sched_batch_may_launch(s))
        return false;
    a->kind = SCHED_LAUNCH;
    a->batch = s->staged;
    a->generation = s->staged->generation;
    sched_batch_launch(s, s->staged);
    return true;
}

static bool stage(struct sched *s, struct sched_action *a)
{
    if (!sched_batch_form(s))
        return false;
    s->staged->state = SCHED_SLOT_PLANNING;
    a->kind = SCHED_STAGE;
    a->batch = s->staged;
    a->generation = ++s->staged->generation;
    return true;
}

static bool release(struct sched *s, struct sched_action *a)
{
    a->object = sched_object_next_released(s);
    a->kind = SCHED_RELEASE;
    return a->object != NULL;
}

static uint64_t sooner(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns == 0 || (b_ns != 0 && b_ns < a_ns) ? b_ns : a_ns;
}

/* A timer that is armed too early costs one TIMER event; arming it anew with each job that leaves would cost one action
 * per job. So only what comes earlier moves it. */
static bool set_timer(struct sched *s, struct sched_action *a)
{
    uint64_t form_ns = sched_pace_form_ns(s);
    uint64_t at_ns = s->deadlines ? s->deadlines->deadline_ns : 0;
    at_ns = sooner(at_ns, s->drain_expired ? 0 : s->drain_deadline_ns);
    at_ns = sooner(at_ns, form_ns == UINT64_MAX ? 0 : form_ns);
    if (at_ns == 0 || (s->armed_ns != 0 && s->armed_ns <= at_ns))
        return false;
    s->armed_ns = at_ns;
    a->kind = SCHED_SET_TIMER;
    a->at_ns = at_ns;
    return true;
}

static bool leave(struct sched *s, struct sched_action *a)
{
    const struct sched_counts *c = &s->counts;
    bool idle = c->waiting + c->queued + c->staged + c->running == 0;
    if (s->fatal)
        a->code = MLA_DEVICE_LOST;
    else if (s->drain_expired)
        a->code = MLA_TIMED_OUT;
    else if (s->draining && idle)
        a->code = MLA_OK;
    else
        return false;
    a->kind = SCHED_EXIT;
    s->exited = true;
    return true;
}

bool sched_next(struct sched *s, struct sched_action *action)
{
    *action = (struct sched_action){0};
    if (s->exited)
        return false;
    /* After FATAL or the drain's deadline nothing is staged, queued or unwatched any more, so nothing is begun. */
    return launch(s, action) || reply(s, action) || release(s, action) || watch(s, action) || stage(s, action) ||
           leave(s, action) || set_timer(s, action);
}
