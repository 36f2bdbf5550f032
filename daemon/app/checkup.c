/* Looks at the daemon once a second and says ready or degraded by what health.c makes of it. */
#include "daemon/app/health.h"

#include "daemon/app/state.h"
#include "daemon/util/clock.h"

/* The launch that runs: of those that the backend has, the one handed on first, from when the one before it ended. */
static void look_at_launches(const struct app *app, uint64_t now, struct health_look *look)
{
    const struct app_batch *first = NULL;
    uint64_t since = 0;
    for (const struct app_batch *b = app->batches; b < app->batches + SCHED_BATCHES; b++) {
        if (b->heard_ns > since)
            since = b->heard_ns;
        bool runs = b->sched != NULL && b->launched_ns >= b->staged_ns && b->heard_ns < b->launched_ns;
        if (runs && (first == NULL || b->launched_ns < first->launched_ns))
            first = b;
    }
    if (first == NULL)
        return;
    since = first->launched_ns > since ? first->launched_ns : since;
    look->running_ns = now > since ? now - since : 0;
    look->running_predicted_ns = first->plan.predicted_ns;
}

static struct health_look look_now(const struct app *app, uint64_t now)
{
    const struct metrics *m = &app->metrics;
    struct health_look look = app->seen;
    struct sched_counts counts;
    sched_counts(&app->sched, &counts);
    look.device_progress = be_progress(&app->be);
    look.predicted_ns = counts.predicted_ns;
    look.measured_ns = counts.measured_ns;
    look.refused = metrics_of_code(m->replies, MLA_OVERLOADED);
    look.errors = metrics_of_code(m->jobs, MLA_INTERNAL) + metrics_of_code(m->jobs, MLA_OUT_OF_MEMORY) +
                  metrics_of_code(m->steps, MLA_INTERNAL) + metrics_of_code(m->steps, MLA_OUT_OF_MEMORY);
    look.accept_pauses = net_counters(app->net)->accept_pauses;
    look_at_launches(app, now, &look);
    /* A loop that did not come to this in time kept others waiting, too, whether in a turn of its own or not. */
    uint64_t due = app->looked_ns + HEALTH_LOOK_MS * MLA_NS_PER_MS;
    look.late_ns = now > due ? now - due : 0;
    if (look.late_ns > look.turn_max_ns)
        look.turn_max_ns = look.late_ns;
    return look;
}

static void tell(struct app *app, uint32_t was)
{
    for (unsigned i = 0; i < HEALTH_REASONS; i++) {
        enum health_reason reason = (enum health_reason)i;
        bool is = health_is(&app->checks, reason);
        if (is && !(was >> i & 1))
            mla_log(MLA_LOG_WARNING, "degraded", "reason=%s text=%s", health_name(reason), health_meaning(reason));
        else if (!is && (was >> i & 1))
            mla_log(MLA_LOG_NOTICE, "degraded_over", "reason=%s", health_name(reason));
    }
    app->health = app->checks.now != 0 ? MLA_HEALTH_DEGRADED : MLA_HEALTH_READY;
    health_text(&app->checks, app->degraded, sizeof(app->degraded));
    app->health_reason = app->degraded;
    service_status(app);
}

void checkup_start(struct app *app)
{
    app->looked_ns = mla_now_ns();
    app->seen = (struct health_look){0};
    struct health_look look = look_now(app, app->looked_ns);
    health_start(&app->checks, &look);
}

void checkup_look(struct app *app)
{
    uint64_t now = mla_now_ns();
    uint32_t was = app->checks.now;
    if (!app_takes_work(app))
        return;
    struct health_look look = look_now(app, now);
    app->seen = (struct health_look){0};
    app->looked_ns = now;
    if (health_step(&app->checks, &look))
        tell(app, was);
}

void checkup_launch_taken(struct app *app, const struct app_batch *b)
{
    uint64_t due = b->launched_ns > app->last_end_ns ? b->launched_ns : app->last_end_ns;
    if (b->be.taken_ns > due && b->be.taken_ns - due > app->seen.device_lag_ns)
        app->seen.device_lag_ns = b->be.taken_ns - due;
    app->last_end_ns = b->be.ended_ns;
}
