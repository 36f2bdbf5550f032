/* What a job weighs, and how a heavy one is cut into parts, each of which a launch can take by itself. */
#include "kernels/plan/internal.h"

struct walk {
    const struct plan_request *request;
    uint64_t load_max; /* of a part, nanoseconds of one unit */
    uint64_t load;     /* of the part so far */
    uint64_t total;
    uint64_t row;                     /* of the job */
    uint64_t first;                   /* row of the part */
    uint64_t partials, most_partials; /* rows of partials that the part has at least, and the most of any part */
    uint32_t part;
    uint32_t wanted; /* part to stop behind */
};

/* True: the part that was wanted ends in front of this tile. */
static bool next_tile(struct walk *w, uint32_t rows, uint32_t pages)
{
    const struct plan_costs *c = &w->request->costs;
    uint64_t ns = (uint64_t)plan_row_units(w->request, rows) *
                  ((uint64_t)c->fill_ns + c->drain_ns + (uint64_t)pages * c->page_ns);
    if (w->load > 0 && (w->load >= w->load_max || ns > w->load_max - w->load)) {
        if (w->part == w->wanted)
            return true;
        w->part++;
        w->first = w->row;
        w->load = w->partials = 0;
    }
    w->load += ns;
    w->total += ns;
    w->row += rows;
    uint32_t items = plan_least_items(&w->request->device, pages);
    w->partials += items > 1 ? (uint64_t)items * rows : 0;
    w->most_partials = w->partials > w->most_partials ? w->partials : w->most_partials;
    return false;
}

/* True: the part that was wanted ends at w->row, and something is behind it. */
static bool walk(struct walk *w)
{
    const struct plan_request *r = w->request;
    uint32_t mask = r->jobs[0].mask;
    for (uint32_t s = 0; s < r->n_seqs; s++) {
        uint32_t rows = r->seqs[s].q_len * r->heads;
        for (uint32_t first = 0; first < rows; first += r->tile_rows) {
            uint32_t n = rows - first < r->tile_rows ? rows - first : r->tile_rows;
            uint32_t pages = plan_visible_pages(mask, r->seqs[s].q_len, r->seqs[s].kv_len, (first + n - 1) / r->heads);
            if (next_tile(w, n, pages))
                return true;
        }
    }
    return false;
}

static uint64_t unit_ns(const struct plan_request *request, uint64_t ns)
{
    uint64_t units = request->device.resident_units;
    return ns > UINT64_MAX / units ? UINT64_MAX : ns * units;
}

uint32_t plan_parts(const struct plan_request *request, uint64_t part_max_ns, uint64_t *load_ns)
{
    struct walk w = {.request = request, .load_max = unit_ns(request, part_max_ns), .wanted = UINT32_MAX};
    walk(&w);
    *load_ns = (w.total + request->device.resident_units - 1) / request->device.resident_units;
    return w.part + 1;
}

void plan_part_rows(const struct plan_request *request, uint64_t part_max_ns, uint32_t part, uint64_t *skip_rows,
                    uint64_t *n_rows)
{
    struct walk w = {.request = request, .load_max = unit_ns(request, part_max_ns), .wanted = part};
    bool more = walk(&w);
    *skip_rows = w.first;
    *n_rows = more ? w.row - w.first : 0;
}

uint64_t plan_least_partial_bytes(const struct plan_request *request, uint64_t part_max_ns)
{
    struct walk w = {.request = request, .load_max = unit_ns(request, part_max_ns), .wanted = UINT32_MAX};
    walk(&w);
    uint64_t rows = w.most_partials;
    return rows > UINT64_MAX / MLA_ABI_PARTIAL_ROW_BYTES ? UINT64_MAX : rows * MLA_ABI_PARTIAL_ROW_BYTES;
}
