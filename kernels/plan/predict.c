#include "kernels/plan/internal.h"

uint64_t plan_reduce_ns(const struct plan_costs *costs, uint64_t partial_rows)
{
    if (partial_rows == 0)
        return 0;
    return (uint64_t)costs->reduce_launch_ns + costs->reduce_fixed_ns +
           partial_rows * MLA_ABI_PARTIAL_ROW_BYTES * 1000 / costs->reduce_bytes_per_us;
}

uint64_t plan_predict_ns(const struct plan_request *request, const struct plan *plan)
{
    const struct plan_costs *c = &request->costs;
    if (plan->n_items == 0)
        return 0;
    struct plan_timeline line = {.slots = plan->scratch};
    plan_timeline_init(&line, request->device.resident_units);
    uint64_t fixed_ns = (uint64_t)c->fill_ns + c->drain_ns;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct mla_abi_item *item = &plan->items[i];
        uint32_t units = plan_row_units(request, plan->tiles[item->tile].rows);
        uint64_t ns = fixed_ns + (uint64_t)(item->page_end - item->page_begin) * c->page_ns;
        if (item->partial_row != MLA_ABI_NO_PARTIAL)
            ns += c->partial_ns;
        plan_timeline_take(&line, units, ns);
    }
    return c->launch_ns + plan_timeline_end(&line) + plan_reduce_ns(c, plan->partial_rows);
}
