#include <stdlib.h>
#include <string.h>

#include "tests/scenario/sched_model_internal.h"

static struct model_job *record_of(struct model *m, struct sched_job *job)
{
    for (size_t i = 0; i < m->n_jobs; i++)
        if (&m->jobs[i]->job == job)
            return m->jobs[i];
    model_fail(m, "an action names a job that is not in flight", __FILE__, __LINE__);
}

static int slot_of(struct model *m, const struct sched_batch *batch)
{
    MUST(m, batch >= m->sched.batches && batch < m->sched.batches + SCHED_BATCHES, "an action names no batch");
    return (int)(batch - m->sched.batches);
}

static void must_hold(struct model *m, const struct sched_batch *batch, const struct model_batch *b)
{
    uint32_t n = 0;
    list_for_each (node, &batch->jobs) {
        struct sched_job *job = list_entry(node, struct sched_job, in_queue);
        MUST(m, n < b->n && &b->jobs[n]->job == job, "a batch holds other jobs, or in another order");
        MUST(m, job->batch == batch && job->compat == batch->compat, "a job of another batch or compat");
        n++;
    }
    MUST(m, n == b->n && batch->n_jobs == n, "the number of jobs of a batch");
}

static struct model_job *oldest_queued(struct model *m, bool of_compat, uint64_t compat)
{
    struct model_job *oldest = NULL;
    for (size_t i = 0; i < m->n_jobs; i++) {
        struct model_job *j = m->jobs[i];
        if (j->state == M_QUEUED && (!of_compat || j->job.compat == compat) &&
            (!oldest || j->queue_order < oldest->queue_order))
            oldest = j;
    }
    return oldest;
}

/* What the policy must have chosen. */
static void choose(struct model *m, struct model_batch *b)
{
    uint64_t seqs = 0, cost = 0;
    struct model_job *j = oldest_queued(m, false, 0);
    MUST(m, j, "STAGE without a queued job");
    uint64_t compat = j->job.compat;
    for (; j; j = oldest_queued(m, true, compat)) {
        seqs += j->job.seqs;
        cost += j->job.cost;
        bool over = b->n >= m->config.batch_jobs_max || seqs > m->config.batch_seqs_max ||
                    (m->config.batch_cost_max && cost > m->config.batch_cost_max) ||
                    (b->n && seqs - j->job.seqs >= m->config.batch_seqs_max) ||
                    (b->n && m->config.batch_cost_max && cost - j->job.cost >= m->config.batch_cost_max);
        if (b->n && over)
            break;
        j->state = M_STAGED;
        b->jobs[b->n++] = j;
    }
    m->stats->shared += b->n > 1;
}

static void on_stage(struct model *m, const struct sched_action *a)
{
    int slot = slot_of(m, a->batch);
    struct model_batch *b = &m->batches[slot];
    MUST(m, !m->fatal && !m->drain_expired, "STAGE at the end");
    MUST(m, a->generation > b->generation && a->generation == a->batch->generation, "generation");
    for (int i = 0; i < SCHED_BATCHES; i++)
        MUST(m, i == slot || m->batches[i].state == M_FREE || m->batches[i].state == M_LAUNCHED, "two staged batches");
    MUST(m, b->state == M_FREE || b->state == M_FORMED, "STAGE of a batch that needs none");
    if (b->state == M_FREE)
        choose(m, b);
    else
        m->stats->restaged++;
    must_hold(m, a->batch, b);
    b->generation = a->generation;
    b->state = M_PLANNING;
    if (model_below(m, 2))
        model_plan_answer(m, slot, b->generation, model_below(m, 16) ? MLA_OK : MLA_OUT_OF_MEMORY);
}

static void on_launch(struct model *m, const struct sched_action *a)
{
    int slot = slot_of(m, a->batch);
    struct model_batch *b = &m->batches[slot];
    uint32_t running = 0;
    for (int i = 0; i < SCHED_BATCHES; i++)
        running += m->batches[i].state == M_LAUNCHED;
    MUST(m, !m->fatal && !m->drain_expired, "LAUNCH at the end");
    MUST(m, b->state == M_PLANNED, "LAUNCH of what is not planned");
    MUST(m, a->generation == b->generation, "LAUNCH of an old generation");
    MUST(m, running < m->config.max_running, "more launches than max_running");
    MUST(m, a->batch->number == ++m->launches, "the number of a launch");
    must_hold(m, a->batch, b);
    b->state = M_LAUNCHED;
    for (uint32_t i = 0; i < b->n; i++) {
        struct model_job *j = b->jobs[i];
        MUST(m, j->job.state == SCHED_RUNNING && j->job.batch_jobs == b->n, "a launched job's record");
        MUST(m, !j->job.deadline_ns || j->job.deadline_ns > m->now, "a launch past a deadline");
        j->state = M_RUNNING;
        j->launched = true;
    }
    if (model_below(m, 8) == 0)
        model_batch_done(m, slot, MLA_OK);
}

static void drop_peer(struct model *m, struct model_peer *p)
{
    for (int i = 0; i < MODEL_PEERS; i++)
        if (m->peers[i] == p)
            m->peers[i] = NULL;
    free(p);
}

static void on_reply(struct model *m, const struct sched_action *a)
{
    struct model_job *j = record_of(m, a->job);
    MUST(m, j->state == M_DUE, "REPLY to a job that is not due");
    MUST(m, a->code == j->code && j->job.code == j->code, "another code than expected");
    MUST(m, j->job.state == SCHED_ANSWERED && j->job.ended_ns && j->job.received_ns, "a replied job's record");
    MUST(m, j->job.peer_gone == j->gone, "peer_gone");
    MUST(m, !j->watched, "REPLY before UNWATCH");
    MUST(m, (j->job.batch_number != 0) == j->launched && (j->job.launched_ns != 0) == j->launched, "launched or not");
    MUST(m, !j->launched || j->job.batch, "a launched job without its batch");
    MUST(m, (a->retry_after_us != 0) == (j->code == MLA_OVERLOADED), "retry_after_us");
    m->stats->codes[j->code]++;
    m->answered++;
    for (size_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i] == j)
            m->jobs[i] = m->jobs[--m->n_jobs];
    struct model_peer *p = j->peer;
    p->in_flight--;
    MUST(m, p->peer.in_flight == p->in_flight, "in_flight of a peer");
    memset(j, 0xdd, sizeof(*j));
    free(j);
    if (p->gone && p->in_flight == 0)
        drop_peer(m, p);
}

static void on_release(struct model *m, const struct sched_action *a)
{
    for (int i = 0; i < MODEL_OBJECTS; i++) {
        struct model_thing *t = m->objects[i];
        if (!t || &t->object != a->object)
            continue;
        MUST(m, t->leaving && t->pins == 0 && t->object.pins == 0, "RELEASE of what is used or was not to go");
        memset(t, 0xdd, sizeof(*t));
        free(t);
        m->objects[i] = NULL;
        return;
    }
    MUST(m, false, "RELEASE of an object that is gone");
}

static void on_exit_action(struct model *m, const struct sched_action *a)
{
    enum mla_status code = m->fatal ? MLA_DEVICE_LOST : m->drain_expired ? MLA_TIMED_OUT : MLA_OK;
    MUST(m, m->fatal || m->draining, "EXIT unasked");
    MUST(m, a->code == code, "the code of EXIT");
    MUST(m, m->drain_expired || m->n_jobs == 0, "EXIT with a job in flight");
    m->stats->exits[code]++;
    m->exited = true;
}

static void on_action(struct model *m, const struct sched_action *a)
{
    m->stats->actions[a->kind]++;
    switch (a->kind) {
    case SCHED_WATCH: {
        struct model_job *j = record_of(m, a->job);
        MUST(m, j->state == M_WAITING && !j->watched, "WATCH of what is not to be watched");
        j->watched = true;
        break;
    }
    case SCHED_UNWATCH: {
        struct model_job *j = record_of(m, a->job);
        MUST(m, j->state == M_DUE && j->watched, "UNWATCH of what is not watched");
        j->watched = false;
        break;
    }
    case SCHED_STAGE:
        on_stage(m, a);
        break;
    case SCHED_LAUNCH:
        on_launch(m, a);
        break;
    case SCHED_REPLY:
        on_reply(m, a);
        break;
    case SCHED_RELEASE:
        on_release(m, a);
        break;
    case SCHED_SET_TIMER:
        m->armed = a->at_ns;
        break;
    case SCHED_EXIT:
        on_exit_action(m, a);
        break;
    }
}

static void must_be_timely(struct model *m)
{
    uint64_t next = m->draining ? m->drain_deadline : 0;
    for (size_t i = 0; i < m->n_jobs; i++) {
        const struct model_job *j = m->jobs[i];
        if (!j->late && j->job.deadline_ns && (!next || j->job.deadline_ns < next))
            next = j->job.deadline_ns;
    }
    MUST(m, !next || (m->armed && m->armed <= next), "the timer is late");
}

static void must_be_settled(struct model *m)
{
    uint32_t running = 0, staged = 0, formed = 0;
    for (int i = 0; i < SCHED_BATCHES; i++) {
        running += m->batches[i].state == M_LAUNCHED;
        staged += m->batches[i].state == M_PLANNING || m->batches[i].state == M_PLANNED;
        formed += m->batches[i].state == M_FORMED;
    }
    for (int i = 0; i < SCHED_BATCHES; i++)
        MUST(m, m->batches[i].state != M_PLANNED || running >= m->config.max_running, "a planned batch idles");
    MUST(m, formed == 0, "a changed batch is not staged again");
    MUST(m, staged || running == SCHED_BATCHES || !oldest_queued(m, false, 0), "queued jobs are not staged");
    for (size_t i = 0; i < m->n_jobs; i++)
        MUST(m, m->jobs[i]->state != M_WAITING || m->jobs[i]->watched, "a waiting job is not watched");
    MUST(m, !m->fatal && !m->drain_expired && !(m->draining && m->n_jobs == 0), "no EXIT");
    must_be_timely(m);
}

void model_carry_out(struct model *m)
{
    struct sched_action a;
    while (sched_next(&m->sched, &a)) {
        MUST(m, !m->exited, "an action after EXIT");
        on_action(m, &a);
        if (!m->exited && !m->quiet && model_below(m, 12) == 0) {
            m->stats->mid_action++;
            model_random_event(m);
        }
    }
    MUST(m, model_count(m, M_DUE) == 0, "a job that is due is not answered");
    for (int i = 0; i < MODEL_OBJECTS; i++) {
        const struct model_thing *t = m->objects[i];
        MUST(m, !t || !(t->leaving && t->pins == 0), "an unused object is not released");
        MUST(m, !t || t->object.pins == t->pins, "the pins of an object");
    }
    struct sched_counts n;
    sched_counts(&m->sched, &n);
    MUST(m,
         n.waiting == model_count(m, M_WAITING) && n.queued == model_count(m, M_QUEUED) &&
             n.staged == model_count(m, M_STAGED) && n.running == model_count(m, M_RUNNING),
         "a gauge");
    MUST(m, n.batches == m->launches && n.answered == m->answered, "a count");
    if (!m->exited)
        must_be_settled(m);
}
