#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/machine.h"

static const struct subcommand {
    const char *name;
    bench_fn run;
    const struct bench_option *options;
    const char *about, *more; /* more: below its options, or NULL */
} subcommands[] = {
#if defined(MLAD_HAVE_CPU_BACKEND)
    {"cpu", bench_cpu, bench_cpu_options, "decode on the CPU backend against a 2048^3 sgemm of the same BLAS", NULL},
#endif
    {"rtt", bench_rtt, bench_rtt_options,
     "round trips, requests per second and CPU time of the daemon against raw sockets", NULL},
    {"overhead", bench_overhead, bench_overhead_options,
     "what a client of mlad sees of a decode, against its kernels, on a GPU", NULL},
    {"launch", bench_launch, bench_launch_options,
     "what a launch by itself takes more than in a graph of many, by several ways, on a GPU", bench_launch_more},
    {"workers", bench_workers, bench_workers_options,
     "1 to 16 workers through mlad, by time slicing, under MPS, and as one batch, on a GPU", NULL},
    {"mix", bench_mix, bench_mix_options, "small decodes beside a large one, with and without fairness, on a GPU",
     NULL},
    {"step", bench_step, bench_step_options,
     "captured steps of 24 layers in process, by mlad shared and isolated, on a GPU", NULL},
    {"plan", bench_plan, bench_plan_options, "how long planning a launch takes on this CPU, for an H200", NULL},
    {"costs", bench_costs, bench_costs_options, "the planner's cost constants from the CSV of shapes --splits", NULL},
    {"calibrate", bench_calibrate, bench_calibrate_options,
     "the planner's cost constants from a short search on the GPU at hand; all options of shapes, too, of which\n"
     "--variants, --batches, --q-len, --kv-len, --splits-max and --repeats are less",
     NULL},
    {"shapes", bench_shapes, bench_shapes_options, "the kernels on a GPU: reference shapes, splits, errors and more",
     bench_shapes_more},
};
#define SUBCOMMANDS (sizeof subcommands / sizeof subcommands[0])

static int usage(FILE *out)
{
    fputs("usage: mla-bench SUBCOMMAND [--json FILE] [--csv FILE] [--check] [options]\n"
          "       mla-bench SUBCOMMAND --help\n",
          out);
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        fprintf(out, "  %-9s %.*s\n", subcommands[i].name, (int)strcspn(subcommands[i].about, ";\n"),
                subcommands[i].about);
    return 2;
}

/* Of every subcommand; main() takes them. */
static const struct bench_option common[] = {
    {"--json", "FILE", "the report as JSON", 0, 0, 0},
    {"--csv", "FILE", "its rows as CSV", 0, 0, 0},
    {"--check", NULL, "exit 1 when a bar is missed, 2 when nothing that was measured has one", 0, 0, 0},
    {"--help", NULL, "this text", 0, 0, 0},
    {NULL, NULL, NULL, 0, 0, 0},
};

static void help(const struct subcommand *s)
{
    printf("usage: mla-bench %s [options]\n%s.\n\n", s->name, s->about);
    bench_options_print(s->options, stdout);
    bench_options_print(common, stdout);
    if (s->more)
        fputs(s->more, stdout);
}

static const struct subcommand *find(const char *name)
{
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        if (strcmp(name, subcommands[i].name) == 0)
            return &subcommands[i];
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    const struct subcommand *subcommand = find(argv[1]);
    if (!subcommand)
        return usage(stderr);
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            help(subcommand);
            return 0;
        }
    }

    static struct bench_report report;
    bool check = false;
    int n = 0;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--check") == 0)
            check = true;
        else if (strcmp(argv[i], "--json") == 0 && i + 1 < argc)
            report.json = argv[++i];
        else if (strcmp(argv[i], "--csv") == 0 && i + 1 < argc)
            report.csv = argv[++i];
        else
            argv[n++] = argv[i];
    }

    bench_note_machine(&report);
    int rc = subcommand->run(n, argv, &report);
    if (rc != 0)
        return rc == BENCH_SKIPPED ? BENCH_SKIPPED : 2;
    bench_print(&report, stdout);
    if (bench_save(&report) != 0)
        return 2;
    if (check && report.n_bars == 0) {
        fputs("mla-bench: nothing that was measured has a bar\n", stderr);
        return 2;
    }
    return check && !bench_bars_met(&report) ? 1 : 0;
}
