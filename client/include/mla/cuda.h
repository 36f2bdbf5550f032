/* libmla-cuda: device memory and streams of a CUDA program, for libmla.
 *
 * Nothing of CUDA is needed to compile or link with it: libcuda.so.1 is opened at run time, by the first call that
 * needs it and for the life of the process; $MLA_CUDA_DRIVER names another file. Device memory is given as uint64_t: a
 *   CUdeviceptr, or (uintptr_t)pointer of the runtime API. Streams are struct CUstream_st *: what both CUstream and
 *   cudaStream_t are; NULL is the legacy default stream.
 * Every call wants a CUDA context to be current in its thread, the one of the memory or the stream (with the runtime
 * API: cudaSetDevice); INVALID_ARGUMENT else. UNSUPPORTED: there is no CUDA driver, or it is too old. Errors: calls
 * that take a client tell more in mla_last_error(). SYSTEM_ERROR of this library is an error of the CUDA driver: value
 * is the CUresult. Threads: as libmla; calls that take a struct mla_cuda_sync and no client may be made from any thread
 * at any time.
 *
 * A stream-ordered decode: args.ready and args.done name words of the sync page, then, in either order, the job is
 * submitted and the stream is told
 *
 *     mla_cuda_write_ready(words, ready_word, value, stream);   behind the kernels that make Q
 *     mla_cuda_wait_done(words, done_word, value, stream);      before those that read O
 *
 * The wait also ends when the job is refused, fails or loses its daemon: once the stream has passed it,
 * mla_word_aborted(mla_word_load(mla_sync_word(sync, done_word)), value) says so, and O is not to be used. Where the
 * daemon died, a launch of it that still ran may store the done value afterwards: a job that is answered
 * MLA_DISCONNECTED or MLA_DEVICE_LOST is lost whatever its word says later.
 *
 * A captured step (mla_template_open, mla_step) is the same for a decode step of many layers that is one CUDA graph.
 * Into the graph go, for every layer l in order, the caller's own kernels and
 *
 *     mla_cuda_write_ready(words, ready_word[l], 1, stream);
 *     mla_cuda_wait_done(words, done_word[l], 1, stream);
 *
 * and nothing that resets the words: the daemon does. A replay is cuGraphLaunch() and one mla_step_submit(), in either
 * order: the step first, and the daemon has it when the first layer is ready. Lengths, tables and data are read anew
 * from device memory. Replays may be queued ahead of their steps, which are submitted one after the other. After a
 * failed step, or without a daemon, the stream goes through all the same; what tells is the step's status, not the
 * words. Wait for the stream then, before the template is opened anew.
 */
#ifndef MLA_CUDA_H
#define MLA_CUDA_H

#include <mla/mla.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* ---- memory ---- */

/* Shares [address, address + bytes) of device memory. address is a multiple of 16. cudaMalloc memory goes as CUDA IPC
 * handle with the offset in its allocation; memory of cuMemCreate and cuMemMap (expandable segments, sleep modes) by
 * descriptors, of all the allocations under the range, opened a few at a time. The allocations stay mapped while the
 * daemon has the region; freeing earlier is safe for the daemon, and its results then mean nothing. Errors of
 * mla_region_register(), and, before anything is sent:
 *   INVALID_ARGUMENT  not memory that CUDA knows; bytes 0; no context
 *   OUT_OF_BOUNDS     the range leaves its allocation, or has holes (limit: bytes that are there)
 *   UNSUPPORTED       managed or host memory, memory of a cudaMallocAsync pool, cuMemCreate memory without
 *                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; the text says what would work
 *   WRONG_DEVICE      on another GPU than the daemon's */
MLA_API enum mla_status mla_cuda_region_register(struct mla_client *client, uint64_t address, uint64_t bytes,
                                                 enum mla_access access, const char *label, uint64_t timeout_us,
                                                 mla_region_id *out);

/* New memory for a suspended region: bytes and the kind of memory as in its registration, whose access it gets. Errors
 * as above, and those of mla_region_resume(). To suspend: mla_region_suspend(), before the memory is unmapped or freed.
 */
MLA_API enum mla_status mla_cuda_region_resume(struct mla_client *client, mla_region_id region, uint64_t address,
                                               uint64_t bytes, uint64_t timeout_us);

/* ---- words ---- */

/* A sync page pinned in a context. */
struct mla_cuda_sync;

/* Pins the words for the current context's device and starts the client's watcher (mla_watch_start), so that streams
 * which wait are released when the daemon dies. UNSUPPORTED when the device's streams cannot wait for 64-bit words.
 * Detach before mla_sync_destroy(); mla_close() may come first. */
MLA_API enum mla_status mla_cuda_sync_attach(struct mla_client *client, struct mla_sync *sync,
                                             struct mla_cuda_sync **out);

/* No stream may have work left that names a word. SYSTEM_ERROR: the words stay pinned and attached. NULL is OK. */
MLA_API enum mla_status mla_cuda_sync_detach(struct mla_cuda_sync *words);

/* Address of a word for kernels and stream operations of the caller's own; 0 out of range. */
MLA_API uint64_t mla_cuda_word(const struct mla_cuda_sync *words, size_t index);

/* The stream stores value when all its earlier work has ended and is visible to the daemon. Also for the reset of a
 * done word in a captured graph. OUT_OF_BOUNDS: no such word. Capturable. */
MLA_API enum mla_status mla_cuda_write_ready(const struct mla_cuda_sync *words, size_t index, uint64_t value,
                                             struct CUstream_st *stream);

/* The stream's later work waits until the word has come to value (signed difference), aborted or not. */
MLA_API enum mla_status mla_cuda_wait_done(const struct mla_cuda_sync *words, size_t index, uint64_t value,
                                           struct CUstream_st *stream);

/* Of the last failed call of this library in this thread, also of those without a client. Never NULL. */
MLA_API const struct mla_error_info *mla_cuda_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
