#include <sys/prctl.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"
#include "daemon/util/relax.h"

static void word_came(void *backend, struct be_request *watch, bool aborted)
{
    struct backend *be = backend;
    struct be_event event = {.kind = BE_READY, .request = watch, .aborted = aborted};
    be_port_report(&be->port, &event);
}

void cu_step_ended(void *backend, struct be_request *step, enum mla_status code)
{
    struct backend *be = backend;
    struct mla_error error = {.code = code};
    cu_ahead_settle(be);
    if (!be->lost)
        be_port_done(&be->port, step, &error);
}

static void map(struct backend *be, struct be_request *request)
{
    struct mla_error error = {.code = MLA_OK};
    cu_map(be, request->region, &error);
    if (!be->lost)
        be_port_done(&be->port, request, &error);
}

static void run(struct backend *be, struct be_request *request)
{
    switch (request->op) {
    case BE_MAP:
        map(be, request);
        break;
    case BE_WATCH:
        /* Without memory reported as aborted: the job fails, and nothing waits for ever. */
        if (be_watches_add(&be->watches, request) != 0)
            word_came(be, request, true);
        break;
    case BE_UNWATCH:
        be_watches_remove(&be->watches, request->unwatch);
        be_port_done(&be->port, request, NULL);
        break;
    case BE_STEP:
        be_steps_begin(&be->steps, request);
        break;
    case BE_STEP_END:
        be_steps_end(&be->steps, request);
        be_port_done(&be->port, request, NULL);
        break;
    case BE_MIRROR:
        cu_mirror_begin(be, request);
        break;
    case BE_LAUNCH:
        cu_begin(be, request);
        be_steps_others_begin(&be->steps, request->batch);
        break;
    case BE_ABORT:
    case BE_UNMAP:
        cu_begin(be, request);
        break;
    }
}

static bool needs_slot(const struct be_request *request)
{
    return request->op == BE_LAUNCH || request->op == BE_ABORT || request->op == BE_UNMAP;
}

/* The next request; NULL: none. */
static const struct be_request *next_request(struct backend *be)
{
    if (!be->held && !be_port_take(&be->port, &be->held))
        be->held = NULL;
    return be->held;
}

/* Requests start in order: one that needs a slot while there is none holds up those behind it. */
static bool take(struct backend *be, struct be_request **request)
{
    if (!next_request(be) || (cu_slots_full(be) && needs_slot(be->held)))
        return false;
    *request = be->held;
    be->held = NULL;
    return true;
}

/* A fault of the device shows in the driver's answers only: a completion word then never comes. */
static void look_after(struct backend *be, uint64_t now)
{
    uint64_t interval = be->n_slots != 0 ? CU_QUERY_NS : BE_PORT_IDLE_NS;
    if (now - be->last_query_ns >= interval)
        cu_query(be);
}

/* Nothing but the end of a launch is waited for: slept until shortly before it, then polled for as long as after any
 * work beyond it, and from then on with pauses that grow. */
static uint64_t pause_beside_launch_ns(const struct backend *be, uint64_t now, uint64_t look, uint64_t until)
{
    uint64_t spin = be->options.spin_ns;
    if (now - be->port.active_ns < spin)
        return 0;
    if (now < look)
        return look - now < CU_QUERY_NS ? look - now : CU_QUERY_NS;
    return now < until ? 0 : be_port_pause_ns(now - until, spin, CU_PAUSE_MIN_NS);
}

static uint64_t next_pause_ns(const struct backend *be, uint64_t now)
{
    uint64_t quiet = now - be->port.active_ns;
    uint64_t spin = be->options.spin_ns;
    uint64_t look, until;
    if (spin != 0 && be->watches.n == 0 && be->steps.n == 0 && cu_pace_look(be, &look, &until))
        return pause_beside_launch_ns(be, now, look, until);
    if (be->steps.n_ready != 0) /* a layer waits for its time */
        return 0;
    if (be->steps.n != 0 && spin < CU_STEP_SPIN_NS) /* a layer's word comes within a worker's own kernels */
        spin = CU_STEP_SPIN_NS;
    if (be->n_slots != 0 || be->watches.n != 0 || be->steps.n != 0 || be->mirroring)
        return be_port_pause_ns(quiet, spin, CU_PAUSE_MIN_NS);
    return quiet < be->options.spin_ns ? 0 : BE_PORT_IDLE_NS;
}

static bool batch_under_way(const struct backend *be)
{
    for (uint32_t i = 0; i < be->n_slots; i++) {
        const struct be_request *request = be->slots[(be->first_slot + i) % CU_SLOTS].request;
        if (request->op == BE_LAUNCH && !be_steps_own(&be->steps, request))
            return true;
    }
    return false;
}

/* Layers and batches take turns; other requests wait for neither. Whether a layer has begun. */
static bool serve_steps(struct backend *be, uint64_t now, bool *batches_wait)
{
    if (be->lost || be->steps.n_ready == 0 || cu_slots_full(be))
        return false;
    const struct be_request *next = next_request(be);
    struct be_steps_others others = {
        .waiting = next && next->op == BE_LAUNCH, .under_way = batch_under_way(be), .free_ns = cu_pace_free_ns(be)};
    struct be_request *request = be_steps_launch(&be->steps, now, &others);
    if (request)
        cu_begin(be, request);
    /* Behind a layer's launch it is asked anew, as another's turn may be next. */
    *batches_wait = others.waiting && (request || be_steps_go_first(&be->steps, now, &others));
    return request != NULL;
}

static bool look_at_steps(struct backend *be, uint64_t now)
{
    return !be->lost && be->steps.n != 0 && be_steps_poll(&be->steps, now);
}

static void serve(struct backend *be)
{
    struct be_request *request;
    be_port_beat(&be->port);
    bool any = cu_end_some(be);
    uint64_t now = mla_now_ns();
    bool batches_wait = false;
    any |= look_at_steps(be, now);
    any |= serve_steps(be, now, &batches_wait);
    if (!be->lost && !batches_wait && take(be, &request)) {
        run(be, request);
        any = true;
    }
    if (be->lost)
        return;
    be_watches_poll(&be->watches, word_came, be);
    now = mla_now_ns();
    if (any) {
        be->port.active_ns = now;
        return;
    }
    if (cu_ahead_write(be))
        return;
    cu_ahead_look(be);
    cu_mirror_look(be);
    look_after(be, now);
    uint64_t pause = be->lost ? 0 : next_pause_ns(be, now);
    if (pause == 0)
        mla_relax();
    else if (be->held) /* until a slot is free, which no request makes it */
        be_port_nap(&be->port, pause);
    else
        be_port_pause(&be->port, pause);
}

/* Nothing is answered any more; requests are taken so that their ring does not fill. */
static void serve_lost(struct backend *be)
{
    struct be_request *request;
    be_port_beat(&be->port);
    while (be_port_take(&be->port, &request))
        continue;
    be_port_pause(&be->port, BE_PORT_IDLE_NS);
}

static bool enter(struct backend *be, enum cu_state state)
{
    pthread_mutex_lock(&be->lock);
    be->state = state;
    bool abandoned = be->abandoned;
    pthread_cond_broadcast(&be->changed);
    pthread_mutex_unlock(&be->lock);
    return abandoned;
}

void *cu_main(void *argument)
{
    struct backend *be = argument;
    pthread_setname_np(pthread_self(), "mlad-gpu");
    /* Naps end when they should, not 50 us later. */
    prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
    be->start_error.code = MLA_OK;
    if (cu_start(be, &be->start_error) == 0 && !enter(be, CU_RUNNING)) {
        while (!be_port_stopping(&be->port) && !be->lost)
            serve(be);
        if (be->lost) {
            struct be_event event = {.kind = BE_FATAL, .error = be->lost_error};
            be_port_report(&be->port, &event);
        }
        while (!be_port_stopping(&be->port))
            serve_lost(be);
    }
    cu_stop(be);
    if (enter(be, CU_ENDED))
        cu_free(be);
    return NULL;
}
