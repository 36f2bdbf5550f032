#include "kernels/plan/internal.h"

/* Items mostly end when or after all others do, and units are taken from the other end: so slots are kept in order, in
 * a ring, where both cost little. A heap takes out and puts back each unit of a tile by itself. */

void plan_timeline_init(struct plan_timeline *t, uint32_t units)
{
    t->room = units;
    t->head = 0;
    t->slots[0] = (struct plan_slot){.free_ns = 0, .units = units};
    t->n = 1;
    t->end_ns = 0;
}

static struct plan_slot *at(const struct plan_timeline *t, uint32_t i)
{
    uint32_t k = t->head + i;
    return &t->slots[k < t->room ? k : k - t->room];
}

void plan_timeline_copy(struct plan_timeline *to, const struct plan_timeline *from)
{
    to->room = from->room;
    to->head = 0;
    to->n = from->n;
    to->end_ns = from->end_ns;
    for (uint32_t i = 0; i < from->n; i++)
        to->slots[i] = *at(from, i);
}

/* Slots that are free before ns. */
static uint32_t slots_before(const struct plan_timeline *t, uint64_t ns)
{
    uint32_t low = 0, high = t->n;
    if (high > 0 && at(t, high - 1)->free_ns < ns)
        return high;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (at(t, middle)->free_ns < ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Units are free together however they became so: slots of one time are one. */
static void put(struct plan_timeline *t, uint64_t free_ns, uint32_t units)
{
    uint32_t i = slots_before(t, free_ns);
    if (i < t->n && at(t, i)->free_ns == free_ns) {
        at(t, i)->units += units;
        return;
    }
    if (i < t->n - i) {
        t->head = t->head > 0 ? t->head - 1 : t->room - 1;
        for (uint32_t k = 0; k < i; k++)
            *at(t, k) = *at(t, k + 1);
    } else {
        for (uint32_t k = t->n; k > i; k--)
            *at(t, k) = *at(t, k - 1);
    }
    at(t, i)->free_ns = free_ns;
    at(t, i)->units = units;
    t->n++;
}

static void drop_first(struct plan_timeline *t)
{
    t->head = t->head + 1 < t->room ? t->head + 1 : 0;
    t->n--;
}

uint64_t plan_timeline_start(struct plan_timeline *t, uint32_t units)
{
    t->n_held = 0;
    if (plan_timeline_first(t)->units >= units)
        return plan_timeline_first(t)->free_ns;
    for (;;) {
        struct plan_slot first = *plan_timeline_first(t);
        if (first.units > units) {
            at(t, 0)->units -= units;
            first.units = units;
        } else {
            drop_first(t);
        }
        t->held[t->n_held++] = first;
        units -= first.units;
        if (units == 0)
            return first.free_ns;
    }
}

uint64_t plan_timeline_look(struct plan_timeline *t, uint32_t units)
{
    uint64_t start_ns = plan_timeline_start(t, units);
    while (t->n_held > 0) {
        const struct plan_slot *held = &t->held[--t->n_held];
        put(t, held->free_ns, held->units);
    }
    return start_ns;
}

void plan_timeline_take(struct plan_timeline *t, uint32_t units, uint64_t duration_ns)
{
    uint64_t end_ns = 0;
    if (t->n_held == 0) {
        struct plan_slot *first = at(t, 0);
        end_ns = first->free_ns + duration_ns;
        if (first->units == units)
            drop_first(t);
        else
            first->units -= units;
        put(t, end_ns, units);
    }
    for (uint32_t i = 0; i < t->n_held; i++) {
        end_ns = t->held[i].free_ns + duration_ns;
        put(t, end_ns, t->held[i].units);
    }
    t->n_held = 0;
    if (end_ns > t->end_ns)
        t->end_ns = end_ns;
}

uint64_t plan_timeline_busy(const struct plan_timeline *t)
{
    uint64_t busy = 0;
    for (uint32_t i = 0; i < t->n; i++)
        busy += at(t, i)->free_ns * at(t, i)->units;
    return busy;
}
