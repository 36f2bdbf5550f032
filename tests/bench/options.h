/* Options of a subcommand: a table, which parsing takes bounds and defaults from and --help is made of, so that neither
 * has what the other has not. The functions take what they find out of argv (NULL stands there then). An option that is
 * not in the table ends the program: that is a mistake of ours. */
#ifndef MLA_TESTS_BENCH_OPTIONS_H
#define MLA_TESTS_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdio.h>

struct bench_option {
    const char *name;           /* "--rounds"; NULL: the table ends */
    const char *value;          /* "N"; NULL: a flag */
    const char *text;           /* what it is, for --help */
    long fallback, least, most; /* of a number; least == most: of a text or a flag, which has none. fallback < least:
                                 * what text says */
};

/* A number: the fallback, or what stands behind the option; -1, which no table allows, after a line on stderr. */
long bench_number(const struct bench_option *table, int argc, char **argv, const char *name);

/* The same where this machine decides the fallback. */
long bench_number_or(const struct bench_option *table, int argc, char **argv, const char *name, long fallback);

/* A text; NULL: not given. */
const char *bench_text(const struct bench_option *table, int argc, char **argv, const char *name);
bool bench_flag(const struct bench_option *table, int argc, char **argv, const char *name);

/* After the last option: 0, or -1 after a line about what no option took. */
int bench_options_end(int argc, char **argv);

/* The table as lines of --help. */
void bench_options_print(const struct bench_option *table, FILE *out);

#endif
