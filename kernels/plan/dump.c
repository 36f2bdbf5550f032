#include "kernels/plan/internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

struct text {
    char *out;
    size_t size;
    size_t length; /* without the terminating zero, were there room */
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *format, ...)
{
    va_list args;
    size_t room = t->length < t->size ? t->size - t->length : 0;
    va_start(args, format);
    int n = vsnprintf(room > 0 ? t->out + t->length : NULL, room, format, args);
    va_end(args);
    if (n > 0)
        t->length += (size_t)n;
}

static const char *policy_name(enum plan_policy policy)
{
    switch (policy) {
    case PLAN_SEED:
        return "seed";
    case PLAN_BALANCED:
        return "balanced";
    case PLAN_AUTO:
        return "auto";
    case PLAN_UNSPLIT:
        return "unsplit";
    }
    return "unknown";
}

size_t plan_dump(const struct plan_request *request, const struct plan *plan, char *out, size_t out_bytes)
{
    struct text t = {.out = out, .size = out_bytes};
    const struct plan_device *d = &request->device;
    if (out_bytes > 0)
        out[0] = '\0';
    put(&t, "device sms %u unit %ux%u units %u min_pages %u\n", d->sms, d->ctas_per_unit, d->rows_per_unit,
        d->resident_units, d->min_pages_per_split);
    put(&t, "request heads %u tile_rows %u seqs %u jobs %u policy %s splits %u\n", request->heads, request->tile_rows,
        request->n_seqs, request->n_jobs, policy_name(request->policy), request->splits);
    put(&t, "plan chosen %s tiles %u items %u reduces %u max_splits %u item_units %u waves %u\n",
        policy_name(plan->chosen), plan->n_tiles, plan->n_items, plan->n_reduces, plan->max_splits, plan->item_units,
        plan->waves);
    put(&t, "rows useful %" PRIu64 " slots %" PRIu64 " partial %u workspace_bytes %" PRIu64 " model_ns %" PRIu64 "\n",
        plan->useful_rows, plan->row_slots, plan->partial_rows, plan->workspace_bytes, plan->predicted_ns);
    for (uint32_t i = 0; i < plan->n_tiles; i++) {
        const struct mla_abi_tile *tile = &plan->tiles[i];
        put(&t, "tile %u seq %u rows %u+%u pages %u items %u+%u\n", i, tile->seq, tile->first_row, tile->rows,
            tile->pages, tile->first_item, tile->n_items);
    }
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct mla_abi_item *item = &plan->items[i];
        put(&t, "item %u tile %u pages %u..%u partial ", i, item->tile, item->page_begin, item->page_end);
        if (item->partial_row == MLA_ABI_NO_PARTIAL)
            put(&t, "none\n");
        else
            put(&t, "%u\n", item->partial_row);
    }
    for (uint32_t i = 0; i < plan->n_reduces; i++) {
        const struct mla_abi_reduce *r = &plan->reduces[i];
        put(&t, "reduce %u tile %u partial %u n %u rows %u\n", i, r->tile, r->partial_row, r->n_partials, r->rows);
    }
    return t.length;
}
