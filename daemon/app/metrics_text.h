/* METRICS as Prometheus reads it: its text exposition format 0.0.4. */
#ifndef MLA_DAEMON_APP_METRICS_TEXT_H
#define MLA_DAEMON_APP_METRICS_TEXT_H

#include <stddef.h>

#include "proto/codec.h"

/* malloc'd, *bytes long; NULL when memory is out. mlactl metrics prints the same from the reply on its side. */
char *metrics_text(const struct mla_metrics_reply *reply, size_t *bytes);

#endif
