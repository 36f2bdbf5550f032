/* Whose job is next: self-clocked fair queueing over flows (sched.h, "Order"). The list of flows is sorted; a flow that
 * has been served goes to where its new tag belongs, which is mostly near the end. */
#include "daemon/sched/internal.h"

#define TAG_SCALE  64u                 /* the weight of the highest priority: tags stay whole numbers */
#define LOAD_LIMIT (UINT64_C(1) << 40) /* 18 minutes; keeps tags from ever wrapping */

static uint32_t priority_of(const struct sched_job *job)
{
    return job->priority < SCHED_PRIORITIES ? job->priority : SCHED_PRIORITIES - 1;
}

struct sched_flow *sched_flow_of(const struct sched_job *job)
{
    return &job->peer->flows[priority_of(job)];
}

static uint64_t charge(const struct sched_job *job)
{
    uint64_t load = job->load_ns < LOAD_LIMIT ? job->load_ns : LOAD_LIMIT;
    uint64_t ns = load * TAG_SCALE / (sched_weight(job->peer->weight) << 2 * priority_of(job));
    return ns > 0 ? ns : 1; /* so that each service moves its flow on */
}

static struct sched_job *head(const struct sched_flow *flow)
{
    return sched_job_first(&flow->queue);
}

static bool before(const struct sched_flow *a, const struct sched_flow *b)
{
    return a->finish != b->finish ? a->finish < b->finish : head(a)->ready_order < head(b)->ready_order;
}

/* To where the flow's tag belongs; out of the list when it has no job. */
static void place(struct sched *s, struct sched_flow *flow)
{
    list_del(&flow->in_flows);
    if (list_empty(&flow->queue))
        return;
    flow->finish = flow->start + charge(head(flow));
    struct list *at = &s->flows; /* in front of this */
    while (at->prev != &s->flows && before(flow, sched_flow_at(at->prev)))
        at = at->prev;
    list_insert_before(at, &flow->in_flows);
}

void sched_flow_push(struct sched *s, struct sched_job *job)
{
    struct sched_flow *flow = sched_flow_of(job);
    if (!flow->queue.next) {
        list_init(&flow->queue);
        list_init(&flow->in_flows);
    }
    if (list_empty(&s->flows))
        s->gather_since = s->now_ns;
    job->queued = true;
    job->ready_order = ++s->n_ready;
    s->n_parts++;
    bool idle = list_empty(&flow->queue);
    list_push_back(&flow->queue, &job->in_queue);
    if (idle) {
        flow->start = flow->start > s->virtual_ns ? flow->start : s->virtual_ns;
        place(s, flow);
    }
}

static void take_out(struct sched *s, struct sched_job *job)
{
    struct sched_flow *flow = sched_flow_of(job);
    if (flow->scanned == &job->in_queue)
        flow->scanned = job->in_queue.next;
    list_del(&job->in_queue);
    job->queued = false;
    s->n_parts--;
}

void sched_flow_remove(struct sched *s, struct sched_job *job)
{
    if (!job->queued)
        return;
    struct sched_flow *flow = sched_flow_of(job);
    bool first = head(flow) == job;
    take_out(s, job);
    if (first)
        place(s, flow);
}

void sched_flow_serve(struct sched *s, struct sched_job *job, bool in_order)
{
    struct sched_flow *flow = sched_flow_of(job);
    uint64_t tag = flow->start + charge(job);
    if (in_order && tag > s->virtual_ns)
        s->virtual_ns = tag;
    flow->start = tag;
    if (++job->parts_taken == sched_job_parts(job))
        take_out(s, job);
    place(s, flow);
}

void sched_flow_put_back(struct sched *s, struct sched_job *job, uint64_t start)
{
    struct sched_flow *flow = sched_flow_of(job);
    job->parts_taken--;
    if (!job->queued) {
        struct list *at = flow->queue.next; /* in front of this */
        while (at != &flow->queue && list_entry(at, struct sched_job, in_queue)->ready_order < job->ready_order)
            at = at->next;
        list_insert_before(at, &job->in_queue);
        job->queued = true;
        s->n_parts++;
    }
    flow->start = start;
    place(s, flow);
}

struct sched_job *sched_flow_look(const struct sched *s, struct sched_flow *flow, uint64_t compat)
{
    if (flow->scan != s->n_formed) {
        flow->scan = s->n_formed;
        flow->scanned = flow->queue.next;
    }
    for (; flow->scanned != &flow->queue; flow->scanned = flow->scanned->next) {
        struct sched_job *job = list_entry(flow->scanned, struct sched_job, in_queue);
        if (job->compat == compat)
            return job;
    }
    return NULL;
}

void sched_flow_looked(struct sched_flow *flow, struct sched_job *job)
{
    flow->scanned = job->in_queue.next;
}

void sched_peer_weigh(struct sched *s, struct sched_peer *peer, uint32_t weight)
{
    sched_backlog_weigh(s, peer, weight);
    peer->weight = weight;
    for (uint32_t i = 0; i < SCHED_PRIORITIES; i++)
        if (peer->flows[i].queue.next && !list_empty(&peer->flows[i].queue))
            place(s, &peer->flows[i]);
}
