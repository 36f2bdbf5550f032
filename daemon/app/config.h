/* The daemon's configuration: an ini file (deploy/mlad.conf explains every key) and command-line overrides, through one
 * table of keys (config.c). */
#ifndef MLA_DAEMON_APP_CONFIG_H
#define MLA_DAEMON_APP_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "daemon/util/log.h"
#include "proto/limits.h"

#define CONFIG_TEXT_BYTES 256

struct app_config {
    /* [daemon] */
    char socket[CONFIG_TEXT_BYTES];
    uint32_t socket_mode; /* octal in the file */
    char socket_group[CONFIG_TEXT_BYTES];
    char backend[CONFIG_TEXT_BYTES];
    char log_level[CONFIG_TEXT_BYTES];
    uint64_t drain_timeout_ms;
    uint64_t loop_spin_us; /* daemon.spin_us; 0: the loop sleeps at once */
    uint64_t http_port;    /* 0: no endpoint */
    /* [access]: lists of names or numbers (access.h) */
    char users[CONFIG_TEXT_BYTES];
    char groups[CONFIG_TEXT_BYTES];
    char admin_users[CONFIG_TEXT_BYTES];
    char admin_groups[CONFIG_TEXT_BYTES];
    /* [limits], per client unless the name says otherwise */
    uint64_t max_clients; /* of the daemon */
    uint64_t max_regions;
    uint64_t max_mapped_bytes;
    uint64_t max_jobs_in_flight;
    uint64_t max_queued_bytes;
    uint64_t max_table_sets;
    uint64_t max_caches;
    uint64_t max_write_queue_bytes;
    uint64_t hello_timeout_ms;
    uint64_t frame_timeout_ms;
    uint64_t write_timeout_ms;
    /* [scheduler] */
    uint64_t total_jobs_in_flight;
    uint64_t batch_jobs;
    uint64_t batch_seqs;
    uint64_t launches;      /* on the device at a time */
    uint64_t max_launch_us; /* 0: no limit */
    uint64_t gather_us;
    uint64_t lead_us;
    uint64_t max_backlog_ms;     /* 0: no limit */
    uint64_t default_timeout_ms; /* 0: none */
    uint64_t retry_after_us;
    char policy[CONFIG_TEXT_BYTES]; /* seed, balanced, auto */
    /* [weights]: lists of NAME:WEIGHT (weights.h) */
    char weight_clients[CONFIG_TEXT_BYTES];
    char weight_users[CONFIG_TEXT_BYTES];
    char weight_groups[CONFIG_TEXT_BYTES];
    uint64_t default_weight;
    /* [device] */
    uint64_t workspace_bytes;
    uint64_t cpu_threads;                /* 0: one per online CPU */
    char gpu[CONFIG_TEXT_BYTES];         /* index or UUID */
    char kernels_dir[CONFIG_TEXT_BYTES]; /* "": the installed one, or the build tree's */
    char kernel[CONFIG_TEXT_BYTES];      /* section of kernels.ini; "": the first that fits */
    uint64_t spin_us;
    uint64_t host_bytes;
    char costs[CONFIG_TEXT_BYTES]; /* file of measured cost constants; "": the kernels' own */
    uint64_t wait_ms;              /* for device nodes that come late */
};

void config_defaults(struct app_config *config);

/* Reads a file over what config holds. 0, or -1 with a sentence that names file, line and key in why. */
int config_load(struct app_config *config, const char *path, char *why, size_t why_bytes);

/* One "section.key=value". 0, or -1 with a sentence in why. */
int config_set(struct app_config *config, const char *assignment, char *why, size_t why_bytes);

/* Checks what no single key shows, and that this build has the backend. 0, or -1 with a sentence. */
int config_check(const struct app_config *config, char *why, size_t why_bytes);

/* Takes over what a running daemon can change: [access], [limits], [weights], the log level and times that the next
 * request is the first to see. Returns how many keys changed; names of keys that differ and need a restart in later,
 * with blanks between them. */
size_t config_reload(struct app_config *live, const struct app_config *fresh, char *later, size_t later_bytes);

/* Every key with its value, in the file's own form. */
void config_print(const struct app_config *config, FILE *out);

#endif
