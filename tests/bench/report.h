/* What a benchmark found: notes (machine, settings), rows of named figures, and bars. */
#ifndef MLA_TESTS_BENCH_REPORT_H
#define MLA_TESTS_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define BENCH_NOTES_MAX 32
#define BENCH_ROWS_MAX  128
#define BENCH_CELLS_MAX 16
#define BENCH_BARS_MAX  32
#define BENCH_TEXT_MAX  128

struct bench_note {
    char key[BENCH_TEXT_MAX];
    char text[BENCH_TEXT_MAX];
};

struct bench_cell {
    const char *column; /* static string with its unit: "median_gflops" */
    double value;
    int decimals;
};

struct bench_row {
    char name[BENCH_TEXT_MAX];
    struct bench_cell cells[BENCH_CELLS_MAX];
    size_t n_cells;
};

struct bench_bar {
    char name[BENCH_TEXT_MAX];
    double value;
    double bar;
    bool at_least; /* else at most */
};

struct bench_report {
    const char *title;
    struct bench_note notes[BENCH_NOTES_MAX];
    struct bench_row rows[BENCH_ROWS_MAX];
    struct bench_bar bars[BENCH_BARS_MAX];
    size_t n_notes, n_rows, n_bars;
};

void bench_note(struct bench_report *report, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A row; its cells are added in the order of the columns. All rows of a report with the same columns stand in one
 * table. */
struct bench_row *bench_row(struct bench_report *report, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void bench_cell(struct bench_row *row, const char *column, double value, int decimals);

void bench_bar_at_least(struct bench_report *report, const char *name, double value, double bar);
void bench_bar_at_most(struct bench_report *report, const char *name, double value, double bar);
bool bench_bar_met(const struct bench_bar *bar);
bool bench_bars_met(const struct bench_report *report);

void bench_print(const struct bench_report *report, FILE *out);
/* {"bench", "notes": {...}, "rows": [{"name", column: value, ...}], "bars": [{"name", "value", "at_least" | "at_most",
 * "met"}]}. 0, or -errno. */
int bench_write_json(const struct bench_report *report, const char *path);

#endif
