#include "kernels/plan/internal.h"

#include <string.h>

/* Items mostly end when or after all others do, and units are taken from the other end: so slots are kept in order,
 * which wander through twice the room that they need, and a place is looked for from the end. That mispredicts one
 * branch, where halving mispredicts one in two; a heap takes out and puts back each unit of a tile by itself. */

void plan_timeline_init(struct plan_timeline *t, uint32_t units)
{
    t->room = units;
    t->first = t->slots;
    t->first[0] = (struct plan_slot){.free_ns = 0, .units = units};
    t->n = 1;
}

void plan_timeline_copy(struct plan_timeline *to, const struct plan_timeline *from)
{
    to->room = from->room;
    to->first = to->slots;
    to->n = from->n;
    memcpy(to->first, from->first, from->n * sizeof(*to->first));
}

/* A gap of one slot in front of `at`, where it is left. */
static struct plan_slot *open_gap(struct plan_timeline *t, struct plan_slot *at)
{
    size_t before = (size_t)(at - t->first), behind = t->n - before;
    t->n++;
    if (before < behind && t->first > t->slots) {
        t->first--;
        memmove(t->first, t->first + 1, before * sizeof(*at));
        return at - 1;
    }
    if (at + behind == t->slots + PLAN_TIMELINE_SLOTS(t->room)) {
        memmove(t->slots, t->first, (before + behind) * sizeof(*at));
        t->first = t->slots;
        at = t->first + before;
    }
    if (behind > 0)
        memmove(at + 1, at, behind * sizeof(*at));
    return at;
}

/* Units are free together however they became so: slots of one time are one. */
static void put(struct plan_timeline *t, uint64_t free_ns, uint32_t units)
{
    struct plan_slot *end = t->first + t->n, *at = end;
    while (at > t->first && at[-1].free_ns >= free_ns)
        at--;
    if (at < end && at->free_ns == free_ns)
        at->units += units;
    else
        *open_gap(t, at) = (struct plan_slot){.free_ns = free_ns, .units = units};
}

static void drop_first(struct plan_timeline *t)
{
    t->first++;
    t->n--;
}

uint64_t plan_timeline_end(const struct plan_timeline *t)
{
    return t->first[t->n - 1].free_ns;
}

uint64_t plan_timeline_start(const struct plan_timeline *t, uint32_t units)
{
    const struct plan_slot *last = t->first;
    for (; last->units < units; last++)
        units -= last->units;
    return last->free_ns;
}

/* An item with more units than are free first. */
static void take_of_several(struct plan_timeline *t, uint32_t units, uint64_t duration_ns)
{
    struct plan_slot taken[PLAN_TILE_UNITS_MAX];
    uint32_t n = 0;
    for (; units > 0; n++) {
        taken[n] = *t->first;
        if (taken[n].units > units) {
            taken[n].units = units;
            t->first->units -= units;
        } else {
            drop_first(t);
        }
        units -= taken[n].units;
    }
    for (uint32_t i = 0; i < n; i++)
        put(t, taken[i].free_ns + duration_ns, taken[i].units);
}

void plan_timeline_take(struct plan_timeline *t, uint32_t units, uint64_t duration_ns)
{
    struct plan_slot *first = t->first;
    if (first->units < units) {
        take_of_several(t, units, duration_ns);
        return;
    }
    uint64_t end_ns = first->free_ns + duration_ns;
    if (first->units == units)
        drop_first(t);
    else
        first->units -= units;
    put(t, end_ns, units);
}

uint64_t plan_timeline_busy(const struct plan_timeline *t)
{
    uint64_t busy = 0;
    for (uint32_t i = 0; i < t->n; i++)
        busy += t->first[i].free_ns * t->first[i].units;
    return busy;
}
