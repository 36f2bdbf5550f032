#include "daemon/backend/fair.h"

#define TAG_SCALE  UINT64_C(1024)      /* virtual time stays whole numbers for large weights */
#define LOAD_LIMIT (UINT64_C(1) << 40) /* 18 minutes */

uint64_t be_fair_start(const struct be_fair *fair, const struct be_flow *flow)
{
    return flow && flow->end > fair->now ? flow->end : fair->now;
}

void be_fair_turn(struct be_fair *fair, uint64_t start)
{
    if (start > fair->now)
        fair->now = start;
}

void be_fair_charge(const struct be_fair *fair, struct be_flow *flow, uint32_t weight, uint64_t load_ns)
{
    uint64_t load = load_ns < LOAD_LIMIT ? load_ns : LOAD_LIMIT;
    if (flow)
        flow->end = be_fair_start(fair, flow) + load * TAG_SCALE / (weight != 0 ? weight : 1);
}
