/* What the tests of the fake CUDA driver share. Each test runs in a process of its own. */
#ifndef MLA_TESTS_TEST_FAKE_CUDA_H
#define MLA_TESTS_TEST_FAKE_CUDA_H

#include <stdint.h>

#include "tests/support/check_main.h"
#include "tests/support/fake_cuda/fake_cuda.h"

#define OK(call)             ck_assert_int_eq((call), CUDA_SUCCESS)
#define REFUSED(call, error) ck_assert_int_eq((call), (error))
#define MIB                  (UINT64_C(1) << 20)
#define PTX                  ".version 8.0 .target sm_90a mla_test_decode mla_test_reduce fake_spin fake_read"

/* Sets $MLA_FAKE_CUDA, calls cuInit, makes the context of device 0 current. */
CUcontext fake_test_open(const char *config);
/* Asserts that nothing is open but what text says ("" for nothing). */
void fake_test_open_is(const char *text);
CUfunction fake_test_function(CUmodule *module, const char *name);
/* Launches a kernel with one 8-byte number, or a struct mla_abi_launch. */
CUresult fake_test_launch(CUstream stream, CUfunction function, const void *parameter);
/* A page of registered words. */
uint64_t *fake_test_words(void);
void fake_test_store(uint64_t *word, uint64_t value);
uint64_t fake_test_load(const uint64_t *word);

#endif
