#include "tests/unit/test_fake_cuda.h"

#include <stdlib.h>
#include <sys/mman.h>

CUcontext fake_test_open(const char *config)
{
    CUcontext context;
    ck_assert_int_eq(setenv("MLA_FAKE_CUDA", config, 1), 0);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    return context;
}

void fake_test_open_is(const char *text)
{
    struct mla_fake_report report;
    char open[512];
    mla_fake_report(&report);
    mla_fake_report_open(&report, open, sizeof open);
    ck_assert_str_eq(open, text);
}

CUfunction fake_test_function(CUmodule *module, const char *name)
{
    CUfunction function;
    OK(cuModuleLoadData(module, PTX));
    OK(cuModuleGetFunction(&function, *module, name));
    return function;
}

CUresult fake_test_launch(CUstream stream, CUfunction function, const void *parameter)
{
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 128,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    void *parameters[] = {(void *)(uintptr_t)parameter};
    return cuLaunchKernelEx(&config, function, parameters, NULL);
}

uint64_t *fake_test_words(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(page, MAP_FAILED);
    OK(cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
    return page;
}

void fake_test_store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

uint64_t fake_test_load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}
