/* The GPU that mla-bench measures on: driver, context, one stream. A call of the driver that fails ends the program
 * with exit status 2 and a line on stderr: what was measured until then is in the files.
 */
#ifndef MLA_TESTS_BENCH_GPU_GPU_H
#define MLA_TESTS_BENCH_GPU_GPU_H

#include <stdint.h>

#include "kernels/host/cuda_driver.h"

struct gpu {
    struct cuda_driver driver;
    CUdevice device;
    CUstream stream;
    char name[96];
    char uuid[64]; /* "GPU-..." */
    int sms;
};

/* 0; -ENODEV, after a line on stderr, where there is no driver or no GPU. */
int gpu_open(struct gpu *gpu);
void gpu_close(struct gpu *gpu);

#define GPU(gpu, call) gpu_must((gpu), (gpu)->driver.call, #call)
void gpu_must(const struct gpu *gpu, CUresult result, const char *call);

/* The same for memory of this process. */
void *gpu_array(size_t n, size_t bytes); /* zeros; free() */

CUdeviceptr gpu_alloc(const struct gpu *gpu, uint64_t bytes);
void gpu_free(const struct gpu *gpu, CUdeviceptr memory);
/* It has arrived when this returns: a copy of the driver's from pageable memory may still be under way then, and the
 * stream does not wait for it. */
void gpu_upload(const struct gpu *gpu, CUdeviceptr to, const void *from, uint64_t bytes);

#endif
