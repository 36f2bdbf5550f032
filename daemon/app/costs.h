/* A file of cost constants that were measured on the device at hand (mla-bench calibrate writes it):
 *
 *     [costs]
 *     device = NVIDIA H200       the device's name, which must be the one that is served
 *     rows_per_unit = 128        of the kernels that were measured, likewise
 *     launch_ns = 11000          and so on: every member of struct plan_costs
 */
#ifndef MLA_DAEMON_APP_COSTS_H
#define MLA_DAEMON_APP_COSTS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/plan/plan.h"

struct costs_file {
    char device[96];
    uint32_t rows_per_unit;
    struct plan_costs costs;
};

/* 0, or -1 with a sentence that names file, line or key in why. Every key stands there once; page_ns and
 * reduce_bytes_per_us are not 0. */
int costs_load(const char *path, struct costs_file *out, char *why, size_t why_bytes);

#endif
