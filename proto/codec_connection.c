/* HELLO, the notices, the admin requests, and Status itself. */
#include "proto/codec_table.h"

#include "proto/mla.pb-c.h"

const char *const mla_status_names[] = {"status.code",  "status.field",          "status.index", "status.value",
                                        "status.limit", "status.retry_after_us", "status.text"};

/* A code that this version does not know is kept: a later minor may add some at the end of a group. */
#define T struct mla_error
static const struct mla_field status_fields[] = {
    MLA_X(code, 0),
    MLA_X(field, MLA_F_ASCII, .max = MLA_MAX_NAME_BYTES),
    MLA_X(index, 0),
    MLA_X(value, 0),
    MLA_X(limit, 0),
    MLA_X(retry_after_us, 0),
    MLA_X(text, MLA_F_INLINE, .max = MLA_MAX_TEXT_BYTES - 1),
};
#undef T
const struct mla_body mla_body_status = {.schema = &mla__wire__status__descriptor,
                                         .fields = status_fields,
                                         .n_fields = sizeof(status_fields) / sizeof(status_fields[0]),
                                         .size = sizeof(struct mla_error)};

#define T struct mla_any_reply
const struct mla_field mla_status_only_fields[1] = {MLA_STATUS_X};
#undef T

#define T struct mla_hello_request
static const struct mla_field hello_request_fields[] = {
    MLA_X(minor, 0),
    MLA_X(features, 0),
    MLA_TEXT_X(client_name, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_X(pid_hint, 0),
    MLA_TEXT_X(gpu_uuid, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
};
#undef T
MLA_BODY_OF(hello_request, NULL);

#define T struct mla_limits
static const struct mla_field limits_fields[] = {
    MLA_X(max_regions, 0),    MLA_X(max_mapped_bytes, 0), MLA_X(max_jobs_in_flight, 0), MLA_X(max_queued_bytes, 0),
    MLA_X(max_table_sets, 0), MLA_X(max_caches, 0),       MLA_X(max_body_bytes, 0),
};
#undef T
static MLA_BODY_OF(limits, NULL);
static const char *const limits_names[] = {
    "limits.max_regions",    "limits.max_mapped_bytes", "limits.max_jobs_in_flight", "limits.max_queued_bytes",
    "limits.max_table_sets", "limits.max_caches",       "limits.max_body_bytes"};

#define T struct mla_hello_reply
static const struct mla_field hello_reply_fields[] = {
    MLA_STATUS_X,
    MLA_X(major, 0),
    MLA_X(minor, 0),
    MLA_X(features, 0),
    MLA_X(boot_nonce, 0),
    MLA_TEXT_X(gpu_uuid, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(backend, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_TEXT_X(version, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_X(client_id, 0),
    MLA_X(limits, 0, .sub = &mla_body_limits, .names = limits_names),
    MLA_TEXT_X(isolation, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
};
#undef T
MLA_BODY_OF(hello_reply, NULL);

#define T struct mla_error_notice
static const struct mla_field error_notice_fields[] = {MLA_STATUS_X};
#undef T
MLA_BODY_OF(error_notice, NULL);

#define T struct mla_goaway_notice
static const struct mla_field goaway_notice_fields[] = {
    MLA_ENUM_X(reason, MLA_F_REQUIRED, MLA_GOAWAY_FATAL),
    MLA_X(deadline_us, 0),
    MLA_X(status, MLA_F_STATUS, .sub = &mla_body_status, .names = mla_status_names),
};
#undef T
MLA_BODY_OF(goaway_notice, NULL);

#define T struct mla_cache_gone_notice
static const struct mla_field cache_gone_notice_fields[] = {
    MLA_X(cache, MLA_F_REQUIRED),
    MLA_TEXT_X(name, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
};
#undef T
MLA_BODY_OF(cache_gone_notice, NULL);

/* ---- admin right ---- */

#define T struct mla_drain_request
static const struct mla_field drain_request_fields[] = {MLA_HAS_X(deadline_us)};
#undef T
MLA_BODY_OF(drain_request, NULL);

#define T struct mla_drain_reply
static const struct mla_field drain_reply_fields[] = {MLA_STATUS_X, MLA_X(jobs_in_flight, 0)};
#undef T
MLA_BODY_OF(drain_reply, NULL);

#define T struct mla_evict_request
static const struct mla_field evict_request_fields[] = {MLA_X(client_id, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(evict_request, NULL);
MLA_BODY_STATUS_ONLY(evict_reply);

MLA_BODY_EMPTY(reload_request);
MLA_BODY_STATUS_ONLY(reload_reply);
