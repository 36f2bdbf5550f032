/* What a service manager sees of the daemon: readiness, status line, watchdog, reload by SIGHUP, and the wait for a GPU
 * whose device nodes come late at boot. */
#ifndef MLA_DAEMON_APP_SERVICE_H
#define MLA_DAEMON_APP_SERVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct app;
struct http;

struct service {
    uv_timer_t timer;
    uv_signal_t sighup;
    uint64_t watchdog_us;          /* 0: none */
    uint64_t progress;             /* of the device thread, when the watchdog was fed last */
    unsigned looks, looks_to_feed; /* of checkup_look(); so many from one feeding to the next */
    bool started;
    struct http *http; /* NULL: none */
    char status[320];  /* told last */
};

/* Waits until a GPU's nodes (nvidiactl, nvidia-uvm, nvidiaN) are in dev, at most for ms; true when they are. The status
 * line says so meanwhile and the start's deadline is moved on. Before the loop and before the driver is opened, which
 * would remember that there was nothing. */
bool service_wait_for_nodes(const char *dev, uint64_t ms);

/* Raises the soft limit of descriptors, which is 1,024 for many, to what so many clients may take, as far as the hard
 * one allows; what is missing is logged. */
void service_descriptors(uint64_t clients);

/* Starts the handles; nothing is said yet. */
void service_start(struct app *app);
/* Opens the HTTP endpoint that the configuration asks for, if it does. 0, or -errno, which has been logged. */
int service_open_http(struct app *app);
/* The backend works and the socket takes clients. */
void service_ready(struct app *app);
/* The start has failed, and mlad ends: text says why, what in a word where. */
void service_failed(const char *what, const char *text);
/* The end has begun; it takes at most drain_us. */
void service_stopping(struct app *app, uint64_t drain_us);
/* Tells the state anew when it has changed. */
void service_status(struct app *app);
void service_close(struct app *app);

#endif
