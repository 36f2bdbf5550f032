#include "tests/scenario/sched_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/scenario/sched_model_internal.h"

_Noreturn void model_fail(const struct model *m, const char *what, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s; %s, event %llu\n", file, line, what, m->source.name,
            (unsigned long long)m->stats->events);
    abort();
}

uint32_t model_below(struct model *m, uint32_t n)
{
    return m->source.below(m->source.context, n);
}

uint32_t model_count(const struct model *m, enum model_state state)
{
    uint32_t n = 0;
    for (size_t i = 0; i < m->n_jobs; i++)
        n += m->jobs[i]->state == state;
    return n;
}

static void *fresh(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (!p)
        abort();
    return p;
}

static uint32_t in_flight(const struct model *m)
{
    return (uint32_t)m->n_jobs - model_count(m, M_DUE);
}

uint32_t model_parts(const struct model_job *j)
{
    return j->job.n_parts > 1 ? j->job.n_parts : 1;
}

uint64_t model_weight(const struct model_peer *p)
{
    return p->weight ? p->weight : 1;
}

uint32_t model_running(const struct model *m)
{
    uint32_t n = 0;
    for (int i = 0; i < SCHED_BATCHES; i++)
        n += m->batches[i].state == M_LAUNCHED;
    return n;
}

bool model_queued(const struct model_job *j)
{
    return (j->state == M_QUEUED || j->state == M_STAGED || j->state == M_RUNNING) && j->stopped == MLA_OK &&
           j->taken < model_parts(j);
}

/* The scheduler's own account of how launches go: the stories look at that. */
uint64_t model_scaled(const struct model *m, uint64_t ns)
{
    return m->sched.ratio_q16 ? ns * m->sched.ratio_q16 >> 16 : ns;
}

static void leave_batch(struct model *m, struct model_batch *batch, const struct model_job *j)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        if (batch->jobs[i] != j)
            continue;
        batch->n--;
        memmove(&batch->jobs[i], &batch->jobs[i + 1], (batch->n - i) * sizeof(batch->jobs[0]));
        memmove(&batch->index[i], &batch->index[i + 1], (batch->n - i) * sizeof(batch->index[0]));
        memmove(&batch->start[i], &batch->start[i + 1], (batch->n - i) * sizeof(batch->start[0]));
        if (batch->state == M_LAUNCHED)
            return;
        batch->state = batch->n ? M_FORMED : M_FREE;
        m->stats->given_up += batch->n == 0;
        return;
    }
}

void model_due(struct model *m, struct model_job *j, enum mla_status code)
{
    for (int b = 0; b < SCHED_BATCHES; b++)
        leave_batch(m, &m->batches[b], j);
    j->state = M_DUE;
    j->code = code;
    m->stats->cut_short += j->launched > 0 && j->launched < model_parts(j);
    for (uint32_t i = 0; i < j->job.n_pins; i++)
        ((struct model_thing *)(void *)j->pins[i])->pins--;
}

void model_stop(struct model *m, struct model_job *j, enum mla_status code)
{
    if (j->stopped != MLA_OK || j->state == M_DUE || j->launched == model_parts(j))
        return;
    if (j->running == 0) {
        model_due(m, j, code);
        return;
    }
    j->stopped = code;
    for (int b = 0; b < SCHED_BATCHES; b++)
        if (m->batches[b].state != M_LAUNCHED)
            leave_batch(m, &m->batches[b], j);
}

static void stop_all(struct model *m, enum mla_status code)
{
    for (size_t i = 0; i < m->n_jobs; i++)
        model_stop(m, m->jobs[i], code);
}

static void expire(struct model *m)
{
    for (size_t i = 0; i < m->n_jobs; i++) {
        struct model_job *j = m->jobs[i];
        if (j->job.deadline_ns == 0 || j->job.deadline_ns > m->now)
            continue;
        j->late |= j->launched == model_parts(j) && j->stopped == MLA_OK;
        model_stop(m, j, MLA_TIMED_OUT);
    }
    if (m->draining && m->drain_deadline && m->drain_deadline <= m->now && in_flight(m) > 0) {
        m->drain_expired = true;
        stop_all(m, MLA_DRAINING);
    }
}

/* Brings the model's own account to the time of the event, then gives it. Each caller changes the account itself. */
void model_give(struct model *m, struct sched_event event)
{
    event.now_ns = m->now;
    m->stats->events++;
    sched_step(&m->sched, &event);
}

static void pick_limits(struct model *m)
{
    m->config = (struct sched_config){
        .max_in_flight = 1 + model_below(m, 100),
        .max_running = 1 + model_below(m, SCHED_BATCHES),
        .batch_jobs_max = 1 + model_below(m, 10),
        .batch_seqs_max = 1 + model_below(m, 30),
        .batch_cost_max = model_below(m, 2) ? 1 + model_below(m, 100) : 0,
        .launch_max_ns = model_below(m, 2) ? 1 + model_below(m, 200) : 0,
        .launch_fixed_ns = model_below(m, 20),
        .gather_ns = model_below(m, 4) ? 0 : model_below(m, 20),
        .lead_ns = model_below(m, 40),
        .backlog_max_ns = model_below(m, 2) ? 1 + model_below(m, 2000) : 0,
        .retry_after_us = 1 + model_below(m, 9),
    };
}

struct model *model_new(const struct model_source *source, struct model_stats *stats)
{
    struct model *m = fresh(sizeof(*m));
    m->source = *source;
    m->stats = stats;
    m->now = 1;
    pick_limits(m);
    sched_init(&m->sched, &m->config);
    return m;
}

static struct model_job *any_job(struct model *m)
{
    return m->n_jobs ? m->jobs[model_below(m, (uint32_t)m->n_jobs)] : NULL;
}

static uint64_t backlog_of(const struct model *m, const struct model_peer *p)
{
    uint64_t ns = 0;
    for (size_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i]->peer == p && m->jobs[i]->state != M_DUE)
            ns += m->jobs[i]->job.load_ns * (model_parts(m->jobs[i]) - m->jobs[i]->launched);
    return ns;
}

static bool backlog_is_full(const struct model *m, const struct model_job *j)
{
    uint64_t own = backlog_of(m, j->peer), weights = 0;
    for (int i = 0; i < MODEL_PEERS; i++)
        if (m->peers[i] && backlog_of(m, m->peers[i]) > 0)
            weights += model_weight(m->peers[i]);
    return m->config.backlog_max_ns != 0 && own > 0 &&
           model_scaled(m, own + j->job.load_ns * model_parts(j)) >
               m->config.backlog_max_ns * model_weight(j->peer) / weights;
}

static void enqueue(struct model *m, struct model_job *j)
{
    uint64_t *start = &j->peer->start[j->job.priority];
    bool idle = true;
    for (size_t i = 0; i < m->n_jobs; i++)
        idle &= m->jobs[i]->peer != j->peer || m->jobs[i]->job.priority != j->job.priority || !model_queued(m->jobs[i]);
    if (idle && *start < m->virtual_ns)
        *start = m->virtual_ns;
    j->state = M_QUEUED;
    j->queue_order = ++m->queue_order;
}

static enum mla_status admission(struct model *m, const struct model_job *j, enum mla_status refused)
{
    if (j->peer->gone)
        return MLA_DISCONNECTED;
    if (refused)
        return refused;
    if (m->fatal || m->draining)
        return m->fatal ? MLA_DEVICE_LOST : MLA_DRAINING;
    for (uint32_t i = 0; i < j->job.n_pins; i++)
        if (((struct model_thing *)(void *)j->pins[i])->leaving)
            return MLA_NOT_FOUND;
    if (in_flight(m) >= m->config.max_in_flight || backlog_is_full(m, j))
        return MLA_OVERLOADED;
    return j->job.deadline_ns && j->job.deadline_ns <= m->now ? MLA_TIMED_OUT : MLA_OK;
}

static struct model_peer *any_peer(struct model *m)
{
    struct model_peer **p = &m->peers[model_below(m, MODEL_PEERS)];
    if (!*p) {
        *p = fresh(sizeof(**p));
        (*p)->peer.weight = (*p)->weight = model_below(m, 4);
    }
    return *p;
}

static struct model_thing *any_object(struct model *m)
{
    struct model_thing **t = &m->objects[model_below(m, MODEL_OBJECTS)];
    if (!*t)
        *t = fresh(sizeof(**t));
    return *t;
}

static void give_submit(struct model *m)
{
    if (m->n_jobs == MODEL_JOBS)
        return;
    struct model_job *j = fresh(sizeof(*j));
    j->peer = any_peer(m);
    j->job.peer = &j->peer->peer;
    j->job.pins = j->pins;
    uint32_t n_pins = model_below(m, MODEL_PINS + 1);
    for (uint32_t i = 0; i < n_pins; i++) {
        struct model_thing *t = any_object(m);
        if (!t->object.released)
            j->pins[j->job.n_pins++] = &t->object;
    }
    if (model_below(m, 3) == 0)
        j->job.deadline_ns = m->now + (model_below(m, 2) ? 200 : model_below(m, 400));
    j->job.compat = model_below(m, 3);
    j->job.cost = model_below(m, 40);
    j->job.seqs = model_below(m, 12);
    j->job.load_ns = model_below(m, 3) ? model_below(m, 60) : 0;
    j->job.n_parts = model_below(m, 4) ? 0 : model_below(m, 5);
    j->job.priority = model_below(m, 3) ? 0 : model_below(m, SCHED_PRIORITIES);
    j->job.has_ready = model_below(m, 4) == 0;
    enum mla_status refused = model_below(m, 30) == 0 ? MLA_OUT_OF_BOUNDS : MLA_OK;

    enum mla_status code = admission(m, j, refused);
    j->peer->in_flight++;
    j->gone = j->peer->gone;
    j->code = code;
    j->state = code ? M_DUE : M_WAITING;
    if (code == MLA_OK && !j->job.has_ready)
        enqueue(m, j);
    if (code == MLA_OK)
        for (uint32_t i = 0; i < j->job.n_pins; i++)
            ((struct model_thing *)(void *)j->pins[i])->pins++;
    m->jobs[m->n_jobs++] = j;
    model_give(m, (struct sched_event){.kind = SCHED_SUBMIT, .job = &j->job, .code = refused});
}

static void give_ready(struct model *m, struct model_job *j)
{
    if (j->job.has_ready && !j->watched)
        return; /* its READY has come, or its WATCH has not */
    bool aborted = model_below(m, 6) == 0;
    j->watched = false;
    if (j->state == M_WAITING && aborted) {
        model_due(m, j, MLA_READY_ABORTED);
    } else if (j->state == M_WAITING) {
        enqueue(m, j);
    }
    model_give(m, (struct sched_event){.kind = SCHED_READY, .job = &j->job, .aborted = aborted});
}

static void give_cancel(struct model *m, struct model_job *j)
{
    j->cancelled = true;
    model_stop(m, j, MLA_CANCELLED);
    model_give(m, (struct sched_event){.kind = SCHED_CANCEL, .job = &j->job});
}

static void give_peer_gone(struct model *m)
{
    int at = (int)model_below(m, MODEL_PEERS);
    struct model_peer *p = m->peers[at];
    if (!p)
        return;
    p->gone = true;
    for (size_t i = 0; i < m->n_jobs; i++) {
        struct model_job *j = m->jobs[i];
        if (j->peer != p)
            continue;
        j->gone = true;
        m->stats->gone_while_running += j->state == M_RUNNING;
        model_stop(m, j, MLA_DISCONNECTED);
    }
    model_give(m, (struct sched_event){.kind = SCHED_PEER_GONE, .peer = &p->peer});
    MUST(m, p->peer.in_flight == p->in_flight, "in_flight of a peer that has gone");
    if (p->in_flight == 0) {
        m->peers[at] = NULL;
        free(p);
    }
}

/* No event: it asks for nothing. */
static void weigh(struct model *m)
{
    struct model_peer *p = m->peers[model_below(m, MODEL_PEERS)];
    if (!p)
        return;
    p->weight = model_below(m, 4) ? model_below(m, 4) : model_below(m, SCHED_WEIGHT_MAX + 1);
    m->stats->weighed += backlog_of(m, p) > 0;
    sched_peer_weigh(&m->sched, &p->peer, p->weight);
}

static void give_object_event(struct model *m)
{
    struct model_thing *t = any_object(m);
    switch (model_below(m, 4)) {
    case 0:
        if (t->leaving)
            return;
        t->pins++;
        t->own_pins++;
        sched_pin(&t->object);
        return;
    case 1:
    case 2:
        if (t->own_pins == 0)
            return;
        t->pins--;
        t->own_pins--;
        sched_unpin(&m->sched, &t->object);
        return;
    default:
        t->leaving = true;
        model_give(m, (struct sched_event){.kind = SCHED_UNREGISTER, .object = &t->object});
    }
}

static void put_half_back(struct model *m, struct model_batch *b)
{
    uint32_t keep = b->n / 2;
    m->plan_jobs_max = keep ? keep : 1;
    m->plan_alone = keep == 0;
    for (; b->n > keep; b->n--) {
        struct model_job *j = b->jobs[b->n - 1];
        j->taken--;
        j->peer->start[j->job.priority] = b->start[b->n - 1];
        if (j->state == M_STAGED)
            j->state = M_QUEUED;
    }
    b->state = keep ? M_FORMED : M_FREE;
    m->stats->parted += keep > 0;
    m->stats->alone += keep == 0;
}

void model_plan_answer(struct model *m, int slot, uint32_t generation, enum mla_status code)
{
    struct model_batch *b = &m->batches[slot];
    if (b->state == M_PLANNING && b->generation == generation) {
        if (code == MLA_OK) {
            b->state = M_PLANNED;
            m->plan_jobs_max = m->plan_jobs_max * 2 < m->config.batch_jobs_max ? m->plan_jobs_max * 2 : 0;
        } else if (b->n == 1 && model_running(m) == 0) { /* stopping takes it out */
            model_stop(m, b->jobs[0], code);
        } else {
            put_half_back(m, b);
        }
    } else {
        m->stats->stale_plans++;
    }
    model_give(m, (struct sched_event){.kind = SCHED_PLANNED,
                                       .batch = &m->sched.batches[slot],
                                       .generation = generation,
                                       .code = code,
                                       .predicted_ns = model_below(m, 3) ? model_below(m, 100) : 0});
}

void model_batch_done(struct model *m, int slot, enum mla_status code)
{
    struct model_batch *b = &m->batches[slot];
    if (b->state == M_LAUNCHED) {
        while (b->n) {
            struct model_job *j = b->jobs[0];
            leave_batch(m, b, j);
            j->running--;
            if (code && j->stopped == MLA_OK)
                j->stopped = code;
            for (int i = 0; code && i < SCHED_BATCHES; i++)
                if (m->batches[i].state != M_LAUNCHED)
                    leave_batch(m, &m->batches[i], j);
            if (j->running == 0 && (j->stopped || j->launched == model_parts(j)))
                model_due(m, j, j->stopped ? j->stopped : j->cancelled ? MLA_CANCELLED : j->late ? MLA_LATE : MLA_OK);
        }
        b->state = M_FREE;
    }
    model_give(m, (struct sched_event){.kind = SCHED_BATCH_DONE, .batch = &m->sched.batches[slot], .code = code});
}

static void give_timer(struct model *m)
{
    if (m->armed > m->now && model_below(m, 8))
        return; /* rarely too early */
    m->armed = 0;
    model_give(m, (struct sched_event){.kind = SCHED_TIMER});
}

static void give_drain(struct model *m)
{
    m->draining = true;
    m->drain_deadline = model_below(m, 2) ? m->now + model_below(m, 300) : 0;
    uint64_t deadline_ns = m->drain_deadline;
    expire(m);
    model_give(m, (struct sched_event){.kind = SCHED_DRAIN, .deadline_ns = deadline_ns});
}

static void give_fatal(struct model *m)
{
    m->fatal = true;
    for (int b = 0; b < SCHED_BATCHES; b++)
        if (m->batches[b].state == M_LAUNCHED)
            m->batches[b].state = M_FREE, m->batches[b].n = 0;
    for (size_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i]->state <= M_RUNNING)
            model_due(m, m->jobs[i], MLA_DEVICE_LOST);
    model_give(m, (struct sched_event){.kind = SCHED_FATAL});
}

void model_random_event(struct model *m)
{
    m->now += model_below(m, 3) ? model_below(m, 4) : 0;
    expire(m);
    uint64_t before = m->stats->events;
    uint32_t dice = model_below(m, 64);
    int slot = (int)model_below(m, SCHED_BATCHES);
    struct model_job *j = any_job(m);
    if (dice < 20)
        give_submit(m);
    else if (dice < 28)
        model_plan_answer(m, slot, m->batches[slot].generation - (model_below(m, 8) == 0),
                          model_below(m, 12) ? MLA_OK : MLA_OUT_OF_MEMORY);
    else if (dice < 38)
        model_batch_done(m, slot, model_below(m, 12) ? MLA_OK : MLA_INTERNAL);
    else if (dice < 40)
        model_give(m, (struct sched_event){.kind = SCHED_SUBMITTED, .batch = &m->sched.batches[slot]});
    else if (dice < 46)
        give_timer(m);
    else if (dice < 52)
        give_object_event(m);
    else if (dice < 58 && j)
        give_ready(m, j);
    else if (dice < 61 && j)
        give_cancel(m, j);
    else if (dice == 61 && model_below(m, 4) == 0)
        give_peer_gone(m);
    else if (dice == 62 && model_below(m, 8) == 0)
        pick_limits(m), sched_configure(&m->sched, &m->config);
    else if (dice == 62)
        weigh(m);
    else if (dice == 63 && m->source.endings && model_below(m, 16) == 0)
        model_below(m, 3) ? give_drain(m) : give_fatal(m);
    if (m->stats->events == before) /* no event of that kind is possible now, but time has gone on */
        model_give(m, (struct sched_event){.kind = SCHED_SUBMITTED, .batch = &m->sched.batches[slot]});
}

bool model_step(struct model *m)
{
    if (m->exited)
        return false;
    model_random_event(m);
    while (model_below(m, 12) == 0)
        model_random_event(m);
    model_carry_out(m);
    return !m->exited;
}

/* Ends what is in flight as an application would that has no more clients. */
static void wind_down(struct model *m)
{
    m->quiet = true;
    for (size_t i = 0; i < m->n_jobs; i++)
        if (m->jobs[i]->state != M_DUE)
            give_cancel(m, m->jobs[i]);
    model_carry_out(m);
    for (int b = 0; b < SCHED_BATCHES && !m->exited; b++) {
        model_batch_done(m, b, MLA_OK);
        model_carry_out(m);
    }
    if (!m->exited) {
        MUST(m, m->n_jobs == 0, "a job left although all work has ended");
        m->draining = true;
        model_give(m, (struct sched_event){.kind = SCHED_DRAIN});
        model_carry_out(m);
    }
    MUST(m, m->exited, "no EXIT after a drain without work");
}

void model_free(struct model *m)
{
    if (!m->exited)
        wind_down(m);
    for (size_t i = 0; i < m->n_jobs; i++) {
        MUST(m, m->drain_expired && m->jobs[i]->state == M_RUNNING, "a job left unanswered");
        free(m->jobs[i]);
    }
    for (int i = 0; i < MODEL_OBJECTS; i++) {
        struct model_thing *t = m->objects[i];
        MUST(m, !t || m->n_jobs > 0 || t->object.pins == t->own_pins, "a pin that no job holds");
        free(t);
    }
    for (int i = 0; i < MODEL_PEERS; i++)
        free(m->peers[i]);
    struct sched_action a;
    sched_step(&m->sched, &(struct sched_event){.kind = SCHED_TIMER, .now_ns = UINT64_MAX});
    MUST(m, !sched_next(&m->sched, &a), "an action after EXIT");
    free(m);
}
