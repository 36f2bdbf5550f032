/* The proof of a plan, without memory: tiles are compared with the request in order; items are a partition of the
 * tiles' ranges because each lies in its own tile's range and their counts agree; partials are disjoint because reduces
 * are in order of partial_row. */
#include "kernels/plan/internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct proof {
    const struct plan_request *request;
    const struct plan *plan;
    char *why;
    size_t why_bytes;
};

__attribute__((format(printf, 2, 3))) static int wrong(const struct proof *p, const char *format, ...)
{
    if (p->why != NULL && p->why_bytes > 0) {
        va_list args;
        va_start(args, format);
        vsnprintf(p->why, p->why_bytes, format, args);
        va_end(args);
    }
    return -EINVAL;
}

static int check_counts(const struct proof *p)
{
    const struct plan *plan = p->plan;
    const struct plan_capacity *c = &plan->capacity;
    if (plan->n_tiles > c->tiles || plan->n_items > c->items || plan->n_reduces > c->reduces)
        return wrong(p, "%u tiles, %u items, %u reduces are more than the arrays hold (%u, %u, %u)", plan->n_tiles,
                     plan->n_items, plan->n_reduces, c->tiles, c->items, c->reduces);
    if (plan->workspace_bytes != (uint64_t)plan->partial_rows * MLA_ABI_PARTIAL_ROW_BYTES)
        return wrong(p, "workspace_bytes is not that of %u partial rows", plan->partial_rows);
    if (plan->workspace_bytes > p->request->workspace_bytes_max)
        return wrong(p, "the workspace of %u partial rows is larger than the request allows", plan->partial_rows);
    return 0;
}

/* Tiles [*at, ...) cover rows [row, rows) of a sequence, in order. */
static int check_sequence(const struct proof *p, uint32_t mask, uint32_t seq, uint32_t row, uint32_t rows, uint32_t *at,
                          uint64_t *row_slots)
{
    const struct plan_request *r = p->request;
    uint32_t q_len = r->seqs[seq].q_len;
    for (; row < rows; ++*at) {
        if (*at == p->plan->n_tiles)
            return wrong(p, "sequence %u: rows from %u on are in no tile", seq, row);
        const struct mla_abi_tile *t = &p->plan->tiles[*at];
        if (t->seq != seq || t->first_row != row)
            return wrong(p, "tile %u begins at row %u of sequence %u instead of row %u of sequence %u", *at,
                         t->first_row, t->seq, row, seq);
        if (t->rows < 1 || t->rows > r->tile_rows || t->rows > rows - row)
            return wrong(p, "tile %u has %u rows", *at, t->rows);
        uint32_t pages = plan_visible_pages(mask, q_len, r->seqs[seq].kv_len, (row + t->rows - 1) / r->heads);
        if (t->pages != pages)
            return wrong(p, "tile %u has %u pages, its last row may see %u", *at, t->pages, pages);
        row += t->rows;
        *row_slots += (uint64_t)plan_row_units(r, t->rows) * r->device.rows_per_unit;
    }
    return 0;
}

static int check_tiles(const struct proof *p)
{
    const struct plan_request *r = p->request;
    uint32_t at = 0;
    uint64_t useful = 0;
    uint64_t row_slots = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        const struct plan_job *job = &r->jobs[j];
        uint64_t before = 0, from = job->skip_rows;
        uint64_t to = job->n_rows == 0 || job->n_rows > UINT64_MAX - from ? UINT64_MAX : from + job->n_rows;
        for (uint32_t s = 0; s < job->n_seqs; s++) {
            uint64_t rows = (uint64_t)r->seqs[job->first_seq + s].q_len * r->heads, after = before + rows;
            uint64_t first = from > before ? from : before, end = to < after ? to : after;
            if (first < end) {
                int rc = check_sequence(p, job->mask, job->first_seq + s, (uint32_t)(first - before),
                                        (uint32_t)(end - before), &at, &row_slots);
                if (rc != 0)
                    return rc;
                useful += end - first;
            }
            before = after;
        }
    }
    if (at != p->plan->n_tiles)
        return wrong(p, "tile %u belongs to no rows of the request", at);
    if (useful != p->plan->useful_rows || row_slots != p->plan->row_slots)
        return wrong(p, "useful_rows or row_slots is not that of the tiles");
    return 0;
}

/* Items between two of a tile, whose neighbours are cut with it; 0: it has no second one where that may be. */
static uint32_t item_step(const struct plan *plan, uint32_t tile)
{
    const struct mla_abi_tile *t = &plan->tiles[tile];
    for (uint32_t step = 1; step <= PLAN_TILE_UNITS_MAX && step < plan->n_items - t->first_item; step++)
        if (plan->items[t->first_item + step].tile == tile)
            return step;
    return 0;
}

/* The items of one tile: in order, none empty but the one of a tile without pages, partials one behind the other. */
static int check_items(const struct proof *p, uint32_t tile)
{
    const struct mla_abi_tile *t = &p->plan->tiles[tile];
    uint32_t page = 0;
    if (t->n_items < 1 || t->first_item > p->plan->n_items || t->n_items > p->plan->n_items - t->first_item)
        return wrong(p, "tile %u: items %u+%u are not among the %u items", tile, t->first_item, t->n_items,
                     p->plan->n_items);
    uint32_t step = t->n_items > 1 ? item_step(p->plan, tile) : 1;
    if (step == 0)
        return wrong(p, "item %u is of tile %u, but in the range of tile %u", t->first_item + 1,
                     p->plan->items[t->first_item + 1].tile, tile);
    if ((p->plan->n_items - t->first_item - 1) / step < t->n_items - 1)
        return wrong(p, "tile %u has less than its %u items", tile, t->n_items);
    uint32_t most =
        p->request->splits != 0 ? p->request->splits : plan_div_up(t->pages, p->request->device.min_pages_per_split);
    uint32_t least = plan_least_items(&p->request->device, t->pages), cap = p->request->device.max_pages_per_item;
    if (most < least)
        most = least;
    if (p->request->splits == 0 && least > 1)
        most += least; /* pieces of the longest kind, and cuts */
    if (t->n_items > 1 && t->n_items > most)
        return wrong(p, "tile %u is cut into %u items, at most %u are allowed", tile, t->n_items, most);
    uint64_t partial = p->plan->items[t->first_item].partial_row;
    for (uint32_t k = 0; k < t->n_items; k++) {
        uint32_t i = t->first_item + k * step;
        const struct mla_abi_item *item = &p->plan->items[i];
        if (item->tile != tile)
            return wrong(p, "item %u is of tile %u, but in the range of tile %u", i, item->tile, tile);
        if (item->page_begin != page)
            return wrong(p, "item %u begins at page %u instead of %u", i, item->page_begin, page);
        if (item->page_end > t->pages || (item->page_end <= page && t->pages > 0))
            return wrong(p, "item %u ends at page %u", i, item->page_end);
        if (cap != 0 && item->page_end - item->page_begin > cap)
            return wrong(p, "item %u has %u pages, at most %u are allowed", i, item->page_end - item->page_begin, cap);
        if (t->n_items == 1 && item->partial_row != MLA_ABI_NO_PARTIAL)
            return wrong(p, "item %u is the only one of its tile and has a partial", i);
        if (t->n_items > 1 && item->partial_row != partial + (uint64_t)k * t->rows)
            return wrong(p, "item %u has its partial at row %u", i, item->partial_row);
        page = item->page_end;
    }
    if (page != t->pages)
        return wrong(p, "tile %u: pages from %u on are in no item", tile, page);
    if (t->n_items > 1 && (t->pages < t->n_items || partial + (uint64_t)t->n_items * t->rows > p->plan->partial_rows))
        return wrong(p, "tile %u: partials end behind the workspace of %u rows", tile, p->plan->partial_rows);
    return 0;
}

static int check_all_items(const struct proof *p, uint32_t *split_tiles)
{
    const struct plan *plan = p->plan;
    uint64_t items = 0;
    uint64_t units = 0;
    uint32_t max_splits = 0;
    for (uint32_t t = 0; t < plan->n_tiles; t++) {
        const struct mla_abi_tile *tile = &plan->tiles[t];
        int rc = check_items(p, t);
        if (rc != 0)
            return rc;
        items += tile->n_items;
        units += (uint64_t)plan_row_units(p->request, tile->rows) * tile->n_items;
        max_splits = tile->n_items > max_splits ? tile->n_items : max_splits;
        *split_tiles += tile->n_items > 1;
    }
    if (items != plan->n_items)
        return wrong(p, "the tiles have %llu items, the plan %u", (unsigned long long)items, plan->n_items);
    uint64_t resident = p->request->device.resident_units;
    if (max_splits != plan->max_splits || units != plan->item_units || plan->waves != (units + resident - 1) / resident)
        return wrong(p, "max_splits, item_units or waves is not that of the items");
    return 0;
}

static int check_reduces(const struct proof *p, uint32_t split_tiles)
{
    const struct plan *plan = p->plan;
    uint64_t free_row = 0;
    if (plan->n_reduces != split_tiles)
        return wrong(p, "%u reduces for %u split tiles", plan->n_reduces, split_tiles);
    for (uint32_t i = 0; i < plan->n_reduces; i++) {
        const struct mla_abi_reduce *r = &plan->reduces[i];
        if (r->tile >= plan->n_tiles)
            return wrong(p, "reduce %u is of tile %u", i, r->tile);
        const struct mla_abi_tile *t = &plan->tiles[r->tile];
        if (t->n_items < 2 || r->n_partials != t->n_items || r->rows != t->rows)
            return wrong(p, "reduce %u combines %u partials of %u rows, tile %u has %u of %u", i, r->n_partials,
                         r->rows, r->tile, t->n_items, t->rows);
        if (r->partial_row != plan->items[t->first_item].partial_row)
            return wrong(p, "reduce %u reads from row %u, its tile writes from row %u", i, r->partial_row,
                         plan->items[t->first_item].partial_row);
        if (r->partial_row < free_row)
            return wrong(p, "reduce %u: its partials meet those before", i);
        free_row = r->partial_row + (uint64_t)r->n_partials * r->rows;
    }
    if (free_row != plan->partial_rows)
        return wrong(p, "partials end at row %llu, partial_rows is %u", (unsigned long long)free_row,
                     plan->partial_rows);
    return 0;
}

int plan_check(const struct plan_request *request, const struct plan *plan, char *why, size_t why_bytes)
{
    struct proof p = {.request = request, .plan = plan, .why = why, .why_bytes = why_bytes};
    struct plan_capacity bound;
    uint32_t split_tiles = 0;
    if (why != NULL && why_bytes > 0)
        why[0] = '\0';
    if (plan_bound_checked(request, &bound) != 0)
        return wrong(&p, "the request makes no sense");
    int rc = check_counts(&p);
    if (rc == 0)
        rc = check_tiles(&p);
    if (rc == 0)
        rc = check_all_items(&p, &split_tiles);
    if (rc == 0)
        rc = check_reduces(&p, split_tiles);
    return rc;
}
