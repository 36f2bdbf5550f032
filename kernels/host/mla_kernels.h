/* libmla-kernels: the decode kernels and their planner as a C library that launches on the caller's stream. mlad's CUDA
 * backend is one caller of it.
 *
 * Use: mla_kernels_open() in the context of the GPU; describe jobs and sequences in a plan_request
 * (kernels/plan/plan.h); take the kernels for it by mla_kernels_for(), its device, costs and tile_rows from their
 * mla_kernels_facts(), and make all further calls with them: plan_build(); write plan and records into a blob
 * (mla_kernels_blob_write) and copy it to device memory, once for a graph that is replayed, by cuMemcpyHtoDAsync in
 * front of a single launch; mla_kernels_launch(). A single launch of a small blob goes sooner, and in one call less, by
 * mla_kernels_launch_blob() without that copy. Pinned host memory that the device reads is possible, too, and slow:
 * every kernel then follows chains of records over the bus, which cost small batches 50 us and more. A launch allocates
 * nothing, waits for nothing and may be captured into a CUDA graph; a replay reads lengths, tables and data anew
 * wherever they are device-resident. example.c is a whole program, installed as examples/kernels.c.
 *
 * Results: 0, or -errno with a sentence where there is a why. Threads: a handle may be used from several threads when
 * the context is current there; launches of one workspace must be ordered by the caller.
 */
#ifndef MLA_KERNELS_HOST_H
#define MLA_KERNELS_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/abi/abi.h"
#include "kernels/host/cuda_driver.h"
#include "kernels/plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mla_kernels;

struct mla_kernels_options {
    size_t size;           /* of this struct */
    const char *directory; /* where kernels.ini lies; NULL: $MLA_KERNELS_DIR; when that is not set, "kernels" beside
                              the running program or in one of the two folders above it (a build tree), then the
                              installed one, the first that exists */
    const char *variant;   /* name of a manifest section; NULL: the first that fits the device */
    bool programmatic;     /* where kernels can: each of a launch's but the first may begin while the one before it ends
                              (programmatic stream serialization); what the caller puts on the stream is in order */
};

struct mla_kernels_facts {
    char variant[64];  /* section of the manifest: "generic-sm_90a" */
    char file[256];    /* that was loaded */
    char gpu_uuid[64]; /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    char device_name[96];
    int compute_capability;    /* 10 * major + minor */
    struct plan_device device; /* resident_units by the occupancy that the driver reports in this context */
    struct plan_costs costs;
    uint32_t tile_rows;
    bool scratch; /* launches need workspace beyond the plan's partials: mla_kernels_workspace_bytes() */
};

/* Loads the kernels for the current context's device. driver stays the caller's and outlives the handle.
 * -ENOENT: no manifest or file; -EINVAL: the manifest is malformed or of another MLA_ABI_VERSION; -ENOTSUP: no section
 * fits the device; -EIO: the driver refused a file; why names directory, file and section. */
int mla_kernels_open(const struct cuda_driver *driver, const struct mla_kernels_options *options,
                     struct mla_kernels **out, char *why, size_t why_bytes);

/* Unloads; no launch may be in flight. NULL is fine. */
void mla_kernels_close(struct mla_kernels *kernels);

const struct mla_kernels_facts *mla_kernels_facts(const struct mla_kernels *kernels);

/* Kinds of kernels that a handle may have: its own, and those for fewer rows. */
#define MLA_KERNELS_KINDS_MAX 8

/* Some sections of the manifest have a second one beside them (few_rows), whose units have fewer rows: faster where the
 * rows of a sequence would leave much of a unit empty. That may have one of its own, and so on. NULL where there is
 * none. The handle's, and closed with it. */
struct mla_kernels *mla_kernels_few_rows(struct mla_kernels *kernels);

/* The kernels to plan and launch a request with, of the handle's and its few_rows, one after the other: each that is
 * expected to read the pages of all units in less than 95 % of the time takes the place of what was best so far. By the
 * request's heads, jobs and sequences alone; its device and costs need not be filled in. With u units to
 * heads * q_len rows, as tiles of tile_rows have them, and pages p = ceil(kv_len / 64) of each sequence that time is
 * the sum of u * p, times page_ns, over resident_units.
 *
 * All round differently. A batch-invariant job is therefore weighed alone and whole: a request with such jobs gets the
 * kind that all of these would, whatever else is in it, or, where they would get different ones, the handle's own:
 * those have to be launched apart. */
struct mla_kernels *mla_kernels_for(struct mla_kernels *kernels, const struct plan_request *request);

/* Those whose facts a plan was made by (plan.rows_per_unit): of the handle, or of its few_rows. */
struct mla_kernels *mla_kernels_of_plan(struct mla_kernels *kernels, const struct plan *plan);

/* A launch as the loaded kernels take it, filled by mla_kernels_blob_write(). */
struct mla_kernels_launch {
    struct mla_abi_launch abi;
    uint64_t more[12]; /* of kernels with a prepare kernel; zero for others */
};

/* Device memory of a launch: the plan's partials, and what the kernels hand each other. */
uint64_t mla_kernels_workspace_bytes(const struct mla_kernels *kernels, const struct plan *plan, uint32_t n_jobs,
                                     const struct mla_abi_seq *seqs, uint32_t n_seqs);

/* The most of it that is not partials, whatever plan plan_build() makes of the request: a caller with W bytes of
 * workspace plans with workspace_bytes_max = W - this, and cannot launch the request when this is more than W.
 * UINT64_MAX for a request that plan_bound() refuses. */
uint64_t mla_kernels_scratch_bytes_max(const struct mla_kernels *kernels, const struct plan_request *request);

/* Bytes of a blob for this plan and that many records; sections are aligned to 64 bytes. */
size_t mla_kernels_blob_bytes(const struct mla_kernels *kernels, const struct plan *plan, uint32_t n_jobs,
                              uint32_t n_seqs);

/* The most of it, whatever plan plan_build() makes of the request; UINT64_MAX for one that plan_bound() refuses. No
 * more than the sum of the same for its jobs alone, as is mla_kernels_scratch_bytes_max(). */
uint64_t mla_kernels_blob_bytes_max(const struct mla_kernels *kernels, const struct plan_request *request);

/* Writes plan and records to blob (host memory) and fills launch with the addresses they have when the blob's first
 * byte is at address for the device, 64-byte aligned: that of the device memory which the blob will have been copied to
 * when the launch runs, or of the blob itself when the device can read it there. Tables have entries for kv_len_max
 * tokens of each sequence, however long it is: the kernels may read those. workspace: device memory of at least
 * mla_kernels_workspace_bytes(), 256-byte aligned (0 when that is 0). The blob must stay unchanged until the launch has
 * run (captured: as long as the graph lives). 0; -EINVAL when the driver refuses a plane's address or strides (not
 * multiples of 16). */
int mla_kernels_blob_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch);

/* The same for a blob that the last writing left there for an equal plan, as many jobs and sequences, and the same
 * address: jobs, sequences and workspace may be others. Less work, by what follows from the plan alone. */
int mla_kernels_blob_write_again(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                                 uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *blob,
                                 uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch);

/* The parts of a blob that are not the caller's own records and plan, for callers who let the kernels read those where
 * they are (16-byte aligned): launch->abi is filled by the caller, then this writes the rest at address and fills
 * launch->more. Nothing to do when the bytes are 0. As mla_kernels_blob_write(). */
size_t mla_kernels_more_bytes(const struct mla_kernels *kernels, const struct plan *plan, uint32_t n_jobs,
                              uint32_t n_seqs);
int mla_kernels_more_write(struct mla_kernels *kernels, const struct plan *plan, const struct mla_abi_job *jobs,
                           uint32_t n_jobs, const struct mla_abi_seq *seqs, uint32_t n_seqs, void *more,
                           uint64_t address, uint64_t workspace, struct mla_kernels_launch *launch);

/* Puts the split-KV kernel and what goes before and after it on stream: the prepare kernel where there is one, and the
 * reducer when any tile is split or nothing else writes the user_status of a job; nothing for a launch without work.
 * Status words are only ever lowered to a fault's code, so the caller zeroes them first; those in user_status are
 * written for every sequence. 0; -EINVAL for a launch that names nothing to read; -EIO with the driver's result in
 * *result (may be NULL). */
int mla_kernels_launch(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                       CUresult *result);

/* The same for a launch of mla_kernels_blob_write() whose blob has not been copied: the prepare kernel has it in its
 * parameter and brings what the kernels behind it read to the address that it was written for. The blob is free again
 * when the call returns. In a graph it stays what it is now. -EINVAL unless mla_kernels_takes_blob(): kernels with a
 * prepare kernel, and a blob of at most 3,936 bytes, which the plan's items do not count for. blob_bytes:
 * mla_kernels_blob_bytes(). */
bool mla_kernels_takes_blob(const struct mla_kernels *kernels, const struct mla_kernels_launch *launch,
                            size_t blob_bytes);
int mla_kernels_launch_blob(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                            const void *blob, size_t blob_bytes, CUresult *result);

/* Some kernels of a launch: those that come before them have run before, with nothing else in the workspace since. The
 * prepare kernel alone may run as soon as what it reads is there: records, block tables, lengths, visible counts. Bits.
 */
#define MLA_KERNELS_PREPARE 1u
#define MLA_KERNELS_DECODE  2u
#define MLA_KERNELS_REDUCE  4u
#define MLA_KERNELS_ALL     7u
int mla_kernels_launch_some(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                            unsigned which, CUresult *result);

/* As mla_kernels_launch_blob(), for a blob of any size below 4 GiB that the device can read at `blob`, as it can pinned
 * host memory (16-byte aligned): the prepare kernel brings what the others read from there, so that they alone (which,
 * as above) need no blob. It must stay unchanged until the prepare kernel has run; a graph brings what is there when it
 * runs. -EINVAL for kernels without a prepare kernel, which are those without facts->scratch. */
int mla_kernels_launch_fetch(const struct mla_kernels *kernels, CUstream stream,
                             const struct mla_kernels_launch *launch, uint64_t blob, size_t blob_bytes, unsigned which,
                             CUresult *result);

#ifdef __cplusplus
}
#endif

#endif
