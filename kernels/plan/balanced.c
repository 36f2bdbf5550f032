/* Cuts so that all units finish together.
 *
 * For a target time, tiles are laid on the units that are free first. A tile that ends by the target stays whole; else
 * as many of its pages as end by then become an item, and the rest goes to the units that are free next. Each cut fills
 * its units up to the target, so there are at most as many cuts as units, whatever the number of tiles: workspace grows
 * with tiles + units. What the planner lays is what a run in item order does, and the target is the makespan. The
 * smallest target at which everything fits is searched from below.
 *
 * Tiles of a sequence read the same pages. They are laid together first, as one wide tile that is cut as one, where
 * units are free at the same time: then each page comes from memory once, for all of them. Where that leaves units
 * idle, tiles are laid one by one, the widest first and the longest of these.
 */
#include "kernels/plan/internal.h"

#include <errno.h>

#define SEARCH_UP    24
#define SEARCH_DOWN  4
#define SEARCH_GRAIN 512 /* a target within this part of the best is good enough */

/* Units of tiles that are laid together, and the part of the time that memory read once is worth: on the H200 at 64
 * sequences and 4 query tokens it is 1/40. */
#define TOGETHER_UNITS 32
#define TOGETHER_WORTH 48

#define PIECES_KEPT 4 /* a group of more is laid anew where another could be repeated */

struct laying {
    bool fits;
    bool torn;        /* a group could not go on together: no target will do */
    uint64_t left_ns; /* unit-nanoseconds that found no place, at least 1 when it does not fit */
    uint64_t rows;
};

/* Tiles that are laid as one, of n entries of the set from `at` on, and their units. */
struct group {
    uint32_t at;
    uint32_t n;
    uint32_t units;
};

/* What a group was cut into: the pages of its n items, as far as they are kept. */
struct pieces {
    uint32_t n;
    uint32_t pages[PIECES_KEPT];
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

static uint64_t piece_ns(const struct plan_work *w, bool split, uint32_t pages)
{
    return (split ? w->split_ns : w->whole_ns) + pages * w->page_ns;
}

static bool free_together(const struct plan_work *w, uint32_t units)
{
    if (w->line.first->units >= units)
        return true;
    uint64_t first_ns = w->line.first->free_ns;
    return plan_timeline_start(&w->line, units) - first_ns <= w->page_ns;
}

/* Where contexts differ, what is left of a group that is cut seldom finds units that are free at the same time. */
static bool goes_whole(const struct plan_work *w, uint32_t pages, uint64_t target_ns)
{
    bool ragged = plan_entry_pages(w->set[0]) != plan_entry_pages(w->set[w->n_set - 1]);
    uint32_t cap = w->request->device.max_pages_per_item;
    uint64_t end_ns = w->line.first->free_ns + w->page_ns + piece_ns(w, false, pages);
    return !ragged || (end_ns <= target_ns && (cap == 0 || pages <= cap));
}

/* With the neighbours of the group's only tile that may be laid with it: of its sequence, with as many pages. */
static struct group with_neighbours(const struct plan_work *w, struct group g)
{
    const plan_entry *entry = &w->set[g.at];
    const struct mla_abi_tile *tile = &w->plan->tiles[plan_entry_tile(*entry)];
    uint32_t left = w->n_set - g.at, resident = w->request->device.resident_units;
    uint32_t most = resident < TOGETHER_UNITS ? resident : TOGETHER_UNITS;
    for (; g.n < left && entry[g.n] == entry[0] + g.n && tile[g.n].seq == tile[0].seq; g.n++) {
        uint32_t units = g.units + plan_set_units(w, g.at + g.n);
        if (units > most)
            break;
        g.units = units;
    }
    return g;
}

/* The tiles from entry i on that may be laid as one. */
static inline struct group most_at(const struct plan_work *w, uint32_t i, bool together)
{
    struct group g = {.at = i, .n = 1, .units = plan_set_units(w, i)};
    return together ? with_neighbours(w, g) : g;
}

/* Those that are. */
static struct group group_at(const struct plan_work *w, uint32_t i, bool together, uint64_t target_ns)
{
    struct group g = most_at(w, i, together);
    if (g.n > 1 && !(free_together(w, g.units) && goes_whole(w, plan_entry_pages(w->set[i]), target_ns)))
        return most_at(w, i, false);
    return g;
}

/* Of a group of which `pages` are left, and of all entries behind it. */
static uint64_t left_from(const struct plan_work *w, struct group g, uint32_t pages)
{
    uint64_t left = 0;
    for (uint32_t k = g.at; k < w->n_set; k++)
        left += piece_ns(w, false, k < g.at + g.n ? pages : plan_entry_pages(w->set[k])) * plan_set_units(w, k);
    return left > 0 ? left : 1;
}

/* Lays a group; emit: its items are written as well. */
static int lay_group(struct plan_work *w, struct group g, uint64_t target_ns, bool emit, struct pieces *pieces,
                     struct laying *out)
{
    uint32_t pages = plan_entry_pages(w->set[g.at]), tile = plan_entry_tile(w->set[g.at]), done = 0;
    uint32_t cap = w->request->device.max_pages_per_item, first_item = w->plan->n_items;
    bool split = false;
    struct limits limits = {0};
    pieces->n = 0;
    do {
        uint64_t first_ns = w->line.first->free_ns, start = plan_timeline_start(&w->line, g.units);
        if (g.n > 1 && start - first_ns > w->page_ns) {
            out->torn = true;
            out->fits = false;
            return 0;
        }
        uint64_t room = target_ns > start ? target_ns - start : 0;
        uint32_t n = pages - done;
        if (cap != 0 && n > cap) {
            split = true;
            n = cap;
        }
        if (piece_ns(w, split, n) > room) {
            if (limits.most == 0)
                limits = tile_limits(w, pages);
            uint32_t cut = cut_pages(w, &limits, pages - done, room);
            n = cut < n ? cut : n;
            if (n == 0) {
                /* The units that are free first have no room for it: no others have. */
                out->fits = false;
                out->left_ns = left_from(w, g, pages - done);
                return 0;
            }
            split = true;
            limits.most--;
        }
        /* Longer than what their units are apart: so a run of one tile after the other takes the same units. */
        plan_timeline_take(&w->line, g.units, piece_ns(w, split, n));
        if (pieces->n < PIECES_KEPT)
            pieces->pages[pieces->n] = n;
        pieces->n++;
        int rc = emit ? plan_emit(w->plan, tile, g.n, done, done + n) : 0;
        if (rc != 0)
            return rc;
        done += n;
    } while (done != pages);
    return emit ? plan_emit_end(w->plan, tile, g.n, first_item) : 0;
}

/* Groups behind one that was laid on units that are free from from_ns on, which go the same way: they are as wide and
 * as long, and there are more such units for them. */
static uint32_t count_repeats(const struct plan_work *w, struct group g, bool together, uint64_t from_ns,
                              const struct pieces *pieces)
{
    const struct plan_slot *first = w->line.first;
    uint32_t each = pieces->n * g.units, n = 0, pages = plan_entry_pages(w->set[g.at]);
    if (pieces->n > PIECES_KEPT || first->free_ns != from_ns)
        return 0;
    for (uint32_t i = g.at + g.n, left = first->units; left >= each; i += g.n, left -= each, n++) {
        if (i >= w->n_set || plan_entry_pages(w->set[i]) != pages)
            break;
        struct group next = most_at(w, i, together);
        if (next.n != g.n || next.units != g.units)
            break;
    }
    return n;
}

/* Lays n groups more as one was laid. */
static int lay_again(struct plan_work *w, struct group g, uint32_t n, const struct pieces *pieces, bool emit)
{
    for (uint32_t k = 0; k < pieces->n; k++)
        plan_timeline_take(&w->line, n * g.units, piece_ns(w, pieces->n > 1, pieces->pages[k]));
    int rc = 0;
    for (; emit && rc == 0 && n > 0; n--) {
        g.at += g.n;
        uint32_t done = 0, tile = plan_entry_tile(w->set[g.at]), first_item = w->plan->n_items;
        for (uint32_t k = 0; rc == 0 && k < pieces->n; done += pieces->pages[k++])
            rc = plan_emit(w->plan, tile, g.n, done, done + pieces->pages[k]);
        if (rc == 0)
            rc = plan_emit_end(w->plan, tile, g.n, first_item);
    }
    return rc;
}

/* Lays the set, in the order that it has, for a target. emit: items are written as well (only for a target that fits).
 */
static int lay(struct plan_work *w, uint64_t target_ns, bool together, bool emit, struct laying *out)
{
    plan_timeline_copy(&w->line, &w->base);
    *out = (struct laying){.fits = true};
    for (uint32_t i = 0; i < w->n_set;) {
        struct pieces pieces;
        uint64_t from_ns = w->line.first->free_ns;
        struct group g = group_at(w, i, together, target_ns);
        int rc = lay_group(w, g, target_ns, emit, &pieces, out);
        if (rc != 0 || !out->fits)
            return rc;
        uint32_t repeats = count_repeats(w, g, together, from_ns, &pieces);
        rc = repeats > 0 ? lay_again(w, g, repeats, &pieces, emit) : 0;
        if (rc != 0)
            return rc;
        for (uint32_t end = i + (1 + repeats) * g.n; i < end; i++)
            if (pieces.n > 1)
                out->rows += (uint64_t)pieces.n * w->plan->tiles[plan_entry_tile(w->set[i])].rows;
    }
    return 0;
}

static void take_if_cheaper(struct plan_work *w, uint64_t target_ns, bool together, const struct laying *l,
                            struct plan_cut *best)
{
    if (l->rows > w->rows_max)
        return;
    uint64_t cost = plan_timeline_end(&w->line) + plan_reduce_ns(&w->request->costs, w->base_rows + l->rows);
    if (cost >= best->cost_ns)
        return;
    *best = (struct plan_cut){.policy = PLAN_BALANCED,
                              .target_ns = target_ns,
                              .together = together,
                              .order = w->order,
                              .end_ns = plan_timeline_end(&w->line),
                              .partial_rows = l->rows,
                              .cost_ns = cost};
}

/* No target below this fits: all work spread evenly, and the shortest items that the longest tile may be cut into. */
static uint64_t least_target(const struct plan_work *w, uint64_t *cuts_ns)
{
    uint64_t work = plan_timeline_busy(&w->base) + w->set_units * w->whole_ns + w->set_pages * w->page_ns;
    uint64_t longest_item = 0;
    uint32_t last_pages = UINT32_MAX, least = w->request->device.min_pages_per_split;
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        if (pages == last_pages)
            continue;
        last_pages = pages;
        uint64_t item = piece_ns(w, false, pages);
        struct limits limits = tile_limits(w, pages);
        uint32_t piece = limits.most > 1 ? plan_div_up(pages, limits.most) : pages;
        bool cut = limits.most > 1 && piece_ns(w, true, piece) < item;
        item = cut ? piece_ns(w, true, piece) : item;
        longest_item = item > longest_item ? item : longest_item;
        if (cut && piece == least)
            break; /* the longest that any tile's shortest item may be */
    }
    uint64_t usable = w->request->device.resident_units > 0 ? w->request->device.resident_units : 1;
    /* About one cut per unit that no tile begins on: what it adds, spread over all units, and half a page of rounding.
     */
    uint64_t cuts = w->set_units < usable ? usable - w->set_units : usable;
    *cuts_ns = (w->split_ns + (w->split_ns - w->whole_ns)) * cuts / usable + w->page_ns / 2;
    uint64_t even = work / usable + (work % usable != 0);
    return even > longest_item ? even : longest_item;
}

/* Largest step down to the smallest target whose partials fit the workspace; low does not fit it, high does. */
static void search_workspace(struct plan_work *w, bool together, uint64_t low, uint64_t high, struct plan_cut *best)
{
    struct laying l;
    for (int i = 0; i < SEARCH_UP && high - low > w->page_ns; i++) {
        uint64_t middle = low + (high - low) / 2;
        (void)lay(w, middle, together, false, &l);
        if (l.fits)
            take_if_cheaper(w, middle, together, &l, best);
        if (l.fits && l.rows <= w->rows_max)
            high = middle;
        else
            low = middle;
    }
}

/* The smallest target at which the set fits in the order it has, from a first guess; low: none smaller fits. */
static void search(struct plan_work *w, bool together, uint64_t low, uint64_t guess, const struct plan_cut *unsplit,
                   struct plan_cut *best)
{
    struct laying l;
    uint64_t target = guess;
    uint64_t failed = low;
    for (int i = 0;; i++) {
        (void)lay(w, target, together, false, &l);
        if (l.fits)
            break;
        if (l.torn || i == SEARCH_UP || target >= unsplit->end_ns)
            return;
        failed = target;
        uint64_t step = l.left_ns / w->request->device.resident_units;
        uint64_t least_step = (target - low) / 4 + w->page_ns / 4 + 1;
        target += step > least_step ? step : least_step;
    }
    if (l.rows > w->rows_max) {
        search_workspace(w, together, target, unsplit->end_ns, best);
        return;
    }
    take_if_cheaper(w, target, together, &l, best);
    uint64_t enough = target / SEARCH_GRAIN > w->page_ns / 2 ? target / SEARCH_GRAIN : w->page_ns / 2;
    for (int i = 0; i < SEARCH_DOWN && target - failed > enough; i++) {
        uint64_t middle = failed + (target - failed) / 2;
        (void)lay(w, middle, together, false, &l);
        if (l.fits) {
            take_if_cheaper(w, middle, together, &l, best);
            target = middle;
        } else {
            failed = middle;
        }
    }
}

static void search_apart(struct plan_work *w, uint64_t low, uint64_t cuts_ns, const struct plan_cut *unsplit,
                         struct plan_cut *cut)
{
    plan_order_set(w, PLAN_ORDER_WIDEST);
    search(w, false, low, low + cuts_ns, unsplit, cut);
    /* Narrow tiles that come last may be too long for what is left: then by length alone. */
    if (w->min_units != w->max_units && cut->end_ns > low + low / 16) {
        plan_order_set(w, PLAN_ORDER_LONGEST);
        search(w, false, low, low + cuts_ns, unsplit, cut);
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
    /* An estimate, and of the shortest contexts a third of all: what ends within it may be far from the best. */
    uint64_t near_ns = low + (cuts_ns < low / TOGETHER_WORTH ? cuts_ns : low / TOGETHER_WORTH);
    if (unsplit->end_ns <= near_ns + low / SEARCH_GRAIN || w->rows_max == 0)
        return; /* all units are busy to the end as it is */
    if (!w->shares_pages) {
        search_apart(w, low, cuts_ns, unsplit, cut);
        return;
    }
    plan_order_set(w, PLAN_ORDER_LONGEST);
    search(w, true, low, low + cuts_ns, unsplit, cut);
    if (cut->end_ns <= near_ns + low / TOGETHER_WORTH)
        return;
    struct plan_cut apart = *unsplit;
    apart.policy = PLAN_BALANCED;
    search_apart(w, low, cuts_ns, unsplit, &apart);
    if (apart.cost_ns + apart.cost_ns / TOGETHER_WORTH < cut->cost_ns)
        *cut = apart;
}

int plan_balanced_emit(struct plan_work *w, const struct plan_cut *cut)
{
    struct laying l;
    plan_order_set(w, cut->order);
    return lay(w, cut->target_ns, cut->together, true, &l);
}
