/* Kernels, by the CPU backend's executors. */
#include <cblas.h>
#include <stdlib.h>

#include "daemon/backend/cpu/launch.h"
#include "daemon/backend/cpu/reduce.h"
#include "tests/support/fake_cuda/fake.h"

#define SPIN_STEP_NS UINT64_C(100000)

struct fake_scratch {
    struct cpu_scratch cpu;
};

void fake_scratch_free(struct fake_scratch *scratch)
{
    if (!scratch)
        return;
    cpu_scratch_close(&scratch->cpu);
    free(scratch);
}

static struct cpu_scratch *scratch_of(CUstream stream)
{
    if (!stream->scratch) {
        stream->scratch = calloc(1, sizeof *stream->scratch);
        if (!stream->scratch || cpu_scratch_open(&stream->scratch->cpu) != 0)
            fake_abort("no memory");
        openblas_set_num_threads(1); /* a product is computed by the stream's thread */
    }
    return &stream->scratch->cpu;
}

static bool may_run(const struct fake_op *op)
{
    bool fine = true;
    fake_lock();
    if (!fake_function_ok(op->kernel.function))
        fake_abort("a kernel whose module has been unloaded");
    for (size_t i = 0; fine && i < op->n_uses; i++)
        fine = fake_range_covers(op->uses[i].address, op->uses[i].bytes, op->uses[i].write);
    fake_unlock();
    return fine;
}

static void *at(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

static void decode(CUstream stream, struct cpu_launch *launch)
{
    for (uint32_t i = 0; i < launch->batch->plan->n_items && !fake_stream_stopping(stream); i++)
        cpu_item_run(launch, i, launch->scratch);
}

static void copy_status(const struct be_batch *batch)
{
    for (uint32_t j = 0; j < batch->n_jobs; j++) {
        const struct mla_abi_job *job = &batch->jobs[j];
        for (uint32_t s = 0; job->user_status != 0 && s < job->n_seqs; s++)
            __atomic_store_n((uint64_t *)at(job->user_status) + s,
                             __atomic_load_n((uint64_t *)at(job->status) + s, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    }
}

static void reduce(CUstream stream, const struct cpu_launch *launch, uint32_t flags)
{
    const struct plan *plan = launch->batch->plan;
    for (uint32_t i = 0; i < plan->n_reduces && !fake_stream_stopping(stream); i++)
        for (uint32_t row = 0; row < plan->reduces[i].rows; row += CPU_REDUCE_CHUNK_ROWS)
            cpu_reduce_run(launch, &plan->reduces[i], row, launch->scratch->o);
    if (flags & MLA_ABI_LAUNCH_USER_STATUS)
        copy_status(launch->batch);
}

static void run_launch(CUstream stream, enum fake_kernel kernel, const struct mla_abi_launch *l,
                       const struct mla_abi_item *items)
{
    struct plan plan = {.tiles = at(l->tiles),
                        .items = (struct mla_abi_item *)(uintptr_t)items,
                        .reduces = at(l->reduces),
                        .n_items = l->n_items,
                        .n_reduces = l->n_reduces};
    struct be_batch batch = {
        .plan = &plan, .jobs = at(l->jobs), .seqs = at(l->seqs), .n_jobs = l->n_jobs, .n_seqs = l->n_seqs};
    struct cpu_launch launch = {.batch = &batch,
                                .partial_o = at(l->partial_o),
                                .partial_lse = at(l->partial_lse),
                                .scratch = scratch_of(stream)};
    bool units = kernel == FAKE_DECODE_UNITS;
    if (kernel == FAKE_DECODE || units)
        decode(stream, &launch);
    else if (kernel == FAKE_REDUCE || kernel == FAKE_REDUCE_UNITS)
        reduce(stream, &launch, l->flags);
    /* The real prepare kernel knows all faults. Here it is the executors that find them. */
    if ((units || kernel == FAKE_PREPARE) && (l->flags & MLA_ABI_LAUNCH_USER_STATUS))
        copy_status(&batch);
}

CUresult fake_execute_kernel(CUstream stream, struct fake_op *op)
{
    bool placed = !op->staged || fake_bring_blob(op);
    fake_kernel_uses(op, true);
    if (!placed || !may_run(op))
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    enum fake_kernel kernel = op->kernel.function->kernel;
    if (kernel == FAKE_SPIN) {
        uint64_t end = fake_now_ns() + op->kernel.number;
        while (fake_now_ns() < end && !fake_stream_stopping(stream))
            fake_sleep_ns(SPIN_STEP_NS);
    } else if (kernel == FAKE_H128_PACK) {
        fake_h128_pack(&op->kernel.h128);
    } else if (kernel == FAKE_H128_UNPACK) {
        fake_h128_unpack(&op->kernel.h128);
    } else if (kernel != FAKE_READ && kernel != FAKE_EMPTY) {
        struct mla_abi_item *items = NULL;
        if (kernel == FAKE_DECODE_UNITS && op->kernel.launch.n_items > 0) {
            fake_units_check(op);
            items = fake_units_items(&op->kernel.units);
        }
        if (kernel == FAKE_PREPARE) {
            fake_bring_check(op);
            fake_units_prepare(&op->kernel.units);
        }
        if (kernel == FAKE_REDUCE_UNITS)
            fake_units_check_reduces(&op->kernel.units);
        run_launch(stream, kernel, &op->kernel.launch, items ? items : at(op->kernel.launch.items));
        free(items);
    }
    return CUDA_SUCCESS;
}
