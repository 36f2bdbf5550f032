/* Errors against float64 over the same bytes, f32 output: eight rows of the first and of the last sequence. Each shape
 * is decoded twice, without splits and with the planner's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/gpu/float64.h"
#include "tests/bench/gpu/modes.h"

#define QUICK_BATCH   4u
#define ERROR_AT_MOST 0.005
#define SAMPLES       2 /* sequences */

struct sampled {
    struct float64_rows rows[SAMPLES];
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
static void sample(const struct run *run, const struct shape *shape, struct sampled *s)
{
    s->n = shape->n_seqs > 1 ? 2 : 1;
    for (uint32_t i = 0; i < s->n; i++) {
        struct float64_rows *rows = &s->rows[i];
        uint32_t q_len;
        rows->seq = i == 0 ? 0 : shape->n_seqs - 1;
        q_len = shape->seqs[rows->seq].q_len;
        for (uint32_t r = 0; r < FLOAT64_ROWS; r++) {
            rows->rows[r].token = r * (q_len - 1) / (FLOAT64_ROWS - 1);
            rows->rows[r].head = r * (shape->heads - 1) / (FLOAT64_ROWS - 1);
        }
        float64_attend(&run->pool, shape, rows);
    }
}

struct error {
    double all;   /* relative L2 of all sampled rows together */
    double worst; /* of a row */
    uint32_t splits;
};

static struct error compare(const struct run *run, const struct shape *shape, const struct sampled *s)
{
    struct error error = {0};
    double off = 0, size = 0;
    for (uint32_t i = 0; i < s->n; i++)
        for (int r = 0; r < FLOAT64_ROWS; r++) {
            const struct float64_rows *rows = &s->rows[i];
            uint64_t token = (uint64_t)shape->seqs[rows->seq].first_token + rows->rows[r].token;
            float o[MLA_ABI_V_DIM];
            double row_off = 0, row_size = 0;
            GPU(&run->gpu,
                cuMemcpyDtoH(o, run->pool.o + (token * shape->heads + rows->rows[r].head) * sizeof o, sizeof o));
            for (uint32_t c = 0; c < MLA_ABI_V_DIM; c++) {
                double d = (double)o[c] - rows->o[r][c];
                row_off += d * d;
                row_size += rows->o[r][c] * rows->o[r][c];
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
                           enum plan_policy policy, const struct sampled *s)
{
    struct work work;
    struct work_options options = {.policy = policy, .out_type = MLA_ABI_OUT_F32, .launches = 1};
    if (work_open(&work, variant, &run->pool, shape, &options) != 0)
        return (struct error){(double)NAN, (double)NAN, 0};
    GPU(&run->gpu, cuMemsetD8Async(run->pool.o, 0xff, run->pool.o_bytes, run->gpu.stream));
    work_once(&work);
    struct error error = compare(run, shape, s);
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
    struct sampled *s = gpu_array(1, sizeof *s);
    double native = 0;
    times_progress("errors, %s, %s", set->name, shape->name);
    sample(run, shape, s);
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
