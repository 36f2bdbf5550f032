/* libmla: the client library of mlad, the attention decode daemon.
 *
 * A worker opens a connection, shares memory, declares a paged KV cache in it and asks for decodes. C11 and C++17.
 *
 * Results. Every call that can fail returns enum mla_status; MLA_OK is 0. mla_last_error() tells more about the last
 *   failed call of a handle: the field at fault, what was sent, what would have been allowed, and one sentence.
 * Time. Every call that may wait has a timeout_us: 0 looks once and does not wait, MLA_FOREVER waits without end. When
 *   the time is over the call returns MLA_PENDING and the request stays in flight: see the call for what that means.
 * Threads. One handle is used by one thread at a time; the caller keeps to that, the library has no lock. Different
 *   handles are independent: nothing is global, no signal handler is made, SIGPIPE is never raised, and there is no
 *   thread but the one that mla_watch_start() asks for, which blocks all signals.
 *   The words of a sync page may be read and written by any thread at any time.
 * Processes. A handle does not survive fork() in the child; all descriptors are close-on-exec.
 * Callbacks run only inside mla_dispatch() and mla_close(), between requests, when the handle is whole: they may
 *   submit, cancel, wait for single requests and make any other call on the handle. Inside a callback, mla_dispatch()
 *   and mla_close() return MLA_BUSY and do nothing; other calls never run a callback.
 * Disconnect. A connection ends when the daemon does, or is cut. What can be done again is done again, by
 *   default for 60 s (mla_options.recover_us): the library connects anew, with pauses that double from 2 ms up
 *   to 1 s, half of each random; it waits until a daemon that still lives has let go of the old connection; it
 *   registers regions, sync pages, caches, published names and table sets again, in the order they were made,
 *   and asks for attachments, which wait as long for their owners to publish the same cache. Ids stay what they
 *   were. It is on by default because a restart of the daemon is the operator's business: a worker that decodes
 *   eagerly need not notice. Then:
 *   - Eager jobs (no ready or done word) in flight are sent again, and are answered once, by the last daemon.
 *     Decode is idempotent while inputs stay as they are until the answer. The rest of deadline_us goes with
 *     them. At the third end of a connection under the same job it is answered MLA_DISCONNECTED: it may be what
 *     ends them. One whose deadline passes, or that is cancelled, while there is no connection is answered
 *     TIMED_OUT or CANCELLED, or DISCONNECTED when it is not known whether it still runs. What a daemon that
 *     drains does not take waits for the next one.
 *   - Jobs whose words streams wait for, and steps, are never sent twice: they are answered MLA_DISCONNECTED
 *     (or MLA_DEVICE_LOST, which for every job is handed on only at the end of the connection), their done
 *     words get the abort value. Open templates are broken: close them and open them anew; write a word that
 *     has an abort value anew before its next job.
 *   - Calls that wait go on waiting, and are made again when there is a connection; PENDING after timeout_us as
 *     ever. Those that cannot be made twice (mla_drain, mla_evict, mla_reload, mla_template_open) return
 *     MLA_DISCONNECTED. While there is no connection eager jobs are taken, up to max_send_bytes, and ordered
 *     ones refused (MLA_DISCONNECTED); mla_wait_connected() says when that is over. mla_fd() becomes readable
 *     when mla_dispatch() has something to do for it.
 *   - What the next daemon refuses is gone: MLA_EVENT_LOST for regions and caches, REFUSED for table sets,
 *     CACHE_GONE for attachments whose owner does not come back, or comes back with another cache. A suspended
 *     region, and the caches in it, are made again by its mla_region_resume().
 *   The handle ends, and with recover_us 0 it does so at once, when no daemon comes in time or when another
 *   attempt would end the same way (evicted, PERMISSION_DENIED, WRONG_DEVICE, another protocol): every request
 *   in flight is answered exactly once with MLA_DISCONNECTED, done words of jobs in flight get their abort
 *   value, an MLA_EVENT_DISCONNECTED is delivered, and all later calls return MLA_DISCONNECTED (a call that is
 *   waiting right then returns the reason, which may be another: MLA_PROTOCOL_ERROR, ...): it is then only good
 *   for mla_dispatch(), mla_wait() and mla_close().
 *   The library notices ends inside its calls only, so a program whose streams wait for done words polls
 *   mla_fd() and dispatches, or asks for mla_watch_start(). What recovery costs: a duplicate of each
 *   descriptor, a copy of each table set and of the arguments of each job in flight.
 * Memory of a job: its inputs stay unchanged and its outputs belong to the daemon from submit until the answer.
 *   An answer means that no byte of the job is read or written any more. MLA_DISCONNECTED alone does not
 *   promise that: the daemon, if it lives, lets go within a second, and once MLA_EVENT_RECONNECTED has come, or
 *   mla_wait_connected() is OK, it has. What a daemon that died had given to a GPU may end after it, and then
 *   stores done values over the abort values: so on a GPU the words of such jobs are not for the jobs of the
 *   next daemon.
 * Structs that a caller fills begin with size and are prepared by their ..._init(); members may be added at the end.
 */
#ifndef MLA_MLA_H
#define MLA_MLA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MLA_API __attribute__((visibility("default")))
#else
#define MLA_API
#endif

#define MLA_VERSION_MAJOR 0
#define MLA_VERSION_MINOR 1
#define MLA_VERSION_PATCH 0

#define MLA_FOREVER      UINT64_MAX
#define MLA_FIELD_BYTES  64
#define MLA_ERROR_BYTES  256
#define MLA_FAULTS_MAX   64
#define MLA_WORD_BYTES   64                  /* one word of a sync page per cache line */
#define MLA_ABORT_OFFSET (UINT64_C(1) << 62) /* an aborted done word holds done_value + this */
#define MLA_UID_SELF     UINT32_MAX

/* ---- status ---- */

/* The guards below: inside mlad's own tree, sources that have included the protocol's lists use those. */
#ifndef MLA_PROTO_STATUS_H
enum mla_status {
    MLA_OK = 0,
    /* 1..99: the request was bad; sending it again unchanged gives the same answer. */
    MLA_INVALID_ARGUMENT = 1,
    MLA_NOT_FOUND = 2,
    MLA_ALREADY_EXISTS = 3,
    MLA_UNSUPPORTED = 4,
    MLA_UNKNOWN_MESSAGE = 5,
    MLA_MALFORMED = 6,
    MLA_TOO_LARGE = 7,
    MLA_MISALIGNED = 8,
    MLA_OUT_OF_BOUNDS = 9,
    MLA_OVERLAP = 10,
    MLA_PERMISSION_DENIED = 11,
    MLA_WRONG_DEVICE = 12,
    MLA_NO_DESCRIPTORS = 13,
    MLA_BAD_DESCRIPTOR = 14,
    MLA_NOT_SEALED = 15,
    MLA_BAD_HANDLE = 16,
    MLA_VERSION_MISMATCH = 17,
    MLA_HELLO_REQUIRED = 18,
    MLA_ACCESS_DENIED = 19,
    MLA_BUSY = 20,
    MLA_NON_FINITE = 21,
    /* 100..199: the request was fine, the state was not; it may succeed later. */
    MLA_QUOTA = 100,
    MLA_OVERLOADED = 101,
    MLA_DRAINING = 102,
    MLA_CACHE_GONE = 103,
    MLA_SUSPENDED = 104,
    MLA_OUT_OF_MEMORY = 105,
    /* 200..299: the job ended without a usable result, or late (LATE: its outputs are complete). */
    MLA_TIMED_OUT = 200,
    MLA_CANCELLED = 201,
    MLA_LATE = 202,
    MLA_READY_ABORTED = 203,
    /* 300..399: the connection or the daemon is at fault. */
    MLA_PROTOCOL_ERROR = 300,
    MLA_DISCONNECTED = 301,
    MLA_DEVICE_LOST = 302,
    MLA_INTERNAL = 303,
    MLA_SLOW_PEER = 304,
    /* 400..499: PARTIAL is a job's status; the others are those of its faulted sequences. */
    MLA_PARTIAL = 400,
    MLA_PAGE_OUT_OF_RANGE = 401,
    MLA_KV_LEN_OUT_OF_RANGE = 402,
    MLA_VISIBLE_OUT_OF_RANGE = 403,
    /* 500..599: of this library, never sent. */
    MLA_PENDING = 500,     /* the time given to the call is over; the request is still in flight */
    MLA_SYSTEM_ERROR = 501 /* a system call failed; value of mla_last_error() is errno */
};
#endif

/* "NOT_FOUND" and "no such object on this connection"; "UNKNOWN" and a sentence for numbers not in the list. */
MLA_API const char *mla_errname(enum mla_status status);
MLA_API const char *mla_strerror(enum mla_status status);

struct mla_error_info {
    enum mla_status status;
    char field[MLA_FIELD_BYTES]; /* as in the protocol: "q.offset"; "" when none is at fault */
    uint64_t index;              /* element of an array, or sequence */
    uint64_t value;              /* what was sent (errno with MLA_SYSTEM_ERROR) */
    uint64_t limit;              /* what would have been allowed */
    uint64_t retry_after_us;     /* when trying again makes sense: with OVERLOADED, and with QUOTA while jobs of the
                                    client are in flight; 0: time alone does not help */
    char text[MLA_ERROR_BYTES];
};

/* ---- enums of the protocol ---- */

#ifndef MLA_PROTO_ENUMS_H
enum mla_region_kind { MLA_REGION_MEMFD = 1, MLA_REGION_CUDA_IPC = 2, MLA_REGION_CUDA_VMM = 3 };

enum mla_access { MLA_ACCESS_READ = 1, MLA_ACCESS_READ_WRITE = 2 };

/* E4M3_576: 512 latent bytes, then 64 rope bytes, e4m3 FN; V is the first 512. The others are reserved. */
enum mla_cache_layout { MLA_CACHE_E4M3_576 = 1, MLA_CACHE_BF16_576 = 2, MLA_CACHE_E4M3_512_BF16_64_SCALED = 3 };

enum mla_dtype { MLA_DTYPE_E4M3 = 1, MLA_DTYPE_BF16 = 2, MLA_DTYPE_F32 = 3 };

/* NONE: every key. CAUSAL: token t of q_len sees keys 0 .. kv_len - q_len + t. VISIBLE: token t sees the first
 * visible[t] keys. */
enum mla_mask { MLA_MASK_NONE = 1, MLA_MASK_CAUSAL = 2, MLA_MASK_VISIBLE = 3 };

enum mla_goaway { MLA_GOAWAY_DRAINING = 1, MLA_GOAWAY_FATAL = 2 };

enum mla_health {
    MLA_HEALTH_STARTING = 1,
    MLA_HEALTH_READY = 2,
    MLA_HEALTH_DEGRADED = 3,
    MLA_HEALTH_DRAINING = 4,
    MLA_HEALTH_FAILED = 5
};

enum mla_metric_type { MLA_METRIC_COUNTER = 1, MLA_METRIC_GAUGE = 2, MLA_METRIC_HISTOGRAM = 3 };

/* Bits of mla_server_info.features. */
enum mla_feature {
    MLA_FEATURE_DECODE = 1 << 0,
    MLA_FEATURE_MEMFD = 1 << 1,
    MLA_FEATURE_CUDA_IPC = 1 << 2,
    MLA_FEATURE_CUDA_VMM = 1 << 3,
    MLA_FEATURE_SYNC = 1 << 4,
    MLA_FEATURE_SUSPEND = 1 << 5,
    MLA_FEATURE_STEP = 1 << 6,
    MLA_FEATURE_PUBLISH = 1 << 7,
    MLA_FEATURE_EVICT = 1 << 8,
    MLA_FEATURE_RELOAD = 1 << 9
};
#endif

/* ---- handle ---- */

struct mla_client;
typedef uint64_t mla_region_id; /* 0 is never an id */
typedef uint64_t mla_cache_id;
typedef uint64_t mla_tables_id; /* chosen by the caller */
typedef uint64_t mla_request_id;

enum mla_event_kind {
    MLA_EVENT_GOAWAY = 1, /* no new work is taken: goaway, deadline_us; draining: what is in flight is still answered */
    MLA_EVENT_CACHE_GONE = 2,   /* the owner of an attached cache has gone: cache is a dead id, name says which */
    MLA_EVENT_REFUSED = 3,      /* a table set that was put without waiting was refused: tables, error */
    MLA_EVENT_DISCONNECTED = 4, /* the handle has ended: error says why. Delivered once, after all answers */
    /* Of recovery (mla_options.recover_us): */
    MLA_EVENT_INTERRUPTED = 5, /* the connection has ended: error says why. The library makes another */
    MLA_EVENT_RECONNECTED = 6, /* it has; restarted: by another daemon. From here on no byte of what was answered
                                  DISCONNECTED before is read or written any more */
    MLA_EVENT_LOST = 7         /* the daemon refuses to make this region or cache again: error says why. A cache with a
                                  name: it is there, and not published */
};

struct mla_event {
    enum mla_event_kind kind;
    enum mla_goaway goaway;
    uint64_t deadline_us; /* GOAWAY, draining: until the daemon exits; 0 when not said */
    mla_cache_id cache;
    mla_tables_id tables;
    char name[MLA_FIELD_BYTES + 1];
    struct mla_error_info error;
    mla_region_id region; /* LOST: of a region or a sync page; 0: it is cache */
    bool restarted;       /* RECONNECTED */
};

typedef void (*mla_event_fn)(struct mla_client *client, const struct mla_event *event, void *user);

enum mla_open_flag {
    MLA_OPEN_WAIT = 1 << 0 /* while no daemon listens at socket_path, try again until timeout_us is over */
};

struct mla_options {
    size_t size;
    const char *socket_path; /* NULL: $MLAD_SOCKET, else /run/mlad/mlad.sock */
    const char *name;        /* printable ASCII, at most 64 bytes, for status and logs; NULL: the program's name */
    const char *gpu_uuid;    /* NULL: whatever the daemon serves; else it must be the daemon's (WRONG_DEVICE) */
    uint64_t timeout_us;     /* connecting and greeting together */
    uint32_t flags;          /* enum mla_open_flag */
    uint64_t features;       /* bits of enum mla_feature that the daemon must offer (UNSUPPORTED) */
    uint64_t max_send_bytes; /* requests that the daemon has not read yet; beyond it MLA_OVERLOADED */
    mla_event_fn on_event;   /* NULL: events are dropped */
    void *user;
    uint64_t spin_us;    /* calls that wait look at the socket by themselves so long before they sleep; 0: at once. A
                          * wake-up takes microseconds, a spinning thread its processor */
    uint64_t recover_us; /* how long to look for a daemon after the loss of one, and attachments for their owners: see
                          * Disconnect above. 0: the end of the connection is the end of the handle; MLA_FOREVER:
                          * without end */
};

static inline void mla_options_init(struct mla_options *o)
{
    memset(o, 0, sizeof(*o));
    o->size = sizeof(*o);
    o->timeout_us = 5000000;
    o->max_send_bytes = 64u << 20;
    o->recover_us = 60000000; /* a supervisor restarts a daemon within seconds */
}

/* What the daemon said when the connection was made; limit 0: not said. */
struct mla_server_info {
    uint32_t protocol_major;
    uint32_t protocol_minor;
    uint64_t features;
    uint64_t boot_nonce; /* random per start of the daemon */
    uint64_t client_id;  /* this connection in mla_read_clients() */
    const char *version;
    const char *backend; /* "cpu", "cuda", "null" */
    const char *gpu_uuid;
    const char *isolation; /* "shared", "isolated", "host" */
    uint64_t max_regions;
    uint64_t max_mapped_bytes;
    uint64_t max_jobs_in_flight;
    uint64_t max_queued_bytes;
    uint64_t max_table_sets;
    uint64_t max_caches;
    uint64_t max_body_bytes;
};

/* Connects and greets. options may be NULL (all defaults). On failure *out is NULL and *error (may be NULL) says why:
 * TIMED_OUT, DISCONNECTED (nobody listens, or the daemon hung up), PERMISSION_DENIED, VERSION_MISMATCH, WRONG_DEVICE,
 * DRAINING, UNSUPPORTED, PROTOCOL_ERROR, OUT_OF_MEMORY, SYSTEM_ERROR, INVALID_ARGUMENT. */
MLA_API enum mla_status mla_open(const struct mla_options *options, struct mla_client **out,
                                 struct mla_error_info *error);

/* Ends the connection and frees the handle. Requests still in flight are answered MLA_DISCONNECTED: their callbacks run
 * inside this call, in which every call that would send returns MLA_DISCONNECTED; events are dropped. Regions, caches
 * and table sets of the connection end with it; struct mla_memory and struct mla_sync stay mapped. BUSY inside a
 * callback. NULL is OK. */
MLA_API enum mla_status mla_close(struct mla_client *client);

/* Waits until requests can be sent: OK at once unless the connection has been lost and is being made again. PENDING:
 * not yet. DISCONNECTED: the handle has ended. */
MLA_API enum mla_status mla_wait_connected(struct mla_client *client, uint64_t timeout_us);

/* About the last call on this handle that did not return MLA_OK (MLA_PENDING included); valid until the next call. */
MLA_API const struct mla_error_info *mla_last_error(const struct mla_client *client);

/* For libraries on top of this one (libmla-cuda): makes *info what mla_last_error() tells. Returns info->status. */
MLA_API enum mla_status mla_set_error(struct mla_client *client, const struct mla_error_info *info);

/* Valid until mla_close(). */
MLA_API const struct mla_server_info *mla_server(const struct mla_client *client);

/* Version of the library in use, "0.1.0". */
MLA_API const char *mla_version(void);

/* ---- memory ---- */

/* Memory that this process and the daemon can map (CPU backend): a memfd sealed against shrinking and growing. */
struct mla_memory {
    void *addr;    /* mapped here, readable and writable, zeroed */
    uint64_t size; /* bytes, a multiple of the page size */
    int fd;
};

/* size is rounded up to the page size; flags 0. INVALID_ARGUMENT (size 0, unknown flags), OUT_OF_MEMORY, SYSTEM_ERROR
 * (errno is set). On failure *out is all zero with fd -1. */
MLA_API enum mla_status mla_memory_create(uint64_t size, uint32_t flags, struct mla_memory *out);

/* Unmaps and closes. Does not unregister: what the daemon has mapped stays alive there. Once freed it is all zero. */
MLA_API void mla_memory_free(struct mla_memory *memory);

/* One allocation of a CUDA_VMM region: [offset, offset + bytes) of what the descriptor exports. Only the first part may
 * have an offset, and every part but the last ends at a multiple of the GPU's granularity. */
struct mla_vmm_part {
    int fd; /* stays the caller's, as mla_region_desc.fd */
    uint64_t offset;
    uint64_t bytes;
    uint64_t allocation_bytes; /* of the whole allocation, which can only be mapped as such; 0: offset + bytes, rounded
                                  up to the GPU's granularity */
};

/* libmla-cuda (mla/cuda.h) fills in the CUDA kinds from a device pointer. */
struct mla_region_desc {
    size_t size;
    enum mla_region_kind kind;
    enum mla_access access;
    int fd;          /* MEMFD: with F_SEAL_SHRINK; stays the caller's and may be closed after the call */
    uint64_t offset; /* into the file (MEMFD, a multiple of the page size) or the block (CUDA_IPC, of 16) */
    uint64_t bytes;
    const char *label; /* for status; NULL: none */
    /* Since the CUDA kinds: */
    const char *gpu_uuid;             /* the GPU that the memory lives on; NULL: the daemon's */
    const uint8_t *ipc_handle;        /* CUDA_IPC: 64 bytes; stands for a whole allocation */
    uint64_t block_bytes;             /* CUDA_IPC: of that allocation */
    const struct mla_vmm_part *parts; /* CUDA_VMM: in order, together bytes; at most 4096 */
    size_t n_parts;
    /* CUDA_VMM: called for each part in order, just before it is sent, instead of taking parts[].fd: a region of
     * thousands of allocations needs a few descriptors at a time only. The library closes what it returns. Negative:
     * -errno; the call ends with SYSTEM_ERROR. NULL: not called. */
    int (*open_part)(void *open_user, size_t part);
    void *open_user;
    /* Not NULL: open_part and open_user are kept, to be asked again when the region is registered again after a
     * reconnect, until open_done(open_user) says that they are not needed any more: exactly once, also when the call
     * fails. NULL: they are for this call alone, and the region is lost (MLA_EVENT_LOST) when the connection is. */
    void (*open_done)(void *open_user);
};

static inline void mla_region_desc_init(struct mla_region_desc *d)
{
    memset(d, 0, sizeof(*d));
    d->size = sizeof(*d);
    d->kind = MLA_REGION_MEMFD;
    d->access = MLA_ACCESS_READ;
    d->fd = -1;
}

/* Shares memory with the daemon. PENDING: given up; should the daemon still register it, the library unregisters it.
 * The same holds for every call below that makes an object of the daemon. */
MLA_API enum mla_status mla_region_register(struct mla_client *client, const struct mla_region_desc *desc,
                                            uint64_t timeout_us, mla_region_id *out);

/* The whole of memory. */
MLA_API enum mla_status mla_memory_register(struct mla_client *client, const struct mla_memory *memory,
                                            enum mla_access access, const char *label, uint64_t timeout_us,
                                            mla_region_id *out);

/* OK when no byte of it will be touched any more. BUSY while a cache is defined on it. PENDING: it goes on; the same
 * call again waits for that same request (so do mla_cache_drop and mla_cache_detach). */
MLA_API enum mla_status mla_region_unregister(struct mla_client *client, mla_region_id region, uint64_t timeout_us);

/* For sleep modes: OK when no byte of it will be touched any more and the daemon has unmapped it. Its id, its caches
 * and its quota stay; decodes on it are answered SUSPENDED. PENDING: as with mla_region_unregister(). */
MLA_API enum mla_status mla_region_suspend(struct mla_client *client, mla_region_id region, uint64_t timeout_us);

/* Gives a suspended region memory again, under the same id. desc: as in mla_region_register(), with new handles; kind
 * and bytes are what they were; access, label and gpu_uuid are those of the registration, and not looked at. On failure
 * it stays suspended. PENDING: it goes on; or, when not all parts had been sent, it stays suspended. */
MLA_API enum mla_status mla_region_resume(struct mla_client *client, mla_region_id region,
                                          const struct mla_region_desc *desc, uint64_t timeout_us);

/* ---- ordering ---- */

/* A page of 64-bit words that both sides read and write, for stream-ordered jobs: the job starts when its ready word
 * has come to its value, its done word is written when it has ended. Comparison is by signed difference. */
struct mla_sync;

/* n_words >= 1; all words are 0. TOO_LARGE beyond 16,384 words. */
MLA_API enum mla_status mla_sync_create(struct mla_client *client, size_t n_words, uint64_t timeout_us,
                                        struct mla_sync **out);

/* Unregisters and unmaps. PENDING: nothing is unmapped, call again. Also for a sync page whose client is closed or
 * disconnected: then it is only unmapped. NULL is OK. */
MLA_API enum mla_status mla_sync_destroy(struct mla_sync *sync, uint64_t timeout_us);

/* Makes a thread that waits for the end of the connection and then gives the done words of jobs in flight their abort
 * value at once, whatever the program does: a daemon that dies releases the streams that wait for it. The thread only
 * polls for the hang-up and reads nothing; answers that have come by then are still handed out. It ends with
 * mla_close(). OK also when there is one. SYSTEM_ERROR, OUT_OF_MEMORY: there is none, and the connection stays as it
 * was. */
MLA_API enum mla_status mla_watch_start(struct mla_client *client);

MLA_API size_t mla_sync_words(const struct mla_sync *sync);
/* Address of a word, for streams; NULL out of range. */
MLA_API uint64_t *mla_sync_word(const struct mla_sync *sync, size_t index);

struct mla_location {
    uint64_t region; /* 0: none */
    uint64_t offset;
};

/* The same word as decodes name it; region 0 out of range. */
MLA_API struct mla_location mla_sync_location(const struct mla_sync *sync, size_t index);

/* Loads with acquire, stores with release order; any thread. */
MLA_API uint64_t mla_word_load(const uint64_t *word);
MLA_API void mla_word_store(uint64_t *word, uint64_t value);

/* current has come to value (aborted or not); it has because the job was aborted, or an earlier one on the same word
 * (whose abort value is that much less: so half of the offset is what counts). */
static inline bool mla_word_reached(uint64_t current, uint64_t value)
{
    return current - value < (UINT64_C(1) << 63);
}
static inline bool mla_word_aborted(uint64_t current, uint64_t value)
{
    return current - value >= MLA_ABORT_OFFSET / 2 && mla_word_reached(current, value);
}

/* ---- caches ---- */

/* Byte of row t of page p in plane l: offset + plane_offset[l] + p * page_stride + t * row_stride */
struct mla_cache_desc {
    size_t size;
    enum mla_cache_layout layout;
    mla_region_id region;
    uint64_t offset;              /* multiple of 16 */
    const uint64_t *plane_offset; /* one per layer, multiple of 16; n_planes 0: one plane at 0 */
    size_t n_planes;
    uint64_t num_pages;        /* 64-token pages per plane */
    uint64_t page_stride;      /* bytes, multiple of 16; 0: 64 * row_stride */
    uint64_t row_stride;       /* bytes, >= 576, multiple of 16 */
    uint32_t tokens_per_entry; /* k * 64: table entry e names pages e*k .. e*k + k - 1 */
    const char *label;
};

static inline void mla_cache_desc_init(struct mla_cache_desc *d)
{
    memset(d, 0, sizeof(*d));
    d->size = sizeof(*d);
    d->layout = MLA_CACHE_E4M3_576;
    d->row_stride = 576;
    d->tokens_per_entry = 64;
}

MLA_API enum mla_status mla_cache_define(struct mla_client *client, const struct mla_cache_desc *desc,
                                         uint64_t timeout_us, mla_cache_id *out);

/* Lets processes of this uid, and members of gids (at most 16), attach by name: 1..64 bytes of [A-Za-z0-9._-]. */
MLA_API enum mla_status mla_cache_publish(struct mla_client *client, mla_cache_id cache, const char *name,
                                          const uint32_t *gids, size_t n_gids, uint64_t timeout_us);

struct mla_cache_info {
    mla_cache_id cache;
    enum mla_cache_layout layout;
    uint32_t planes;
    uint32_t tokens_per_entry;
    uint64_t num_pages;
};

/* owner_uid: MLA_UID_SELF for the caller's own. wait_us: how long the daemon waits for it to be published, apart from
 * timeout_us. *out is written on OK only. */
MLA_API enum mla_status mla_cache_attach(struct mla_client *client, uint32_t owner_uid, const char *name,
                                         uint64_t wait_us, uint64_t timeout_us, struct mla_cache_info *out);
MLA_API enum mla_status mla_cache_detach(struct mla_client *client, mla_cache_id cache, uint64_t timeout_us);

/* Owner only: attachers get CACHE_GONE. OK when no job uses it any more. */
MLA_API enum mla_status mla_cache_drop(struct mla_client *client, mla_cache_id cache, uint64_t timeout_us);

/* ---- table sets ---- */

/* The shape of a batch of sequences; immutable, bound to no cache. */
struct mla_tables {
    size_t size;
    mla_tables_id id;           /* the caller's own; any value not in use on this connection */
    size_t n_seqs;              /* 0 is legal */
    const uint32_t *q_len;      /* [n_seqs] query tokens; 0 is legal */
    const uint32_t *kv_len_max; /* [n_seqs] keys, the new tokens included; 0 is legal */
    const uint32_t *entries;    /* page ids; NULL: tables are in a region (mla_decode_args.table) */
    size_t n_entries;
    uint32_t entries_per_seq;  /* sequence s starts at s * entries_per_seq; 0: packed, each ceil(kv_len_max /
                                  tokens_per_entry) */
    uint32_t tokens_per_entry; /* the cache's */
};

static inline void mla_tables_init(struct mla_tables *t)
{
    memset(t, 0, sizeof(*t));
    t->size = sizeof(*t);
    t->tokens_per_entry = 64;
}

/* All arrays are copied before the call returns. timeout_us 0 sends and does not wait: OK means sent, decodes that use
 * the id may follow at once, and a refusal comes as MLA_EVENT_REFUSED (and NOT_FOUND of those decodes). PENDING: as if
 * timeout_us had been 0. */
MLA_API enum mla_status mla_tables_put(struct mla_client *client, const struct mla_tables *tables, uint64_t timeout_us);

/* Jobs that use it keep it until they end. The id may be put again at once. timeout_us 0 sends and returns OK. */
MLA_API enum mla_status mla_tables_drop(struct mla_client *client, mla_tables_id id, uint64_t timeout_us);

/* ---- decode ---- */

/* A strided tensor [sequence][token][head][element] in a region. Strides in bytes, multiples of 16 (LSE: of 4).
 * compact: sequences follow each other without gaps and seq_stride is ignored. Rows of an output may not share bytes
 * (OVERLAP); those of an input may, so a stride that was left 0 is no error: every token, or head, then reads the same
 * row. */
struct mla_view {
    mla_region_id region; /* 0: absent */
    uint64_t offset;
    int64_t seq_stride;
    int64_t token_stride;
    int64_t head_stride;
    bool compact;
};

/* score = softmax_scale * q_scale * kv_scale * dot(q, k); O = kv_scale * sum(p * v). e4m3 output is divided by
 * out_scale and rounded to nearest even with saturation. LSE: f32, natural logarithm. Row that sees no key: O = 0, LSE
 * = -inf. */
struct mla_decode_args {
    size_t size;
    mla_cache_id cache; /* own or attached */
    uint32_t plane;
    mla_tables_id tables;
    uint32_t heads;         /* 1..128 */
    struct mla_view q;      /* e4m3, 576 elements per row, or 512 (nope) when q_rope is given */
    struct mla_view q_rope; /* e4m3, 64 elements per row; region 0: q has all */
    struct mla_view o;      /* 512 elements of out_type per row */
    struct mla_view lse;    /* f32, one per row; region 0: not written */
    enum mla_dtype out_type;
    enum mla_mask mask;
    const int32_t *visible; /* VISIBLE from the host: one per query token, sequence after sequence; copied */
    size_t n_visible;
    struct mla_location visible_at; /* VISIBLE from a region, same order */
    struct mla_location kv_len;     /* int32 per sequence; region 0: kv_len_max is the length */
    struct mla_location table;      /* int32 table entries in a region, when the table set has none */
    uint32_t table_entries_per_seq; /* with table */
    float q_scale;
    float kv_scale;
    float softmax_scale;
    float out_scale;
    bool batch_invariant;      /* bits do not depend on the jobs that happen to share the launch */
    uint64_t deadline_us;      /* before launch, from arrival; 0: the daemon's default */
    struct mla_location ready; /* region 0: starts at once */
    uint64_t ready_value;
    struct mla_location done; /* region 0: none */
    uint64_t done_value;
    struct mla_location status; /* u64 per sequence: code << 32 | index; region 0: faults come in the answer only */
    uint32_t priority;          /* 0..3, larger is more urgent */
    uint32_t n_status;          /* words at status, when it lies in a sync page: they get DISCONNECTED << 32 (or the
                                   reason's code) before done gets its abort value at the end of the connection */
};

static inline void mla_decode_args_init(struct mla_decode_args *a)
{
    memset(a, 0, sizeof(*a));
    a->size = sizeof(*a);
    a->out_type = MLA_DTYPE_BF16;
    a->mask = MLA_MASK_CAUSAL;
    a->q_scale = 1.0f;
    a->kv_scale = 1.0f;
    a->out_scale = 1.0f;
    a->ready_value = 1;
    a->done_value = 1;
}

struct mla_fault {
    uint32_t sequence;
    enum mla_status status;
    uint32_t index; /* smallest bad table entry, or query token */
};

struct mla_decode_result {
    size_t size;
    mla_request_id request; /* set by mla_decode() even when it returns PENDING */
    enum mla_status status; /* OK, PARTIAL and LATE: outputs are complete but for the sequences in faults */
    struct mla_error_info error;
    uint64_t n_faults; /* of the job; at most MLA_FAULTS_MAX of them, the first ones, are listed */
    uint32_t n_listed;
    struct mla_fault faults[MLA_FAULTS_MAX];
    uint64_t wait_us;  /* received until ready */
    uint64_t queue_us; /* ready until launched */
    uint64_t run_us;   /* launched until ended */
    uint64_t batch;    /* number of the launch it ran in */
    uint32_t batch_jobs;
    uint32_t tiles; /* of this job */
    uint32_t items;
    uint32_t splits; /* largest number of items that one tile was cut into */
};

static inline void mla_decode_result_init(struct mla_decode_result *r)
{
    memset(r, 0, sizeof(*r));
    r->size = sizeof(*r);
}

/* The answer of a request; result is valid inside the callback only. */
typedef void (*mla_decode_fn)(struct mla_client *client, const struct mla_decode_result *result, void *user);

/* Sends and waits; returns the job's status. PENDING: in flight; go on with mla_wait(result->request). result may be
 * NULL, then a request left pending is one whose answer nobody wants. */
MLA_API enum mla_status mla_decode(struct mla_client *client, const struct mla_decode_args *args, uint64_t timeout_us,
                                   struct mla_decode_result *result);

/* Sends and returns; never waits. OK: *request (may be NULL) is in flight and will be answered exactly once: by
 * callback inside mla_dispatch(), or, callback NULL, when mla_wait() asks. Anything else: it was not sent. */
MLA_API enum mla_status mla_decode_submit(struct mla_client *client, const struct mla_decode_args *args,
                                          mla_decode_fn callback, void *user, mla_request_id *request);

/* Waits for one request; returns the job's status, its result in *result (may be NULL). If it was submitted with a
 * callback, this call takes the answer in its stead. PENDING: still in flight, callback and all. NOT_FOUND: not in
 * flight, or answered already. Runs no callback; answers of others are kept for mla_dispatch(). */
MLA_API enum mla_status mla_wait(struct mla_client *client, mla_request_id request, uint64_t timeout_us,
                                 struct mla_decode_result *result);

/* Asks the daemon not to launch it; never waits. The request is answered on its own in any case: CANCELLED, or as if
 * nothing had been asked. NOT_FOUND: not in flight. */
MLA_API enum mla_status mla_cancel(struct mla_client *client, mla_request_id request);

/* Requests submitted and not yet handed to the caller. */
MLA_API size_t mla_in_flight(const struct mla_client *client);

/* ---- captured steps ---- */

/* A decode step whose layers are known beforehand: one message and one answer per step, however many layers it has.
 * The worker's stream (a captured graph, replayed step after step) does, for every layer in order: write the layer's
 * ready word, wait for its done word (mla_cuda_write_ready, mla_cuda_wait_done; the values are the same in every
 * replay, 1 by default). The daemon takes both words of a layer back to value - 1 itself: the ready word when it has
 * seen it, the done word when the next layer's ready word has come. The graph resets nothing.
 *
 * The graph and the STEP may come in either order; a layer that is ready first waits for the message. One step of a
 * template may be in flight (BUSY): for replays that overlap, open several templates, each with words of its own.
 *
 * A step ends OK, PARTIAL or LATE when all layers have run. With any other status it has ended early and the template
 * is broken: all its done words have their abort values, so the stream goes through, replays that are queued behind it
 * as well, what they compute is not to be used, and later steps are NOT_FOUND. Wait for the stream, close the template
 * and open it anew. The end of the connection breaks all open templates, whether a step is in flight or not; at once
 * where there is a watcher (mla_watch_start()). */
struct mla_template;

/* layers: n_layers (1..512) of them, all prepared by mla_decode_args_init(). Every layer names ready and done, words of
 * this client's sync pages that no other layer and no job uses; all have tables, heads, mask, out_type,
 * batch_invariant, priority, table_entries_per_seq in common. visible must be NULL (visible_at is fine); deadline_us of
 * the layers means nothing. What may change between steps: all that lies in regions (data, kv_len, table, visible_at),
 * and the table set. Takes all words back to value - 1: no stream may be using them. Regions, caches and table sets are
 * looked up anew at every step: one that has gone makes it NOT_FOUND (CACHE_GONE, SUSPENDED). */
MLA_API enum mla_status mla_template_open(struct mla_client *client, const struct mla_decode_args *layers,
                                          size_t n_layers, uint64_t timeout_us, struct mla_template **out);

/* BUSY while a step is in flight. PENDING: it goes on, call again. Also for a broken one, and one whose client is
 * closed or disconnected: then it is only freed. NULL is OK. */
MLA_API enum mla_status mla_template_close(struct mla_template *tmpl, uint64_t timeout_us);

struct mla_step_args {
    size_t size;
    mla_tables_id tables; /* with has_tables: instead of the template's, for this step; of as many sequences at most as
                             the views, locations and status words of the layers have room for */
    bool has_tables;
    uint64_t deadline_us; /* from arrival until the last layer is launched; 0: the daemon's default */
};

static inline void mla_step_args_init(struct mla_step_args *a)
{
    memset(a, 0, sizeof(*a));
    a->size = sizeof(*a);
}

struct mla_step_fault {
    uint32_t layer;
    uint32_t sequence;
    enum mla_status status;
    uint32_t index; /* smallest bad table entry, or query token */
};

struct mla_step_result {
    size_t size;
    mla_request_id request;
    enum mla_status status; /* OK, PARTIAL and LATE: all layers are complete but for the sequences in faults */
    struct mla_error_info error;
    uint32_t layers_done;   /* have run */
    uint32_t layers_shared; /* of them, in a launch with layers of other workers */
    uint64_t n_faults;      /* of the step; the first ones are listed, in order of layer and sequence */
    uint32_t n_listed;
    struct mla_step_fault faults[MLA_FAULTS_MAX];
    uint64_t wait_us;  /* received until the first layer was ready */
    uint64_t queue_us; /* ready until launched, summed over layers */
    uint64_t run_us;   /* launched until ended, summed over layers */
};

static inline void mla_step_result_init(struct mla_step_result *r)
{
    memset(r, 0, sizeof(*r));
    r->size = sizeof(*r);
}

typedef void (*mla_step_fn)(struct mla_client *client, const struct mla_step_result *result, void *user);

/* As mla_decode(), mla_decode_submit() and mla_wait(), for steps; mla_cancel() takes a step's request, too. args may be
 * NULL. A step that could not be sent, for any reason but BUSY and INVALID_ARGUMENT, breaks the template as one that
 * failed. */
MLA_API enum mla_status mla_step(struct mla_template *tmpl, const struct mla_step_args *args, uint64_t timeout_us,
                                 struct mla_step_result *result);
MLA_API enum mla_status mla_step_submit(struct mla_template *tmpl, const struct mla_step_args *args,
                                        mla_step_fn callback, void *user, mla_request_id *request);
MLA_API enum mla_status mla_step_wait(struct mla_client *client, mla_request_id request, uint64_t timeout_us,
                                      struct mla_step_result *result);

/* ---- event loop ---- */

/* Readable (POLLIN) whenever mla_dispatch() has something to do, and for ever once the connection has ended; the same
 * descriptor until mla_close(). Only to be polled. */
MLA_API int mla_fd(const struct mla_client *client);

/* Sends what is queued, reads what has come, runs callbacks of answered requests and of events. Waits up to timeout_us
 * for the first of them. OK: at least one ran. PENDING: none did. DISCONNECTED: the connection has ended and there is
 * nothing left to run. BUSY inside a callback. */
MLA_API enum mla_status mla_dispatch(struct mla_client *client, uint64_t timeout_us);

/* ---- reading the daemon's state ---- */

/* Each call below makes one object, to be freed with mla_free(); *out is NULL unless OK. Strings are never NULL. */
MLA_API void mla_free(void *object);

struct mla_health_info {
    enum mla_health state;
    const char *reason;
    uint64_t uptime_us;
    const char *version;
    const char *backend;
    const char *gpu_uuid;
    const char *isolation;
};
MLA_API enum mla_status mla_read_health(struct mla_client *client, uint64_t timeout_us, struct mla_health_info **out);

struct mla_metric_sample {
    const char *suffix; /* "", "_bucket", "_sum", "_count" */
    const char *labels; /* rendered: outcome="ok" */
    double value;
};
struct mla_metric_family {
    const char *name;
    const char *help;
    enum mla_metric_type type;
    const struct mla_metric_sample *samples;
    size_t n_samples;
};
struct mla_metrics_info {
    const struct mla_metric_family *const *families;
    size_t n_families;
};
MLA_API enum mla_status mla_read_metrics(struct mla_client *client, uint64_t timeout_us, struct mla_metrics_info **out);

struct mla_daemon_info {
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
    uint32_t units; /* device facts used for planning */
    uint32_t rows_per_unit;
    uint64_t workspace_bytes;
    uint64_t device_memory_bytes; /* that the daemon holds of the GPU while idle, workspace included; 0 on the CPU */
};
MLA_API enum mla_status mla_read_daemon(struct mla_client *client, uint64_t timeout_us, struct mla_daemon_info **out);

struct mla_client_info {
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
    uint32_t weight; /* its share of the device beside those of others ([weights] of the daemon's configuration) */
};
struct mla_client_list {
    const struct mla_client_info *const *clients;
    size_t n_clients;
};
MLA_API enum mla_status mla_read_clients(struct mla_client *client, uint64_t timeout_us, struct mla_client_list **out);

struct mla_cache_entry {
    const char *name; /* "": not published */
    uint32_t owner_uid;
    uint64_t owner; /* client_id */
    uint64_t num_pages;
    uint32_t planes;
    uint32_t tokens_per_entry;
    uint64_t attachments;
    const char *label;
};
struct mla_cache_list {
    const struct mla_cache_entry *const *caches;
    size_t n_caches;
};
MLA_API enum mla_status mla_read_caches(struct mla_client *client, uint64_t timeout_us, struct mla_cache_list **out);

/* ---- administration ---- */

/* Ends the daemon: no new work; it exits when all is answered or after deadline_us (NULL: as configured).
 * *jobs_in_flight (may be NULL): what was in flight then. */
MLA_API enum mla_status mla_drain(struct mla_client *client, const uint64_t *deadline_us, uint64_t timeout_us,
                                  uint64_t *jobs_in_flight);

/* Ends a connection, by the client_id of mla_read_clients(); its memory is released as after any other end. The library
 * over there does not connect again by itself; nothing keeps the program from it. NOT_FOUND: it has gone already. */
MLA_API enum mla_status mla_evict(struct mla_client *client, uint64_t client_id, uint64_t timeout_us);

/* The daemon reads its configuration again. INVALID_ARGUMENT: it cannot be read, and the old one stays in force; the
 * message says why. */
MLA_API enum mla_status mla_reload(struct mla_client *client, uint64_t timeout_us);

#ifdef __cplusplus
}
#endif

#endif
