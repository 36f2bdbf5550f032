/* Inside the fake driver. One lock guards all state; streams execute without it. */
#ifndef MLA_TESTS_FAKE_CUDA_INTERNAL_H
#define MLA_TESTS_FAKE_CUDA_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi/abi.h"
#include "kernels/baseline/h128_args.h"
#include "kernels/sm90/launch.h"
#include "tests/support/fake_cuda/fake_cuda.h"

#define FAKE_API          __attribute__((visibility("default")))
#define FAKE_DEVICES_MAX  8
#define FAKE_GRANULE      (UINT64_C(2) << 20) /* of VMM allocations, and alignment of all device memory */
#define FAKE_PAGE         UINT64_C(4096)
#define FAKE_SMEM_OPT_IN  232448u /* dynamic shared memory that a kernel may ask for */
#define FAKE_SMEM_DEFAULT 49152u

/* What a call needs; bits. */
enum fake_needs {
    FAKE_NOTHING = 0,
    FAKE_INIT = 1,
    FAKE_CONTEXT = 3, /* cuInit and a current context that is not lost */
    FAKE_UNSAFE = 4   /* not while a capture in global mode, or one of this thread, is on */
};

/* First statement of every entry point: counts, injects faults, checks what it needs. */
#define FAKE_CALL(name, needs)                                                                                         \
    do {                                                                                                               \
        CUresult fake_result_ = fake_enter(MLA_FAKE_##name, (needs));                                                  \
        if (fake_result_ != CUDA_SUCCESS)                                                                              \
            return fake_result_;                                                                                       \
    } while (0)

struct fake_attribute {
    int number;
    int value;
};

struct fake_config {
    int devices;
    uint64_t memory_bytes;
    int sms;
    int major, minor;
    int driver;
    char name[96];
    unsigned char uuid[16];
    bool mps, ipc, vmm;
    struct fake_attribute attributes[16];
    int n_attributes;
    char report[256];
    char faults[256];
};

/* config.c: the configuration, read at the first call. Static storage. */
const struct fake_config *fake_config(void);
void fake_device_uuid(int device, unsigned char uuid[16]);

/* rules.c: takes one "selector=action" of the environment or the file. */
void fake_rule_add(const char *selector, const char *action);
void fake_rules_clear(void);
/* Splits text and gives each pair to take(). */
void fake_pairs(const char *text, void (*take)(const char *key, const char *value));
/* Applies the rules to a call or to what a stream executes; sleeps in it. */
CUresult fake_inject(enum mla_fake_call call);

/* state.c */
CUresult fake_enter(enum mla_fake_call call, unsigned needs);
void fake_lock(void);
void fake_unlock(void);
extern pthread_mutex_t fake_mutex;
extern pthread_cond_t fake_done; /* an operation has ended, or the context is lost */
CUresult fake_lost(void);        /* CUDA_SUCCESS while it is not */
void fake_lose(CUresult result); /* the first loss stays; without the lock */
bool fake_leaving(void);         /* the process or the library is ending */
_Noreturn void fake_abort(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
uint64_t fake_now_ns(void);
void fake_sleep_ns(uint64_t ns);
int fake_error_find(const char *name); /* -1: unknown */

/* report.c: counters of the live report. */
extern struct mla_fake_report *fake_report;
void fake_report_open(const char *directory);
#define FAKE_COUNT(name, by) __atomic_add_fetch(&fake_report->name, (uint64_t)(by), __ATOMIC_RELAXED)

/* context.c. A primary context per device; the object is static, so stale pointers stay comparable. */
struct CUctx_st {
    int device;
    unsigned retained;
    unsigned flags;
    uint64_t used_bytes; /* of the device's memory, by this process */
    CUstream default_stream;
};
CUcontext fake_current(void); /* of this thread; after FAKE_CONTEXT not NULL */
CUresult fake_context_check(void);
bool fake_device_ok(int device);

/* block.c: physical memory. A memfd of the data and one more page that says what it is. */
enum fake_block_kind { FAKE_LEGACY = 1, FAKE_VMM };
struct fake_block {
    enum fake_block_kind kind;
    int fd;
    int device;
    bool own;              /* made here: counts against the device's memory */
    uint64_t bytes;        /* as asked for */
    uint64_t mapped_bytes; /* rounded to pages */
    uint64_t serial;       /* tells two allocations apart, in any process */
    uint32_t handle_types; /* VMM */
    uint32_t references;   /* VMM: of the application's */
    uint32_t mappings;
    CUcontext owner;         /* VMM, own: whose device's memory it is */
    struct fake_block *next; /* VMM handles that are open */
};
/* 0 or -errno. */
int fake_block_create(enum fake_block_kind kind, uint64_t bytes, int device, uint32_t handle_types,
                      struct fake_block **out);
/* fd is the caller's in any case; -EINVAL when it is no block of that kind. */
int fake_block_adopt(int fd, enum fake_block_kind kind, struct fake_block **out);
void fake_block_free(struct fake_block *block);
/* Address space with an inaccessible page on either side, aligned to FAKE_GRANULE or more; NULL when there is none. */
void *fake_space_reserve(uint64_t bytes, uint64_t alignment);
void fake_space_release(void *base, uint64_t bytes);
/* Maps the block's first bytes (rounded up to pages) at an address of reserved space; access: PROT_*. */
int fake_block_map(const struct fake_block *block, void *base, uint64_t bytes, int access);
void fake_block_unmap(void *base, uint64_t bytes);

/* Takes memory of the context's device; false when there is not as much (memory.c). */
bool fake_memory_take(CUcontext context, uint64_t bytes);
/* vmm.c: by handle, with the lock held; and a new one, without it. */
struct fake_block *fake_handle_find(CUmemGenericAllocationHandle handle);
void fake_handle_keep(struct fake_block *block, CUmemGenericAllocationHandle *out);

/* range.c: memory that streams may use. */
enum fake_range_kind { FAKE_DEVICE = 1, FAKE_IPC, FAKE_MAPPING, FAKE_HOST, FAKE_REGISTERED };
struct fake_range {
    enum fake_range_kind kind;
    uint64_t base;
    uint64_t bytes;
    bool readable, writable;
    CUcontext context;
    uint64_t id;
    uint32_t opens; /* IPC */
    struct fake_block *block;
    struct fake_range *next;
};
/* All with the lock held. */
struct fake_range *fake_range_add(enum fake_range_kind kind, uint64_t base, uint64_t bytes, struct fake_block *block);
struct fake_range *fake_range_find(uint64_t address);
struct fake_range *fake_range_first(void);
void fake_range_remove(struct fake_range *range); /* frees the record only */
/* Whether [address, address + bytes) may be used so, over adjacent ranges too. */
bool fake_range_covers(uint64_t address, uint64_t bytes, bool write);
/* Aborts when an operation that has not ended names any of it. */
void fake_must_be_idle(const char *call, uint64_t address, uint64_t bytes);
void fake_ranges_free(CUcontext context); /* memory.c: at the context's end */

/* What an operation reads or writes. */
struct fake_use {
    uint64_t address;
    uint64_t bytes;
    bool write;
};

struct fake_op {
    enum mla_fake_call kind; /* MLA_FAKE_kernel ... MLA_FAKE_wait_event */
    union {
        struct {
            uint64_t dst, src;
            uint64_t bytes;
        } copy;
        struct {
            uint64_t dst;
            uint64_t bytes;
            unsigned char value;
        } set;
        struct {
            uint64_t address, value;
            unsigned flags;
        } word;
        struct {
            CUevent event;
            uint64_t generation;
        } event;
        struct {
            CUfunction function;
            union {
                struct mla_abi_launch launch;
                struct mla_sm90_launch units; /* FAKE_PREPARE, FAKE_DECODE_UNITS, FAKE_REDUCE_UNITS */
            };
            uint32_t clusters, cluster_ctas; /* of the grid, of a cluster */
            struct h128_args h128;           /* FAKE_H128_* */
            uint64_t number;                 /* FAKE_SPIN: nanoseconds; FAKE_READ: address */
        } kernel;
    };
    void *staged; /* copy: pageable source, taken at the call; kernel: the parameter of one that brings the blob */
    size_t staged_bytes;
    struct fake_use *uses;
    size_t n_uses;
    struct fake_op *next;
};

/* stream.c */
struct fake_scratch;
struct CUstream_st {
    uint64_t id;
    CUcontext context;
    unsigned flags;
    pthread_t thread;
    pthread_cond_t wake;
    struct fake_op *head, *tail; /* the head is being executed */
    uint64_t n_taken, n_ended;   /* operations, since it was made */
    unsigned waiters;            /* threads in fake_drain() */
    bool destroyed;              /* by its owner: ends when it is empty */
    bool ended;                  /* the thread has left */
    _Atomic bool cancelled;
    struct fake_scratch *scratch; /* the thread's */
    /* capture.c */
    CUgraph capture;
    bool capture_broken;
    CUstreamCaptureMode capture_mode;
    pthread_t capture_thread;
    struct CUstream_st *next;
};
/* With the lock held: the stream that a handle names (0: the context's default one); NULL for a stale handle. */
CUstream fake_stream_find(CUstream stream);
CUstream fake_stream_first(void);
/* Takes the op: queues it, or adds it to the capture. Without the lock. */
CUresult fake_enqueue(CUstream stream, struct fake_op *op);
/* With the lock held; the stream is not capturing. */
void fake_queue(CUstream stream, struct fake_op *op);
/* Waits until what is queued now has ended. With the lock held; CUDA_SUCCESS or the sticky error. */
CUresult fake_drain(CUstream stream);
/* As the legacy default stream does before a synchronous copy: every stream of the context that is not non-blocking. */
CUresult fake_drain_blocking(CUcontext context);
/* Without the lock: ends and joins the context's streams (NULL: all), dropping what is queued. */
void fake_streams_stop(CUcontext context);
bool fake_stream_stopping(CUstream stream); /* any thread, no lock */

/* op.c */
struct fake_op *fake_op_new(enum mla_fake_call kind);
struct fake_op *fake_op_clone(const struct fake_op *op); /* without uses; with the lock held */
void fake_op_free(struct fake_op *op);                   /* with the lock held */
void fake_op_use(struct fake_op *op, uint64_t address, uint64_t bytes, bool write);
void fake_op_uses(struct fake_op *op); /* fills uses as far as they can be known before it executes; without the lock */
CUresult fake_op_execute(CUstream stream, struct fake_op *op);

/* Executes on the stream's thread, without the lock. */
CUresult fake_execute_kernel(CUstream stream, struct fake_op *op); /* execute.c */
CUresult fake_execute_write(struct fake_op *op);                   /* words.c */
CUresult fake_execute_wait(CUstream stream, const struct fake_op *op);
CUresult fake_execute_wait_event(CUstream stream, const struct fake_op *op); /* event.c */
/* Fills op->uses from the launch's records, which must be in host memory unless it is about to execute. Without the
 * lock. */
void fake_kernel_uses(struct fake_op *op, bool executing); /* kernel_uses.c */
void fake_scratch_free(struct fake_scratch *scratch);
/* execute_bring.c: prepare kernels that bring the blob. The bytes of such a one's parameter, by its name; 0: none. */
size_t fake_bring_bytes(const struct CUfunc_st *function);
/* Takes the parameter of a launch: as many bytes as the kernel declares, whatever is used. */
void fake_bring_take(struct fake_op *op, const void *parameter);
/* Where the blob is read, beside the parameter. */
void fake_bring_uses(struct fake_op *found, const struct fake_op *op);
/* The blob to its place; false when that, or where it is read, is no memory of the device's. Without the lock. */
bool fake_bring_blob(const struct fake_op *op);
/* That a prepare kernel which brings nothing finds all its records: one that brought them left out what only it reads.
 */
void fake_bring_check(const struct fake_op *op);
#define FAKE_NOT_BROUGHT UINT64_C(0xfacefeedfacefeed)
/* Where a record can be read before that; otherwise where it lies. */
const void *fake_bring_record(const struct fake_op *op, uint64_t address);
/* execute_units.c: records that only the real kernels compute by. What a prepare kernel leaves in the workspace; that a
 * decode kernel finds what its own launch's has left, and the reducer what its jobs say: they abort otherwise. */
void fake_units_prepare(const struct mla_sm90_launch *launch);
void fake_units_check(const struct fake_op *op);
void fake_units_check_reduces(const struct mla_sm90_launch *launch);
struct mla_abi_item *fake_units_items(const struct mla_sm90_launch *launch); /* the caller's to free */
/* execute_h128.c: what the baseline's kernels do, and some of what they use. */
void fake_h128_uses(struct fake_op *found, const struct h128_args *args);
void fake_h128_pack(const struct h128_args *args);
void fake_h128_unpack(const struct h128_args *args);

/* event.c, with the lock held. */
struct CUevent_st {
    unsigned flags;
    unsigned references;
    uint64_t recorded, completed; /* generations */
    uint64_t ns;
    bool destroyed;
    CUcontext context;
    struct CUevent_st *next;
};
void fake_event_reference(CUevent event);
void fake_event_release(CUevent event);
void fake_event_complete(CUevent event, uint64_t generation);
void fake_events_free(CUcontext context);

/* capture.c: a graph is its operations in order. */
struct CUgraph_st {
    struct fake_op *head, *tail;
    CUcontext context;
    struct CUgraph_st *next;
};
struct CUgraphExec_st {
    struct fake_op *head;
    CUcontext context;
    struct CUgraphExec_st *next;
};
void fake_capture_add(CUstream stream, struct fake_op *op); /* with the lock held */
bool fake_capture_forbids(void);                            /* an unsafe call of this thread; with the lock held */
void fake_graphs_free(CUcontext context);

/* module.c */
/* FAKE_PREPARE: what goes before a decode kernel that shares out units; the two write the callers' status words.
 * FAKE_REDUCE_UNITS: what goes behind it. FAKE_EMPTY: computes nothing. */
enum fake_kernel {
    FAKE_DECODE = 1,
    FAKE_DECODE_UNITS,
    FAKE_PREPARE,
    FAKE_REDUCE,
    FAKE_REDUCE_UNITS,
    FAKE_H128_PACK,
    FAKE_H128_UNPACK,
    FAKE_SPIN,
    FAKE_READ,
    FAKE_EMPTY
};
static inline bool fake_is_h128(enum fake_kernel kernel)
{
    return kernel == FAKE_H128_PACK || kernel == FAKE_H128_UNPACK;
}
struct CUfunc_st {
    enum fake_kernel kernel;
    char name[128];
    _Atomic int dynamic_smem_max;
    _Atomic int non_portable_cluster;
    CUmodule module;
    struct CUfunc_st *next;
};
struct CUmod_st {
    char *text; /* a copy of what was loaded, for its names */
    size_t text_bytes;
    struct CUfunc_st *functions;
    CUcontext context;
    struct CUmod_st *next;
};
bool fake_function_ok(CUfunction function); /* with the lock held */
int fake_function_attribute(CUfunction function, CUfunction_attribute attribute);
void fake_modules_free(CUcontext context);

#endif
