/* A worker's process on a GPU, real or fake ($MLA_CUDA_DRIVER). A process that has called CUDA cannot fork another that
 * does: the test's process calls none, starts its workers as peers (gpu_daemon.h) and only looks on. */
#ifndef MLA_TESTS_WORKER_CUDA_H
#define MLA_TESTS_WORKER_CUDA_H

#include "kernels/host/cuda_driver.h"
#include "tests/support/worker.h"

#include <mla/cuda.h>

struct worker_cuda {
    struct cuda_driver cu;
    CUcontext context;
    CUstream stream;
    size_t granularity; /* of cuMemCreate */
};

/* Opens the driver and device 0 in this process, and makes worker_ops those of device memory. */
struct worker_cuda *worker_cuda_start(void);

enum worker_form {
    WORKER_IPC,   /* cuMemAlloc; the memory begins inside its allocation */
    WORKER_VMM,   /* one exportable allocation */
    WORKER_PARTS, /* 20 of them and more, mapped one behind the other: descriptors of two frames */
    WORKER_FORMS
};
/* Of memory that is made from now on; at first WORKER_IPC. */
void worker_cuda_form(enum worker_form form);

/* Of what worker_ops has made. */
CUdeviceptr worker_cuda_address(const void *device);

#define CU_OK(cuda, call) worker_cuda_ok(cuda, (cuda)->cu.call, #call)
void worker_cuda_ok(const struct worker_cuda *cuda, CUresult result, const char *call);

/* Kernels for tests: spins that long; reads the address. Asynchronous, on the stream. */
void worker_cuda_spin(struct worker_cuda *cuda, CUstream stream, uint64_t ns);
void worker_cuda_read(struct worker_cuda *cuda, CUstream stream, uint64_t address);

#endif
