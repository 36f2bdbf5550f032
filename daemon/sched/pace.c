/* When the next batch is formed: early enough to be on the device before the launch that runs has ended, late enough to
 * take along what comes meanwhile. */
#include "daemon/sched/internal.h"

#define RATIO_ONE (UINT64_C(1) << 16)
#define RATIO_MIN (RATIO_ONE >> 6)
#define RATIO_MAX (RATIO_ONE << 8)
#define NS_LIMIT  (UINT64_C(1) << 38) /* of a prediction, 4 minutes: products stay below 2^64 */
#define PAST_NS   (UINT64_C(1) << 27) /* so much of what was predicted, 134 ms, counts in full */

#define LEAD_TIMES  4u  /* the lead is at most so many times what is configured, and at least that part of it */
#define LAG_GROWS   8u  /* the lag, towards a larger one, by so much of the difference */
#define LAG_SHRINKS 64u /* and towards a smaller one */
#define OFF_PART    32u

uint64_t sched_pace_scaled(const struct sched *s, uint64_t predicted_ns)
{
    uint64_t ratio = s->ratio_q16 ? s->ratio_q16 : RATIO_ONE;
    if (predicted_ns < NS_LIMIT)
        return predicted_ns * ratio >> 16;
    return predicted_ns > UINT64_MAX / RATIO_MAX ? UINT64_MAX : (predicted_ns >> 16) * ratio;
}

static uint64_t end_of(const struct sched *s, const struct sched_batch *batch)
{
    uint64_t ns = sched_pace_scaled(s, batch->predicted_ns);
    return ns > UINT64_MAX - batch->started_ns ? UINT64_MAX : batch->started_ns + ns;
}

/* The launch that will end last, but for one; NULL: none. */
static struct sched_batch *last_running(struct sched *s, const struct sched_batch *but)
{
    struct sched_batch *last = NULL;
    for (int i = 0; i < SCHED_BATCHES; i++) {
        struct sched_batch *b = &s->batches[i];
        if (b != but && b->state == SCHED_SLOT_RUNNING && (!last || b->number > last->number))
            last = b;
    }
    return last;
}

void sched_pace_launched(struct sched *s, struct sched_batch *batch)
{
    const struct sched_batch *ahead = last_running(s, batch);
    batch->started_ns = s->now_ns;
    if (ahead && ahead->expected_ns > s->now_ns)
        batch->started_ns = ahead->expected_ns;
    batch->expected_ns = end_of(s, batch);
}

/* Events come late when threads sleep; the device's own times are what the next batch hangs on. */
static uint64_t time_of(const struct sched *s, uint64_t at_ns)
{
    return at_ns == 0 || at_ns > s->now_ns ? s->now_ns : at_ns;
}

static void learn(struct sched *s, const struct sched_batch *batch, uint64_t ended_ns)
{
    if (batch->predicted_ns == 0 || batch->predicted_ns >= NS_LIMIT || batch->started_ns > ended_ns)
        return;
    uint64_t ns = ended_ns - batch->started_ns;
    s->counts.predicted_ns += batch->predicted_ns;
    s->counts.measured_ns += ns;
    /* By time, not by number: what a launch costs beside its work makes short ones look slow. */
    s->past_predicted_ns += batch->predicted_ns;
    s->past_measured_ns += ns < batch->predicted_ns << 8 ? ns : batch->predicted_ns << 8;
    while (s->past_predicted_ns > PAST_NS) {
        s->past_predicted_ns /= 2;
        s->past_measured_ns /= 2;
    }
    uint64_t ratio = (s->past_measured_ns << 16) / s->past_predicted_ns;
    s->ratio_q16 = ratio < RATIO_MIN ? RATIO_MIN : ratio > RATIO_MAX ? RATIO_MAX : ratio;
}

/* Launches end in their order; were it otherwise, the one behind would have begun already. */
void sched_pace_ended(struct sched *s, struct sched_batch *batch, bool well, uint64_t at_ns)
{
    uint64_t ended_ns = time_of(s, at_ns);
    if (well)
        learn(s, batch, ended_ns);
    struct sched_batch *behind = last_running(s, batch);
    if (!behind || behind->number < batch->number)
        return;
    behind->started_ns = ended_ns;
    behind->expected_ns = end_of(s, behind);
}

static uint64_t later(uint64_t ns, uint64_t by_ns)
{
    return ns > UINT64_MAX - by_ns ? UINT64_MAX : ns + by_ns;
}

/* What a launch takes to get to the device, timers and threads that wake up included, a quarter more, and what the end
 * of the one before it, which takes as long as running_ns, may be off. */
static uint64_t lead(const struct sched *s, uint64_t running_ns)
{
    uint64_t as_configured = s->config.lead_ns;
    if (s->lag_ns == 0)
        return as_configured;
    uint64_t ns = s->lag_ns + s->lag_ns / 4 + running_ns / OFF_PART;
    if (ns < as_configured / LEAD_TIMES)
        return as_configured / LEAD_TIMES;
    return ns / LEAD_TIMES < as_configured ? ns : as_configured * LEAD_TIMES;
}

/* Grows fast, shrinks slowly: a launch that comes too late costs more than a job that just misses it. Follows what all
 * but a tenth keep below; a single one that took much longer than all others moves it by an eighth. */
static void learn_lag(struct sched *s, const struct sched_batch *batch, uint64_t at_ns)
{
    if (batch->due_ns == 0 || at_ns < batch->due_ns)
        return;
    uint64_t lag = at_ns - batch->due_ns, before = s->lag_ns != 0 ? s->lag_ns : s->config.lead_ns;
    uint64_t more = lag > before ? lag - before : 0, most = before + 1;
    s->lag_ns = more != 0 ? before + (more < most ? more : most) / LAG_GROWS : before - (before - lag) / LAG_SHRINKS;
}

void sched_pace_submitted(struct sched *s, struct sched_batch *batch, uint64_t at_ns)
{
    if (at_ns != 0 && batch->state == SCHED_SLOT_RUNNING)
        learn_lag(s, batch, at_ns);
}

/* It has been early enough: how long it waits for the launch before it to end is not what it needs. */
void sched_pace_waits(struct sched *s, struct sched_batch *batch)
{
    learn_lag(s, batch, s->now_ns);
    batch->due_ns = 0;
}

/* Of a batch that is due at a time that was known before, the delay since tells how early the next is to be. While all
 * slots are taken none can be formed, however early. */
void sched_pace_formed(struct sched *s, struct sched_batch *batch)
{
    uint64_t due_ns = sched_pace_form_ns(s);
    if (due_ns < s->slot_since)
        due_ns = s->slot_since;
    batch->due_ns = s->n_running != 0 && due_ns > s->gather_since ? due_ns : 0;
}

uint64_t sched_pace_form_ns(const struct sched *s)
{
    uint64_t expected_ns = 0, running_ns = 0;
    bool slot = false;
    if (s->staged || list_empty(&s->flows) || (s->plan_alone && s->n_running > 0))
        return UINT64_MAX;
    for (int i = 0; i < SCHED_BATCHES; i++) {
        const struct sched_batch *b = &s->batches[i];
        slot |= b->state == SCHED_SLOT_FREE;
        if (b->state != SCHED_SLOT_RUNNING || b->expected_ns <= expected_ns)
            continue;
        expected_ns = b->expected_ns;
        running_ns = b->expected_ns - b->started_ns;
    }
    if (!slot)
        return UINT64_MAX;
    uint64_t at_ns = s->n_parts >= s->config.batch_jobs_max || s->n_parts >= s->plan_jobs_max
                         ? 0
                         : later(s->gather_since, s->config.gather_ns);
    uint64_t lead_ns = lead(s, running_ns);
    uint64_t formed_ns = expected_ns > lead_ns ? expected_ns - lead_ns : 0;
    return formed_ns > at_ns ? formed_ns : at_ns;
}
