/* Launching, and what fits on the device. */
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

#define SM_THREADS   2048
#define SM_BLOCKS    32
#define SM_SMEM      233472
#define BLOCK_SMEM   1024 /* that the system takes of each block */
#define SM_REGISTERS 65536

/* Blocks that one SM holds; 0: not one. Without the lock. */
static int blocks_per_sm(CUfunction function, int threads, size_t smem)
{
    int warps = (threads + 31) / 32;
    if (threads < 1 || threads > fake_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
        smem > (size_t)fake_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
        return 0;
    int by[] = {SM_BLOCKS, SM_THREADS / (32 * warps), SM_SMEM / (int)(smem + BLOCK_SMEM),
                SM_REGISTERS / (32 * warps * fake_function_attribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS))};
    int least = by[0];
    for (size_t i = 1; i < sizeof by / sizeof by[0]; i++)
        least = by[i] < least ? by[i] : least;
    return least;
}

static bool is_function(CUfunction function)
{
    fake_lock();
    bool fine = fake_function_ok(function);
    fake_unlock();
    return fine;
}

FAKE_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                              size_t smem)
{
    FAKE_CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, FAKE_CONTEXT);
    if (!is_function(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1)
        return CUDA_ERROR_INVALID_VALUE;
    *blocks = blocks_per_sm(function, threads, smem);
    return CUDA_SUCCESS;
}

static int threads_of(const CUlaunchConfig *config)
{
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    return threads <= 1024 ? (int)threads : 0;
}

/* Blocks of a cluster; 0 when they do not divide the grid. */
static uint64_t cluster_of(const CUlaunchConfig *config)
{
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            continue;
        unsigned x = config->attrs[i].value.clusterDim.x, y = config->attrs[i].value.clusterDim.y,
                 z = config->attrs[i].value.clusterDim.z;
        bool divides =
            x && y && z && config->gridDimX % x == 0 && config->gridDimY % y == 0 && config->gridDimZ % z == 0;
        return divides ? (uint64_t)x * y * z : 0;
    }
    return 1;
}

static bool cluster_fits(CUfunction function, uint64_t cluster)
{
    bool allowed = fake_function_attribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED) != 0;
    return cluster == 1 || (fake_config()->major >= 9 && cluster >= 1 && cluster <= (allowed ? 16 : 8));
}

FAKE_API CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config)
{
    FAKE_CALL(cuOccupancyMaxActiveClusters, FAKE_CONTEXT);
    if (!is_function(function))
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t cluster = config ? cluster_of(config) : 0;
    if (!clusters || cluster == 0 || threads_of(config) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cluster_fits(function, cluster))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    int blocks = blocks_per_sm(function, threads_of(config), config->sharedMemBytes);
    *clusters = blocks * fake_config()->sms / (int)cluster;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    FAKE_CALL(cuLaunchKernelEx, FAKE_CONTEXT);
    if (!is_function(function))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!config || !params || !params[0] || extra || config->gridDimX == 0 || config->gridDimY == 0 ||
        config->gridDimZ == 0 || threads_of(config) == 0 || cluster_of(config) == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!cluster_fits(function, cluster_of(config)))
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (config->sharedMemBytes >
        (size_t)fake_function_attribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))
        return CUDA_ERROR_INVALID_VALUE;
    if (blocks_per_sm(function, threads_of(config), config->sharedMemBytes) == 0)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;

    struct fake_op *op = fake_op_new(MLA_FAKE_kernel);
    op->kernel.function = function;
    if (function->kernel == FAKE_SPIN || function->kernel == FAKE_READ)
        memcpy(&op->kernel.number, params[0], sizeof op->kernel.number);
    else if (fake_is_h128(function->kernel))
        memcpy(&op->kernel.h128, params[0], sizeof op->kernel.h128);
    else if (fake_bring_bytes(function) != 0)
        fake_bring_take(op, params[0]);
    else if (function->kernel == FAKE_PREPARE || function->kernel == FAKE_DECODE_UNITS ||
             function->kernel == FAKE_REDUCE_UNITS)
        memcpy(&op->kernel.units, params[0], sizeof op->kernel.units);
    else if (function->kernel != FAKE_EMPTY)
        memcpy(&op->kernel.launch, params[0], sizeof op->kernel.launch);
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            FAKE_COUNT(programmatic, config->attrs[i].value.programmaticStreamSerializationAllowed != 0);
    op->kernel.cluster_ctas = (uint32_t)cluster_of(config);
    op->kernel.clusters = config->gridDimX / op->kernel.cluster_ctas;
    return fake_enqueue(config->hStream, op);
}

/* The map is as opaque as the real one; the checks are those that the driver documents. */
FAKE_API CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                         const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                         const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                         CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                         CUtensorMapFloatOOBfill fill)
{
    FAKE_CALL(cuTensorMapEncodeTiled, FAKE_NOTHING);
    (void)type, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    if (!map || !address || !sizes || !strides || !box || !steps || rank < 3 || rank > 5 ||
        (uintptr_t)address % 16 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++)
        if (sizes[i] == 0 || sizes[i] > UINT64_C(1) << 32 || box[i] == 0 || box[i] > 256 ||
            (i + 1 < rank && (strides[i] % 16 != 0 || strides[i] >= UINT64_C(1) << 40)))
            return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof *map);
    map->opaque[0] = (cuuint64_t)(uintptr_t)address;
    return CUDA_SUCCESS;
}
