/* Which of several kinds of kernels a request is for, by the shapes alone; and the kinds that the presets know. Pure,
 * as all of the planner. mla_kernels_for() of libmla-kernels says in full what is weighed against what. */
#ifndef MLA_KERNELS_PLAN_KINDS_H
#define MLA_KERNELS_PLAN_KINDS_H

#include "kernels/plan/plan.h"

#define PLAN_KINDS_MAX 8u

struct plan_kind {
    const char *name; /* section of the manifest of kernels */
    struct plan_device device;
    struct plan_costs costs;
    uint32_t tile_rows;
};

/* The index of the kind that takes a request, of n kinds (1 to PLAN_KINDS_MAX), each with fewer rows to a unit than the
 * one before it. The request's device, costs and tile_rows need not be filled in. */
size_t plan_choose(const struct plan_kind *kinds, size_t n, const struct plan_request *request);

/* The kinds of an H200's tuned kernels, the one with most rows to a unit first, as the shipped manifest says: at most
 * PLAN_KINDS_MAX. For another number of SMs set device.sms and device.resident_units of a copy, and leave out those
 * that do not have the units of a full tile, as libmla-kernels does. */
size_t plan_kinds(const struct plan_kind **kinds);

#endif
