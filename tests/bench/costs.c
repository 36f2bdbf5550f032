/* mla-bench costs: the planner's cost constants from what mla-bench shapes --splits measured. Reads its CSV; needs no
 * GPU. Prints the constants as a section of kernels.ini takes them, and what AUTO would choose with them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/fit.h"

#define SAMPLES_MAX 4096
#define FIELDS_MAX  64
#define LINE_MAX    4096

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

/* The uniform splits and balanced plans of the CSV's tables "splits". Returns how many; -1 when there is no such file.
 */
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
        const char *way = field(names, fields, n_names, "way");
        unsigned splits = 0;
        bool uniform = sscanf(way, "uniform %u", &splits) == 1, balanced = strcmp(way, "balanced") == 0;
        if (!uniform && !balanced)
            continue;
        samples[n++] = (struct fit_sample){.n_seqs = number(field(names, fields, n_names, "b")),
                                           .q_len = number(field(names, fields, n_names, "q_len")),
                                           .kv_len = number(field(names, fields, n_names, "kv_len")),
                                           .heads = number(field(names, fields, n_names, "heads")),
                                           .splits = splits,
                                           .policy = balanced ? PLAN_BALANCED : 0,
                                           .us = strtod(field(names, fields, n_names, "us"), NULL)};
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

int bench_costs(int argc, char **argv, struct bench_report *report)
{
    static struct fit_sample samples[SAMPLES_MAX];
    struct fit_device device = {.tile_rows = MLA_ABI_TILE_ROWS};
    struct plan_costs costs;
    plan_device_preset("h200", &device.device, &costs);
    const char *path = bench_text_option(argc, argv, "--from", NULL);
    long units = bench_option(argc, argv, "--units", device.device.resident_units, 1, 65536);
    long rows = bench_option(argc, argv, "--rows-per-unit", device.device.rows_per_unit, 1, MLA_ABI_TILE_ROWS);
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
    double off = fit_costs(&device, samples, (size_t)n, &costs);
    report->title = "costs";
    bench_note(report, "from", "%ld plans of %.80s", n, path);
    bench_note(report, "device", "%ld units of %ld rows", units, rows);
    bench_note(report, "fit", "a model, not a measurement: within a shape off by %.2f %%, good splits foremost",
               100 * off);
    printf("launch_ns = %u\nfill_ns = %u\npage_ns = %u\ndrain_ns = %u\npartial_ns = %u\nreduce_launch_ns = %u\n"
           "reduce_bytes_per_us = %u\nreduce_fixed_ns = %u\n\n",
           costs.launch_ns, costs.fill_ns, costs.page_ns, costs.drain_ns, costs.partial_ns, costs.reduce_launch_ns,
           costs.reduce_bytes_per_us, costs.reduce_fixed_ns);
    report_shapes(&device, &costs, samples, (size_t)n, report);
    return 0;
}
