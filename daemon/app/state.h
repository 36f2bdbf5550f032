/* Records of the composition root, shared by the files of this folder only. Everything here lives on the loop's thread.
 *
 * Ownership: a client owns its regions, caches, attachments, table sets and jobs; each is found only through its client
 * (what another connection owns does not exist for it). A record is freed when nothing uses it any more: objects by the
 * scheduler's RELEASE and, for memory, by the backend's answer to UNMAP; a client when its last object and job are
 * gone.
 */
#ifndef MLA_DAEMON_APP_STATE_H
#define MLA_DAEMON_APP_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>
#include <uv.h>

#include "daemon/app/access.h"
#include "daemon/app/app.h"
#include "daemon/app/config.h"
#include "daemon/app/health.h"
#include "daemon/app/metrics.h"
#include "daemon/app/service.h"
#include "daemon/app/weights.h"
#include "daemon/backend/backend.h"
#include "daemon/net/net.h"
#include "daemon/sched/sched_state.h"
#include "daemon/util/list.h"

struct app;
struct app_request;

/* A request to the backend and what to do when it is answered. While the backend's ring is full it waits in line. */
typedef void (*app_request_fn)(struct app *app, struct app_request *request, const struct be_event *event);
struct app_request {
    struct be_request be;
    app_request_fn done; /* gets every event of the request */
    void *owner;
    struct list in_overflow;
};

enum app_object_kind { APP_REGION, APP_REGION_USE, APP_CACHE, APP_TABLE_SET };

/* First member of what jobs can pin, so that RELEASE finds the record. */
struct app_object {
    struct sched_object sched;
    enum app_object_kind kind;
};

#define APP_JOB_BUCKETS 64u

struct app_client {
    struct app *app;
    struct net_peer *peer; /* NULL once the connection has ended */
    struct sched_peer sched;
    struct be_flow flow; /* the backend's */
    uint64_t weighed;    /* the last count of weights that it was in: batch.c */
    uint64_t id;
    char name[MLA_MAX_NAME_BYTES + 1];
    struct net_creds creds; /* groups copied */
    bool admin;
    uint64_t connected_ns;
    uint64_t gone_ns; /* 0: it is there */
    uint64_t jobs_answered;
    uint64_t mapped_bytes;
    uint64_t queued_bytes;                                             /* table sets and visible counts held for it */
    uint32_t n_regions, n_caches, n_table_sets, n_attachments, n_jobs; /* alive, also those on their way out */
    uint32_t n_unanswered;                                             /* jobs: what the quota is about */
    struct app_region *regions;
    struct app_cache *caches;
    struct app_attachment *attachments;
    struct app_table_set *table_sets;
    struct list jobs[APP_JOB_BUCKETS]; /* app_job.in_bucket, by request id: job_pool.c */
    struct app_template *templates;
    uint32_t n_templates;
    struct list in_app;
};

/*  COLLECTING  descriptors of a CUDA_VMM region arrive over several frames
 *  MAPPING     MAP is at the backend, for the first time or for a RESUME
 *  MAPPED      jobs may use it
 *  SUSPENDING  SUSPEND waits for the jobs that use it, then for UNMAP
 *  SUSPENDED   not mapped; id and caches stay
 *  UNMAPPING   on its way out */
enum app_region_state {
    REGION_COLLECTING = 1,
    REGION_MAPPING,
    REGION_MAPPED,
    REGION_SUSPENDING,
    REGION_SUSPENDED,
    REGION_UNMAPPING
};

struct app_region {
    struct app_object object; /* its life: pinned by jobs and by the caches in it */
    struct app_object use;    /* its mapping: pinned by jobs; RELEASE lets a SUSPEND go on */
    uint64_t id;
    struct app_client *client;
    enum app_region_state state;
    struct be_region mem;
    uint8_t ipc_handle[MLA_CUDA_IPC_BYTES];
    struct be_part *parts; /* CUDA_VMM; descriptors are ours until the MAP has ended */
    size_t n_parts, parts_cap;
    struct app_request request; /* MAP or UNMAP */
    uint16_t answer_type;       /* request to answer when that has ended; 0: none */
    uint64_t answer_id;
    bool resuming; /* MAPPING brings back a suspended region */
    bool in_hash;
    bool release_due; /* RELEASE came while the backend had it */
    uint32_t n_caches;
    char label[MLA_MAX_NAME_BYTES + 1];
    UT_hash_handle hh;
};

struct app_cache {
    struct app_object object; /* pinned by jobs; itself pins its region */
    uint64_t id;
    struct app_client *client;
    struct app_region *region;
    enum mla_cache_layout layout;
    uint64_t offset, page_stride;
    uint32_t num_pages, row_stride, tokens_per_entry, n_planes;
    uint64_t *plane_offset;
    char label[MLA_MAX_NAME_BYTES + 1];
    bool published;
    char name[MLA_MAX_NAME_BYTES + 1];
    uint32_t gids[MLA_MAX_GIDS];
    size_t n_gids;
    uint64_t tag;            /* the owner's name for what the pages hold */
    struct list attachments; /* app_attachment.in_cache */
    uint32_t n_attachments;
    bool answer; /* DROP_CACHE waits for the last job */
    uint64_t answer_id;
    UT_hash_handle hh;
    struct list in_published;
};

struct app_attachment {
    uint64_t id;
    struct app_client *client;
    struct app_cache *cache; /* NULL: revoked; the id answers CACHE_GONE until it is detached */
    UT_hash_handle hh;
    struct list in_cache;
};

/* What a job of a table set weighs, and of which jobs that is true: batch_cost(). */
struct app_weight {
    uint32_t heads, mask;
    bool batch_invariant;
    uint64_t part_max_ns;
    uint32_t n_parts; /* 0: not known yet */
    uint64_t cost, load_ns, kernels;
};

/*  UNUSED   no request has named the set
 *  USED     one has, or more, and there is no copy
 *  COPYING  the backend has the MIRROR
 *  THERE    requests name the copy
 *  REFUSED  the backend did not make one, and is not asked again */
enum app_mirror { MIRROR_UNUSED, MIRROR_USED, MIRROR_COPYING, MIRROR_THERE, MIRROR_REFUSED };

struct app_table_set {
    struct app_object object;
    uint64_t id;     /* the client's */
    uint64_t serial; /* never given twice */
    struct app_client *client;
    uint32_t n_seqs, tokens_per_entry, entries_per_seq; /* 0: packed */
    uint32_t *q_len, *kv_len_max;
    uint32_t *pages; /* backend host memory, or NULL */
    uint64_t pages_address;
    uint64_t n_pages;
    enum app_mirror mirror;
    uint64_t mirror_address;         /* 0: none */
    uint64_t bytes;                  /* charged to the client */
    uint64_t tokens;                 /* sum of q_len */
    uint32_t max_entries;            /* that a sequence needs */
    uint32_t max_q_len, n_seqs_used; /* the last sequence with a query token is n_seqs_used - 1 */
    uint32_t *corners, n_corners;    /* sequences between whose rows all others lie, in any tensor */
    struct app_weight weight;
    UT_hash_handle hh;
};

#define APP_JOB_PINS 26 /* a DECODE names at most 11 regions, each pinned twice, and two other objects */

struct app_job {
    struct sched_job sched;
    struct app_client *client;
    uint64_t request_id;
    uint64_t came_ns; /* its frame */
    struct app_cache *cache;
    struct app_table_set *tables;
    struct sched_object *pins[APP_JOB_PINS];
    struct mla_abi_job abi; /* all but status and first_seq */
    uint64_t kernels;       /* batch_kernels() */
    uint32_t table_entries_per_seq;
    bool batch_invariant;
    bool revoked;     /* its cache went while it waited */
    bool watching;    /* WATCH given to the backend and not ended */
    bool indexed;     /* found by CANCEL */
    bool answered;    /* REPLY carried out; the record goes when pending is 0 */
    uint32_t pending; /* requests of this job at the backend: WATCH, UNWATCH, ABORT */
    void *visible;    /* host copy, backend host memory */
    uint64_t visible_bytes;
    uint64_t *status; /* status words of a job in parts, backend host memory: its launches share them; else NULL */
    uint64_t status_address, status_bytes;
    uint64_t *done_word; /* NULL: none */
    uint64_t done_value;
    const uint64_t *ready_word;
    uint64_t ready_value;
    uint32_t tiles, items, splits;
    uint64_t n_faults; /* all; faults[] has the first ones */
    struct mla_sequence_fault faults[MLA_FAULTS_PER_REPLY_MAX];
    struct mla_error plan_error;
    struct app_request watch, unwatch, abort;
    struct list in_bucket; /* of its client's index, or the free records */
};

/* Buffers of one launch; grown, never shrunk. */
struct app_buffer {
    void *memory;
    uint64_t address;
    size_t bytes;
};

/* Arrays of a plan: backend host memory. */
struct app_plan_buffers {
    struct app_buffer tiles, items, reduces;
};

#define APP_PLANS 16u

/* A plan that is kept, with what it is of: plans.c. */
struct app_plan {
    uint64_t id; /* never given twice; 0: none */
    uint64_t used_at;
    uint32_t uses; /* by batches */
    uint64_t hash;
    uint32_t heads, n_jobs, n_seqs;
    enum plan_policy policy;
    uint32_t resident_units; /* of the kernels that it is for */
    struct plan_job *jobs;
    size_t jobs_cap;
    struct plan_seq *seqs;
    size_t seqs_cap;
    struct plan plan;
    struct app_plan_buffers buffers;
};

/* Sizes of the largest plans that were kept: the places of all grow to these at once, each when it is used next, so
 * that plans of sizes that were there before take no memory. */
struct app_plan_room {
    size_t tiles_bytes, items_bytes, reduces_bytes;
    uint32_t n_jobs, n_seqs;
};

#define APP_HOST_CLASSES 11u /* the largest piece that is kept: 64 KiB */

/* Pieces of backend host memory without a job: host_pool.c. */
struct app_host_pool {
    struct host_piece *kept[APP_HOST_CLASSES]; /* by size */
    size_t kept_bytes;
};

struct app_batch {
    struct sched_batch *sched;
    struct plan plan;        /* its arrays are those of kept, or large */
    struct app_plan *kept;   /* NULL: too large for that, or none */
    uint32_t resident_units; /* of the kernels that the plan is for */
    struct app_plan_buffers large;
    struct app_buffer jobs, seqs, status; /* backend host memory */
    void *scratch;
    size_t scratch_bytes;
    struct app_job **members; /* its jobs, in order */
    size_t members_cap;
    struct plan_job *plan_jobs;
    size_t plan_jobs_cap;
    struct plan_seq *plan_seqs;
    size_t plan_seqs_cap;
    struct be_done_word *done;
    size_t done_cap;
    struct be_batch be;
    uint64_t staged_ns, launched_ns, heard_ns; /* when it was formed, when it was handed on, when its end was heard */
    struct app_request request;
};

/* ATTACH_CACHE that waits for a name. */
struct app_attach_wait {
    struct app_client *client;
    uint64_t request_id;
    uint32_t owner_uid;
    char name[MLA_MAX_NAME_BYTES + 1];
    uint64_t deadline_ns;
    struct list in_app;
};

struct app {
    const struct app_config *config; /* live, for all who only read it */
    struct app_config live;
    app_load_fn load;
    struct access_rights access;
    struct weight_rules weights;
    struct service service;
    uv_loop_t loop;
    uv_poll_t backend_poll;
    uv_poll_t sched_timer;
    int sched_timer_fd;
    uint64_t sched_timer_ns; /* 0: not armed */
    uv_check_t backend_check;
    uv_prepare_t turn_prepare;
    uint64_t turn_ns;  /* when what runs now began; 0: nothing has since the loop last waited */
    uint64_t n_events; /* of the backend, so far */
    uv_timer_t attach_timer;
    uv_signal_t sigterm, sigint;
    struct net *net;
    struct be be;
    struct sched sched;
    struct metrics metrics;
    uint64_t boot_nonce;
    uint64_t started_ns;
    enum mla_health health;
    const char *health_reason;
    char degraded[MLA_MAX_TEXT_BYTES]; /* health_reason while that is what it is */
    struct health checks;
    struct health_look seen; /* of it turn_max_ns and device_lag_ns: since the last look */
    uint64_t looked_ns;      /* when that was */
    uint64_t last_end_ns;    /* of a launch of jobs, on the device */
    bool device_lost;
    bool closing;
    int exit_code;

    struct list free_jobs; /* app_job.in_bucket */
    uint32_t n_free_jobs;
    struct list clients; /* app_client.in_app */
    uint32_t n_clients;
    struct list published;    /* app_cache.in_published */
    struct list attach_waits; /* app_attach_wait.in_app */
    struct list overflow;     /* app_request.in_overflow, in order */
    struct app_batch batches[SCHED_BATCHES];
    struct app_batch probe; /* buffers for planning a single job */
    struct app_plan plans[APP_PLANS];
    struct app_plan_room plan_room;
    uint64_t n_plans, n_plan_uses;
    struct app_host_pool host_pool;
    struct app_request mirroring; /* the MIRROR under way; owner: the table set, NULL: none */
    uint64_t mirror_bytes;        /* of tables that have a copy, or are to */
    struct list steps;            /* app_template.in_app: steps in flight */
    uint32_t n_steps;
    uint64_t n_weighed;         /* counts of weights: batch.c */
    uint64_t memory_generation; /* grows when a region or cache that requests may name goes, comes back or moves */
    uint64_t last_serial;       /* of table sets */
    uint64_t last_shape;        /* be_step.shape */
    uint32_t n_requests;        /* at the backend and to be answered; a clean exit waits for them */
    bool exit_pending;

    bool in_actions; /* actions are being carried out: what they cause joins them */
};

/* ---- app.c ---- */
/* Gives an event to the scheduler and carries out what comes back. now_ns is filled in. */
void app_event(struct app *app, struct sched_event event);
/* Carries out what the scheduler asks for, until it asks for nothing; within an action it leaves that to the caller. */
void app_pump(struct app *app);
/* Arms a timer for a point of mla_now_ns(), rounded up to its milliseconds; UINT64_MAX and 0 disarm. */
void app_arm_timer(uv_timer_t *timer, uint64_t at_ns);
/* Takes what the backend has to say; how many events. */
size_t app_poll_backend(struct app *app);
/* To the backend, in order, also while its ring is full; dropped once the device is lost. */
void app_submit(struct app *app, struct app_request *request);
/* The same for what may as well be left: false where it would have to wait in line, or the device is lost. */
bool app_submit_if_room(struct app *app, struct app_request *request);
void app_drain(struct app *app, uint64_t deadline_us);

/* ---- turn.c: how long the loop lets others wait ---- */
void turn_start(struct app *app); /* before net is opened */
void turn_begin(struct app *app); /* by every callback of the loop but net's, which do it themselves */
void turn_end(struct app *app, uint64_t now_ns);

/* ---- checkup.c: ready or degraded ---- */
void checkup_start(struct app *app);
/* Once in HEALTH_LOOK_MS. */
void checkup_look(struct app *app);
/* A launch of jobs has ended: when the device thread had begun with it. */
void checkup_launch_taken(struct app *app, const struct app_batch *b);
static inline bool app_takes_work(const struct app *app)
{
    return app->health == MLA_HEALTH_READY || app->health == MLA_HEALTH_DEGRADED;
}

/* ---- spin.c ---- */
void app_loop(struct app *app); /* until nothing is left in the loop */

/* ---- dispatch.c: requests of peers ---- */
bool app_on_hello(void *app, const struct net_request *request);
void app_on_message(void *app, const struct net_request *request);
/* A request that net answered itself: counted like any other. */
void app_on_refused(void *app, uint16_t type, enum mla_status code);
/* Sends the reply of a request, filled but for its type; nothing when the client has gone. */
void app_reply(struct app_client *client, uint16_t request_type, uint64_t request_id, struct mla_message *reply);
/* A reply that is nothing but a status. err NULL: OK. */
void app_reply_status(struct app_client *client, uint16_t request_type, uint64_t request_id,
                      const struct mla_error *err);

/* ---- client.c ---- */
struct app_client *client_new(struct app *app, struct net_peer *peer, const struct mla_hello_request *hello);
void app_on_closed(void *app, struct net_peer *peer);
void client_maybe_free(struct app_client *client);
/* Of its jobs and steps of a priority, as the scheduler has it. */
uint32_t client_weight(const struct app_client *client, uint32_t priority);
/* QUOTA, with the time after which jobs of the client that are in flight may have given back what counts; without any,
 * time alone helps nothing, and none is said. */
enum mla_status client_over_quota(const struct app_client *client, struct mla_error *err, const char *field,
                                  uint64_t value, uint64_t limit, const char *text);

/* ---- admin.c: what needs the admin right ---- */
void admin_drain(struct app_client *client, const struct net_request *request);
void admin_evict(struct app_client *client, const struct net_request *request);
void admin_reload(struct app_client *client, const struct net_request *request);
/* Reads the configuration again. 0, or -1 with a sentence in why and nothing changed. */
int admin_reload_config(struct app *app, char *why, size_t why_bytes);

/* ---- memory.c ---- */
void memory_register(struct app_client *client, const struct net_request *request);
void memory_register_sync(struct app_client *client, const struct net_request *request);
void memory_unregister(struct app_client *client, const struct net_request *request);
void memory_suspend(struct app_client *client, const struct net_request *request);
void memory_resume(struct app_client *client, const struct net_request *request);
/* A mapped region of the client; NULL with *err: NOT_FOUND or SUSPENDED, field as given. */
struct app_region *memory_find(struct app_client *client, uint64_t id, const char *field, struct mla_error *err);

/* ---- region.c: the states of a region ---- */
struct app_region *region_new(struct app_client *client, uint64_t size);
void region_free(struct app_region *region);
/* Takes the request's descriptors as further parts. */
int region_add_parts(struct app_region *region, const struct net_request *request, const struct mla_region_part *parts,
                     size_t n_parts, struct mla_error *err);
void region_map(struct app_region *region, uint16_t answer_type, uint64_t answer_id);
void region_suspend(struct app_region *region, uint64_t answer_id);
void region_close_descriptors(struct app_region *region);
/* No job can name it from here on. */
void region_leave(struct app_region *region);
void region_released(struct app *app, struct app_region *region);
void region_use_released(struct app *app, struct app_region *region);

/* ---- cache.c ---- */
void cache_define(struct app_client *client, const struct net_request *request);
void cache_publish(struct app_client *client, const struct net_request *request);
void cache_attach(struct app_client *client, const struct net_request *request);
void cache_detach(struct app_client *client, const struct net_request *request);
void cache_drop(struct app_client *client, const struct net_request *request);
void cache_release(struct app *app, struct app_cache *cache);
void cache_client_gone(struct app_client *client);
void cache_attach_timer(struct app *app);
/* Answers those who wait for a name. */
void cache_drain(struct app *app);
/* Own or attached. NULL with *err: NOT_FOUND or CACHE_GONE. */
struct app_cache *cache_find(struct app_client *client, uint64_t id, struct mla_error *err);

/* ---- tables.c ---- */
void tables_put(struct app_client *client, const struct net_request *request);
void tables_drop(struct app_client *client, const struct net_request *request);
void tables_leave(struct app_client *client, struct app_table_set *set);
void tables_release(struct app *app, struct app_table_set *set);

/* ---- mirror.c: copies of page tables in the device's memory ---- */
/* Of a set that has pages: where the records of a request find them. */
uint64_t mirror_address(const struct app_table_set *set);
/* A request that names the set is on its way. */
void mirror_used(struct app *app, struct app_table_set *set);
void mirror_release(struct app *app, struct app_table_set *set);
/* Before the scheduler hears of it. */
void mirror_device_lost(struct app *app);

/* ---- decode.c, decode_check.c ---- */
void decode_submit(struct app_client *client, const struct net_request *request);
void decode_cancel(struct app_client *client, const struct net_request *request);
/* Checks a request against the client's objects and fills job (abi, pins, words). 0, or positive with *err. */
int decode_check(struct app_client *client, const struct mla_decode_request *decode, struct app_job *job,
                 struct mla_error *err);
void decode_revoke_cache(struct app_client *client, const struct app_cache *cache);
void decode_watch(struct app *app, struct app_job *job);
void decode_unwatch(struct app *app, struct app_job *job);
void decode_answer(struct app *app, struct app_job *job);
/* The done word of a request that no job came of gets its abort value; a reference that is not good is left. */
void decode_abort_refused(struct app_client *client, const struct mla_decode_request *d);

/* ---- template.c, step.c: captured steps ---- */
void template_open(struct app_client *client, const struct net_request *request);
void template_close(struct app_client *client, const struct net_request *request);
void template_client_gone(struct app_client *client);
void step_submit(struct app_client *client, const struct net_request *request);
bool step_has_id(const struct app_client *client, uint64_t request_id); /* whether one in flight has it */
/* False when no step in flight has that request id. */
bool step_cancel(struct app_client *client, uint64_t request_id);
void step_revoke_cache(struct app_client *client, const struct app_cache *cache);
void step_drain(struct app *app, uint64_t deadline_ns);
/* Answers them all; before the scheduler hears of it. */
void step_device_lost(struct app *app);

/* ---- job_pool.c ---- */
struct app_job *job_new(struct app *app); /* zeroed; NULL without memory */
void job_free(struct app *app, struct app_job *job);
void job_pool_free(struct app *app);
void job_index_init(struct app_client *client);
struct app_job *job_find(struct app_client *client, uint64_t request_id); /* NULL: none in flight */
void job_index(struct app_job *job);
void job_unindex(struct app_job *job); /* nothing when it is not there */

/* ---- host_pool.c: what jobs hold of the backend's host memory ---- */
/* Not zeroed; NULL without memory. */
void *host_take(struct app *app, size_t bytes, uint64_t *address);
/* What host_take() gave, with its address and the bytes that were asked for; NULL: nothing. Nothing at the backend uses
 * it any more. */
void host_give(struct app *app, void *memory, uint64_t address, size_t bytes);
/* Gives back all that is kept. False: nothing was. */
bool host_pool_forget(struct app *app);

/* ---- plans.c ---- */
/* A plan of the request, whose kernels and workspace_bytes_max are found here, to b->plan; kept until plans_let_go().
 * 0, or -errno as plan_build() and be_workspace_for(). */
int plans_get(struct app *app, struct app_batch *b, struct plan_request *request);
void plans_let_go(struct app_batch *b); /* nothing when it has none */
void plans_free(struct app *app);
/* be_host_alloc(), which what is kept for later, plans and pieces, makes room for. */
void *app_host_alloc(struct app *app, size_t bytes, uint64_t *address);
/* False: no memory. What is in the buffer goes when it grows; what is in the array stays. */
bool app_grow_device(struct app *app, struct app_buffer *buffer, size_t bytes);
/* Gives back what a launch's buffers hold, save a plan that is kept. False: nothing. */
bool app_batch_forget(struct app *app, struct app_batch *b);
bool app_grow_host(void *pointer_to_array, size_t *cap, size_t n, size_t size);

/* ---- batch.c ---- */
void batch_stage(struct app *app, struct sched_batch *batch, uint32_t generation);
void batch_launch(struct app *app, struct sched_batch *batch);
/* job->sched.cost: workspace that a batch must keep for this job, whatever else is in it; its load, number of parts and
 * kernels.
 * 0, or positive with *err when there is not as much. */
int batch_cost(struct app *app, struct app_job *job, struct mla_error *err);
/* Of any plan: all but jobs and sequences. be_fit() when those are known. */
struct plan_request batch_request(const struct app *app);
/* Bits of compat: of a request of one job, after be_fit(). */
uint64_t batch_kernels(const struct app *app, const struct plan_request *request);
/* The most that a part of a job may weigh (plan_parts()). */
uint64_t batch_part_max_ns(const struct app *app);
void batch_free_buffers(struct app *app);

/* ---- read.c ---- */
void read_health(struct app_client *client, const struct net_request *request);
void read_status(struct app_client *client, const struct net_request *request);
void read_metrics(struct app_client *client, const struct net_request *request);
/* The same as METRICS, as text (metrics_text.h). */
char *read_metrics_text(const struct app *app, size_t *bytes);

#endif
