#include "daemon/ctl/ctl_plan.h"

#define PAGE_TOKENS 64u
#define QK_DIM      576u
#define V_DIM       512u

/* FLOP of a row and a key, e4m3 bytes of a key, and of a row's Q and O. */
#define FLOP_PER_ROW_KEY (2u * (QK_DIM + V_DIM))
#define BYTES_PER_ROW    (QK_DIM + V_DIM)

static double busy_of(const struct plan_request *r, const struct plan *plan)
{
    uint64_t busy_ns = 0;
    for (uint32_t i = 0; i < plan->n_items; i++) {
        const struct mla_abi_item *item = &plan->items[i];
        const struct mla_abi_tile *tile = &plan->tiles[item->tile];
        uint64_t units = (tile->rows + r->device.rows_per_unit - 1) / r->device.rows_per_unit;
        uint64_t ns = r->costs.fill_ns + (uint64_t)r->costs.page_ns * (item->page_end - item->page_begin) +
                      r->costs.drain_ns + (tile->n_items > 1 ? r->costs.partial_ns : 0);
        busy_ns += units * ns;
    }
    double all_ns = (double)r->device.resident_units * (double)plan->predicted_ns;
    return all_ns > 0 ? (double)busy_ns / all_ns : 0;
}

void ctl_plan_model(const struct ctl_plan_options *o, const struct plan_request *r, const struct plan *plan,
                    struct ctl_plan_model *m)
{
    double rows = (double)o->batch * o->q_len * o->heads;
    double keys = (double)o->kv_len;
    /* What a full unit does to a page in page_ns, by SM: whatever the plan is for, the roof is that of the part. */
    struct plan_device device;
    struct plan_costs costs;
    (void)plan_device_preset("h200", &device, &costs);
    double flop_per_page = (double)FLOP_PER_ROW_KEY * device.rows_per_unit * PAGE_TOKENS;
    double flop_per_us_and_sm = flop_per_page * 1000 / costs.page_ns / device.ctas_per_unit;
    m->flop = rows * keys * FLOP_PER_ROW_KEY;
    m->bytes = (double)o->batch * keys * QK_DIM + rows * BYTES_PER_ROW;
    m->flop_us = m->flop / (flop_per_us_and_sm * r->device.sms);
    m->bytes_us = m->bytes / (o->bandwidth_gb * 1000);
    m->roofline_us = m->flop_us > m->bytes_us ? m->flop_us : m->bytes_us;
    m->rows = plan->row_slots > 0 ? rows / (double)plan->row_slots : 0;
    m->busy = busy_of(r, plan);
}
