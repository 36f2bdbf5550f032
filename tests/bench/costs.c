/* mla-bench costs: the planner's cost constants from what mla-bench shapes --splits measured. Reads its CSV; needs no
 * GPU. Prints the constants as a section of kernels.ini takes them, and what AUTO would choose with them.
 * mla-bench calibrate: the same from a short search on the GPU at hand, and the file that device.costs names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/fit.h"
#include "tests/bench/machine.h"

#define SAMPLES_MAX        4096
#define FIELDS_MAX         64
#define LINE_MAX           4096
#define SHAPES_OPTIONS_MAX 32

static size_t split_line(char *line, char **fields)
{
    size_t n = 0;
    line[strcspn(line, "\r\n")] = '\0';
    for (char *at = line; n < FIELDS_MAX;) {
        char *end = *at == '"' ? strchr(++at, '"') : at + strcspn(at, ",");
        if (!end)
            break;
        fields[n++] = at;
        char *next = *end == '"' ? end + 1 : end;
        bool more = *next == ',';
        *end = '\0';
        if (!more)
            break;
        at = next + 1;
    }
    return n;
}

static const char *field(char **names, char **fields, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return fields[i];
    return "";
}

static uint32_t number(const char *text)
{
    return (uint32_t)strtoul(text, NULL, 10);
}

/* Whether a row of table "splits" is of a way that the fit takes: uniform splits and balanced plans. */
static bool sample_of_way(const char *way, struct fit_sample *sample)
{
    unsigned splits = 0;
    bool uniform = sscanf(way, "uniform %u", &splits) == 1, balanced = strcmp(way, "balanced") == 0;
    *sample = (struct fit_sample){.splits = splits, .policy = balanced ? PLAN_BALANCED : 0};
    return uniform || balanced;
}

/* Returns how many; -1 when there is no such file. */
static long read_samples(const char *path, struct fit_sample *samples)
{
    static char line[LINE_MAX], header[LINE_MAX];
    char *names[FIELDS_MAX], *fields[FIELDS_MAX];
    size_t n_names = 0;
    long n = 0;
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    while (fgets(line, sizeof line, f) && n < SAMPLES_MAX) {
        if (strncmp(line, "name,", 5) == 0) {
            memcpy(header, line, sizeof line);
            n_names = split_line(header, names);
            continue;
        }
        size_t n_fields = split_line(line, fields);
        if (n_fields != n_names || strcmp(field(names, fields, n_names, "table"), "splits") != 0)
            continue;
        struct fit_sample *sample = &samples[n];
        if (!sample_of_way(field(names, fields, n_names, "way"), sample))
            continue;
        sample->n_seqs = number(field(names, fields, n_names, "b"));
        sample->q_len = number(field(names, fields, n_names, "q_len"));
        sample->kv_len = number(field(names, fields, n_names, "kv_len"));
        sample->heads = number(field(names, fields, n_names, "heads"));
        sample->us = strtod(field(names, fields, n_names, "us"), NULL);
        n++;
    }
    fclose(f);
    return n;
}

static bool is_of(const struct fit_sample *a, const struct fit_sample *b)
{
    return a->n_seqs == b->n_seqs && a->q_len == b->q_len && a->kv_len == b->kv_len && a->heads == b->heads;
}

/* A row per shape: what AUTO chooses with the constants, what that was measured at, the best that was measured. */
static void report_shapes(const struct fit_device *device, const struct plan_costs *costs,
                          const struct fit_sample *samples, size_t n, struct bench_report *report)
{
    static const char *const names[] = {"?", "seed", "balanced", "auto", "unsplit"};
    for (size_t i = 0, end; i < n; i = end) {
        struct fit_sample chosen = samples[i];
        struct plan plan;
        double best = INFINITY, at_best = 0, measured = (double)NAN;
        chosen.splits = 0;
        chosen.policy = 0;
        double model = fit_model_us(device, costs, &chosen, &plan);
        for (end = i; end < n && is_of(&samples[i], &samples[end]); end++) {
            if (samples[end].us < best) {
                best = samples[end].us;
                at_best = samples[end].splits;
            }
            bool same = plan.chosen == PLAN_BALANCED ? samples[end].policy == PLAN_BALANCED
                                                     : samples[end].splits == plan.max_splits;
            if (same)
                measured = samples[end].us;
        }
        struct bench_row *row =
            bench_row(report, "B%u Q%u H%u KV%u", chosen.n_seqs, chosen.q_len, chosen.heads, chosen.kv_len);
        bench_label(row, "chosen", names[plan.chosen <= PLAN_UNSPLIT ? plan.chosen : 0]);
        bench_cell(row, "balanced", plan.chosen == PLAN_BALANCED, 0);
        bench_cell(row, "splits", plan.max_splits, 0);
        bench_cell(row, "model_us", model, 1);
        bench_cell(row, "measured_us", measured, 1); /* of a balanced plan: as it was cut then */
        bench_cell(row, "best_splits", at_best, 0);  /* 0: balanced */
        bench_cell(row, "best_us", best, 1);
        bench_cell(row, "over_best", measured / best, 4);
    }
}

/* ---- the results ---- */

static void print_costs(FILE *out, const struct plan_costs *c)
{
    fprintf(out,
            "launch_ns = %u\nfill_ns = %u\npage_ns = %u\ndrain_ns = %u\npartial_ns = %u\nreduce_launch_ns = %u\n"
            "reduce_bytes_per_us = %u\nreduce_fixed_ns = %u\n",
            c->launch_ns, c->fill_ns, c->page_ns, c->drain_ns, c->partial_ns, c->reduce_launch_ns,
            c->reduce_bytes_per_us, c->reduce_fixed_ns);
}

static int write_costs(const char *path, const char *name, const struct fit_device *device,
                       const struct plan_costs *costs)
{
    FILE *out = fopen(path, "we");
    if (!out) {
        fprintf(stderr, "mla-bench: %s cannot be written\n", path);
        return -1;
    }
    fprintf(out, "; measured by mla-bench calibrate, commit %s\n[costs]\ndevice = %s\nrows_per_unit = %u\n",
            bench_commit, name, device->device.rows_per_unit);
    print_costs(out, costs);
    if (fclose(out) == 0)
        return 0;
    fprintf(stderr, "mla-bench: %s cannot be written\n", path);
    return -1;
}

static void fit_and_report(const struct fit_device *device, const struct fit_sample *samples, size_t n,
                           struct plan_costs *costs, struct bench_report *report)
{
    double off = fit_costs(device, samples, n, costs);
    bench_note(report, "device", "%u units of %u rows", device->device.resident_units, device->device.rows_per_unit);
    bench_note(report, "fit", "a model, not a measurement: within a shape off by %.2f %%, good splits foremost",
               100 * off);
    print_costs(stdout, costs);
    putchar('\n');
    report_shapes(device, costs, samples, n, report);
}

const struct bench_option bench_costs_options[] = {
    {"--from", "FILE", "the CSV of mla-bench shapes --splits; needed", 0, 0, 0},
    {"--units", "N", "of the device that it is of, by default an H200's", -1, 1, 65536},
    {"--rows-per-unit", "N", "of its kernels, by default 128", -1, 1, MLA_ABI_TILE_ROWS},
    {NULL, NULL, NULL, 0, 0, 0},
};

int bench_costs(int argc, char **argv, struct bench_report *report)
{
    static struct fit_sample samples[SAMPLES_MAX];
    struct fit_device device = {.tile_rows = MLA_ABI_TILE_ROWS};
    struct plan_costs costs;
    plan_device_preset("h200", &device.device, &costs);
    const char *path = bench_text(bench_costs_options, argc, argv, "--from");
    long units = bench_number_or(bench_costs_options, argc, argv, "--units", device.device.resident_units);
    long rows = bench_number_or(bench_costs_options, argc, argv, "--rows-per-unit", device.device.rows_per_unit);
    if (units < 0 || rows < 0 || bench_options_end(argc, argv) != 0)
        return -1;
    if (!path) {
        fputs("mla-bench: costs wants --from FILE, the CSV of mla-bench shapes --splits\n", stderr);
        return -1;
    }
    device.device.resident_units = (uint32_t)units;
    device.device.rows_per_unit = (uint32_t)rows;
    long n = read_samples(path, samples);
    if (n <= 0) {
        fprintf(stderr, "mla-bench: %s: %s\n", path, n < 0 ? "no such file" : "no splits in it");
        return -1;
    }
    report->title = "costs";
    bench_note(report, "from", "%ld plans of %.80s", n, path);
    fit_and_report(&device, samples, (size_t)n, &costs, report);
    return 0;
}

/* ---- calibrate ---- */

static double cell(const struct bench_row *row, const char *column)
{
    for (size_t i = 0; i < row->n_cells; i++)
        if (strcmp(row->cells[i].column, column) == 0)
            return row->cells[i].value;
    return 0;
}

static const char *label(const struct bench_row *row, const char *key)
{
    for (size_t i = 0; i < row->n_labels; i++)
        if (strcmp(row->labels[i].key, key) == 0)
            return row->labels[i].text;
    return "";
}

static size_t samples_of_report(const struct bench_report *report, struct fit_sample *samples)
{
    size_t n = 0;
    for (size_t i = 0; i < report->n_rows && n < SAMPLES_MAX; i++) {
        const struct bench_row *row = &report->rows[i];
        struct fit_sample *sample = &samples[n];
        if (strcmp(label(row, "table"), "splits") != 0 || !sample_of_way(label(row, "way"), sample))
            continue;
        sample->n_seqs = (uint32_t)cell(row, "b");
        sample->q_len = (uint32_t)cell(row, "q_len");
        sample->kv_len = (uint32_t)cell(row, "kv_len");
        sample->heads = (uint32_t)cell(row, "heads");
        sample->us = cell(row, "us");
        n++;
    }
    return n;
}

/* The GPU's name, and the units of the kernels that were measured, from the notes of shapes. */
static bool read_notes(const struct bench_report *report, char *name, size_t bytes, struct fit_device *device)
{
    bool units = false;
    name[0] = '\0';
    for (size_t i = 0; i < report->n_notes; i++) {
        const struct bench_note *note = &report->notes[i];
        if (strcmp(note->key, "gpu") == 0)
            snprintf(name, bytes, "%.*s", (int)strcspn(note->text, ","), note->text);
        if (strncmp(note->key, "variant ", 8) == 0)
            units = sscanf(note->text, "tiles of %u rows, %u units of %u", &device->tile_rows,
                           &device->device.resident_units, &device->device.rows_per_unit) == 3;
    }
    return units && name[0] != '\0';
}

/* Options of shapes that it has by default: short contexts and long ones, of batches that leave units idle and such
 * that do not. X(option, value, default) */
#define CALIBRATE_LIST(X)                                                                                              \
    X("--variants", "A,B,...", "sm90")                                                                                 \
    X("--batches", "LIST", "1,4,16")                                                                                   \
    X("--q-len", "LIST", "4")                                                                                          \
    X("--kv-len", "LIST", "8192,65536")                                                                                \
    X("--splits-max", "N", "24")                                                                                       \
    X("--repeats", "N", "7")

const struct bench_option bench_calibrate_options[] = {
    {"--out", "FILE", "for mlad's device.costs", 0, 0, 0},
#define ROW(option, value, fallback) {option, value, "as shapes has it (" fallback ")", 0, 0, 0},
    CALIBRATE_LIST(ROW)
#undef ROW
        {NULL, NULL, NULL, 0, 0, 0},
};

int bench_calibrate(int argc, char **argv, struct bench_report *report)
{
    static struct fit_sample samples[SAMPLES_MAX];
    struct fit_device device = {.tile_rows = MLA_ABI_TILE_ROWS};
    struct plan_costs costs;
    char name[64], splits[] = "--splits", *more[SHAPES_OPTIONS_MAX] = {splits};
    int n_more = 1;
#define ROW(option, value, fallback) {option, fallback},
    static const char *const defaults[][2] = {CALIBRATE_LIST(ROW)};
#undef ROW
    const char *path = bench_text(bench_calibrate_options, argc, argv, "--out");
    for (size_t i = 0; i < sizeof defaults / sizeof defaults[0]; i++) {
        const char *given = bench_text(bench_calibrate_options, argc, argv, defaults[i][0]);
        more[n_more++] = (char *)(uintptr_t)defaults[i][0];
        more[n_more++] = (char *)(uintptr_t)(given ? given : defaults[i][1]);
    }
    for (int i = 0; i < argc && n_more < SHAPES_OPTIONS_MAX; i++)
        if (argv[i])
            more[n_more++] = argv[i];
    plan_device_preset("h200", &device.device, &costs);
    int rc = bench_shapes(n_more, more, report);
    if (rc != 0)
        return rc;
    size_t n = samples_of_report(report, samples);
    if (n == 0 || !read_notes(report, name, sizeof name, &device)) {
        fputs("mla-bench: nothing was measured\n", stderr);
        return -1;
    }
    report->title = "calibrate";
    putchar('\n');
    fit_and_report(&device, samples, n, &costs, report);
    return path ? write_costs(path, name, &device, &costs) : 0;
}
