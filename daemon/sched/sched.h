/* The scheduler: a pure state machine over jobs, batches and the objects they pin. No I/O, no clock, no allocation:
 * every event comes with its time, what must be done comes back as actions, and the memory of jobs, batches and objects
 * is the caller's (records below are embedded in the caller's own).
 *
 * Use, always from one thread: sched_step() with one event, then sched_next() until it returns false, carrying out each
 * action before the next event is given.
 *
 *   state      event -> next
 *   RECEIVED   SUBMIT: refused (draining, overload) -> ANSWERED; names a ready word -> WAITING; else QUEUED
 *   WAITING    READY -> QUEUED (aborted: ANSWERED);  CANCEL, TIMER, PEER_GONE, FATAL -> ANSWERED
 *   QUEUED     batch formed -> STAGED;               CANCEL, TIMER, PEER_GONE, FATAL -> ANSWERED
 *   STAGED     SUBMITTED -> RUNNING; CANCEL, TIMER, PEER_GONE -> ANSWERED and the batch is staged again without it;
 *              FATAL -> ANSWERED
 *   RUNNING    CANCEL, TIMER, PEER_GONE set flags; BATCH_DONE -> ANSWERED; FATAL -> ANSWERED (DEVICE_LOST)
 *   ANSWERED   pins dropped, REPLY given; the record is the caller's again when it has carried that REPLY out
 *
 * Between the LAUNCH action and SUBMITTED a job counts as RUNNING: only LAUNCH is irrevocable.
 * Deadlines act before launch (TIMED_OUT); a job that runs past its own is answered LATE when its batch ends.
 */
#ifndef MLA_DAEMON_SCHED_H
#define MLA_DAEMON_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

struct sched_link { /* intrusive list link; the scheduler's */
    struct sched_link *prev, *next;
};

enum sched_job_state {
    SCHED_RECEIVED = 0, /* a zeroed record */
    SCHED_WAITING,
    SCHED_QUEUED,
    SCHED_STAGED,
    SCHED_RUNNING,
    SCHED_ANSWERED
};

/* Something that jobs use and that may be wanted gone while they do: a region, sync page, cache, attachment or table
 * set. Zeroed is a fresh one. */
struct sched_object {
    uint32_t pins; /* jobs, and whatever else the caller pins (sched_pin) */
    bool leaving;  /* UNREGISTER seen: RELEASE comes when pins are 0; jobs may not name it any more */
    bool released;
};

/* Whoever submits: one per connection. Zeroed is a fresh one. */
struct sched_peer {
    struct sched_link jobs; /* initialised on first use */
    uint32_t in_flight;
    bool gone;
};

struct sched_batch;

struct sched_job {
    /* The caller's, set before SUBMIT, constant until REPLY. */
    struct sched_peer *peer;
    struct sched_object **pins; /* pinned at SUBMIT (also of a job that is refused), dropped before its REPLY */
    uint32_t n_pins;
    uint64_t deadline_ns;       /* 0: none */
    uint64_t compat;            /* jobs share a batch only when this is equal (heads, dtypes, layout) */
    uint64_t cost;              /* predicted, any unit; sums to at most batch_cost_max */
    uint32_t seqs;              /* sums to at most batch_seqs_max */
    uint32_t priority;          /* carried for later policies; FIFO ignores it */
    bool has_ready;             /* WATCH it first */

    /* The scheduler's; readable with REPLY. */
    enum sched_job_state state;
    enum mla_status code;       /* of the REPLY */
    struct sched_batch *batch;
    bool cancelled, late, peer_gone;
    uint64_t received_ns, ready_ns, launched_ns, ended_ns; /* 0: never */
    uint64_t batch_number;      /* 0: never launched */
    uint32_t batch_jobs;        /* jobs of that launch */
    struct sched_link in_queue; /* of its state: waiting, queued, or its batch */
    struct sched_link in_peer;
    struct sched_link in_deadlines;
};

/* A launch in the making or under way; a fixed number of them belong to the scheduler. */
struct sched_batch {
    uint64_t number;       /* 1, 2, ... in the order of LAUNCH; 0 until then */
    uint32_t generation;   /* grows each time it is staged again: what was planned before is void */
    uint32_t n_jobs;
    uint64_t compat;
    struct sched_link jobs; /* sched_job.in_queue, in order */
    void *user;             /* the caller's plan and records */
    int state;              /* the scheduler's */
};

#define SCHED_BATCHES 2 /* one runs, one may be staged behind it */

struct sched_config {
    uint32_t max_in_flight;     /* WAITING..RUNNING over all peers; beyond: OVERLOADED */
    uint32_t max_running;       /* launches on the device at a time, 1..SCHED_BATCHES */
    uint32_t batch_jobs_max;
    uint32_t batch_seqs_max;
    uint64_t batch_cost_max;    /* 0: no limit. A single job above a limit runs alone */
    uint64_t retry_after_us;    /* told with OVERLOADED */
};

enum sched_event_kind {
    SCHED_SUBMIT = 1, /* job: validated by the caller. refused != OK: answer it with that code */
    SCHED_READY,      /* job: its ready word came, or was aborted */
    SCHED_CANCEL,     /* job */
    SCHED_TIMER,      /* the time set by SET_TIMER has come (or any other time) */
    SCHED_SUBMITTED,  /* batch: the backend has it */
    SCHED_BATCH_DONE, /* batch: ended, code OK or an error that all its jobs get */
    SCHED_PLANNED,    /* batch: STAGE carried out; code OK, or why this batch cannot be planned (all its jobs get it).
                         generation must be that of the STAGE; a stale one is ignored */
    SCHED_FATAL,      /* the device is lost */
    SCHED_PEER_GONE,  /* peer; its record may be freed when in_flight is 0 (see REPLY) */
    SCHED_UNREGISTER, /* object */
    SCHED_DRAIN       /* refuse new work; EXIT when nothing is in flight, or at deadline_ns (0: none) */
};

struct sched_event {
    enum sched_event_kind kind;
    uint64_t now_ns; /* never smaller than before */
    struct sched_job *job;
    struct sched_peer *peer;
    struct sched_object *object;
    struct sched_batch *batch;
    enum mla_status code;
    uint32_t generation;
    bool aborted;
    uint64_t deadline_ns;
};

enum sched_action_kind {
    SCHED_WATCH = 1, /* job: watch its ready word */
    SCHED_UNWATCH,   /* job: stop that, nothing will ask for it again */
    SCHED_STAGE,     /* batch: plan its jobs; answer with PLANNED (at once or later) */
    SCHED_LAUNCH,    /* batch: hand it to the backend; SUBMITTED and BATCH_DONE follow, or FATAL */
    SCHED_REPLY,     /* job: answer it with job->code; then the record is the caller's. job->peer_gone: nobody listens */
    SCHED_RELEASE,   /* object: no job uses it and it was to go */
    SCHED_SET_TIMER, /* at_ns: give TIMER then; replaces the one before; 0 disarms */
    SCHED_EXIT       /* code OK: drained; DEVICE_LOST: fatal; TIMED_OUT: the drain deadline passed. The last action */
};

struct sched_action {
    enum sched_action_kind kind;
    struct sched_job *job;
    struct sched_batch *batch;
    struct sched_object *object;
    uint32_t generation;
    uint64_t at_ns;
    enum mla_status code;
};

/* Gauges and counts for metrics. */
struct sched_counts {
    uint32_t waiting, queued, staged, running;
    uint64_t batches;
    uint64_t answered;
};

struct sched; /* sched_state.h, for whoever embeds it */

void sched_init(struct sched *s, const struct sched_config *config);

/* New limits; take effect from the next event. */
void sched_configure(struct sched *s, const struct sched_config *config);

/* Gives one event. Events that no longer mean anything (READY or CANCEL of an answered job, a stale PLANNED) are
 * ignored; after EXIT all are. */
void sched_step(struct sched *s, const struct sched_event *event);

/* The next action, in order. false: none. */
bool sched_next(struct sched *s, struct sched_action *action);

/* Pins an object for something that is no job (a cache pins its region, an attachment its cache). unpin gives RELEASE
 * through sched_next() when it was the last one of a leaving object. */
void sched_pin(struct sched_object *object);
void sched_unpin(struct sched *s, struct sched_object *object);

void sched_counts(const struct sched *s, struct sched_counts *out);

#endif
