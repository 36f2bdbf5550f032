/* The composition root: here, and only in this folder, net, sched and backend meet. */
#include "daemon/app/app.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "daemon/app/costs.h"
#include "daemon/app/state.h"
#include "daemon/util/clock.h"
#include "daemon/util/notify.h"
#include "daemon/util/random.h"

/* One per process; static, so that what is still registered at exit stays reachable. */
static struct app the_app;

/* Time for the backend to end what answers hang on, after the last job: a launch that outlives the drain's deadline may
 * hold it up. */
#define EXIT_PATIENCE_NS (200 * MLA_NS_PER_MS)

static void shut_down(struct app *app, int exit_code);
static void arm_sched_timer(struct app *app, uint64_t at_ns);

/* ---- events and actions ---- */

static void release(struct app *app, struct sched_object *sched)
{
    struct app_object *object = (struct app_object *)(void *)sched;
    switch (object->kind) {
    case APP_REGION:
        region_released(app, (struct app_region *)(void *)object);
        break;
    case APP_REGION_USE:
        region_use_released(app, list_entry(object, struct app_region, use));
        break;
    case APP_CACHE:
        cache_release(app, (struct app_cache *)(void *)object);
        break;
    case APP_TABLE_SET:
        tables_release(app, (struct app_table_set *)(void *)object);
        break;
    }
}

static int exit_code_of(enum mla_status code)
{
    return code == MLA_OK ? APP_EXIT_OK : code == MLA_DEVICE_LOST ? APP_EXIT_DEVICE_LOST : APP_EXIT_DRAIN_TIMEOUT;
}

static void carry_out(struct app *app, const struct sched_action *action)
{
    struct app_job *job = (struct app_job *)(void *)action->job;
    switch (action->kind) {
    case SCHED_WATCH:
        decode_watch(app, job);
        break;
    case SCHED_UNWATCH:
        decode_unwatch(app, job);
        break;
    case SCHED_STAGE:
        batch_stage(app, action->batch, action->generation);
        break;
    case SCHED_LAUNCH:
        batch_launch(app, action->batch);
        break;
    case SCHED_REPLY:
        decode_answer(app, job);
        break;
    case SCHED_RELEASE:
        release(app, action->object);
        break;
    case SCHED_SET_TIMER:
        arm_sched_timer(app, action->at_ns);
        break;
    case SCHED_EXIT:
        /* Memory that clients have given up may still be on its way out of the backend, and done words of jobs that
         * will not run on their way to their abort values: they are answered first. */
        app->exit_code = exit_code_of(action->code);
        if (app->n_requests == 0 || app->device_lost) {
            shut_down(app, app->exit_code);
            break;
        }
        app->exit_pending = true;
        if (app->exit_code != APP_EXIT_OK) /* a launch still runs, and some of that may wait for it */
            arm_sched_timer(app, mla_now_ns() + EXIT_PATIENCE_NS);
        break;
    }
}

void app_pump(struct app *app)
{
    struct sched_action action;
    if (app->in_actions)
        return;
    app->in_actions = true;
    while (sched_next(&app->sched, &action))
        carry_out(app, &action);
    app->in_actions = false;
}

void app_event(struct app *app, struct sched_event event)
{
    event.now_ns = mla_now_ns();
    sched_step(&app->sched, &event);
    app_pump(app);
}

/* ---- timers ---- */

static void on_attach_timer(uv_timer_t *timer)
{
    turn_begin(timer->data);
    cache_attach_timer(timer->data);
}

/* Also the timer of an exit that waits. */
static void on_sched_timer(uv_poll_t *poll, int status, int events)
{
    struct app *app = poll->data;
    uint64_t times;
    turn_begin(app);
    (void)status;
    (void)events;
    if (read(app->sched_timer_fd, &times, sizeof(times)) != sizeof(times))
        return; /* armed anew since */
    app->sched_timer_ns = 0;
    if (app->exit_pending)
        shut_down(app, app->exit_code);
    else
        app_event(app, (struct sched_event){.kind = SCHED_TIMER});
}

/* Microseconds count for the scheduler, and the loop's own timers have milliseconds. */
static void arm_sched_timer(struct app *app, uint64_t at_ns)
{
    struct itimerspec spec = {
        .it_value = {.tv_sec = (time_t)(at_ns / MLA_NS_PER_S), .tv_nsec = (long)(at_ns % MLA_NS_PER_S)}};
    if (at_ns >= (uint64_t)INT64_MAX)
        spec.it_value = (struct timespec){0};
    app->sched_timer_ns = at_ns;
    timerfd_settime(app->sched_timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

void app_arm_timer(uv_timer_t *timer, uint64_t at_ns)
{
    if (at_ns == 0 || at_ns == UINT64_MAX) {
        uv_timer_stop(timer);
        return;
    }
    uint64_t now = mla_now_ns();
    uint64_t ms = at_ns <= now ? 0 : (at_ns - now + MLA_NS_PER_MS - 1) / MLA_NS_PER_MS;
    uv_update_time(timer->loop);
    uv_timer_start(timer, on_attach_timer, ms, 0);
}

/* ---- the backend ---- */

/* By a clean exit. */
static bool is_waited_for(const struct app_request *request)
{
    return request->be.op != BE_WATCH && request->be.op != BE_LAUNCH;
}

bool app_submit_if_room(struct app *app, struct app_request *request)
{
    request->be.user = request;
    if (app->device_lost || !list_empty(&app->overflow) || be_submit(&app->be, &request->be) != 0)
        return false;
    app->n_requests += is_waited_for(request);
    return true;
}

void app_submit(struct app *app, struct app_request *request)
{
    if (app->device_lost || app_submit_if_room(app, request))
        return;
    app->n_requests += is_waited_for(request);
    list_push_back(&app->overflow, &request->in_overflow);
}

static void flush_overflow(struct app *app)
{
    list_for_each_safe (node, &app->overflow) {
        struct app_request *request = list_entry(node, struct app_request, in_overflow);
        if (be_submit(&app->be, &request->be) != 0)
            return;
        list_del(node);
    }
}

static void lose_device(struct app *app, const struct mla_error *error)
{
    mla_log(MLA_LOG_ERROR, "device_lost", "text=%s", error->text);
    app->device_lost = true;
    list_init(&app->overflow); /* what waited for the ring is its owners' again, and may be freed below */
    app->health = MLA_HEALTH_FAILED;
    app->health_reason = "the device is lost";
    for (struct net_peer *peer = net_next_peer(app->net, NULL); peer != NULL; peer = net_next_peer(app->net, peer)) {
        struct mla_message notice;
        mla_message_init(&notice, MLA_NOTICE_GOAWAY);
        notice.goaway_notice.reason = MLA_GOAWAY_FATAL;
        notice.goaway_notice.status = *error;
        net_send(peer, &notice, 0);
    }
    step_device_lost(app);
    mirror_device_lost(app);
    service_status(app);
    app_event(app, (struct sched_event){.kind = SCHED_FATAL});
}

#define EVENTS_PER_POLL 64

size_t app_poll_backend(struct app *app)
{
    struct be_event batch[EVENTS_PER_POLL];
    size_t n, all = 0;
    do {
        n = be_poll(&app->be, batch, EVENTS_PER_POLL);
        for (size_t i = 0; i < n && !app->device_lost; i++) {
            if (batch[i].kind == BE_FATAL) {
                lose_device(app, &batch[i].error);
            } else {
                struct app_request *request = batch[i].request->user;
                app->n_requests -= batch[i].kind == BE_DONE;
                request->done(app, request, &batch[i]);
            }
        }
        flush_overflow(app);
        if (app->exit_pending && app->n_requests == 0)
            shut_down(app, app->exit_code);
        all += n;
    } while (n == EVENTS_PER_POLL && !app->closing);
    app->n_events += all;
    return all;
}

static void on_backend(uv_poll_t *poll, int status, int events)
{
    (void)status;
    (void)events;
    turn_begin(poll->data);
    app_poll_backend(poll->data);
}

/* What a backend has answered while the requests were handed to it leaves with the same turn. */
static void on_check(uv_check_t *check)
{
    app_poll_backend(check->data);
}

/* ---- the end ---- */

void app_drain(struct app *app, uint64_t deadline_us)
{
    uint64_t now = mla_now_ns();
    if (app_takes_work(app)) {
        mla_log(MLA_LOG_NOTICE, "draining", "deadline_us=%llu", (unsigned long long)deadline_us);
        app->health = MLA_HEALTH_DRAINING;
        app->health_reason = "draining: no new work is taken";
        for (struct net_peer *peer = net_next_peer(app->net, NULL); peer != NULL;
             peer = net_next_peer(app->net, peer)) {
            struct mla_message notice;
            mla_message_init(&notice, MLA_NOTICE_GOAWAY);
            notice.goaway_notice.reason = MLA_GOAWAY_DRAINING;
            notice.goaway_notice.deadline_us = deadline_us;
            net_send(peer, &notice, 0);
        }
        cache_drain(app);
        service_stopping(app, deadline_us);
    }
    uint64_t limit_us = (UINT64_MAX - now) / MLA_NS_PER_US;
    uint64_t deadline_ns = now + (deadline_us < limit_us ? deadline_us : limit_us) * MLA_NS_PER_US;
    step_drain(app, deadline_ns);
    app_event(app, (struct sched_event){.kind = SCHED_DRAIN, .deadline_ns = deadline_ns});
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct app *app = handle->data;
    mla_log(MLA_LOG_NOTICE, "signal", "signal=%s", signum == SIGTERM ? "SIGTERM" : "SIGINT");
    app_drain(app, app->config->drain_timeout_ms * 1000);
}

static void close_handles(struct app *app)
{
    uv_handle_t *handles[] = {(uv_handle_t *)&app->backend_poll, (uv_handle_t *)&app->backend_check,
                              (uv_handle_t *)&app->sched_timer,  (uv_handle_t *)&app->attach_timer,
                              (uv_handle_t *)&app->sigterm,      (uv_handle_t *)&app->sigint,
                              (uv_handle_t *)&app->turn_prepare};
    for (size_t i = 0; i < sizeof(handles) / sizeof(handles[0]); i++)
        if (!uv_is_closing(handles[i]))
            uv_close(handles[i], NULL);
    service_close(app);
}

static void on_net_closed(void *user)
{
    close_handles(user);
}

static void shut_down(struct app *app, int exit_code)
{
    if (app->closing)
        return;
    app->closing = true;
    app->exit_code = exit_code;
    mla_log(MLA_LOG_NOTICE, "exit", "code=%d", exit_code);
    net_stop_listening(app->net);
    net_close(app->net, on_net_closed);
}

/* ---- the beginning ---- */

static int fail(const char *what, const struct mla_error *err)
{
    mla_log(MLA_LOG_ERROR, "start_failed", "what=%s status=%s field=%s text=%s", what, mla_status_name(err->code),
            err->field == NULL ? "" : err->field, err->text);
    service_failed(what, err->text);
    return APP_EXIT_START;
}

/* The planner's constants of a file, if one is configured. */
static int read_costs(const struct app_config *config, struct costs_file *file)
{
    struct mla_error err = {.field = "device.costs", .code = MLA_INVALID_ARGUMENT};
    if (config->costs[0] == '\0' || costs_load(config->costs, file, err.text, sizeof(err.text)) == 0)
        return APP_EXIT_OK;
    return fail("costs", &err);
}

/* Constants of another device would mislead rather than help. */
static int check_costs(const struct app_config *config, const struct costs_file *file, const struct be_facts *facts)
{
    struct mla_error err = {0};
    if (config->costs[0] == '\0' ||
        (strcmp(file->device, facts->device_name) == 0 && file->rows_per_unit == facts->device.rows_per_unit))
        return APP_EXIT_OK;
    mla_error_set(&err, MLA_WRONG_DEVICE, "device.costs",
                  "%s was measured on %s with units of %u rows, not on %s with %u", config->costs, file->device,
                  file->rows_per_unit, facts->device_name, facts->device.rows_per_unit);
    return fail("costs", &err);
}

static int open_backend(struct app *app)
{
    struct mla_error err = {0};
    struct costs_file costs;
    const struct be_ops *ops = be_find(app->config->backend); /* config_check() has found it */
    const struct app_config *c = app->config;
    struct be_config config = {.threads = (uint32_t)c->cpu_threads,
                               .workspace_bytes = c->workspace_bytes,
                               .gpu = c->gpu,
                               .kernels_dir = c->kernels_dir[0] == '\0' ? NULL : c->kernels_dir,
                               .variant = c->kernel[0] == '\0' ? NULL : c->kernel,
                               .spin_us = (uint32_t)c->spin_us,
                               .host_bytes = c->host_bytes,
                               .costs = c->costs[0] == '\0' ? NULL : &costs.costs};
    if (read_costs(c, &costs) != APP_EXIT_OK)
        return APP_EXIT_START;
    /* A driver named by MLA_CUDA_DRIVER has no nodes. */
    if (strcmp(app->config->backend, "cuda") == 0 && c->wait_ms > 0 && getenv("MLA_CUDA_DRIVER") == NULL &&
        !service_wait_for_nodes("/dev", c->wait_ms))
        mla_log(MLA_LOG_WARNING, "no_device_nodes", "wait_ms=%llu", (unsigned long long)c->wait_ms);
    mla_notify("STATUS=opening the %s backend", app->config->backend);
    if (be_open(&app->be, ops, &config, &err) != 0)
        return fail("backend", &err);
    const struct be_facts *facts = be_facts(&app->be);
    mla_log(MLA_LOG_INFO, "backend",
            "name=%s device=%s gpu_uuid=%s isolation=%s units=%u rows_per_unit=%u workspace_bytes=%llu "
            "device_memory_bytes=%llu",
            facts->name, facts->device_name, facts->gpu_uuid, facts->isolation, facts->device.resident_units,
            facts->device.rows_per_unit, (unsigned long long)facts->workspace_bytes,
            (unsigned long long)facts->device_memory_bytes);
    if (check_costs(c, &costs, facts) != APP_EXIT_OK) {
        be_close(&app->be);
        return APP_EXIT_START;
    }
    return APP_EXIT_OK;
}

static int open_net(struct app *app)
{
    static const struct net_handlers handlers = {app_on_hello, app_on_message, app_on_closed, app_on_refused};
    const struct app_config *config = app->config;
    struct net_config net = {.socket_path = config->socket,
                             .socket_mode = config->socket_mode,
                             .socket_group = config->socket_group[0] == '\0' ? NULL : config->socket_group,
                             .max_peers = (uint32_t)config->max_clients,
                             .write_queue_bytes = (uint32_t)config->max_write_queue_bytes,
                             .hello_timeout_ms = (uint32_t)config->hello_timeout_ms,
                             .frame_timeout_ms = (uint32_t)config->frame_timeout_ms,
                             .write_timeout_ms = (uint32_t)config->write_timeout_ms,
                             .turn_ns = &app->turn_ns};
    struct mla_error err = {0};
    if (net_open(&app->net, &app->loop, &net, &handlers, app, &err) != 0) {
        const char *field = err.field == NULL ? "" : err.field;
        if (strcmp(field, "socket_path") == 0) /* as the operator knows it */
            err.field = "daemon.socket";
        else if (strcmp(field, "socket_group") == 0)
            err.field = "daemon.socket_group";
        return fail("socket", &err);
    }
    return APP_EXIT_OK;
}

static void init(struct app *app, const struct app_config *config, app_load_fn load)
{
    app->live = *config;
    app->config = &app->live;
    app->load = load;
    app->started_ns = mla_now_ns();
    app->health = MLA_HEALTH_STARTING;
    app->health_reason = "starting";
    list_init(&app->clients);
    list_init(&app->free_jobs);
    list_init(&app->published);
    list_init(&app->attach_waits);
    list_init(&app->overflow);
    list_init(&app->steps);
    app->memory_generation = 1;
}

static void init_sched(struct app *app)
{
    const struct app_config *config = app->config;
    const struct be_facts *facts = be_facts(&app->be);
    struct sched_config sched = {.max_in_flight = (uint32_t)config->total_jobs_in_flight,
                                 .max_running = (uint32_t)config->launches,
                                 .batch_jobs_max = (uint32_t)config->batch_jobs,
                                 .batch_seqs_max = (uint32_t)config->batch_seqs,
                                 .batch_cost_max = facts->workspace_bytes,
                                 .launch_max_ns = config->max_launch_us * MLA_NS_PER_US,
                                 .launch_fixed_ns = (uint64_t)facts->costs.launch_ns + facts->costs.reduce_launch_ns +
                                                    facts->costs.reduce_fixed_ns,
                                 .gather_ns = config->gather_us * MLA_NS_PER_US,
                                 .lead_ns = config->lead_us * MLA_NS_PER_US,
                                 .backlog_max_ns = config->max_backlog_ms * MLA_NS_PER_MS,
                                 .retry_after_us = config->retry_after_us};
    sched_init(&app->sched, &sched);
}

static void start_handles(struct app *app)
{
    uv_poll_init(&app->loop, &app->backend_poll, be_event_fd(&app->be));
    app->backend_poll.data = app;
    uv_poll_start(&app->backend_poll, UV_READABLE, on_backend);
    uv_check_init(&app->loop, &app->backend_check);
    app->backend_check.data = app;
    uv_poll_init(&app->loop, &app->sched_timer, app->sched_timer_fd);
    app->sched_timer.data = app;
    uv_poll_start(&app->sched_timer, UV_READABLE, on_sched_timer);
    uv_timer_init(&app->loop, &app->attach_timer);
    app->attach_timer.data = app;
    uv_signal_init(&app->loop, &app->sigterm);
    uv_signal_init(&app->loop, &app->sigint);
    app->sigterm.data = app->sigint.data = app;
    uv_signal_start(&app->sigterm, on_signal, SIGTERM);
    uv_signal_start(&app->sigint, on_signal, SIGINT);
    service_start(app);
}

int app_run(const struct app_config *config, app_load_fn load)
{
    struct app *app = &the_app;
    struct mla_error err = {0};
    init(app, config, load);
    if (access_resolve(&app->access, config, err.text, sizeof(err.text)) != 0) {
        err.code = MLA_INVALID_ARGUMENT;
        return fail("access", &err);
    }
    if (weights_resolve(&app->weights, config, err.text, sizeof(err.text)) != 0) {
        err.code = MLA_INVALID_ARGUMENT;
        return fail("weights", &err);
    }
    service_descriptors(config->max_clients);
    if (mla_random_id(&app->boot_nonce) != 0) {
        mla_error_set(&err, MLA_INTERNAL, NULL, "no random numbers: errno %d", errno);
        return fail("nonce", &err);
    }
    int r = open_backend(app);
    if (r != APP_EXIT_OK)
        return r;
    init_sched(app);
    app->sched_timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (app->sched_timer_fd < 0) {
        mla_error_set(&err, MLA_INTERNAL, NULL, "no timer: errno %d", errno);
        be_close(&app->be);
        return fail("timer", &err);
    }
    uv_loop_init(&app->loop);
    start_handles(app);
    turn_start(app);
    r = service_open_http(app) == 0 ? open_net(app) : APP_EXIT_START;
    if (r != APP_EXIT_OK) {
        close_handles(app);
        uv_run(&app->loop, UV_RUN_DEFAULT);
        be_close(&app->be);
        uv_loop_close(&app->loop);
        return r;
    }
    app->health = MLA_HEALTH_READY;
    app->health_reason = "";
    checkup_start(app);
    char path[CONFIG_TEXT_BYTES];
    net_socket_path(app->net, path, sizeof(path));
    uv_check_start(&app->backend_check, on_check); /* behind net's, so that it runs before */
    service_ready(app);
    mla_log(MLA_LOG_NOTICE, "ready", "socket=%s backend=%s version=%s", path, be_facts(&app->be)->name, MLAD_VERSION);
    app_loop(app);
    uv_loop_close(&app->loop);
    /* A launch that outlived the drain deadline, or a lost device, may never let the backend's thread end. */
    if (app->exit_code == APP_EXIT_OK) {
        batch_free_buffers(app);
        host_pool_forget(app);
        job_pool_free(app);
        be_close(&app->be);
    }
    return app->exit_code;
}
