/* What a benchmark found: notes (machine, settings), rows of named figures, and bars. */
#ifndef MLA_TESTS_BENCH_REPORT_H
#define MLA_TESTS_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define BENCH_NOTES_MAX  48
#define BENCH_ROWS_MAX   2048
#define BENCH_CELLS_MAX  48
#define BENCH_LABELS_MAX 5
#define BENCH_BARS_MAX   64
#define BENCH_TEXT_MAX   128

struct bench_note {
    char key[BENCH_TEXT_MAX];
    char text[BENCH_TEXT_MAX];
};

struct bench_cell {
    const char *column; /* static string with its unit: "median_gflops" */
    double value;
    int decimals;
};

/* What is a word, not a number: {"variant", "sm90"}. In the files, not in the table. */
struct bench_label {
    const char *key; /* static string */
    char text[64];
};

struct bench_row {
    char name[BENCH_TEXT_MAX];
    struct bench_label labels[BENCH_LABELS_MAX];
    struct bench_cell cells[BENCH_CELLS_MAX];
    size_t n_labels, n_cells;
};

struct bench_bar {
    char name[BENCH_TEXT_MAX];
    double value;
    double bar;
    bool at_least; /* else at most */
};

struct bench_report {
    const char *title;
    const char *json, *csv; /* files that bench_save() writes; NULL: none */
    bool printed;           /* the subcommand has printed its rows itself */
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
void bench_label(struct bench_row *row, const char *key, const char *text);

void bench_bar_at_least(struct bench_report *report, const char *name, double value, double bar);
void bench_bar_at_most(struct bench_report *report, const char *name, double value, double bar);
bool bench_bar_met(const struct bench_bar *bar);
bool bench_bars_met(const struct bench_report *report);

void bench_print(const struct bench_report *report, FILE *out);
/* {"bench", "notes": {...}, "rows": [{"name", label: text, ..., column: value, ...}], "bars": [{"name", "value",
 * "at_least" | "at_most", "met"}]}. 0, or -errno. */
int bench_write_json(const struct bench_report *report, const char *path);

/* The rows, as tables: a line with name, labels and columns stands before rows that have others than the row before. 0,
 * or -errno. */
int bench_write_csv(const struct bench_report *report, const char *path);

/* Writes the files that are asked for, as far as the report has come. 0, or -1 after a line on stderr. */
int bench_save(const struct bench_report *report);

#endif
