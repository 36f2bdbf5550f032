#include "daemon/app/service.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/app/http.h"
#include "daemon/app/state.h"
#include "daemon/util/clock.h"
#include "daemon/util/notify.h"

#define LOOK_MS   100u
#define EXTEND_MS 5000u
/* What runs when the drain's deadline passes, and the end of the backend. */
#define BEYOND_DRAIN_US UINT64_C(15000000)
/* At least once a second, so in each look, the device thread advances, also when it is idle. */
#define FEED_MAX_MS 5000u

/* Beside one for each client: the driver's, and what frames bring until it is mapped. */
#define DESCRIPTORS_BESIDE 512u

void service_descriptors(uint64_t clients)
{
    struct rlimit limit;
    rlim_t need = (rlim_t)clients + DESCRIPTORS_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= need)
        return;
    limit.rlim_cur = limit.rlim_max < need ? limit.rlim_max : need;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < need)
        mla_log(MLA_LOG_WARNING, "few_descriptors", "limit=%llu max_clients=%llu", (unsigned long long)limit.rlim_cur,
                (unsigned long long)clients);
}

static bool nodes_are_there(const char *dev)
{
    bool control = false, memory = false, gpu = false;
    DIR *dir = opendir(dev);
    if (dir == NULL)
        return false;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *name = entry->d_name;
        control |= strcmp(name, "nvidiactl") == 0;
        memory |= strcmp(name, "nvidia-uvm") == 0;
        gpu |= strncmp(name, "nvidia", 6) == 0 && isdigit((unsigned char)name[6]);
    }
    closedir(dir);
    return control && memory && gpu;
}

bool service_wait_for_nodes(const char *dev, uint64_t ms)
{
    uint64_t now = mla_now_ns(), until = now + ms * MLA_NS_PER_MS, told = 0;
    while (!nodes_are_there(dev)) {
        if (now >= until)
            return false;
        if (told == 0)
            mla_log(MLA_LOG_NOTICE, "waiting_for_gpu", "dev=%s wait_ms=%llu", dev, (unsigned long long)ms);
        if (told == 0 || now - told >= EXTEND_MS * MLA_NS_PER_MS / 2) {
            mla_notify("EXTEND_TIMEOUT_USEC=%u\nSTATUS=waiting for the GPU's device nodes", EXTEND_MS * 1000);
            told = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = (long)(LOOK_MS * MLA_NS_PER_MS)}, NULL);
        now = mla_now_ns();
    }
    return true;
}

void service_status(struct app *app)
{
    const struct be_facts *facts = be_facts(&app->be);
    struct sched_counts counts;
    char status[sizeof(app->service.status)];
    sched_counts(&app->sched, &counts);
    char state[160] = "ready"; /* and all names */
    if (app->health == MLA_HEALTH_DEGRADED) {
        memcpy(state, "degraded: ", sizeof("degraded: "));
        health_names(&app->checks, state + strlen(state), sizeof(state) - strlen(state));
    }
    if (app_takes_work(app))
        snprintf(status, sizeof(status), "%s, %s (%s), %u clients, %llu jobs in flight", state, facts->device_name,
                 facts->isolation, app->n_clients,
                 (unsigned long long)counts.waiting + counts.queued + counts.staged + counts.running);
    else
        snprintf(status, sizeof(status), "%s", app->health_reason);
    if (strcmp(status, app->service.status) == 0)
        return;
    memcpy(app->service.status, status, sizeof(status));
    mla_notify("STATUS=%s", status);
}

/* The loop advances, as it is here; the device thread does when it has moved since the last time. */
static void on_tick(uv_timer_t *timer)
{
    struct app *app = timer->data;
    struct service *s = &app->service;
    turn_begin(app);
    checkup_look(app);
    if (++s->looks % s->looks_to_feed != 0)
        return;
    uint64_t progress = be_progress(&app->be);
    if (s->watchdog_us > 0 && progress != s->progress && !app->device_lost)
        mla_notify("WATCHDOG=1");
    s->progress = progress;
    service_status(app);
}

static void on_hup(uv_signal_t *handle, int signum)
{
    struct app *app = handle->data;
    char why[512];
    (void)signum;
    mla_log(MLA_LOG_NOTICE, "signal", "signal=SIGHUP");
    if (!app->closing)
        admin_reload_config(app, why, sizeof(why));
}

void service_start(struct app *app)
{
    struct service *s = &app->service;
    s->watchdog_us = mla_notify_watchdog_us();
    uv_timer_init(&app->loop, &s->timer);
    uv_signal_init(&app->loop, &s->sighup);
    s->timer.data = s->sighup.data = app;
    s->started = true;
    uint64_t feed_ms = s->watchdog_us / 4000;
    if (s->watchdog_us == 0 || feed_ms > FEED_MAX_MS)
        feed_ms = FEED_MAX_MS;
    s->looks_to_feed = feed_ms > HEALTH_LOOK_MS ? (unsigned)(feed_ms / HEALTH_LOOK_MS) : 1;
    uv_timer_start(&s->timer, on_tick, HEALTH_LOOK_MS, HEALTH_LOOK_MS);
    uv_unref((uv_handle_t *)&s->timer);
    uv_signal_start(&s->sighup, on_hup, SIGHUP);
}

static char *http_text(void *user, size_t *bytes)
{
    turn_begin(user);
    return read_metrics_text(user, bytes);
}

int service_open_http(struct app *app)
{
    uint16_t port = (uint16_t)app->config->http_port;
    char why[256] = "";
    if (port == 0)
        return 0;
    int r = http_open(&app->service.http, &app->loop, port, http_text, app, why, sizeof(why));
    if (r != 0) {
        mla_log(MLA_LOG_ERROR, "start_failed", "what=http field=daemon.http_port text=%s", why);
        service_failed("http", why);
    } else {
        mla_log(MLA_LOG_NOTICE, "http", "address=127.0.0.1 port=%u", port);
    }
    return r;
}

void service_ready(struct app *app)
{
    mla_notify("READY=1");
    service_status(app);
}

void service_failed(const char *what, const char *text)
{
    mla_notify("STATUS=could not start: %s: %s", what, text);
}

void service_stopping(struct app *app, uint64_t drain_us)
{
    uint64_t extend_us = (drain_us < UINT64_MAX / 4 ? drain_us : UINT64_MAX / 4) + BEYOND_DRAIN_US;
    mla_notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu", (unsigned long long)extend_us);
    service_status(app);
}

void service_close(struct app *app)
{
    struct service *s = &app->service;
    if (!s->started || uv_is_closing((uv_handle_t *)&s->timer))
        return;
    http_close(s->http);
    s->http = NULL;
    uv_close((uv_handle_t *)&s->timer, NULL);
    uv_close((uv_handle_t *)&s->sighup, NULL);
}
