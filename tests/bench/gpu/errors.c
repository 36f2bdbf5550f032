/* Errors against float64 over the same bytes, f32 output: eight rows of the first and of the last sequence. Each shape
 * is decoded twice, without splits and with the planner's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/modes.h"
#include "tests/support/fp8.h"
#include "tests/support/sampled.h"

#define QUICK_BATCH   4u
#define ERROR_AT_MOST 0.005
#define SOFTMAX_SCALE (1.0 / 24)
#define SEQS          2
#define ROWS          8 /* of a sequence */

struct sample {
    struct {
        uint64_t row; /* of the output */
        struct sampled_row truth;
    } rows[SEQS * ROWS];
    uint32_t n;
};

static bool is_wanted(const struct run *run, const struct shape *shape)
{
    return !run->quick || shape->n_seqs <= QUICK_BATCH;
}

void errors_want(const struct run *run, struct pool_wants *wants)
{
    for (uint32_t i = 0; i < shape_count(&run->lists); i++) {
        struct shape shape;
        shape_of_lists(&shape, &run->lists, i);
        if (is_wanted(run, &shape))
            pool_want(wants, &shape, 1);
        shape_free(&shape);
    }
    wants->out_bytes = sizeof(float);
}

/* First and last tokens and heads are among them. */
static void sample_seq(const struct pool *pool, const struct shape *shape, uint32_t s, struct sample *sample)
{
    const struct mla_abi_seq *seq = &shape->seqs[s];
    const double *values = fp8_table();
    uint32_t pages = (seq->kv_len_max + MLA_ABI_PAGE_TOKENS - 1) / MLA_ABI_PAGE_TOKENS;
    int32_t *table = gpu_array(pages, sizeof *table);
    struct sampled_row *rows = gpu_array(ROWS, sizeof *rows);
    for (uint32_t p = 0; p < pages; p++)
        table[p] = pool->entries[seq->table_first + p] % (int32_t)pool->block_pages;
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t token = r * (seq->q_len - 1) / (ROWS - 1), head = r * (shape->heads - 1) / (ROWS - 1);
        uint64_t row = (uint64_t)(seq->first_token + token) * shape->heads + head;
        sample->rows[sample->n + r].row = row;
        rows[r].keys = seq->kv_len_max - seq->q_len + token + 1;
        for (uint32_t c = 0; c < MLA_ABI_QK_DIM; c++)
            rows[r].q[c] = values[pool->q_rows[row * MLA_ABI_QK_DIM + c]];
    }
    sampled_decode(pool->block, table, SOFTMAX_SCALE, false, rows, ROWS);
    for (uint32_t r = 0; r < ROWS; r++)
        sample->rows[sample->n++].truth = rows[r];
    free(rows);
    free(table);
}

struct error {
    double all;   /* relative L2 of all sampled rows together */
    double worst; /* of a row */
    uint32_t splits;
};

static struct error compare(const struct run *run, const struct sample *sample)
{
    struct error error = {0};
    double off = 0, size = 0;
    for (uint32_t i = 0; i < sample->n; i++) {
        const double *truth = sample->rows[i].truth.o;
        float o[MLA_ABI_V_DIM];
        double row_off = 0, row_size = 0;
        GPU(&run->gpu, cuMemcpyDtoH(o, run->pool.o + sample->rows[i].row * sizeof o, sizeof o));
        for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++) {
            double d = (double)o[c] - truth[c];
            row_off += d * d;
            row_size += truth[c] * truth[c];
        }
        double relative = sqrt(row_off / row_size);
        error.worst = relative <= error.worst ? error.worst : relative; /* NaN stays */
        off += row_off;
        size += row_size;
    }
    error.all = sqrt(off / size);
    return error;
}

/* NaN where there is no plan. */
static struct error decode(const struct run *run, const struct variant *variant, const struct shape *shape,
                           enum plan_policy policy, const struct sample *s)
{
    struct work work;
    struct work_options options = {.policy = policy, .out_type = MLA_ABI_OUT_F32, .launches = 1};
    if (work_open(&work, variant, &run->pool, shape, &options) != 0)
        return (struct error){(double)NAN, (double)NAN, 0};
    GPU(&run->gpu, cuMemsetD8Async(run->pool.o, 0xff, run->pool.o_bytes, run->gpu.stream));
    work_once(&work);
    struct error error = compare(run, s);
    error.splits = work.plan.max_splits;
    work_close(&work);
    return error;
}

static void add_row(struct run *run, const struct variant *variant, const struct shape *shape,
                    const struct data_set *set, const struct error *whole, const struct error *chosen)
{
    struct bench_row *row = bench_row(run->report, "%s %s %s", shape->name, variant->name, set->name);
    bench_label(row, "table", "errors");
    bench_label(row, "variant", variant->name);
    bench_label(row, "data", set->name);
    bench_cell(row, "b", shape->n_seqs, 0);
    bench_cell(row, "q_len", shape->q_len, 0);
    bench_cell(row, "kv_len", shape->kv_len, 0);
    bench_cell(row, "heads", shape->heads, 0);
    bench_cell(row, "error", chosen->all, 6);
    bench_cell(row, "error_worst_row", chosen->worst, 6);
    bench_cell(row, "splits", chosen->splits, 0);
    bench_cell(row, "error_unsplit", whole->all, 6);
    bench_cell(row, "error_unsplit_worst_row", whole->worst, 6);
}

/* The largest error of the native variant; NaN when one is. */
static double run_shape(struct run *run, const struct shape *shape, const struct data_set *set)
{
    struct sample *s = gpu_array(1, sizeof *s);
    double native = 0;
    times_progress("errors, %s, %s", set->name, shape->name);
    sample_seq(&run->pool, shape, 0, s);
    if (shape->n_seqs > 1)
        sample_seq(&run->pool, shape, shape->n_seqs - 1, s);
    times_progress_end();
    printf("  %-24s", shape->name);
    for (size_t v = 0; v < run->n_variants; v++) {
        if (!run->variants[v].kernels)
            continue;
        struct error whole = decode(run, &run->variants[v], shape, PLAN_UNSPLIT, s);
        struct error chosen = decode(run, &run->variants[v], shape, PLAN_AUTO, s);
        printf("  %s %.3f %% unsplit, %.3f %% in %u", run->variants[v].name, 100 * whole.all, 100 * chosen.all,
               chosen.splits);
        add_row(run, &run->variants[v], shape, set, &whole, &chosen);
        if (v == 0)
            native = isnan(whole.all) || whole.all > chosen.all ? whole.all : chosen.all;
    }
    printf("\n");
    fflush(stdout);
    free(s);
    return native;
}

void errors_run(struct run *run)
{
    for (int d = 0; d < DATA_SETS; d++) {
        double worst = 0;
        pool_fill(&run->pool, &data_sets[d]);
        printf("relative L2 error, KV ~ N(mean, 1), %s\n", data_sets[d].name);
        for (uint32_t i = 0; i < shape_count(&run->lists); i++) {
            struct shape shape;
            shape_of_lists(&shape, &run->lists, i);
            if (is_wanted(run, &shape)) {
                double error = run_shape(run, &shape, &data_sets[d]);
                worst = error <= worst ? worst : error;
            }
            shape_free(&shape);
        }
        if (run->reference_lists && !run->quick) {
            char name[BENCH_TEXT_MAX];
            snprintf(name, sizeof name, "relative L2 error, %s, worst of 16 shapes", data_sets[d].name);
            bench_bar_at_most(run->report, name, worst, ERROR_AT_MOST);
        }
        bench_save(run->report);
    }
}
