/* What the files of the planner share. Not included from outside kernels/plan. */
#ifndef MLA_KERNELS_PLAN_INTERNAL_H
#define MLA_KERNELS_PLAN_INTERNAL_H

#include "kernels/plan/plan.h"

#define PLAN_UNITS_MAX        65536u
#define PLAN_TILE_UNITS_MAX   256u             /* a tile has at most 256 rows */
#define PLAN_PARTIAL_ROWS_MAX (UINT32_MAX - 1) /* the last number is MLA_ABI_NO_PARTIAL */

/* Units that are free from the same time on. */
struct plan_slot {
    uint64_t free_ns;
    uint32_t units;
};

/* Which units are free when: n slots in order of free_ns, each later than the one before it. Whoever runs a plan starts
 * items in order, each of an item's units on the unit that is free first. */
struct plan_timeline {
    struct plan_slot *slots; /* PLAN_TIMELINE_SLOTS(units) of them, the caller's */
    struct plan_slot *first; /* the one that is free first */
    uint32_t n;
    uint32_t room; /* the device's units */
};

#define PLAN_TIMELINE_SLOTS(units) (2 * (size_t)(units))

void plan_timeline_init(struct plan_timeline *t, uint32_t units);
void plan_timeline_copy(struct plan_timeline *to, const struct plan_timeline *from);
/* The last unit is free. */
uint64_t plan_timeline_end(const struct plan_timeline *t);
/* When the last of an item's units would start; at most as many as there are. */
uint64_t plan_timeline_start(const struct plan_timeline *t, uint32_t units);
/* An item runs on so many units, for duration_ns on each: at most PLAN_TILE_UNITS_MAX, or any number of the first
 * slot's. Items that begin on the first slot's units and take as long may be taken as one. */
void plan_timeline_take(struct plan_timeline *t, uint32_t units, uint64_t duration_ns);
/* Unit-nanoseconds until each unit is free. */
uint64_t plan_timeline_busy(const struct plan_timeline *t);

/* A tile in the order of planning: ~pages in the high half, the tile's index in the low one, so that a plain ascending
 * sort puts long tiles first and ties by index. Neighbours with as many pages are entries that differ by one. */
typedef uint64_t plan_entry;

static inline uint32_t plan_entry_pages(plan_entry e)
{
    return ~(uint32_t)(e >> 32);
}

static inline uint32_t plan_entry_tile(plan_entry e)
{
    return (uint32_t)e;
}

enum plan_order { PLAN_ORDER_LONGEST = 1, PLAN_ORDER_WIDEST = 2 };

/* One call of plan_build. The set: the tiles being cut now (one batch-invariant job, or all that is left). */
struct plan_work {
    const struct plan_request *request;
    struct plan *plan;
    uint64_t page_ns;
    uint64_t whole_ns; /* of an item beyond its pages, unsplit */
    uint64_t split_ns; /* the same, split */
    uint32_t full_tile_units;
    uint32_t n_invariant; /* batch-invariant jobs */

    struct plan_timeline base; /* units before the set is placed */
    struct plan_timeline line; /* while a way to cut it is tried */
    uint64_t base_rows;        /* partial rows taken before the set */
    uint64_t rows_max;         /* partial rows that the set may take */
    uint32_t base_units;       /* units of all items before the set */

    plan_entry *set;
    plan_entry *set_tmp;
    uint32_t n_set;
    enum plan_order order;
    uint64_t set_units; /* of all tiles of the set */
    uint64_t set_pages; /* the same, times pages */
    uint32_t min_units; /* narrowest and widest tile of the set */
    uint32_t max_units;
    bool shares_pages; /* some tiles of a sequence have as many pages */
};

/* A way to cut the set, with what it would give. */
struct plan_cut {
    enum plan_policy policy;
    uint32_t splits;       /* uniform: of every tile, as far as its pages allow */
    uint32_t min_pages;    /* uniform: as in plan_device */
    uint64_t target_ns;    /* balanced: no unit works longer, as far as possible; 0: the cut is uniform */
    bool together;         /* balanced: tiles of a sequence are cut as one */
    enum plan_order order; /* balanced: of the set */
    uint64_t end_ns;       /* the last unit is free */
    uint64_t partial_rows; /* of the set */
    uint64_t cost_ns;      /* end_ns and the reduction */
};

static inline uint32_t plan_div_up(uint32_t a, uint32_t b)
{
    return a / b + (a % b != 0);
}

static inline uint32_t plan_row_units(const struct plan_request *request, uint32_t rows)
{
    return plan_div_up(rows, request->device.rows_per_unit);
}

static inline uint32_t plan_tile_units(const struct plan_work *w, uint32_t tile)
{
    uint32_t rows = w->plan->tiles[tile].rows; /* mostly one of two, for which nothing is divided */
    if (rows == w->request->tile_rows)
        return w->full_tile_units;
    return rows <= w->request->device.rows_per_unit ? 1 : plan_row_units(w->request, rows);
}

/* Of the tile of entry i. Where all have as many, tiles, which lie in another order, are not read. */
static inline uint32_t plan_set_units(const struct plan_work *w, uint32_t i)
{
    return w->min_units == w->max_units ? w->max_units : plan_tile_units(w, plan_entry_tile(w->set[i]));
}

/* Items that a tile of so many pages has at least. */
static inline uint32_t plan_least_items(const struct plan_device *device, uint32_t pages)
{
    if (device->max_pages_per_item == 0 || pages <= device->max_pages_per_item)
        return 1;
    return plan_div_up(pages, device->max_pages_per_item);
}

uint64_t plan_reduce_ns(const struct plan_costs *costs, uint64_t partial_rows);

/* Validates a request; every other function relies on it. 0, -EINVAL, -EOVERFLOW. */
int plan_bound_checked(const struct plan_request *request, struct plan_capacity *capacity);

/* Writes the tiles of rows [first, end) of a sequence behind plan->n_tiles. 0 or -ENOSPC. */
int plan_tiles_add(const struct plan_request *request, uint32_t mask, uint32_t seq, uint32_t first, uint32_t end,
                   struct plan *plan);

/* Brings the set into an order: LONGEST by pages; WIDEST by width, then pages; ties by index. */
void plan_order_set(struct plan_work *w, enum plan_order order);

/* Appends the next item of each of n_tiles neighbours, which are cut as one; items come in page order. plan_emit_end
 * must follow the last ones; first_item: of the first ones. 0 or -ENOSPC. */
int plan_emit(struct plan *plan, uint32_t tile, uint32_t n_tiles, uint32_t page_begin, uint32_t page_end);
int plan_emit_end(struct plan *plan, uint32_t tile, uint32_t n_tiles, uint32_t first_item);

/* Uniform cuts. _try fills end_ns, partial_rows, cost_ns. */
void plan_uniform_try(struct plan_work *w, struct plan_cut *cut);
int plan_uniform_emit(struct plan_work *w, const struct plan_cut *cut);
uint64_t plan_uniform_rows(const struct plan_work *w, uint32_t splits, uint32_t min_pages);
/* unsplit: the same set tried unsplit, or NULL. */
void plan_seed_choose(struct plan_work *w, const struct plan_cut *unsplit, struct plan_cut *cut);

/* Balanced cuts. unsplit has been tried; it is the answer where cutting does not pay. */
void plan_balanced_choose(struct plan_work *w, const struct plan_cut *unsplit, struct plan_cut *cut);
int plan_balanced_emit(struct plan_work *w, const struct plan_cut *cut);

#endif
