/* What runs the work: a small table of functions, one per backend (cpu here; cuda beside it).
 *
 * Threads. Every function is called on the loop's thread, returns at once and never waits for the device. A backend has
 * a device thread of its own which takes requests in the order of be_submit() and puts events into a ring; event_fd is
 * readable while events wait. Requests execute in order: an UNMAP after a LAUNCH runs after that launch has ended, an
 * UNWATCH ends its watch before anything submitted later runs. Nothing but LAUNCH and UNMAP waits for a launch, save an
 * ABORT of words that the launch writes too. A STEP begins in order and then lives beside the others: nothing waits for
 * it, and no UNMAP of what it uses is submitted until it has ended. A MIRROR begins in order as well, and nothing waits
 * for it.
 *
 * Ownership. A be_request and all it points to belong to the backend from be_submit() until its completion event
 * (BE_DONE for all kinds but LAUNCH, BE_BATCH_DONE for that); WATCH has none and is ended by the UNWATCH that names it,
 * or by its BE_READY.
 */
#ifndef MLA_DAEMON_BACKEND_H
#define MLA_DAEMON_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/util/list.h"
#include "kernels/plan/plan.h"
#include "proto/enums.h"
#include "proto/error.h"

struct backend;

/* Facts that do not change while a backend is open. */
struct be_facts {
    const char *name;  /* "cpu", "cuda" */
    char gpu_uuid[64]; /* "CPU-<32 hex>" for the CPU backend, stable per machine */
    char device_name[96];
    const char *isolation;     /* "host", "shared", "isolated" */
    uint64_t features;         /* bits of enum mla_feature that the backend makes possible */
    struct plan_device device; /* these two: of the kernels that take most launches, see fit */
    struct plan_costs costs;
    uint32_t tile_rows;
    uint64_t workspace_bytes;     /* for partials of a batch that takes no more than scratch_bytes beside them */
    uint64_t scratch_bytes;       /* of the workspace beyond workspace_bytes; 0 where launches need none */
    uint64_t device_memory_bytes; /* that the backend holds for itself while idle; 0 on the CPU */
};

struct be_config {
    uint32_t threads;               /* cpu: 0 = one per online CPU */
    const char *gpu;                /* cuda: "0" (index), or a UUID "GPU-..."; NULL: 0 */
    const char *kernels_dir;        /* cuda: directory of kernels.ini; NULL: mla_kernels_options.directory's own rule */
    const char *variant;            /* cuda: section of it; NULL: the first that fits */
    uint32_t spin_us;               /* cuda: how long the device thread polls after the last work before it sleeps */
    uint64_t host_bytes;            /* cuda: pinned host memory for be_host_alloc(), taken at open */
    uint64_t workspace_bytes;       /* partials of one batch; taken at open */
    const struct plan_costs *costs; /* instead of the backend's own; read at open; NULL: none */
};

/* One allocation of a CUDA_VMM region: [offset, offset + size) of what the descriptor exports. */
struct be_part {
    int fd;
    uint64_t offset;
    uint64_t size;
    uint64_t allocation_size; /* which can only be mapped as a whole; 0: offset + size, rounded up */
};

/* Registered memory. The caller fills the first part; the backend the second, when mapped. */
struct be_region {
    enum mla_region_kind kind;
    enum mla_access access;
    bool sync;       /* a page of words, mapped read-write for both sides */
    uint64_t offset; /* into the file or block */
    uint64_t size;
    int fd;                    /* MEMFD: the caller's, which may close it after BE_DONE */
    const uint8_t *ipc_handle; /* CUDA_IPC: 64 bytes; stands for a whole block of block_size bytes */
    uint64_t block_size;
    const struct be_part *parts; /* CUDA_VMM: in order, together size bytes; descriptors as fd above */
    size_t n_parts;

    uint64_t address; /* of the region's first byte, in the address space of items (abi.h) */
    void *host;       /* sync pages, and all of the CPU backend: the mapping in this process */
    void *impl;
};

/* Sets *word to value once the batch's outputs are visible. */
struct be_done_word {
    uint64_t *word; /* host mapping of a sync page */
    uint64_t value;
};

/* What a client has had of the device: its owner's memory, zero at first, which outlives what names it; written by the
 * device thread alone (fair.h). */
struct be_flow {
    uint64_t end;
};

/* One launch. Memory that items read (jobs, seqs, tables, plan arrays, status) comes from be_host_alloc(). */
struct be_batch {
    const struct plan *plan;
    uint64_t plan_id; /* not 0: plans with the same number are equal, for ever; below BE_STEPS_PLAN_ID, which the
                         backend's own begin with */
    const struct mla_abi_job *jobs;
    const struct mla_abi_seq *seqs;
    uint32_t n_jobs;
    uint32_t n_seqs;
    const struct be_done_word *done; /* written in order after the reducer, before BE_BATCH_DONE */
    uint32_t n_done;
    uint32_t weight; /* of all whose jobs are in it or wait behind it, for turns with layers of steps; 0 counts as 1 */
    /* out, valid with BE_BATCH_DONE; clock_ns() */
    uint64_t started_ns;   /* on the device, or as close as the host can tell; not before the end of the one before */
    uint64_t ended_ns;     /* the same */
    uint64_t taken_ns;     /* the device thread began with it */
    uint64_t submitted_ns; /* the device had all of it */
    bool ahead;            /* its prepare kernel had run before */
    uint64_t gap_ns;       /* of a launch behind another: between the two, by the device's clock. The caller sets
                              BE_GAP_UNKNOWN, which stays where nothing was measured */
};

#define BE_GAP_UNKNOWN   UINT64_MAX
#define BE_STEPS_PLAN_ID (UINT64_C(1) << 63)

/* One layer of a step. The words are host mappings of sync pages. */
struct be_layer {
    uint64_t *ready;
    uint64_t *done;
    uint64_t ready_value;
    uint64_t done_value;
    struct mla_abi_job job; /* all but first_seq; status: words of this layer, zeroed */
};

/* What launches had, for metrics: members of struct plan, summed. */
struct be_step_work {
    uint64_t launches, run_ns, predicted_ns;
    uint64_t ahead; /* launches whose prepare kernel had run before their words came */
    uint64_t tiles, items, reduces, useful_rows, row_slots, item_units, unit_slots, waves, pages;
};

/* All layers of a decode step, run by the device thread alone: layer after layer it polls the ready word, takes it back
 * to its value - 1, and the done word of the layer before it as well, launches, and has the done word written. Layers
 * of several steps that are ready at the same time share a launch when their compat is equal. Done words of layers that
 * do not run are left as they are. Constant until BE_DONE, but for what is said to be the backend's. */
struct be_step {
    const struct be_layer *layers;
    uint32_t n_layers;
    const struct mla_abi_seq *seqs; /* of every layer: plan.n_seqs of them; job is filled in by the backend */
    struct plan_request plan;       /* of every layer: one job; workspace_bytes_max is the backend's */
    uint64_t shape;                 /* of steps with the same number, all of the above but the addresses is equal */
    uint64_t compat;
    uint32_t n_parts; /* launches that a layer is cut into: plan_parts(plan, part_max_ns); 0 counts as 1 */
    uint64_t part_max_ns;
    uint64_t part_load_ns;  /* predicted, of a part; sums of those that share a launch to at most: */
    uint64_t launch_max_ns; /* 0: no limit. A part above it runs alone */
    struct be_flow *flow;   /* of its client, for turns; NULL: it waits for none */
    uint32_t weight;        /* 0 counts as 1 */
    uint64_t deadline_ns;   /* 0: none. Until the last layer is launched */
    /* out, with BE_DONE: error.code OK, or LATE: all layers have run; else why no further one does: TIMED_OUT,
     * READY_ABORTED, the code of STEP_END, OUT_OF_MEMORY, TOO_LARGE, INTERNAL */
    uint32_t layers_done;
    uint32_t layers_shared;
    uint64_t first_ready_ns; /* 0: never */
    uint64_t queue_ns;       /* sums over layers: ready until launched, launched until ended */
    uint64_t run_ns;
    struct be_step_work work; /* a launch that steps shared is in that of one of them */
    struct {                  /* the device thread's */
        struct list node;
        struct be_request *request;
        uint32_t next;     /* the layer whose word is polled, or that waits for its launch */
        uint32_t part;     /* of it: launched next */
        uint32_t launched; /* parts under way: the end of one may be seen after the next has become ready */
        bool ready;
        uint64_t ready_ns;
        enum mla_status end_code; /* OK: goes on */
        uint64_t end_at_ns;       /* of STEP_END; 0: none */
        enum mla_status end_at_code;
    } own;
};

/* What is out of a step that has not begun. */
static inline void be_step_clear(struct be_step *step)
{
    step->layers_done = step->layers_shared = 0;
    step->first_ready_ns = step->queue_ns = step->run_ns = 0;
    step->work = (struct be_step_work){0};
}

enum be_op { BE_MAP = 1, BE_UNMAP, BE_WATCH, BE_UNWATCH, BE_ABORT, BE_LAUNCH, BE_STEP, BE_STEP_END, BE_MIRROR };

struct be_request {
    enum be_op op;
    void *user; /* untouched; comes back with the event */
    union {
        struct be_region *region; /* MAP, UNMAP */
        struct {                  /* WATCH: BE_READY when *word - value >= 0 as int64; poll from the CPU */
            const uint64_t *word;
            uint64_t value;
        } watch;
        struct be_request *unwatch; /* UNWATCH: the WATCH to end; its BE_READY may be in the ring already */
        struct {                    /* ABORT: status words first, then the done word */
            uint64_t *word;
            uint64_t value;
            uint64_t user_status; /* address of n_seqs words, or 0 */
            uint32_t n_seqs;
            enum mla_status code;
        } abort;
        struct be_batch *batch; /* LAUNCH */
        struct be_step *step;   /* STEP */
        struct {                /* STEP_END: no layer is launched from at_ns on; the step may have ended */
            struct be_request *step;
            enum mla_status code;
            uint64_t at_ns; /* 0: at once */
        } step_end;
        struct { /* MIRROR: a copy that launches submitted after its BE_DONE may read. BUSY while another is
                    under way; an error has written nothing that is written later */
            const void *from; /* in memory of be_host_alloc() */
            uint64_t to;      /* in memory of be_device_alloc() */
            size_t bytes;
        } mirror;
    };
};

enum be_event_kind {
    BE_DONE = 1,   /* request ended; error.code says how (MLA_OK: fine) */
    BE_READY,      /* a WATCH's word came; aborted when it is an abort value */
    BE_SUBMITTED,  /* a LAUNCH is on the device now */
    BE_BATCH_DONE, /* a LAUNCH has ended: nothing of it is read or written any more */
    BE_FATAL       /* the device is lost: no event follows; every request is the caller's again */
};

struct be_event {
    enum be_event_kind kind;
    struct be_request *request; /* NULL for BE_FATAL */
    bool aborted;               /* BE_READY */
    struct mla_error error;     /* BE_DONE, BE_FATAL */
};

struct be_ops {
    const char *name;
    /* 0, or positive with *err filled (also the log's text when the daemon refuses to start). */
    int (*open)(const struct be_config *config, struct backend **out, struct mla_error *err);
    /* Ends the device thread. Nothing may be in flight but WATCHes, which end silently. */
    void (*close)(struct backend *be);
    const struct be_facts *(*facts)(const struct backend *be);
    int (*event_fd)(const struct backend *be);
    /* Takes up to cap events; returns how many. Clears the descriptor when none is left. */
    size_t (*poll)(struct backend *be, struct be_event *out, size_t cap);
    void (*spin)(struct backend *be, bool spins);
    /* 0, or -EAGAIN while the request ring is full (it then was not taken). */
    int (*submit)(struct backend *be, struct be_request *request);
    /* Memory that the loop writes and items read; *address is what abi records name. NULL when there is none. 64-byte
     * aligned, zeroed. */
    void *(*host_alloc)(struct backend *be, size_t bytes, uint64_t *address);
    void (*host_free)(struct backend *be, void *memory);
    /* Memory that MIRROR writes and items read, by its address there: at least 64-byte aligned, with what was in it
     * before. 0 when there is none. NULL, both, for a backend whose items read memory of the host as quickly: it has no
     * MIRROR. */
    uint64_t (*device_alloc)(struct backend *be, size_t bytes);
    void (*device_free)(struct backend *be, uint64_t address, size_t bytes);
    /* Sets device and costs of a request whose heads, jobs and sequences are described to those of the kernels that its
     * launch will take; of a batch-invariant job they do not depend on the others, but those that alone get unlike ones
     * are not to be in one request. tile_rows and device.max_pages_per_item are the same for all kernels. Also from the
     * device thread. NULL for a backend with one kind of kernels: they are those of its facts. */
    void (*fit)(const struct backend *be, struct plan_request *request);
    /* Bytes of the workspace that a launch takes beside its partials, whatever kernels and plan are for the request:
     * the most. Of several jobs no more than the sum for each alone. UINT64_MAX for a request that plan_bound()
     * refuses. NULL for a backend that needs none. */
    uint64_t (*scratch_bytes)(const struct backend *be, const struct plan_request *request);
    /* Grows while the device thread is alive, also when idle (at least once a second). */
    uint64_t (*progress)(const struct backend *be);
};

/* Every backend of this build, NULL-terminated; not null/, which computes nothing and is found by name only. */
extern const struct be_ops *const be_all[];

/* By name; NULL when this build has none of that name. */
const struct be_ops *be_find(const char *name);

/* Checked wrappers: assert the contract above (op known, fields set, region not mapped twice), then call the table. */
struct be {
    const struct be_ops *ops;
    struct backend *impl;
};
int be_open(struct be *be, const struct be_ops *ops, const struct be_config *config, struct mla_error *err);
void be_close(struct be *be);
const struct be_facts *be_facts(const struct be *be);
int be_event_fd(const struct be *be);
size_t be_poll(struct be *be, struct be_event *out, size_t cap);
/* From true to false the caller polls again and again by itself, and events come without event_fd; with false it is
 * readable if any are left. */
void be_spin(struct be *be, bool spins);
int be_submit(struct be *be, struct be_request *request);
void *be_host_alloc(struct be *be, size_t bytes, uint64_t *address);
void be_host_free(struct be *be, void *memory);
uint64_t be_device_alloc(struct be *be, size_t bytes);              /* 0, too, where the backend has no MIRROR */
void be_device_free(struct be *be, uint64_t address, size_t bytes); /* of be_device_alloc(), not 0 */
void be_fit(const struct be *be, struct plan_request *request);
uint64_t be_scratch_bytes(const struct be *be, const struct plan_request *request);
uint64_t be_progress(const struct be *be);

/* How much of the workspace is left for partials of a plan of this request: its workspace_bytes_max. Everything a
 * launch takes has been taken at open, so a plan within this can be launched. 0, or -ENOSPC: no plan of it can be. */
int be_workspace_for(const struct be *be, const struct plan_request *request, uint64_t *partial_bytes);

#endif
