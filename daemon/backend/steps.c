#include "daemon/backend/steps_internal.h"

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

/* ---- a step's life ---- */

void be_steps_begin(struct be_steps *s, struct be_request *request)
{
    struct be_step *step = request->step;
    be_step_clear(step);
    memset(&step->own, 0, sizeof step->own);
    step->own.request = request;
    list_push_back(&s->active, &step->own.node);
    s->n++;
    be_steps_expect(s, &step, 1);
}

static void finish(struct be_steps *s, struct be_step *step, enum mla_status code)
{
    list_del(&step->own.node);
    be_steps_forget(s, step);
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

static bool is_ready(const struct be_step *step)
{
    return step->own.ready && step->own.end_code == MLA_OK;
}

static uint64_t turn_of(const struct be_steps *s, const struct be_step *step)
{
    return be_fair_start(&s->fair, step->flow);
}

/* Whose turn it is; of those alike, who has been ready for longest. */
static struct be_step *next_ready(const struct be_steps *s)
{
    struct be_step *first = NULL;
    list_for_each (node, &s->active) {
        struct be_step *step = step_at(node);
        if (!is_ready(step))
            continue;
        uint64_t turn = turn_of(s, step), best = first ? turn_of(s, first) : UINT64_MAX;
        if (!first || turn < best || (turn == best && step->own.ready_ns < first->own.ready_ns))
            first = step;
    }
    return first;
}

static bool waits_for_others(const struct be_steps *s, const struct be_step *first, uint64_t now,
                             const struct be_steps_others *others)
{
    if (!others || (!others->waiting && !others->under_way))
        return false;
    return turn_of(s, first) > be_fair_start(&s->fair, &s->fair.batches) &&
           (others->waiting || now + BE_STEPS_LEAD_NS < others->free_ns);
}

bool be_steps_go_first(const struct be_steps *s, uint64_t now, const struct be_steps_others *others)
{
    const struct be_step *first = s->n_ready != 0 && others->waiting ? next_ready(s) : NULL;
    return first && now + BE_STEPS_LEAD_NS < others->free_ns &&
           turn_of(s, first) <= be_fair_start(&s->fair, &s->fair.batches);
}

/* Each pays for its part of the launch, by load. */
static void take_turn(struct be_steps *s, const struct be_steps_batch *b)
{
    const struct be_steps_set *set = &b->set;
    uint64_t start = UINT64_MAX;
    double loads = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        uint64_t turn = turn_of(s, set->members[i]);
        start = turn < start ? turn : start;
        loads += (double)set->members[i]->part_load_ns;
    }
    be_fair_turn(&s->fair, start);
    for (uint32_t i = 0; i < set->n; i++) {
        const struct be_step *step = set->members[i];
        double part = loads > 0 ? (double)step->part_load_ns / loads : 1.0 / set->n;
        be_fair_charge(&s->fair, step->flow, step->weight, (uint64_t)(part * (double)b->plan->plan.predicted_ns));
    }
}

void be_steps_others_begin(struct be_steps *s, const struct be_batch *batch)
{
    be_fair_turn(&s->fair, be_fair_start(&s->fair, &s->fair.batches));
    be_fair_charge(&s->fair, &s->fair.batches, batch->weight, batch->plan->predicted_ns);
}

/* In order of their beginning, so that the same steps meet in the same order. The first is one of them. */
static void gather(const struct be_steps *s, const struct be_step *first, struct be_steps_set *set)
{
    bool has_first = false;
    uint64_t most = first->launch_max_ns != 0 ? first->launch_max_ns : UINT64_MAX, load = first->part_load_ns;
    set->n = 0;
    list_for_each (node, &s->active) {
        struct be_step *step = step_at(node);
        if (!is_ready(step) || step->compat != first->compat ||
            set->n + !has_first + (step != first) > BE_STEPS_JOIN_MAX)
            continue;
        if (step != first && (load > most || step->part_load_ns > most - load))
            continue;
        load += step != first ? step->part_load_ns : 0;
        has_first |= step == first;
        set->members[set->n] = step;
        set->parts[set->n] = step->own.part;
        set->layers[set->n++] = step->own.next;
    }
}

static enum mla_status code_of(int rc)
{
    return rc == -ENOMEM || rc == -ENOSPC ? MLA_OUT_OF_MEMORY : rc == -EOVERFLOW ? MLA_TOO_LARGE : MLA_INTERNAL;
}

/* Those that are ready together, or, when they have no plan together, the first alone. */
static struct be_steps_batch *form_ready(struct be_steps *s, struct be_step *first)
{
    struct be_steps_set *set = &s->ready_set;
    int why = 0;
    gather(s, first, set);
    struct be_steps_batch *b = be_steps_find_prepared(s, set);
    if (b)
        return b;
    b = be_steps_form(s, set, &why);
    if (!b && set->n > 1) {
        set->members[0] = first;
        set->parts[0] = first->own.part;
        set->layers[0] = first->own.next;
        set->n = 1;
        b = be_steps_form(s, set, &why);
    }
    if (!b)
        stop(s, first, code_of(why));
    return b;
}

/* To the next part, which waits in line like any other, or to the next layer, which waits for its word. */
static void go_on(struct be_steps *s, struct be_step *step, bool shared, uint64_t now)
{
    step->queue_ns += now - step->own.ready_ns;
    step->own.ready_ns = now;
    step->own.launched++;
    if (!be_step_last_part(step, step->own.part)) {
        step->own.part++;
        return;
    }
    step->layers_shared += shared;
    step->own.part = 0;
    step->own.next++;
    step->own.ready = false;
    s->n_ready--;
}

struct be_request *be_steps_launch(struct be_steps *s, uint64_t now, const struct be_steps_others *others)
{
    struct be_step *first = may_launch(s, now) ? next_ready(s) : NULL;
    struct be_steps_batch *b = first && !waits_for_others(s, first, now, others) ? form_ready(s, first) : NULL;
    if (!b)
        return NULL;
    b->state = BE_STEPS_UNDER_WAY;
    take_turn(s, b);
    for (uint32_t i = 0; i < b->set.n; i++)
        go_on(s, b->set.members[i], b->set.n > 1, now);
    s->n_launches++;
    s->expected_end_ns = (s->expected_end_ns > now ? s->expected_end_ns : now) + b->plan->plan.predicted_ns;
    be_steps_expect(s, b->set.members, b->set.n);
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

static void add_work(struct be_step_work *to, const struct be_step_work *more, bool ahead, uint64_t took_ns)
{
    to->launches += more->launches;
    to->ahead += ahead;
    to->run_ns += took_ns;
    to->predicted_ns += more->predicted_ns;
    to->tiles += more->tiles;
    to->items += more->items;
    to->reduces += more->reduces;
    to->useful_rows += more->useful_rows;
    to->row_slots += more->row_slots;
    to->item_units += more->item_units;
    to->unit_slots += more->unit_slots;
    to->waves += more->waves;
    to->pages += more->pages;
}

void be_steps_launch_ended(struct be_steps *s, const struct be_request *request)
{
    uint32_t index;
    struct be_steps_batch *b = be_steps_batch_of(s, request, &index);
    uint64_t took = b->batch.ended_ns - b->batch.started_ns;
    add_work(&b->set.members[0]->work, &b->plan->work, b->batch.ahead, took);
    be_steps_drop(b);
    s->n_launches--;
    for (uint32_t i = 0; i < b->set.n; i++) {
        struct be_step *step = b->set.members[i];
        step->run_ns += took;
        step->layers_done += be_step_last_part(step, b->set.parts[i]);
        step->own.launched--;
        if (step->own.launched > 0)
            continue;
        if (all_launched(step))
            finish(s, step, overdue(step, b->batch.ended_ns) ? MLA_LATE : MLA_OK);
        else if (step->own.end_code != MLA_OK)
            finish(s, step, step->own.end_code);
    }
}
