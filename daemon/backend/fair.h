/* Whose turn it is on the device: start-time fair queueing [P. Goyal, H. M. Vin, H. Cheng, Start-Time Fair Queueing,
 * SIGCOMM 1996]. A flow's launch starts, in virtual time, where its last one ended, or with the launch that last had
 * its turn if that was later, and takes its predicted time / weight; the smallest start is next. So flows with work
 * share the device by weight, none waits for ever, and who had nothing to do comes back without debts and without
 * claims.
 *
 * Each client's steps are a flow. All batches are one together, with the weight of all who have jobs: among them it is
 * the scheduler that shares out. Device thread only. */
#ifndef MLA_DAEMON_BACKEND_FAIR_H
#define MLA_DAEMON_BACKEND_FAIR_H

#include "daemon/backend/backend.h"

struct be_fair {
    uint64_t now; /* virtual: the start of what last had its turn */
    struct be_flow batches;
};

/* Of the flow's next launch; NULL: of none, which is always welcome. */
uint64_t be_fair_start(const struct be_fair *fair, const struct be_flow *flow);
/* A launch with that start has its turn; then those who share it are charged for what they have of it. */
void be_fair_turn(struct be_fair *fair, uint64_t start);
void be_fair_charge(const struct be_fair *fair, struct be_flow *flow, uint32_t weight, uint64_t load_ns);

#endif
