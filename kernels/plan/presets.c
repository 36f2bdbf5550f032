#include <errno.h>
#include <string.h>

#include "kernels/plan/kinds.h"

/* Fitted by mla-bench costs to 604 plans of the reference shapes (mla-bench shapes --splits) and 35 of shorter and
 * longer contexts (--kv, --rows), measured on one H200 (700 W, 2026-11-30): within a shape off by 1.63 %, good splits
 * foremost. Then by hand: of what a launch and its items cost together, an item has 3,000 ns, an estimate; and the
 * reducer of a later version, by its times in the reference shapes (5 us of 8,448 partial rows, 7 of 10,752, 14 of
 * 15,744): what it does for each row that it writes has no constant. A model, not results; single constants are not
 * times of anything. kernels.cmake has the same, and what a page costs the other kinds.
 *
 * max_pages 2,048: f16 sums take more windows than that no longer well
 *
 * "reference" is the part that the reference workload's post plans for: native 256-row tiles on 4 CTAs, 33 units on 132
 * SMs. Its speed per CTA is taken to be the H200's. */
#define H200_COSTS(page)                                                                                               \
    {                                                                                                                  \
        .launch_ns = 8944, .fill_ns = 2000, .page_ns = (page), .drain_ns = 1000, .partial_ns = 1,                      \
        .reduce_launch_ns = 700, .reduce_bytes_per_us = 4000000, .reduce_fixed_ns = 2500,                              \
    }
#define H200_KIND(section, ctas, rows, page)                                                                           \
    {                                                                                                                  \
        .name = (section), .costs = H200_COSTS(page), .tile_rows = MLA_ABI_TILE_ROWS, .device = {                      \
            .sms = 132,                                                                                                \
            .ctas_per_unit = (ctas),                                                                                   \
            .rows_per_unit = (rows),                                                                                   \
            .resident_units = 132 / (ctas),                                                                            \
            .min_pages_per_split = 4,                                                                                  \
            .max_pages_per_item = 2048                                                                                 \
        }                                                                                                              \
    }

/* As kernels.cmake has them. */
static const struct plan_kind h200[] = {
    H200_KIND("sm90", 2, 128, 1195),   H200_KIND("sm90-96", 2, 96, 1120), H200_KIND("sm90-64", 1, 64, 1400),
    H200_KIND("sm90-48", 1, 48, 1310), H200_KIND("sm90-32", 1, 32, 1150),
};

static const struct plan_kind reference = {
    .name = "reference",
    .costs = H200_COSTS(1195),
    .tile_rows = MLA_ABI_TILE_ROWS,
    .device = {.sms = 132, .ctas_per_unit = 4, .rows_per_unit = 256, .resident_units = 33, .min_pages_per_split = 8}};

size_t plan_kinds(const struct plan_kind **kinds)
{
    *kinds = h200;
    return sizeof(h200) / sizeof(h200[0]);
}

static const struct plan_kind *find(const char *name)
{
    if (strcmp(name, reference.name) == 0)
        return &reference;
    if (strcmp(name, "h200") == 0)
        return &h200[0];
    for (size_t i = 0; i < sizeof(h200) / sizeof(h200[0]); i++)
        if (strcmp(name, h200[i].name) == 0)
            return &h200[i];
    return NULL;
}

int plan_device_preset(const char *name, struct plan_device *device, struct plan_costs *costs)
{
    const struct plan_kind *kind = find(name);
    if (kind == NULL)
        return -ENOENT;
    *device = kind->device;
    *costs = kind->costs;
    return 0;
}
