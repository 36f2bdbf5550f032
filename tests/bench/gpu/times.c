#include "tests/bench/gpu/times.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/bench/machine.h"

#define SAMPLE_EVERY_NS   UINT64_C(5000000)
#define PROGRESS_EVERY_NS UINT64_C(200000000)
#define POLL_NS           100000
#define AHEAD             16 /* graphs that are queued; more would block in the launch */
#define PACED_MAX         8192

static bool progress_shown;

void times_progress(const char *fmt, ...)
{
    va_list args;
    if (!isatty(STDERR_FILENO))
        return;
    va_start(args, fmt);
    fputs("\r\033[K", stderr);
    vfprintf(stderr, fmt, args);
    fflush(stderr);
    va_end(args);
    progress_shown = true;
}

void times_progress_end(void)
{
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

struct slot {
    size_t timed;
    uint32_t repeat;
    CUevent end;
};

static void warm_up(const struct gpu *gpu, const struct timed *timed, size_t n, double ms)
{
    uint64_t start = bench_now_ns();
    do {
        for (size_t i = 0; i < n; i++)
            GPU(gpu, cuGraphLaunch(timed[i].graph, gpu->stream));
        GPU(gpu, cuStreamSynchronize(gpu->stream));
    } while (1e-6 * (double)(bench_now_ns() - start) < ms);
}

static size_t plan_slots(const struct timed *timed, size_t n, struct slot *slots)
{
    size_t n_slots = 0;
    for (uint32_t round = 0; round < TIMES_REPEATS_MAX; round++)
        for (size_t k = 0; k < n; k++) {
            size_t i = (round + k) % n;
            if (round < timed[i].repeats)
                slots[n_slots++] = (struct slot){.timed = i, .repeat = round};
        }
    return n_slots;
}

/* Queues all graphs; samples what runs, and tells how far it is. */
static void run_slots(const struct gpu *gpu, struct timed *timed, const struct slot *slots, size_t n_slots,
                      const struct times_options *options)
{
    uint64_t sampled = 0, told = 0;
    for (size_t at = 0, queued = 0; at < n_slots;) {
        for (; queued < n_slots && queued < at + AHEAD; queued++) {
            GPU(gpu, cuGraphLaunch(timed[slots[queued].timed].graph, gpu->stream));
            GPU(gpu, cuEventRecord(slots[queued].end, gpu->stream));
        }
        CUresult result = gpu->driver.cuEventQuery(slots[at].end);
        if (result == CUDA_SUCCESS) {
            at++;
            continue;
        }
        if (result != CUDA_ERROR_NOT_READY)
            gpu_must(gpu, result, "cuEventQuery");
        uint64_t now = bench_now_ns();
        if (now - sampled >= SAMPLE_EVERY_NS) {
            nvml_sample(options->nvml, &timed[slots[at].timed].load);
            sampled = now;
        }
        if (options->label && now - told >= PROGRESS_EVERY_NS) {
            times_progress("%s: graph %zu of %zu", options->label, at + 1, n_slots);
            told = now;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
}

void times_measure(const struct gpu *gpu, struct timed *timed, size_t n, const struct times_options *options)
{
    size_t most = 0, n_slots;
    double *us = gpu_array(n * TIMES_REPEATS_MAX, sizeof *us);
    CUevent start;
    for (size_t i = 0; i < n; i++) {
        timed[i].load = (struct nvml_load){0};
        most += timed[i].repeats;
    }
    struct slot *slots = gpu_array(most, sizeof *slots);
    n_slots = plan_slots(timed, n, slots);
    GPU(gpu, cuEventCreate(&start, CU_EVENT_DEFAULT));
    for (size_t k = 0; k < n_slots; k++)
        GPU(gpu, cuEventCreate(&slots[k].end, CU_EVENT_DEFAULT));
    warm_up(gpu, timed, n, options->warmup_ms);
    /* One graph more in front: its launch hides what the first event and the first graph take the host. */
    GPU(gpu, cuGraphLaunch(timed[slots[0].timed].graph, gpu->stream));
    GPU(gpu, cuEventRecord(start, gpu->stream));
    run_slots(gpu, timed, slots, n_slots, options);
    for (size_t k = 0; k < n_slots; k++) {
        float ms = 0;
        const struct timed *t = &timed[slots[k].timed];
        GPU(gpu, cuEventElapsedTime(&ms, k == 0 ? start : slots[k - 1].end, slots[k].end));
        us[slots[k].timed * TIMES_REPEATS_MAX + slots[k].repeat] = 1e3 * (double)ms / t->launches;
    }
    for (size_t i = 0; i < n; i++)
        timed[i].us = bench_stats(us + i * TIMES_REPEATS_MAX, timed[i].repeats);
    for (size_t k = 0; k < n_slots; k++)
        GPU(gpu, cuEventDestroy(slots[k].end));
    GPU(gpu, cuEventDestroy(start));
    free(slots);
    free(us);
}

double times_paced(const struct gpu *gpu, CUgraphExec graph, uint32_t launches, double period_us, double ms)
{
    double *us = gpu_array(PACED_MAX, sizeof *us);
    size_t n = 0;
    uint64_t start = bench_now_ns(), period = (uint64_t)(1e3 * period_us * launches), next = start;
    CUevent from, to;
    GPU(gpu, cuEventCreate(&from, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventCreate(&to, CU_EVENT_DEFAULT));
    while (n < PACED_MAX && (n == 0 || 1e-6 * (double)(bench_now_ns() - start) < ms)) {
        float took = 0;
        while (bench_now_ns() < next) {
        }
        next = bench_now_ns() + period;
        GPU(gpu, cuEventRecord(from, gpu->stream));
        GPU(gpu, cuGraphLaunch(graph, gpu->stream));
        GPU(gpu, cuEventRecord(to, gpu->stream));
        GPU(gpu, cuStreamSynchronize(gpu->stream));
        GPU(gpu, cuEventElapsedTime(&took, from, to));
        us[n++] = 1e3 * (double)took / launches;
    }
    GPU(gpu, cuEventDestroy(from));
    GPU(gpu, cuEventDestroy(to));
    double median = bench_stats(us + n / 2, n - n / 2).median;
    free(us);
    return median;
}
