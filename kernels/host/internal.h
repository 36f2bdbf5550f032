/* The handle behind mla_kernels.h. */
#ifndef MLA_KERNELS_HOST_INTERNAL_H
#define MLA_KERNELS_HOST_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "kernels/host/manifest.h"
#include "kernels/host/mla_kernels.h"

/* Tensor maps of planes, so that launches do not encode them anew. An entry holds for its key for ever: a map is
 * addresses and strides. */
#define MAP_CACHE_ENTRIES 64u
#define MAP_BYTES         128u
struct map_cache {
    pthread_mutex_t lock;
    struct map_entry {
        uint64_t kv; /* 0: free */
        uint64_t page_stride;
        uint32_t row_stride;
        uint32_t num_pages;
        unsigned char maps[2 * MAP_BYTES]; /* boxes of 64 keys x 128 bytes; of 32 keys x 64 bytes */
    } entries[MAP_CACHE_ENTRIES];
};

struct mla_kernels {
    const struct cuda_driver *driver;
    struct kernels_section section;
    struct mla_kernels_facts facts;
    struct map_cache maps;
    CUmodule prepare_module;
    CUmodule decode_module;
    CUmodule reduce_module;
    CUfunction prepare;
    CUfunction prepare_inline; /* which has the blob in its parameter */
    CUfunction prepare_fetch;  /* which brings it from where the host wrote it */
    CUfunction decode;
    CUfunction reduce;
    uint32_t reduce_ctas;         /* of the reducer that run at the same time */
    bool programmatic;            /* mla_kernels_options */
    struct mla_kernels *few_rows; /* owned; NULL: none */
};

/* The directory with a manifest: options', $MLA_KERNELS_DIR, "kernels" beside the program or in one of the two folders
 * above it (a build tree, a folder that was copied), the installed one. The first two are taken as they are. 0; -ENOENT
 * with all places that were tried in why. */
int kernels_find_directory(const struct mla_kernels_options *options, char *directory, size_t directory_bytes,
                           char *why, size_t why_bytes);

/* tensor_maps.c: the two maps of a job's plane to to. absent: an address for a plane that has none. 0 or -EINVAL. */
int kernels_tensor_maps(struct mla_kernels *kernels, const struct mla_abi_job *job, uint64_t absent, void *to);

/* choose.c: which of n kinds of kernels, each with fewer rows to a unit than the one before it, a request is for, as
 * mla_kernels_for() says. */
size_t kernels_choose(const struct mla_kernels_facts *const *kinds, size_t n, const struct plan_request *request);

/* units.c: what kernels with a prepare kernel need beside abi.h. */
static inline bool kernels_have_units(const struct mla_kernels *kernels)
{
    return kernels->section.prepare_threads != 0;
}

/* Units that more[] of a launch tells of. */
uint32_t kernels_units_of_launch(const struct mla_kernels_launch *launch);

/* Clusters of a launch of so many units: as many as run at the same time. */
uint32_t kernels_clusters_of_units(const struct mla_kernels *kernels, uint64_t units);

/* Units of so many rows of an item; of all items. */
uint32_t kernels_units_of_rows(const struct mla_kernels *kernels, uint32_t rows);
uint64_t kernels_units_of_plan(const struct mla_kernels *kernels, const struct plan *plan);

/* At most, of so many items of the request's tiles. */
uint64_t kernels_units_max(const struct mla_kernels *kernels, const struct plan_request *request, uint32_t items);

/* A bound for a request, or the sum of the same bound for each of its jobs alone, whichever is less: alone, each is
 * given the cuts and the widest rows that a launch has once for all. UINT64_MAX where the request has no bound. */
uint64_t kernels_least_bound(const struct mla_kernels *kernels, const struct plan_request *request,
                             uint64_t (*bound)(const struct mla_kernels *, const struct plan_request *));

/* Bytes of the sections in a blob; 0 without a prepare kernel. */
size_t kernels_more_bytes(const struct mla_kernels *kernels, uint64_t units, uint32_t n_reduces, uint32_t n_jobs,
                          uint32_t n_seqs);

/* mla_kernels_more_write() */
int kernels_more_write(struct mla_kernels *k, const struct plan *plan, const struct mla_abi_job *jobs, uint32_t n_jobs,
                       const struct mla_abi_seq *seqs, uint32_t n_seqs, void *more, uint64_t address,
                       uint64_t workspace, bool again, struct mla_kernels_launch *launch);

/* A whole file and a zero byte behind it, the caller's to free. NULL with errno. */
char *kernels_read_file(const char *path, size_t *bytes);

#endif
