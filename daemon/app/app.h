/* The daemon as a whole: opens the backend and the socket, runs the loop, ends. */
#ifndef MLA_DAEMON_APP_H
#define MLA_DAEMON_APP_H

#include "daemon/app/config.h"

/* Exit codes, also in deploy/README.md. */
enum app_exit {
    APP_EXIT_OK = 0,           /* drained */
    APP_EXIT_START = 1,        /* configuration, socket or backend: the log says which */
    APP_EXIT_USAGE = 2,        /* command line */
    APP_EXIT_DEVICE_LOST = 3,  /* the device failed; all in flight was answered so */
    APP_EXIT_DRAIN_TIMEOUT = 4 /* the drain deadline passed with jobs in flight */
};

/* Reads the configuration anew, as at the start: file, command line, checks. 0, or -1 with a sentence in why. */
typedef int (*app_load_fn)(struct app_config *config, char *why, size_t why_bytes);

/* Runs until a signal, a DRAIN request or the loss of the device ends it. Returns an enum app_exit. Once per process.
 * load (may be NULL) is called for SIGHUP and RELOAD. */
int app_run(const struct app_config *config, app_load_fn load);

#endif
