#include "kernels/plan/internal.h"

#include <errno.h>
#include <string.h>

#define NS_MAX (UINT64_C(1) << 62)

static bool request_makes_sense(const struct plan_request *r)
{
    const struct plan_device *d = &r->device;
    if (r->heads < 1 || r->heads > 128)
        return false;
    if (r->tile_rows != 64 && r->tile_rows != 128 && r->tile_rows != 256)
        return false;
    if (r->policy < PLAN_SEED || r->policy > PLAN_UNSPLIT)
        return false;
    if (d->rows_per_unit < 1 || d->min_pages_per_split < 1 || d->resident_units > PLAN_UNITS_MAX)
        return false;
    if (d->max_pages_per_item != 0 && d->max_pages_per_item < d->min_pages_per_split)
        return false;
    if (plan_row_units(r, r->tile_rows) > d->resident_units)
        return false;
    if (r->costs.page_ns < 1 || r->costs.reduce_bytes_per_us < 1)
        return false;
    uint64_t next = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        const struct plan_job *job = &r->jobs[j];
        if (job->first_seq != next || job->mask < MLA_ABI_MASK_NONE || job->mask > MLA_ABI_MASK_VISIBLE)
            return false;
        next += job->n_seqs;
    }
    return next == r->n_seqs;
}

static uint32_t invariant_jobs(const struct plan_request *r)
{
    uint32_t n = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++)
        n += r->jobs[j].batch_invariant;
    return n;
}

int plan_bound_checked(const struct plan_request *r, struct plan_capacity *capacity)
{
    if (!request_makes_sense(r))
        return -EINVAL;
    uint64_t split_ns = (uint64_t)r->costs.fill_ns + r->costs.drain_ns + r->costs.partial_ns;
    uint64_t widest = plan_row_units(r, r->tile_rows);
    uint64_t tiles = 0;
    uint64_t forced_items = 0; /* or: items when every page is one */
    uint64_t capped = 0;       /* items that max_pages_per_item adds */
    const struct plan_device *d = &r->device;
    uint64_t ns = 0; /* no time that planning forms exceeds this */
    for (uint32_t i = 0; i < r->n_seqs; i++) {
        uint64_t rows = (uint64_t)r->seqs[i].q_len * r->heads;
        if (rows > UINT32_MAX)
            return -EOVERFLOW;
        uint64_t t = plan_div_up((uint32_t)rows, r->tile_rows);
        uint32_t pages = plan_div_up(r->seqs[i].kv_len, MLA_ABI_PAGE_TOKENS);
        uint64_t most = pages < 1 ? 1 : pages;
        uint64_t least = plan_least_items(d, pages);
        if (r->splits != 0 && most > r->splits)
            most = r->splits > least ? r->splits : least;
        tiles += t;
        capped += t * (least - 1);
        forced_items += t * most;
        uint64_t tile_ns;
        uint64_t add_ns;
        if (__builtin_mul_overflow(split_ns + (uint64_t)pages * r->costs.page_ns, widest, &tile_ns) ||
            __builtin_mul_overflow(tile_ns, t, &add_ns) || __builtin_add_overflow(ns, add_ns, &ns) || ns > NS_MAX)
            return -EOVERFLOW;
        if (tiles > UINT32_MAX || forced_items > NS_MAX)
            return -EOVERFLOW;
    }
    /* seed makes at most 2 * units items where it splits, balanced at most a cut per unit. */
    uint64_t groups = 1 + invariant_jobs(r);
    uint64_t items = tiles + capped + 2 * groups * r->device.resident_units;
    if (r->splits != 0 || items > forced_items)
        items = forced_items;
    uint64_t items_ns;
    if (items * widest > UINT32_MAX)
        return -EOVERFLOW;
    if (__builtin_mul_overflow(items * widest, split_ns, &items_ns) || items_ns > NS_MAX - ns)
        return -EOVERFLOW;
    *capacity = (struct plan_capacity){
        .tiles = (uint32_t)tiles,
        .items = (uint32_t)items,
        .reduces = (uint32_t)(items - tiles < tiles ? items - tiles : tiles),
        .scratch_bytes = 2 * PLAN_TIMELINE_SLOTS(r->device.resident_units) * sizeof(struct plan_slot) +
                         2 * (size_t)tiles * sizeof(plan_entry),
    };
    return 0;
}

int plan_bound(const struct plan_request *request, struct plan_capacity *capacity)
{
    *capacity = (struct plan_capacity){0};
    return plan_bound_checked(request, capacity);
}

int plan_emit(struct plan *plan, uint32_t tile, uint32_t n_tiles, uint32_t page_begin, uint32_t page_end)
{
    struct mla_abi_item *items = &plan->items[plan->n_items];
    if (plan->capacity.items - plan->n_items < n_tiles)
        return -ENOSPC;
    for (uint32_t k = 0; k < n_tiles; k++)
        items[k] = (struct mla_abi_item){
            .tile = tile + k, .page_begin = page_begin, .page_end = page_end, .partial_row = MLA_ABI_NO_PARTIAL};
    plan->n_items += n_tiles;
    return 0;
}

int plan_emit_end(struct plan *plan, uint32_t tile, uint32_t n_tiles, uint32_t first_item)
{
    uint32_t n = plan->n_items - first_item, row = plan->partial_rows;
    n = n_tiles > 1 ? n / n_tiles : n; /* of each */
    if (n > 1 && plan->capacity.reduces - plan->n_reduces < n_tiles)
        return -ENOSPC;
    for (uint32_t t = 0; t < n_tiles; t++) {
        struct mla_abi_tile *at = &plan->tiles[tile + t];
        struct mla_abi_item *items = &plan->items[first_item + t];
        uint32_t rows = at->rows;
        at->first_item = first_item + t;
        at->n_items = n;
        if (n == 1)
            continue;
        plan->reduces[plan->n_reduces++] =
            (struct mla_abi_reduce){.tile = tile + t, .partial_row = row, .n_partials = n, .rows = rows};
        for (uint32_t k = 0; k < n; k++, items += n_tiles, row += rows)
            items->partial_row = row;
    }
    plan->partial_rows = row;
    return 0;
}

/* Starts a set of tiles [begin, end) or adds them to it. */
static void add_to_set(struct plan_work *w, uint32_t begin, uint32_t end)
{
    for (uint32_t t = begin; t < end; t++) {
        uint32_t units = plan_tile_units(w, t), pages = w->plan->tiles[t].pages;
        w->set[w->n_set++] = (uint64_t)~pages << 32 | t;
        w->set_units += units;
        w->set_pages += (uint64_t)pages * units;
        w->min_units = units < w->min_units ? units : w->min_units;
        w->max_units = units > w->max_units ? units : w->max_units;
        w->shares_pages |= t > begin && w->plan->tiles[t].seq == w->plan->tiles[t - 1].seq &&
                           w->plan->tiles[t].pages == w->plan->tiles[t - 1].pages;
    }
    w->order = 0;
}

static void clear_set(struct plan_work *w)
{
    w->n_set = 0;
    w->set_units = w->set_pages = 0;
    w->min_units = UINT32_MAX;
    w->max_units = 0;
    w->shares_pages = false;
}

static int emit_cut(struct plan_work *w, const struct plan_cut *cut)
{
    return cut->target_ns != 0 ? plan_balanced_emit(w, cut) : plan_uniform_emit(w, cut);
}

static void choose(struct plan_work *w, enum plan_policy policy, struct plan_cut *best)
{
    *best = (struct plan_cut){.policy = PLAN_UNSPLIT, .splits = 1, .min_pages = 1};
    if (policy == PLAN_SEED) {
        plan_seed_choose(w, NULL, best);
        return;
    }
    plan_uniform_try(w, best);
    if (policy == PLAN_UNSPLIT)
        return;
    struct plan_cut unsplit = *best;
    struct plan_cut cut;
    plan_balanced_choose(w, &unsplit, &cut);
    if (policy == PLAN_BALANCED) {
        *best = cut;
        return;
    }
    /* Equal costs: the earlier one, which needs less workspace. */
    if (cut.cost_ns < best->cost_ns)
        *best = cut;
    plan_seed_choose(w, &unsplit, &cut);
    if (cut.cost_ns < best->cost_ns)
        *best = cut;
}

/* Each batch-invariant job is cut as if it were alone on the device. */
static int place_invariant_jobs(struct plan_work *w)
{
    const struct plan_request *r = w->request;
    struct plan *plan = w->plan;
    uint32_t tile = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t begin = tile;
        while (tile < plan->n_tiles && plan->tiles[tile].seq - r->jobs[j].first_seq < r->jobs[j].n_seqs)
            tile++;
        if (!r->jobs[j].batch_invariant || begin == tile)
            continue;
        struct plan_cut cut;
        clear_set(w);
        add_to_set(w, begin, tile);
        plan_timeline_init(&w->base, r->device.resident_units);
        choose(w, PLAN_AUTO, &cut);
        if (plan->partial_rows + cut.partial_rows > w->rows_max)
            return -ENOSPC;
        int rc = emit_cut(w, &cut);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static uint64_t item_ns(const struct plan_work *w, const struct mla_abi_item *item)
{
    return (item->partial_row == MLA_ABI_NO_PARTIAL ? w->whole_ns : w->split_ns) +
           (item->page_end - item->page_begin) * w->page_ns;
}

/* The timeline behind the items so far, and their units. */
static void advance_base(struct plan_work *w)
{
    plan_timeline_init(&w->base, w->request->device.resident_units);
    w->base_units = 0;
    for (uint32_t i = 0; i < w->plan->n_items; i++) {
        const struct mla_abi_item *item = &w->plan->items[i];
        uint32_t units = plan_tile_units(w, item->tile);
        plan_timeline_take(&w->base, units, item_ns(w, item));
        w->base_units += units;
    }
}

static int place_others(struct plan_work *w, struct plan_cut *cut)
{
    const struct plan_request *r = w->request;
    struct plan *plan = w->plan;
    uint32_t tile = 0;
    bool all = r->splits != 0 || w->n_invariant == 0;
    clear_set(w);
    if (all)
        add_to_set(w, 0, plan->n_tiles);
    for (uint32_t j = 0; !all && j < r->n_jobs; j++) {
        uint32_t begin = tile;
        while (tile < plan->n_tiles && plan->tiles[tile].seq - r->jobs[j].first_seq < r->jobs[j].n_seqs)
            tile++;
        if (!r->jobs[j].batch_invariant)
            add_to_set(w, begin, tile);
    }
    advance_base(w);
    w->base_rows = plan->partial_rows;
    w->rows_max -= plan->partial_rows;
    if (r->splits != 0) {
        *cut = (struct plan_cut){.policy = r->policy, .splits = r->splits, .min_pages = 1};
        if (plan_uniform_rows(w, r->splits, 1) > w->rows_max)
            return -ENOSPC;
        plan_uniform_try(w, cut);
    } else {
        choose(w, r->policy, cut);
        if (cut->partial_rows > w->rows_max) /* of tiles that are cut for their length */
            return -ENOSPC;
    }
    return emit_cut(w, cut);
}

static void sum_up(struct plan_work *w)
{
    struct plan *plan = w->plan;
    for (uint32_t t = 0; t < plan->n_tiles; t++) {
        plan->item_units += plan_tile_units(w, t) * plan->tiles[t].n_items;
        if (plan->tiles[t].n_items > plan->max_splits)
            plan->max_splits = plan->tiles[t].n_items;
    }
    plan->rows_per_unit = w->request->device.rows_per_unit;
    plan->waves = plan_div_up(plan->item_units, w->request->device.resident_units);
    plan->workspace_bytes = (uint64_t)plan->partial_rows * MLA_ABI_PARTIAL_ROW_BYTES;
}

int plan_build(const struct plan_request *request, struct plan *plan)
{
    struct plan_capacity need = {0};
    int rc = plan_bound_checked(request, &need);
    if (rc != 0)
        return rc;
    *plan = (struct plan){.tiles = plan->tiles,
                          .items = plan->items,
                          .reduces = plan->reduces,
                          .scratch = plan->scratch,
                          .capacity = plan->capacity};
    if (plan->capacity.tiles < need.tiles || plan->capacity.scratch_bytes < need.scratch_bytes)
        return -ENOSPC;

    uint64_t rows_max = request->workspace_bytes_max / MLA_ABI_PARTIAL_ROW_BYTES;
    struct plan_slot *slots = plan->scratch;
    plan_entry *entries = (plan_entry *)(slots + 2 * PLAN_TIMELINE_SLOTS(request->device.resident_units));
    struct plan_work w = {
        .request = request,
        .plan = plan,
        .page_ns = request->costs.page_ns,
        .whole_ns = (uint64_t)request->costs.fill_ns + request->costs.drain_ns,
        .full_tile_units = plan_row_units(request, request->tile_rows),
        .n_invariant = invariant_jobs(request),
        .base.slots = slots,
        .line.slots = slots + PLAN_TIMELINE_SLOTS(request->device.resident_units),
        .rows_max = rows_max < PLAN_PARTIAL_ROWS_MAX ? rows_max : PLAN_PARTIAL_ROWS_MAX,
        .set = entries,
        .set_tmp = entries + need.tiles,
    };
    w.split_ns = w.whole_ns + request->costs.partial_ns;

    for (uint32_t j = 0; j < request->n_jobs; j++) {
        const struct plan_job *job = &request->jobs[j];
        uint64_t before = 0;
        for (uint32_t s = 0; s < job->n_seqs; s++) {
            uint32_t rows = request->seqs[job->first_seq + s].q_len * request->heads, first, end;
            plan_part_of_sequence(job, before, rows, &first, &end);
            rc = plan_tiles_add(request, job->mask, job->first_seq + s, first, end, plan);
            if (rc != 0)
                return rc;
            before += rows;
        }
    }
    if (request->splits == 0 && w.n_invariant > 0) {
        rc = place_invariant_jobs(&w);
        if (rc != 0)
            return rc;
    }
    struct plan_cut cut;
    rc = place_others(&w, &cut);
    if (rc != 0)
        return rc;
    sum_up(&w);
    plan->chosen = cut.policy;
    if (plan->n_items > 0)
        plan->predicted_ns =
            request->costs.launch_ns + cut.end_ns + plan_reduce_ns(&request->costs, plan->partial_rows);
    return 0;
}
