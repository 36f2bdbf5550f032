#include "tests/bench/machine.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

uint64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Model name of the first CPU, "unknown" when the kernel does not tell. */
static void cpu_model(char *out, size_t bytes)
{
    snprintf(out, bytes, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += value[1] == ' ' ? 2 : 1;
        value[strcspn(value, "\n")] = '\0';
        snprintf(out, bytes, "%s", value);
        break;
    }
    fclose(f);
}

size_t bench_cpus(int *cpus, size_t cap)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 0;
    size_t n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set))
            continue;
        if (n < cap)
            cpus[n] = cpu;
        n++;
    }
    return n;
}

int bench_pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0 ? 0 : -errno;
}

void bench_note_machine(struct bench_report *report)
{
    char model[96], date[32] = "unknown";
    struct utsname kernel;
    time_t now = time(NULL);
    struct tm utc;
    double load[1];
    cpu_model(model, sizeof model);
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    bench_note(report, "commit", "%s, %s", bench_commit, MLA_BENCH_BUILD_TYPE);
    bench_note(report, "date", "%s", date);
    bench_note(report, "cpu", "%s, %zu CPUs", model, bench_cpus(NULL, 0));
    if (uname(&kernel) == 0)
        bench_note(report, "kernel", "%s %s", kernel.sysname, kernel.release);
    if (getloadavg(load, 1) == 1)
        bench_note(report, "load", "%.2f before the run, one minute's average", load[0]);
}

int bench_find_program(const char *name, const char *in_build, char *out, size_t bytes)
{
    char self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return -1;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    const char *const names[] = {name, in_build};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(out, bytes, "%s/%s", self, names[i]);
        if (access(out, X_OK) == 0)
            return 0;
    }
    return -1;
}
