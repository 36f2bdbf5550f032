/* Where a process's counters lie. */
#ifndef MLA_TESTS_FAKE_CUDA_REPORT_FILE_H
#define MLA_TESTS_FAKE_CUDA_REPORT_FILE_H

#include <stdio.h>
#include <sys/types.h>

#define FAKE_REPORT_MAGIC UINT64_C(0x74726f7065726b66)

static inline void fake_report_path(char *out, size_t out_bytes, const char *directory, pid_t pid)
{
    snprintf(out, out_bytes, "%s/%d", directory, (int)pid);
}

#endif
