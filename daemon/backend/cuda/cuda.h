/* The CUDA backend's table: one GPU, worker memory by CUDA IPC and VMM descriptors, the kernels of kernels/host. The
 * driver is opened at run time; without one be_open() refuses with a sentence.
 *
 * Environment, for measuring: MLA_CUDA_BLOB=pinned lets kernels read plans and records in pinned host memory, but for
 * very large ones; otherwise they are copied to device memory in front of each launch.
 */
#ifndef MLA_DAEMON_BACKEND_CUDA_CUDA_H
#define MLA_DAEMON_BACKEND_CUDA_CUDA_H

#include "daemon/backend/backend.h"

extern const struct be_ops be_cuda_ops;

#endif
