/* Memory of the CUDA backend: what is refused and how, what is opened once, what is left behind (nothing). Runs on the
 * fake driver and on a real one; what only the fake can tell is checked there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/check_main.h"
#include "tests/unit/test_be_cuda.h"

#define MIB    ((size_t)1 << 20)
#define CYCLES 300

struct fixture {
    struct rig rig;
    struct mla_fake_report before;
};

static void start(struct fixture *f)
{
    f->rig = cuda_rig();
    memset(&f->before, 0, sizeof f->before);
    for (int ms = 0; ms < 5000; ms++) { /* what starting has left on the stream ends */
        if (!cuda_fake_report(&f->before) || f->before.queued == 0)
            return;
        usleep(1000);
    }
}

/* Nothing is open that was not at the start. */
static void assert_nothing_left(const struct fixture *f)
{
    struct mla_fake_report now;
    if (!cuda_fake_report(&now))
        return;
#define SAME(name)                                                                                                     \
    ck_assert_msg(now.name == f->before.name, #name " went from %llu to %llu", (unsigned long long)f->before.name,     \
                  (unsigned long long)now.name);
    MLA_FAKE_RESOURCES(SAME)
#undef SAME
}

static void end(struct fixture *f)
{
    assert_nothing_left(f);
    rig_close(&f->rig);
}

static struct exported take(enum mla_region_kind kind, size_t bytes, size_t n_parts)
{
    struct exported e;
    int copy = rig_memfd(bytes, false);
    exporter_take(kind, bytes, n_parts, copy, &e);
    close(copy);
    return e;
}

static void refused(struct fixture *f, struct be_region region, enum mla_status code, const char *field,
                    const char *says)
{
    struct mla_error err = cuda_ask(&f->rig, BE_MAP, &region);
    ck_assert_msg(err.code == code, "answered %s (%s), right is %s", mla_status_name(err.code), err.text,
                  mla_status_name(code));
    ck_assert_str_eq(err.field ? err.field : "", field);
    ck_assert_msg(strstr(err.text, says) != NULL, "'%s' does not say '%s'", err.text, says);
    ck_assert_uint_eq(region.address, 0);
    ck_assert_ptr_null(region.host);
    ck_assert_ptr_null(region.impl);
    assert_nothing_left(f);
}

static void mapped(struct fixture *f, struct be_region *region)
{
    struct mla_error err = cuda_ask(&f->rig, BE_MAP, region);
    ck_assert_msg(err.code == MLA_OK, "%s: %s", mla_status_name(err.code), err.text);
    ck_assert_uint_ne(region->address, 0);
}

static void unmapped(struct fixture *f, struct be_region *region)
{
    struct mla_error err = cuda_ask(&f->rig, BE_UNMAP, region);
    ck_assert_msg(err.code == MLA_OK, "%s: %s", mla_status_name(err.code), err.text);
    ck_assert_uint_eq(region->address, 0);
    ck_assert_ptr_null(region->impl);
}

START_TEST(what_it_says_of_itself)
{
    struct fixture f;
    start(&f);
    const struct be_facts *facts = f.rig.facts;
    ck_assert_str_eq(facts->name, "cuda");
    ck_assert_uint_eq(strlen(facts->gpu_uuid), 40);
    ck_assert_int_eq(strncmp(facts->gpu_uuid, "GPU-", 4), 0);
    ck_assert(strcmp(facts->isolation, "shared") == 0 || strcmp(facts->isolation, "isolated") == 0);
    ck_assert_uint_eq(facts->features, MLA_FEATURE_DECODE | MLA_FEATURE_CUDA_IPC | MLA_FEATURE_CUDA_VMM |
                                           MLA_FEATURE_SYNC | MLA_FEATURE_SUSPEND | MLA_FEATURE_PUBLISH |
                                           MLA_FEATURE_STEP);
    /* All that is known to be taken: with 16 MiB for MIRROR. */
    ck_assert_uint_ge(facts->device_memory_bytes, facts->workspace_bytes + facts->scratch_bytes + (16u << 20));
    end(&f);
}
END_TEST

START_TEST(handles_that_are_refused)
{
    struct fixture f;
    start(&f);
    struct exported e = take(MLA_REGION_CUDA_IPC, MIB, 0);
    const struct be_region good = cuda_region(&e, MIB, MLA_ACCESS_READ);
    struct be_region r = good;
    uint8_t other[64];

    memset(other, 0x5a, sizeof other);
    r.ipc_handle = other;
    refused(&f, r, MLA_BAD_HANDLE, "cuda_ipc", "CUDA_VMM");
    memset(other, 0, sizeof other);
    refused(&f, r, MLA_BAD_HANDLE, "cuda_ipc", "CUDA_VMM");
    r.ipc_handle = NULL;
    refused(&f, r, MLA_INVALID_ARGUMENT, "cuda_ipc", "handle");

    r = good;
    r.size = 0;
    refused(&f, r, MLA_INVALID_ARGUMENT, "size", "one byte");
    r = good;
    r.block_size = UINT64_C(1) << 40;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "block_size", "bytes only");
    r = good;
    r.size = MIB + 1;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "size", "leaves its allocation");
    r.size = UINT64_MAX;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "size", "leaves its allocation");
    r = good;
    r.offset = r.block_size + 1;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "size", "leaves its allocation");
    r.offset = UINT64_MAX;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "size", "leaves its allocation");

    r = good;
    mapped(&f, &r); /* all those refusals have not spoilt the handle */
    unmapped(&f, &r);
    exporter_drop(&e);
    struct mla_fake_report report;
    r = good;
    if (cuda_fake_report(&report)) /* a driver may keep small blocks in stock after they were freed */
        refused(&f, r, MLA_BAD_HANDLE, "cuda_ipc", "may be gone");
    end(&f);
}
END_TEST

/* A handle of the daemon's own process: the driver has a result of its own for that. */
START_TEST(a_process_cannot_open_its_own)
{
    struct fixture f;
    start(&f);
    struct cuda_driver cu;
    char why[200];
    CUdevice device;
    CUcontext context;
    CUdeviceptr memory;
    CUipcMemHandle handle;
    ck_assert_int_eq(cuda_driver_open(NULL, &cu, why, sizeof why), 0);
    ck_assert_int_eq(cu.cuDeviceGet(&device, 0), CUDA_SUCCESS);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
    ck_assert_int_eq(cu.cuCtxSetCurrent(context), CUDA_SUCCESS);
    ck_assert_int_eq(cu.cuMemAlloc(&memory, MIB), CUDA_SUCCESS);
    ck_assert_int_eq(cu.cuIpcGetMemHandle(&handle, memory), CUDA_SUCCESS);
    cuda_fake_report(&f.before);
    struct be_region r = {.kind = MLA_REGION_CUDA_IPC,
                          .access = MLA_ACCESS_READ,
                          .size = MIB,
                          .block_size = MIB,
                          .ipc_handle = (const uint8_t *)&handle,
                          .fd = -1};
    refused(&f, r, MLA_BAD_HANDLE, "cuda_ipc", "own process");
    end(&f);
    ck_assert_int_eq(cu.cuMemFree(memory), CUDA_SUCCESS);
    ck_assert_int_eq(cu.cuDevicePrimaryCtxRelease(device), CUDA_SUCCESS);
}
END_TEST

START_TEST(descriptors_that_are_refused)
{
    struct fixture f;
    start(&f);
    struct exported e = take(MLA_REGION_CUDA_VMM, 8 * MIB, 3);
    ck_assert_uint_eq(e.n_parts, 3);
    const struct be_region good = cuda_region(&e, 8 * MIB, MLA_ACCESS_READ);
    struct be_part parts[3];
    struct be_region r = good;
    r.parts = parts;
    int ends[2];
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    const int wrong[] = {ends[0], rig_memfd(2 * MIB, true), open("/dev/null", O_RDWR | O_CLOEXEC), -1, 1000000};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(parts, e.parts, sizeof parts);
        parts[i % 3].fd = wrong[i];
        refused(&f, r, MLA_BAD_HANDLE, "parts.fd", "POSIX_FILE_DESCRIPTOR");
        if (wrong[i] >= 0 && wrong[i] != 1000000)
            close(wrong[i]);
    }
    close(ends[1]);

    memcpy(parts, e.parts, sizeof parts);
    r.size = good.size + 1;
    refused(&f, r, MLA_INVALID_ARGUMENT, "parts", "together");
    r.size = good.size;
    r.n_parts = 0;
    refused(&f, r, MLA_INVALID_ARGUMENT, "parts", "together");
    r.n_parts = 3;
    parts[1].size -= 4096;
    parts[2].size += 4096;
    refused(&f, r, MLA_MISALIGNED, "parts.size", "granularity");
    memcpy(parts, e.parts, sizeof parts);
    parts[1].offset = MIB;
    parts[1].size -= MIB;
    r.size -= MIB;
    refused(&f, r, MLA_INVALID_ARGUMENT, "parts.offset", "first part");
    r.size = good.size;
    memcpy(parts, e.parts, sizeof parts);
    parts[2].size += 4 * MIB; /* more than there is */
    r.size += 4 * MIB;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "parts.size", "inside");
    parts[2].size = UINT64_MAX - 4096;
    refused(&f, r, MLA_OUT_OF_BOUNDS, "parts.size", "large");
    parts[2].size = 0;
    refused(&f, r, MLA_INVALID_ARGUMENT, "parts.size", "one byte");

    r = good;
    mapped(&f, &r);
    unmapped(&f, &r);
    cuda_close_parts(&e);
    end(&f);
}
END_TEST

START_TEST(memfds_that_are_refused)
{
    struct fixture f;
    start(&f);
    struct be_region r = cuda_sync_region();
    struct be_region data = r;
    data.sync = false;
    refused(&f, data, MLA_UNSUPPORTED, "kind", "CUDA_IPC");
    struct be_region unsealed = r;
    unsealed.fd = rig_memfd(4096, false);
    refused(&f, unsealed, MLA_NOT_SEALED, "fd", "F_SEAL_SHRINK");
    close(unsealed.fd);
    struct be_region large = r;
    large.size = 8192;
    refused(&f, large, MLA_OUT_OF_BOUNDS, "size", "ends");
    mapped(&f, &r);
    ck_assert_ptr_nonnull(r.host);
    unmapped(&f, &r);
    close(r.fd);
    end(&f);
}
END_TEST

/* Regions of one allocation share its mapping; the last one closes it. */
START_TEST(an_allocation_is_opened_once)
{
    struct fixture f;
    start(&f);
    struct exported e = take(MLA_REGION_CUDA_IPC, MIB, 0);
    struct mla_fake_report report;
    struct be_region r[3];
    for (size_t i = 0; i < 3; i++) {
        r[i] = cuda_region(&e, MIB - 4096 * i, MLA_ACCESS_READ);
        r[i].offset += 4096 * i;
        mapped(&f, &r[i]);
        ck_assert_uint_eq(r[i].address, r[0].address + 4096 * i);
    }
    if (cuda_fake_report(&report)) {
        ck_assert_uint_eq(report.calls[MLA_FAKE_cuIpcOpenMemHandle], 1);
        ck_assert_uint_eq(report.ipc_opens, 1);
    }
    unmapped(&f, &r[0]);
    unmapped(&f, &r[2]);
    if (cuda_fake_report(&report))
        ck_assert_uint_eq(report.calls[MLA_FAKE_cuIpcCloseMemHandle], 0);
    unmapped(&f, &r[1]);
    if (cuda_fake_report(&report))
        ck_assert_uint_eq(report.calls[MLA_FAKE_cuIpcCloseMemHandle], 1);
    exporter_drop(&e);
    end(&f);
}
END_TEST

/* Sleep modes: the same regions come and go, with new handles each time. */
START_TEST(map_and_unmap_again_and_again)
{
    struct fixture f;
    start(&f);
    struct exported ipc = take(MLA_REGION_CUDA_IPC, MIB, 0);
    struct exported vmm = take(MLA_REGION_CUDA_VMM, 8 * MIB, 3);
    for (int i = 0; i < CYCLES; i++) {
        struct be_region r[3] = {cuda_region(&ipc, MIB, MLA_ACCESS_READ_WRITE),
                                 cuda_region(&vmm, 8 * MIB, i % 2 ? MLA_ACCESS_READ : MLA_ACCESS_READ_WRITE),
                                 cuda_sync_region()};
        for (int k = 0; k < 3; k++)
            mapped(&f, &r[k]);
        close(r[2].fd);
        for (int k = 0; k < 3; k++)
            unmapped(&f, &r[(k + i) % 3]);
        if (i % 50 == 0)
            assert_nothing_left(&f);
    }
    cuda_close_parts(&vmm);
    end(&f);
}
END_TEST

/* Descriptors may be closed, and their owner may go, once a region is mapped; a close with regions still mapped ends
 * them. */
START_TEST(close_ends_what_is_mapped)
{
    struct fixture f;
    start(&f);
    struct exported ipc = take(MLA_REGION_CUDA_IPC, MIB, 0);
    struct exported vmm = take(MLA_REGION_CUDA_VMM, 3 * MIB, 2);
    struct be_region r[3] = {cuda_region(&ipc, MIB, MLA_ACCESS_READ), cuda_region(&vmm, 3 * MIB, MLA_ACCESS_READ),
                             cuda_sync_region()};
    for (int k = 0; k < 3; k++)
        mapped(&f, &r[k]);
    close(r[2].fd);
    cuda_close_parts(&vmm);
    rig_close(&f.rig);
    struct mla_fake_report report;
    char open_now[300];
    if (cuda_fake_report(&report)) {
        mla_fake_report_open(&report, open_now, sizeof open_now);
        ck_assert_str_eq(open_now, "");
    }
}
END_TEST

/* READ is read-only for the GPU; the fake's device addresses are mappings of this process. */
START_TEST(access_is_what_was_declared)
{
    struct fixture f;
    start(&f);
    struct mla_fake_report report;
    if (cuda_fake_report(&report)) {
        struct exported e = take(MLA_REGION_CUDA_VMM, 4 * MIB, 1);
        for (int write = 0; write < 2; write++) {
            struct be_region r = cuda_region(&e, 4 * MIB, write ? MLA_ACCESS_READ_WRITE : MLA_ACCESS_READ);
            mapped(&f, &r);
            FILE *maps = fopen("/proc/self/maps", "re");
            ck_assert_ptr_nonnull(maps);
            char line[512], mode[5] = "";
            unsigned long long from, to;
            while (mode[0] == '\0' && fgets(line, sizeof line, maps))
                if (sscanf(line, "%llx-%llx %4s", &from, &to, mode) != 3 || r.address < from || r.address >= to)
                    mode[0] = '\0';
            fclose(maps);
            ck_assert_msg(strncmp(mode, write ? "rw" : "r-", 2) == 0, "mapped as '%s'", mode);
            unmapped(&f, &r);
        }
        cuda_close_parts(&e);
    }
    end(&f);
}
END_TEST

MLA_SUITE(be_cuda_memory)
{
    TCase *tc = mla_tcase(suite, "memory");
    tcase_add_test(tc, what_it_says_of_itself);
    tcase_add_test(tc, handles_that_are_refused);
    tcase_add_test(tc, a_process_cannot_open_its_own);
    tcase_add_test(tc, descriptors_that_are_refused);
    tcase_add_test(tc, memfds_that_are_refused);
    tcase_add_test(tc, an_allocation_is_opened_once);
    tcase_add_test(tc, map_and_unmap_again_and_again);
    tcase_add_test(tc, close_ends_what_is_mapped);
    tcase_add_test(tc, access_is_what_was_declared);
}
