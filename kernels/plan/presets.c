#include "kernels/plan/internal.h"

#include <errno.h>
#include <string.h>

/* Fitted by mla-bench costs to 604 plans of the reference shapes (mla-bench shapes --splits) and 35 of shorter and
 * longer contexts (--kv, --rows), measured on one H200 (700 W, 2026-11-30): within a shape off by 1.63 %, good splits
 * foremost. Then by hand: of what a launch and its items cost together, an item has 3,000 ns, an estimate; and the
 * reducer of a later version, by its times in the reference shapes (5 us of 8,448 partial rows, 7 of 10,752, 14 of
 * 15,744): what it does for each row that it writes has no constant. A model, not results; single constants are not
 * times of anything. kernels.cmake has the same for the Hopper kernel.
 *
 * max_pages 2,048: f16 sums take more windows than that no longer well
 *
 * "reference" is the part that the reference workload's post plans for: native 256-row tiles on 4 CTAs, 33 units on 132
 * SMs. Its speed per CTA is taken to be the H200's. */
static const struct plan_costs h200_costs = {
    .launch_ns = 8944,
    .fill_ns = 2000,
    .page_ns = 1195,
    .drain_ns = 1000,
    .partial_ns = 1,
    .reduce_launch_ns = 700,
    .reduce_bytes_per_us = 4000000,
    .reduce_fixed_ns = 2500,
};

static const struct {
    const char *name;
    struct plan_device device;
} presets[] = {
    {"h200",
     {.sms = 132,
      .ctas_per_unit = 2,
      .rows_per_unit = 128,
      .resident_units = 66,
      .min_pages_per_split = 4,
      .max_pages_per_item = 2048}},
    {"reference",
     {.sms = 132, .ctas_per_unit = 4, .rows_per_unit = 256, .resident_units = 33, .min_pages_per_split = 8}},
};

int plan_device_preset(const char *name, struct plan_device *device, struct plan_costs *costs)
{
    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++) {
        if (strcmp(presets[i].name, name) == 0) {
            *device = presets[i].device;
            *costs = h200_costs;
            return 0;
        }
    }
    return -ENOENT;
}
