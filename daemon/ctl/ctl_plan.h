/* mlactl plan: the plan of a shape, without a daemon. What it prints as predicted_us comes from the planner's cost
 * model, never from a measurement. */
#ifndef MLA_DAEMON_CTL_PLAN_H
#define MLA_DAEMON_CTL_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/plan/kinds.h"
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
    uint32_t sms_to;    /* the last of a range from sms on in steps; sms when there is no range */
    uint32_t sms_step;  /* 1 or more */
    uint32_t unit_ctas; /* 0: of the kind that the library would choose */
    uint32_t unit_rows;
    uint32_t tile_rows;
    uint32_t pad_heads;    /* 0: not padded */
    uint32_t splits;       /* 0: the policy's choice */
    uint32_t bandwidth_gb; /* GB/s, of the roofline */
    enum plan_policy policy;
    bool compare;
    bool json;
    bool dump;
    bool help;
};

/* The kinds of kernels that the options let a plan be for, of a device with so many SMs, into kinds, which has room for
 * PLAN_KINDS_MAX: the one that they name, or all that run whole tiles there. */
size_t ctl_plan_kinds(const struct ctl_plan_options *options, uint32_t sms, uint32_t tile_rows,
                      struct plan_kind *kinds);

/* What the plan is measured by: a model of a part whose SMs are as fast as the H200's (page_ns of its kernels with full
 * units, which is fitted there), and whose memory has the bandwidth that the options say. Never a measurement. */
struct ctl_plan_model {
    double flop;        /* 2 * rows * kv_len * (576 + 512), of the real heads */
    double bytes;       /* each key once a sequence, Q, O in e4m3 */
    double flop_us;     /* flop at the rate of all SMs */
    double bytes_us;    /* bytes at the bandwidth */
    double roofline_us; /* the larger of the two */
    double rows;        /* rows of the real heads, of what the units of one pass over all tiles could hold */
    double busy;        /* of the time of all units, launch and reducer included, that they work on items */
};
void ctl_plan_model(const struct ctl_plan_options *options, const struct plan_request *request, const struct plan *plan,
                    struct ctl_plan_model *model);

/* 0, or CTL_PLAN_USAGE after a line on err that names the option and what it takes. */
int ctl_plan_parse(FILE *err, int argc, char **argv, struct ctl_plan_options *options);
void ctl_plan_usage(FILE *out);
const char *ctl_plan_policy_name(enum plan_policy policy);

#endif
