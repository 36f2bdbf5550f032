/* Every tile cut into the same number of items, as far as its pages allow: unsplit, seed and forced splits. */
#include "kernels/plan/internal.h"

#include <errno.h>

static uint32_t tile_splits(const struct plan_work *w, uint32_t pages, uint32_t splits, uint32_t min_pages)
{
    uint32_t most = plan_div_up(pages, min_pages), least = plan_least_items(&w->request->device, pages);
    if (splits > most)
        splits = most;
    return splits < least ? least : splits;
}

uint64_t plan_uniform_rows(const struct plan_work *w, uint32_t splits, uint32_t min_pages)
{
    uint64_t rows = 0;
    if (splits < 2 && w->request->device.max_pages_per_item == 0)
        return 0;
    uint32_t n = 1, last_pages = 0; /* neighbours often have as many */
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        if (pages != last_pages)
            n = tile_splits(w, pages, splits, min_pages);
        last_pages = pages;
        if (n > 1)
            rows += (uint64_t)n * w->plan->tiles[plan_entry_tile(w->set[i])].rows;
    }
    return rows;
}

/* Tiles from entry *i on, of one length and n items each, that all begin on the units that are free first: their units,
 * and *i behind them. */
static uint32_t begin_together(const struct plan_work *w, uint32_t *i, uint32_t n)
{
    uint32_t pages = plan_entry_pages(w->set[*i]), free = w->line.first->units, taken = 0;
    while (*i < w->n_set && plan_entry_pages(w->set[*i]) == pages) {
        uint32_t units = n * plan_set_units(w, *i);
        if (units > free - taken)
            break;
        taken += units;
        ++*i;
    }
    return taken;
}

void plan_uniform_try(struct plan_work *w, struct plan_cut *cut)
{
    plan_order_set(w, PLAN_ORDER_LONGEST);
    plan_timeline_copy(&w->line, &w->base);
    cut->partial_rows = 0;
    for (uint32_t i = 0, first; i < w->n_set;) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t n = tile_splits(w, pages, cut->splits, cut->min_pages);
        uint32_t longer = pages % n; /* so many items have a page more; they come first */
        uint64_t ns = (n > 1 ? w->split_ns : w->whole_ns) + pages / n * w->page_ns;
        first = i;
        uint32_t together = longer == 0 ? begin_together(w, &i, n) : 0;
        if (together > 0) {
            plan_timeline_take(&w->line, together, ns);
        } else {
            uint32_t units = plan_set_units(w, i++);
            for (uint32_t k = 0; k < n; k++)
                plan_timeline_take(&w->line, units, ns + (k < longer ? w->page_ns : 0));
        }
        for (; n > 1 && first < i; first++)
            cut->partial_rows += (uint64_t)n * w->plan->tiles[plan_entry_tile(w->set[first])].rows;
    }
    cut->target_ns = 0;
    cut->end_ns = plan_timeline_end(&w->line);
    cut->cost_ns = cut->end_ns + plan_reduce_ns(&w->request->costs, w->base_rows + cut->partial_rows);
}

int plan_uniform_emit(struct plan_work *w, const struct plan_cut *cut)
{
    plan_order_set(w, PLAN_ORDER_LONGEST);
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t n = tile_splits(w, pages, cut->splits, cut->min_pages);
        uint32_t begin = 0, tile = plan_entry_tile(w->set[i]), first = w->plan->n_items;
        uint32_t each = pages / n, longer = pages % n;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t end = begin + each + (k < longer);
            int rc = plan_emit(w->plan, tile, 1, begin, end);
            if (rc != 0)
                return rc;
            begin = end;
        }
        int rc = plan_emit_end(w->plan, tile, 1, first);
        if (rc != 0)
            return rc;
    }
    return 0;
}

void plan_seed_choose(struct plan_work *w, const struct plan_cut *unsplit, struct plan_cut *cut)
{
    const struct plan_device *device = &w->request->device;
    uint64_t need = w->base_units + w->set_units;
    uint32_t splits = 1;
    if (need < device->resident_units && w->n_set > 0)
        splits = (uint32_t)(2 * (uint64_t)device->resident_units / need);
    /* Most splits that the workspace holds: rows grow with splits. */
    uint32_t low = 1;
    while (splits > 1 && plan_uniform_rows(w, splits, device->min_pages_per_split) > w->rows_max) {
        uint32_t high = splits - 1;
        while (low < high) {
            uint32_t middle = low + (high - low + 1) / 2;
            if (plan_uniform_rows(w, middle, device->min_pages_per_split) > w->rows_max)
                high = middle - 1;
            else
                low = middle;
        }
        splits = low;
    }
    if (splits < 2 && unsplit != NULL) {
        *cut = *unsplit;
        cut->policy = PLAN_SEED;
        return;
    }
    *cut = (struct plan_cut){.policy = PLAN_SEED, .splits = splits, .min_pages = device->min_pages_per_split};
    plan_uniform_try(w, cut);
}
