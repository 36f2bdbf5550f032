/* mla-bench SUBCOMMAND [--json FILE] [--csv FILE] [--check] [options of the subcommand]
 *
 * A subcommand measures, fills a report and returns; main.c prints it as a table, writes the files and, with --check,
 * exits 1 when a bar falls short. Exit 2: bad usage, the measurement itself failed, or --check without a bar; 77: this
 * machine lacks what the subcommand measures. A subcommand that runs for long calls bench_save() as it goes.
 * To add one: a function and a table of options here, a file of its own, a line in main.c.
 */
#ifndef MLA_TESTS_BENCH_BENCH_H
#define MLA_TESTS_BENCH_BENCH_H

#include "tests/bench/options.h"
#include "tests/bench/report.h"

/* argv: what is left for the subcommand, without its name, --json, --csv and --check. 0, or non-zero after a line on
 * stderr: BENCH_SKIPPED when this machine lacks what is measured. */
#define BENCH_SKIPPED 77
typedef int (*bench_fn)(int argc, char **argv, struct bench_report *report);

int bench_calibrate(int argc, char **argv, struct bench_report *report);
int bench_costs(int argc, char **argv, struct bench_report *report);
int bench_cpu(int argc, char **argv, struct bench_report *report);
int bench_launch(int argc, char **argv, struct bench_report *report);
int bench_mix(int argc, char **argv, struct bench_report *report);
int bench_overhead(int argc, char **argv, struct bench_report *report);
int bench_plan(int argc, char **argv, struct bench_report *report);
int bench_rtt(int argc, char **argv, struct bench_report *report);
int bench_shapes(int argc, char **argv, struct bench_report *report);
int bench_step(int argc, char **argv, struct bench_report *report);
int bench_workers(int argc, char **argv, struct bench_report *report);

/* What they take. */
extern const struct bench_option bench_calibrate_options[];
extern const struct bench_option bench_costs_options[];
extern const struct bench_option bench_cpu_options[];
extern const struct bench_option bench_launch_options[];
extern const struct bench_option bench_mix_options[];
extern const struct bench_option bench_overhead_options[];
extern const struct bench_option bench_plan_options[];
extern const struct bench_option bench_rtt_options[];
extern const struct bench_option bench_shapes_options[];
extern const struct bench_option bench_step_options[];
extern const struct bench_option bench_workers_options[];
extern const char bench_launch_more[]; /* of its --help */
extern const char bench_shapes_more[];

#endif
