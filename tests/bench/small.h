/* A client of a daemon that maps memfds, with one small decode: one sequence of 64 keys, 16 heads, one query token. */
#ifndef MLA_TESTS_BENCH_SMALL_H
#define MLA_TESTS_BENCH_SMALL_H

#include "proto/enums.h"
#include "proto/status.h"

#include <mla/mla.h>

struct small {
    struct mla_client *client;
    struct mla_memory memory;
    struct mla_decode_args args;
};

#define SMALL_TIMEOUT_US UINT64_C(10000000)

/* Connects (waiting for the daemon), registers, defines, puts the table set. spin_us: of the client's waits. 0, or -1
 * after a line on stderr. */
int small_open(struct small *s, const char *socket, uint64_t spin_us);
void small_close(struct small *s);

/* Bytes of a request and of its reply with their headers, by the daemon's own counters. 0, or -1 after a line. */
int small_sizes(struct small *s, size_t *request_bytes, size_t *reply_bytes);

/* A metric without labels, by its full name ("mlad_batch_jobs_sum"); NaN when it is not there. */
double small_metric(const struct mla_metrics_info *metrics, const char *name);
/* The sample of a family with just these labels ("until=\"taken\""). */
double small_metric_of(const struct mla_metrics_info *metrics, const char *name, const char *labels);

#endif
