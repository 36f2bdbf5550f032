/* mla-bench SUBCOMMAND [--json FILE] [--csv FILE] [--check] [options of the subcommand]
 *
 * A subcommand measures, fills a report and returns; main.c prints it as a table, writes the files and, with --check,
 * exits 1 when a bar falls short. Exit 2: bad usage, the measurement itself failed, or --check without a bar; 77: this
 * machine lacks what the subcommand measures. A subcommand that runs for long calls bench_save() as it goes.
 * To add one: a function here, a file of its own, a line in main.c.
 */
#ifndef MLA_TESTS_BENCH_BENCH_H
#define MLA_TESTS_BENCH_BENCH_H

#include "tests/bench/report.h"

/* argv: what is left for the subcommand, without its name, --json, --csv and --check. 0, or non-zero after a line on
 * stderr: BENCH_SKIPPED when this machine lacks what is measured; BENCH_HELPED after a usage text on stdout. */
#define BENCH_SKIPPED 77
#define BENCH_HELPED  78
typedef int (*bench_fn)(int argc, char **argv, struct bench_report *report);

int bench_calibrate(int argc, char **argv, struct bench_report *report);
int bench_costs(int argc, char **argv, struct bench_report *report);
int bench_cpu(int argc, char **argv, struct bench_report *report);
int bench_mix(int argc, char **argv, struct bench_report *report);
int bench_overhead(int argc, char **argv, struct bench_report *report);
int bench_plan(int argc, char **argv, struct bench_report *report);
int bench_rtt(int argc, char **argv, struct bench_report *report);
int bench_shapes(int argc, char **argv, struct bench_report *report);
int bench_step(int argc, char **argv, struct bench_report *report);
int bench_workers(int argc, char **argv, struct bench_report *report);

/* Value of option `name` in argv ("--rounds 9"), or fallback; -1 when it is not a number in [least, most]. Prints why.
 * Taken out of argv (NULL stands there then), as by the next function.
 */
long bench_option(int argc, char **argv, const char *name, long fallback, long least, long most);
const char *bench_text_option(int argc, char **argv, const char *name, const char *fallback);

/* An option without a value: whether it was there. */
bool bench_flag(int argc, char **argv, const char *name);

/* After the last option: 0, or -1 after a line about what no option took. */
int bench_options_end(int argc, char **argv);

#endif
