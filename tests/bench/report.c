#include "tests/bench/report.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void full(const char *what)
{
    fprintf(stderr, "mla-bench: the report has no room for more %s\n", what);
    abort();
}

void bench_note(struct bench_report *report, const char *key, const char *fmt, ...)
{
    if (report->n_notes == BENCH_NOTES_MAX)
        full("notes");
    struct bench_note *note = &report->notes[report->n_notes++];
    snprintf(note->key, sizeof note->key, "%s", key);
    va_list args;
    va_start(args, fmt);
    vsnprintf(note->text, sizeof note->text, fmt, args);
    va_end(args);
}

struct bench_row *bench_row(struct bench_report *report, const char *fmt, ...)
{
    if (report->n_rows == BENCH_ROWS_MAX)
        full("rows");
    struct bench_row *row = &report->rows[report->n_rows++];
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->name, sizeof row->name, fmt, args);
    va_end(args);
    row->n_labels = row->n_cells = 0;
    return row;
}

void bench_cell(struct bench_row *row, const char *column, double value, int decimals)
{
    if (row->n_cells == BENCH_CELLS_MAX)
        full("cells");
    row->cells[row->n_cells++] = (struct bench_cell){.column = column, .value = value, .decimals = decimals};
}

void bench_label(struct bench_row *row, const char *key, const char *text)
{
    if (row->n_labels == BENCH_LABELS_MAX)
        full("labels");
    struct bench_label *label = &row->labels[row->n_labels++];
    label->key = key;
    snprintf(label->text, sizeof label->text, "%s", text);
}

static void add_bar(struct bench_report *report, const char *name, double value, double bar, bool at_least)
{
    if (report->n_bars == BENCH_BARS_MAX)
        full("bars");
    struct bench_bar *b = &report->bars[report->n_bars++];
    snprintf(b->name, sizeof b->name, "%s", name);
    b->value = value;
    b->bar = bar;
    b->at_least = at_least;
}

void bench_bar_at_least(struct bench_report *report, const char *name, double value, double bar)
{
    add_bar(report, name, value, bar, true);
}

void bench_bar_at_most(struct bench_report *report, const char *name, double value, double bar)
{
    add_bar(report, name, value, bar, false);
}

/* Written so that NaN misses every bar. */
bool bench_bar_met(const struct bench_bar *bar)
{
    return bar->at_least ? bar->value >= bar->bar : bar->value <= bar->bar;
}

bool bench_bars_met(const struct bench_report *report)
{
    for (size_t i = 0; i < report->n_bars; i++)
        if (!bench_bar_met(&report->bars[i]))
            return false;
    return true;
}

static bool same_columns(const struct bench_row *a, const struct bench_row *b)
{
    if (a->n_cells != b->n_cells)
        return false;
    for (size_t i = 0; i < a->n_cells; i++)
        if (strcmp(a->cells[i].column, b->cells[i].column) != 0)
            return false;
    return true;
}

static int name_width(const struct bench_report *report)
{
    size_t width = 0;
    for (size_t i = 0; i < report->n_rows; i++)
        if (strlen(report->rows[i].name) > width)
            width = strlen(report->rows[i].name);
    return (int)width;
}

#define CELL_WIDTH_LEAST 12

static int cell_width(const char *column)
{
    int width = (int)strlen(column);
    return width < CELL_WIDTH_LEAST ? CELL_WIDTH_LEAST : width;
}

void bench_print(const struct bench_report *report, FILE *out)
{
    fprintf(out, "%s\n", report->title);
    for (size_t i = 0; i < report->n_notes; i++)
        fprintf(out, "  %s: %s\n", report->notes[i].key, report->notes[i].text);
    int width = name_width(report);
    for (size_t i = 0; i < report->n_rows && !report->printed; i++) {
        const struct bench_row *row = &report->rows[i];
        if (i == 0 || !same_columns(row, &report->rows[i - 1])) {
            fprintf(out, "\n  %-*s", width, "");
            for (size_t c = 0; c < row->n_cells; c++)
                fprintf(out, "  %*s", cell_width(row->cells[c].column), row->cells[c].column);
            fputc('\n', out);
        }
        fprintf(out, "  %-*s", width, row->name);
        for (size_t c = 0; c < row->n_cells; c++)
            fprintf(out, "  %*.*f", cell_width(row->cells[c].column), row->cells[c].decimals, row->cells[c].value);
        fputc('\n', out);
    }
    if (report->n_bars != 0)
        fputc('\n', out);
    for (size_t i = 0; i < report->n_bars; i++) {
        const struct bench_bar *bar = &report->bars[i];
        fprintf(out, "  %s: %.3f, bar: at %s %.3f: %s\n", bar->name, bar->value, bar->at_least ? "least" : "most",
                bar->bar, bench_bar_met(bar) ? "met" : "MISSED");
    }
}

static void json_string(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            fputc('\\', f);
        if ((unsigned char)*text < 0x20)
            fprintf(f, "\\u%04x", (unsigned)*text);
        else
            fputc(*text, f);
    }
    fputc('"', f);
}

static void json_number(FILE *f, double value)
{
    if (isfinite(value))
        fprintf(f, "%.9g", value);
    else
        fputs("null", f);
}

static void json_row(FILE *f, const struct bench_row *row)
{
    fputs("{\"name\": ", f);
    json_string(f, row->name);
    for (size_t l = 0; l < row->n_labels; l++) {
        fputs(", ", f);
        json_string(f, row->labels[l].key);
        fputs(": ", f);
        json_string(f, row->labels[l].text);
    }
    for (size_t c = 0; c < row->n_cells; c++) {
        fputs(", ", f);
        json_string(f, row->cells[c].column);
        fputs(": ", f);
        json_number(f, row->cells[c].value);
    }
    fputc('}', f);
}

static void json_bar(FILE *f, const struct bench_bar *bar)
{
    fputs("{\"name\": ", f);
    json_string(f, bar->name);
    fputs(", \"value\": ", f);
    json_number(f, bar->value);
    fprintf(f, ", \"%s\": ", bar->at_least ? "at_least" : "at_most");
    json_number(f, bar->bar);
    fprintf(f, ", \"met\": %s}", bench_bar_met(bar) ? "true" : "false");
}

int bench_write_json(const struct bench_report *report, const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -errno;
    fputs("{\"bench\": ", f);
    json_string(f, report->title);
    fputs(",\n \"notes\": {", f);
    for (size_t i = 0; i < report->n_notes; i++) {
        fputs(i ? ", " : "", f);
        json_string(f, report->notes[i].key);
        fputs(": ", f);
        json_string(f, report->notes[i].text);
    }
    fputs("},\n \"rows\": [", f);
    for (size_t i = 0; i < report->n_rows; i++) {
        fputs(i ? ",\n  " : "\n  ", f);
        json_row(f, &report->rows[i]);
    }
    fputs("],\n \"bars\": [", f);
    for (size_t i = 0; i < report->n_bars; i++) {
        fputs(i ? ",\n  " : "\n  ", f);
        json_bar(f, &report->bars[i]);
    }
    fputs("]}\n", f);
    int failed = ferror(f);
    return fclose(f) != 0 || failed ? -EIO : 0;
}

static bool same_table(const struct bench_row *a, const struct bench_row *b)
{
    if (a->n_labels != b->n_labels || !same_columns(a, b))
        return false;
    for (size_t i = 0; i < a->n_labels; i++)
        if (strcmp(a->labels[i].key, b->labels[i].key) != 0)
            return false;
    return true;
}

static void csv_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

int bench_write_csv(const struct bench_report *report, const char *path)
{
    FILE *f = fopen(path, "we");
    if (!f)
        return -errno;
    for (size_t i = 0; i < report->n_rows; i++) {
        const struct bench_row *row = &report->rows[i];
        if (i == 0 || !same_table(row, &report->rows[i - 1])) {
            fputs(i == 0 ? "name" : "\nname", f);
            for (size_t l = 0; l < row->n_labels; l++)
                fprintf(f, ",%s", row->labels[l].key);
            for (size_t c = 0; c < row->n_cells; c++)
                fprintf(f, ",%s", row->cells[c].column);
            fputc('\n', f);
        }
        csv_text(f, row->name);
        for (size_t l = 0; l < row->n_labels; l++) {
            fputc(',', f);
            csv_text(f, row->labels[l].text);
        }
        for (size_t c = 0; c < row->n_cells; c++) {
            fputc(',', f);
            if (isfinite(row->cells[c].value))
                fprintf(f, "%.9g", row->cells[c].value);
        }
        fputc('\n', f);
    }
    int failed = ferror(f);
    return fclose(f) != 0 || failed ? -EIO : 0;
}

int bench_save(const struct bench_report *report)
{
    int rc = report->json ? bench_write_json(report, report->json) : 0;
    const char *file = report->json;
    if (rc == 0 && report->csv) {
        rc = bench_write_csv(report, report->csv);
        file = report->csv;
    }
    if (rc == 0)
        return 0;
    fprintf(stderr, "mla-bench: %s: %s\n", file, strerror(-rc));
    return -1;
}
