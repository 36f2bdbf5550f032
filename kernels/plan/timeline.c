#include "kernels/plan/internal.h"

#include <string.h>

void plan_timeline_init(struct plan_timeline *t, uint32_t units)
{
    t->slots[0] = (struct plan_slot){.free_ns = 0, .units = units};
    t->n = 1;
    t->end_ns = 0;
}

void plan_timeline_copy(struct plan_timeline *to, const struct plan_timeline *from)
{
    memcpy(to->slots, from->slots, from->n * sizeof(*from->slots));
    to->n = from->n;
    to->end_ns = from->end_ns;
}

static void sink_top(struct plan_timeline *t, struct plan_slot slot)
{
    if (t->n == 0)
        return;
    uint32_t hole = 0;
    for (;;) {
        uint32_t child = 2 * hole + 1;
        if (child >= t->n)
            break;
        if (child + 1 < t->n && t->slots[child + 1].free_ns < t->slots[child].free_ns)
            child++;
        if (t->slots[child].free_ns >= slot.free_ns)
            break;
        t->slots[hole] = t->slots[child];
        hole = child;
    }
    t->slots[hole] = slot;
}

static void rise_last(struct plan_timeline *t, struct plan_slot slot)
{
    uint32_t hole = t->n++;
    while (hole > 0) {
        uint32_t parent = (hole - 1) / 2;
        if (t->slots[parent].free_ns <= slot.free_ns)
            break;
        t->slots[hole] = t->slots[parent];
        hole = parent;
    }
    t->slots[hole] = slot;
}

uint64_t plan_timeline_start(struct plan_timeline *t, uint32_t units)
{
    t->n_held = 0;
    if (t->slots[0].units >= units)
        return t->slots[0].free_ns;
    for (;;) {
        struct plan_slot first = t->slots[0];
        if (first.units > units) {
            t->slots[0].units -= units;
            first.units = units;
        } else {
            struct plan_slot last = t->slots[--t->n];
            sink_top(t, last);
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
    for (uint32_t i = 0; i < t->n_held; i++)
        rise_last(t, t->held[i]);
    t->n_held = 0;
    return start_ns;
}

void plan_timeline_take(struct plan_timeline *t, uint32_t units, uint64_t duration_ns)
{
    uint64_t end_ns;
    if (t->n_held == 0) {
        end_ns = t->slots[0].free_ns + duration_ns;
        struct plan_slot slot = {.free_ns = end_ns, .units = units};
        if (t->slots[0].units == units) {
            sink_top(t, slot);
        } else {
            t->slots[0].units -= units;
            rise_last(t, slot);
        }
    } else {
        for (uint32_t i = 0; i < t->n_held; i++) {
            t->held[i].free_ns += duration_ns;
            rise_last(t, t->held[i]);
        }
        end_ns = t->held[t->n_held - 1].free_ns;
    }
    if (end_ns > t->end_ns)
        t->end_ns = end_ns;
}

uint64_t plan_timeline_busy(const struct plan_timeline *t)
{
    uint64_t busy = 0;
    for (uint32_t i = 0; i < t->n; i++)
        busy += t->slots[i].free_ns * t->slots[i].units;
    return busy;
}
