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
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t n = tile_splits(w, plan_entry_pages(w->set[i]), splits, min_pages);
        if (n > 1)
            rows += (uint64_t)n * w->plan->tiles[plan_entry_tile(w->set[i])].rows;
    }
    return rows;
}

void plan_uniform_try(struct plan_work *w, struct plan_cut *cut)
{
    plan_order_set(w, PLAN_ORDER_LONGEST);
    plan_timeline_copy(&w->line, &w->base);
    cut->partial_rows = 0;
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t tile = plan_entry_tile(w->set[i]);
        uint32_t units = plan_tile_units(w, tile);
        uint32_t n = tile_splits(w, pages, cut->splits, cut->min_pages);
        uint64_t fixed_ns = n > 1 ? w->split_ns : w->whole_ns;
        uint32_t longer = pages % n; /* so many items have a page more; they come first */
        for (uint32_t k = 0; k < n; k++) {
            (void)plan_timeline_start(&w->line, units);
            plan_timeline_take(&w->line, units, fixed_ns + (pages / n + (k < longer)) * w->page_ns);
        }
        if (n > 1)
            cut->partial_rows += (uint64_t)n * w->plan->tiles[tile].rows;
    }
    cut->target_ns = 0;
    cut->end_ns = w->line.end_ns;
    cut->cost_ns = cut->end_ns + plan_reduce_ns(&w->request->costs, w->base_rows + cut->partial_rows);
}

int plan_uniform_emit(struct plan_work *w, const struct plan_cut *cut)
{
    plan_order_set(w, PLAN_ORDER_LONGEST);
    for (uint32_t i = 0; i < w->n_set; i++) {
        uint32_t pages = plan_entry_pages(w->set[i]);
        uint32_t n = tile_splits(w, pages, cut->splits, cut->min_pages);
        uint32_t begin = 0, tile = plan_entry_tile(w->set[i]), first = w->plan->n_items;
        for (uint32_t k = 0; k < n; k++) {
            uint32_t end = begin + pages / n + (k < pages % n);
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
    uint64_t need = w->base_units;
    for (uint32_t i = 0; i < w->n_set; i++)
        need += plan_tile_units(w, plan_entry_tile(w->set[i]));
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
