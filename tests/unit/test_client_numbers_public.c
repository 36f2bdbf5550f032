/* Includes the public header only. The switches have no default: -Wswitch fails the build when an enumerator is added
 * to the header and not here. */
#include <mla/mla.h>

#include "tests/unit/test_client_numbers.h"

#define CASE(name)                                                                                                     \
    case MLA_##name:                                                                                                   \
        return #name;

const char *public_status_name(int number)
{
    switch ((enum mla_status)number) {
        CASE(OK)
        CASE(INVALID_ARGUMENT)
        CASE(NOT_FOUND)
        CASE(ALREADY_EXISTS)
        CASE(UNSUPPORTED)
        CASE(UNKNOWN_MESSAGE)
        CASE(MALFORMED)
        CASE(TOO_LARGE)
        CASE(MISALIGNED)
        CASE(OUT_OF_BOUNDS)
        CASE(OVERLAP)
        CASE(PERMISSION_DENIED)
        CASE(WRONG_DEVICE)
        CASE(NO_DESCRIPTORS)
        CASE(BAD_DESCRIPTOR)
        CASE(NOT_SEALED)
        CASE(BAD_HANDLE)
        CASE(VERSION_MISMATCH)
        CASE(HELLO_REQUIRED)
        CASE(ACCESS_DENIED)
        CASE(BUSY)
        CASE(NON_FINITE)
        CASE(QUOTA)
        CASE(OVERLOADED)
        CASE(DRAINING)
        CASE(CACHE_GONE)
        CASE(SUSPENDED)
        CASE(OUT_OF_MEMORY)
        CASE(TIMED_OUT)
        CASE(CANCELLED)
        CASE(LATE)
        CASE(READY_ABORTED)
        CASE(PROTOCOL_ERROR)
        CASE(DISCONNECTED)
        CASE(DEVICE_LOST)
        CASE(INTERNAL)
        CASE(SLOW_PEER)
        CASE(PARTIAL)
        CASE(PAGE_OUT_OF_RANGE)
        CASE(KV_LEN_OUT_OF_RANGE)
        CASE(VISIBLE_OUT_OF_RANGE)
        CASE(PENDING)
        CASE(SYSTEM_ERROR)
    }
    return NULL;
}

#define N(name)                                                                                                        \
    {                                                                                                                  \
#name, (uint64_t)(name)                                                                                        \
    }
const struct public_number public_numbers[] = {
    N(MLA_REGION_MEMFD),
    N(MLA_REGION_CUDA_IPC),
    N(MLA_REGION_CUDA_VMM),
    N(MLA_ACCESS_READ),
    N(MLA_ACCESS_READ_WRITE),
    N(MLA_CACHE_E4M3_576),
    N(MLA_CACHE_BF16_576),
    N(MLA_CACHE_E4M3_512_BF16_64_SCALED),
    N(MLA_DTYPE_E4M3),
    N(MLA_DTYPE_BF16),
    N(MLA_DTYPE_F32),
    N(MLA_MASK_NONE),
    N(MLA_MASK_CAUSAL),
    N(MLA_MASK_VISIBLE),
    N(MLA_GOAWAY_DRAINING),
    N(MLA_GOAWAY_FATAL),
    N(MLA_HEALTH_STARTING),
    N(MLA_HEALTH_READY),
    N(MLA_HEALTH_DEGRADED),
    N(MLA_HEALTH_DRAINING),
    N(MLA_HEALTH_FAILED),
    N(MLA_METRIC_COUNTER),
    N(MLA_METRIC_GAUGE),
    N(MLA_METRIC_HISTOGRAM),
    N(MLA_FEATURE_DECODE),
    N(MLA_FEATURE_MEMFD),
    N(MLA_FEATURE_CUDA_IPC),
    N(MLA_FEATURE_CUDA_VMM),
    N(MLA_FEATURE_SYNC),
    N(MLA_FEATURE_SUSPEND),
    N(MLA_FEATURE_STEP),
    N(MLA_FEATURE_PUBLISH),
    N(MLA_FEATURE_EVICT),
    N(MLA_FEATURE_RELOAD),
    N(MLA_FAULTS_MAX),
    N(MLA_ERROR_BYTES),
    {NULL, 0},
};
