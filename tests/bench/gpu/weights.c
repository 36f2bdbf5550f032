#include "tests/bench/gpu/weights.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES_MAX (1u << 20)
#define ROW_BYTES      (WEIGHTS_COLUMNS * 2u)

static char *read_beside(const char *file, char path[PATH_MAX])
{
    const char *slash = strrchr(file, '/');
    snprintf(path, PATH_MAX, "%.*s%s", slash ? (int)(slash - file + 1) : 0, file, WEIGHTS_FILE);
    FILE *f = fopen(path, "re");
    char *content = gpu_array(FILE_BYTES_MAX, 1);
    size_t n = f ? fread(content, 1, FILE_BYTES_MAX, f) : 0;
    if (f)
        fclose(f);
    if (n > 0)
        return content;
    fprintf(stderr, "mla-bench: %s cannot be read\n", path);
    exit(2);
}

void weights_open(struct weights *weights, const struct gpu *gpu, const char *file, uint32_t rows)
{
    char path[PATH_MAX];
    char *image = read_beside(file, path);
    uint64_t w_bytes = (uint64_t)rows * ROW_BYTES;
    weights->gpu = gpu;
    GPU(gpu, cuModuleLoadData(&weights->module, image));
    GPU(gpu, cuModuleGetFunction(&weights->function, weights->module, WEIGHTS_ENTRY));
    free(image);
    weights->memory = gpu_alloc(gpu, w_bytes + ROW_BYTES + rows * sizeof(float));
    GPU(gpu, cuMemsetD8Async(weights->memory, 0, w_bytes + ROW_BYTES, gpu->stream));
    weights->launch = (struct weights_launch){
        .w = weights->memory, .x = weights->memory + w_bytes, .y = weights->memory + w_bytes + ROW_BYTES, .rows = rows};
}

void weights_close(struct weights *weights)
{
    const struct gpu *gpu = weights->gpu;
    gpu_free(gpu, weights->memory);
    GPU(gpu, cuModuleUnload(weights->module));
}

void weights_launch(struct weights *weights)
{
    const struct gpu *gpu = weights->gpu;
    const uint32_t rows_of_cta = WEIGHTS_THREADS / 32;
    CUlaunchConfig config = {.gridDimX = (weights->launch.rows + rows_of_cta - 1) / rows_of_cta,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = WEIGHTS_THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = gpu->stream};
    void *parameters[] = {&weights->launch};
    GPU(gpu, cuLaunchKernelEx(&config, weights->function, parameters, NULL));
}
