/* The scheduler: a pure state machine over jobs, batches and the objects they pin. No I/O, no clock, no allocation:
 * every event comes with its time, what must be done comes back as actions, and the memory of jobs, batches and objects
 * is the caller's (records below are embedded in the caller's own).
 *
 * Use, always from one thread: sched_step() with one event, then sched_next() until it returns false, carrying out each
 * action before the next event is given. Carrying out an action may itself give an event (PLANNED within STAGE,
 * SUBMITTED or even BATCH_DONE within LAUNCH): actions are derived from the state, never queued, so none is lost or out
 * of date.
 *
 *   state      event -> next
 *   RECEIVED   SUBMIT: refused (draining, overload) -> ANSWERED; names a ready word -> WAITING; else QUEUED
 *   WAITING    READY -> QUEUED (aborted: ANSWERED);  CANCEL, TIMER, PEER_GONE, FATAL -> ANSWERED
 *   QUEUED     batch formed -> STAGED;               CANCEL, TIMER, PEER_GONE, FATAL -> ANSWERED
 *   STAGED     SUBMITTED -> RUNNING; CANCEL, TIMER, PEER_GONE -> ANSWERED and the batch is staged again without it;
 *              PLANNED with a code -> QUEUED or, alone, ANSWERED; FATAL -> ANSWERED
 *   RUNNING    CANCEL, TIMER, PEER_GONE set flags and no further part is launched; the last BATCH_DONE -> ANSWERED;
 *              FATAL -> ANSWERED (DEVICE_LOST)
 *   ANSWERED   pins dropped, REPLY given; the record is the caller's again when it has carried that REPLY out
 *
 * Between the LAUNCH action and SUBMITTED a job counts as RUNNING: only LAUNCH is irrevocable. BATCH_DONE without a
 * SUBMITTED before it is fine.
 *
 * Parts. A job may consist of n_parts parts, launched in order, at most one in a batch, two batches at a time. It is
 * RUNNING from its first part on and answered once, when the last has ended; until all are launched (parts_launched)
 * it can still be stopped: then what runs of it ends, the rest never runs, its outputs are unspecified.
 *
 * Deadlines act before the last part is launched (TIMED_OUT); a job that runs past its own is answered LATE when its
 * batch ends. They act on every event, before it: at a time at or past a deadline the job is overdue, whether or not
 * the timer was quick.
 *
 * Codes. SUBMIT: the peer is gone: DISCONNECTED; the event's own code; device lost: DEVICE_LOST; DRAINING; a pin that
 * is leaving: NOT_FOUND; OVERLOADED; a deadline that has passed: TIMED_OUT; the first of these that holds. Before all
 * is launched: READY_ABORTED, CANCELLED, TIMED_OUT, DISCONNECTED (its peer has gone), DRAINING (the drain's deadline),
 * DEVICE_LOST, PLANNED's, or BATCH_DONE's of an earlier part; the first that came. At the end of a launch: BATCH_DONE's
 * code if not OK, else CANCELLED if cancelled, else LATE, else OK; the flags stay readable beside the code.
 *
 * Order. Ready jobs wait in flows, one per peer and priority, first in first out. Which flow is next is self-clocked
 * fair queueing [S. J. Golestani, A Self-Clocked Fair Queueing Scheme for Broadband Applications, INFOCOM 1994]: a
 * part's finish tag is the tag of its flow's part before it, or, where the flow was empty, that of the part served
 * last of all in its turn, plus load_ns / weight; the smallest tag is next, equal ones in the order of becoming ready.
 * So flows with work share the device by weight and predicted time, small jobs pass large ones of other clients, and
 * since every tag is finite and each service adds to its flow's, no job waits for ever. A flow's weight is the peer's,
 * times 4 for each step of priority.
 *
 * Batches. The flow that is next gives the first job and with it what is compatible; then, in the order of flows, each
 * gives its next job of equal compat, again and again, until a limit is reached. A flow whose next compatible job does
 * not fit, or that has none, is passed over. Past that, only flows give that are not ahead of their turn already (their
 * part before has a tag up to that of the part served last in its turn), so that who shares a launch out of turn does
 * not pay for it with a long wait [the eligibility of J. C. R. Bennett, H. Zhang, WF2Q, INFOCOM 1996]. So no job is
 * overtaken by another of its flow and compat, and what did not fit is next soon, at last first, which always fits.
 *
 * Plans that fail. Jobs that cannot be planned together, be it for one of them or for all that they take, are parted:
 * the later half goes back to where it came from, tags and all, and the first half is staged again, down to a single
 * job. If that cannot be planned either, it is tried once more when nothing runs, as what runs may hold what it needs,
 * and then answered with the code. Until plans succeed batches stay that small, then their limit doubles: so each job
 * that cannot be planned costs two plans of its own, and those beside it none of their answers.
 *
 * When. With nothing on the device a batch is formed as soon as a job is ready, or gather_ns later if more may come.
 * While a launch runs jobs gather until lead_ns before its predicted end; then the next batch is formed and planned,
 * and launched behind it if max_running allows. The lead begins as that and follows, between a quarter and four times
 * of it, what launches of late took from the time to form them until the device had them (SUBMITTED's at_ns), or until
 * they were planned where max_running then made them wait.
 * Predictions are those of PLANNED and load_ns, times what launches took of late against theirs. At most one batch is
 * staged (formed, not launched) at a time.
 *
 * Admission. Beside max_in_flight, backlog_max_ns bounds the predicted time of all that is accepted and not launched:
 * among the peers that have such a backlog each may have a share of it by weight, and one without any may always bring
 * one job. So who floods the daemon is refused, others are not, and what is accepted waits for about backlog_max_ns at
 * most while their number stays the same.
 */
#ifndef MLA_DAEMON_SCHED_H
#define MLA_DAEMON_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/util/list.h"
#include "proto/status.h"

enum sched_job_state {
    SCHED_RECEIVED = 0, /* a zeroed record, as SUBMIT wants it */
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
    bool leaving;  /* UNREGISTER seen: RELEASE comes when pins are 0; jobs that name it are refused (NOT_FOUND) */
    bool released; /* RELEASE is due or given: not to be pinned. After RELEASE the record is the caller's; zero it to
                    * use it anew */
    struct sched_object *next_released; /* private */
};

struct sched_job;

#define SCHED_PRIORITIES 4 /* 0 .. 3; larger ones are more urgent */
#define SCHED_WEIGHT_MAX 1000u

/* Ready jobs of one peer and priority. Private. */
struct sched_flow {
    struct list queue;      /* sched_job.in_queue, in order of becoming ready; initialised on first use */
    struct list in_flows;   /* of those with a job: by finish */
    uint64_t start, finish; /* tags of the first job's next part; start: also while there is none, of the last served */
    uint64_t scan;          /* the batch that is being formed has looked at jobs before scanned */
    struct list *scanned;
};

/* Whoever submits: one per connection. Zeroed is a fresh one. */
struct sched_peer {
    uint32_t weight;  /* the caller's before the first SUBMIT, then by sched_peer_weigh(); 0 counts as 1, more than
                         SCHED_WEIGHT_MAX as that */
    struct list jobs; /* initialised on first use */
    uint32_t in_flight;
    bool gone;
    uint64_t backlog_ns; /* load of its jobs that is accepted and not launched */
    struct sched_flow flows[SCHED_PRIORITIES];
};

#define SCHED_BATCHES 2 /* one runs, one may be staged or run behind it */

/* A job's place in a batch. */
struct sched_part {
    struct list in_batch;
    struct sched_job *job;
    uint32_t index; /* 0 .. n_parts - 1 */
    bool in;        /* private: it has a place */
    uint64_t start; /* private: its flow's tag before it was served */
};

struct sched_batch;

struct sched_job {
    /* The caller's, set before SUBMIT, constant until REPLY. */
    struct sched_peer *peer;
    struct sched_object **pins; /* pinned at SUBMIT (also of a job that is refused), dropped before its REPLY */
    uint32_t n_pins;
    uint64_t deadline_ns; /* 0: none */
    uint64_t compat;      /* jobs share a batch only when this is equal (heads, dtypes, layout) */
    uint64_t cost;        /* bytes of workspace; sums to at most batch_cost_max */
    uint64_t load_ns;     /* predicted, of each part: its share of a launch; sums to at most launch_max_ns */
    uint32_t seqs;        /* or tiles, if more; sums to at most batch_seqs_max */
    uint32_t n_parts;     /* 0 counts as 1 */
    uint32_t priority;    /* larger ones count as the most urgent */
    bool has_ready;       /* WATCH it first */

    /* The scheduler's; readable with REPLY. */
    enum sched_job_state state;
    enum mla_status code;      /* of the REPLY */
    struct sched_batch *batch; /* with REPLY: what it ran in last, or could not be planned in; else NULL */
    bool cancelled, late, peer_gone;
    uint64_t received_ns, ready_ns, launched_ns, ended_ns; /* 0: never; launched_ns is the first part's */
    uint64_t batch_number;                                 /* of its last launch; 0: never launched */
    uint32_t batch_jobs;                                   /* jobs of that launch */
    uint32_t parts_launched;
    uint64_t retry_after_us; /* OVERLOADED: when trying again makes sense */

    /* Private. */
    struct sched_part parts[SCHED_BATCHES]; /* by slot of the batch */
    uint32_t parts_taken, parts_running;
    enum mla_status stopped; /* not OK: no further part is launched, and this is why */
    bool queued;             /* in its flow: not all parts are taken */
    struct list in_queue;    /* of its state: waiting, its flow, or answered */
    struct list in_peer;
    struct sched_deadline { /* node of the heap of deadlines */
        struct sched_job *child, *next, *prev;
        bool queued;
    } in_deadlines;
    uint64_t order;       /* 1, 2, ... as submitted: breaks ties between equal deadlines */
    uint64_t ready_order; /* the same as they became ready, between equal tags */
    bool watched;         /* WATCH given, neither READY nor UNWATCH since */
};

/* A launch in the making or under way; a fixed number of them belong to the scheduler. */
struct sched_batch {
    uint64_t number;     /* 1, 2, ... in the order of LAUNCH; 0 until then */
    uint32_t generation; /* of this slot, grows with each STAGE, never reset: what was planned before is void */
    uint32_t n_jobs;
    uint64_t compat;
    struct list jobs; /* sched_part.in_batch, in order: sched_part_at() */
    void *user;       /* the caller's plan and records: NULL at first, never touched. A slot is staged anew only after
                         the REPLYs of the batch before, which may read from it through job->batch */
    uint64_t predicted_ns; /* PLANNED's */
    /* Private. */
    uint64_t started_ns, expected_ns; /* on the device: from, until */
    uint64_t due_ns;                  /* when it was to be formed, for a launch behind another; else 0 */
    int state;
};

static inline struct sched_part *sched_part_at(struct list *in_batch)
{
    return list_entry(in_batch, struct sched_part, in_batch);
}

struct sched_config {
    uint32_t max_in_flight;  /* WAITING..RUNNING over all peers; beyond: OVERLOADED */
    uint32_t max_running;    /* launches on the device at a time, 1..SCHED_BATCHES */
    uint32_t batch_jobs_max; /* this and the next: 0 counts as 1 */
    uint32_t batch_seqs_max;
    uint64_t batch_cost_max;  /* 0: no limit. A single job above a limit runs alone; so do the next two */
    uint64_t launch_max_ns;   /* predicted, of a launch; 0: no limit */
    uint64_t launch_fixed_ns; /* of every launch, beside its loads */
    uint64_t gather_ns;       /* an idle device waits so long for more than the first job */
    uint64_t lead_ns;         /* before the predicted end of a launch the next batch is formed */
    uint64_t backlog_max_ns;  /* predicted time of what is accepted and not launched; 0: no limit */
    uint64_t retry_after_us;  /* the least that is told with OVERLOADED; 0 counts as 1 */
};

enum sched_event_kind {
    SCHED_SUBMIT =
        1,           /* job: validated by the caller; code != OK: refused, answer it with that code (all pins unused) */
    SCHED_READY,     /* job: its ready word came, or was aborted */
    SCHED_CANCEL,    /* job */
    SCHED_TIMER,     /* the time set by SET_TIMER has come (or any other time) */
    SCHED_SUBMITTED, /* batch: the backend has it */
    SCHED_BATCH_DONE, /* batch: ended, code OK or an error that all its jobs get */
    SCHED_PLANNED, /* batch: STAGE carried out; code OK, or why this batch cannot be planned (a job that is alone in it
                      gets it). generation must be that of the STAGE; a stale one is ignored. predicted_ns: of the plan
                    */
    SCHED_FATAL,   /* the device is lost */
    SCHED_PEER_GONE,  /* peer; its record may be freed when in_flight is 0 (see REPLY) */
    SCHED_UNREGISTER, /* object */
    SCHED_DRAIN       /* refuse new work; EXIT when nothing is in flight, or at deadline_ns (0: none; a later DRAIN
                         replaces it): then what does not run is answered DRAINING */
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
    uint64_t predicted_ns;
    uint64_t at_ns; /* SUBMITTED, BATCH_DONE: when that was, where the backend tells; 0: now */
};

enum sched_action_kind {
    SCHED_WATCH = 1, /* job: watch its ready word */
    SCHED_UNWATCH, /* job: stop that; its REPLY follows. Not given when the READY has come. A READY that was already on
                       its way must not be given once the record is reused */
    SCHED_STAGE,   /* batch: plan its jobs' parts; answer with PLANNED (at once or later). Voids what was staged in this
                      slot   before, also when that was given up without a word: all its jobs were answered */
    SCHED_LAUNCH,  /* batch: hand it to the backend; SUBMITTED and BATCH_DONE follow, or FATAL */
    SCHED_REPLY,   /* job: answer it with job->code; then the record is the caller's. job->peer_gone: nobody listens.
                      peer->in_flight is already less by this one: with gone and 0 it may be freed as well */
    SCHED_RELEASE, /* object: no job uses it and it was to go */
    SCHED_SET_TIMER, /* at_ns: give TIMER then or soon after (microseconds count); replaces the one before. Given only
                         when what comes next is earlier than what is armed, or after a TIMER */
    SCHED_EXIT       /* code OK: drained; DEVICE_LOST: fatal; TIMED_OUT: the drain deadline passed; what
                         still runs stays unanswered: end the connections (clients see EOF) and the backend, and leave
                         with an exit status of its own. The last action */
};

struct sched_action {
    enum sched_action_kind kind;
    struct sched_job *job;
    struct sched_batch *batch;
    struct sched_object *object;
    uint32_t generation;
    uint64_t at_ns;
    enum mla_status code;
    uint64_t retry_after_us; /* REPLY with OVERLOADED: the job's; else 0 */
};

/* Gauges and counts for metrics. */
struct sched_counts {
    uint32_t waiting, queued, staged, running;
    uint64_t batches;
    uint64_t answered;
    uint64_t backlog_ns;                /* accepted and not launched, as it is predicted to take */
    uint64_t predicted_ns, measured_ns; /* of all launches that ended well: as planned, as they took */
};

struct sched; /* sched_state.h, for whoever embeds it */

void sched_init(struct sched *s, const struct sched_config *config);

/* New limits; take effect from the next event. */
void sched_configure(struct sched *s, const struct sched_config *config);

/* Gives one event. Events that no longer mean anything (READY or CANCEL of an answered job, a stale PLANNED) are
 * ignored; after EXIT all are (a job submitted then stays the caller's). */
void sched_step(struct sched *s, const struct sched_event *event);

/* The next action. false: none. Order among those that are due: LAUNCH; UNWATCH and REPLY, job by job; RELEASE; WATCH;
 * STAGE; EXIT; SET_TIMER. EXIT does not wait for objects that the caller itself has pinned. A peer with in_flight 0 may
 * be freed right after the step of its PEER_GONE. */
bool sched_next(struct sched *s, struct sched_action *action);

/* Pins an object for something that is no job (a cache pins its region, an attachment its cache). unpin gives RELEASE
 * through sched_next() when it was the last one of a leaving object. */
void sched_pin(struct sched_object *object);
void sched_unpin(struct sched *s, struct sched_object *object);

/* Another weight, also while jobs of the peer wait: what is served from now on is charged by it. Asks for nothing. */
void sched_peer_weigh(struct sched *s, struct sched_peer *peer, uint32_t weight);

/* Sum of the weights of the peers with a backlog: jobs that are accepted and not launched. */
uint64_t sched_backlog_weight(const struct sched *s);

void sched_counts(const struct sched *s, struct sched_counts *out);

/* When a peer that has been refused for what it has in flight may find room, a microsecond or more. */
uint64_t sched_retry_after_us(const struct sched *s, const struct sched_peer *peer);

#endif
