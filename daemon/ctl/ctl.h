/* mlactl: one subcommand per function, over libmla; plan needs no daemon. */
#ifndef MLA_DAEMON_CTL_H
#define MLA_DAEMON_CTL_H

#include <mla/mla.h>
#include <stdbool.h>
#include <stdint.h>

enum ctl_exit {
    CTL_EXIT_OK = 0,
    CTL_EXIT_NOT_READY = 1, /* health: neither ready nor degraded */
    CTL_EXIT_USAGE = 2,
    CTL_EXIT_CONNECT = 3, /* no daemon answers at the socket */
    CTL_EXIT_REFUSED = 4, /* the daemon answered with an error */
    CTL_EXIT_DEGRADED = 5 /* health: work is taken, and something is wrong */
};

struct ctl {
    struct mla_client *client;
    bool json;
    uint64_t timeout_us;
    uint64_t deadline_us; /* drain */
    bool has_deadline;
    uint64_t interval_us; /* top */
    bool once;
    uint64_t client_id; /* evict */
};

/* Each prints to stdout and returns an enum ctl_exit. */
int ctl_health(struct ctl *ctl);
int ctl_status(struct ctl *ctl);
int ctl_clients(struct ctl *ctl);
int ctl_caches(struct ctl *ctl);
int ctl_metrics(struct ctl *ctl);
int ctl_drain(struct ctl *ctl);
int ctl_top(struct ctl *ctl); /* returns with --once, or when the daemon is gone */
int ctl_evict(struct ctl *ctl);
int ctl_reload(struct ctl *ctl);

/* Reports the client's last error on stderr; CTL_EXIT_CONNECT for a lost connection, else CTL_EXIT_REFUSED. */
int ctl_fail(const struct ctl *ctl, const char *what);

/* "ready", ... */
const char *ctl_health_name(enum mla_health state);

/* Work that needs no daemon: plan --help explains it. argv[0] is "plan". */
int ctl_plan(int argc, char **argv);

#endif
