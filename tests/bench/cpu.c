/* mla-bench cpu: how much of what the BLAS can do a decode gets. One round measures three things in turn, so that a
 * machine that slows down slows all of them down, and begins with another one than the round before:
 *   sgemm, a product per thread   every thread computes a 2048^3 product of its own, BLAS single-threaded
 *   sgemm, threads of the BLAS    one 2048^3 product on as many threads of OpenBLAS
 *   decode                        H96 Q8 B4 KV 8192 causal e4m3 through the backend's table
 * Each is timed from here, from the call until all its threads are done. A decode counts only if no sequence faulted
 * and its output has the bits of the first one. The bar compares the medians of decode and of the faster sgemm. */
#include <cblas.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/backend/backend.h"
#include "kernels/plan/plan.h"
#include "tests/bench/bench.h"
#include "tests/bench/machine.h"
#include "tests/bench/stats.h"

#define SIDE        2048
#define SGEMM_FLOP  (2.0 * SIDE * SIDE * SIDE)
#define HEADS       96u
#define Q_LEN       8u
#define SEQS        4u
#define KV_LEN      8192u
#define PAGES       (KV_LEN / MLA_ABI_PAGE_TOKENS)
#define ROW_BYTES   MLA_ABI_QK_DIM
#define DECODE_FLOP (2.0 * HEADS * Q_LEN * SEQS * KV_LEN * (MLA_ABI_QK_DIM + MLA_ABI_V_DIM))
#define O_BYTES     ((size_t)SEQS * Q_LEN * HEADS * MLA_ABI_V_DIM)
#define ROUNDS_MAX  1000
#define THREADS_MAX 128

/* ---- sgemm ---- */

struct product {
    float *a, *b, *c;
    pthread_t thread;
};

static void multiply(const struct product *p)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, SIDE, SIDE, SIDE, 1.0f, p->a, SIDE, p->b, SIDE, 0.0f, p->c,
                SIDE);
}

static void *multiply_thread(void *product)
{
    multiply(product);
    return NULL;
}

static int open_products(struct product *products, long threads)
{
    for (long t = 0; t < threads; t++) {
        float **parts[] = {&products[t].a, &products[t].b, &products[t].c};
        for (size_t i = 0; i < 3; i++) {
            float *x = aligned_alloc(64, sizeof(float) * SIDE * SIDE);
            if (!x)
                return -ENOMEM;
            for (size_t j = 0; j < (size_t)SIDE * SIDE; j++)
                x[j] = (float)(j * 2654435761u % 1024) / 512.0f - 1.0f;
            *parts[i] = x;
        }
    }
    return 0;
}

static void close_products(struct product *products, long threads)
{
    for (long t = 0; t < threads; t++) {
        free(products[t].a);
        free(products[t].b);
        free(products[t].c);
    }
}

static double sgemm_per_thread(struct product *products, long threads)
{
    openblas_set_num_threads(1);
    uint64_t start = bench_now_ns();
    for (long t = 1; t < threads; t++)
        if (pthread_create(&products[t].thread, NULL, multiply_thread, &products[t]) != 0)
            return 0.0;
    multiply(&products[0]);
    for (long t = 1; t < threads; t++)
        pthread_join(products[t].thread, NULL);
    return SGEMM_FLOP * (double)threads / (double)(bench_now_ns() - start);
}

static double sgemm_blas_threads(const struct product *product, long threads)
{
    openblas_set_num_threads((int)threads);
    uint64_t start = bench_now_ns();
    multiply(product);
    double gflops = SGEMM_FLOP / (double)(bench_now_ns() - start);
    openblas_set_num_threads(1);
    return gflops;
}

/* ---- decode ---- */

struct decode {
    struct be be;
    struct mla_abi_job *job;
    struct mla_abi_seq *seqs;
    struct plan plan;
    const uint64_t *status; /* of each sequence */
    const uint8_t *o;
    uint8_t *first_o; /* a copy of what the first launch wrote */
    void *memory[9];
    size_t n_memory;
};

static void *take(struct decode *d, size_t bytes, uint64_t *address)
{
    void *memory = be_host_alloc(&d->be, bytes, address);
    if (memory)
        d->memory[d->n_memory++] = memory;
    return memory;
}

/* Every code but the NaNs, from a fixed generator. */
static void fill_e4m3(uint8_t *out, size_t n, uint64_t state)
{
    for (size_t i = 0; i < n; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint8_t code = (uint8_t)(state >> 56);
        out[i] = (code & 0x7f) == 0x7f ? 0x38 : code;
    }
}

static bool make_job(struct decode *d)
{
    size_t rows = (size_t)SEQS * Q_LEN * HEADS;
    size_t kv_bytes = (size_t)SEQS * PAGES * MLA_ABI_PAGE_TOKENS * ROW_BYTES;
    uint64_t q_at, kv_at, table_at, o_at, status_at;
    uint8_t *q = take(d, rows * MLA_ABI_QK_DIM, &q_at);
    uint8_t *kv = take(d, kv_bytes, &kv_at);
    int32_t *table = take(d, sizeof(int32_t) * SEQS * PAGES, &table_at);
    uint8_t *o = take(d, O_BYTES, &o_at);
    uint64_t *status = take(d, sizeof(uint64_t) * SEQS, &status_at);
    d->job = take(d, sizeof *d->job, NULL);
    d->seqs = take(d, SEQS * sizeof *d->seqs, NULL);
    if (!q || !kv || !table || !o || !status || !d->job || !d->seqs)
        return false;
    d->o = o;
    d->status = status;

    fill_e4m3(q, rows * MLA_ABI_QK_DIM, 1);
    fill_e4m3(kv, kv_bytes, 2);
    for (uint32_t i = 0; i < SEQS * PAGES; i++)
        table[i] = (int32_t)((i * 5u + 3u) % (SEQS * PAGES)); /* 5 and the count have no common factor */
    for (uint32_t s = 0; s < SEQS; s++)
        d->seqs[s] = (struct mla_abi_seq){
            .q_len = Q_LEN, .kv_len_max = KV_LEN, .first_token = s * Q_LEN, .table_first = (uint64_t)s * PAGES};
    *d->job = (struct mla_abi_job){
        .q = {.base = q_at, .token_stride = HEADS * MLA_ABI_QK_DIM, .head_stride = MLA_ABI_QK_DIM, .compact = 1},
        .o = {.base = o_at, .token_stride = HEADS * MLA_ABI_V_DIM, .head_stride = MLA_ABI_V_DIM, .compact = 1},
        .kv = kv_at,
        .page_stride = MLA_ABI_PAGE_TOKENS * ROW_BYTES,
        .table = table_at,
        .status = status_at,
        .row_stride = ROW_BYTES,
        .num_pages = SEQS * PAGES,
        .pages_per_entry = 1,
        .heads = HEADS,
        .n_seqs = SEQS,
        .mask = MLA_ABI_MASK_CAUSAL,
        .out_type = MLA_ABI_OUT_E4M3,
        .score_scale = 1.0f / 65536.0f,
        .kv_scale = 1.0f,
        .inv_out_scale = 1.0f,
    };
    return true;
}

static bool make_plan(struct decode *d)
{
    const struct be_facts *facts = be_facts(&d->be);
    struct plan_seq seqs[SEQS];
    for (uint32_t s = 0; s < SEQS; s++)
        seqs[s] = (struct plan_seq){.q_len = Q_LEN, .kv_len = KV_LEN};
    struct plan_job job = {.n_seqs = SEQS, .mask = MLA_ABI_MASK_CAUSAL};
    struct plan_request request = {.device = facts->device,
                                   .costs = facts->costs,
                                   .policy = PLAN_AUTO,
                                   .tile_rows = facts->tile_rows,
                                   .heads = HEADS,
                                   .workspace_bytes_max = facts->workspace_bytes,
                                   .jobs = &job,
                                   .seqs = seqs,
                                   .n_jobs = 1,
                                   .n_seqs = SEQS};
    struct plan *plan = &d->plan;
    if (plan_bound(&request, &plan->capacity) != 0)
        return false;
    /* The arrays share one piece of memory; each starts on a multiple of 64. */
    size_t tiles = (plan->capacity.tiles * sizeof *plan->tiles + 63) & ~(size_t)63;
    size_t items = (plan->capacity.items * sizeof *plan->items + 63) & ~(size_t)63;
    size_t reduces = (plan->capacity.reduces * sizeof *plan->reduces + 63) & ~(size_t)63;
    char *memory = take(d, tiles + items + reduces + plan->capacity.scratch_bytes, NULL);
    if (!memory)
        return false;
    plan->tiles = (struct mla_abi_tile *)memory;
    plan->items = (struct mla_abi_item *)(memory + tiles);
    plan->reduces = (struct mla_abi_reduce *)(memory + tiles + items);
    plan->scratch = memory + tiles + items + reduces;
    return plan_build(&request, plan) == 0;
}

/* Submits the launch and waits for its end. */
static bool launch(struct decode *d)
{
    struct be_batch batch = {.plan = &d->plan, .jobs = d->job, .seqs = d->seqs, .n_jobs = 1, .n_seqs = SEQS};
    struct be_request request = {.op = BE_LAUNCH, .batch = &batch};
    if (be_submit(&d->be, &request) != 0)
        return false;
    for (;;) {
        struct pollfd p = {.fd = be_event_fd(&d->be), .events = POLLIN};
        struct be_event events[4];
        poll(&p, 1, 1000);
        size_t n = be_poll(&d->be, events, 4);
        for (size_t i = 0; i < n; i++) {
            if (events[i].kind == BE_FATAL)
                return false;
            if (events[i].kind == BE_BATCH_DONE)
                return true;
        }
    }
}

/* A launch that does not do the work would be fast. */
static bool result_is_right(struct decode *d)
{
    for (uint32_t s = 0; s < SEQS; s++)
        if (d->status[s] != 0)
            return false;
    if (d->first_o)
        return memcmp(d->first_o, d->o, O_BYTES) == 0;
    size_t zeros = 0;
    for (size_t i = 0; i < O_BYTES; i++)
        zeros += (d->o[i] & 0x7f) == 0;
    d->first_o = malloc(O_BYTES);
    if (!d->first_o || zeros > O_BYTES / 2)
        return false;
    memcpy(d->first_o, d->o, O_BYTES);
    return true;
}

/* GFLOP/s of one launch, 0 when it failed. */
static double run_decode(struct decode *d)
{
    uint64_t start = bench_now_ns();
    if (!launch(d))
        return 0.0;
    uint64_t end = bench_now_ns();
    return result_is_right(d) ? DECODE_FLOP / (double)(end - start) : 0.0;
}

static int open_decode(struct decode *d, long threads)
{
    struct be_config config = {.threads = (uint32_t)threads, .workspace_bytes = 64u << 20};
    struct mla_error error = {.code = MLA_OK};
    if (be_open(&d->be, be_find("cpu"), &config, &error) != 0) {
        fprintf(stderr, "mla-bench: %s\n", error.text);
        return -1;
    }
    if (!make_job(d) || !make_plan(d)) {
        fprintf(stderr, "mla-bench: the decode could not be set up\n");
        return -1;
    }
    return 0;
}

static void close_decode(struct decode *d)
{
    for (size_t i = 0; i < d->n_memory; i++)
        be_host_free(&d->be, d->memory[i]);
    free(d->first_o);
    be_close(&d->be);
}

/* ---- the subcommand ---- */

static double add_row(struct bench_report *report, const char *name, double *sample, size_t n)
{
    struct bench_stats stats = bench_stats(sample, n);
    struct bench_row *row = bench_row(report, "%s", name);
    bench_cell(row, "median_gflops", stats.median, 1);
    bench_cell(row, "min", stats.min, 1);
    bench_cell(row, "q1", stats.q1, 1);
    bench_cell(row, "q3", stats.q3, 1);
    bench_cell(row, "max", stats.max, 1);
    return stats.median;
}

enum measured { PER_THREAD, BLAS_THREADS, DECODE, MEASURED };

static int measure(struct decode *d, struct product *products, long threads, long rounds, struct bench_report *report)
{
    static double gflops[MEASURED][ROUNDS_MAX];
    for (long r = -1; r < rounds; r++) { /* round -1 warms up */
        for (long k = 0; k < MEASURED; k++) {
            enum measured what = (enum measured)((r + 1 + k) % MEASURED);
            double *out = &gflops[what][r < 0 ? 0 : r];
            *out = what == PER_THREAD     ? sgemm_per_thread(products, threads)
                   : what == BLAS_THREADS ? sgemm_blas_threads(products, threads)
                                          : run_decode(d);
            if (*out == 0.0) {
                fprintf(stderr, "mla-bench: a measurement failed\n");
                return -1;
            }
        }
    }
    double a = add_row(report, "sgemm 2048^3, a product per thread", gflops[PER_THREAD], (size_t)rounds);
    double b = add_row(report, "sgemm 2048^3, threads of the BLAS", gflops[BLAS_THREADS], (size_t)rounds);
    double c = add_row(report, "decode H96 Q8 B4 KV 8192", gflops[DECODE], (size_t)rounds);
    bench_bar_at_least(report, "decode / faster sgemm, medians", c / (a > b ? a : b), 0.70);
    return 0;
}

const struct bench_option bench_cpu_options[] = {
    {"--threads", "N", "of both, by default as many as CPUs", -1, 1, THREADS_MAX},
    {"--rounds", "N", "of all that is measured, in turn", 11, 1, ROUNDS_MAX},
    {NULL, NULL, NULL, 0, 0, 0},
};

int bench_cpu(int argc, char **argv, struct bench_report *report)
{
    int cpus[THREADS_MAX];
    size_t n_cpus = bench_cpus(cpus, THREADS_MAX);
    long all = n_cpus == 0 ? 1 : n_cpus > THREADS_MAX ? THREADS_MAX : (long)n_cpus;
    long threads = bench_number_or(bench_cpu_options, argc, argv, "--threads", all);
    long rounds = bench_number(bench_cpu_options, argc, argv, "--rounds");
    if (threads < 0 || rounds < 0 || bench_options_end(argc, argv) != 0)
        return -1;

    static struct product products[THREADS_MAX];
    static struct decode decode;
    report->title = "cpu";
    bench_note(report, "blas", "OpenBLAS, %s kernels", openblas_get_corename());
    bench_note(report, "threads", "%ld of %zu CPUs", threads, n_cpus);
    bench_note(report, "rounds", "%ld, interleaved", rounds);

    int rc = open_decode(&decode, threads);
    if (rc == 0) {
        bench_note(report, "plan", "%u tiles, %u items, %u reductions", decode.plan.n_tiles, decode.plan.n_items,
                   decode.plan.n_reduces);
        rc = open_products(products, threads);
    }
    if (rc == 0)
        rc = measure(&decode, products, threads, rounds, report);
    close_products(products, threads);
    close_decode(&decode);
    return rc;
}
