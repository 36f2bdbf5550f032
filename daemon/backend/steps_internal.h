/* Between the files of the steps: steps.c (their life), steps_batch.c (records of launches), steps_plan.c (plans). */
#ifndef MLA_DAEMON_BACKEND_STEPS_INTERNAL_H
#define MLA_DAEMON_BACKEND_STEPS_INTERNAL_H

#include "daemon/backend/steps.h"

/* A record with plan and jobs for the set, which stays FREE; NULL with *why (-errno). */
struct be_steps_batch *be_steps_form(struct be_steps *steps, const struct be_steps_set *set, int *why);
/* It ends, or is not wanted any more. */
void be_steps_drop(struct be_steps_batch *batch);

static inline bool be_step_last_part(const struct be_step *step, uint32_t part)
{
    return part + 1 >= step->n_parts;
}

/* What comes next of these may be prepared; the last layer of a step has nothing behind it. */
void be_steps_expect(struct be_steps *steps, struct be_step *const *members, uint32_t n);
struct be_steps_batch *be_steps_find_prepared(struct be_steps *steps, const struct be_steps_set *set);
/* The step has ended: nothing names it any more. */
void be_steps_forget(struct be_steps *steps, const struct be_step *step);

/* The plan of these steps, cached; NULL with *why (-errno). */
struct be_steps_plan *be_steps_plan(struct be_steps *steps, const struct be_steps_set *set, int *why);
void be_steps_plan_free(struct be_steps *steps);

#endif
