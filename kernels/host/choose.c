/* Which kernels a launch is for: those of a section, or of one of its few_rows. */
#include "kernels/host/internal.h"
#include "kernels/plan/kinds.h"

_Static_assert(MLA_KERNELS_KINDS_MAX <= PLAN_KINDS_MAX, "room for all kinds of a handle");

size_t kernels_choose(const struct mla_kernels_facts *const *facts, size_t n, const struct plan_request *request)
{
    struct plan_kind kinds[PLAN_KINDS_MAX];
    for (size_t i = 0; i < n; i++)
        kinds[i] =
            (struct plan_kind){.device = facts[i]->device, .costs = facts[i]->costs, .tile_rows = facts[i]->tile_rows};
    return plan_choose(kinds, n, request);
}

struct mla_kernels *mla_kernels_few_rows(struct mla_kernels *kernels)
{
    return kernels->few_rows;
}

struct mla_kernels *mla_kernels_for(struct mla_kernels *kernels, const struct plan_request *request)
{
    const struct mla_kernels_facts *kinds[MLA_KERNELS_KINDS_MAX];
    struct mla_kernels *of[MLA_KERNELS_KINDS_MAX];
    size_t n = 0;
    for (struct mla_kernels *k = kernels; k && n < MLA_KERNELS_KINDS_MAX; k = k->few_rows) {
        kinds[n] = &k->facts;
        of[n++] = k;
    }
    return n == 1 ? kernels : of[kernels_choose(kinds, n, request)];
}

struct mla_kernels *mla_kernels_of_plan(struct mla_kernels *kernels, const struct plan *plan)
{
    for (struct mla_kernels *k = kernels; k; k = k->few_rows)
        if (k->facts.device.rows_per_unit == plan->rows_per_unit)
            return k;
    return kernels;
}
