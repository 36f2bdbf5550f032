#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/rig.h"

#define GUARD_TRIES 64

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Leaves a hole of this size with an unreadable page behind it, where the kernel puts one of the next mappings. */
static void prepare_hole(size_t bytes)
{
    uint8_t *hole = mmap(NULL, bytes + page_bytes(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert_ptr_ne(hole, MAP_FAILED);
    ck_assert_int_eq(munmap(hole, bytes), 0);
}

/* Maps the region in the backend; with a guard, again and again until nothing readable follows it there: each try fills
 * the place it was given, so that the next one goes into a prepared hole in the end. */
static void map_region(struct rig *rig, struct mem *mem, unsigned flags)
{
    for (int i = 0; i < GUARD_TRIES; i++) {
        if (flags & MEM_GUARD)
            prepare_hole(mem->bytes);
        enum mla_status code = rig_map(rig, &mem->region);
        ck_assert_msg(code == MLA_OK, "a region of %zu bytes does not map: %s", mem->bytes, mla_status_name(code));
        ck_assert_uint_ne(mem->region.address, 0);
        if (!(flags & MEM_GUARD) || mem->region.host == NULL)
            return;
        uint8_t *host = mem->region.host;
        if (rig_unreadable(host + mem->bytes, page_bytes()))
            return;
        ck_assert_int_eq(rig_unmap(rig, &mem->region), MLA_OK);
        void *fill = mmap(host, mem->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        ck_assert_ptr_ne(fill, MAP_FAILED);
    }
    ck_abort_msg("no place with an unreadable page behind it");
}

static void memfd_take(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags)
{
    if (flags & MEM_GUARD)
        ck_assert_uint_eq(bytes % page_bytes(), 0);
    int fd = rig_memfd(bytes, true);
    mem->host = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(mem->host, MAP_FAILED);
    mem->region.kind = MLA_REGION_MEMFD;
    mem->region.access = flags & (MEM_WRITE | MEM_SYNC) ? MLA_ACCESS_READ_WRITE : MLA_ACCESS_READ;
    mem->region.sync = (flags & MEM_SYNC) != 0;
    mem->region.size = bytes;
    mem->region.fd = fd;
    map_region(rig, mem, flags);
    close(fd);
    mem->address = mem->region.address;
}

static void view_is_memory(struct rig *rig, struct mem *mem, size_t offset, size_t bytes)
{
    (void)rig;
    ck_assert_uint_le(offset + bytes, mem->bytes);
}

static void memfd_forget(struct mem *mem)
{
    munmap(mem->host, mem->bytes);
}

static void memfd_drop(struct rig *rig, struct mem *mem)
{
    ck_assert_int_eq(rig_unmap(rig, &mem->region), MLA_OK);
    memfd_forget(mem);
}

const struct mem_ops mem_memfd = {
    .name = "memfd",
    .take = memfd_take,
    .push = view_is_memory,
    .pull = view_is_memory,
    .drop = memfd_drop,
    .forget = memfd_forget,
};

static void host_take(struct rig *rig, struct mem *mem, size_t bytes, unsigned flags)
{
    (void)flags;
    mem->host = be_host_alloc(&rig->be, bytes, &mem->address);
    ck_assert_ptr_nonnull(mem->host);
    ck_assert_uint_eq((uintptr_t)mem->host % 64, 0);
    ck_assert_uint_eq(mem->address % 64, 0);
    uint8_t any = 0;
    for (size_t i = 0; i < bytes; i++)
        any |= mem->host[i];
    ck_assert_msg(any == 0, "host memory is not zeroed");
}

static void host_drop(struct rig *rig, struct mem *mem)
{
    be_host_free(&rig->be, mem->host);
}

const struct mem_ops mem_host = {
    .name = "host",
    .take = host_take,
    .push = view_is_memory,
    .pull = view_is_memory,
    .drop = host_drop,
};
