/* The fake CUDA driver in one process: contexts, memory, streams, graphs. */
#include "tests/unit/test_fake_cuda.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SYMBOL_TEXT(name) #name
#define SYMBOL(name)      SYMBOL_TEXT(name)

START_TEST(every_entry_point_is_exported)
{
    static const char *const symbols[] = {
#define ENTRY(name) SYMBOL(name),
        CUDA_DRIVER_LIST(ENTRY)
#undef ENTRY
    };
    ck_assert_str_eq(symbols[mla_fake_call_find("cuMemAlloc")], "cuMemAlloc_v2");
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        ck_assert_msg(dlsym(RTLD_DEFAULT, symbols[i]) != NULL, "%s", symbols[i]);
}
END_TEST

START_TEST(calls_need_init_and_a_context)
{
    CUcontext context;
    CUdeviceptr p;
    int count = 0;
    REFUSED(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    ck_assert_int_eq(count, 1);
    REFUSED(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    REFUSED(cuMemAlloc(&p, 1), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&p, 1));
    OK(cuDevicePrimaryCtxRelease(0));
    REFUSED(cuMemFree(p), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    REFUSED(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    fake_test_open_is("allocations=1 allocated_bytes=1"); /* leaked by this test, though freed */
}
END_TEST

START_TEST(devices_are_configured)
{
    CUuuid uuid;
    size_t total;
    int value;
    char name[32];
    fake_test_open("devices=2;memory=3G;sms=66;capability=8.6;name=Small;uuid=000102030405060708090a0b0c0d0e0f;"
                   "attribute.133=1");
    OK(cuDeviceGetUuid(&uuid, 1));
    ck_assert_int_eq(uuid.bytes[0], 0);
    ck_assert_int_eq(uuid.bytes[15], 16);
    OK(cuDeviceTotalMem(&total, 0));
    ck_assert_uint_eq(total, 3072 * MIB);
    OK(cuDeviceGetName(name, sizeof name, 1));
    ck_assert_str_eq(name, "Small");
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    ck_assert_int_eq(value, 66);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0));
    ck_assert_int_eq(value, 6);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, 0));
    ck_assert_int_eq(value, 1);
    REFUSED(cuDeviceGetName(name, sizeof name, 2), CUDA_ERROR_INVALID_DEVICE);
}
END_TEST

START_TEST(device_memory)
{
    CUdeviceptr p, q, base;
    size_t bytes, free_bytes, total;
    unsigned char back[4];
    fake_test_open("memory=4M");
    OK(cuMemAlloc(&p, 3 * MIB));
    REFUSED(cuMemAlloc(&q, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemGetInfo(&free_bytes, &total));
    ck_assert_uint_eq(free_bytes, MIB);
    OK(cuMemcpyDtoH(back, p + 100, 4));
    ck_assert_mem_eq(back, "\xff\xff\xff\xff", 4); /* fresh memory is not zero */
    OK(cuMemcpyHtoD(p + 100, "abcd", 4));
    OK(cuMemcpyDtoH(back, p + 100, 4));
    ck_assert_mem_eq(back, "abcd", 4);
    OK(cuMemGetAddressRange(&base, &bytes, p + 3 * MIB - 1));
    ck_assert_uint_eq(base, p);
    ck_assert_uint_eq(bytes, 3 * MIB);
    REFUSED(cuMemGetAddressRange(&base, &bytes, p + 3 * MIB), CUDA_ERROR_NOT_FOUND);
    REFUSED(cuMemcpyHtoD(p + 3 * MIB - 2, "abcd", 4), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuMemFree(p + 1), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(p));
    REFUSED(cuMemcpyHtoD(p, "abcd", 4), CUDA_ERROR_INVALID_VALUE);
    fake_test_open_is("contexts=1");
    OK(cuDevicePrimaryCtxRelease(0));
    fake_test_open_is("");
}
END_TEST

START_TEST(pointers_tell_what_they_are)
{
    CUdeviceptr p, start;
    unsigned type;
    unsigned char capable;
    size_t bytes;
    int ordinal = -1;
    void *host;
    fake_test_open("");
    OK(cuMemAlloc(&p, 100));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 50));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    ck_assert_uint_eq(capable, 1);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 50));
    ck_assert_uint_eq(start, p);
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 50));
    ck_assert_uint_eq(bytes, 100);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    ck_assert_int_eq(ordinal, 0);
    REFUSED(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p + 100), CUDA_ERROR_INVALID_VALUE);

    OK(cuMemHostAlloc(&host, 10, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)host));
    ck_assert_uint_eq(type, CU_MEMORYTYPE_HOST);
    OK(cuMemFreeHost(host));
    OK(cuMemFree(p));
}
END_TEST

START_TEST(host_memory_is_registered_once)
{
    fake_test_open("");
    uint64_t *words = fake_test_words();
    CUdeviceptr device;
    REFUSED(cuMemHostRegister(words, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    OK(cuMemHostGetDevicePointer(&device, words + 1, 0));
    ck_assert_uint_eq(device, (CUdeviceptr)(uintptr_t)(words + 1));
    OK(cuMemHostUnregister(words));
    REFUSED(cuMemHostUnregister(words), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    REFUSED(cuMemHostGetDevicePointer(&device, words, 0), CUDA_ERROR_INVALID_VALUE);
    munmap(words, 4096);
    REFUSED(cuMemHostRegister(words, 4096, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(a_stream_executes_in_order_and_waits)
{
    CUstream stream;
    CUevent event;
    CUdeviceptr p;
    unsigned char back[2] = {0, 0};
    fake_test_open("");
    uint64_t *words = fake_test_words();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)words;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, 0));
    OK(cuEventQuery(event)); /* never recorded: complete */
    OK(cuMemAlloc(&p, 2));
    OK(cuMemsetD8Async(p, 1, 2, stream));
    OK(cuStreamWaitValue64(stream, at, 5, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(p, 2, 1, stream));
    OK(cuStreamWriteValue64(stream, at + 64, 7, 0));
    OK(cuEventRecord(event, stream));
    usleep(20000);
    REFUSED(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    REFUSED(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    ck_assert_uint_eq(fake_test_load(&words[8]), 0);
    fake_test_store(words, 4);
    usleep(5000);
    REFUSED(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    fake_test_store(words, 5);
    OK(cuEventSynchronize(event));
    ck_assert_uint_eq(fake_test_load(&words[8]), 7);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamQuery(stream));
    OK(cuMemcpyDtoH(back, p, 2));
    ck_assert_int_eq(back[0], 2);
    ck_assert_int_eq(back[1], 1);
    OK(cuMemFree(p));
    OK(cuEventDestroy(event));
    REFUSED(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamDestroy(stream));
    REFUSED(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuMemHostUnregister(words));
    fake_test_open_is("contexts=1");
}
END_TEST

START_TEST(a_stream_waits_for_what_an_event_has_recorded)
{
    CUstream first, second;
    CUevent event;
    CUdeviceptr p;
    unsigned char back;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)words;
    OK(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&p, 1));
    OK(cuStreamWaitEvent(second, event, 0)); /* nothing recorded: nothing to wait for */
    OK(cuStreamSynchronize(second));
    OK(cuStreamWaitValue64(first, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD8Async(p, 1, 1, first));
    OK(cuEventRecord(event, first));
    OK(cuStreamWaitEvent(second, event, CU_EVENT_WAIT_DEFAULT));
    OK(cuMemsetD8Async(p, 2, 1, second));
    OK(cuStreamWaitValue64(first, at, 2, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuEventRecord(event, first)); /* after the wait: not waited for */
    usleep(5000);
    REFUSED(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    fake_test_store(words, 1);
    OK(cuStreamSynchronize(second));
    OK(cuMemcpyDtoH(&back, p, 1));
    ck_assert_int_eq(back, 2);
    REFUSED(cuStreamWaitEvent(second, event, 77), CUDA_ERROR_INVALID_VALUE);
    fake_test_store(words, 2);
    OK(cuStreamSynchronize(first));
    OK(cuEventDestroy(event));
    REFUSED(cuStreamWaitEvent(second, event, 0), CUDA_ERROR_INVALID_HANDLE);
    OK(cuStreamDestroy(first));
    OK(cuStreamDestroy(second));
    OK(cuMemFree(p));
    OK(cuMemHostUnregister(words));
    fake_test_open_is("contexts=1");
}
END_TEST

START_TEST(waits_compare_as_the_driver_does)
{
    CUstream stream;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)words;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    fake_test_store(words, 3 + (UINT64_C(1) << 62)); /* an abort value is at or beyond any that is near */
    OK(cuStreamWaitValue64(stream, at, 3, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamSynchronize(stream));
    fake_test_store(words, 1); /* 1 - UINT64_MAX = 2 */
    OK(cuStreamWaitValue64(stream, at, UINT64_MAX, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamSynchronize(stream));
    OK(cuStreamWaitValue64(stream, at, 2, CU_STREAM_WAIT_VALUE_EQ));
    usleep(5000);
    REFUSED(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    fake_test_store(words, 2);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamWaitValue64(stream, at, 6, CU_STREAM_WAIT_VALUE_AND));
    OK(cuStreamSynchronize(stream));
    REFUSED(cuStreamWaitValue64(stream, at + 4096, 0, 0), CUDA_ERROR_INVALID_VALUE);
    REFUSED(cuStreamWaitValue64(stream, at + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(the_end_of_a_context_ends_its_waits)
{
    CUstream stream;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)(words + 1), 1, 0));
    OK(cuDevicePrimaryCtxRelease(0));
    ck_assert_uint_eq(fake_test_load(&words[1]), 0);
    REFUSED(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

START_TEST(a_destroyed_stream_executes_what_it_holds)
{
    CUstream stream;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, (CUdeviceptr)(uintptr_t)(words + 1), 9, 0));
    OK(cuStreamDestroy(stream));
    fake_test_store(words, 1);
    while (fake_test_load(&words[1]) != 9)
        usleep(1000);
    OK(cuCtxSynchronize());
}
END_TEST

START_TEST(copies_take_pageable_memory_at_the_call)
{
    CUstream stream;
    CUdeviceptr p;
    char pageable[4] = "one", back[4] = "", *pinned;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, 8));
    OK(cuMemHostAlloc((void **)&pinned, 4, 0));
    memcpy(pinned, "one", 4);
    OK(cuStreamWaitValue64(stream, (CUdeviceptr)(uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemcpyHtoDAsync(p, pageable, 4, stream));
    OK(cuMemcpyHtoDAsync(p + 4, pinned, 4, stream));
    memcpy(pageable, "two", 4);
    memcpy(pinned, "two", 4);
    fake_test_store(words, 1);
    OK(cuMemcpyDtoHAsync(back, p, 4, stream)); /* to pageable memory: waits */
    ck_assert_str_eq(back, "one");
    OK(cuMemcpyDtoHAsync(back, p + 4, 4, stream));
    ck_assert_str_eq(back, "two");
    OK(cuMemFree(p));
}
END_TEST

START_TEST(events_measure_time)
{
    CUstream stream;
    CUevent a, b, untimed;
    CUmodule module;
    uint64_t spin_ns = 10000000;
    float ms = 0;
    fake_test_open("");
    CUfunction spin = fake_test_function(&module, "fake_spin");
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
    REFUSED(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_INVALID_HANDLE);
    OK(cuEventRecord(a, stream));
    OK(fake_test_launch(stream, spin, &spin_ns));
    OK(cuEventRecord(b, stream));
    OK(cuEventRecord(untimed, stream));
    REFUSED(cuEventElapsedTime(&ms, a, b), CUDA_ERROR_NOT_READY);
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime(&ms, a, b));
    ck_assert_double_ge((double)ms, 10.0);
    OK(cuEventSynchronize(untimed));
    REFUSED(cuEventElapsedTime(&ms, a, untimed), CUDA_ERROR_INVALID_HANDLE);
    OK(cuModuleUnload(module));
}
END_TEST

START_TEST(a_graph_is_replayed)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    char *pinned, back[4];
    CUdeviceptr p, forbidden;
    fake_test_open("");
    uint64_t *words = fake_test_words();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)words;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&p, 4));
    OK(cuMemHostAlloc((void **)&pinned, 4, 0));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemcpyHtoDAsync(p, pinned, 4, stream));
    OK(cuStreamWriteValue64(stream, at, 1, 0));
    OK(cuStreamWaitValue64(stream, at + 64, 1, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, at + 64, 0, 0));
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    ck_assert_uint_eq(fake_test_load(words), 0);
    for (int round = 0; round < 3; round++) {
        fake_test_store(words, 0);
        memset(pinned, 'a' + round, 4);
        OK(cuGraphLaunch(exec, stream));
        while (fake_test_load(words) != 1)
            usleep(100);
        REFUSED(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
        fake_test_store(&words[8], 1);
        OK(cuStreamSynchronize(stream));
        ck_assert_uint_eq(fake_test_load(&words[8]), 0);
        OK(cuMemcpyDtoH(back, p, 4));
        ck_assert_int_eq(back[3], 'a' + round);
    }
    OK(cuGraphExecDestroy(exec));

    /* A call that a capture does not permit ends it. */
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    REFUSED(cuMemAlloc(&forbidden, 4), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ck_assert_ptr_null(graph);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAlloc(&forbidden, 4));
    REFUSED(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    REFUSED(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuMemFree(forbidden));
    OK(cuMemFree(p));
    OK(cuMemFreeHost(pinned));
    OK(cuMemHostUnregister(words));
    OK(cuStreamDestroy(stream));
    fake_test_open_is("contexts=1");
}
END_TEST

MLA_SUITE(fake_cuda)
{
    TCase *tc = mla_tcase(suite, "driver");
    tcase_add_test(tc, every_entry_point_is_exported);
    tcase_add_test(tc, calls_need_init_and_a_context);
    tcase_add_test(tc, devices_are_configured);
    tcase_add_test(tc, device_memory);
    tcase_add_test(tc, pointers_tell_what_they_are);
    tcase_add_test(tc, host_memory_is_registered_once);
    tc = mla_tcase(suite, "streams");
    tcase_add_test(tc, a_stream_executes_in_order_and_waits);
    tcase_add_test(tc, a_stream_waits_for_what_an_event_has_recorded);
    tcase_add_test(tc, waits_compare_as_the_driver_does);
    tcase_add_test(tc, the_end_of_a_context_ends_its_waits);
    tcase_add_test(tc, a_destroyed_stream_executes_what_it_holds);
    tcase_add_test(tc, copies_take_pageable_memory_at_the_call);
    tcase_add_test(tc, events_measure_time);
    tcase_add_test(tc, a_graph_is_replayed);
}
