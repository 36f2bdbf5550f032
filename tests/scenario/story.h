/* Stories of the scheduler, in virtual time: each call gives one event and carries out the actions that follow; what
 * happened becomes one line of a transcript, which tells() compares with the text beside it.
 *
 *     begin(.max_running = 1);
 *     submit("a1");
 *     at(250);
 *     done("A");
 *     tells("0 SUBMIT a1 -> STAGE A.1{a1}, LAUNCH #1 A.1{a1}\n"
 *           "250 DONE A -> REPLY a1 OK\n");
 *
 * A line is: time in us, event, "->", actions ("nothing" if there are none). A job's peer is the first letter of its
 * name. Slots of batches are A and B; A.2 is generation 2 of slot A; #1 is the number of a launch; a1/3 is the third
 * part of a1. A launch is predicted to take the loads of its jobs together. One story at a time.
 */
#ifndef MLA_TESTS_STORY_H
#define MLA_TESTS_STORY_H

#include "daemon/sched/sched_state.h"

struct story_job {
    const char *name;
    uint64_t compat;
    uint64_t cost;
    uint64_t load_us; /* of each part */
    uint32_t parts;   /* 0: one */
    uint32_t priority;
    uint32_t seqs;       /* 0: one */
    uint64_t timeout_us; /* 0: none */
    bool overdue;        /* its deadline is now */
    bool ready_word;
    const char *uses; /* names of objects, one blank between; an object is there once named */
    enum mla_status refused;
};

#define begin(...)  story_begin(&(struct sched_config){__VA_ARGS__})
#define submit(...) story_submit(&(struct story_job){.name = __VA_ARGS__})

/* Limits left at 0: 100 in flight, 1 running, 8 jobs and 64 sequences a batch, no cost limit. */
void story_begin(const struct sched_config *config);
void story_submit(const struct story_job *job);
void at(uint64_t us);                           /* moves the time forward */
void weight(const char *peer, uint32_t weight); /* no event, and none of its line */
void plans_by_hand(void);                       /* from now on STAGE is answered by planned(), else at once */
/* From now on plans fail, OUT_OF_MEMORY, that hold one of these jobs (one blank between names), or more jobs than that.
 */
void plans_fail_for(const char *jobs);
void plans_hold(uint32_t jobs);

void ready(const char *job);
void ready_aborted(const char *job);
void cancel(const char *job);
void timer(void);
void submitted(const char *slot);
void done(const char *slot);
void done_next(void); /* the launch that has been on the device longest */
void failed(const char *slot, enum mla_status code);
void planned(const char *slot_and_generation); /* "A.1" */
void cannot_plan(const char *slot_and_generation, enum mla_status code);
void device_lost(void);
void peer_gone(const char *peer);
void unregister(const char *object);
void pin(const char *object); /* no event: what follows from unpin() becomes a line, pin() writes none */
void unpin(const char *object);
void drain(uint64_t deadline_us); /* 0: none */

/* The transcript since the last tells(). */
void tells(const char *golden);

/* The record of a job, to look at. */
const struct sched_job *job_named(const char *name);
const struct sched_peer *peer_named(const char *name);

#endif
