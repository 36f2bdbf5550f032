#include "kernels/plan/internal.h"

#include <errno.h>
#include <string.h>

/* Starting constants, to be fitted again when the tuned kernel runs. Measured on one H200 (700 W, 2026-11) unless
 * marked as an estimate; a model, not results.
 *
 *   page_ns      a pair of CTAs, 128 rows, promotion included, sustains 1,073 to 1,099 TFLOP/s over 132 SMs in a study
 *                kernel; 2 * 128 rows * 64 tokens * 1,088 FLOP * 66 units / 1,083 TFLOP/s = 1,086 ns
 *   fill + drain hand-over from one item to the next on the same CTAs: 1.5 us (estimate)
 *   launch_ns    1.6 us (gap between plain launches: 1.59 measured), and what the first fill (3.5 us) and the last
 * drain (2.0 us) take beyond a hand-over (both estimates) partial_ns   1.5 us (estimate) reduce_*     gap between two
 * kernels of a graph: 0.66 us measured, 0.7 taken; 3.0 us of its own (estimate); read bandwidth 4.62 TB/s, copy 4.21
 * measured, 4.0 taken min_pages    8: a promotion window of the study kernel is 8 to 12 pages
 *
 * "reference" is the part that the reference workload's post plans for: native 256-row tiles on 4 CTAs, 33 units on 132
 * SMs. Its speed per CTA is taken to be the H200's. */
static const struct plan_costs h200_costs = {
    .launch_ns = 5600,
    .fill_ns = 1000,
    .page_ns = 1086,
    .drain_ns = 500,
    .partial_ns = 1500,
    .reduce_launch_ns = 700,
    .reduce_bytes_per_us = 4000000,
    .reduce_fixed_ns = 3000,
};

static const struct {
    const char *name;
    struct plan_device device;
} presets[] = {
    {"h200", {.sms = 132, .ctas_per_unit = 2, .rows_per_unit = 128, .resident_units = 66, .min_pages_per_split = 8}},
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
