/* Registered memory of the CUDA backend: device memory of another process, by turns as a CUDA IPC handle, as one VMM
 * allocation and as several, so that every test goes through all of them. Words lie in a sealed memfd, as everywhere.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/cuda_exporter.h"
#include "tests/support/rig.h"

struct cuda_mem {
    struct exported exported;
    size_t view_bytes; /* with the guard */
};

static unsigned turn;

static const struct cuda_mem *of(const struct mem *mem)
{
    return mem->impl;
}

static void view(struct mem *mem, struct cuda_mem *cuda, int copy)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    cuda->view_bytes = (mem->bytes + page - 1) / page * page + page;
    mem->host = mmap(NULL, cuda->view_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(mem->host, MAP_FAILED);
    ck_assert_ptr_eq(mmap(mem->host, mem->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, copy, 0), mem->host);
}

static void cuda_take(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags)
{
    if (flags & MEM_SYNC) {
        mem->ops = &mem_memfd;
        mem_memfd.take(rig, mem, bytes, flags);
        return;
    }
    struct cuda_mem *cuda = calloc(1, sizeof(*cuda));
    ck_assert_ptr_nonnull(cuda);
    mem->impl = cuda;
    int copy = rig_memfd(bytes, false);
    view(mem, cuda, copy);
    unsigned kind = turn++ % 3;
    exporter_take(kind == 0 ? MLA_REGION_CUDA_IPC : MLA_REGION_CUDA_VMM, bytes, kind == 2 ? EXPORTER_PARTS_MAX : 1,
                  copy, &cuda->exported);
    close(copy);

    struct exported *e = &cuda->exported;
    mem->region = (struct be_region){.kind = e->kind,
                                     .access = flags & MEM_WRITE ? MLA_ACCESS_READ_WRITE : MLA_ACCESS_READ,
                                     .size = bytes,
                                     .fd = -1};
    if (e->kind == MLA_REGION_CUDA_IPC) {
        mem->region.offset = e->offset;
        mem->region.ipc_handle = e->handle;
        mem->region.block_size = e->block_size;
    } else {
        mem->region.parts = e->parts;
        mem->region.n_parts = e->n_parts;
    }
    enum mla_status code = rig_map(rig, &mem->region);
    ck_assert_msg(code == MLA_OK, "a region of %zu bytes does not map: %s", bytes, mla_status_name(code));
    for (size_t i = 0; i < e->n_parts; i++)
        close(e->parts[i].fd);
    mem->address = mem->region.address;
    ck_assert_uint_ne(mem->address, 0);
}

static void cuda_push(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    exporter_push(&of(mem)->exported, offset, bytes);
}

static void cuda_pull(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    exporter_pull(&of(mem)->exported, offset, bytes);
}

static void cuda_forget(struct mem *mem)
{
    struct cuda_mem *cuda = mem->impl;
    exporter_drop(&cuda->exported);
    munmap(mem->host, cuda->view_bytes);
    free(cuda);
}

static void cuda_drop(struct rig *rig, struct mem *mem)
{
    ck_assert_int_eq(rig_unmap(rig, &mem->region), MLA_OK);
    cuda_forget(mem);
}

const struct mem_ops mem_cuda = {
    .name = "cuda",
    .take = cuda_take,
    .push = cuda_push,
    .pull = cuda_pull,
    .drop = cuda_drop,
    .forget = cuda_forget,
};
