/* Which descriptors the CPU backend maps, and what it says of the others. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/backend/cpu/memory.h"
#include "tests/support/check_main.h"

#define PAGE_BYTES ((uint64_t)sysconf(_SC_PAGESIZE))

static int memfd(uint64_t bytes, int seals)
{
    int fd = memfd_create("mla-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static struct be_region region(int fd, uint64_t offset, uint64_t size, enum mla_access access)
{
    return (struct be_region){.kind = MLA_REGION_MEMFD, .access = access, .offset = offset, .size = size, .fd = fd};
}

/* Maps with this result, leaves nothing behind, names this field. Closes fd. */
static void refuse(struct be_region r, enum mla_status code, const char *field)
{
    struct mla_error err = {.code = MLA_OK};
    ck_assert_int_eq(cpu_map(&r, &err), (int)code);
    ck_assert_int_eq(err.code, code);
    ck_assert_str_eq(err.field, field);
    ck_assert_uint_ne(err.text[0], 0);
    ck_assert_uint_eq(r.address, 0);
    ck_assert_ptr_null(r.host);
    ck_assert_ptr_null(r.impl);
    ck_assert_int_gt(cpu_map(&r, NULL), 0); /* and without anybody to tell */
    close(r.fd);
}

START_TEST(maps_what_is_sealed)
{
    int fd = memfd(3 * PAGE_BYTES, F_SEAL_SHRINK);
    struct be_region r = region(fd, PAGE_BYTES, PAGE_BYTES + 100, MLA_ACCESS_READ_WRITE);
    struct mla_error err = {.code = MLA_OK};
    ck_assert_int_eq(cpu_map(&r, &err), 0);
    ck_assert_uint_eq(r.address, (uint64_t)(uintptr_t)r.host);
    memcpy(r.host, "word", 5);
    char back[5];
    ck_assert_int_eq(pread(fd, back, sizeof back, (off_t)PAGE_BYTES), 5);
    ck_assert_str_eq(back, "word");
    close(fd); /* the mapping stays */
    ck_assert_str_eq(r.host, "word");
    cpu_unmap(&r);
    ck_assert_uint_eq(r.address, 0);
    cpu_unmap(&r); /* nothing happens */
}
END_TEST

START_TEST(read_access_is_read_only)
{
    int fd = memfd(PAGE_BYTES, F_SEAL_SHRINK);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int reading = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(reading, 0);
    struct be_region r = region(reading, 0, PAGE_BYTES, MLA_ACCESS_READ);
    ck_assert_int_eq(cpu_map(&r, NULL), 0);
    FILE *maps = fopen("/proc/self/maps", "re");
    ck_assert_ptr_nonnull(maps);
    char line[512];
    int found = 0;
    while (fgets(line, sizeof line, maps)) {
        char *end;
        unsigned long from = strtoul(line, &end, 16);
        if (from == (unsigned long)r.address)
            found = strncmp(strchr(line, ' ') + 1, "r--s", 4) == 0 ? 1 : -1;
    }
    fclose(maps);
    ck_assert_int_eq(found, 1);
    cpu_unmap(&r);
    refuse(region(reading, 0, PAGE_BYTES, MLA_ACCESS_READ_WRITE), MLA_ACCESS_DENIED, "access");
    close(fd);
}
END_TEST

START_TEST(write_seals)
{
    int fd = memfd(PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_WRITE);
    struct be_region r = region(fd, 0, PAGE_BYTES, MLA_ACCESS_READ);
    ck_assert_int_eq(cpu_map(&r, NULL), 0);
    ck_assert_int_eq(*(const char *)r.host, 0);
    cpu_unmap(&r);
    refuse(region(fd, 0, PAGE_BYTES, MLA_ACCESS_READ_WRITE), MLA_ACCESS_DENIED, "access");
    fd = memfd(PAGE_BYTES, F_SEAL_SHRINK | F_SEAL_WRITE);
    r = region(fd, 0, PAGE_BYTES, MLA_ACCESS_READ_WRITE);
    r.sync = true;
    refuse(r, MLA_ACCESS_DENIED, "access");
}
END_TEST

START_TEST(not_sealed)
{
    refuse(region(memfd(PAGE_BYTES, F_SEAL_GROW), 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_NOT_SEALED, "fd");
    int plain = memfd_create("mla-test", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(plain, (off_t)PAGE_BYTES), 0);
    refuse(region(plain, 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_NOT_SEALED, "fd");
}
END_TEST

START_TEST(not_a_memfd)
{
    int pipes[2], sockets[2];
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    refuse(region(pipes[0], 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR, "fd");
    refuse(region(pipes[1], 0, PAGE_BYTES, MLA_ACCESS_READ_WRITE), MLA_BAD_DESCRIPTOR, "fd");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    refuse(region(sockets[0], 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR, "fd");
    close(sockets[1]);
    refuse(region(open("/dev/zero", O_RDWR | O_CLOEXEC), 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR, "fd");
    refuse(region(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR,
           "fd");
    refuse(region(-1, 0, PAGE_BYTES, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR, "fd");
}
END_TEST

START_TEST(a_regular_file)
{
    /* On tmpfs the kernel answers for seals too: such a file has F_SEAL_SEAL alone. Either refusal is right. */
    char path[] = "/tmp/mla-test-XXXXXX";
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    unlink(path);
    ck_assert_int_eq(ftruncate(fd, (off_t)PAGE_BYTES), 0);
    struct be_region r = region(fd, 0, PAGE_BYTES, MLA_ACCESS_READ);
    struct mla_error err = {.code = MLA_OK};
    int rc = cpu_map(&r, &err);
    ck_assert(rc == MLA_BAD_DESCRIPTOR || rc == MLA_NOT_SEALED);
    ck_assert_ptr_null(r.host);
    close(fd);
}
END_TEST

START_TEST(out_of_bounds)
{
    const struct {
        uint64_t offset_pages, size;
    } beyond[] = {
        {0, 2 * 4096 * 16 + 1}, {1, UINT64_MAX}, {1, UINT64_MAX - 4095}, {64, 1}, {UINT64_MAX / 65536 / 4096, 4096},
    };
    uint64_t bytes = 2 * 4096 * 16;
    for (size_t i = 0; i < sizeof beyond / sizeof beyond[0]; i++) {
        struct be_region r =
            region(memfd(bytes, F_SEAL_SHRINK), beyond[i].offset_pages * PAGE_BYTES, beyond[i].size, MLA_ACCESS_READ);
        struct mla_error err = {.code = MLA_OK};
        ck_assert_int_eq(cpu_map(&r, &err), MLA_OUT_OF_BOUNDS);
        ck_assert_uint_eq(err.value, beyond[i].size);
        ck_assert_uint_eq(err.limit, r.offset < bytes ? bytes - r.offset : 0);
        refuse(r, MLA_OUT_OF_BOUNDS, "size");
    }
}
END_TEST

START_TEST(misaligned_and_empty)
{
    refuse(region(memfd(4 * PAGE_BYTES, F_SEAL_SHRINK), 16, PAGE_BYTES, MLA_ACCESS_READ), MLA_MISALIGNED, "offset");
    refuse(region(memfd(4 * PAGE_BYTES, F_SEAL_SHRINK), UINT64_MAX, PAGE_BYTES, MLA_ACCESS_READ), MLA_MISALIGNED,
           "offset");
    refuse(region(memfd(PAGE_BYTES, F_SEAL_SHRINK), 0, 0, MLA_ACCESS_READ), MLA_INVALID_ARGUMENT, "size");
    struct be_region cuda = region(memfd(PAGE_BYTES, F_SEAL_SHRINK), 0, PAGE_BYTES, MLA_ACCESS_READ);
    cuda.kind = MLA_REGION_CUDA_IPC;
    refuse(cuda, MLA_UNSUPPORTED, "kind");
}
END_TEST

/* The file cannot shrink, so every byte of the mapping can be read, now and later. */
START_TEST(sparse_terabyte)
{
#if defined(__SANITIZE_THREAD__)
    uint64_t bytes = UINT64_C(1) << 35; /* its shadow leaves no such gap for sure */
#else
    uint64_t bytes = UINT64_C(1) << 40;
#endif
    int fd = memfd(bytes, F_SEAL_SHRINK);
    struct be_region r = region(fd, 0, bytes, MLA_ACCESS_READ);
    ck_assert_int_eq(cpu_map(&r, NULL), 0);
    ck_assert_int_eq(ftruncate(fd, 0), -1);
    const volatile char *host = r.host;
    ck_assert_int_eq(host[0], 0);
    ck_assert_int_eq(host[bytes / 2], 0);
    ck_assert_int_eq(host[bytes - 1], 0);
    struct stat st;
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_lt((uint64_t)st.st_blocks * 512, UINT64_C(64) << 20);
    cpu_unmap(&r);
    close(fd);
}
END_TEST

MLA_SUITE(be_memory)
{
    TCase *tc = mla_tcase(suite, "memfd");
    tcase_add_test(tc, maps_what_is_sealed);
    tcase_add_test(tc, read_access_is_read_only);
    tcase_add_test(tc, write_seals);
    tcase_add_test(tc, not_sealed);
    tcase_add_test(tc, not_a_memfd);
    tcase_add_test(tc, a_regular_file);
    tcase_add_test(tc, out_of_bounds);
    tcase_add_test(tc, misaligned_and_empty);
    tcase_add_test(tc, sparse_terabyte);
}
