/* Faults as data, and the checks that memory in use stays. */
#include "tests/unit/test_fake_cuda.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void write_file(const char *path, const char *text)
{
    char beside[128];
    snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = fopen(beside, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(rename(beside, path), 0);
}

START_TEST(the_nth_call_fails)
{
    CUdeviceptr p;
    const char *name;
    struct mla_fake_report report;
    fake_test_open("cuMemAlloc@2 = fail OUT_OF_MEMORY; cuMemAlloc@4+=fail CUDA_ERROR_NOT_SUPPORTED");
    static const CUresult expected[] = {CUDA_SUCCESS, CUDA_ERROR_OUT_OF_MEMORY, CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED,
                                        CUDA_ERROR_NOT_SUPPORTED};
    for (int i = 0; i < 5; i++)
        REFUSED(cuMemAlloc(&p, 1), expected[i]);
    mla_fake_report(&report);
    ck_assert_uint_eq(report.calls[MLA_FAKE_cuMemAlloc], 5);
    ck_assert_uint_eq(report.allocations, 2);
    mla_fake_rules("");
    OK(cuMemAlloc(&p, 1));
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    ck_assert_str_eq(name, "CUDA_ERROR_OUT_OF_MEMORY");
}
END_TEST

START_TEST(a_lost_context_stays_lost)
{
    CUstream stream;
    CUevent event;
    CUdeviceptr p;
    CUcontext again;
    struct mla_fake_report report;
    int count;
    fake_test_open("cuMemAlloc=lose LAUNCH_FAILED");
    uint64_t *words = fake_test_words();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)(words + 1), 1, 0));
    OK(cuEventRecord(event, stream));
    REFUSED(cuMemAlloc(&p, 1), CUDA_ERROR_LAUNCH_FAILED);
    REFUSED(cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
    REFUSED(cuEventQuery(event), CUDA_ERROR_LAUNCH_FAILED);
    REFUSED(cuMemHostUnregister(words), CUDA_ERROR_LAUNCH_FAILED);
    OK(cuDeviceGetCount(&count));
    mla_fake_report(&report);
    ck_assert_uint_eq(report.lost, CUDA_ERROR_LAUNCH_FAILED);
    OK(cuDevicePrimaryCtxRelease(0));
    REFUSED(cuDevicePrimaryCtxRetain(&again, 0), CUDA_ERROR_LAUNCH_FAILED);
    ck_assert_uint_eq(fake_test_load(&words[1]), 0);
}
END_TEST

START_TEST(a_kernel_loses_the_context)
{
    static const char *const rules[] = {"", "kernel@2=lose ECC_UNCORRECTABLE", "kernel@2=fail LAUNCH_FAILED"};
    static const CUresult expected[] = {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE,
                                        CUDA_ERROR_LAUNCH_FAILED};
    CUmodule module;
    CUdeviceptr p, address = 4096;
    fake_test_open(rules[_i]);
    CUfunction read = fake_test_function(&module, "fake_read");
    OK(cuMemAlloc(&p, 1));
    OK(fake_test_launch(NULL, read, &p));
    OK(cuCtxSynchronize());
    OK(fake_test_launch(NULL, read, _i == 0 ? &address : &p));
    REFUSED(cuCtxSynchronize(), expected[_i]);
    REFUSED(fake_test_launch(NULL, read, &p), expected[_i]);
}
END_TEST

START_TEST(calls_and_kernels_are_held)
{
    char directory[] = "/tmp/mla-fake-XXXXXX", path[64], rules[256];
    CUmodule module;
    CUdeviceptr p;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/go", directory);
    snprintf(rules, sizeof rules, "kernel=hold %s;cuMemFree=delay 30", path);
    fake_test_open(rules);
    CUfunction read = fake_test_function(&module, "fake_read");
    OK(cuMemAlloc(&p, 1));
    OK(fake_test_launch(NULL, read, &p));
    usleep(20000);
    REFUSED(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    write_file(path, "");
    OK(cuStreamSynchronize(NULL));
    int64_t begun = now_ms();
    OK(cuMemFree(p));
    ck_assert_int_ge(now_ms() - begun, 29);
    unlink(path);
    rmdir(directory);
}
END_TEST

START_TEST(rules_of_a_file_come_at_any_time)
{
    char directory[] = "/tmp/mla-fake-XXXXXX", path[64], config[128];
    CUdeviceptr p;
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/rules", directory);
    snprintf(config, sizeof config, "faults=%s", path);
    fake_test_open(config);
    OK(cuMemAlloc(&p, 1));
    write_file(path, "# the second from now\ncuMemAlloc@2=fail OUT_OF_MEMORY\n");
    OK(cuMemAlloc(&p, 1));
    REFUSED(cuMemAlloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemAlloc(&p, 1));
    write_file(path, "cuMemAlloc=fail NOT_SUPPORTED\n");
    REFUSED(cuMemAlloc(&p, 1), CUDA_ERROR_NOT_SUPPORTED);
    unlink(path);
    OK(cuMemAlloc(&p, 1));
    rmdir(directory);
}
END_TEST

START_TEST(a_rule_kills)
{
    fake_test_open("cuCtxSynchronize=kill");
    cuCtxSynchronize();
}
END_TEST

START_TEST(a_rule_that_cannot_match_aborts)
{
    fake_test_open("cuMemAlloc2=fail OUT_OF_MEMORY");
}
END_TEST

static CUdeviceptr queue_copy_behind_a_wait(uint64_t **words)
{
    CUstream stream;
    CUdeviceptr p;
    fake_test_open("");
    *words = fake_test_words();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, 100));
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)*words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(p + 50, 0, 50, stream));
    return p;
}

START_TEST(freeing_memory_in_use_aborts)
{
    uint64_t *words;
    cuMemFree(queue_copy_behind_a_wait(&words));
}
END_TEST

START_TEST(unregistering_a_word_in_use_aborts)
{
    uint64_t *words;
    queue_copy_behind_a_wait(&words);
    cuMemHostUnregister(words);
}
END_TEST

START_TEST(unmapping_memory_in_use_aborts)
{
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handle;
    CUstream stream;
    CUdeviceptr p;
    size_t bytes;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    memset(&access, 0, sizeof access);
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemGetAllocationGranularity(&bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemCreate(&handle, 2 * bytes, &prop, 0)); /* only whole allocations are mapped */
    bytes *= 2;
    OK(cuMemAddressReserve(&p, bytes, 0, 0, 0));
    REFUSED(cuMemMap(p, bytes / 2, 0, handle, 0), CUDA_ERROR_NOT_SUPPORTED);
    OK(cuMemMap(p, bytes, 0, handle, 0));
    OK(cuMemSetAccess(p, bytes, &access, 1));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD8Async(p, 0, bytes, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemUnmap(p, bytes));
    OK(cuMemMap(p, bytes, 0, handle, 0));
    OK(cuMemSetAccess(p, bytes, &access, 1));
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(p + bytes - 1, 0, 1, stream));
    cuMemUnmap(p, bytes);
}
END_TEST

static void *store_later(void *word)
{
    usleep(10000);
    fake_test_store(word, 1);
    return NULL;
}

static void *synchronize(void *context)
{
    cuCtxSetCurrent(context);
    cuStreamSynchronize(NULL);
    return NULL;
}

/* Threads that wait in the driver are let go when their context ends. */
START_TEST(the_end_of_a_context_wakes_who_waits)
{
    pthread_t waiting, storing;
    CUcontext context = fake_test_open("");
    uint64_t *words = fake_test_words();
    OK(cuStreamWaitValue64(NULL, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    ck_assert_int_eq(pthread_create(&waiting, NULL, synchronize, context), 0);
    usleep(10000);
    OK(cuDevicePrimaryCtxRelease(0));
    pthread_join(waiting, NULL);
    fake_test_open("");
    ck_assert_int_eq(pthread_create(&storing, NULL, store_later, &words[1]), 0);
    OK(cuMemHostRegister(words, 4096, 0));
    OK(cuStreamWaitValue64(NULL, (CUdeviceptr)(uintptr_t)(words + 1), 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamSynchronize(NULL));
    pthread_join(storing, NULL);
}
END_TEST

/* Whoever sees a word may give its page up at once. */
START_TEST(a_written_word_is_not_in_use)
{
    CUstream stream;
    fake_test_open("");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 200; round++) {
        uint64_t *words = fake_test_words();
        OK(cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, 0));
        while (fake_test_load(words) != 1)
            continue;
        OK(cuMemHostUnregister(words));
    }
    fake_test_open_is("contexts=1 streams=1");
}
END_TEST

static void *hammer(void *context)
{
    CUstream stream;
    CUdeviceptr p;
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
        return NULL;
    for (int i = 0; i < 50; i++)
        if (cuMemAlloc(&p, 64) != CUDA_SUCCESS || cuMemsetD8Async(p, 1, 64, stream) != CUDA_SUCCESS ||
            cuStreamSynchronize(stream) != CUDA_SUCCESS || cuMemFree(p) != CUDA_SUCCESS)
            return NULL;
    return cuStreamDestroy(stream) == CUDA_SUCCESS ? context : NULL;
}

START_TEST(threads_share_a_context)
{
    enum { N = 4 };
    pthread_t threads[N];
    CUcontext context = fake_test_open("cuMemGetInfo=fail UNKNOWN");
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, hammer, context), 0);
    for (int i = 0; i < N; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, context);
    }
    fake_test_open_is("contexts=1");
}
END_TEST

MLA_SUITE(fake_cuda_faults)
{
    TCase *tc = mla_tcase(suite, "rules");
    tcase_add_test(tc, the_nth_call_fails);
    tcase_add_test(tc, a_lost_context_stays_lost);
    tcase_add_loop_test(tc, a_kernel_loses_the_context, 0, 3);
    tcase_add_test(tc, calls_and_kernels_are_held);
    tcase_add_test(tc, rules_of_a_file_come_at_any_time);
    tcase_add_test_raise_signal(tc, a_rule_kills, SIGKILL);
    tcase_add_test_raise_signal(tc, a_rule_that_cannot_match_aborts, SIGABRT);
    tc = mla_tcase(suite, "memory in use");
    tcase_add_test_raise_signal(tc, freeing_memory_in_use_aborts, SIGABRT);
    tcase_add_test_raise_signal(tc, unregistering_a_word_in_use_aborts, SIGABRT);
    tcase_add_test_raise_signal(tc, unmapping_memory_in_use_aborts, SIGABRT);
    tcase_add_test(tc, a_written_word_is_not_in_use);
    tcase_add_test(tc, the_end_of_a_context_wakes_who_waits);
    tcase_add_test(tc, threads_share_a_context);
}
