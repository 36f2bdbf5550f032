/* What lies under a range of device addresses, and how it can be handed over. */
#ifndef MLA_CLIENT_CUDA_MEMORY_H
#define MLA_CLIENT_CUDA_MEMORY_H

#include "client/cuda/driver.h"

struct mlacu_memory {
    const struct cuda_driver *cu;
    enum mla_region_kind kind; /* CUDA_IPC or CUDA_VMM */
    /* CUDA_IPC */
    CUipcMemHandle handle;
    uint64_t offset;
    uint64_t block_bytes;
    /* CUDA_VMM: the allocations in order, and an address in each */
    struct mla_vmm_part *parts; /* owned; the descriptors are opened by mlacu_memory_open() */
    CUdeviceptr *addresses;     /* owned */
    size_t n_parts;
};

/* The GPU that address lives on, as the daemon writes it: "GPU-" and a UUID. */
enum mla_status mlacu_memory_gpu(const struct cuda_driver *cu, CUdeviceptr address, char out[48]);

/* OK: *out is to be freed. Else the thread's last error is set: those of mla_cuda_region_register(), but for the GPU.
 */
enum mla_status mlacu_memory_find(const struct cuda_driver *cu, CUdeviceptr address, uint64_t bytes,
                                  struct mlacu_memory *out);
void mlacu_memory_free(struct mlacu_memory *memory);

/* mla_region_desc.open_part of a struct mlacu_memory: -EIO when the thread's last error says why. */
int mlacu_memory_open(void *memory, size_t part);

#endif
