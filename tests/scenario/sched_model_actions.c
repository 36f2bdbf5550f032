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
        const struct sched_part *part = sched_part_at(node);
        MUST(m, n < b->n && &b->jobs[n]->job == part->job, "a batch holds other jobs, or in another order");
        MUST(m, part->index == b->index[n], "another part of the job");
        MUST(m, part->job->batch == batch || b->jobs[n]->launched > 0, "a job of another batch");
        MUST(m, part->job->compat == batch->compat, "a job of another compat");
        n++;
    }
    MUST(m, n == b->n && batch->n_jobs == n, "the number of jobs of a batch");
}

static bool of_flow(const struct model_job *j, const struct model_job *of)
{
    return j->peer == of->peer && j->job.priority == of->job.priority;
}

/* The flow's first job that has a part to give; fresh: of this compat and not looked at for this batch. */
static struct model_job *first_of_flow(const struct model *m, const struct model_job *of, bool fresh, uint64_t compat)
{
    struct model_job *first = NULL;
    for (size_t i = 0; i < m->n_jobs; i++) {
        struct model_job *j = m->jobs[i];
        if (of_flow(j, of) && model_queued(j) && (!fresh || (j->job.compat == compat && !j->looked)) &&
            (!first || j->queue_order < first->queue_order))
            first = j;
    }
    return first;
}

static uint64_t charge(const struct model_job *j)
{
    static const uint64_t of_priority[SCHED_PRIORITIES] = {1, 4, 16, 64};
    uint64_t ns = j->job.load_ns * 64 / (model_weight(j->peer) * of_priority[j->job.priority]);
    return ns ? ns : 1;
}

/* The job that is next of all that may still come into this batch: that of the flow with the smallest tag. */
static struct model_job *next_job(const struct model *m, bool any, uint64_t compat)
{
    struct model_job *best = NULL;
    uint64_t best_tag = 0, best_order = 0;
    for (size_t i = 0; i < m->n_jobs; i++) {
        struct model_job *j = m->jobs[i], *head = first_of_flow(m, j, false, 0);
        struct model_job *candidate = any ? head : first_of_flow(m, j, true, compat);
        if (!candidate)
            continue;
        uint64_t tag = j->peer->start[j->job.priority] + charge(head);
        if (!best || tag < best_tag || (tag == best_tag && head->queue_order < best_order)) {
            best = candidate;
            best_tag = tag;
            best_order = head->queue_order;
        }
    }
    return best;
}

static bool over(const struct model *m, const struct model_job *j, uint32_t n, uint64_t seqs, uint64_t cost,
                 uint64_t ns)
{
    const struct sched_config *c = &m->config;
    if (n == 0)
        return false;
    return n >= c->batch_jobs_max || (m->plan_jobs_max && n >= m->plan_jobs_max) || seqs >= c->batch_seqs_max ||
           seqs + j->job.seqs > c->batch_seqs_max ||
           (c->batch_cost_max && (cost >= c->batch_cost_max || cost + j->job.cost > c->batch_cost_max)) ||
           (c->launch_max_ns && model_scaled(m, ns + j->job.load_ns) > c->launch_max_ns);
}

static void take(struct model *m, struct model_batch *b, struct model_job *j)
{
    uint64_t *start = &j->peer->start[j->job.priority];
    bool in_turn = of_flow(next_job(m, true, 0), j);
    b->start[b->n] = *start;
    *start += charge(j);
    if (in_turn && m->virtual_ns < *start)
        m->virtual_ns = *start;
    b->jobs[b->n] = j;
    b->index[b->n++] = j->taken++;
    j->looked = true;
    if (j->state == M_QUEUED)
        j->state = M_STAGED;
}

/* What the policy must have chosen. A flow whose next job does not fit is set aside: all its jobs count as looked at.
 */
static void choose(struct model *m, struct model_batch *b)
{
    uint64_t seqs = 0, cost = 0, ns = m->config.launch_fixed_ns;
    struct model_job *j = next_job(m, true, 0);
    MUST(m, j, "STAGE without a queued job");
    uint64_t compat = j->job.compat;
    for (size_t i = 0; i < m->n_jobs; i++)
        m->jobs[i]->looked = false;
    for (; j; j = next_job(m, false, compat)) {
        bool ahead = j->peer->start[j->job.priority] > m->virtual_ns && !of_flow(next_job(m, true, 0), j);
        if (over(m, j, b->n, seqs, cost, ns) || ahead) {
            for (size_t i = 0; i < m->n_jobs; i++)
                m->jobs[i]->looked |= of_flow(m->jobs[i], j);
            continue;
        }
        for (size_t i = 0; i < m->n_jobs; i++)
            m->stats->urgent_first += model_queued(m->jobs[i]) && m->jobs[i]->queue_order < j->queue_order &&
                                      m->jobs[i]->job.priority < j->job.priority;
        seqs += j->job.seqs;
        cost += j->job.cost;
        ns += j->job.load_ns;
        take(m, b, j);
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
    MUST(m, b->state != M_FREE || !m->plan_alone || model_running(m) == 0, "a job is planned again beside a launch");
    m->plan_alone &= b->state != M_FREE;
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
        MUST(m, b->index[i] == j->launched && j->stopped == MLA_OK, "a part out of order, or of a stopped job");
        m->stats->in_parts += j->launched > 0;
        j->state = M_RUNNING;
        j->launched++;
        j->running++;
        MUST(m, j->job.parts_launched == j->launched, "parts_launched");
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
    MUST(m, (j->job.batch_number != 0) == (j->launched > 0), "launched or not");
    MUST(m, (j->job.launched_ns != 0) == (j->launched > 0), "launched or not");
    MUST(m, j->code != MLA_OK || j->launched == model_parts(j), "OK, but not all parts have run");
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
        if (!j->late && !j->stopped && j->job.deadline_ns && (!next || j->job.deadline_ns < next))
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
    bool more = !staged && running < SCHED_BATCHES && next_job(m, true, 0) && !(m->plan_alone && running > 0);
    MUST(m, !more || running > 0 || m->config.gather_ns > 0, "queued jobs are not staged");
    MUST(m, !more || m->armed, "nothing will stage queued jobs");
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
