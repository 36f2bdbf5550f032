#include <stdio.h>
#include <string.h>

#include "tests/support/fake_cuda/fake.h"

bool fake_device_ok(int device)
{
    return device >= 0 && device < fake_config()->devices;
}

FAKE_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    FAKE_CALL(cuDeviceGet, FAKE_INIT);
    if (!fake_device_ok(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetCount(int *count)
{
    FAKE_CALL(cuDeviceGetCount, FAKE_INIT);
    *count = fake_config()->devices;
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    FAKE_CALL(cuDeviceGetName, FAKE_INIT);
    if (!name || bytes < 1)
        return CUDA_ERROR_INVALID_VALUE;
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "%s", fake_config()->name);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    FAKE_CALL(cuDeviceGetUuid, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    unsigned char bytes[16];
    fake_device_uuid(device, bytes);
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

FAKE_API CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    FAKE_CALL(cuDeviceTotalMem, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = fake_config()->memory_bytes;
    return CUDA_SUCCESS;
}

/* Those that a program which launches kernels and shares memory may ask for; figures of an H200. */
static bool find_attribute(CUdevice_attribute attribute, int *value)
{
    const struct fake_config *config = fake_config();
    const struct fake_attribute known[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, FAKE_SMEM_DEFAULT},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, FAKE_SMEM_OPT_IN},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472},
        {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, 32},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
        {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000},
        {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144},
        {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, config->sms},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, config->major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, config->minor},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
        {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, config->vmm},
        {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, config->vmm},
        {CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, config->major >= 9},
        {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0},
        {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, config->ipc},
        {CU_DEVICE_ATTRIBUTE_MPS_ENABLED, config->mps},
        {CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0},
        {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    };
    for (int i = 0; i < config->n_attributes; i++)
        if (config->attributes[i].number == (int)attribute) {
            *value = config->attributes[i].value;
            return true;
        }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].number == (int)attribute) {
            *value = known[i].value;
            return true;
        }
    return false;
}

FAKE_API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    FAKE_CALL(cuDeviceGetAttribute, FAKE_INIT);
    if (!fake_device_ok(device))
        return CUDA_ERROR_INVALID_DEVICE;
    return value && find_attribute(attribute, value) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
