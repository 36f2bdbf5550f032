#include "kernels/plan/internal.h"

/* Stable counting sorts by byte, least significant first; bytes that all entries share are skipped, so that a batch of
 * equal contexts is not moved at all. */

static void swap_set(struct plan_work *w)
{
    plan_entry *t = w->set;
    w->set = w->set_tmp;
    w->set_tmp = t;
}

/* Numbers of entries of each digit become the places where they begin. */
static void begin_digits(uint32_t count[256])
{
    uint32_t at = 0;
    for (unsigned i = 0; i < 256; i++) {
        uint32_t n = count[i];
        count[i] = at;
        at += n;
    }
}

static void sort_byte(struct plan_work *w, unsigned shift)
{
    const plan_entry *from = w->set;
    plan_entry *to = w->set_tmp;
    uint32_t count[256] = {0}, n = w->n_set;
    for (uint32_t i = 0; i < n; i++)
        count[(uint8_t)(from[i] >> shift)]++;
    begin_digits(count);
    for (uint32_t i = 0; i < n; i++)
        to[count[(uint8_t)(from[i] >> shift)]++] = from[i];
    swap_set(w);
}

/* Wide tiles first. A tile has at most 256 rows, so its units less one fit a byte. */
static void sort_units(struct plan_work *w)
{
    uint32_t count[256] = {0};
    if (w->min_units == w->max_units)
        return;
    for (uint32_t i = 0; i < w->n_set; i++)
        count[w->max_units - plan_set_units(w, i)]++;
    begin_digits(count);
    for (uint32_t i = 0; i < w->n_set; i++)
        w->set_tmp[count[w->max_units - plan_set_units(w, i)]++] = w->set[i];
    swap_set(w);
}

/* By bits [from, to) of the entries. */
static void sort_bits(struct plan_work *w, unsigned from, unsigned to)
{
    uint64_t any = 0;
    uint64_t all = UINT64_MAX;
    for (uint32_t i = 0; i < w->n_set; i++) {
        any |= w->set[i];
        all &= w->set[i];
    }
    for (unsigned shift = from; shift < to; shift += 8)
        if ((uint8_t)((any ^ all) >> shift) != 0)
            sort_byte(w, shift);
}

static void sort_tiles(struct plan_work *w)
{
    sort_bits(w, 0, 32);
}

static void sort_pages(struct plan_work *w)
{
    sort_bits(w, 32, 64);
}

void plan_order_set(struct plan_work *w, enum plan_order order)
{
    if (w->order == order || w->n_set < 2)
        return;
    bool one_width = w->min_units == w->max_units;
    if (one_width && w->order != 0)
        return; /* both orders are the same */
    if (w->order == PLAN_ORDER_WIDEST)
        sort_tiles(w);
    if (w->order != PLAN_ORDER_LONGEST)
        sort_pages(w);
    if (order == PLAN_ORDER_WIDEST)
        sort_units(w);
    w->order = order;
}
