/* Times of the reference shapes, on random numbers: graphs of launches over rotating copies of the cache, so that a
 * launch does not find the last one's pages in L2; then of each kernel by itself. Records are in device memory. For
 * orientation; nothing is judged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/rig_library.h"
#include "tests/support/check_main.h"
#include "tests/support/fp8.h"
#include "tests/support/prng.h"

enum { HEADS = 96, COPIES = 4, ROUNDS = 10, REPLAYS = 4, PARTIAL_BYTES = 256 << 20 };
#define PAGE_BYTES ((uint64_t)64 * MLA_ABI_QK_DIM)

static CUdeviceptr random_memory(uint64_t bytes)
{
    enum { BLOCK = 1 << 22 };
    struct prng prng = {bytes};
    CUdeviceptr memory;
    unsigned char *block = malloc(BLOCK);
    ck_assert_ptr_nonnull(block);
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = fp8_encode(prng_normal(&prng));
    LIB_OK(cuMemAlloc(&memory, bytes));
    for (uint64_t at = 0; at < bytes; at += BLOCK)
        lib_upload(memory + at, block, bytes - at < BLOCK ? bytes - at : BLOCK);
    free(block);
    return memory;
}

struct shape {
    uint32_t n_seqs;
    uint32_t q_len;
    uint32_t kv_len;
    uint32_t pages; /* of a sequence */
    uint32_t copies;
    struct mla_abi_job job;
    struct plan plan;
    CUdeviceptr kv, q, o, table, status, blobs;
    struct mla_kernels_launch launches[COPIES];
};

static void *array(size_t n, size_t bytes)
{
    void *memory = calloc(n + 1, bytes);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static void make_plan(struct shape *s)
{
    struct plan_seq *seqs = array(s->n_seqs, sizeof(*seqs));
    struct plan_job job = {.n_seqs = s->n_seqs, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {.device = lib.facts.device,
                                   .costs = lib.facts.costs,
                                   .policy = PLAN_AUTO,
                                   .tile_rows = lib.facts.tile_rows,
                                   .heads = HEADS,
                                   .workspace_bytes_max = PARTIAL_BYTES,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = s->n_seqs};
    for (uint32_t i = 0; i < s->n_seqs; i++)
        seqs[i] = (struct plan_seq){s->q_len, s->kv_len};
    ck_assert_int_eq(plan_bound(&request, &s->plan.capacity), 0);
    s->plan.tiles = array(s->plan.capacity.tiles, sizeof(*s->plan.tiles));
    s->plan.items = array(s->plan.capacity.items, sizeof(*s->plan.items));
    s->plan.reduces = array(s->plan.capacity.reduces, sizeof(*s->plan.reduces));
    s->plan.scratch = array(s->plan.capacity.scratch_bytes, 1);
    ck_assert_int_eq(plan_build(&request, &s->plan), 0);
    free(seqs);
}

static void make_memory(struct shape *s)
{
    uint32_t rows = s->n_seqs * s->q_len * HEADS, pages = s->n_seqs * s->pages * s->copies;
    struct prng prng = {77};
    int32_t *table = array(pages, sizeof(*table));
    for (uint32_t i = 0; i < pages; i++)
        table[i] = (int32_t)i;
    for (uint32_t i = pages; i > 1; i--) { /* within a copy pages stay its own: swap inside */
        uint32_t copy = (i - 1) / (s->n_seqs * s->pages) * (s->n_seqs * s->pages);
        uint32_t other = copy + prng_below(&prng, i - copy);
        int32_t id = table[i - 1];
        table[i - 1] = table[other];
        table[other] = id;
    }
    s->kv = random_memory(pages * PAGE_BYTES);
    s->q = random_memory((uint64_t)rows * MLA_ABI_QK_DIM);
    LIB_OK(cuMemAlloc(&s->o, (size_t)rows * MLA_ABI_V_DIM));
    LIB_OK(cuMemAlloc(&s->table, (size_t)pages * sizeof(*table)));
    lib_upload(s->table, table, (size_t)pages * sizeof(*table));
    LIB_OK(cuMemAlloc(&s->status, s->n_seqs * sizeof(uint64_t)));
    LIB_OK(cuMemsetD8Async(s->status, 0, s->n_seqs * sizeof(uint64_t), lib.stream));
    free(table);
    s->job = (struct mla_abi_job){
        .q = {s->q, 0, (int64_t)HEADS * MLA_ABI_QK_DIM, MLA_ABI_QK_DIM, 1, 0},
        .o = {s->o, 0, (int64_t)HEADS * MLA_ABI_V_DIM, MLA_ABI_V_DIM, 1, 0},
        .kv = s->kv,
        .page_stride = PAGE_BYTES,
        .status = s->status,
        .row_stride = MLA_ABI_QK_DIM,
        .num_pages = pages,
        .pages_per_entry = 1,
        .heads = HEADS,
        .n_seqs = s->n_seqs,
        .mask = MLA_ABI_MASK_CAUSAL,
        .out_type = MLA_ABI_OUT_E4M3,
        .score_scale = 1.0f / 24,
        .kv_scale = 1,
        .inv_out_scale = 32,
    };
}

/* One launch a copy, each with its part of the table. apart: each with a workspace of its own, too, so that its decode
 * kernel can be run again without its prepare kernel. */
static void write_launches(struct shape *s, bool apart)
{
    struct mla_abi_seq *seqs = array(s->n_seqs, sizeof(*seqs));
    for (uint32_t i = 0; i < s->n_seqs; i++)
        seqs[i] = (struct mla_abi_seq){0, s->q_len, s->kv_len, i * s->q_len, (uint64_t)i * s->pages};
    size_t bytes = mla_kernels_blob_bytes(lib.kernels, &s->plan, 1, s->n_seqs);
    uint64_t workspace = (mla_kernels_workspace_bytes(lib.kernels, &s->plan, 1, seqs, s->n_seqs) + 255) / 256 * 256;
    ck_assert_uint_le(workspace * (apart ? s->copies : 1), lib.workspace_bytes);
    void *blob = array(bytes, 1);
    LIB_OK(cuStreamSynchronize(lib.stream));
    if (s->blobs == 0)
        LIB_OK(cuMemAlloc(&s->blobs, bytes * s->copies));
    for (uint32_t c = 0; c < s->copies; c++) {
        CUdeviceptr to = s->blobs + c * bytes;
        s->job.table = s->table + (uint64_t)c * s->n_seqs * s->pages * sizeof(int32_t);
        ck_assert_int_eq(mla_kernels_blob_write(lib.kernels, &s->plan, &s->job, 1, seqs, s->n_seqs, blob, to,
                                                lib.workspace + (apart ? c * workspace : 0), &s->launches[c]),
                         0);
        lib_upload(to, blob, bytes);
    }
    free(blob);
    free(seqs);
}

static void drop_graph(void)
{
    LIB_OK(cuStreamSynchronize(lib.stream));
    LIB_OK(cuGraphExecDestroy(lib.exec));
    LIB_OK(cuGraphDestroy(lib.graph));
    lib.exec = NULL;
    lib.graph = NULL;
}

static void capture(const struct shape *s, unsigned which)
{
    LIB_OK(cuStreamBeginCapture(lib.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t c = 0; c < s->copies; c++)
        ck_assert_int_eq(mla_kernels_launch_some(lib.kernels, lib.stream, &s->launches[c], which, NULL), 0);
    LIB_OK(cuStreamEndCapture(lib.stream, &lib.graph));
    LIB_OK(cuGraphInstantiate(&lib.exec, lib.graph, 0));
}

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Median microseconds of a launch. */
static double time_graph(uint32_t copies)
{
    float ms[ROUNDS];
    CUevent from, to;
    LIB_OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
    LIB_OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
    for (int i = -3; i < ROUNDS; i++) {
        LIB_OK(cuEventRecord(from, lib.stream));
        for (int k = 0; k < REPLAYS; k++)
            LIB_OK(cuGraphLaunch(lib.exec, lib.stream));
        LIB_OK(cuEventRecord(to, lib.stream));
        LIB_OK(cuEventSynchronize(to));
        if (i >= 0)
            LIB_OK(cuEventElapsedTime(&ms[i], from, to));
    }
    LIB_OK(cuEventDestroy(from));
    LIB_OK(cuEventDestroy(to));
    qsort(ms, ROUNDS, sizeof(ms[0]), by_value);
    return 1e3 * ms[ROUNDS / 2] / REPLAYS / copies;
}

static double time_of(const struct shape *s, unsigned which)
{
    capture(s, which);
    double us = time_graph(s->copies);
    drop_graph();
    return us;
}

enum { ALL = MLA_KERNELS_PREPARE | MLA_KERNELS_DECODE | MLA_KERNELS_REDUCE };

static void time_shape(struct shape *s)
{
    double prepare = 0, reduce = 0;
    write_launches(s, false);
    double us = time_of(s, ALL);
    if (lib.facts.device.ctas_per_unit > 1)
        prepare = time_of(s, MLA_KERNELS_PREPARE);
    if (s->plan.n_reduces > 0)
        reduce = time_of(s, MLA_KERNELS_REDUCE);
    write_launches(s, true);
    (void)time_of(s, ALL);
    double decode = time_of(s, MLA_KERNELS_DECODE);
    double flop = 2.0 * s->n_seqs * s->q_len * HEADS * s->kv_len * (576 + 512);
    printf("%-18s B%-3u Q%u H%u KV%-6u: splits<=%-3u units %-5u waves %-3u %9.1f us %7.1f TFLOP/s, model %9.1f us; "
           "prepare %6.1f decode %9.1f reduce %6.1f us\n",
           lib.facts.name, s->n_seqs, s->q_len, HEADS, s->kv_len, s->plan.max_splits, s->plan.item_units, s->plan.waves,
           us, flop / us * 1e-6, (double)s->plan.predicted_ns * 1e-3, prepare, decode, reduce);
    fflush(stdout);
}

static void drop(struct shape *s)
{
    LIB_OK(cuStreamSynchronize(lib.stream));
    const CUdeviceptr all[] = {s->kv, s->q, s->o, s->table, s->status, s->blobs};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        LIB_OK(cuMemFree(all[i]));
    free(s->plan.tiles);
    free(s->plan.items);
    free(s->plan.reduces);
    free(s->plan.scratch);
}

START_TEST(reference_shapes)
{
    struct rig rig;
    struct be_config config = {.workspace_bytes = 512u << 20};
    if (!rig_open_config(&rig, _i, &config))
        return;
    const uint32_t batches[] = {1, 4, 16, 64};
    bool tuned = mla_kernels_facts(lib.kernels)->scratch; /* the generic kernel takes a second for the large ones */
    for (uint32_t i = 0; i < (tuned ? 16 : 2); i++) {
        struct shape s = {.n_seqs = batches[i / 4], .q_len = i % 2 ? 8 : 4, .kv_len = i / 2 % 2 ? 131072 : 65536};
        s.pages = s.kv_len / MLA_ABI_PAGE_TOKENS;
        s.copies = s.n_seqs < COPIES ? COPIES : s.n_seqs < 64 ? 2 : 1;
        make_plan(&s);
        make_memory(&s);
        time_shape(&s);
        drop(&s);
    }
    rig_close(&rig);
}
END_TEST

MLA_SUITE(reference_times)
{
    TCase *tc = mla_tcase_timeout(suite, "reference_times", 300);
    rig_add(tc, reference_shapes);
}
