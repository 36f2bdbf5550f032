#include "client/recover.h"

#include <string.h>

static uint64_t add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* splitmix64: enough for jitter. */
static uint64_t next_random(struct mlac_recover *r)
{
    uint64_t z = r->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Doubles up to the cap; the second half is random, so that clients that lost the same daemon come apart. */
static uint64_t pause_ns(struct mlac_recover *r, uint32_t tries)
{
    uint64_t longest = r->config.first_ns;
    for (uint32_t i = 0; i < tries && longest < r->config.last_ns; i++)
        longest = longest > r->config.last_ns / 2 ? r->config.last_ns : 2 * longest;
    if (longest > r->config.last_ns)
        longest = r->config.last_ns;
    return longest - longest / 2 + (longest / 2 ? next_random(r) % (longest / 2 + 1) : 0);
}

void mlac_recover_init(struct mlac_recover *r, const struct mlac_recover_config *config)
{
    memset(r, 0, sizeof(*r));
    r->config = *config;
    r->random = config->seed;
    r->wake_ns = UINT64_MAX;
}

void mlac_recover_up(struct mlac_recover *r, uint64_t now_ns, uint64_t boot, uint64_t client)
{
    r->state = MLAC_RECOVER_UP;
    r->up_ns = now_ns;
    r->boot = boot;
    r->client = client;
    r->wake_ns = UINT64_MAX;
}

bool mlac_recover_may_retry(enum mla_status why)
{
    return why >= MLA_QUOTA && why != MLA_PROTOCOL_ERROR;
}

static enum mlac_recover_act over(struct mlac_recover *r, enum mla_status why)
{
    r->state = MLAC_RECOVER_OVER;
    r->wake_ns = UINT64_MAX;
    r->why = why;
    return MLAC_DO_GIVE_UP;
}

/* A moment to wake at, at the limit at the latest. */
static void wake_in(struct mlac_recover *r, uint64_t now_ns, uint64_t ns)
{
    r->wake_ns = add(now_ns, ns);
    if (r->wake_ns > r->end_ns)
        r->wake_ns = r->end_ns;
}

static enum mlac_recover_act pause(struct mlac_recover *r, uint64_t now_ns, enum mla_status why)
{
    r->why = why;
    if (now_ns >= r->end_ns || !mlac_recover_may_retry(why))
        return over(r, why);
    r->state = MLAC_RECOVER_PAUSE;
    wake_in(r, now_ns, pause_ns(r, r->tries++));
    return MLAC_DO_HANG_UP;
}

static enum mlac_recover_act lost(struct mlac_recover *r, const struct mlac_recover_event *e)
{
    if (r->state == MLAC_RECOVER_UP || r->state == MLAC_RECOVER_RESTORE) {
        r->fence_boot = r->boot;
        r->fence_client = r->client;
    }
    if (r->state == MLAC_RECOVER_UP) {
        r->end_ns = add(e->now_ns, r->config.limit_ns);
        if (e->now_ns - r->up_ns >= r->config.last_ns)
            r->tries = 0;
    }
    return pause(r, e->now_ns, e->status);
}

/* On to the next question to the daemon, of a phase that has just begun or goes on. */
static enum mlac_recover_act ask(struct mlac_recover *r)
{
    r->paused = false;
    r->wake_ns = r->end_ns;
    return r->state == MLAC_RECOVER_FENCE ? MLAC_DO_ASK : MLAC_DO_RESTORE;
}

static enum mlac_recover_act ask_later(struct mlac_recover *r, uint64_t now_ns)
{
    r->paused = true;
    wake_in(r, now_ns, pause_ns(r, r->asks++));
    return MLAC_DO_REST;
}

static enum mlac_recover_act begin(struct mlac_recover *r, enum mlac_recover_state phase)
{
    r->state = phase;
    r->asks = 0;
    return ask(r);
}

static enum mlac_recover_act greeted(struct mlac_recover *r, const struct mlac_recover_event *e)
{
    r->restarted = e->boot != r->boot;
    r->boot = e->boot;
    r->client = e->client;
    if (r->fence_client && r->fence_boot == e->boot)
        return begin(r, MLAC_RECOVER_FENCE);
    r->fence_client = 0;
    return begin(r, MLAC_RECOVER_RESTORE);
}

static enum mlac_recover_act refused(struct mlac_recover *r, const struct mlac_recover_event *e)
{
    if (e->status == MLA_DRAINING) /* this daemon takes nothing any more; the next one will */
        return lost(r, e);
    bool may_pass = e->status >= MLA_QUOTA && e->status < MLA_TIMED_OUT && e->status != MLA_CACHE_GONE;
    if (may_pass && e->now_ns < r->end_ns)
        return ask_later(r, e->now_ns);
    if (r->state == MLAC_RECOVER_FENCE)
        return pause(r, e->now_ns, MLA_DISCONNECTED); /* cannot be asked: nor can it be known that it is safe */
    r->asks = 0;
    r->wake_ns = r->end_ns;
    return MLAC_DO_SKIP;
}

static enum mlac_recover_act due(struct mlac_recover *r, const struct mlac_recover_event *e)
{
    if (e->now_ns < r->wake_ns)
        return MLAC_DO_REST;
    switch (r->state) {
    case MLAC_RECOVER_PAUSE:
        if (e->now_ns >= r->end_ns)
            return over(r, r->why);
        r->state = MLAC_RECOVER_CONNECT;
        r->wake_ns = UINT64_MAX;
        return MLAC_DO_CONNECT;
    case MLAC_RECOVER_GREET:
        return pause(r, e->now_ns, MLA_TIMED_OUT);
    case MLAC_RECOVER_FENCE:
    case MLAC_RECOVER_RESTORE:
        if (e->now_ns >= r->end_ns)
            return over(r, MLA_TIMED_OUT);
        return ask(r);
    default:
        return MLAC_DO_REST;
    }
}

enum mlac_recover_act mlac_recover_step(struct mlac_recover *r, const struct mlac_recover_event *e)
{
    if (r->state == MLAC_RECOVER_OVER)
        return MLAC_DO_REST;
    switch (e->kind) {
    case MLAC_ON_LOST:
    case MLAC_ON_FAILED:
        return lost(r, e);
    case MLAC_ON_DUE:
        return due(r, e);
    case MLAC_ON_CONNECTED:
        r->state = MLAC_RECOVER_GREET;
        wake_in(r, e->now_ns, r->config.greet_ns);
        return MLAC_DO_GREET;
    case MLAC_ON_GREETED:
        return greeted(r, e);
    case MLAC_ON_PRESENT:
        return ask_later(r, e->now_ns);
    case MLAC_ON_GONE:
        r->fence_client = 0;
        return begin(r, MLAC_RECOVER_RESTORE);
    case MLAC_ON_RESTORED:
        r->asks = 0;
        return ask(r);
    case MLAC_ON_REFUSED:
        return refused(r, e);
    case MLAC_ON_MORE:
        r->end_ns = add(e->now_ns, r->config.limit_ns);
        return begin(r, MLAC_RECOVER_RESTORE);
    case MLAC_ON_COMPLETE:
        mlac_recover_up(r, e->now_ns, r->boot, r->client);
        return MLAC_DO_GO;
    }
    return MLAC_DO_REST;
}

/* ---- jobs ---- */

enum mlac_job_fate mlac_job_cut(const struct mlac_job_facts *f, enum mla_status *status)
{
    if (f->device_lost) {
        *status = MLA_DEVICE_LOST;
        return MLAC_ANSWER;
    }
    *status = MLA_DISCONNECTED;
    return f->ordered || (f->sent && f->ends >= MLAC_TRIES_MAX) ? MLAC_ANSWER : MLAC_KEEP;
}

enum mlac_job_fate mlac_job_due(const struct mlac_job_facts *f, bool clear, uint64_t now_ns, enum mla_status *status)
{
    bool late = now_ns >= f->expire_ns;
    if (!f->cancelled && !late)
        return MLAC_KEEP;
    /* An answer but DISCONNECTED says that its memory is left alone: of what was sent, only the fence tells that. */
    if (clear || !f->sent) {
        *status = f->cancelled ? MLA_CANCELLED : MLA_TIMED_OUT;
        return MLAC_ANSWER;
    }
    *status = MLA_DISCONNECTED;
    return late ? MLAC_ANSWER : MLAC_KEEP;
}
