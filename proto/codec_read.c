/* HEALTH, METRICS and STATUS. */
#include "proto/codec_table.h"

#include "proto/mla.pb-c.h"

MLA_BODY_EMPTY(health_request);

#define T struct mla_health_reply
static const struct mla_field health_reply_fields[] = {
    MLA_STATUS_X,
    MLA_ENUM_X(state, 0, MLA_HEALTH_FAILED),
    MLA_TEXT_X(reason, 0, MLA_MAX_TEXT_BYTES),
    MLA_X(uptime_us, 0),
    MLA_TEXT_X(version, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(backend, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(gpu_uuid, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(isolation, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
};
#undef T
MLA_BODY_OF(health_reply, NULL);

MLA_BODY_EMPTY(metrics_request);

#define T struct mla_sample
static const struct mla_field sample_fields[] = {
    MLA_TEXT_X(suffix, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(labels, 0, MLA_MAX_TEXT_BYTES),
    MLA_X(value, 0),
};
#undef T
static MLA_BODY_OF(sample, NULL);

#define T struct mla_metric
static const struct mla_field metric_fields[] = {
    MLA_TEXT_X(name, MLA_F_REQUIRED | MLA_F_ASCII, MLA_MAX_TEXT_BYTES),
    MLA_TEXT_X(help, 0, MLA_MAX_TEXT_BYTES),
    MLA_ENUM_X(type, MLA_F_REQUIRED, MLA_METRIC_HISTOGRAM),
    MLA_N_X(samples, 0, .sub = &mla_body_sample, .count_max = MLA_SAMPLES_MAX),
};
#undef T
static MLA_BODY_OF(metric, NULL);

#define T struct mla_metrics_reply
static const struct mla_field metrics_reply_fields[] = {
    MLA_STATUS_X,
    MLA_N_X(metrics, 0, .sub = &mla_body_metric, .count_max = MLA_METRICS_MAX),
};
#undef T
MLA_BODY_OF(metrics_reply, NULL);

#define T struct mla_status_request
static const struct mla_field status_request_fields[] = {
    MLA_X(what, MLA_F_ENUM, .min = 1, .max = MLA_STATUS_CACHES, .def = MLA_STATUS_DAEMON),
    MLA_X(client_id, 0),
};
#undef T
MLA_BODY_OF(status_request, NULL);

#define T struct mla_daemon_status
static const struct mla_field daemon_status_fields[] = {
    MLA_TEXT_X(version, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(backend, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(gpu_uuid, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(device_name, 0, MLA_MAX_TEXT_BYTES),
    MLA_X(uptime_us, 0),
    MLA_ENUM_X(health, 0, MLA_HEALTH_FAILED),
    MLA_X(clients, 0),
    MLA_X(regions, 0),
    MLA_X(mapped_bytes, 0),
    MLA_X(caches, 0),
    MLA_X(jobs_waiting, 0),
    MLA_X(jobs_queued, 0),
    MLA_X(jobs_running, 0),
    MLA_X(batches, 0),
    MLA_X(boot_nonce, 0),
    MLA_X(units, 0),
    MLA_X(rows_per_unit, 0),
    MLA_X(workspace_bytes, 0),
    MLA_X(device_memory_bytes, 0),
};
#undef T
static MLA_BODY_OF(daemon_status, NULL);

#define T struct mla_client_status
static const struct mla_field client_status_fields[] = {
    MLA_X(client_id, 0),     MLA_TEXT_X(name, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_X(pid, 0),           MLA_X(uid, 0),
    MLA_X(connected_us, 0),  MLA_X(regions, 0),
    MLA_X(mapped_bytes, 0),  MLA_X(caches, 0),
    MLA_X(table_sets, 0),    MLA_X(jobs_in_flight, 0),
    MLA_X(jobs_answered, 0), MLA_X(weight, 0, .def = 1),
};
#undef T
static MLA_BODY_OF(client_status, NULL);

#define T struct mla_cache_status
static const struct mla_field cache_status_fields[] = {
    MLA_TEXT_X(name, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_X(owner_uid, 0),
    MLA_X(owner, 0),
    MLA_X(num_pages, 0),
    MLA_X(planes, 0),
    MLA_X(tokens_per_entry, 0),
    MLA_X(attachments, 0),
    MLA_TEXT_X(label, 0, MLA_MAX_NAME_BYTES),
};
#undef T
static MLA_BODY_OF(cache_status, NULL);

#define T struct mla_status_reply
static const struct mla_field status_reply_fields[] = {
    MLA_STATUS_X,
    MLA_X(daemon, 0, .sub = &mla_body_daemon_status),
    MLA_N_X(clients, 0, .sub = &mla_body_client_status, .count_max = MLA_STATUS_ROWS_MAX),
    MLA_N_X(caches, 0, .sub = &mla_body_cache_status, .count_max = MLA_STATUS_ROWS_MAX),
};
#undef T
MLA_BODY_OF(status_reply, NULL);
