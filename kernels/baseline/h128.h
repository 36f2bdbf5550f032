/* The baseline h128: what a kernel of 128 heads a token and four tokens a request does with a job of fewer heads. An
 * adapter around libmla-kernels, for the benchmark alone; the kernels it runs are the library's own.
 *
 * Heads are padded to 128 by repeating the job's own heads (head h of the padded job is head h % heads, so that the
 * tensor cores see real numbers and draw honest power), and a sequence of more than four query tokens becomes
 * ceil(q_len / 4) requests of four over the same pages. A launch is: pack kernel (Q), the library's launch, unpack
 * kernel (O, LSE, status words). All of it belongs to the baseline's time.
 *
 * Use: h128_open() beside an open library; for every job h128_job_make(), which plans; device memory and a blob of the
 * sizes it tells; h128_blob_write(); h128_launch() as often as wanted, also in a stream that is being captured.
 * Launches of one workspace must be ordered by the caller; several jobs may take turns in one workspace.
 *
 * Results: 0, or -errno with a sentence where there is a why. Threads: one at a time for a handle and its jobs.
 */
#ifndef MLA_KERNELS_BASELINE_H128_H
#define MLA_KERNELS_BASELINE_H128_H

#include "kernels/baseline/h128_args.h"
#include "kernels/host/mla_kernels.h"

struct h128;
struct h128_job;

/* Loads h128.cubin from the folder that the library's kernels came from, into the current context. kernels stays the
 * caller's and outlives the handle. -ENOENT: no such file; -EIO: the driver refuses it. */
int h128_open(const struct cuda_driver *driver, struct mla_kernels *kernels, struct h128 **out, char *why,
              size_t why_bytes);

/* All its jobs must be gone. NULL is fine. */
void h128_close(struct h128 *h);

/* What to pad. The job's first_seq is 0; its tensors are device memory, its table the device's or pinned. kv_len and
 * user_status must be 0: lengths are kv_len_max. Rows of Q and O begin at multiples of 16 bytes. Masks, layouts, output
 * types as the library's. */
struct h128_request {
    const struct mla_abi_job *job;
    const struct mla_abi_seq *seqs; /* job->n_seqs of them, job 0 */
    enum plan_policy policy;        /* PLAN_AUTO for the library's own choice */
    uint32_t splits;                /* as plan_request.splits */
    uint64_t partial_bytes_max;     /* as plan_request.workspace_bytes_max */
};

/* Copies what it needs of the request and plans the padded one. -EINVAL: more than 128 heads, or a member that must be
 * 0; -ENOSPC, -EOVERFLOW: as plan_build() and plan_bound(); -ENOMEM. */
int h128_job_make(struct h128 *h, const struct h128_request *request, struct h128_job **out, char *why,
                  size_t why_bytes);
void h128_job_free(struct h128_job *job); /* NULL is fine */

/* The padded plan: its rows, splits and waves are those of the padded requests. */
const struct plan *h128_job_plan(const struct h128_job *job);

/* Device memory of a launch: padded Q, O and LSE, status words, and the library's workspace. */
uint64_t h128_workspace_bytes(const struct h128_job *job);

/* Host memory that the device can read at address (pinned), or a staging copy of it; records and plan. */
size_t h128_blob_bytes(const struct h128_job *job);

/* As mla_kernels_blob_write(): the blob must stay unchanged until the launch has run, or as long as a graph of it
 * lives. workspace: at least h128_workspace_bytes(), 256-byte aligned. */
int h128_blob_write(struct h128_job *job, void *blob, uint64_t address, uint64_t workspace);

/* Pack, decode, unpack on the stream. Status words of the job are lowered as by mla_kernels_launch(): the smallest
 * fault of a sequence's requests. 0; -EIO with the driver's result in *result (may be NULL). */
int h128_launch(const struct h128_job *job, CUstream stream, CUresult *result);

#endif
