/* Mapping and unmapping of shared memory, order against launches, and the facts a backend states. */
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/support/decode_case.h"

#define MIB (UINT64_C(1) << 20)

static struct be_region region_of(int fd, uint64_t offset, uint64_t size, enum mla_access access)
{
    return (struct be_region){.kind = MLA_REGION_MEMFD, .access = access, .offset = offset, .size = size, .fd = fd};
}

/* Mappings of memfds of the tests in this process. */
static int memfd_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int n = 0;
    ck_assert_ptr_nonnull(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        n += strstr(line, "memfd:mla-test") != NULL;
    fclose(maps);
    return n;
}

/* For tests of memfds as data: false where the backend takes other memory. */
static bool open_for_memfds(struct rig *rig, int index)
{
    if (!rig_open(rig, index))
        return false;
    if (rig->facts->features & MLA_FEATURE_MEMFD)
        return true;
    rig_close(rig);
    return false;
}

static void refused(struct rig *rig, struct be_region region, enum mla_status want)
{
    enum mla_status code = rig_map(rig, &region);
    ck_assert_msg(code == want, "answered %s, right is %s", mla_status_name(code), mla_status_name(want));
    ck_assert_uint_eq(region.address, 0);
    ck_assert_ptr_null(region.impl);
}

/* A memfd without F_SEAL_SHRINK could be shrunk under the daemon; with F_SEAL_WRITE it cannot be written. */
START_TEST(seals)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(MIB, false);
    refused(&rig, region_of(fd, 0, MIB, MLA_ACCESS_READ), MLA_NOT_SEALED);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    refused(&rig, region_of(fd, 0, MIB, MLA_ACCESS_READ), MLA_NOT_SEALED);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
    refused(&rig, region_of(fd, 0, MIB, MLA_ACCESS_READ_WRITE), MLA_ACCESS_DENIED);
    struct be_region good = region_of(fd, 0, MIB, MLA_ACCESS_READ);
    ck_assert_int_eq(rig_map(&rig, &good), MLA_OK);
    ck_assert_int_eq(rig_unmap(&rig, &good), MLA_OK);
    close(fd);
    ck_assert_int_eq(memfd_mappings(), 0);
    rig_close(&rig);
}
END_TEST

/* What is no memfd: a pipe, a socket-less number, a device, a file. */
START_TEST(descriptors_of_other_kinds)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    refused(&rig, region_of(ends[0], 0, 4096, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR);
    close(ends[0]);
    close(ends[1]);
    refused(&rig, region_of(ends[0], 0, 4096, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR);
    refused(&rig, region_of(-1, 0, 4096, MLA_ACCESS_READ), MLA_BAD_DESCRIPTOR);
    int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    refused(&rig, region_of(fd, 0, 4096, MLA_ACCESS_READ_WRITE), MLA_BAD_DESCRIPTOR);
    close(fd);
    char name[] = "/tmp/mla-test-XXXXXX";
    fd = mkstemp(name);
    ck_assert_int_ge(fd, 0);
    unlink(name);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    enum mla_status code;
    struct be_region region = region_of(fd, 0, 4096, MLA_ACCESS_READ);
    code = rig_map(&rig, &region); /* a file of a tmpfs has seals, but never this one */
    ck_assert(code == MLA_BAD_DESCRIPTOR || code == MLA_NOT_SEALED);
    close(fd);
    rig_close(&rig);
}
END_TEST

/* A descriptor opened for reading only cannot be mapped for writing. */
START_TEST(descriptor_without_the_access)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(MIB, true);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int read_only = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(read_only, 0);
    refused(&rig, region_of(read_only, 0, MIB, MLA_ACCESS_READ_WRITE), MLA_ACCESS_DENIED);
    struct be_region good = region_of(read_only, 0, MIB, MLA_ACCESS_READ);
    ck_assert_int_eq(rig_map(&rig, &good), MLA_OK);
    ck_assert_int_eq(rig_unmap(&rig, &good), MLA_OK);
    close(read_only);
    close(fd);
    rig_close(&rig);
}
END_TEST

/* Ranges that leave the file, overflow or are misaligned: refused, nothing left mapped. */
START_TEST(ranges)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(MIB, true);
    refused(&rig, region_of(fd, 0, MIB + 1, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, 4096, MIB, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, MIB, 1, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, 0, UINT64_MAX, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, UINT64_MAX - 4095, 8192, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, UINT64_C(1) << 63, UINT64_C(1) << 63, MLA_ACCESS_READ), MLA_OUT_OF_BOUNDS);
    refused(&rig, region_of(fd, 16, 4096, MLA_ACCESS_READ), MLA_MISALIGNED);
    struct be_region empty = region_of(fd, 0, 0, MLA_ACCESS_READ);
    ck_assert_int_ne(rig_map(&rig, &empty), MLA_OK);
    close(fd);
    ck_assert_int_eq(memfd_mappings(), 0);
    rig_close(&rig);
}
END_TEST

/* The backend maps that part of the file, with that access, and lives without the descriptor; UNMAP takes it away. */
START_TEST(map_shows_the_file)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(MIB, true);
    struct be_region two[2] = {region_of(fd, 8192, 4096, MLA_ACCESS_READ), region_of(fd, 8192, 8192, MLA_ACCESS_READ)};
    ck_assert_int_eq(rig_map(&rig, &two[0]), MLA_OK);
    ck_assert_int_eq(rig_map(&rig, &two[1]), MLA_OK); /* the same bytes once more */
    ck_assert_int_eq(pwrite(fd, "word", 4, 8192), 4);
    close(fd);
    const void *host = two[0].host;
    if (host != NULL) {
        ck_assert_mem_eq(host, "word", 4);
        ck_assert(!rig_unreadable(host, 4096));
    }
    int mappings = memfd_mappings();
    ck_assert_int_eq(rig_unmap(&rig, &two[0]), MLA_OK);
    if (host != NULL) { /* at that address there may be anything by now */
        ck_assert(memfd_mappings() == mappings - 1 || host == two[1].host);
        ck_assert_mem_eq(two[1].host, "word", 4);
    }
    ck_assert_int_eq(rig_unmap(&rig, &two[1]), MLA_OK);
    ck_assert_int_eq(memfd_mappings(), 0);
    rig_close(&rig);
}
END_TEST

/* READ means that nothing of this process can write it through that mapping. */
START_TEST(read_regions_are_not_writable)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(MIB, true);
    struct be_region region = region_of(fd, 0, MIB, MLA_ACCESS_READ);
    ck_assert_int_eq(rig_map(&rig, &region), MLA_OK);
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    while (fgets(line, sizeof(line), maps) != NULL)
        if (strstr(line, "memfd:mla-test") != NULL)
            ck_assert_ptr_nonnull(strstr(line, " r--"));
    fclose(maps);
    ck_assert_int_eq(rig_unmap(&rig, &region), MLA_OK);
    close(fd);
    rig_close(&rig);
}
END_TEST

/* A sparse memfd of 1 TiB: mapped or refused, and no memory is taken for it. */
START_TEST(sparse_tebibyte)
{
    struct rig rig;
    if (!open_for_memfds(&rig, _i))
        return;
    int fd = rig_memfd(UINT64_C(1) << 40, true);
    struct be_region region = region_of(fd, 0, UINT64_C(1) << 40, MLA_ACCESS_READ);
    enum mla_status code = rig_map(&rig, &region);
    ck_assert(code == MLA_OK || code == MLA_OUT_OF_MEMORY);
    if (code == MLA_OK)
        ck_assert_int_eq(rig_unmap(&rig, &region), MLA_OK);
    close(fd);
    ck_assert_int_eq(memfd_mappings(), 0);
    rig_close(&rig);
}
END_TEST

/* Kinds that this backend does not map are refused by name. */
START_TEST(kinds_of_other_backends)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    int fd = rig_memfd(MIB, true);
    struct be_region region = region_of(fd, 0, MIB, MLA_ACCESS_READ);
    if (!(rig.facts->features & MLA_FEATURE_CUDA_IPC)) {
        region.kind = MLA_REGION_CUDA_IPC;
        refused(&rig, region, MLA_UNSUPPORTED);
    }
    if (!(rig.facts->features & MLA_FEATURE_CUDA_VMM)) {
        region.kind = MLA_REGION_CUDA_VMM;
        refused(&rig, region, MLA_UNSUPPORTED);
    }
    close(fd);
    rig_close(&rig);
}
END_TEST

/* An UNMAP submitted behind a LAUNCH waits for its end: the outputs are whole, and the order of events says so. */
START_TEST(unmap_waits_for_the_launch)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    for (int round = 0; round < 3; round++) {
        struct dc *c = dc_new(&rig);
        struct dc_job *j = dc_add(c, &(struct dc_shape){.heads = 96,
                                                        .n_seqs = 2,
                                                        .seqs = SEQS({8, 1500}, {4, 700}),
                                                        .table = DC_REGION,
                                                        .kv_len = DC_REGION,
                                                        .ref_head_step = 50,
                                                        .seed = 3});
        struct mem *mem[] = {&j->pool, &j->q_mem, &j->o_mem, &j->lse_mem, &j->table_mem, &j->kv_len_mem};
        struct ticket unmap[6];
        dc_plan(c);
        dc_launch(c);
        for (int i = 0; i < 6; i++) {
            unmap[i] = (struct ticket){.request = {.op = BE_UNMAP, .region = &mem[i]->region}};
            rig_submit(&rig, &unmap[i]);
        }
        for (int i = 0; i < 6; i++)
            rig_wait(&rig, &unmap[i]);
        ck_assert_uint_ne(c->ticket.ended_at, 0);
        dc_pull(c);
        for (int i = 0; i < 6; i++) {
            ck_assert_uint_gt(unmap[i].ended_at, c->ticket.ended_at);
            ck_assert_int_eq(unmap[i].error.code, MLA_OK);
        }
        dc_check(j);
        struct be_region again = {0};
        for (int i = 0; i < 6; i++) { /* the builder's own: unmapped already, only our view is left */
            ck_assert_ptr_eq(mem[i]->region.impl, again.impl);
            mem_forget(mem[i]);
        }
        dc_free(c);
    }
    rig_close(&rig);
}
END_TEST

/* Launches submitted one behind the other end in that order, each whole. */
START_TEST(launches_in_a_row)
{
    struct rig rig;
    if (!rig_open(&rig, _i))
        return;
    struct dc *c[6];
    for (uint32_t i = 0; i < 6; i++) {
        struct dc_seq seqs[1] = {{1 + i, 600 - 100 * i, 0}};
        c[i] = dc_new(&rig);
        dc_add(c[i], &(struct dc_shape){.heads = 8 + i, .n_seqs = 1, .seqs = seqs, .seed = i});
        c[i]->request.splits = i;
        dc_plan(c[i]);
    }
    for (int i = 0; i < 6; i++)
        dc_launch(c[i]);
    for (int i = 0; i < 6; i++) {
        dc_wait(c[i]);
        ck_assert(i == 0 || c[i]->ticket.ended_at > c[i - 1]->ticket.ended_at);
        ck_assert(i == 0 || c[i]->batch.started_ns >= c[i - 1]->batch.ended_ns);
        dc_check_all(c[i]);
    }
    for (int i = 0; i < 6; i++)
        dc_free(c[i]);
    rig_close(&rig);
}
END_TEST

/* What a backend says of itself holds together and is stable. */
START_TEST(facts)
{
    struct rig rig;
    struct be_facts first;
    if (!rig_open(&rig, _i))
        return;
    first = *rig.facts;
    ck_assert_str_eq(first.name, be_all[_i]->name);
    ck_assert_ptr_eq(be_find(first.name), be_all[_i]);
    ck_assert_ptr_null(be_find("no such backend"));
    ck_assert_uint_ge(first.workspace_bytes, 64u << 20);
    ck_assert(first.tile_rows == 64 || first.tile_rows == 128 || first.tile_rows == 256);
    ck_assert_uint_gt(first.device.resident_units, 0);
    ck_assert_uint_gt(first.device.min_pages_per_split, 0);
    ck_assert_uint_gt(first.costs.page_ns, 0);
    ck_assert(first.features & MLA_FEATURE_DECODE);
    if (strcmp(first.name, "cpu") == 0) {
        ck_assert_str_eq(first.isolation, "host");
        ck_assert_uint_eq(strlen(first.gpu_uuid), 36);
        ck_assert(strncmp(first.gpu_uuid, "CPU-", 4) == 0);
        for (int i = 4; i < 36; i++)
            ck_assert(isxdigit((unsigned char)first.gpu_uuid[i]) && !isupper((unsigned char)first.gpu_uuid[i]));
    }
    rig_close(&rig);
    ck_assert(rig_open(&rig, _i));
    ck_assert_str_eq(rig.facts->gpu_uuid, first.gpu_uuid);
    rig_close(&rig);
}
END_TEST

/* Opened with one thread, or with as many as there are CPUs: the same bits for the same plan. */
START_TEST(bits_do_not_depend_on_threads)
{
    struct dc_bits bits[3];
    for (uint32_t threads = 0; threads < 3; threads++) {
        struct rig rig;
        struct be_config config = {.threads = threads, .workspace_bytes = 16u << 20};
        if (!rig_open_config(&rig, _i, &config))
            return;
        struct dc *c = dc_new(&rig);
        ck_assert_int_eq(plan_device_preset("h200", &c->request.device, &c->request.costs), 0);
        c->request.splits = 3;
        struct dc_job *j =
            dc_add(c, &(struct dc_shape){
                          .heads = 96, .n_seqs = 2, .seqs = SEQS({2, 500}, {3, 70}), .ref_head_step = 50, .seed = 4});
        dc_run(c);
        dc_check(j);
        bits[threads] = dc_bits(j);
        dc_assert_same(&bits[0], &bits[threads], NULL, "threads");
        dc_free(c);
        rig_close(&rig);
    }
    for (int i = 0; i < 3; i++)
        dc_bits_free(&bits[i]);
}
END_TEST

MLA_SUITE(backend_regions)
{
    TCase *tc = mla_tcase(suite, "regions and order");
    rig_add(tc, seals);
    rig_add(tc, descriptors_of_other_kinds);
    rig_add(tc, descriptor_without_the_access);
    rig_add(tc, ranges);
    rig_add(tc, map_shows_the_file);
    rig_add(tc, read_regions_are_not_writable);
    rig_add(tc, sparse_tebibyte);
    rig_add(tc, kinds_of_other_backends);
    rig_add(tc, unmap_waits_for_the_launch);
    rig_add(tc, launches_in_a_row);
    rig_add(tc, facts);
    rig_add(tc, bits_do_not_depend_on_threads);
}
