/* A shape on a variant of the kernels: plan, launches, graphs. */
#ifndef MLA_TESTS_BENCH_GPU_WORK_H
#define MLA_TESTS_BENCH_GPU_WORK_H

#include "kernels/baseline/h128.h"
#include "kernels/host/mla_kernels.h"
#include "tests/bench/gpu/pool.h"
#include "tests/bench/gpu/tap.h"

#define VARIANTS_MAX 12

struct variant {
    char name[64];
    struct mla_kernels *kernels; /* NULL: the manifest has no such section, or it does not fit the GPU */
    const struct mla_kernels_facts *facts;
    struct h128 *h128; /* the adapter around them, for the variant of that name alone */
    char why[256];     /* when kernels is NULL */
};

/* Opens a section of the manifest, with the one for few rows beside it, by name ("": the first that fits), through the
 * tap; "h128" is the adapter around the section native. */
void variant_open(struct variant *variant, const struct cuda_driver *tapped, const char *name, const char *native);
void variant_close(struct variant *variant);

struct work_options {
    enum plan_policy policy; /* 0: PLAN_AUTO */
    uint32_t splits;         /* 0: the policy's */
    uint32_t tile_rows;      /* 0: the variant's */
    bool own_kernels;        /* the variant's own, though others may be faster for few rows */
    uint32_t out_type;       /* 0: MLA_ABI_OUT_E4M3 */
    uint32_t launches;       /* of a graph; 1 or more */
};

struct work {
    const struct variant *variant;
    struct mla_kernels *kernels; /* of it: mla_kernels_for() */
    const struct pool *pool;
    const struct shape *shape;
    struct plan plan;                    /* h128: of the padded job, whose memory it is */
    struct mla_kernels_launch *launches; /* each on its part of the pool's table, in turn */
    struct h128_job **padded;            /* h128: in the place of launches */
    uint32_t n_launches;                 /* of a graph: may be lowered */
    uint32_t n_made;
    CUdeviceptr blobs; /* plans and records, in device memory */
};

/* 0; -ENOSPC or -EINVAL when there is no such plan in the pool's workspace. */
int work_open(struct work *work, const struct variant *variant, const struct pool *pool, const struct shape *shape,
              const struct work_options *options);
void work_close(struct work *work);

/* The section that is launched: the variant's, or its few_rows. */
const char *work_section(const struct work *work);

/* Puts one of the launches on the pool's stream. */
void work_launch(const struct work *work, uint32_t i);

/* Launches of a graph that rotates over so many copies of a shape's pages: over all, as often as makes 20 launches.
 * Fewer copies than all might stay in L2 from one graph to the next, and of few launches the pause between graphs
 * shows. */
uint32_t work_rotation(uint32_t copies);

/* A graph of the parts (bits of enum tap_part) of all launches; NULL when that is no kernel. The caller's to destroy,
 * by work_drop(). */
CUgraphExec work_capture(struct work *work, unsigned parts);
void work_drop(const struct work *work, CUgraphExec graph);

/* Launches the first one and waits: microseconds by events. Ends the program when a sequence faults, or when the last
 * rows of the output are zero or NaN. */
double work_try(struct work *work);

/* Launches the first one, waits, and checks the status words. */
void work_once(const struct work *work);

/* Ends the program when a status word is not 0. */
void work_check_status(const struct work *work);

/* The same when the last rows of e4m3 output, which was 0 before, are zero or NaN. */
void work_check_output(const struct work *work);

/* The job on a part of the pool's table: pool_copies(). out_type: MLA_ABI_OUT_... */
struct mla_abi_job work_job(const struct work *work, uint32_t out_type, uint32_t copy);

#endif
