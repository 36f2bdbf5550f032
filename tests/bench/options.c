#include "tests/bench/options.h"

#include <stdlib.h>
#include <string.h>

#define NAME_COLUMNS 24
#define COLUMNS      118

static const struct bench_option *find(const struct bench_option *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return table;
    fprintf(stderr, "mla-bench: %s is not in the subcommand's table of options\n", name);
    abort();
}

static const char *take(int argc, char **argv, const char *name)
{
    for (int i = 0; i + 1 < argc; i++) {
        if (!argv[i] || !argv[i + 1] || strcmp(argv[i], name) != 0)
            continue;
        const char *value = argv[i + 1];
        argv[i] = argv[i + 1] = NULL;
        return value;
    }
    return NULL;
}

const char *bench_text(const struct bench_option *table, int argc, char **argv, const char *name)
{
    return take(argc, argv, find(table, name)->name);
}

long bench_number_or(const struct bench_option *table, int argc, char **argv, const char *name, long fallback)
{
    const struct bench_option *option = find(table, name);
    const char *text = take(argc, argv, name);
    if (!text)
        return fallback;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end == '\0' && end != text && value >= option->least && value <= option->most)
        return value;
    fprintf(stderr, "mla-bench: %s wants a number from %ld to %ld\n", name, option->least, option->most);
    return -1;
}

long bench_number(const struct bench_option *table, int argc, char **argv, const char *name)
{
    return bench_number_or(table, argc, argv, name, find(table, name)->fallback);
}

bool bench_flag(const struct bench_option *table, int argc, char **argv, const char *name)
{
    (void)find(table, name);
    for (int i = 0; i < argc; i++) {
        if (!argv[i] || strcmp(argv[i], name) != 0)
            continue;
        argv[i] = NULL;
        return true;
    }
    return false;
}

int bench_options_end(int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (!argv[i])
            continue;
        fprintf(stderr, "mla-bench: \"%s\" is not an option here, or lacks its value\n", argv[i]);
        return -1;
    }
    return 0;
}

/* Words behind what has `at` columns, in lines that begin where the text does. */
static void print_words(FILE *out, const char *text, int at)
{
    for (int length; *text != '\0'; text += length + (text[length] == ' ')) {
        length = (int)strcspn(text, " ");
        if (at + 1 + length > COLUMNS)
            at = fprintf(out, "\n%*s", NAME_COLUMNS, "") - 1;
        at += fprintf(out, " %.*s", length, text);
    }
    fputc('\n', out);
}

void bench_options_print(const struct bench_option *table, FILE *out)
{
    for (; table->name; table++) {
        char left[64], words[1024], bounds[96] = "";
        snprintf(left, sizeof left, "%s%s%s", table->name, table->value ? " " : "", table->value ? table->value : "");
        if (table->least != table->most && table->fallback >= table->least)
            snprintf(bounds, sizeof bounds, " (%ld; %ld to %ld)", table->fallback, table->least, table->most);
        else if (table->least != table->most)
            snprintf(bounds, sizeof bounds, " (%ld to %ld)", table->least, table->most);
        snprintf(words, sizeof words, "%s%s", table->text, bounds);
        print_words(out, words, fprintf(out, "  %-*s", NAME_COLUMNS - 2, left));
    }
}
