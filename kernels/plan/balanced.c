/* Cuts so that all units finish together.
 *
 * For a target time, tiles are laid, the widest first and the longest of these, on the units that are free first. A
 * tile that ends by the target stays whole; else as many of its pages as end by then become an item, and the rest goes
 * to the units that are free next. Each cut fills its units up to the target, so there are at most as many cuts as
 * units, whatever the number of tiles: workspace grows with tiles + units. What the planner lays is what a run in item
 * order does, and the target is the makespan. The smallest target at which everything fits is searched from below.
 */
#include "kernels/plan/internal.h"

#include <errno.h>

#define SEARCH_UP    24
#define SEARCH_DOWN  4
#define SEARCH_GRAIN 512 /* a target within this part of the best is good enough */

struct laying {
    bool fits;
    uint64_t left_ns; /* unit-nanoseconds that found no place, at least 1 when it does not fit */
    uint64_t rows;
};

/* How a tile may be cut: into at most `most` items, none but the last shorter than `least` pages. */
struct limits {
    uint32_t most;
    uint32_t least;
};

static struct limits tile_limits(const struct plan_work *w, uint32_t pages)
{
    uint32_t most = plan_div_up(pages, w->request->device.min_pages_per_split);
    return (struct limits){.most = most, .least = most > 0 ? pages / most : 0};
}

/* Pages of the next item of a tile of which `pages` are left, to be done within room_ns; 0: it cannot be cut here. */
static uint32_t cut_pages(const struct plan_work *w, const struct limits *limits, uint32_t pages, uint64_t room_ns)
{
    if (room_ns <= w->split_ns || limits->most < 2 || pages < 2)
        return 0;
    uint64_t n = (room_ns - w->split_ns) / w->page_ns;
    if (n > pages - 1)
        n = pages - 1;
    return n < limits->least ? 0 : (uint32_t)n;
}

static uint64_t left_from(const struct plan_work *w, uint32_t i, uint32_t pages)
{
    uint64_t left = 0;
    for (; i < w->n_set; i++) {
        left += (w->whole_ns + pages * w->page_ns) * plan_tile_units(w, plan_entry_tile(w->set[i]));
        pages = i + 1 < w->n_set ? plan_entry_pages(w->set[i + 1]) : 0;
    }
    return left > 0 ? left : 1;
}

/* Lays the set for a target. emit: items are written as well (only for a target that fits). */
static int lay(struct plan_work *w, uint64_t target_ns, bool emit, struct laying *out)
{
    plan_timeline_copy(&w->line, &w->base);
    *out = (struct laying){.fits = true};
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t tile = plan_entry_tile(w->set[i]);
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t units = plan_tile_units(w, tile);
        uint32_t done = 0;
        bool split = false;
        struct limits limits = {0};
        for (;;) {
            uint64_t start = plan_timeline_start(&w->line, units);
            uint64_t room = target_ns > start ? target_ns - start : 0;
            uint32_t n = pages - done, cap = w->request->device.max_pages_per_item;
            if (cap != 0 && n > cap) {
                split = true;
                n = cap;
            }
            uint64_t rest = (split ? w->split_ns : w->whole_ns) + n * w->page_ns;
            if (rest > room) {
                uint32_t most = n;
                if (limits.most == 0)
                    limits = tile_limits(w, pages);
                n = cut_pages(w, &limits, pages - done, room);
                n = n < most ? n : most;
                if (n == 0) {
                    /* The units that are free first have no room for it: no others have. */
                    out->fits = false;
                    out->left_ns = left_from(w, i, pages - done);
                    return 0;
                }
                split = true;
                limits.most--;
                rest = w->split_ns + n * w->page_ns;
            }
            plan_timeline_take(&w->line, units, rest);
            if (split)
                out->rows += w->plan->tiles[tile].rows;
            if (emit) {
                int rc = plan_emit(w->plan, tile, done, done + n, split);
                if (rc != 0)
                    return rc;
            }
            done += n;
            if (done == pages)
                break;
        }
    }
    return 0;
}

static void take_if_cheaper(struct plan_work *w, uint64_t target_ns, const struct laying *l, struct plan_cut *best)
{
    if (l->rows > w->rows_max)
        return;
    uint64_t cost = w->line.end_ns + plan_reduce_ns(&w->request->costs, w->base_rows + l->rows);
    if (cost >= best->cost_ns)
        return;
    *best = (struct plan_cut){.policy = PLAN_BALANCED,
                              .target_ns = target_ns,
                              .order = w->order,
                              .end_ns = w->line.end_ns,
                              .partial_rows = l->rows,
                              .cost_ns = cost};
}

/* No target below this fits: all work spread evenly, and the shortest items that the longest tile may be cut into. */
static uint64_t least_target(const struct plan_work *w, uint64_t *cuts_ns)
{
    uint64_t work = plan_timeline_busy(&w->base);
    uint64_t longest_item = 0;
    uint64_t tile_units = 0;
    uint32_t last_pages = UINT32_MAX;
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t units = plan_tile_units(w, plan_entry_tile(w->set[i]));
        tile_units += units;
        work += (w->whole_ns + pages * w->page_ns) * units;
        if (pages == last_pages)
            continue;
        last_pages = pages;
        uint64_t item = w->whole_ns + pages * w->page_ns;
        struct limits limits = tile_limits(w, pages);
        if (limits.most > 1) {
            uint64_t cut = w->split_ns + plan_div_up(pages, limits.most) * w->page_ns;
            item = cut < item ? cut : item;
        }
        longest_item = item > longest_item ? item : longest_item;
    }
    uint64_t usable = w->request->device.resident_units > 0 ? w->request->device.resident_units : 1;
    /* About one cut per unit that no tile begins on: what it adds, spread over all units, and half a page of rounding.
     */
    uint64_t cuts = tile_units < usable ? usable - tile_units % usable : usable;
    *cuts_ns = (w->split_ns + (w->split_ns - w->whole_ns)) * cuts / usable + w->page_ns / 2;
    uint64_t even = work / usable + (work % usable != 0);
    return even > longest_item ? even : longest_item;
}

/* Largest step down to the smallest target whose partials fit the workspace; low does not fit it, high does. */
static void search_workspace(struct plan_work *w, uint64_t low, uint64_t high, struct plan_cut *best)
{
    struct laying l;
    for (int i = 0; i < SEARCH_UP && high - low > w->page_ns; i++) {
        uint64_t middle = low + (high - low) / 2;
        (void)lay(w, middle, false, &l);
        if (l.fits)
            take_if_cheaper(w, middle, &l, best);
        if (l.fits && l.rows <= w->rows_max)
            high = middle;
        else
            low = middle;
    }
}

/* The smallest target at which the set fits in the order it has, from a first guess; low: none smaller fits. */
static void search(struct plan_work *w, uint64_t low, uint64_t guess, const struct plan_cut *unsplit,
                   struct plan_cut *best)
{
    struct laying l;
    uint64_t target = guess;
    uint64_t failed = low;
    for (int i = 0;; i++) {
        (void)lay(w, target, false, &l);
        if (l.fits)
            break;
        if (i == SEARCH_UP || target >= unsplit->end_ns)
            return;
        failed = target;
        uint64_t step = l.left_ns / w->request->device.resident_units;
        uint64_t least_step = (target - low) / 4 + w->page_ns / 4 + 1;
        target += step > least_step ? step : least_step;
    }
    if (l.rows > w->rows_max) {
        search_workspace(w, target, unsplit->end_ns, best);
        return;
    }
    take_if_cheaper(w, target, &l, best);
    uint64_t enough = target / SEARCH_GRAIN > w->page_ns / 2 ? target / SEARCH_GRAIN : w->page_ns / 2;
    for (int i = 0; i < SEARCH_DOWN && target - failed > enough; i++) {
        uint64_t middle = failed + (target - failed) / 2;
        (void)lay(w, middle, false, &l);
        if (l.fits) {
            take_if_cheaper(w, middle, &l, best);
            target = middle;
        } else {
            failed = middle;
        }
    }
}

void plan_balanced_choose(struct plan_work *w, const struct plan_cut *unsplit, struct plan_cut *cut)
{
    *cut = *unsplit;
    cut->policy = PLAN_BALANCED;
    if (w->n_set == 0)
        return;
    uint64_t cuts_ns;
    uint64_t low = least_target(w, &cuts_ns);
    if (unsplit->end_ns <= low + cuts_ns || w->rows_max == 0)
        return; /* all units are busy to the end as it is */
    plan_order_set(w, PLAN_ORDER_WIDEST);
    search(w, low, low + cuts_ns, unsplit, cut);
    /* Narrow tiles that come last may be too long for what is left: then by length alone. */
    if (w->min_units != w->max_units && cut->end_ns > low + low / 16) {
        plan_order_set(w, PLAN_ORDER_LONGEST);
        search(w, low, low + cuts_ns, unsplit, cut);
    }
}

int plan_balanced_emit(struct plan_work *w, const struct plan_cut *cut)
{
    struct laying l;
    plan_order_set(w, cut->order);
    return lay(w, cut->target_ns, true, &l);
}
