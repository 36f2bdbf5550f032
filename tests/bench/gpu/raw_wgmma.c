#include "tests/bench/gpu/raw_wgmma.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/gpu/gpu.h"
#include "tests/bench/stats.h"

#define FILE_BYTES_MAX (4u << 20)
#define LAUNCHES_MAX   16

struct raw {
    const struct gpu *gpu;
    CUfunction function;
    struct raw_wgmma_launch launch;
    int ctas;
};

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    char *content = file ? calloc(FILE_BYTES_MAX, 1) : NULL;
    if (content && fread(content, 1, FILE_BYTES_MAX - 1, file) == 0) {
        free(content);
        content = NULL;
    }
    if (file)
        fclose(file);
    return content;
}

static double run(struct raw *raw, uint32_t loops)
{
    const struct gpu *gpu = raw->gpu;
    CUlaunchConfig config = {.gridDimX = (unsigned)raw->ctas,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = RAW_WGMMA_THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = RAW_WGMMA_SHARED_BYTES,
                             .hStream = gpu->stream};
    void *parameters[] = {&raw->launch};
    CUevent from, to;
    float ms = 0;
    raw->launch.loops = loops;
    GPU(gpu, cuEventCreate(&from, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventCreate(&to, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventRecord(from, gpu->stream));
    GPU(gpu, cuLaunchKernelEx(&config, raw->function, parameters, NULL));
    GPU(gpu, cuEventRecord(to, gpu->stream));
    GPU(gpu, cuEventSynchronize(to));
    GPU(gpu, cuEventElapsedTime(&ms, from, to));
    GPU(gpu, cuEventDestroy(from));
    GPU(gpu, cuEventDestroy(to));
    return (double)ms;
}

static double measure(struct raw *raw, unsigned ms, unsigned launches)
{
    double rates[LAUNCHES_MAX];
    uint32_t loops = 4096;
    run(raw, loops);
    double guess = run(raw, loops) * (1.0 / 4096);
    double wanted = guess > 0 ? ms / guess : 4096;
    loops = wanted < 1 ? 1 : wanted < 1e9 ? (uint32_t)wanted : 1000000000u;
    run(raw, loops); /* clock and power settle */
    launches = launches < LAUNCHES_MAX ? launches : LAUNCHES_MAX;
    for (unsigned i = 0; i < launches; i++)
        rates[i] = RAW_WGMMA_LOOP_FLOP * loops * raw->ctas / run(raw, loops) * 1e-9;
    return bench_stats(rates, launches).median;
}

double raw_wgmma_rate(const struct gpu *gpu, const char *directory, uint64_t operands, uint64_t bytes, unsigned ms,
                      unsigned launches, char *why, unsigned why_bytes)
{
    char path[PATH_MAX];
    CUmodule module;
    struct raw raw = {.gpu = gpu, .launch.operands = operands, .ctas = gpu->sms};
    double rate = (double)NAN;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", directory, RAW_WGMMA_FILE) >= sizeof path ||
        bytes < (uint64_t)raw.ctas * RAW_WGMMA_SHARED_BYTES) {
        snprintf(why, why_bytes, "the pool is too small, or the name of the kernels' folder too long");
        return rate;
    }
    char *image = read_file(path);
    if (!image) {
        snprintf(why, why_bytes, "no %s in %s", RAW_WGMMA_FILE, directory);
        return rate;
    }
    CUresult result = gpu->driver.cuModuleLoadData(&module, image);
    free(image);
    if (result != CUDA_SUCCESS) {
        snprintf(why, why_bytes, "%s: %s", RAW_WGMMA_FILE, cuda_driver_error(&gpu->driver, result));
        return rate;
    }
    result = gpu->driver.cuModuleGetFunction(&raw.function, module, RAW_WGMMA_ENTRY);
    if (result == CUDA_SUCCESS)
        result = gpu->driver.cuFuncSetAttribute(raw.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                                (int)RAW_WGMMA_SHARED_BYTES);
    if (result == CUDA_SUCCESS) {
        raw.launch.sums = gpu_alloc(gpu, (uint64_t)raw.ctas * RAW_WGMMA_THREADS * sizeof(float));
        rate = measure(&raw, ms, launches);
        gpu_free(gpu, raw.launch.sums);
    } else {
        snprintf(why, why_bytes, "%s: %s", RAW_WGMMA_ENTRY, cuda_driver_error(&gpu->driver, result));
    }
    GPU(gpu, cuModuleUnload(module));
    return rate;
}
