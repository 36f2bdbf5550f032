/* Kernels, by the CPU backend's executors. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/cpu/launch.h"
#include "daemon/backend/cpu/reduce.h"
#include "tests/support/fake_cuda/fake.h"

#define SPIN_STEP_NS UINT64_C(100000)
#define CTA_ROWS     64u

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

/* Each CTA of a cluster has up to 64 rows of a unit, and each cluster the units of its list: records of other kernels
 * than those that are launched would leave rows or units undone. */
static void check_units(const struct fake_op *op)
{
    const struct mla_sm90_launch *l = &op->kernel.units;
    const struct mla_sm90_seq *seqs = at(l->seqs);
    const uint32_t *lists = at(l->lists);
    uint64_t units = 0;
    for (uint32_t s = 0; s < l->abi.n_seqs; s++) {
        const struct mla_sm90_part *parts = at(seqs[s].parts);
        units += seqs[s].n_parts;
        for (uint32_t p = 0; p < seqs[s].n_parts; p++)
            if (parts[p].rows > CTA_ROWS * op->kernel.cluster_ctas)
                fake_abort("a unit of %u rows for clusters of %u", parts[p].rows, op->kernel.cluster_ctas);
    }
    if (units != l->n_units || lists[op->kernel.clusters] != l->n_units)
        fake_abort("%llu units of %u, and lists of %u for %u clusters", (unsigned long long)units, l->n_units,
                   lists[op->kernel.clusters], op->kernel.clusters);
}

static bool same_rows(const struct mla_abi_tensor *x, uint32_t of_job, uint32_t first_token, uint64_t base,
                      int64_t token, int64_t head)
{
    int64_t offset = x->compact ? first_token * x->token_stride : of_job * x->seq_stride;
    return x->base == 0 ? base == 0
                        : base == x->base + (uint64_t)offset && token == x->token_stride && head == x->head_stride;
}

/* What the real one reads instead of jobs, sequences and tiles, and what is computed here by these, must say the same:
 * records that another launch has left would not. */
static void check_reduces(const struct mla_sm90_launch *l)
{
    const struct mla_sm90_reduce *reduces = at(l->reduces);
    for (uint32_t i = 0; i < l->abi.n_reduces; i++) {
        const struct mla_sm90_reduce *r = &reduces[i];
        const struct mla_abi_reduce *abi = (const struct mla_abi_reduce *)at(l->abi.reduces) + i;
        const struct mla_abi_tile *tile = (const struct mla_abi_tile *)at(l->abi.tiles) + abi->tile;
        const struct mla_abi_seq *seq = (const struct mla_abi_seq *)at(l->abi.seqs) + tile->seq;
        const struct mla_abi_job *job = (const struct mla_abi_job *)at(l->abi.jobs) + seq->job;
        uint32_t of_job = tile->seq - job->first_seq;
        if (r->partial_row != abi->partial_row || r->n_partials != abi->n_partials || r->rows != abi->rows ||
            r->first_row != tile->first_row || r->seq != tile->seq)
            fake_abort("record %u of the reducer is of another tile", i);
        if (!same_rows(&job->o, of_job, seq->first_token, r->out, r->out_token, r->out_head) ||
            !same_rows(&job->lse, of_job, seq->first_token, r->lse, r->lse_token, r->lse_head) ||
            r->heads != job->heads || r->out_type != job->out_type ||
            memcmp(&r->kv_scale, &job->kv_scale, sizeof r->kv_scale) != 0 ||
            memcmp(&r->inv_out_scale, &job->inv_out_scale, sizeof r->inv_out_scale) != 0)
            fake_abort("record %u of the reducer is of another job", i);
    }
}

/* The items that units are of, from the records of the prepare kernel: a blob that came in its parameter has no others.
 * The first unit of each item stands for it. */
static struct mla_abi_item *items_of_units(const struct mla_sm90_launch *l)
{
    const struct mla_sm90_seq *seqs = at(l->seqs);
    const struct mla_abi_tile *tiles = at(l->abi.tiles);
    struct mla_abi_item *items = calloc(l->abi.n_items + 1, sizeof *items);
    uint32_t n = 0, first = 0;
    if (!items)
        fake_abort("no memory");
    for (uint32_t s = 0; s < l->abi.n_seqs; s++) {
        const struct mla_sm90_part *parts = at(seqs[s].parts);
        while (seqs[s].n_parts > 0 && tiles[first].seq < s)
            first++;
        for (uint32_t p = 0; p < seqs[s].n_parts; p++) {
            uint32_t t = first;
            while (tiles[t].seq == s && tiles[t].first_row + tiles[t].rows <= parts[p].row0)
                t++;
            if (tiles[t].seq != s)
                fake_abort("a unit of sequence %u from row %u, which no tile has", s, parts[p].row0);
            if (parts[p].row0 != tiles[t].first_row)
                continue;
            if (n == l->abi.n_items)
                fake_abort("units of more than %u items", n);
            items[n++] = (struct mla_abi_item){
                .tile = t,
                .page_begin = parts[p].page_begin,
                .page_end = parts[p].page_end,
                .partial_row = parts[p].split ? (uint32_t)(parts[p].partial_row + parts[p].row0) : MLA_ABI_NO_PARTIAL};
        }
    }
    if (n != l->abi.n_items)
        fake_abort("units of %u items, not %u", n, l->abi.n_items);
    return items;
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
            check_units(op);
            items = items_of_units(&op->kernel.units);
        }
        if (kernel == FAKE_REDUCE_UNITS)
            check_reduces(&op->kernel.units);
        run_launch(stream, kernel, &op->kernel.launch, items ? items : at(op->kernel.launch.items));
        free(items);
    }
    return CUDA_SUCCESS;
}
