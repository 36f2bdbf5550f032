/* Bodies of frames <-> plain structs, for both sides. The structs are those of mla.proto under the same names:
 * DecodeRequest is struct mla_decode_request, its field softmax_scale is softmax_scale. Meaning and units stand there.
 *
 * How a field of the schema looks here:
 *   uint32, uint64, bool, float, ...   the plain type; after decoding, an absent field holds its default (0 if the
 * schema names none). Enums (proto/enums.h) have their enum type; 0 is "absent". optional without a default, where 0
 * means something else than absence: a has_x beside x string                             const char *x:
 * zero-terminated, never NULL after decoding, "" when absent. For the encoder NULL is "". Valid UTF-8 without control
 * characters; names are ASCII. bytes, packed and repeated         const T *x; size_t n_x Status struct mla_error
 * (proto/error.h); field is NULL when absent other messages, singular           struct mla_x with its member present
 * All that pointers of a decoded message point to lives in the arena given to mla_codec_decode (so does status.field).
 *
 * Encoding and decoding are inverse: a field that holds its default is not sent unless the schema requires it.
 *
 * Stricter than protobuf in general: a singular field may come once, packed fields must come packed and in one piece,
 * wire types must be those of the schema, at most MLA_CODEC_UNKNOWN_MAX unknown fields per message (of a later minor)
 * are skipped. Any protobuf library that sends [packed = true] as declared produces such bodies.
 */
#ifndef MLA_PROTO_CODEC_H
#define MLA_PROTO_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/arena.h"
#include "proto/enums.h"
#include "proto/error.h"
#include "proto/wire.h"

/* An arena of body_len + this never runs out while a legal request is decoded. */
#define MLA_CODEC_SLACK_BYTES (768u << 10)
#define MLA_CODEC_UNKNOWN_MAX 32u

/* Most elements of repeated messages. */
#define MLA_FAULTS_PER_REPLY_MAX 64u
#define MLA_LAYERS_MAX           MLA_PLANES_MAX
#define MLA_METRICS_MAX          1024u
#define MLA_SAMPLES_MAX          65536u /* of one metric */
#define MLA_STATUS_ROWS_MAX      16384u /* clients, and caches, of one STATUS reply */

#define MLA_CUDA_IPC_BYTES 64u

struct mla_ref {
    bool present;
    uint64_t region;
    uint64_t offset;
};

/* ---- connection ---- */

struct mla_hello_request {
    uint32_t minor;
    uint64_t features;
    const char *client_name;
    uint32_t pid_hint;
    const char *gpu_uuid;
};

struct mla_limits {
    bool present;
    uint64_t max_regions;
    uint64_t max_mapped_bytes;
    uint64_t max_jobs_in_flight;
    uint64_t max_queued_bytes;
    uint64_t max_table_sets;
    uint64_t max_caches;
    uint64_t max_body_bytes;
};

struct mla_hello_reply {
    struct mla_error status;
    uint32_t major;
    uint32_t minor;
    uint64_t features;
    uint64_t boot_nonce;
    const char *gpu_uuid;
    const char *backend;
    const char *version;
    uint64_t client_id;
    struct mla_limits limits;
    const char *isolation;
};

struct mla_error_notice {
    struct mla_error status;
};

struct mla_goaway_notice {
    enum mla_goaway reason;
    uint64_t deadline_us;
    struct mla_error status; /* optional here: code MLA_OK when absent */
};

struct mla_cache_gone_notice {
    uint64_t cache;
    const char *name;
};

/* ---- memory ---- */

struct mla_region_part {
    uint64_t offset;
    uint64_t size;
    uint64_t allocation_size; /* 0: not said */
};

struct mla_register_region_request {
    enum mla_region_kind kind;
    enum mla_access access;
    uint64_t size;
    uint64_t offset;
    const char *gpu_uuid;
    const uint8_t *cuda_ipc; /* n_cuda_ipc is 0 or MLA_CUDA_IPC_BYTES */
    size_t n_cuda_ipc;
    uint64_t block_size;
    const struct mla_region_part *parts;
    size_t n_parts;
    bool has_continues;
    uint64_t continues;
    bool more;
    const char *label;
};

struct mla_register_region_reply {
    struct mla_error status;
    uint64_t region;
};

struct mla_unregister_region_request {
    uint64_t region;
};

struct mla_unregister_region_reply {
    struct mla_error status;
};

struct mla_suspend_request {
    uint64_t region;
};

struct mla_suspend_reply {
    struct mla_error status;
};

struct mla_resume_request {
    uint64_t region;
    uint64_t offset;
    const uint8_t *cuda_ipc;
    size_t n_cuda_ipc;
    uint64_t block_size;
    const struct mla_region_part *parts;
    size_t n_parts;
    bool more;
};

struct mla_resume_reply {
    struct mla_error status;
};

struct mla_register_sync_request {
    uint64_t size;
};

struct mla_register_sync_reply {
    struct mla_error status;
    uint64_t region;
};

/* ---- caches ---- */

struct mla_define_cache_request {
    enum mla_cache_layout layout;
    uint64_t region;
    uint64_t offset;
    const uint64_t *plane_offset; /* n_plane_offset 0: one plane at 0 */
    size_t n_plane_offset;
    uint64_t num_pages;
    uint64_t page_stride; /* default filled in: 64 * row_stride; for the encoder 0 is the default */
    uint64_t row_stride;
    uint32_t tokens_per_page;
    uint32_t tokens_per_entry;
    const char *label;
};

struct mla_define_cache_reply {
    struct mla_error status;
    uint64_t cache;
};

struct mla_publish_cache_request {
    uint64_t cache;
    const char *name;
    const uint32_t *gids;
    size_t n_gids;
    uint64_t tag;
};

struct mla_publish_cache_reply {
    struct mla_error status;
};

struct mla_attach_cache_request {
    bool has_owner_uid;
    uint32_t owner_uid;
    const char *name;
    uint64_t wait_us;
};

struct mla_attach_cache_reply {
    struct mla_error status;
    uint64_t cache;
    uint64_t num_pages;
    uint32_t planes;
    uint32_t tokens_per_entry;
    enum mla_cache_layout layout;
    uint64_t tag;
};

struct mla_detach_cache_request {
    uint64_t cache;
};

struct mla_detach_cache_reply {
    struct mla_error status;
};

struct mla_drop_cache_request {
    uint64_t cache;
};

struct mla_drop_cache_reply {
    struct mla_error status;
};

/* ---- work ---- */

struct mla_put_table_set_request {
    uint64_t id;
    const uint32_t *q_len; /* n_q_len == n_kv_len_max == number of sequences, 0 is legal */
    size_t n_q_len;
    const uint32_t *kv_len_max;
    size_t n_kv_len_max;
    const uint32_t *pages; /* n_pages 0: device-resident, or nothing to see */
    size_t n_pages;
    uint32_t entries_per_seq; /* 0: packed */
    uint32_t tokens_per_entry;
};

struct mla_put_table_set_reply {
    struct mla_error status;
};

struct mla_drop_table_set_request {
    uint64_t id;
};

struct mla_drop_table_set_reply {
    struct mla_error status;
};

struct mla_tensor {
    bool present;
    uint64_t region;
    uint64_t offset;
    int64_t seq_stride; /* 0 when compact and absent */
    int64_t token_stride;
    int64_t head_stride;
    bool compact;
};

struct mla_decode_request {
    uint64_t cache;
    uint32_t plane;
    uint64_t table_set;
    uint32_t heads;
    struct mla_tensor q;
    struct mla_tensor q_rope;
    struct mla_tensor o;
    struct mla_tensor lse;
    enum mla_dtype out_type;
    enum mla_mask mask;      /* absent: CAUSAL; for the encoder 0 is CAUSAL too */
    const uint32_t *visible; /* int32 by meaning; negative ones are faults of their sequence */
    size_t n_visible;
    struct mla_ref visible_ref;
    struct mla_ref kv_len_ref;
    struct mla_ref table_ref;
    uint32_t table_entries_per_seq;
    float q_scale;
    float kv_scale;
    float softmax_scale;
    float out_scale;
    bool batch_invariant;
    uint64_t timeout_us;
    struct mla_ref ready;
    uint64_t ready_value;
    struct mla_ref done;
    uint64_t done_value;
    struct mla_ref status_ref;
    uint32_t priority;
};

struct mla_sequence_fault {
    uint32_t sequence;
    enum mla_status code;
    uint32_t index;
    uint32_t layer; /* of a step */
};

struct mla_timing {
    bool present;
    uint64_t wait_us;
    uint64_t queue_us;
    uint64_t run_us;
};

struct mla_decode_reply {
    struct mla_error status;
    const struct mla_sequence_fault *faults;
    size_t n_faults;
    struct mla_timing timing;
    uint64_t batch;
    uint32_t batch_jobs;
    uint32_t tiles;
    uint32_t items;
    uint32_t splits;
};

struct mla_template_open_request {
    uint64_t id;
    const struct mla_decode_request *layers;
    size_t n_layers;
};

struct mla_template_open_reply {
    struct mla_error status;
};

struct mla_step_request {
    uint64_t template_id;
    bool has_table_set;
    uint64_t table_set;
    uint64_t timeout_us;
};

struct mla_step_reply {
    struct mla_error status;
    struct mla_timing timing;
    uint32_t layers_done;
    const struct mla_sequence_fault *faults;
    size_t n_faults;
    uint32_t layers_shared;
};

struct mla_template_close_request {
    uint64_t id;
};

struct mla_template_close_reply {
    struct mla_error status;
};

struct mla_cancel_request {
    uint64_t request_id;
};

struct mla_cancel_reply {
    struct mla_error status;
};

/* ---- read ---- */

struct mla_health_request {
    uint8_t unused;
};

struct mla_health_reply {
    struct mla_error status;
    enum mla_health state;
    const char *reason;
    uint64_t uptime_us;
    const char *version;
    const char *backend;
    const char *gpu_uuid;
    const char *isolation;
};

struct mla_metrics_request {
    uint8_t unused;
};

struct mla_sample {
    const char *suffix;
    const char *labels;
    double value;
};

struct mla_metric {
    const char *name;
    const char *help;
    enum mla_metric_type type;
    const struct mla_sample *samples;
    size_t n_samples;
};

struct mla_metrics_reply {
    struct mla_error status;
    const struct mla_metric *metrics;
    size_t n_metrics;
};

struct mla_status_request {
    enum mla_status_what what; /* absent: DAEMON; for the encoder 0 is DAEMON too */
    uint64_t client_id;        /* of CLIENTS: the only one that is asked for; 0: all */
};

struct mla_daemon_status {
    bool present;
    const char *version;
    const char *backend;
    const char *gpu_uuid;
    const char *device_name;
    uint64_t uptime_us;
    enum mla_health health;
    uint64_t clients;
    uint64_t regions;
    uint64_t mapped_bytes;
    uint64_t caches;
    uint64_t jobs_waiting;
    uint64_t jobs_queued;
    uint64_t jobs_running;
    uint64_t batches;
    uint64_t boot_nonce;
    uint32_t units;
    uint32_t rows_per_unit;
    uint64_t workspace_bytes;
    uint64_t device_memory_bytes;
};

struct mla_client_status {
    uint64_t client_id;
    const char *name;
    uint32_t pid;
    uint32_t uid;
    uint64_t connected_us;
    uint64_t regions;
    uint64_t mapped_bytes;
    uint64_t caches;
    uint64_t table_sets;
    uint64_t jobs_in_flight;
    uint64_t jobs_answered;
    uint32_t weight;
};

struct mla_cache_status {
    const char *name;
    uint32_t owner_uid;
    uint64_t owner;
    uint64_t num_pages;
    uint32_t planes;
    uint32_t tokens_per_entry;
    uint64_t attachments;
    const char *label;
};

struct mla_status_reply {
    struct mla_error status;
    struct mla_daemon_status daemon;
    const struct mla_client_status *clients;
    size_t n_clients;
    const struct mla_cache_status *caches;
    size_t n_caches;
};

/* ---- admin right ---- */

struct mla_drain_request {
    bool has_deadline_us;
    uint64_t deadline_us;
};

struct mla_drain_reply {
    struct mla_error status;
    uint64_t jobs_in_flight;
};

struct mla_evict_request {
    uint64_t client_id;
};

struct mla_evict_reply {
    struct mla_error status;
};

struct mla_reload_request {
    uint8_t unused;
};

struct mla_reload_reply {
    struct mla_error status;
};

/* ---- any message ---- */

/* What all replies begin with: msg.reply.status is the Status of any reply. */
struct mla_any_reply {
    struct mla_error status;
};

/* type as in the frame header (replies: request | MLA_REPLY). Members: msg.decode, msg.decode_reply, msg.goaway_notice.
 */
struct mla_message {
    uint16_t type;
    union {
        struct mla_any_reply reply;
#define MLA_MESSAGE_MEMBERS(name, number, body, cap)                                                                   \
    struct mla_##body##_request body;                                                                                  \
    struct mla_##body##_reply body##_reply;
        MLA_REQUEST_LIST(MLA_MESSAGE_MEMBERS)
#undef MLA_MESSAGE_MEMBERS
#define MLA_MESSAGE_MEMBERS(name, number, body, cap) struct mla_##body body;
        MLA_NOTICE_LIST(MLA_MESSAGE_MEMBERS)
#undef MLA_MESSAGE_MEMBERS
    };
};

/* Makes *msg a message of this type whose fields all hold their defaults (mask CAUSAL, scales 1, strings "", ...): what
 * a sender starts from. Unknown types leave an all-zero message. */
void mla_message_init(struct mla_message *msg, uint16_t type);

/* Reads the n bytes of a body. Checks presence, ranges, enums, alignment, counts and characters: all that needs no
 * object. Returns
 *   0        *out is filled; it points into arena (never into body)
 *   1        refused: *err (may be NULL) has code (MALFORMED, INVALID_ARGUMENT, TOO_LARGE, MISALIGNED, NON_FINITE,
 *            UNKNOWN_MESSAGE), field as written in mla.proto ("q.offset"; static string), index (element; layer of a
 *            TEMPLATE_OPEN), value, limit and a text
 *   -ENOMEM  the arena is too small
 * Time is linear in n, memory at most the arena's. Neither allocates otherwise nor recurses. */
int mla_codec_decode(uint16_t type, const uint8_t *body, size_t n, struct mla_arena *arena, struct mla_message *out,
                     struct mla_error *err);

/* Bytes that mla_codec_encode will write; 0 also for an unknown type. */
size_t mla_codec_encoded_size(const struct mla_message *msg);

/* Writes the body, *n its length. 0; -ENOBUFS when cap is too small (*n is then the size needed); -EINVAL for an
 * unknown type. Does not allocate and does not check values: a decoder would. */
int mla_codec_encode(const struct mla_message *msg, uint8_t *out, size_t cap, size_t *n);

/* File descriptors that must travel with this decoded message; a RESUME without parts and handle is one of a memfd. */
unsigned mla_codec_expected_fds(const struct mla_message *msg);

/* 0, or 1 with NO_DESCRIPTORS in *err (value: n_fds, limit: what is expected). */
int mla_codec_check_fds(const struct mla_message *msg, unsigned n_fds, struct mla_error *err);

#endif
