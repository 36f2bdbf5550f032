/* The counters: in a file of the report directory when there is one, so that they can be read from outside. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_cuda/fake.h"
#include "tests/support/fake_cuda/report_file.h"

static struct mla_fake_report local = {.magic = FAKE_REPORT_MAGIC, .bytes = sizeof local};
struct mla_fake_report *fake_report = &local;

void fake_report_open(const char *directory)
{
    char path[320];
    fake_report_path(path, sizeof path, directory, getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, sizeof local) != 0)
        fake_abort("%s: %m", path);
    void *mapped = mmap(NULL, sizeof local, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        fake_abort("%s: %m", path);
    close(fd);
    memcpy(mapped, &local, sizeof local);
    fake_report = mapped;
}

FAKE_API void mla_fake_report(struct mla_fake_report *out)
{
    fake_config();
    const uint64_t *from = (const uint64_t *)fake_report;
    uint64_t *to = (uint64_t *)out;
    for (size_t i = 0; i < sizeof *out / sizeof *to; i++)
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}
