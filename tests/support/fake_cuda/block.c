/* Physical memory as memfds. The page behind the data says what it is, so that no other file passes for one. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"

#define MAGIC      "mla fake cuda 1"
#define FILL_BYTES (UINT64_C(1) << 20) /* of fresh memory hold FILL */
#define FILL       0xff
#define SEALS      (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct trailer {
    char magic[16];
    uint32_t kind;
    uint32_t handle_types;
    uint64_t bytes;
    uint64_t serial;
    unsigned char uuid[16];
};

static uint64_t pages(uint64_t bytes)
{
    return (bytes + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;
}

/* Memory that is read before it is written shows. */
static int fill(int fd, uint64_t bytes)
{
    static const unsigned char dirt[FAKE_PAGE] = {[0 ... FAKE_PAGE - 1] = FILL};
    uint64_t end = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    for (uint64_t at = 0; at < end; at += FAKE_PAGE)
        if (pwrite(fd, dirt, FAKE_PAGE, (off_t)at) != (ssize_t)FAKE_PAGE)
            return -errno;
    return 0;
}

static int write_file(const struct fake_block *block)
{
    struct trailer trailer = {MAGIC, (uint32_t)block->kind, block->handle_types, block->bytes, block->serial, {0}};
    fake_device_uuid(block->device, trailer.uuid);
    if (ftruncate(block->fd, (off_t)(block->mapped_bytes + FAKE_PAGE)) != 0 ||
        pwrite(block->fd, &trailer, sizeof trailer, (off_t)block->mapped_bytes) != (ssize_t)sizeof trailer)
        return -errno;
    int rc = fill(block->fd, block->mapped_bytes);
    return rc != 0 ? rc : fcntl(block->fd, F_ADD_SEALS, SEALS) != 0 ? -errno : 0;
}

int fake_block_create(enum fake_block_kind kind, uint64_t bytes, int device, uint32_t handle_types,
                      struct fake_block **out)
{
    struct fake_block *block = calloc(1, sizeof *block);
    if (!block)
        return -ENOMEM;
    block->kind = kind;
    block->device = device;
    block->own = true;
    block->bytes = bytes;
    block->mapped_bytes = pages(bytes);
    block->handle_types = handle_types;
    if (getrandom(&block->serial, sizeof block->serial, 0) != (ssize_t)sizeof block->serial)
        block->serial = fake_now_ns();
    block->fd = memfd_create(kind == FAKE_VMM ? "fake-cuda-vmm" : "fake-cuda", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rc = block->fd < 0 ? -errno : write_file(block);
    if (rc != 0) {
        fake_block_free(block);
        return rc;
    }
    *out = block;
    return 0;
}

static int device_of(const unsigned char uuid[16])
{
    for (int d = 0; d < fake_config()->devices; d++) {
        unsigned char of_device[16];
        fake_device_uuid(d, of_device);
        if (!memcmp(uuid, of_device, 16))
            return d;
    }
    return -1;
}

int fake_block_adopt(int fd, enum fake_block_kind kind, struct fake_block **out)
{
    struct stat st;
    struct trailer trailer;
    int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || seals < 0 || (seals & SEALS) != SEALS ||
        st.st_size <= (off_t)FAKE_PAGE ||
        pread(fd, &trailer, sizeof trailer, st.st_size - (off_t)FAKE_PAGE) != (ssize_t)sizeof trailer)
        return -EINVAL;
    if (memcmp(trailer.magic, MAGIC, sizeof trailer.magic) != 0 || trailer.kind != (uint32_t)kind ||
        pages(trailer.bytes) != (uint64_t)st.st_size - FAKE_PAGE)
        return -EINVAL;
    int device = device_of(trailer.uuid);
    if (device < 0)
        return -ENODEV;
    struct fake_block *block = calloc(1, sizeof *block);
    if (!block)
        return -ENOMEM;
    block->kind = kind;
    block->device = device;
    block->bytes = trailer.bytes;
    block->mapped_bytes = pages(trailer.bytes);
    block->serial = trailer.serial;
    block->handle_types = trailer.handle_types;
    block->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (block->fd < 0) {
        int rc = -errno;
        fake_block_free(block);
        return rc;
    }
    *out = block;
    return 0;
}

void fake_block_free(struct fake_block *block)
{
    if (block->fd >= 0)
        close(block->fd);
    free(block);
}

void *fake_space_reserve(uint64_t bytes, uint64_t alignment)
{
    if (alignment < FAKE_GRANULE)
        alignment = FAKE_GRANULE;
    bytes = pages(bytes);
    uint64_t total = bytes + alignment + 2 * FAKE_PAGE;
    if (total < bytes)
        return NULL;
    char *raw = mmap(NULL, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    uint64_t start = (uint64_t)(uintptr_t)raw;
    uint64_t base = (start + FAKE_PAGE + alignment - 1) / alignment * alignment;
    char *aligned = raw + (base - start);
    if (base - FAKE_PAGE > start)
        munmap(raw, base - FAKE_PAGE - start);
    uint64_t end = base + bytes + FAKE_PAGE;
    if (start + total > end)
        munmap(aligned + bytes + FAKE_PAGE, start + total - end);
    return aligned;
}

void fake_space_release(void *base, uint64_t bytes)
{
    munmap((char *)base - FAKE_PAGE, pages(bytes) + 2 * FAKE_PAGE);
}

int fake_block_map(const struct fake_block *block, void *base, uint64_t bytes, int access)
{
    void *mapped = mmap(base, pages(bytes), access, MAP_SHARED | MAP_FIXED, block->fd, 0);
    return mapped == MAP_FAILED ? -errno : 0;
}

void fake_block_unmap(void *base, uint64_t bytes)
{
    void *hole = mmap(base, pages(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (hole == MAP_FAILED)
        fake_abort("unmap: %m");
}
