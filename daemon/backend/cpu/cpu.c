#include "daemon/backend/cpu/cpu.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cpu/device.h"
#include "daemon/backend/cpu/identity.h"
#include "daemon/backend/cpu/launch.h"

#define THREADS_MAX 128u

struct backend {
    struct cpu_device device;
    struct be_facts facts;
};

/* Of one thread on an EPYC with AVX-512 (95 GFLOP/s in sgemm), from launches of 1 to 8 pages and 1 to 8 splits: a page
 * against 256 rows 390 us, an item 75 us beyond its pages, a split 125 us more with its share of the reduction. Other
 * machines differ in scale; what the planner compares are the ratios. */
static const struct plan_costs costs = {
    .launch_ns = 10000,
    .fill_ns = 40000,
    .page_ns = 390000,
    .drain_ns = 35000,
    .partial_ns = 20000,
    .reduce_launch_ns = 10000,
    .reduce_bytes_per_us = 15000,
    .reduce_fixed_ns = 10000,
};

static void fill_facts(struct be_facts *facts, uint32_t threads, uint64_t workspace_bytes)
{
    facts->name = "cpu";
    cpu_identity_uuid(facts->gpu_uuid, sizeof facts->gpu_uuid);
    cpu_identity_name(facts->device_name, sizeof facts->device_name);
    facts->isolation = "host";
    facts->features = MLA_FEATURE_DECODE | MLA_FEATURE_MEMFD | MLA_FEATURE_SYNC | MLA_FEATURE_SUSPEND |
                      MLA_FEATURE_PUBLISH | MLA_FEATURE_STEP;
    facts->device = (struct plan_device){.sms = threads,
                                         .ctas_per_unit = 1,
                                         .rows_per_unit = CPU_TILE_ROWS,
                                         .resident_units = threads,
                                         .min_pages_per_split = 8};
    facts->costs = costs;
    facts->tile_rows = CPU_TILE_ROWS;
    facts->workspace_bytes = workspace_bytes;
}

static int cpu_open(const struct be_config *config, struct backend **out, struct mla_error *err)
{
    uint32_t threads = config->threads != 0 ? config->threads : cpu_identity_count();
    if (threads > THREADS_MAX)
        threads = THREADS_MAX;
    /* The pool's threads are the parallelism: each calls a BLAS that works in the caller's thread. */
    openblas_set_num_threads(1);

    struct backend *be = calloc(1, sizeof *be);
    if (!be)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the CPU backend");
    fill_facts(&be->facts, threads, config->workspace_bytes);
    if (config->costs)
        be->facts.costs = *config->costs;
    int rc = cpu_device_open(&be->device, &be->facts, threads, config->workspace_bytes);
    if (rc != 0) {
        free(be);
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "the CPU backend with %u threads does not start: %s",
                             threads, strerror(-rc));
    }
    *out = be;
    return 0;
}

static void cpu_close(struct backend *be)
{
    cpu_device_close(&be->device);
    free(be);
}

static const struct be_facts *cpu_facts(const struct backend *be)
{
    return &be->facts;
}

static void cpu_spin(struct backend *be, bool spins)
{
    be_port_spin(&be->device.port, spins);
}

static int cpu_event_fd(const struct backend *be)
{
    return be->device.port.event_fd;
}

static size_t cpu_poll(struct backend *be, struct be_event *out, size_t cap)
{
    return be_port_poll(&be->device.port, out, cap);
}

static int cpu_submit(struct backend *be, struct be_request *request)
{
    return be_port_submit(&be->device.port, request);
}

#define HOST_ALIGN UINT64_C(64)

/* From calloc(), which has large pieces from the kernel as zeroes and so need not touch them; what it gave is written
 * down in front of what is handed out. */
static void *cpu_host_alloc(struct backend *be, size_t bytes, uint64_t *address)
{
    (void)be;
    if (bytes > SIZE_MAX - 2 * HOST_ALIGN)
        return NULL;
    char *base = calloc(1, bytes + 2 * HOST_ALIGN);
    if (!base)
        return NULL;
    char *memory = base + HOST_ALIGN + (HOST_ALIGN - (uintptr_t)base % HOST_ALIGN) % HOST_ALIGN;
    memcpy(memory - sizeof(base), &base, sizeof(base));
    if (address)
        *address = (uint64_t)(uintptr_t)memory;
    return memory;
}

static void cpu_host_free(struct backend *be, void *memory)
{
    char *base = NULL;
    (void)be;
    if (memory)
        memcpy(&base, (char *)memory - sizeof(base), sizeof(base));
    free(base);
}

static uint64_t cpu_progress(const struct backend *be)
{
    return be_port_progress(&be->device.port);
}

const struct be_ops be_cpu_ops = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .facts = cpu_facts,
    .event_fd = cpu_event_fd,
    .spin = cpu_spin,
    .poll = cpu_poll,
    .submit = cpu_submit,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .progress = cpu_progress,
};
