/* Reading the counters of a process, for tests that do not load the driver themselves. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/fake_cuda/report_file.h"

static const char *const call_names[MLA_FAKE_CALLS] = {
#define NAME(name) #name,
    CUDA_DRIVER_LIST(NAME)
#undef NAME
        "kernel",
    "copy",
    "set",
    "write",
    "wait",
    "event",
    "wait_event",
};

int mla_fake_call_find(const char *name)
{
    for (int i = 0; i < MLA_FAKE_CALLS; i++)
        if (!strcmp(call_names[i], name))
            return i;
    return -1;
}

int mla_fake_report_read(const char *directory, pid_t pid, struct mla_fake_report *out)
{
    char path[320];
    fake_report_path(path, sizeof path, directory, pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    ssize_t n = read(fd, out, sizeof *out);
    close(fd);
    bool whole = n == (ssize_t)sizeof *out && out->magic == FAKE_REPORT_MAGIC && out->bytes == sizeof *out;
    return whole ? 0 : n == 0 ? -ENOENT : -EBADMSG;
}

size_t mla_fake_report_open(const struct mla_fake_report *report, char *out, size_t out_bytes)
{
    const struct {
        const char *name;
        uint64_t value;
    } all[] = {
#define VALUE(name) {#name, report->name},
        MLA_FAKE_RESOURCES(VALUE)
#undef VALUE
    };
    size_t length = 0;
    if (out_bytes > 0)
        out[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i].value == 0)
            continue;
        size_t room = length < out_bytes ? out_bytes - length : 0;
        int n = snprintf(room ? out + length : NULL, room, "%s%s=%llu", length ? " " : "", all[i].name,
                         (unsigned long long)all[i].value);
        length += (size_t)n;
    }
    return length;
}
