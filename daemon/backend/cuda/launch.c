#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cuda/gpu.h"
#include "daemon/util/clock.h"

#define LINE_BYTES 64u

/* Pinned memory of one slot: a line for the word, the status words, the blob. Behind the slots the blobs of steps. */
#define SLOT_BYTES   (LINE_BYTES + CU_STATUS_WORDS * 8u + CU_BLOB_BYTES)
#define SLOTS_BYTES  ((size_t)CU_SLOTS * SLOT_BYTES)
#define PINNED_BYTES (SLOTS_BYTES + (size_t)BE_STEPS_BATCHES * CU_BLOB_BYTES)

int cu_slots_open(struct backend *be, struct mla_error *err)
{
    CUdeviceptr device = 0;
    const char *call = "cuMemHostAlloc";
    CUresult r =
        be->cu.cuMemHostAlloc(&be->slot_memory, PINNED_BYTES, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    if (r == CUDA_SUCCESS) {
        memset(be->slot_memory, 0, PINNED_BYTES);
        call = "cuMemHostGetDevicePointer";
        r = be->cu.cuMemHostGetDevicePointer(&device, be->slot_memory, 0);
    }
    if (r == CUDA_SUCCESS) {
        call = "cuMemAlloc";
        r = be->cu.cuMemAlloc(&be->slot_device, (size_t)(CU_SLOTS + BE_STEPS_BATCHES) * CU_BLOB_BYTES);
    }
    if (r == CUDA_SUCCESS && be->options.blob_pageable) {
        be->slot_pageable = calloc(CU_SLOTS, CU_BLOB_BYTES);
        r = be->slot_pageable ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < CU_SLOTS && r == CUDA_SUCCESS; i++) {
        struct cu_slot *slot = &be->slots[i];
        unsigned char *at = (unsigned char *)be->slot_memory + i * SLOT_BYTES;
        slot->word = (uint64_t *)(void *)at;
        slot->word_device = device + i * SLOT_BYTES;
        slot->status = (uint64_t *)(void *)(at + LINE_BYTES);
        slot->blob = be->slot_pageable ? (unsigned char *)be->slot_pageable + i * CU_BLOB_BYTES
                                       : at + LINE_BYTES + (size_t)CU_STATUS_WORDS * 8u;
        slot->blob_device = slot->word_device + LINE_BYTES + (size_t)CU_STATUS_WORDS * 8u;
        slot->blob_device_copy = be->slot_device + i * CU_BLOB_BYTES;
        call = "cuEventCreate";
        r = be->cu.cuEventCreate(&slot->started, CU_EVENT_DEFAULT);
        if (r == CUDA_SUCCESS)
            r = be->cu.cuEventCreate(&slot->ended, CU_EVENT_DEFAULT);
        if (r == CUDA_SUCCESS)
            r = be->cu.cuEventCreate(&slot->copied, CU_EVENT_DISABLE_TIMING);
    }
    if (r == CUDA_SUCCESS)
        r = cu_ahead_open(be, (unsigned char *)be->slot_memory + SLOTS_BYTES, device + SLOTS_BYTES,
                          be->slot_device + (CUdeviceptr)CU_SLOTS * CU_BLOB_BYTES);
    return r == CUDA_SUCCESS ? 0 : cu_refuse(be, err, r, call, MLA_OUT_OF_MEMORY, NULL, "no memory for work in flight");
}

void cu_slots_close(struct backend *be)
{
    for (size_t i = 0; i < CU_SLOTS; i++) {
        const CUevent events[] = {be->slots[i].started, be->slots[i].ended, be->slots[i].copied};
        for (size_t k = 0; k < sizeof events / sizeof events[0]; k++)
            if (events[k] && !be->lost)
                cu_ok(be, be->cu.cuEventDestroy(events[k]), "cuEventDestroy");
    }
    for (size_t i = 0; i < CU_SLOTS; i++)
        cu_graph_close(be, &be->slots[i].graph);
    cu_ahead_close(be);
    free(be->large);
    free(be->slot_pageable);
    if (be->slot_device && !be->lost)
        cu_ok(be, be->cu.cuMemFree(be->slot_device), "cuMemFree");
    if (be->slot_memory && !be->lost)
        cu_ok(be, be->cu.cuMemFreeHost(be->slot_memory), "cuMemFreeHost");
}

bool cu_slots_full(const struct backend *be)
{
    return be->n_slots == CU_SLOTS;
}

struct mla_kernels *cu_kernels_of(const struct backend *be, const struct plan *plan)
{
    return mla_kernels_of_plan(be->kernels, plan);
}

/* ---- beginning ---- */

/* A launch cannot be refused any more, and half of one cannot be taken back: every failure is the end of the device. */
static bool maps_ok(struct backend *be, int rc)
{
    if (rc != 0)
        cu_lose(be, CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled");
    return rc == 0;
}

static void *large_blob(struct backend *be, size_t bytes)
{
    if (bytes > be->large_bytes) {
        free(be->large);
        be->large = malloc(bytes);
        be->large_bytes = be->large ? bytes : 0;
    }
    if (!be->large)
        cu_lose(be, CUDA_ERROR_OUT_OF_MEMORY, "malloc");
    return be->large;
}

bool cu_blob_write(struct backend *be, const struct be_batch *batch, unsigned char *blob, CUdeviceptr address,
                   uint64_t *plan_id, struct mla_kernels_launch *launch)
{
    bool again = batch->plan_id != 0 && *plan_id == batch->plan_id;
    *plan_id = 0; /* what a writing that fails leaves is nobody's */
    if (!maps_ok(be, (again ? mla_kernels_blob_write_again : mla_kernels_blob_write)(
                         cu_kernels_of(be, batch->plan), batch->plan, batch->jobs, batch->n_jobs, batch->seqs,
                         batch->n_seqs, blob, address, be->workspace, launch)))
        return false;
    *plan_id = batch->plan_id;
    return true;
}

static bool put_copy(struct backend *be, const struct cu_copy *copy, CUstream stream)
{
    return copy->bytes == 0 ||
           cu_call_ok(be, be->cu.cuMemcpyHtoDAsync(copy->to, copy->from, copy->bytes, stream), "cuMemcpyHtoDAsync");
}

/* Kernels with a prepare kernel can bring their records themselves. */
static bool goes_with_launch(const struct backend *be, const struct mla_kernels *kernels)
{
    return be->options.blob_inline && (be->n_slots == 1 || be->options.blob_always) &&
           mla_kernels_facts(kernels)->scratch;
}

/* While the batch before it runs, beside it: a copy then costs the device nothing. Otherwise left to run(): with the
 * launch, for which the device need not begin with a copy; or in front of the kernels. */
static bool copy_blob(struct backend *be, const struct mla_kernels *kernels, struct cu_slot *slot, struct cu_copy *copy)
{
    copy->with_launch = goes_with_launch(be, kernels);
    if (be->n_slots == 1 || copy->with_launch)
        return true;
    bool put =
        put_copy(be, copy, be->copies) &&
        cu_call_ok(be, be->cu.cuEventRecord(slot->copied, be->copies), "cuEventRecord") &&
        cu_call_ok(be, be->cu.cuStreamWaitEvent(be->stream, slot->copied, CU_EVENT_WAIT_DEFAULT), "cuStreamWaitEvent");
    copy->bytes = 0;
    return put;
}

/* Behind all that the launch has of the workspace, so in order with the launches before it. The copy has taken the
 * memory when the call returns, as that is pageable. */
static bool put_large_blob(struct backend *be, const struct be_batch *batch, size_t bytes, uint64_t used_bytes,
                           struct mla_kernels_launch *launch)
{
    CUdeviceptr to = be->workspace + used_bytes;
    void *blob = large_blob(be, bytes);
    return blob &&
           maps_ok(be, mla_kernels_blob_write(cu_kernels_of(be, batch->plan), batch->plan, batch->jobs, batch->n_jobs,
                                              batch->seqs, batch->n_seqs, blob, to, be->workspace, launch)) &&
           cu_call_ok(be, be->cu.cuMemcpyHtoDAsync(to, blob, bytes, be->stream), "cuMemcpyHtoDAsync");
}

/* Records to where kernels read them: device memory, but see cuda.h. */
static bool put_blob(struct backend *be, const struct be_batch *batch, struct cu_slot *slot,
                     struct mla_kernels_launch *launch, struct cu_copy *copy)
{
    const struct mla_kernels *kernels = cu_kernels_of(be, batch->plan);
    size_t bytes = mla_kernels_blob_bytes(kernels, batch->plan, batch->n_jobs, batch->n_seqs);
    uint64_t used = mla_kernels_workspace_bytes(kernels, batch->plan, batch->n_jobs, batch->seqs, batch->n_seqs);
    bool large = bytes > CU_BLOB_BYTES, in_place = be->options.blob_pinned;
    used = (used + CU_WORKSPACE_ALIGN - 1) / CU_WORKSPACE_ALIGN * CU_WORKSPACE_ALIGN;
    if (used > be->workspace_bytes || (large && bytes > be->workspace_bytes - used)) {
        /* be_workspace_for() was not asked. */
        cu_lose(be, CUDA_ERROR_OUT_OF_MEMORY, "a batch larger than the workspace");
        return false;
    }
    if (large)
        return put_large_blob(be, batch, bytes, used, launch);
    if (!cu_blob_write(be, batch, slot->blob, in_place ? slot->blob_device : slot->blob_device_copy, &slot->plan_id,
                       launch))
        return false;
    if (in_place)
        return true;
    *copy = (struct cu_copy){
        .to = slot->blob_device_copy, .from = slot->blob, .from_device = slot->blob_device, .bytes = bytes};
    return copy_blob(be, kernels, slot, copy);
}

/* ---- launching ---- */

/* How the kernels of a slot are put on the stream. */
struct how {
    struct mla_kernels_launch launch;
    struct cu_copy copy;    /* what is left to be copied */
    struct cu_graph *graph; /* which it has become; NULL: none */
    unsigned which;         /* MLA_KERNELS_* */
};

static bool is_graph(struct backend *be, const struct cu_slot *slot, const struct how *how, struct cu_graph *graph)
{
    return cu_graph_ready(be, graph, cu_kernels_of(be, slot->request->batch->plan), &how->launch, &how->copy,
                          how->which);
}

/* A launch by itself begins with its records where these are many: the other kernels are launched while they are
 * fetched, and a graph, which is launched whole, would begin later. */
static bool has_many_records(const struct backend *be, const struct cu_slot *slot, const struct how *how)
{
    const struct mla_kernels *kernels = cu_kernels_of(be, slot->request->batch->plan);
    return how->copy.with_launch && !mla_kernels_takes_blob(kernels, &how->launch, how->copy.bytes);
}

/* The slot's own records. */
static bool put_slot_records(struct backend *be, struct cu_slot *slot, struct how *how)
{
    *how = (struct how){.which = MLA_KERNELS_ALL};
    if (!put_blob(be, slot->request->batch, slot, &how->launch, &how->copy))
        return false;
    /* Nothing runs, so it matters when this one begins. */
    if (how->copy.bytes != 0 && be->n_slots == 1 && !has_many_records(be, slot, how) &&
        is_graph(be, slot, how, &slot->graph))
        how->graph = &slot->graph;
    return !be->lost;
}

/* What was written ahead, or the slot's. */
static bool put_records(struct backend *be, struct cu_slot *slot, struct how *how)
{
    uint32_t index;
    const struct be_steps_batch *b = be_steps_batch_of(&be->steps, slot->request, &index);
    if (!b || !b->prepared)
        return put_slot_records(be, slot, how);
    struct cu_ahead *ahead = &be->ahead[index];
    bool prepared = be->prepared == ahead, copied = cu_ahead_is_copied(be, ahead);
    *how = (struct how){.launch = ahead->launch,
                        .which = MLA_KERNELS_DECODE | MLA_KERNELS_REDUCE | (prepared ? 0 : MLA_KERNELS_PREPARE)};
    slot->request->batch->ahead = prepared;
    if (!prepared && ahead->fetched)
        how->copy = cu_ahead_copy(ahead);
    struct cu_graph *graph = prepared ? &ahead->rest : &ahead->graph;
    if (!be->lost && !be->options.blob_pinned && is_graph(be, slot, how, graph))
        how->graph = graph;
    if (be->lost)
        return false;
    if (prepared || ahead->fetched || copied)
        return true;
    /* Behind a copy that still runs is behind an event: rather the launch brings them, to the slot's own place. */
    if (!how->graph && goes_with_launch(be, cu_kernels_of(be, b->batch.plan)))
        return put_slot_records(be, slot, how);
    return cu_call_ok(be, be->cu.cuStreamWaitEvent(be->stream, ahead->copied, CU_EVENT_WAIT_DEFAULT),
                      "cuStreamWaitEvent");
}

/* In the first kernel's parameter; what that has no room for the kernel fetches. */
static int launch_with(struct backend *be, const struct mla_kernels *kernels, const struct how *how, CUresult *result)
{
    const struct cu_copy *copy = &how->copy;
    if (mla_kernels_takes_blob(kernels, &how->launch, copy->bytes))
        return mla_kernels_launch_blob(kernels, be->stream, &how->launch, copy->from, copy->bytes, result);
    return mla_kernels_launch_fetch(kernels, be->stream, &how->launch, copy->from_device, copy->bytes, how->which,
                                    result);
}

static bool run(struct backend *be, const struct mla_kernels *kernels, const struct how *how)
{
    CUresult r = CUDA_ERROR_UNKNOWN;
    be->prepared = NULL;
    be->expected = NULL;
    if (how->graph && cu_graph_launch(be, how->graph))
        return true;
    if (be->lost || (!how->copy.with_launch && !put_copy(be, &how->copy, be->stream)))
        return false;
    int rc = how->copy.with_launch ? launch_with(be, kernels, how, &r)
                                   : mla_kernels_launch_some(kernels, be->stream, &how->launch, how->which, &r);
    if (rc == 0)
        return true;
    cu_lose(be, r, "cuLaunchKernelEx");
    return false;
}

/* Words that the stream cannot write are stored by the GPU thread when the batch has ended. */
static bool stream_writes(const struct backend *be, const struct be_batch *batch)
{
    bool all = be->word_writes;
    for (uint32_t i = 0; i < batch->n_done && all; i++)
        all = cu_sync_address(be, batch->done[i].word) != 0;
    return all;
}

static bool write_word(struct backend *be, CUdeviceptr address, uint64_t value)
{
    return cu_call_ok(be, be->cu.cuStreamWriteValue64(be->stream, address, value, CU_STREAM_WRITE_VALUE_DEFAULT),
                      "cuStreamWriteValue64");
}

static bool put_event(struct backend *be, struct cu_slot *slot)
{
    return !(slot->timed || !be->word_writes) ||
           cu_call_ok(be, be->cu.cuEventRecord(slot->ended, be->stream), "cuEventRecord");
}

/* The end of what a slot has on the stream is told by words that it writes: done words of the batch, then the slot's
 * completion word. batch: of a launch, NULL: of anything else. */
static bool put_end(struct backend *be, struct cu_slot *slot, const struct be_batch *batch)
{
    slot->on_stream = true;
    slot->value = ++be->last_value;
    slot->host_words = batch && !stream_writes(be, batch);
    for (uint32_t i = 0; batch && i < batch->n_done && !slot->host_words; i++)
        if (!write_word(be, cu_sync_address(be, batch->done[i].word), batch->done[i].value))
            return false;
    return put_event(be, slot) && (!be->word_writes || write_word(be, slot->word_device, slot->value));
}

/* Two launches in a row, so that the pause between them is seen as well. */
static void choose_timing(struct backend *be, struct cu_slot *slot)
{
    const struct cu_slot *before = &be->slots[(be->first_slot + be->n_slots + CU_SLOTS - 2) % CU_SLOTS];
    slot->timed = !be_steps_own(&be->steps, slot->request) && be->n_launches++ % CU_TIMED_EVERY < 2;
    slot->follows = slot->timed && be->n_slots > 1 && before->on_stream && before->timed;
}

static void begin_launch(struct backend *be, struct cu_slot *slot)
{
    struct be_batch *batch = slot->request->batch;
    struct how how;
    if (be->n_slots > 1) /* among several a capture would hold up the others, and its graph seldom be the next one's */
        be->slots[0].graph.uses = 0;
    batch->taken_ns = mla_now_ns();
    batch->ahead = false;
    choose_timing(be, slot);
    if (!put_records(be, slot, &how))
        return;
    /* Until it has ended: not before this. */
    batch->started_ns = mla_now_ns();
    if ((slot->timed && !cu_call_ok(be, be->cu.cuEventRecord(slot->started, be->stream), "cuEventRecord")) ||
        !run(be, cu_kernels_of(be, batch->plan), &how) || !put_end(be, slot, batch))
        return;
    batch->submitted_ns = mla_now_ns();
    struct be_event event = {.kind = BE_SUBMITTED, .request = slot->request};
    if (!be_steps_own(&be->steps, slot->request))
        be_port_report(&be->port, &event);
}

/* Status words by the stream, in device memory; the word itself is stored when they are there. */
static void begin_abort(struct backend *be, struct cu_slot *slot)
{
    const struct be_request *request = slot->request;
    if (request->abort.user_status == 0)
        return;
    for (uint32_t i = 0; i < CU_STATUS_WORDS; i++)
        slot->status[i] = (uint64_t)request->abort.code << 32;
    for (uint32_t s = 0; s < request->abort.n_seqs; s += CU_STATUS_WORDS) {
        uint32_t n = request->abort.n_seqs - s < CU_STATUS_WORDS ? request->abort.n_seqs - s : CU_STATUS_WORDS;
        CUdeviceptr to = request->abort.user_status + s * sizeof(uint64_t);
        CUresult r = be->cu.cuMemcpyHtoDAsync(to, slot->status, n * sizeof(uint64_t), be->stream);
        if (!cu_call_ok(be, r, "cuMemcpyHtoDAsync"))
            return;
    }
    put_end(be, slot, NULL);
}

void cu_begin(struct backend *be, struct be_request *request)
{
    /* One after the other they all have the first one, whose records and graph the next can go on with. */
    if (be->n_slots == 0)
        be->first_slot = 0;
    struct cu_slot *slot = &be->slots[(be->first_slot + be->n_slots) % CU_SLOTS];
    slot->request = request;
    slot->on_stream = false;
    slot->timed = false;
    slot->follows = false;
    slot->host_words = false;
    be->n_slots++;
    if (be->lost)
        return;
    if (request->op == BE_LAUNCH)
        begin_launch(be, slot);
    else if (request->op == BE_ABORT)
        begin_abort(be, slot);
}

/* ---- ending ---- */

/* Whether the stream is past the slot; ms: what a launch that is timed took. */
static bool has_ended(struct backend *be, struct cu_slot *slot, float *ms)
{
    if (!slot->on_stream)
        return true;
    if (be->word_writes && __atomic_load_n(slot->word, __ATOMIC_ACQUIRE) != slot->value)
        return false;
    CUresult r = be->word_writes ? CUDA_SUCCESS : be->cu.cuEventQuery(slot->ended);
    if (r == CUDA_SUCCESS && slot->timed)
        r = be->cu.cuEventElapsedTime(ms, slot->started, slot->ended);
    if (r == CUDA_ERROR_NOT_READY)
        return false;
    return cu_call_ok(be, r, "cuEventElapsedTime");
}

/* The slot before has not been used again, or it is not timed: there is no answer then. */
static uint64_t gap_before(struct backend *be, const struct cu_slot *slot)
{
    const struct cu_slot *before = &be->slots[(be->first_slot + CU_SLOTS - 1) % CU_SLOTS];
    float ms = -1;
    if (!slot->follows || be->cu.cuEventElapsedTime(&ms, before->ended, slot->started) != CUDA_SUCCESS || ms < 0)
        return BE_GAP_UNKNOWN;
    return (uint64_t)((double)ms * 1e6);
}

static void end_launch(struct backend *be, struct cu_slot *slot, float ms)
{
    struct be_batch *batch = slot->request->batch;
    for (uint32_t i = 0; slot->host_words && i < batch->n_done; i++)
        __atomic_store_n(batch->done[i].word, batch->done[i].value, __ATOMIC_RELEASE);
    /* The device's clock gives the length, where it is asked, ours the end; batches do not overlap. */
    uint64_t now = mla_now_ns();
    uint64_t least = batch->started_ns > be->last_ended_ns ? batch->started_ns : be->last_ended_ns;
    uint64_t took = slot->timed ? (uint64_t)((double)ms * 1e6) : now - least;
    batch->gap_ns = gap_before(be, slot);
    batch->started_ns = took > now - least ? least : now - took;
    batch->ended_ns = now;
    be->last_ended_ns = now;
    cu_pace_ended(be, batch);
    struct be_event event = {.kind = BE_BATCH_DONE, .request = slot->request};
    if (be_steps_own(&be->steps, slot->request))
        be_steps_launch_ended(&be->steps, slot->request);
    else
        be_port_report(&be->port, &event);
}

static void end_abort(struct backend *be, struct be_request *request)
{
    if (request->abort.word)
        __atomic_store_n(request->abort.word, request->abort.value, __ATOMIC_RELEASE);
    be_port_done(&be->port, request, NULL);
}

static void end_unmap(struct backend *be, struct be_request *request)
{
    struct mla_error error = {.code = MLA_OK};
    cu_unmap(be, request->region, &error);
    if (!be->lost)
        be_port_done(&be->port, request, &error);
}

bool cu_end_some(struct backend *be)
{
    bool any = false;
    float ms = 0;
    while (!be->lost && be->n_slots != 0 && has_ended(be, &be->slots[be->first_slot], &ms)) {
        struct cu_slot *slot = &be->slots[be->first_slot];
        be->ended_value = slot->on_stream ? slot->value : be->ended_value;
        if (slot->request->op == BE_LAUNCH)
            end_launch(be, slot, ms);
        else if (slot->request->op == BE_ABORT)
            end_abort(be, slot->request);
        else
            end_unmap(be, slot->request);
        be->first_slot = (be->first_slot + 1) % CU_SLOTS;
        be->n_slots--;
        any = true;
    }
    return any;
}

void cu_query(struct backend *be)
{
    CUresult r = be->cu.cuStreamQuery(be->stream);
    be->last_query_ns = mla_now_ns();
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        cu_lose(be, r, "cuStreamQuery");
}
