#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/backend/cuda/cuda.h"
#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"
#include "daemon/util/log.h"

/* Loading PTX compiles it, and an MPS server starts with its first client. */
uint64_t cu_open_deadline_ns = 120 * MLA_NS_PER_S;
uint64_t cu_close_deadline_ns = 10 * MLA_NS_PER_S;

/* ---- GPU thread ---- */

static int open_driver(struct backend *be, struct mla_error *err)
{
    char why[MLA_MAX_TEXT_BYTES] = "";
    int rc = cuda_driver_open(NULL, &be->cu, why, sizeof why);
    if (rc != 0)
        return mla_error_set(err, MLA_UNSUPPORTED, NULL, "the CUDA driver cannot be used: %s", why);
    return 0;
}

static int open_context(struct backend *be, struct mla_error *err)
{
    int rc = cu_device_choose(be, err);
    if (rc != 0)
        return rc;
    CUresult r = be->cu.cuDevicePrimaryCtxRetain(&be->context, be->device);
    be->retained = r == CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuDevicePrimaryCtxRetain", MLA_OUT_OF_MEMORY, "gpu",
                         "no context on the GPU (is another process in exclusive mode, or the MPS server down?)");
    r = be->cu.cuCtxSetCurrent(be->context);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuCtxSetCurrent", MLA_INTERNAL, "gpu", "the context cannot be used");
    return 0;
}

static int open_kernels(struct backend *be, struct mla_error *err)
{
    char why[MLA_MAX_TEXT_BYTES] = "";
    const struct cu_options *o = &be->options;
    struct mla_kernels_options options = {.size = sizeof options,
                                          .directory = o->kernels_dir[0] ? o->kernels_dir : NULL,
                                          .variant = o->variant[0] ? o->variant : NULL,
                                          .programmatic = o->programmatic};
    int rc = mla_kernels_open(&be->cu, &options, &be->kernels, why, sizeof why);
    if (rc != 0)
        return mla_error_set(err, rc == -ENOMEM ? MLA_OUT_OF_MEMORY : MLA_UNSUPPORTED, "kernels_dir",
                             "no decode kernels for this GPU: %s", why);
    return 0;
}

static int open_memory(struct backend *be, struct mla_error *err)
{
    const char *call = "cuStreamCreate";
    CUdeviceptr device = 0;
    CUresult r = be->cu.cuStreamCreate(&be->stream, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        r = be->cu.cuStreamCreate(&be->copies, CU_STREAM_NON_BLOCKING);
    be->workspace_bytes = be->options.workspace_bytes + CU_SCRATCH_BYTES;
    if (r == CUDA_SUCCESS) {
        call = "cuMemAlloc";
        r = be->cu.cuMemAlloc(&be->workspace, be->workspace_bytes);
    }
    if (r == CUDA_SUCCESS) {
        call = "cuMemHostAlloc";
        r = be->cu.cuMemHostAlloc(&be->arena_memory, be->options.host_bytes,
                                  CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    }
    if (r == CUDA_SUCCESS) {
        call = "cuMemHostGetDevicePointer";
        r = be->cu.cuMemHostGetDevicePointer(&device, be->arena_memory, 0);
    }
    if (r == CUDA_SUCCESS)
        r = cu_mirror_open(be, &call);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, call, MLA_OUT_OF_MEMORY, "workspace_bytes",
                         "no memory for the workspace, copies of page tables or pinned host memory");
    be->arena_offset = (int64_t)((uint64_t)device - (uint64_t)(uintptr_t)be->arena_memory);
    cu_arena_init(&be->arena, be->arena_memory, be->options.host_bytes);
    return cu_slots_open(be, err);
}

int cu_start(struct backend *be, struct mla_error *err)
{
    size_t before = 0, after = 0, total = 0;
    int rc = open_driver(be, err);
    if (rc == 0)
        rc = open_context(be, err);
    if (rc != 0)
        return rc;
    CUresult r = be->cu.cuMemGetInfo(&before, &total);
    if (r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemGetInfo", MLA_INTERNAL, "gpu", "the GPU does not tell its memory");
    rc = open_kernels(be, err);
    if (rc != 0)
        return rc;
    be->word_writes = cu_device_attribute(be, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0;
    rc = open_memory(be, err);
    if (rc != 0)
        return rc;
    cu_device_facts(be);
    r = be->cu.cuMemGetInfo(&after, &total);
    if (!be->lost && r != CUDA_SUCCESS)
        return cu_refuse(be, err, r, "cuMemGetInfo", MLA_INTERNAL, "gpu", "the GPU does not tell its memory");
    /* Kernels, workspace and rings; what the context itself takes is there before it can be asked. What others of this
     * GPU take and give back meanwhile is in the difference, too: it is no less than what is known to be taken. */
    const uint64_t taken = be->facts.workspace_bytes + be->facts.scratch_bytes + CU_MIRROR_BYTES;
    be->facts.device_memory_bytes = before > after + taken ? before - after : taken;
    if (be->lost)
        *err = be->lost_error;
    return be->lost ? (int)MLA_DEVICE_LOST : 0;
}

void cu_stop(struct backend *be)
{
    be_watches_free(&be->watches);
    be_steps_free(&be->steps);
    if (be->stream && !be->lost)
        cu_ok(be, be->cu.cuStreamSynchronize(be->stream), "cuStreamSynchronize");
    if (be->copies && !be->lost) /* records of what was expected and did not come */
        cu_ok(be, be->cu.cuStreamSynchronize(be->copies), "cuStreamSynchronize");
    cu_mirror_close(be);
    cu_unmap_all(be);
    cu_slots_close(be);
    if (be->arena_memory && !be->lost)
        cu_ok(be, be->cu.cuMemFreeHost(be->arena_memory), "cuMemFreeHost");
    if (be->workspace && !be->lost)
        cu_ok(be, be->cu.cuMemFree(be->workspace), "cuMemFree");
    if (be->copies && !be->lost)
        cu_ok(be, be->cu.cuStreamDestroy(be->copies), "cuStreamDestroy");
    if (be->stream && !be->lost)
        cu_ok(be, be->cu.cuStreamDestroy(be->stream), "cuStreamDestroy");
    if (!be->lost)
        mla_kernels_close(be->kernels);
    if (be->retained && !be->lost)
        cu_ok(be, be->cu.cuDevicePrimaryCtxRelease(be->device), "cuDevicePrimaryCtxRelease");
    /* The library stays loaded: the driver has threads and exit handlers of its own, and there is one per process. */
}

/* ---- loop's thread ---- */

static void bad_variable(const char *name, const char *text)
{
    mla_log(MLA_LOG_WARNING, "bad_environment", "name=%s value=%s", name, text);
}

/* How many launches; text that is no number is told, and as none. */
static uint32_t graphs_after(const char *text)
{
    char *end;
    if (!text || text[0] == '\0')
        return CU_GRAPHS_AFTER;
    unsigned long long n = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0')
        return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX; /* as many as never come */
    bad_variable("MLA_CUDA_GRAPHS", text);
    return CU_GRAPHS_AFTER;
}

/* Which way of cuda.h; "": none. */
static const char *blob_way(const char *text)
{
    static const char *const ways[] = {"", "copied", "inline", "pinned", "pageable"};
    for (size_t i = 0; text && i < sizeof ways / sizeof ways[0]; i++)
        if (strcmp(text, ways[i]) == 0)
            return ways[i];
    if (text)
        bad_variable("MLA_CUDA_BLOB", text);
    return "";
}

static void copy_options(struct cu_options *o, const struct be_config *config)
{
    const char *blob = blob_way(getenv("MLA_CUDA_BLOB")), *plain = getenv("MLA_CUDA_PLAIN_LAUNCHES");
    snprintf(o->gpu, sizeof o->gpu, "%s", config->gpu ? config->gpu : "0");
    snprintf(o->kernels_dir, sizeof o->kernels_dir, "%s", config->kernels_dir ? config->kernels_dir : "");
    snprintf(o->variant, sizeof o->variant, "%s", config->variant ? config->variant : "");
    o->spin_ns = config->spin_us * MLA_NS_PER_US;
    o->host_bytes = config->host_bytes ? config->host_bytes : CU_HOST_BYTES;
    o->workspace_bytes = config->workspace_bytes;
    o->programmatic = !plain || plain[0] == '\0' || strcmp(plain, "0") == 0;
    o->blob_pageable = strcmp(blob, "pageable") == 0;
    o->blob_pinned = strcmp(blob, "pinned") == 0;
    o->graphs_after = o->blob_pageable ? 0 : graphs_after(getenv("MLA_CUDA_GRAPHS"));
    o->blob_always = strcmp(blob, "inline") == 0;
    o->blob_inline = o->blob_always || blob[0] == '\0';
    o->own_costs = config->costs != NULL;
    if (o->own_costs)
        o->costs = *config->costs;
}

static uint64_t scratch_with(const struct mla_kernels *kernels, const struct plan_request *request)
{
    struct plan_request r = *request;
    r.device = mla_kernels_facts(kernels)->device;
    uint64_t scratch = mla_kernels_scratch_bytes_max(kernels, &r), blob = mla_kernels_blob_bytes_max(kernels, &r);
    return scratch == UINT64_MAX || blob == UINT64_MAX ? UINT64_MAX : scratch + blob + CU_WORKSPACE_ALIGN;
}

/* A job's company may change which kernels it takes. */
static uint64_t cuda_scratch_bytes(const struct backend *be, const struct plan_request *request)
{
    struct mla_kernels *last = be->kernels, *next;
    while ((next = mla_kernels_few_rows(last)) != NULL)
        last = next; /* with the most units, whose scratch is the largest but for what the first ones have */
    uint64_t most = scratch_with(be->kernels, request), few = last != be->kernels ? scratch_with(last, request) : 0;
    return most > few ? most : few;
}

static void cuda_fit(const struct backend *be, struct plan_request *request)
{
    const struct mla_kernels *kernels = mla_kernels_for(be->kernels, request);
    request->device = mla_kernels_facts(kernels)->device;
    request->costs = kernels == be->kernels ? be->facts.costs : mla_kernels_facts(kernels)->costs;
}

static struct timespec after_ns(uint64_t ns)
{
    uint64_t at = mla_now_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(at / MLA_NS_PER_S), .tv_nsec = (long)(at % MLA_NS_PER_S)};
}

/* Waits until the thread has left state; false when it does not by then and is left to itself. */
static bool wait_while(struct backend *be, enum cu_state state, uint64_t ns, enum cu_state *now)
{
    struct timespec until = after_ns(ns);
    pthread_mutex_lock(&be->lock);
    while (be->state <= state && pthread_cond_timedwait(&be->changed, &be->lock, &until) != ETIMEDOUT)
        continue;
    *now = be->state;
    be->abandoned = be->state <= state;
    bool left = !be->abandoned;
    if (!left)
        pthread_detach(be->thread);
    pthread_mutex_unlock(&be->lock);
    return left;
}

static struct backend *new_backend(const struct be_config *config)
{
    struct backend *be = calloc(1, sizeof *be);
    if (!be)
        return NULL;
    copy_options(&be->options, config);
    list_init(&be->mappings);
    be_steps_init(&be->steps, &be->facts, be, cuda_scratch_bytes, cu_step_ended, be);
    be->steps.fit = cuda_fit;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&be->lock, NULL);
    pthread_cond_init(&be->changed, &clock);
    pthread_condattr_destroy(&clock);
    if (be_port_open(&be->port) != 0) {
        cu_free(be);
        return NULL;
    }
    return be;
}

static int cuda_open(const struct be_config *config, struct backend **out, struct mla_error *err)
{
    struct backend *be = new_backend(config);
    if (!be)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the CUDA backend");
    /* Before the driver is opened, and while the process has one thread: kernels are loaded when first used. */
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    sigset_t all, saved;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    int rc = pthread_create(&be->thread, NULL, cu_main, be);
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (rc != 0) {
        cu_free(be);
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no GPU thread: %s", strerror(rc));
    }
    enum cu_state state;
    if (!wait_while(be, CU_STARTING, cu_open_deadline_ns, &state))
        return mla_error_set(err, MLA_DEVICE_LOST, NULL, "the CUDA driver does not answer within %llu s",
                             (unsigned long long)(cu_open_deadline_ns / MLA_NS_PER_S));
    if (state == CU_ENDED) {
        pthread_join(be->thread, NULL);
        struct mla_error why = be->start_error;
        cu_free(be);
        if (err)
            *err = why;
        return (int)why.code;
    }
    *out = be;
    return 0;
}

static void cuda_close(struct backend *be)
{
    enum cu_state state;
    be_port_stop(&be->port);
    if (!wait_while(be, CU_RUNNING, cu_close_deadline_ns, &state)) {
        mla_log(MLA_LOG_ERROR, "gpu_thread_stuck", "deadline_ns=%llu", (unsigned long long)cu_close_deadline_ns);
        return;
    }
    pthread_join(be->thread, NULL);
    cu_free(be);
}

void cu_free(struct backend *be)
{
    be_port_close(&be->port);
    pthread_cond_destroy(&be->changed);
    pthread_mutex_destroy(&be->lock);
    free(be);
}

static const struct be_facts *cuda_facts(const struct backend *be)
{
    return &be->facts;
}

static void cuda_spin(struct backend *be, bool spins)
{
    be_port_spin(&be->port, spins);
}

static int cuda_event_fd(const struct backend *be)
{
    return be->port.event_fd;
}

static size_t cuda_poll(struct backend *be, struct be_event *out, size_t cap)
{
    return be_port_poll(&be->port, out, cap);
}

static int cuda_submit(struct backend *be, struct be_request *request)
{
    return be_port_submit(&be->port, request);
}

static void *cuda_host_alloc(struct backend *be, size_t bytes, uint64_t *address)
{
    void *memory = cu_arena_alloc(&be->arena, bytes);
    if (memory && address)
        *address = (uint64_t)(uintptr_t)memory + (uint64_t)be->arena_offset;
    return memory;
}

static void cuda_host_free(struct backend *be, void *memory)
{
    cu_arena_free(&be->arena, memory);
}

static uint64_t cuda_device_alloc(struct backend *be, size_t bytes)
{
    return cu_device_arena_alloc(&be->device_arena, bytes);
}

static void cuda_device_free(struct backend *be, uint64_t address, size_t bytes)
{
    cu_device_arena_free(&be->device_arena, address, bytes);
}

static uint64_t cuda_progress(const struct backend *be)
{
    return be_port_progress(&be->port);
}

const struct be_ops be_cuda_ops = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .facts = cuda_facts,
    .event_fd = cuda_event_fd,
    .spin = cuda_spin,
    .poll = cuda_poll,
    .submit = cuda_submit,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .device_alloc = cuda_device_alloc,
    .device_free = cuda_device_free,
    .fit = cuda_fit,
    .scratch_bytes = cuda_scratch_bytes,
    .progress = cuda_progress,
};
