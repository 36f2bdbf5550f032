/* Turns of the loop: from the first thing that one does until it goes back to waiting, everybody else waits for it.
 * libuv runs prepare handles latest first, so this one's is behind net's, whose part belongs to the turn. */
#include "daemon/app/state.h"
#include "daemon/util/clock.h"

static void on_prepare(uv_prepare_t *handle)
{
    struct app *app = handle->data;
    if (app->turn_ns != 0)
        turn_end(app, mla_now_ns());
}

void turn_begin(struct app *app)
{
    if (app->turn_ns == 0)
        app->turn_ns = mla_now_ns();
}

void turn_end(struct app *app, uint64_t now_ns)
{
    uint64_t took_ns = now_ns - app->turn_ns;
    metrics_observe_ns(&app->metrics.turn_seconds, took_ns);
    if (took_ns > app->seen.turn_max_ns)
        app->seen.turn_max_ns = took_ns;
    app->turn_ns = 0;
}

void turn_start(struct app *app)
{
    uv_prepare_init(&app->loop, &app->turn_prepare);
    app->turn_prepare.data = app;
    uv_prepare_start(&app->turn_prepare, on_prepare);
    uv_unref((uv_handle_t *)&app->turn_prepare);
}
