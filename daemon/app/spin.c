/* The loop, and what it may do instead of sleeping: look at the sockets that spoke last and at the backend's ring by
 * itself for a while, since a wake-up costs more than an answer takes. Everything else, new connections, timers, other
 * peers, is libuv's, which runs at least once a slice. */
#include "daemon/app/state.h"
#include "daemon/util/clock.h"
#include "daemon/util/relax.h"

#define SLICE_NS (50 * MLA_NS_PER_US)

/* Whether something came in the slice. Ends with the application, or early when it is the scheduler's time. */
static bool spin_slice(struct app *app)
{
    uint64_t began_ns = mla_now_ns(), end_ns = began_ns + SLICE_NS;
    bool busy = false;
    while (!app->closing && !app->exit_pending) {
        bool heard = net_spin(app->net);
        bool answered = app_poll_backend(app) > 0;
        if (answered)
            net_flush(app->net);
        busy |= heard || answered;
        uint64_t now_ns = mla_now_ns();
        if (heard || answered) {
            app->turn_ns = began_ns;
            turn_end(app, now_ns);
        }
        began_ns = now_ns;
        if (!heard && !answered)
            mla_relax();
        if (now_ns >= end_ns || (app->sched_timer_ns != 0 && now_ns >= app->sched_timer_ns))
            break;
    }
    return busy;
}

void app_loop(struct app *app)
{
    uint64_t spin_ns = app->config->loop_spin_us * MLA_NS_PER_US, active_ns = 0, events = 0;
    if (spin_ns == 0) {
        uv_run(&app->loop, UV_RUN_DEFAULT);
        return;
    }
    bool spins = false;
    for (;;) {
        bool spun = spins;
        spins = mla_now_ns() - active_ns < spin_ns;
        if (spins != spun)
            be_spin(&app->be, spins);
        if (uv_run(&app->loop, spins ? UV_RUN_NOWAIT : UV_RUN_ONCE) == 0)
            return;
        if (app->turn_ns != 0)
            turn_end(app, mla_now_ns());
        if (app->closing || app->exit_pending) {
            active_ns = 0;
            continue;
        }
        uint64_t seen = net_counters(app->net)->frames_in + app->n_events;
        if (spin_slice(app) || seen != events)
            active_ns = mla_now_ns();
        events = net_counters(app->net)->frames_in + app->n_events;
    }
}
