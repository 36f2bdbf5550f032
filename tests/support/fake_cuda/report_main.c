/* mla-fake-report DIR PID [CALL ...]: what a process has open of the fake CUDA driver, one line; then for each CALL how
 * often it was called, one line each. Exit 0 when nothing is open, 1 when something is, 2 when there is no report. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/fake_cuda/fake_cuda.h"

int main(int argc, char **argv)
{
    struct mla_fake_report report;
    char open[512];
    if (argc < 3) {
        fprintf(stderr, "usage: mla-fake-report DIR PID [CALL ...]\n");
        return 2;
    }
    int rc = mla_fake_report_read(argv[1], (pid_t)atoi(argv[2]), &report);
    if (rc != 0) {
        fprintf(stderr, "mla-fake-report: %s/%s: %s\n", argv[1], argv[2], strerror(-rc));
        return 2;
    }
    size_t length = mla_fake_report_open(&report, open, sizeof open);
    printf("%s\n", open);
    for (int i = 3; i < argc; i++) {
        int call = mla_fake_call_find(argv[i]);
        if (call < 0) {
            fprintf(stderr, "mla-fake-report: no call is named %s\n", argv[i]);
            return 2;
        }
        printf("%s=%llu\n", argv[i], (unsigned long long)report.calls[call]);
    }
    return length == 0 ? 0 : 1;
}
