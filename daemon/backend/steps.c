#include "daemon/backend/steps.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ABORT_DISTANCE (INT64_C(1) << 61) /* an abort value is 2^62 beyond; anything that far is one */

static struct be_step *step_at(struct list *node)
{
    return list_entry(node, struct be_step, own.node);
}

void be_steps_init(struct be_steps *s, const struct be_facts *facts, const struct backend *backend,
                   uint64_t (*scratch_bytes)(const struct backend *, const struct plan_request *),
                   void (*done)(void *, struct be_request *, enum mla_status), void *context)
{
    memset(s, 0, sizeof *s);
    s->facts = facts;
    s->backend = backend;
    s->scratch_bytes = scratch_bytes;
    s->done = done;
    s->context = context;
    list_init(&s->active);
}

void be_steps_free(struct be_steps *s)
{
    be_steps_plan_free(s);
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        free(s->batches[i].seqs);
    s->n = s->n_ready = 0;
}

/* ---- expected launches ---- */

static bool has_member(const struct be_steps_set *set, const struct be_step *step)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->members[i] == step)
            return true;
    return false;
}

static bool same_set(const struct be_steps_set *a, const struct be_steps_set *b)
{
    return a->n == b->n && memcmp(a->members, b->members, a->n * sizeof a->members[0]) == 0 &&
           memcmp(a->layers, b->layers, a->n * sizeof a->layers[0]) == 0;
}

static void forget_expected(struct be_steps *s, uint32_t i)
{
    s->n_expected--;
    memmove(&s->expected[i], &s->expected[i + 1], (s->n_expected - i) * sizeof s->expected[0]);
}

/* The next layers of these; the last of a step has none. */
static void expect(struct be_steps *s, struct be_step *const *members, uint32_t n)
{
    if (s->n_expected == BE_STEPS_EXPECTED)
        forget_expected(s, 0);
    struct be_steps_set *set = &s->expected[s->n_expected];
    set->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (members[i]->own.next == members[i]->n_layers)
            continue;
        set->members[set->n] = members[i];
        set->layers[set->n++] = members[i]->own.next;
    }
    s->n_expected += set->n != 0;
}

static void drop(struct be_steps_batch *b)
{
    b->plan->uses--;
    b->state = BE_STEPS_FREE;
    b->prepared = false;
}

/* The step is the caller's again: nothing may name it. */
static void forget(struct be_steps *s, const struct be_step *step)
{
    for (uint32_t i = s->n_expected; i-- > 0;)
        if (has_member(&s->expected[i], step))
            forget_expected(s, i);
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        if (s->batches[i].state == BE_STEPS_PREPARED && has_member(&s->batches[i].set, step))
            drop(&s->batches[i]);
}

/* Few are under way, so there is one. */
static struct be_steps_batch *take_batch(struct be_steps *s)
{
    struct be_steps_batch *oldest = NULL;
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++) {
        struct be_steps_batch *b = &s->batches[i];
        if (b->state == BE_STEPS_FREE)
            return b;
        if (b->state == BE_STEPS_PREPARED && (!oldest || b->prepared_at < oldest->prepared_at))
            oldest = b;
    }
    drop(oldest);
    return oldest;
}

static struct be_steps_batch *find_prepared(struct be_steps *s, const struct be_steps_set *set)
{
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        if (s->batches[i].state == BE_STEPS_PREPARED && same_set(&s->batches[i].set, set))
            return &s->batches[i];
    return NULL;
}

/* ---- a step's life ---- */

void be_steps_begin(struct be_steps *s, struct be_request *request)
{
    struct be_step *step = request->step;
    step->layers_done = step->layers_shared = 0;
    step->first_ready_ns = step->queue_ns = step->run_ns = 0;
    memset(&step->own, 0, sizeof step->own);
    step->own.request = request;
    list_push_back(&s->active, &step->own.node);
    s->n++;
    expect(s, &step, 1);
}

static void finish(struct be_steps *s, struct be_step *step, enum mla_status code)
{
    list_del(&step->own.node);
    forget(s, step);
    s->n--;
    s->n_ready -= step->own.ready;
    s->done(s->context, step->own.request, code);
}

static bool all_launched(const struct be_step *step)
{
    return step->own.next == step->n_layers;
}

/* No further layer of it; what is under way ends first. A step whose last layer is launched has all it was to have. */
static void stop(struct be_steps *s, struct be_step *step, enum mla_status code)
{
    if (all_launched(step))
        return;
    if (step->own.launched)
        step->own.end_code = code;
    else
        finish(s, step, code);
}

void be_steps_end(struct be_steps *s, const struct be_request *request)
{
    list_for_each_safe (node, &s->active) {
        struct be_step *step = step_at(node);
        if (step->own.request != request->step_end.step)
            continue;
        uint64_t at = request->step_end.at_ns;
        if (at == 0) {
            stop(s, step, request->step_end.code);
        } else if (step->own.end_at_ns == 0 || at < step->own.end_at_ns) {
            step->own.end_at_ns = at;
            step->own.end_at_code = request->step_end.code;
        }
        return;
    }
}

/* ---- words ---- */

static void look_at_word(struct be_steps *s, struct be_step *step, uint64_t now)
{
    const struct be_layer *layer = &step->layers[step->own.next];
    int64_t distance = (int64_t)(__atomic_load_n(layer->ready, __ATOMIC_ACQUIRE) - layer->ready_value);
    if (distance < 0)
        return;
    if (distance >= ABORT_DISTANCE) {
        stop(s, step, MLA_READY_ABORTED);
        return;
    }
    /* The stream is past the wait for the layer before it, or for the last one of the step before: nobody looks at that
     * word until it is written again. */
    const struct be_layer *before = &step->layers[(step->own.next + step->n_layers - 1) % step->n_layers];
    __atomic_store_n(layer->ready, layer->ready_value - 1, __ATOMIC_RELAXED);
    __atomic_store_n(before->done, before->done_value - 1, __ATOMIC_RELEASE);
    step->own.ready = true;
    step->own.ready_ns = now;
    s->n_ready++;
    if (step->first_ready_ns == 0)
        step->first_ready_ns = now;
}

static bool overdue(const struct be_step *step, uint64_t now)
{
    return step->deadline_ns != 0 && now >= step->deadline_ns;
}

bool be_steps_poll(struct be_steps *s, uint64_t now)
{
    uint32_t n = s->n, n_ready = s->n_ready;
    list_for_each_safe (node, &s->active) {
        struct be_step *step = step_at(node);
        if (all_launched(step) || step->own.end_code != MLA_OK)
            continue;
        if (overdue(step, now))
            stop(s, step, MLA_TIMED_OUT);
        else if (step->own.end_at_ns != 0 && now >= step->own.end_at_ns)
            stop(s, step, step->own.end_at_code);
        else if (!step->own.ready)
            look_at_word(s, step, now);
    }
    return s->n != n || s->n_ready != n_ready;
}

/* ---- launches ---- */

static bool may_launch(const struct be_steps *s, uint64_t now)
{
    if (s->n_ready == 0 || s->n_launches == BE_STEPS_LAUNCHES)
        return false;
    return s->n_launches == 0 || now + BE_STEPS_LEAD_NS >= s->expected_end_ns;
}

/* A step has one layer under way at a time: the records of its plan are in use until that has ended only when the next
 * one goes out before the thread has seen the end, which is why a batch has copies. */
static bool is_ready(const struct be_step *step)
{
    return step->own.ready && step->own.end_code == MLA_OK;
}

static struct be_step *longest_ready(const struct be_steps *s)
{
    struct be_step *first = NULL;
    list_for_each (node, &s->active) {
        struct be_step *step = step_at(node);
        if (is_ready(step) && (!first || step->own.ready_ns < first->own.ready_ns))
            first = step;
    }
    return first;
}

/* In order of their beginning, so that the same steps meet in the same order. */
static void gather(const struct be_steps *s, const struct be_step *first, struct be_steps_set *set)
{
    bool has_first = false;
    set->n = 0;
    list_for_each (node, &s->active) {
        struct be_step *step = step_at(node);
        if (!is_ready(step) || step->compat != first->compat ||
            set->n + !has_first + (step != first) > BE_STEPS_JOIN_MAX)
            continue;
        has_first |= step == first;
        set->members[set->n] = step;
        set->layers[set->n++] = step->own.next;
    }
}

static bool write_records(struct be_steps_batch *b)
{
    const struct be_steps_set *set = &b->set;
    size_t n_seqs = 0;
    for (uint32_t i = 0; i < set->n; i++)
        n_seqs += set->members[i]->plan.n_seqs;
    if (n_seqs > b->seqs_cap) {
        struct mla_abi_seq *grown = realloc(b->seqs, (n_seqs + n_seqs / 2) * sizeof *grown);
        if (!grown)
            return false;
        b->seqs = grown;
        b->seqs_cap = n_seqs + n_seqs / 2;
    }
    uint32_t at = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct be_step *step = set->members[i];
        const struct be_layer *layer = &step->layers[set->layers[i]];
        b->jobs[i] = layer->job;
        b->jobs[i].first_seq = at;
        b->done[i] = (struct be_done_word){layer->done, layer->done_value};
        for (uint32_t k = 0; k < step->plan.n_seqs; k++) {
            b->seqs[at] = step->seqs[k];
            b->seqs[at++].job = i;
        }
    }
    b->batch = (struct be_batch){.plan = &b->plan->plan,
                                 .jobs = b->jobs,
                                 .seqs = b->seqs,
                                 .n_jobs = set->n,
                                 .n_seqs = at,
                                 .done = b->done,
                                 .n_done = set->n};
    b->request = (struct be_request){.op = BE_LAUNCH, .batch = &b->batch};
    return true;
}

/* A record with plan and jobs for the set; NULL with why. */
static struct be_steps_batch *form(struct be_steps *s, const struct be_steps_set *set, int *why)
{
    struct be_steps_batch *b = take_batch(s);
    b->plan = be_steps_plan(s, set->members, set->n, why);
    if (!b->plan)
        return NULL;
    b->set = *set;
    b->prepared = false;
    if (!write_records(b)) {
        *why = -ENOMEM;
        return NULL;
    }
    b->plan->uses++;
    return b;
}

static enum mla_status code_of(int rc)
{
    return rc == -ENOMEM || rc == -ENOSPC ? MLA_OUT_OF_MEMORY : rc == -EOVERFLOW ? MLA_TOO_LARGE : MLA_INTERNAL;
}

static bool still_expected(const struct be_steps_set *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->members[i]->own.next != set->layers[i])
            return false;
    return true;
}

struct be_steps_batch *be_steps_prepare(struct be_steps *s)
{
    int ignored;
    if (s->n_expected == 0)
        return NULL;
    const struct be_steps_set *set = &s->expected[0];
    bool wanted = still_expected(set) && !find_prepared(s, set);
    struct be_steps_batch *b = wanted ? form(s, set, &ignored) : NULL;
    forget_expected(s, 0);
    if (!b)
        return NULL;
    b->state = BE_STEPS_PREPARED;
    b->prepared = true;
    b->prepared_at = ++s->n_prepared;
    return b;
}

/* Those that are ready together, or, when they have no plan together, the first alone. */
static struct be_steps_batch *form_ready(struct be_steps *s)
{
    struct be_step *first = longest_ready(s);
    struct be_steps_set *set = &s->ready_set;
    int why = 0;
    if (!first)
        return NULL;
    gather(s, first, set);
    struct be_steps_batch *b = find_prepared(s, set);
    if (b)
        return b;
    b = form(s, set, &why);
    if (!b && set->n > 1) {
        set->members[0] = first;
        set->layers[0] = first->own.next;
        set->n = 1;
        b = form(s, set, &why);
    }
    if (!b)
        stop(s, first, code_of(why));
    return b;
}

struct be_request *be_steps_launch(struct be_steps *s, uint64_t now)
{
    struct be_steps_batch *b = may_launch(s, now) ? form_ready(s) : NULL;
    if (!b)
        return NULL;
    b->state = BE_STEPS_UNDER_WAY;
    for (uint32_t i = 0; i < b->set.n; i++) {
        struct be_step *step = b->set.members[i];
        step->queue_ns += now - step->own.ready_ns;
        step->layers_shared += b->set.n > 1;
        step->own.ready = false;
        step->own.launched++;
        step->own.next++;
    }
    s->n_ready -= b->set.n;
    s->n_launches++;
    s->expected_end_ns = (s->expected_end_ns > now ? s->expected_end_ns : now) + b->plan->plan.predicted_ns;
    expect(s, b->set.members, b->set.n);
    return &b->request;
}

bool be_steps_own(const struct be_steps *s, const struct be_request *request)
{
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        if (request == &s->batches[i].request)
            return true;
    return false;
}

struct be_steps_batch *be_steps_batch_of(struct be_steps *s, const struct be_request *request, uint32_t *index)
{
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++) {
        if (request != &s->batches[i].request)
            continue;
        *index = i;
        return &s->batches[i];
    }
    return NULL;
}

void be_steps_launch_ended(struct be_steps *s, const struct be_request *request)
{
    uint32_t index;
    struct be_steps_batch *b = be_steps_batch_of(s, request, &index);
    uint64_t took = b->batch.ended_ns - b->batch.started_ns;
    drop(b);
    s->n_launches--;
    for (uint32_t i = 0; i < b->set.n; i++) {
        struct be_step *step = b->set.members[i];
        step->run_ns += took;
        step->layers_done++;
        step->own.launched--;
        if (step->own.launched > 0)
            continue;
        if (all_launched(step))
            finish(s, step, overdue(step, b->batch.ended_ns) ? MLA_LATE : MLA_OK);
        else if (step->own.end_code != MLA_OK)
            finish(s, step, step->own.end_code);
    }
}
