#include "tests/bench/gpu/launch_ways.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/machine.h"

#define LINE_BYTES   64u
#define BLOB_ALIGN   256u
#define END_NS       UINT64_C(10000000000) /* no launch takes so long */
#define POLLS_A_LOOK (1u << 20)            /* about a millisecond */

const struct launch_how launch_hows[LAUNCH_HOWS] = {
    {.name = "as mlad", .records = LAUNCH_AS_MLAD},
    {.name = "records copied", .records = LAUNCH_COPIED},
    {.name = "records fetched", .records = LAUNCH_FETCHED},
    {.name = "records in place", .records = LAUNCH_IN_PLACE},
    {.name = "records there", .records = LAUNCH_THERE},
    {.name = "tables on device", .tables_on_device = true},
    {.name = "status on device", .status_on_device = true},
    {.name = "graph, records copied", .records = LAUNCH_COPIED, .graph = true},
    {.name = "graph, records fetched", .records = LAUNCH_FETCHED, .graph = true},
    {.name = "graph, records there", .records = LAUNCH_THERE, .graph = true},
    {.name = "not programmatic", .plain = true},
    {.name = "end by event", .event = true},
    {.name = "all on device", .records = LAUNCH_THERE, .tables_on_device = true, .status_on_device = true},
    {.name = "word alone", .records = LAUNCH_NONE},
};

static double us_between(uint64_t from_ns, uint64_t to_ns)
{
    return 1e-3 * (double)(to_ns - from_ns);
}

static void must(const struct gpu *gpu, int rc, CUresult result, const char *what)
{
    if (rc == 0)
        return;
    fprintf(stderr, "\nmla-bench: %s: %s: %s\n", what, strerror(-rc), cuda_driver_error(&gpu->driver, result));
    exit(2);
}

/* ---- what all have in common ---- */

static void *pinned(const struct gpu *gpu, size_t bytes, CUdeviceptr *device)
{
    void *memory = NULL;
    GPU(gpu, cuMemHostAlloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    GPU(gpu, cuMemHostGetDevicePointer(device, memory, 0));
    memset(memory, 0, bytes);
    return memory;
}

void launch_bed_open(struct launch_bed *bed, struct work *work, struct mla_kernels *programmatic, uint32_t copies)
{
    const struct pool *pool = work->pool;
    const struct gpu *gpu = pool->gpu;
    size_t entries = 2 * LINE_BYTES, status = entries + pool->pages * sizeof(int32_t);
    status = (status + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    CUdeviceptr device;
    unsigned char *memory = pinned(gpu, status + work->shape->n_seqs * sizeof(uint64_t), &device);
    memcpy(memory + entries, pool->entries, pool->pages * sizeof(int32_t));
    *bed = (struct launch_bed){.work = work,
                               .programmatic = mla_kernels_of_plan(programmatic, &work->plan),
                               .copies = copies,
                               .memory = memory,
                               .word = (uint64_t *)(void *)memory,
                               .go = (uint64_t *)(void *)(memory + LINE_BYTES),
                               .status = (uint64_t *)(void *)(memory + status),
                               .word_device = device,
                               .go_device = device + LINE_BYTES,
                               .status_device = device + status,
                               .tables = device + entries};
    GPU(gpu, cuEventCreate(&bed->from, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventCreate(&bed->to, CU_EVENT_DEFAULT));
    GPU(gpu, cuEventCreate(&bed->end, CU_EVENT_DISABLE_TIMING));
}

void launch_bed_close(struct launch_bed *bed)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    GPU(gpu, cuEventDestroy(bed->from));
    GPU(gpu, cuEventDestroy(bed->to));
    GPU(gpu, cuEventDestroy(bed->end));
    GPU(gpu, cuMemFreeHost(bed->memory));
}

/* ---- parts of a turn ---- */

static void write_records(const struct launch_bed *bed, const struct launch_way *way, struct launch_place *place,
                          bool again)
{
    const struct work *work = bed->work;
    const struct shape *shape = work->shape;
    int rc = (again ? mla_kernels_blob_write_again
                    : mla_kernels_blob_write)(way->kernels, &work->plan, &place->job, 1, shape->seqs, shape->n_seqs,
                                              place->blob, place->at, work->pool->workspace, &place->launch);
    must(work->pool->gpu, rc, CUDA_SUCCESS, "records");
}

static void put_copy(const struct gpu *gpu, const struct launch_way *way, const struct launch_place *place)
{
    if (way->records == LAUNCH_COPIED)
        GPU(gpu, cuMemcpyHtoDAsync(place->at, place->blob, way->blob_bytes, gpu->stream));
}

static void put_kernels(const struct gpu *gpu, const struct launch_way *way, const struct launch_place *place)
{
    CUresult result = CUDA_SUCCESS;
    int rc;
    if (way->records == LAUNCH_INLINE)
        rc = mla_kernels_launch_blob(way->kernels, gpu->stream, &place->launch, place->blob, way->blob_bytes, &result);
    else if (way->records == LAUNCH_FETCHED)
        rc = mla_kernels_launch_fetch(way->kernels, gpu->stream, &place->launch, place->blob_at, way->blob_bytes,
                                      MLA_KERNELS_ALL, &result);
    else
        rc = mla_kernels_launch(way->kernels, gpu->stream, &place->launch, &result);
    must(gpu, rc, result, way->how->name);
}

static void capture(const struct gpu *gpu, const struct launch_way *way, struct launch_place *place)
{
    CUgraph graph;
    GPU(gpu, cuStreamBeginCapture(gpu->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    put_copy(gpu, way, place);
    put_kernels(gpu, way, place);
    GPU(gpu, cuStreamEndCapture(gpu->stream, &graph));
    GPU(gpu, cuGraphInstantiate(&place->graph, graph, 0));
    GPU(gpu, cuGraphDestroy(graph));
}

static void put_end(struct launch_bed *bed, const struct launch_way *way)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    if (way->how->event)
        GPU(gpu, cuEventRecord(bed->end, gpu->stream));
    else
        GPU(gpu, cuStreamWriteValue64(gpu->stream, bed->word_device, bed->value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

static bool has_ended(const struct launch_bed *bed, const struct launch_way *way)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    if (!way->how->event)
        return __atomic_load_n(bed->word, __ATOMIC_ACQUIRE) == bed->value;
    CUresult result = gpu->driver.cuEventQuery(bed->end);
    if (result != CUDA_ERROR_NOT_READY)
        gpu_must(gpu, result, "cuEventQuery");
    return result == CUDA_SUCCESS;
}

/* A launch that fails is never told of by its word. */
static void wait_for_end(const struct launch_bed *bed, const struct launch_way *way)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    uint64_t from = bench_now_ns();
    for (uint32_t polls = 1; !has_ended(bed, way); polls++) {
        if (polls % POLLS_A_LOOK != 0)
            continue;
        CUresult result = gpu->driver.cuStreamQuery(gpu->stream);
        if (result != CUDA_ERROR_NOT_READY)
            gpu_must(gpu, result, "cuStreamQuery");
        if (bench_now_ns() - from > END_NS) {
            fprintf(stderr, "\nmla-bench: %s, %s: no end within 10 s\n", bed->work->shape->name, way->how->name);
            exit(2);
        }
        sched_yield();
    }
}

void launch_turn(struct launch_bed *bed, struct launch_way *way, unsigned flags, struct launch_times *times)
{
    enum { BEGUN, WRITTEN, COPY, LAUNCH, LAUNCHED, END, PUT, STAMPS };
    const struct gpu *gpu = bed->work->pool->gpu;
    struct launch_place *place = &way->places[bed->turn++ % bed->copies];
    uint64_t at[STAMPS], ns[TAP_PARTS] = {0};
    float ms = 0;
    bool writes = way->records != LAUNCH_THERE && way->records != LAUNCH_NONE;
    bed->value++;
    at[BEGUN] = bench_now_ns();
    if (writes)
        write_records(bed, way, place, true);
    at[WRITTEN] = bench_now_ns();
    if (flags & LAUNCH_HELD)
        GPU(gpu, cuStreamWaitValue64(gpu->stream, bed->go_device, bed->value, CU_STREAM_WAIT_VALUE_GEQ));
    if (flags & LAUNCH_TIMED)
        GPU(gpu, cuEventRecord(bed->from, gpu->stream));
    tap_time(ns);
    at[COPY] = bench_now_ns();
    if (!place->graph)
        put_copy(gpu, way, place);
    at[LAUNCH] = bench_now_ns();
    if (place->graph)
        GPU(gpu, cuGraphLaunch(place->graph, gpu->stream));
    else if (way->records != LAUNCH_NONE)
        put_kernels(gpu, way, place);
    at[LAUNCHED] = bench_now_ns();
    tap_time(NULL);
    if (flags & LAUNCH_TIMED)
        GPU(gpu, cuEventRecord(bed->to, gpu->stream));
    at[END] = bench_now_ns();
    put_end(bed, way);
    at[PUT] = bench_now_ns();
    if (flags & LAUNCH_HELD)
        __atomic_store_n(bed->go, bed->value, __ATOMIC_RELEASE);
    wait_for_end(bed, way);
    uint64_t seen = bench_now_ns();
    if (flags & LAUNCH_TIMED)
        GPU(gpu, cuEventElapsedTime(&ms, bed->from, bed->to));
    *times = (struct launch_times){.us = us_between(at[flags & LAUNCH_HELD ? PUT : WRITTEN], seen),
                                   .write = us_between(at[BEGUN], at[WRITTEN]),
                                   .copy = us_between(at[COPY], at[LAUNCH]),
                                   .prepare = us_between(0, ns[TAP_PREPARE]),
                                   .decode = us_between(0, ns[TAP_DECODE]),
                                   .reduce = us_between(0, ns[TAP_REDUCE]),
                                   .launch = us_between(at[LAUNCH], at[LAUNCHED]),
                                   .end = us_between(at[END], at[PUT]),
                                   .wait = us_between(at[PUT], seen),
                                   .gpu = flags & LAUNCH_TIMED ? 1e3 * (double)ms : (double)NAN};
}

double launch_in_a_row(struct launch_bed *bed, uint32_t n)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    float ms = 0;
    bed->value++;
    GPU(gpu, cuStreamWaitValue64(gpu->stream, bed->go_device, bed->value, CU_STREAM_WAIT_VALUE_GEQ));
    GPU(gpu, cuEventRecord(bed->from, gpu->stream));
    for (uint32_t i = 0; i < n; i++)
        work_launch(bed->work, i % bed->work->n_launches);
    GPU(gpu, cuEventRecord(bed->to, gpu->stream));
    __atomic_store_n(bed->go, bed->value, __ATOMIC_RELEASE);
    GPU(gpu, cuEventSynchronize(bed->to));
    GPU(gpu, cuEventElapsedTime(&ms, bed->from, bed->to));
    return 1e3 * (double)ms / n;
}

/* ---- ways ---- */

static void open_place(struct launch_bed *bed, struct launch_way *way, uint32_t copy)
{
    const struct work *work = bed->work;
    const struct gpu *gpu = work->pool->gpu;
    struct launch_place *place = &way->places[copy];
    place->job = work_job(work, MLA_ABI_OUT_E4M3, copy);
    if (!way->how->tables_on_device)
        place->job.table = place->job.table - work->pool->table + bed->tables;
    if (!way->how->status_on_device)
        place->job.status = bed->status_device;
    write_records(bed, way, place, false);
    if (way->records == LAUNCH_AS_MLAD)
        way->records = mla_kernels_takes_blob(way->kernels, &place->launch, way->blob_bytes) ? LAUNCH_INLINE
                       : mla_kernels_facts(way->kernels)->scratch                            ? LAUNCH_FETCHED
                                                                                             : LAUNCH_COPIED;
    if (way->records == LAUNCH_THERE)
        gpu_upload(gpu, place->at, place->blob, way->blob_bytes);
    if (way->how->graph)
        capture(gpu, way, place);
}

void launch_check_status(const struct launch_bed *bed)
{
    const struct shape *shape = bed->work->shape;
    work_check_status(bed->work);
    for (uint32_t s = 0; s < shape->n_seqs; s++) {
        if (bed->status[s] == 0)
            continue;
        fprintf(stderr, "\nmla-bench: %s: sequence %u faulted: %016llx\n", shape->name, s,
                (unsigned long long)bed->status[s]);
        exit(2);
    }
}

/* By a turn on each place, with the output of the last one looked at. */
static void try_way(struct launch_bed *bed, struct launch_way *way)
{
    const struct work *work = bed->work;
    const struct gpu *gpu = work->pool->gpu;
    struct launch_times times;
    for (uint32_t i = 0; i < bed->copies; i++)
        launch_turn(bed, way, 0, &times);
    if (way->records == LAUNCH_NONE)
        return;
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    GPU(gpu, cuMemsetD8Async(work->pool->o, 0, work->pool->o_bytes, gpu->stream));
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    launch_turn(bed, way, 0, &times);
    work_check_output(work);
    launch_check_status(bed);
}

void launch_way_open(struct launch_bed *bed, struct launch_way *way, const struct launch_how *how)
{
    const struct work *work = bed->work;
    const struct gpu *gpu = work->pool->gpu;
    size_t bytes = mla_kernels_blob_bytes(work->kernels, &work->plan, 1, work->shape->n_seqs);
    size_t stride = (bytes + BLOB_ALIGN - 1) / BLOB_ALIGN * BLOB_ALIGN;
    CUdeviceptr in_place;
    *way = (struct launch_way){.how = how,
                               .records = how->records,
                               .kernels = how->plain ? work->kernels : bed->programmatic,
                               .blob_bytes = bytes,
                               .places = gpu_array(bed->copies, sizeof *way->places),
                               .device = gpu_alloc(gpu, bed->copies * stride),
                               .pinned = pinned(gpu, bed->copies * stride, &in_place)};
    for (uint32_t copy = 0; copy < bed->copies && how->records != LAUNCH_NONE; copy++) {
        way->places[copy].blob = (unsigned char *)way->pinned + copy * stride;
        way->places[copy].blob_at = in_place + copy * stride;
        way->places[copy].at = (how->records == LAUNCH_IN_PLACE ? in_place : way->device) + copy * stride;
        open_place(bed, way, copy);
    }
    try_way(bed, way);
}

void launch_way_close(struct launch_bed *bed, struct launch_way *way)
{
    const struct gpu *gpu = bed->work->pool->gpu;
    GPU(gpu, cuStreamSynchronize(gpu->stream));
    for (uint32_t copy = 0; copy < bed->copies; copy++)
        work_drop(bed->work, way->places[copy].graph);
    gpu_free(gpu, way->device);
    GPU(gpu, cuMemFreeHost(way->pinned));
    free(way->places);
}
