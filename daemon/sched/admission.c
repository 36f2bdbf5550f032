/* How much may wait (sched.h, "Admission"). Loads are kept as they were predicted; compared with limits they are scaled
 * to what launches take. */
#include "daemon/sched/internal.h"

#define RETRY_MAX_US UINT64_C(60000000)
#define LOAD_LIMIT   (UINT64_C(1) << 48) /* of a job, 78 hours: sums over all jobs stay below 2^64 */

static uint64_t times(uint64_t a, uint64_t n)
{
    return n != 0 && a > UINT64_MAX / n ? UINT64_MAX : a * n;
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t load_of(const struct sched_job *job, uint32_t parts)
{
    uint64_t most = LOAD_LIMIT / sched_job_parts(job);
    return (job->load_ns < most ? job->load_ns : most) * parts;
}

static uint64_t retry_us(const struct sched *s, uint64_t ns)
{
    uint64_t us = ns / 1000;
    us = us > s->config.retry_after_us ? us : s->config.retry_after_us;
    us = us > 0 ? us : 1;
    return us > RETRY_MAX_US ? RETRY_MAX_US : us;
}

/* How long that much of a peer's load takes while all who have a backlog have their share of the device. */
static uint64_t at_share(const struct sched *s, const struct sched_peer *peer, uint64_t ns)
{
    return times(ns, s->backlog_weight) / sched_weight(peer->weight);
}

/* What a peer must get rid of first goes by its share of the device. */
uint64_t sched_retry_after_us(const struct sched *s, const struct sched_peer *peer)
{
    uint32_t jobs = peer->in_flight > 0 ? peer->in_flight : 1;
    return retry_us(s, at_share(s, peer, sched_pace_scaled(s, peer->backlog_ns) / jobs));
}

enum mla_status sched_admit(const struct sched *s, struct sched_job *job)
{
    const struct sched_counts *c = &s->counts;
    const struct sched_peer *peer = job->peer;
    uint32_t in_flight = c->waiting + c->queued + c->staged + c->running;
    if (in_flight >= s->config.max_in_flight) {
        job->retry_after_us = retry_us(s, sched_pace_scaled(s, s->backlog_ns) / (in_flight > 0 ? in_flight : 1));
        return MLA_OVERLOADED;
    }
    if (s->config.backlog_max_ns == 0 || peer->backlog_ns == 0)
        return MLA_OK;
    uint64_t own_ns = sched_pace_scaled(s, plus(peer->backlog_ns, load_of(job, sched_job_parts(job))));
    uint64_t share_ns = times(s->config.backlog_max_ns, sched_weight(peer->weight)) / s->backlog_weight;
    if (own_ns <= share_ns)
        return MLA_OK;
    job->retry_after_us = retry_us(s, at_share(s, peer, own_ns - share_ns));
    return MLA_OVERLOADED;
}

void sched_backlog_add(struct sched *s, struct sched_job *job)
{
    uint64_t ns = load_of(job, sched_job_parts(job));
    if (ns == 0)
        return;
    if (job->peer->backlog_ns == 0)
        s->backlog_weight += sched_weight(job->peer->weight);
    job->peer->backlog_ns += ns;
    s->backlog_ns += ns;
}

void sched_backlog_less(struct sched *s, struct sched_job *job, uint32_t parts)
{
    uint64_t ns = load_of(job, parts);
    if (ns == 0)
        return;
    job->peer->backlog_ns -= ns;
    s->backlog_ns -= ns;
    if (job->peer->backlog_ns == 0)
        s->backlog_weight -= sched_weight(job->peer->weight);
}

void sched_backlog_weigh(struct sched *s, const struct sched_peer *peer, uint32_t weight)
{
    if (peer->backlog_ns > 0)
        s->backlog_weight += sched_weight(weight) - sched_weight(peer->weight);
}

uint64_t sched_backlog_weight(const struct sched *s)
{
    return s->backlog_weight;
}
