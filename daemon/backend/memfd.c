#include "daemon/backend/memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

/* Only memory that cannot vanish is mapped. F_GET_SEALS exists for memfds (and files of tmpfs, which never have the
 * seal). Huge pages are refused because a fault without a free one is SIGBUS. */
static int check_file(int fd, int *seals, struct mla_error *err)
{
    struct statfs fs;
    if (fstatfs(fd, &fs) != 0)
        return mla_error_set(err, MLA_BAD_DESCRIPTOR, "fd", "the descriptor cannot be examined: %s", strerror(errno));
    *seals = fcntl(fd, F_GET_SEALS);
    if (*seals < 0)
        return mla_error_set(err, MLA_BAD_DESCRIPTOR, "fd", "the descriptor is not a memfd");
    if (fs.f_type == HUGETLBFS_MAGIC)
        return mla_error_set(err, MLA_BAD_DESCRIPTOR, "fd", "memfds of huge pages are not taken");
    if (!(*seals & F_SEAL_SHRINK))
        return mla_error_set(err, MLA_NOT_SEALED, "fd", "the memfd lacks F_SEAL_SHRINK");
    return 0;
}

static int check_range(const struct be_region *region, struct mla_error *err)
{
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    if (region->size == 0)
        return mla_error_set(err, MLA_INVALID_ARGUMENT, "size", "a region has at least one byte");
    if (region->offset % page_bytes != 0) {
        mla_error_set(err, MLA_MISALIGNED, "offset", "the offset is not a multiple of the page size, %llu",
                      (unsigned long long)page_bytes);
        if (err) {
            err->value = region->offset;
            err->limit = page_bytes;
        }
        return MLA_MISALIGNED;
    }
    struct stat st;
    if (fstat(region->fd, &st) != 0)
        return mla_error_set(err, MLA_BAD_DESCRIPTOR, "fd", "the descriptor cannot be examined: %s", strerror(errno));
    uint64_t file_bytes = (uint64_t)st.st_size;
    uint64_t left = region->offset < file_bytes ? file_bytes - region->offset : 0;
    if (region->size > left) {
        mla_error_set(err, MLA_OUT_OF_BOUNDS, "size", "the memfd ends %llu bytes behind the offset",
                      (unsigned long long)left);
        if (err) {
            err->value = region->size;
            err->limit = left;
        }
        return MLA_OUT_OF_BOUNDS;
    }
    return 0;
}

static void *map_file(const struct be_region *region, int seals, bool writable)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *host = mmap(NULL, region->size, prot, MAP_SHARED | MAP_NORESERVE, region->fd, (off_t)region->offset);
    /* Older kernels refuse any shared mapping once F_SEAL_WRITE is set; the content cannot change then, so that a
     * private one reads the same. */
    if (host == MAP_FAILED && errno == EPERM && !writable && (seals & F_SEAL_WRITE))
        host = mmap(NULL, region->size, prot, MAP_PRIVATE | MAP_NORESERVE, region->fd, (off_t)region->offset);
    return host;
}

int be_memfd_map(const struct be_region *region, void **out, struct mla_error *err)
{
    int seals = 0;
    int rc = check_file(region->fd, &seals, err);
    if (rc == 0)
        rc = check_range(region, err);
    if (rc != 0)
        return rc;

    bool writable = region->sync || region->access == MLA_ACCESS_READ_WRITE;
    if (writable && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        return mla_error_set(err, MLA_ACCESS_DENIED, "access", "the memfd is sealed against writing");
    void *host = map_file(region, seals, writable);
    if (host == MAP_FAILED) {
        if (errno == EACCES || errno == EPERM)
            return mla_error_set(err, MLA_ACCESS_DENIED, "access", "the descriptor does not grant this access");
        return mla_error_set(err, MLA_OUT_OF_MEMORY, "size", "the memfd cannot be mapped: %s", strerror(errno));
    }
    *out = host;
    return 0;
}
