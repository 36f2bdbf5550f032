/* Regions from device pointers: what is found under them, what the daemon then reads, suspend and resume, refusals. */
#include "tests/integration/test_client_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static mla_cache_id define_cache(struct worker *w, mla_region_id region, uint64_t page_stride, uint64_t pages)
{
    struct mla_cache_desc d;
    mla_cache_id cache = 0;
    mla_cache_desc_init(&d);
    d.region = region;
    d.num_pages = pages;
    d.page_stride = page_stride;
    MLA(w, mla_cache_define(w->client, &d, LONG_US, &cache), MLA_OK);
    return cache;
}

/* Decodes n sequences, each on its own page of the cache, and compares. */
static void decode_all(struct worker *w, mla_cache_id cache, const struct rows *rows, size_t n, double start)
{
    struct mla_decode_args a = decode_args(cache, 1, rows);
    MLA(w, mla_decode(w->client, &a, LONG_US, NULL), MLA_OK);
    check_rows(w, rows, n, start);
}

static void put_identity(struct worker *w, size_t n)
{
    uint32_t pages[SEQS_MAX];
    for (size_t i = 0; i < n; i++)
        pages[i] = (uint32_t)i;
    put_tables(w, 1, pages, n);
}

/* ---- cudaMalloc ---- */

START_TEST(a_pointer_inside_an_allocation)
{
    enum { N = 5, LEAD = 8192 + 48 }; /* offsets are multiples of 16 */
    struct worker w;
    struct rows rows;
    CUdeviceptr block;
    mla_region_id region, again;
    worker_start(&w, "");
    rows_make(&w, &rows);
    OK(w.cu.cuMemAlloc(&block, LEAD + N * PAGE_BYTES));
    fill_pages(&w, block + LEAD, PAGE_BYTES, N, 1.0);
    MLA(&w,
        mla_cuda_region_register(w.client, block + LEAD, (uint64_t)N * PAGE_BYTES, MLA_ACCESS_READ, "kv", LONG_US,
                                 &region),
        MLA_OK);
    mla_cache_id cache = define_cache(&w, region, 0, N);
    put_identity(&w, N);
    decode_all(&w, cache, &rows, N, 1.0);
    /* The same allocation twice. */
    MLA(&w, mla_cuda_region_register(w.client, block, LEAD, MLA_ACCESS_READ, NULL, LONG_US, &again), MLA_OK);
    MLA(&w, mla_region_unregister(w.client, again, LONG_US), MLA_OK);
    decode_all(&w, cache, &rows, N, 1.0);
    MLA(&w, mla_cache_drop(w.client, cache, LONG_US), MLA_OK);
    MLA(&w, mla_region_unregister(w.client, region, LONG_US), MLA_OK);
    rows_free(&w, &rows);
    daemon_holds_no_memory(&w);
    OK(w.cu.cuMemFree(block));
    worker_stop(&w);
}
END_TEST

/* ---- cuMemMap ---- */

/* 35 allocations, in three frames; the range begins inside the first and ends inside the last. */
START_TEST(a_range_of_many_allocations)
{
    enum { N = 35, LEAD = 4096 };
    struct worker w;
    struct rows rows;
    struct vmm v;
    mla_region_id region;
    worker_start(&w, "");
    rows_make(&w, &rows);
    vmm_make(&w, &v, N, true);
    fill_pages(&w, v.address + LEAD, v.part_bytes, N, 0.5); /* one page in each */
    uint64_t bytes = (N - 1) * v.part_bytes + PAGE_BYTES;
    enum mla_access access = _i ? MLA_ACCESS_READ_WRITE : MLA_ACCESS_READ;
    MLA(&w, mla_cuda_region_register(w.client, v.address + LEAD, bytes, access, "kv", LONG_US, &region), MLA_OK);
    mla_cache_id cache = define_cache(&w, region, v.part_bytes, N);
    put_identity(&w, N);
    decode_all(&w, cache, &rows, N, 0.5);
    MLA(&w, mla_cache_drop(w.client, cache, LONG_US), MLA_OK);
    MLA(&w, mla_region_unregister(w.client, region, LONG_US), MLA_OK);
    rows_free(&w, &rows);
    daemon_holds_no_memory(&w);
    vmm_free(&w, &v);
    worker_stop(&w);
}
END_TEST

/* ---- suspend and resume ---- */

START_TEST(sleep_and_wake)
{
    enum { N = 20 };
    struct worker w;
    struct rows rows;
    struct vmm v;
    mla_region_id region;
    worker_start(&w, "");
    rows_make(&w, &rows);
    vmm_make(&w, &v, N, true);
    fill_pages(&w, v.address, v.part_bytes, N, 1.0);
    MLA(&w, mla_cuda_region_register(w.client, v.address, v.bytes, MLA_ACCESS_READ, "kv", LONG_US, &region), MLA_OK);
    mla_cache_id cache = define_cache(&w, region, v.part_bytes, N);
    put_identity(&w, N);
    decode_all(&w, cache, &rows, N, 1.0);
    for (int round = 0; round < 3; round++) {
        MLA(&w, mla_region_suspend(w.client, region, LONG_US), MLA_OK);
        struct mla_decode_args a = decode_args(cache, 1, &rows);
        MLA(&w, mla_decode(w.client, &a, LONG_US, NULL), MLA_SUSPENDED);
        MLA(&w, mla_region_suspend(w.client, region, LONG_US), MLA_SUSPENDED);
        vmm_free(&w, &v);
        vmm_make(&w, &v, N, true);
        fill_pages(&w, v.address, v.part_bytes, N, 2.0 + round);
        if (round == 1) { /* refused once: it stays suspended, and the next try begins anew */
            MLA(&w, mla_cuda_region_resume(w.client, region, v.address, v.bytes - v.part_bytes, LONG_US),
                MLA_INVALID_ARGUMENT);
            MLA(&w, mla_decode(w.client, &a, LONG_US, NULL), MLA_SUSPENDED);
        }
        MLA(&w, mla_cuda_region_resume(w.client, region, v.address, v.bytes, LONG_US), MLA_OK);
        decode_all(&w, cache, &rows, N, 2.0 + round);
    }
    MLA(&w, mla_cache_drop(w.client, cache, LONG_US), MLA_OK);
    MLA(&w, mla_region_unregister(w.client, region, LONG_US), MLA_OK);
    rows_free(&w, &rows);
    daemon_holds_no_memory(&w);
    vmm_free(&w, &v);
    worker_stop(&w);
}
END_TEST

START_TEST(cuda_malloc_memory_sleeps_too)
{
    enum { N = 3 };
    struct worker w;
    struct rows rows;
    CUdeviceptr block;
    mla_region_id region;
    worker_start(&w, "");
    rows_make(&w, &rows);
    OK(w.cu.cuMemAlloc(&block, N * PAGE_BYTES));
    MLA(&w, mla_cuda_region_register(w.client, block, N * PAGE_BYTES, MLA_ACCESS_READ, "kv", LONG_US, &region), MLA_OK);
    mla_cache_id cache = define_cache(&w, region, 0, N);
    put_identity(&w, N);
    MLA(&w, mla_region_suspend(w.client, region, LONG_US), MLA_OK);
    OK(w.cu.cuMemFree(block));
    OK(w.cu.cuMemAlloc(&block, 256 + N * PAGE_BYTES));
    fill_pages(&w, block + 256, PAGE_BYTES, N, 3.0);
    MLA(&w, mla_cuda_region_resume(w.client, region, block + 256, N * PAGE_BYTES, LONG_US), MLA_OK);
    decode_all(&w, cache, &rows, N, 3.0);
    MLA(&w, mla_cache_drop(w.client, cache, LONG_US), MLA_OK);
    MLA(&w, mla_region_unregister(w.client, region, LONG_US), MLA_OK);
    rows_free(&w, &rows);
    OK(w.cu.cuMemFree(block));
    worker_stop(&w);
}
END_TEST

/* ---- refusals ---- */

static void refused(struct worker *w, CUdeviceptr address, uint64_t bytes, enum mla_status want, const char *words)
{
    mla_region_id region = 77;
    MLA(w, mla_cuda_region_register(w->client, address, bytes, MLA_ACCESS_READ, NULL, LONG_US, &region), want);
    ck_assert_uint_eq(region, 77);
    ck_assert_msg(strstr(mla_last_error(w->client)->text, words) != NULL, "'%s' does not say '%s'",
                  mla_last_error(w->client)->text, words);
    ck_assert_str_eq(mla_cuda_last_error()->text, mla_last_error(w->client)->text);
}

START_TEST(refusals_say_what_would_work)
{
    struct worker w;
    struct vmm v;
    CUdeviceptr block;
    void *pinned = NULL;
    char local[64];
    worker_start(&w, "");
    OK(w.cu.cuMemAlloc(&block, 1 << 20));
    refused(&w, block + 4096, 1 << 20, MLA_OUT_OF_BOUNDS, "leaves its allocation");
    ck_assert_uint_eq(mla_last_error(w.client)->limit, (1 << 20) - 4096);
    ck_assert_str_eq(mla_last_error(w.client)->field, "bytes");
    refused(&w, block, 0, MLA_INVALID_ARGUMENT, "at least one byte");
    refused(&w, (CUdeviceptr)(uintptr_t)local, 64, MLA_INVALID_ARGUMENT, "not memory that CUDA knows");
    OK(w.cu.cuMemHostAlloc(&pinned, 4096, 0));
    refused(&w, (CUdeviceptr)(uintptr_t)pinned, 4096, MLA_UNSUPPORTED, "use cudaMalloc or cuMemCreate");
    OK(w.cu.cuMemFreeHost(pinned));

    vmm_make(&w, &v, 2, false);
    refused(&w, v.address, v.bytes, MLA_UNSUPPORTED, "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR");
    vmm_free(&w, &v);
    vmm_make(&w, &v, 2, true);
    refused(&w, v.address + 16, v.bytes, MLA_OUT_OF_BOUNDS, "nothing is mapped behind");
    ck_assert_uint_eq(mla_last_error(w.client)->limit, v.bytes - 16);
    vmm_free(&w, &v);

    OK(w.cu.cuCtxSetCurrent(NULL));
    refused(&w, block, 64, MLA_INVALID_ARGUMENT, "cudaSetDevice");
    OK(w.cu.cuCtxSetCurrent(w.context));
    mla_region_id region;
    ck_assert_int_eq(mla_cuda_region_register(NULL, block, 64, MLA_ACCESS_READ, NULL, 0, &region),
                     MLA_INVALID_ARGUMENT);
    ck_assert_int_eq(mla_cuda_region_resume(NULL, 1, block, 64, 0), MLA_INVALID_ARGUMENT);
    MLA(&w, mla_cuda_region_register(w.client, block, 64, MLA_ACCESS_READ, NULL, 0, NULL), MLA_INVALID_ARGUMENT);
    OK(w.cu.cuMemFree(block));
    worker_stop(&w);
}
END_TEST

START_TEST(another_gpu_is_told_apart)
{
    struct worker w;
    CUdevice second;
    CUcontext context;
    CUdeviceptr block;
    ck_assert_int_eq(setenv("MLA_FAKE_CUDA", "devices=2", 1), 0);
    worker_start(&w, "");
    OK(w.cu.cuDeviceGet(&second, 1));
    OK(w.cu.cuDevicePrimaryCtxRetain(&context, second));
    OK(w.cu.cuCtxSetCurrent(context));
    OK(w.cu.cuMemAlloc(&block, 4096));
    refused(&w, block, 4096, MLA_WRONG_DEVICE, mla_server(w.client)->gpu_uuid);
    OK(w.cu.cuMemFree(block));
    OK(w.cu.cuCtxSetCurrent(w.context));
    worker_stop(&w);
}
END_TEST

START_TEST(no_driver)
{
    struct worker w;
    mla_region_id region;
    worker_start(&w, "");
    ck_assert_int_eq(setenv("MLA_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1), 0);
    MLA(&w, mla_cuda_region_register(w.client, 4096, 4096, MLA_ACCESS_READ, NULL, LONG_US, &region), MLA_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(mla_last_error(w.client)->text, "/nonexistent/libcuda.so.1"));
    worker_stop(&w);
}
END_TEST

MLA_SUITE(client_cuda_memory)
{
    TCase *tc = mla_tcase_timeout(suite, "memory", 60);
    tcase_add_test(tc, a_pointer_inside_an_allocation);
    tcase_add_loop_test(tc, a_range_of_many_allocations, 0, 2);
    tcase_add_test(tc, sleep_and_wake);
    tcase_add_test(tc, cuda_malloc_memory_sleeps_too);
    tcase_add_test(tc, refusals_say_what_would_work);
    if (!worker_is_fake()) /* of the rest one needs a second GPU, and one changes the driver that it is told by */
        return;
    tcase_add_test(tc, another_gpu_is_told_apart);
    tcase_add_test(tc, no_driver);
}
