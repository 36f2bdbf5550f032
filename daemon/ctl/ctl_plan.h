/* mlactl plan: the plan of a shape, without a daemon. What it prints as predicted_us comes from the planner's cost
 * model, never from a measurement. */
#ifndef MLA_DAEMON_CTL_PLAN_H
#define MLA_DAEMON_CTL_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/plan/plan.h"

enum { CTL_PLAN_OK = 0, CTL_PLAN_FAILED = 1, CTL_PLAN_USAGE = 2 };

/* argv[0] is "plan". Prints to stdout and stderr; returns one of the above. */
int ctl_plan(int argc, char **argv);

/* The same with other streams. */
int ctl_plan_to(FILE *out, FILE *err, int argc, char **argv);

struct ctl_plan_options {
    uint32_t heads;
    uint32_t q_len;
    uint32_t batch;
    uint32_t kv_len;
    uint32_t sms;
    uint32_t unit_ctas; /* 4 (x 256 rows) or 2 (x 128) */
    uint32_t tile_rows;
    uint32_t pad_heads; /* 0: not padded */
    uint32_t splits;    /* 0: the policy's choice */
    enum plan_policy policy;
    bool compare;
    bool json;
    bool dump;
    bool help;
};

/* 0, or CTL_PLAN_USAGE after a line on err that names the option and what it takes. */
int ctl_plan_parse(FILE *err, int argc, char **argv, struct ctl_plan_options *options);
void ctl_plan_usage(FILE *out);
const char *ctl_plan_policy_name(enum plan_policy policy);

#endif
