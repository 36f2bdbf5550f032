/* One launch on an idle GPU, by several ways: where its records and block tables lie, by which calls it is put on the
 * stream, how the host learns of its end. The ways of a shape differ in one thing each from what mlad does when nothing
 * runs (daemon/backend/cuda/launch.c).
 *
 * The pages that launches read rotate as those of mla-bench overhead do: turn by turn, whatever way a turn goes.
 */
#ifndef MLA_TESTS_BENCH_GPU_LAUNCH_WAYS_H
#define MLA_TESTS_BENCH_GPU_LAUNCH_WAYS_H

#include "tests/bench/gpu/work.h"

enum launch_records {
    LAUNCH_AS_MLAD, /* with the launch where they fit, else fetched, or copied for kernels that cannot: becomes one of
                       these when a way is opened */
    LAUNCH_INLINE,
    LAUNCH_COPIED,   /* by a call in front of the kernels; of a graph: in it */
    LAUNCH_FETCHED,  /* by the prepare kernel, from pinned memory */
    LAUNCH_IN_PLACE, /* read where they were written, in pinned memory */
    LAUNCH_THERE,    /* in device memory, from before */
    LAUNCH_NONE      /* no launch: the end alone */
};

struct launch_how {
    const char *name;
    enum launch_records records;
    bool tables_on_device; /* else pinned, as those of table sets are */
    bool status_on_device; /* status words; else pinned */
    bool graph;            /* of this launch, made beforehand */
    bool plain;            /* not programmatic: each kernel begins when the one in front has ended */
    bool event;            /* the end is an event that is queried; else a word that the stream writes */
};

#define LAUNCH_HOWS 14
extern const struct launch_how launch_hows[LAUNCH_HOWS];

/* What launches of a shape have in common. */
struct launch_bed {
    struct work *work; /* plan, pool, kernels that are not programmatic */
    struct mla_kernels *programmatic;
    uint32_t copies; /* of the pages, that turns rotate over */
    uint64_t turn;
    uint64_t value; /* of the words: of the turn */
    CUevent from, to, end;
    /* Pinned. */
    void *memory;
    uint64_t *word, *go, *status;
    CUdeviceptr word_device, go_device, status_device, tables;
};

struct launch_place {
    struct mla_abi_job job;
    struct mla_kernels_launch launch;
    unsigned char *blob; /* pinned */
    CUdeviceptr blob_at; /* for the device */
    CUdeviceptr at;      /* where kernels read it */
    CUgraphExec graph;
};

struct launch_way {
    const struct launch_how *how;
    enum launch_records records;
    struct mla_kernels *kernels;
    size_t blob_bytes;
    struct launch_place *places; /* one for each copy of the pages */
    void *pinned;
    CUdeviceptr device;
};

/* A turn. HELD: the stream waits until all is on it, so that no call of the host is in the time. TIMED: by events
 * around copy and kernels, which cost time themselves. */
#define LAUNCH_HELD  1u
#define LAUNCH_TIMED 2u

/* Microseconds. */
struct launch_times {
    double us;    /* from before the first call, or when held from the stream's release, until the end is seen */
    double write; /* the host: records, before that */
    double copy, prepare, decode, reduce; /* calls; those of a graph's launch count in launch alone */
    double launch;                        /* prepare, decode, reduce, and what libmla-kernels adds */
    double end;                           /* the call that tells the end */
    double wait;                          /* from there until it is seen */
    double gpu;                           /* between the events; NaN when not TIMED */
};

void launch_bed_open(struct launch_bed *bed, struct work *work, struct mla_kernels *programmatic, uint32_t copies);
void launch_bed_close(struct launch_bed *bed);

/* Makes a way ready, and takes a turn of it that must leave an output. */
void launch_way_open(struct launch_bed *bed, struct launch_way *way, const struct launch_how *how);
void launch_way_close(struct launch_bed *bed, struct launch_way *way);

/* Ends the program when a status word is not 0. */
void launch_check_status(const struct launch_bed *bed);

void launch_turn(struct launch_bed *bed, struct launch_way *way, unsigned flags, struct launch_times *times);

/* Microseconds of a launch among n that lie on the stream, not in a graph, before the first begins: kernels that are
 * not programmatic, records and tables in device memory. */
double launch_in_a_row(struct launch_bed *bed, uint32_t n);

#endif
