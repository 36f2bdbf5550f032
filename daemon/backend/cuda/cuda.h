/* The CUDA backend's table: one GPU, worker memory by CUDA IPC and VMM descriptors, the kernels of kernels/host. The
 * driver is opened at run time; without one be_open() refuses with a sentence.
 *
 * Plans and records are copied to device memory beside the launch that runs. When none does, the first kernel brings
 * them there, where it can: up to 4 KB as its parameter, more from pinned memory; where not, they are copied in front
 * of it. Those of a step's next layer are fetched by its prepare kernel before its word comes, or copied where that
 * kernel cannot run yet; its launch has them with it only while that copy has not ended. Environment, for measuring:
 * MLA_CUDA_BLOB=copied copies them in any case, =inline lets the kernel bring them when another runs, too; =pinned lets
 * kernels read them in pinned host memory, but for very large ones; =pageable copies them from pageable memory.
 * MLA_CUDA_PLAIN_LAUNCHES=1: no kernel begins before the one in front of it has ended.
 *
 * What comes again and again goes as a graph, in one call of the driver: layers of steps whose plan stays, and batches
 * with as many records as before, 4 KB at most, and none beside another. MLA_CUDA_GRAPHS=N: after N alike instead of
 * 64; 0: never. tests/README.md has what these do to times on a GPU.
 */
#ifndef MLA_DAEMON_BACKEND_CUDA_CUDA_H
#define MLA_DAEMON_BACKEND_CUDA_CUDA_H

#include "daemon/backend/backend.h"

extern const struct be_ops be_cuda_ops;

#endif
