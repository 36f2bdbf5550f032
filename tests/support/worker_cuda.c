#include "tests/support/worker_cuda.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/check_main.h"

#define IPC_LEAD  8192u
#define PARTS_MIN 20u

/* One entry per thing to be done; the fake driver knows them by these names. */
static const char test_kernels[] = ".version 7.8\n"
                                   ".target sm_80\n"
                                   ".address_size 64\n"
                                   ".visible .entry fake_spin(.param .u64 ns)\n"
                                   "{\n"
                                   "    .reg .u64 %t<5>;\n"
                                   "    .reg .pred %p;\n"
                                   "    ld.param.u64 %t0, [ns];\n"
                                   "    mov.u64 %t1, %globaltimer;\n"
                                   "again:\n"
                                   "    mov.u64 %t2, %globaltimer;\n"
                                   "    sub.u64 %t3, %t2, %t1;\n"
                                   "    setp.lt.u64 %p, %t3, %t0;\n"
                                   "    @%p bra again;\n"
                                   "    ret;\n"
                                   "}\n"
                                   ".visible .entry fake_read(.param .u64 address)\n"
                                   "{\n"
                                   "    .reg .u64 %a, %b;\n"
                                   "    ld.param.u64 %a, [address];\n"
                                   "    ld.volatile.global.u64 %b, [%a];\n"
                                   "    ret;\n"
                                   "}\n";

struct device_memory {
    enum worker_form form;
    CUdeviceptr base, address;
    size_t part_bytes, n_parts;
    uint64_t bytes; /* of all parts */
};

static struct worker_cuda cuda;
static enum worker_form next_form;

void worker_cuda_ok(const struct worker_cuda *c, CUresult result, const char *call)
{
    ck_assert_msg(result == CUDA_SUCCESS, "%s: %s", call, cuda_driver_error(&c->cu, result));
}

void worker_cuda_form(enum worker_form form)
{
    next_form = form;
}

CUdeviceptr worker_cuda_address(const void *device)
{
    return ((const struct device_memory *)device)->address;
}

/* ---- worker_ops ---- */

static void take_parts(struct device_memory *m, uint64_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUmemAccessDesc access = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    uint64_t granules = (bytes + cuda.granularity - 1) / cuda.granularity;
    m->n_parts = 1;
    if (m->form == WORKER_PARTS)
        m->n_parts = granules > PARTS_MIN ? PARTS_MIN + 1 : granules; /* the last one may be longer than needed */
    m->part_bytes = (granules + m->n_parts - 1) / m->n_parts * cuda.granularity;
    m->bytes = m->part_bytes * m->n_parts;
    CU_OK(&cuda, cuMemAddressReserve(&m->base, m->bytes, 0, 0, 0));
    for (size_t i = 0; i < m->n_parts; i++) {
        CUmemGenericAllocationHandle handle;
        CU_OK(&cuda, cuMemCreate(&handle, m->part_bytes, &prop, 0));
        CU_OK(&cuda, cuMemMap(m->base + i * m->part_bytes, m->part_bytes, 0, handle, 0));
        CU_OK(&cuda, cuMemRelease(handle));
    }
    CU_OK(&cuda, cuMemSetAccess(m->base, m->bytes, &access, 1));
    m->address = m->base;
}

static void take(uint64_t bytes, struct mla_memory *memory, void **device)
{
    struct device_memory *m = calloc(1, sizeof(*m));
    ck_assert_ptr_nonnull(m);
    m->form = next_form;
    if (m->form == WORKER_IPC) {
        CU_OK(&cuda, cuMemAlloc(&m->base, bytes + IPC_LEAD));
        m->address = m->base + IPC_LEAD;
    } else {
        take_parts(m, bytes);
    }
    *memory = (struct mla_memory){.size = bytes, .fd = -1};
    memory->addr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(memory->addr, MAP_FAILED);
    *device = m;
}

static enum mla_status share(struct mla_client *client, const struct mla_memory *memory, void *device,
                             enum mla_access access, const char *label, mla_region_id *region)
{
    return mla_cuda_region_register(client, worker_cuda_address(device), memory->size, access, label, WORKER_TIMEOUT_US,
                                    region);
}

static void push(const struct mla_memory *memory, void *device, uint64_t offset, uint64_t bytes)
{
    CUdeviceptr to = worker_cuda_address(device) + offset;
    CU_OK(&cuda, cuMemcpyHtoDAsync(to, (const uint8_t *)memory->addr + offset, bytes, cuda.stream));
    CU_OK(&cuda, cuStreamSynchronize(cuda.stream));
}

static void pull(const struct mla_memory *memory, void *device, uint64_t offset, uint64_t bytes)
{
    CUdeviceptr from = worker_cuda_address(device) + offset;
    CU_OK(&cuda, cuMemcpyDtoHAsync((uint8_t *)memory->addr + offset, from, bytes, cuda.stream));
    CU_OK(&cuda, cuStreamSynchronize(cuda.stream));
}

static void drop(struct mla_memory *memory, void *device)
{
    struct device_memory *m = device;
    if (m->form == WORKER_IPC) {
        CU_OK(&cuda, cuMemFree(m->base));
    } else {
        for (size_t i = 0; i < m->n_parts; i++)
            CU_OK(&cuda, cuMemUnmap(m->base + i * m->part_bytes, m->part_bytes));
        CU_OK(&cuda, cuMemAddressFree(m->base, m->bytes));
    }
    munmap(memory->addr, memory->size);
    *memory = (struct mla_memory){.fd = -1};
    free(m);
}

/* P is rounded to e4m3 or finer. */
static const struct worker_ops ops = {.create = take,
                                      .share = share,
                                      .push = push,
                                      .pull = pull,
                                      .free = drop,
                                      .accuracy = REF_ACCURACY_E4M3_P,
                                      .rel_l2 = 4e-2}; /* P in e4m3, contexts of a few hundred keys */

struct worker_cuda *worker_cuda_start(void)
{
    char why[256];
    CUdevice device;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    ck_assert_msg(cuda_driver_open(NULL, &cuda.cu, why, sizeof(why)) == 0, "%s", why);
    CU_OK(&cuda, cuDeviceGet(&device, 0));
    CU_OK(&cuda, cuDevicePrimaryCtxRetain(&cuda.context, device));
    CU_OK(&cuda, cuCtxSetCurrent(cuda.context));
    CU_OK(&cuda, cuStreamCreate(&cuda.stream, CU_STREAM_NON_BLOCKING));
    CU_OK(&cuda, cuMemGetAllocationGranularity(&cuda.granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    worker_ops = &ops;
    return &cuda;
}

/* ---- kernels of tests ---- */

static void launch(struct worker_cuda *c, CUstream stream, const char *entry, uint64_t argument)
{
    static CUmodule module;
    CUfunction function;
    void *arguments[] = {&argument};
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = stream};
    if (module == NULL)
        CU_OK(c, cuModuleLoadData(&module, test_kernels));
    CU_OK(c, cuModuleGetFunction(&function, module, entry));
    CU_OK(c, cuLaunchKernelEx(&config, function, arguments, NULL));
}

void worker_cuda_spin(struct worker_cuda *c, CUstream stream, uint64_t ns)
{
    launch(c, stream, "fake_spin", ns);
}

void worker_cuda_read(struct worker_cuda *c, CUstream stream, uint64_t address)
{
    launch(c, stream, "fake_read", address);
}
