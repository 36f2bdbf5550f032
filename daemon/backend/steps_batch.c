/* Launches of steps: the records of one, and which are expected next. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/steps_internal.h"

#define SEQS_LEAST 64u /* that a record has room for */

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
           memcmp(a->layers, b->layers, a->n * sizeof a->layers[0]) == 0 &&
           memcmp(a->parts, b->parts, a->n * sizeof a->parts[0]) == 0;
}

static void forget_expected(struct be_steps *s, uint32_t i)
{
    s->n_expected--;
    memmove(&s->expected[i], &s->expected[i + 1], (s->n_expected - i) * sizeof s->expected[0]);
}

/* The next layers of these; the last of a step has none. */
void be_steps_expect(struct be_steps *s, struct be_step *const *members, uint32_t n)
{
    if (s->n_expected == BE_STEPS_EXPECTED)
        forget_expected(s, 0);
    struct be_steps_set *set = &s->expected[s->n_expected];
    set->n = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (members[i]->own.next == members[i]->n_layers)
            continue;
        set->members[set->n] = members[i];
        set->parts[set->n] = members[i]->own.part;
        set->layers[set->n++] = members[i]->own.next;
    }
    s->n_expected += set->n != 0;
}

void be_steps_drop(struct be_steps_batch *b)
{
    b->plan->uses--;
    b->state = BE_STEPS_FREE;
    b->prepared = false;
}

/* The step is the caller's again: nothing may name it. */
void be_steps_forget(struct be_steps *s, const struct be_step *step)
{
    for (uint32_t i = s->n_expected; i-- > 0;)
        if (has_member(&s->expected[i], step))
            forget_expected(s, i);
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        if (s->batches[i].state == BE_STEPS_PREPARED && has_member(&s->batches[i].set, step))
            be_steps_drop(&s->batches[i]);
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
    be_steps_drop(oldest);
    return oldest;
}

struct be_steps_batch *be_steps_find_prepared(struct be_steps *s, const struct be_steps_set *set)
{
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++)
        if (s->batches[i].state == BE_STEPS_PREPARED && same_set(&s->batches[i].set, set))
            return &s->batches[i];
    return NULL;
}

/* ---- records ---- */

/* For b, and for the other free ones with it, so that later launches of as many take no memory whichever is theirs. */
static bool make_room(struct be_steps *s, const struct be_steps_batch *b, size_t n_seqs)
{
    if (n_seqs <= b->seqs_cap)
        return true;
    for (uint32_t i = 0; i < BE_STEPS_BATCHES; i++) {
        struct be_steps_batch *free_one = &s->batches[i];
        if (free_one->state != BE_STEPS_FREE || free_one->seqs_cap >= n_seqs)
            continue;
        size_t cap = n_seqs < SEQS_LEAST ? SEQS_LEAST : n_seqs + n_seqs / 2;
        struct mla_abi_seq *grown = realloc(free_one->seqs, cap * sizeof *grown);
        if (!grown)
            continue;
        free_one->seqs = grown;
        free_one->seqs_cap = cap;
    }
    return n_seqs <= b->seqs_cap;
}

static bool write_records(struct be_steps *s, struct be_steps_batch *b)
{
    const struct be_steps_set *set = &b->set;
    size_t n_seqs = 0;
    for (uint32_t i = 0; i < set->n; i++)
        n_seqs += set->members[i]->plan.n_seqs;
    if (!make_room(s, b, n_seqs))
        return false;
    uint32_t at = 0, n_done = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct be_step *step = set->members[i];
        const struct be_layer *layer = &step->layers[set->layers[i]];
        b->jobs[i] = layer->job;
        b->jobs[i].first_seq = at;
        if (be_step_last_part(step, set->parts[i]))
            b->done[n_done++] = (struct be_done_word){layer->done, layer->done_value};
        for (uint32_t k = 0; k < step->plan.n_seqs; k++) {
            b->seqs[at] = step->seqs[k];
            b->seqs[at++].job = i;
        }
    }
    b->batch = (struct be_batch){.plan = &b->plan->plan,
                                 .plan_id = b->plan->id,
                                 .jobs = b->jobs,
                                 .seqs = b->seqs,
                                 .n_jobs = set->n,
                                 .n_seqs = at,
                                 .done = b->done,
                                 .n_done = n_done};
    b->request = (struct be_request){.op = BE_LAUNCH, .batch = &b->batch};
    return true;
}

/* A record with plan and jobs for the set; NULL with why. */
struct be_steps_batch *be_steps_form(struct be_steps *s, const struct be_steps_set *set, int *why)
{
    struct be_steps_batch *b = take_batch(s);
    b->plan = be_steps_plan(s, set, why);
    if (!b->plan)
        return NULL;
    b->set = *set;
    b->prepared = false;
    if (!write_records(s, b)) {
        *why = -ENOMEM;
        return NULL;
    }
    b->plan->uses++;
    return b;
}

static bool still_expected(const struct be_steps_set *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->members[i]->own.next != set->layers[i] || set->members[i]->own.part != set->parts[i])
            return false;
    return true;
}

struct be_steps_batch *be_steps_prepare(struct be_steps *s)
{
    struct be_steps_batch *b = NULL;
    int ignored;
    while (!b && s->n_expected != 0) {
        const struct be_steps_set *set = &s->expected[0];
        if (still_expected(set) && !be_steps_find_prepared(s, set))
            b = be_steps_form(s, set, &ignored);
        forget_expected(s, 0);
    }
    if (!b)
        return NULL;
    b->state = BE_STEPS_PREPARED;
    b->prepared = true;
    b->prepared_at = ++s->n_prepared;
    return b;
}
