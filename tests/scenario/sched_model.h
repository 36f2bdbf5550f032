/* A second, plain account of what the scheduler may do, against which any sequence of events is checked. Each call of
 * model_step() gives one event, chosen by the caller's source of numbers, and carries out the actions; now and then it
 * gives further events while actions are still due. Any difference ends the process with a line on stderr.
 *
 * Checked: each job answered exactly once and with the expected code; pins dropped; RELEASE exactly once and only at 0
 * pins; WATCH undone by READY or UNWATCH, exactly once; LAUNCH only of the planned, current generation and of at most
 * max_running; batches hold what the policy says, in order, of one compat and within limits; each part of a job once
 * and in order; nothing idles that could go on; the timer is never late; gauges; in_flight per peer; nothing after
 * EXIT. Records are freed as soon as they are the caller's, so AddressSanitizer sees any later use. */
#ifndef MLA_TESTS_SCHED_MODEL_H
#define MLA_TESTS_SCHED_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_source {
    uint32_t (*below)(void *context, uint32_t n); /* 0 .. n - 1 */
    void *context;
    const char *name; /* for messages */
    bool endings;     /* FATAL and DRAIN come too */
};

#define MODEL_CODES 500 /* above every status code */

struct model_stats {
    uint64_t events;
    uint64_t actions[16];        /* by kind */
    uint64_t codes[MODEL_CODES]; /* of replies */
    uint64_t exits[MODEL_CODES]; /* of EXIT */
    uint64_t stale_plans, restaged, given_up, shared, gone_while_running, mid_action, cut_short, in_parts, urgent_first,
        weighed, parted, alone;
};

struct model;

struct model *model_new(const struct model_source *source, struct model_stats *stats);
bool model_step(struct model *m); /* false: EXIT was given */
void model_free(struct model *m); /* lets all work end, drains unless EXIT was given, and checks that nothing is left */

#endif
