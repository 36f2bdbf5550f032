/* Plans of steps that meet. Workers replay the same shapes over and over, so each set of them is planned once. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/steps_internal.h"

static bool grow(void *array, size_t *cap, size_t n, size_t size)
{
    if (*cap >= n && n > 0)
        return true;
    size_t want = n + n / 2 + 16;
    void *grown = realloc(*(void **)array, want * size);
    if (!grown)
        return false;
    *(void **)array = grown;
    *cap = want;
    return true;
}

/* The shapes, one behind the other. */
static bool describe(struct be_steps *s, const struct be_steps_set *set, struct plan_request *request)
{
    size_t n_seqs = 0;
    for (uint32_t i = 0; i < set->n; i++)
        n_seqs += set->members[i]->plan.n_seqs;
    if (n_seqs > UINT32_MAX || !grow(&s->seqs, &s->seqs_cap, n_seqs, sizeof *s->seqs))
        return false;
    *request = set->members[0]->plan;
    uint32_t at = 0;
    for (uint32_t i = 0; i < set->n; i++) {
        const struct be_step *step = set->members[i];
        const struct plan_request *one = &step->plan;
        s->jobs[i] = one->jobs[0];
        if (step->n_parts > 1)
            plan_part_rows(one, step->part_max_ns, set->parts[i], &s->jobs[i].skip_rows, &s->jobs[i].n_rows);
        s->jobs[i].first_seq = at;
        if (one->n_seqs > 0)
            memcpy(s->seqs + at, one->seqs, one->n_seqs * sizeof *s->seqs);
        at += one->n_seqs;
    }
    request->jobs = s->jobs;
    request->seqs = s->seqs;
    request->n_jobs = set->n;
    request->n_seqs = at;
    return true;
}

/* As be_workspace_for(). */
static int workspace_for(const struct be_steps *s, struct plan_request *request)
{
    uint64_t least = s->facts->scratch_bytes;
    uint64_t scratch = s->scratch_bytes ? s->scratch_bytes(s->backend, request) : 0;
    uint64_t more = scratch > least ? scratch - least : 0;
    if (more > s->facts->workspace_bytes)
        return -ENOSPC;
    request->workspace_bytes_max = s->facts->workspace_bytes - more;
    return 0;
}

static bool grow_plan(struct be_steps_plan *p, const struct plan_capacity *need)
{
    size_t tiles = p->cap.tiles, items = p->cap.items, reduces = p->cap.reduces;
    bool ok = grow(&p->plan.tiles, &tiles, need->tiles, sizeof *p->plan.tiles) &&
              grow(&p->plan.items, &items, need->items, sizeof *p->plan.items) &&
              grow(&p->plan.reduces, &reduces, need->reduces, sizeof *p->plan.reduces);
    p->cap.tiles = (uint32_t)tiles;
    p->cap.items = (uint32_t)items;
    p->cap.reduces = (uint32_t)reduces;
    return ok;
}

static struct be_step_work work_of(const struct plan *plan, uint32_t resident_units)
{
    struct be_step_work work = {.launches = 1,
                                .predicted_ns = plan->predicted_ns,
                                .tiles = plan->n_tiles,
                                .items = plan->n_items,
                                .reduces = plan->n_reduces,
                                .useful_rows = plan->useful_rows,
                                .row_slots = plan->row_slots,
                                .item_units = plan->item_units,
                                .unit_slots = (uint64_t)plan->waves * resident_units,
                                .waves = plan->waves};
    for (uint32_t i = 0; i < plan->n_items; i++)
        work.pages += plan->items[i].page_end - plan->items[i].page_begin;
    return work;
}

static int make(struct be_steps *s, struct be_steps_plan *p, const struct be_steps_set *set)
{
    struct plan_request request;
    if (!describe(s, set, &request))
        return -ENOMEM;
    if (s->fit)
        s->fit(s->backend, &request);
    int rc = plan_bound(&request, &p->plan.capacity);
    if (rc == 0)
        rc = workspace_for(s, &request);
    if (rc != 0)
        return rc;
    if (!grow_plan(p, &p->plan.capacity) || !grow(&s->scratch, &s->scratch_cap, p->plan.capacity.scratch_bytes, 1))
        return -ENOMEM;
    p->plan.scratch = s->scratch;
    rc = plan_build(&request, &p->plan);
    if (rc == 0)
        p->work = work_of(&p->plan, request.device.resident_units);
    return rc;
}

static bool is_of(const struct be_steps_plan *p, const struct be_steps_set *set)
{
    if (p->n != set->n)
        return false;
    for (uint32_t i = 0; i < set->n; i++)
        if (p->shapes[i] != set->members[i]->shape || p->parts[i] != set->parts[i])
            return false;
    return true;
}

struct be_steps_plan *be_steps_plan(struct be_steps *s, const struct be_steps_set *set, int *why)
{
    struct be_steps_plan *oldest = NULL;
    for (uint32_t i = 0; i < BE_STEPS_PLANS; i++) {
        struct be_steps_plan *p = &s->plans[i];
        if (is_of(p, set)) {
            p->used_at = ++s->n_planned;
            return p;
        }
        if (p->uses == 0 && (!oldest || p->used_at < oldest->used_at))
            oldest = p;
    }
    /* Two are in use at most, so there is one. */
    oldest->n = 0;
    *why = make(s, oldest, set);
    if (*why != 0)
        return NULL;
    for (uint32_t i = 0; i < set->n; i++) {
        oldest->shapes[i] = set->members[i]->shape;
        oldest->parts[i] = set->parts[i];
    }
    oldest->n = set->n;
    oldest->used_at = ++s->n_planned;
    oldest->id = BE_STEPS_PLAN_ID | s->n_planned;
    return oldest;
}

void be_steps_plan_free(struct be_steps *s)
{
    for (uint32_t i = 0; i < BE_STEPS_PLANS; i++) {
        free(s->plans[i].plan.tiles);
        free(s->plans[i].plan.items);
        free(s->plans[i].plan.reduces);
    }
    free(s->seqs);
    free(s->scratch);
    memset(s->plans, 0, sizeof s->plans);
    s->seqs = NULL;
    s->scratch = NULL;
    s->seqs_cap = s->scratch_cap = 0;
}
