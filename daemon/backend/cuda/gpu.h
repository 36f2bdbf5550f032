/* Inside of the CUDA backend.
 *
 * One thread, the GPU thread, makes every call to the driver: it opens the library, owns the primary context, takes
 * requests in order and polls for what has come: completions, words, requests. The loop's functions touch the rings and
 * the two arenas only, so that nothing the driver does can hold up the loop.
 *
 * Requests that end later stand in slots, first in first out: launches and aborts with status words, which end when
 * the stream has written the slot's completion word; unmaps and plain aborts, which are carried out when everything
 * before them has ended. Batches run on one stream, so that they run and end in order and share one workspace; records
 * of the next are copied beside it meanwhile. All device and pinned memory is taken at start.
 *
 * A sticky error (errors.c, confirmed by the stream) latches the backend as lost: BE_FATAL is reported once and the
 * driver is not called again, not even to free anything; the process is expected to end.
 */
#ifndef MLA_DAEMON_BACKEND_CUDA_GPU_H
#define MLA_DAEMON_BACKEND_CUDA_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <uthash.h>

#include "daemon/backend/backend.h"
#include "daemon/backend/cuda/device_arena.h"
#include "daemon/backend/cuda/host_arena.h"
#include "daemon/backend/port.h"
#include "daemon/backend/steps.h"
#include "daemon/backend/watch.h"
#include "daemon/util/list.h"
#include "kernels/host/cuda_driver.h"
#include "kernels/host/mla_kernels.h"

#define CU_SLOTS           8u           /* requests that have begun and not ended */
#define CU_BLOB_BYTES      (256u << 10) /* of a slot; larger plans go to the workspace, through pageable memory */
#define CU_SCRATCH_BYTES   (24u << 20)  /* of the workspace, beside be_config's; more leaves less for partials */
#define CU_MIRROR_BYTES    ((size_t)CU_CHUNKS * CU_CHUNK_BYTES) /* for be_device_alloc() */
#define CU_WORKSPACE_ALIGN 256u
#define CU_STATUS_WORDS    512u        /* of a slot, all alike: what an abort writes, in pieces of this size */
#define CU_HOST_BYTES      (64u << 20) /* be_config.host_bytes 0 */
#define CU_PAUSE_MIN_NS    UINT64_C(20000)
#define CU_STEP_SPIN_NS    UINT64_C(500000)  /* polled so long without a pause while a step is in flight, or spin_us */
#define CU_QUERY_NS        UINT64_C(1000000) /* between two questions to the driver whether all is well, while busy */
#define CU_TIMED_EVERY     16u               /* launches, of which two are timed by the device: events cost time */
#define CU_GRAPHS_AFTER    64u               /* launches of the same records: graph.c */

/* An allocation of another process, opened once however many regions lie in it. */
struct cu_ipc {
    CUipcMemHandle handle; /* the key */
    CUdeviceptr address;
    uint64_t bytes; /* from address to the end of the allocation */
    uint32_t uses;
    UT_hash_handle hh;
};

/* region->impl: what a mapped region holds. */
struct cu_mapping {
    struct list node; /* of struct backend's mappings */
    struct be_region *region;
    enum mla_region_kind kind;
    struct cu_ipc *ipc; /* CUDA_IPC */
    CUdeviceptr va;     /* CUDA_VMM: the reservation */
    size_t va_bytes;
    size_t mapped_bytes; /* of it, from its beginning */
    size_t *part_bytes;  /* what each of n_mapped calls mapped: undone by as many */
    size_t n_mapped;
    void *host; /* sync pages */
    size_t host_bytes;
    bool registered;
    CUdeviceptr device; /* of host */
};

/* Records to where kernels read them; bytes 0: none. */
struct cu_copy {
    CUdeviceptr to;
    const void *from;
    CUdeviceptr from_device; /* the same for the device, where that is pinned */
    size_t bytes;
    bool with_launch; /* the first kernel brings them along */
};

/* graph.c: what launches of the same records have become. */
struct cu_graph {
    CUgraphExec exec; /* NULL: not yet */
    const struct mla_kernels *kernels;
    struct mla_kernels_launch launch;
    struct cu_copy copy;
    unsigned which; /* MLA_KERNELS_* */
    uint32_t uses;
};

struct cu_slot {
    struct be_request *request;
    bool on_stream;  /* ends with its completion word; otherwise when it is the oldest */
    bool timed;      /* by started and ended; others are by the host's clock */
    bool follows;    /* directly behind one that is timed, too */
    bool host_words; /* done words are stored by the GPU thread when the batch has ended */
    uint64_t value;  /* of the completion word */
    CUevent started;
    CUevent ended;
    CUevent copied; /* the blob, by the stream of copies */
    /* Parts of the block at struct backend's slot_memory. */
    uint64_t *word;
    CUdeviceptr word_device;
    uint64_t *status;
    unsigned char *blob;
    uint64_t plan_id;             /* be_batch's, of what blob holds */
    CUdeviceptr blob_device;      /* of the pinned one */
    CUdeviceptr blob_device_copy; /* in device memory */
    struct cu_graph graph;        /* of launches whose records lie here */
};

/* Records of a launch of steps, written, and copied or fetched, before its words come; beside struct be_steps'
 * batches[]. */
struct cu_ahead {
    struct mla_kernels_launch launch;
    size_t bytes; /* of the blob */
    bool copying; /* the copy has not been seen to have ended */
    bool fetched; /* there is none: a prepare kernel has brought what the others read, another one is to do so again */
    uint64_t until; /* completion word behind the prepare kernel that reads them; 0: none has been launched */
    CUevent read;   /* directly behind that kernel */
    CUevent copied; /* by the stream of copies */
    /* Parts of the blocks at slot_memory and slot_device. */
    unsigned char *blob;
    uint64_t plan_id;
    CUdeviceptr blob_device;
    CUdeviceptr blob_device_copy;
    struct cu_graph graph;
    struct cu_graph rest; /* of launches whose prepare kernel has run before */
};

enum cu_state { CU_STARTING, CU_RUNNING, CU_ENDED };

struct cu_options {
    char gpu[64];
    char kernels_dir[4096];
    char variant[64];
    uint64_t spin_ns;
    uint64_t host_bytes;
    uint64_t workspace_bytes;
    bool blob_pinned;
    bool blob_pageable;
    bool blob_inline;      /* with the launch, by kernels that can, when nothing runs */
    bool blob_always;      /* and when something does */
    bool programmatic;     /* kernels of a launch overlap where they can */
    uint32_t graphs_after; /* as many launches of the same records, the next are one; 0: none are. graph.c */
    bool own_costs;        /* not the kernels' */
    struct plan_costs costs;
};

struct backend {
    struct be_port port;
    struct be_facts facts;
    struct cu_options options;
    struct cu_arena arena; /* the loop's, once open, as the next two */
    int64_t arena_offset;  /* device address - host address */
    struct cu_device_arena device_arena;

    /* How thread and loop meet at start and end. */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    enum cu_state state; /* under lock, as the next two */
    bool abandoned;      /* nobody waits any more: the thread frees everything when it ends */
    struct mla_error start_error;

    /* The GPU thread's. */
    struct cuda_driver cu;
    CUdevice device;
    bool retained;
    CUcontext context;
    struct mla_kernels *kernels; /* and their few_rows */
    CUstream stream;
    CUstream copies;              /* of blobs, while another launch is on stream */
    CUstream mirrors;             /* for MIRROR */
    CUdeviceptr mirror_memory;    /* the device arena's */
    struct be_request *mirroring; /* the MIRROR under way; NULL: none */
    void *arena_memory;
    CUdeviceptr workspace;
    uint64_t workspace_bytes; /* of it: more than the option says, see CU_SCRATCH_BYTES */
    void *large;              /* a blob of more than CU_BLOB_BYTES while it is written; grows */
    size_t large_bytes;
    void *slot_memory;
    void *slot_pageable;     /* blobs of all slots, if they are copied from pageable memory */
    CUdeviceptr slot_device; /* blobs of all slots */
    bool word_writes;        /* cuStreamWriteValue64 is supported */
    bool lost;
    struct mla_error lost_error;
    struct cu_slot slots[CU_SLOTS];
    struct cu_ahead ahead[BE_STEPS_BATCHES];
    struct be_steps_batch *expected; /* written ahead last, whose prepare kernel may yet run ahead; NULL: none */
    const struct cu_ahead *prepared; /* whose prepare kernel is the last that stream has; NULL: none's */
    uint32_t first_slot;
    uint32_t n_slots;
    uint64_t last_value;  /* of completion words, put on the stream */
    uint64_t ended_value; /* and seen */
    uint64_t last_ended_ns;
    uint64_t last_query_ns;
    uint64_t n_launches; /* of jobs */
    uint64_t took_ns;    /* what launches took of late, and what was predicted for them */
    uint64_t predicted_ns;
    struct be_request *held; /* taken from the ring, waits for a slot */
    struct be_watches watches;
    struct be_steps steps;
    struct list mappings;
    struct cu_ipc *ipc;
};

/* Deadlines of be_open() and be_close() for the GPU thread; tests shorten them. */
extern uint64_t cu_open_deadline_ns;
extern uint64_t cu_close_deadline_ns;

/* errors.c */

/* Latches the loss of the device; only the first counts. what: the call. */
void cu_lose(struct backend *be, CUresult result, const char *what);
/* Of calls without which nothing goes on. */
bool cu_call_ok(struct backend *be, CUresult result, const char *call);

/* True for success; latches a sticky error. */
bool cu_ok(struct backend *be, CUresult result, const char *what);

/* err = "text (call: CUDA_ERROR_X: ...)"; latches a sticky error. Returns code; OUT_OF_MEMORY instead when the driver
 * says that and code is not INTERNAL; DEVICE_LOST when the device is. */
int cu_refuse(struct backend *be, struct mla_error *err, CUresult result, const char *what, enum mla_status code,
              const char *field, const char *text);

/* open.c, device.c: on the GPU thread. 0, or positive with *err; cu_stop() afterwards in any case. */
int cu_start(struct backend *be, struct mla_error *err);
void cu_stop(struct backend *be);
int cu_device_choose(struct backend *be, struct mla_error *err);
void cu_device_facts(struct backend *be);
int cu_device_attribute(struct backend *be, CUdevice_attribute attribute);

/* thread.c */
void *cu_main(void *backend);
void cu_step_ended(void *backend, struct be_request *step, enum mla_status code); /* be_steps.done */
void cu_free(struct backend *be); /* what both threads share; when the GPU thread has ended or never was */

/* pace.c: on the GPU thread. */
void cu_pace_ended(struct backend *be, const struct be_batch *batch);
/* From when until when the end of what runs is expected, and to be looked for without pauses; false: it is no launch.
 */
bool cu_pace_look(const struct backend *be, uint64_t *from_ns, uint64_t *until_ns);
/* When the stream is expected to have ended what it has; no later than now when it has nothing. */
uint64_t cu_pace_free_ns(const struct backend *be);

/* graph.c: on the GPU thread. */

/* Whether the copy and those of the kernels behind it are a graph by now; false: it is for the caller to put them on
 * the stream, if the device is not lost. graph: of the place of these records. */
bool cu_graph_ready(struct backend *be, struct cu_graph *graph, const struct mla_kernels *kernels,
                    const struct mla_kernels_launch *launch, const struct cu_copy *copy, unsigned which);
/* False: nothing of it is on the stream, and it is for the caller again, if the device is not lost. The first launch
 * takes memory of the device, which others may have taken. */
bool cu_graph_launch(struct backend *be, struct cu_graph *graph);
void cu_graph_close(struct backend *be, struct cu_graph *graph);

/* launch.c: on the GPU thread. */
int cu_slots_open(struct backend *be, struct mla_error *err);
void cu_slots_close(struct backend *be);
bool cu_slots_full(const struct backend *be);
void cu_begin(struct backend *be, struct be_request *request); /* LAUNCH, ABORT, UNMAP */
struct mla_kernels *cu_kernels_of(const struct backend *be, const struct plan *plan);
/* Records to a blob whose memory holds those of the plan *plan_id from before; they become those of the batch's. */
bool cu_blob_write(struct backend *be, const struct be_batch *batch, unsigned char *blob, CUdeviceptr address,
                   uint64_t *plan_id, struct mla_kernels_launch *launch);
bool cu_end_some(struct backend *be); /* whether any has ended */
void cu_query(struct backend *be);    /* asks the driver whether the context is well */

/* ahead.c: on the GPU thread. */

/* Places for BE_STEPS_BATCHES blobs each. */
CUresult cu_ahead_open(struct backend *be, unsigned char *pinned, CUdeviceptr pinned_device, CUdeviceptr device);
void cu_ahead_close(struct backend *be);
bool cu_ahead_write(struct backend *be); /* one launch that is expected; false: there is none */
void cu_ahead_look(struct backend *be);  /* which copies have ended, and what follows from that */
/* Of what has been fetched: so that the launch does so. */
struct cu_copy cu_ahead_copy(const struct cu_ahead *ahead);
/* Whether its copy has ended: then its memory may be written, and no launch need wait for it. */
bool cu_ahead_is_copied(struct backend *be, struct cu_ahead *ahead);
/* No kernel reads tables and records ahead any more, which their owner may free. */
void cu_ahead_settle(struct backend *be);

/* mirror.c: on the GPU thread. */
CUresult cu_mirror_open(struct backend *be, const char **call); /* *call: the one that the result is of */
void cu_mirror_close(struct backend *be);
void cu_mirror_begin(struct backend *be, struct be_request *request);
void cu_mirror_look(struct backend *be); /* whether it has ended */
bool cu_mirror_has(const struct backend *be, uint64_t address);

/* memory.c: on the GPU thread. 0, or positive with *err and nothing mapped. unmap: the first error, all is undone as
 * far as the driver lets. */
int cu_map(struct backend *be, struct be_region *region, struct mla_error *err);
int cu_unmap(struct backend *be, struct be_region *region, struct mla_error *err);
void cu_unmap_all(struct backend *be);

/* memory_ipc.c, memory_vmm.c, memory_sync.c: the same for one kind; region->address and ->host are set by them. */
int cu_ipc_map(struct backend *be, struct be_region *region, struct cu_mapping *mapping, struct mla_error *err);
int cu_ipc_unmap(struct backend *be, struct cu_mapping *mapping, struct mla_error *err);
int cu_vmm_map(struct backend *be, struct be_region *region, struct cu_mapping *mapping, struct mla_error *err);
int cu_vmm_unmap(struct backend *be, struct cu_mapping *mapping, struct mla_error *err);
int cu_sync_map(struct backend *be, struct be_region *region, struct cu_mapping *mapping, struct mla_error *err);
int cu_sync_unmap(struct backend *be, struct cu_mapping *mapping, struct mla_error *err);

/* Device address of a word in a mapped sync page; 0 for any other. */
CUdeviceptr cu_sync_address(const struct backend *be, const uint64_t *word);

#endif
