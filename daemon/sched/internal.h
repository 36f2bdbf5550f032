/* Inside the scheduler: what its files give each other. */
#ifndef MLA_DAEMON_SCHED_INTERNAL_H
#define MLA_DAEMON_SCHED_INTERNAL_H

#include "daemon/sched/sched_state.h"

/* deadlines.c: an intrusive pairing heap, earliest first, equal deadlines in the order of SUBMIT. Insertion is O(1),
 * removal O(log n) amortised. */
void sched_deadline_add(struct sched *s, struct sched_job *job);
void sched_deadline_remove(struct sched *s, struct sched_job *job); /* nothing when it is not in the heap */

/* jobs.c: transitions of one job. */
void sched_job_submit(struct sched *s, struct sched_job *job, enum mla_status refused);
void sched_job_ready(struct sched *s, struct sched_job *job, bool aborted);
void sched_job_cancel(struct sched *s, struct sched_job *job);
void sched_job_overdue(struct sched *s, struct sched_job *job);
void sched_job_peer_gone(struct sched *s, struct sched_job *job);
/* From any state but RECEIVED and ANSWERED: no further part is launched, and it is answered with code, at once when
 * nothing of it runs. Nothing when it was stopped before. */
void sched_job_stop(struct sched *s, struct sched_job *job, enum mla_status code);
/* A launch with a part of it has ended; the part is out of the batch. */
void sched_job_part_done(struct sched *s, struct sched_job *job, enum mla_status code);
/* From any state but RECEIVED and ANSWERED; takes it out of whatever it stands in and drops its pins. */
void sched_job_answer(struct sched *s, struct sched_job *job, enum mla_status code);
/* The job whose in_queue is at the front of the list; the list is not empty. */
struct sched_job *sched_job_first(const struct list *jobs);
static inline uint32_t sched_job_parts(const struct sched_job *job)
{
    return job->n_parts > 1 ? job->n_parts : 1;
}

/* admission.c */
/* MLA_OK or OVERLOADED, then with job->retry_after_us. */
enum mla_status sched_admit(const struct sched *s, struct sched_job *job);
void sched_backlog_add(struct sched *s, struct sched_job *job);
/* Before the peer's weight becomes another. */
void sched_backlog_weigh(struct sched *s, const struct sched_peer *peer, uint32_t weight);
static inline uint64_t sched_weight(uint32_t weight)
{
    return weight > SCHED_WEIGHT_MAX ? SCHED_WEIGHT_MAX : weight > 1 ? weight : 1;
}
/* parts of it are no longer to be launched. */
void sched_backlog_less(struct sched *s, struct sched_job *job, uint32_t parts);

/* flows.c */
void sched_flow_push(struct sched *s, struct sched_job *job);
/* Nothing when it is not queued. */
void sched_flow_remove(struct sched *s, struct sched_job *job);
/* The next part of a queued job is served; in_order: its flow is the next of all. */
void sched_flow_serve(struct sched *s, struct sched_job *job, bool in_order);
/* Undoes that of the part that was served last of those that have not been put back; start: the flow's before it. */
void sched_flow_put_back(struct sched *s, struct sched_job *job, uint64_t start);
/* The first job of the flow with this compat that the batch in the making (s->n_formed) has not looked at; NULL: none.
 */
struct sched_job *sched_flow_look(const struct sched *s, struct sched_flow *flow, uint64_t compat);
/* That job is done with: the next look begins behind it. Before it is served. */
void sched_flow_looked(struct sched_flow *flow, struct sched_job *job);
static inline struct sched_flow *sched_flow_at(struct list *in_flows)
{
    return list_entry(in_flows, struct sched_flow, in_flows);
}
struct sched_flow *sched_flow_of(const struct sched_job *job);

/* pace.c: when the next batch is due. */
void sched_pace_formed(struct sched *s, struct sched_batch *batch);
void sched_pace_launched(struct sched *s, struct sched_batch *batch);
/* The device had all of a launch at that time; 0: not known. */
void sched_pace_submitted(struct sched *s, struct sched_batch *batch, uint64_t at_ns);
/* It is planned, and max_running allows no launch now. */
void sched_pace_waits(struct sched *s, struct sched_batch *batch);
/* A launch has left the device at that time, 0: now; it is counted no more. */
void sched_pace_ended(struct sched *s, struct sched_batch *batch, bool well, uint64_t at_ns);
/* When a batch may be formed of what waits, as far as time goes: UINT64_MAX while there is nothing or no slot. */
uint64_t sched_pace_form_ns(const struct sched *s);
/* A prediction by what launches have taken of late. */
uint64_t sched_pace_scaled(const struct sched *s, uint64_t predicted_ns);

/* batches.c */
/* Forms the next batch when one may be staged; true when there is a STAGE to give. */
bool sched_batch_form(struct sched *s);
void sched_batch_planned(struct sched *s, const struct sched_event *event);
bool sched_batch_may_launch(const struct sched *s);
void sched_batch_launch(struct sched *s, struct sched_batch *batch);
void sched_batch_done(struct sched *s, const struct sched_event *event);
/* Takes a job's part out of the batch, if it has one there. A staged batch is staged again, or given up when it was
 * the last. */
void sched_batch_drop(struct sched *s, struct sched_batch *batch, struct sched_job *job);
/* Stops all jobs of a batch with code and frees the slot. lost: they are answered whatever else runs of them. */
void sched_batch_fail(struct sched *s, struct sched_batch *batch, enum mla_status code, bool lost);

/* objects.c */
void sched_object_leave(struct sched *s, struct sched_object *object);
bool sched_objects_leaving(struct sched_object *const *objects, uint32_t n);
void sched_objects_pin(struct sched_object *const *objects, uint32_t n);
void sched_objects_unpin(struct sched *s, struct sched_object *const *objects, uint32_t n);
struct sched_object *sched_object_next_released(struct sched *s); /* NULL: none */

#endif
