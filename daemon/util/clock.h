/* Time inside the daemon: nanoseconds of CLOCK_MONOTONIC, never wall time. */
#ifndef MLA_UTIL_CLOCK_H
#define MLA_UTIL_CLOCK_H

#include <stdint.h>
#include <time.h>

#define MLA_NS_PER_US UINT64_C(1000)
#define MLA_NS_PER_MS UINT64_C(1000000)
#define MLA_NS_PER_S  UINT64_C(1000000000)

/* Cannot fail: the clock is always there on Linux. Any thread. */
static inline uint64_t mla_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * MLA_NS_PER_S + (uint64_t)ts.tv_nsec;
}

#endif
