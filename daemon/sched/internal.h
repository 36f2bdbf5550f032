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
void sched_job_peer_gone(struct sched *s, struct sched_job *job);
/* From any state but RECEIVED and ANSWERED; takes it out of whatever it stands in and drops its pins. */
void sched_job_answer(struct sched *s, struct sched_job *job, enum mla_status code);
/* The job whose in_queue is at the front of the list; the list is not empty. */
struct sched_job *sched_job_first(const struct list *jobs);

/* batches.c */
/* Forms the next batch when one may be staged; true when there is a STAGE to give. */
bool sched_batch_form(struct sched *s);
void sched_batch_planned(struct sched *s, struct sched_batch *batch, uint32_t generation, enum mla_status code);
bool sched_batch_may_launch(const struct sched *s);
void sched_batch_launch(struct sched *s, struct sched_batch *batch);
void sched_batch_done(struct sched *s, struct sched_batch *batch, enum mla_status code);
/* job has left the staged batch: it is staged again, or given up when it was the last. */
void sched_batch_job_left(struct sched *s, struct sched_batch *batch);
/* Answers all jobs of a batch with code and frees the slot. */
void sched_batch_fail(struct sched *s, struct sched_batch *batch, enum mla_status code);

/* objects.c */
void sched_object_leave(struct sched *s, struct sched_object *object);
bool sched_objects_leaving(struct sched_object *const *objects, uint32_t n);
void sched_objects_pin(struct sched_object *const *objects, uint32_t n);
void sched_objects_unpin(struct sched *s, struct sched_object *const *objects, uint32_t n);
struct sched_object *sched_object_next_released(struct sched *s); /* NULL: none */

#endif
