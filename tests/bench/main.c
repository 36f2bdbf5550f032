#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench.h"
#include "tests/bench/machine.h"

static const struct {
    const char *name;
    bench_fn run;
    const char *help;
} subcommands[] = {
#if defined(MLAD_HAVE_CPU_BACKEND)
    {"cpu", bench_cpu, "decode on the CPU backend against a 2048^3 sgemm of the same BLAS [--threads N] [--rounds N]"},
#endif
    {"rtt", bench_rtt,
     "round trips, requests per second and CPU time of the daemon against raw sockets [--rounds N] [--samples N] "
     "[--load MS] [--mlad PATH] [--client-cpu N] [--server-cpu N]"},
    {"overhead", bench_overhead,
     "what a client of mlad sees of a decode, against its kernels, on a GPU [--ms N] [--rounds N]"},
    {"workers", bench_workers,
     "1 to 16 workers through mlad, by time slicing, under MPS, and as one batch, on a GPU [--ms N] [--rounds N]"},
    {"mix", bench_mix, "small decodes beside a large one, with and without fairness, on a GPU [--ms N] [--rounds N]"},
    {"step", bench_step,
     "captured steps of 24 layers in process, by mlad shared and isolated, on a GPU [--ms N] [--rounds N]"},
    {"plan", bench_plan, "how long planning a launch takes on this CPU, for an H200 [--samples N]"},
    {"costs", bench_costs,
     "the planner's cost constants from the CSV of shapes --splits: --from FILE [--units N] "
     "[--rows-per-unit N]"},
    {"calibrate", bench_calibrate,
     "the same from a short search on the GPU at hand: --out FILE, which mlad's device.costs then names"},
    {"shapes", bench_shapes, "the kernels on a GPU: reference shapes, splits, errors and more; shapes --help tells"},
    {NULL, NULL, NULL},
};

static int usage(FILE *out)
{
    fputs("usage: mla-bench SUBCOMMAND [--json FILE] [--csv FILE] [--check] [options]\n", out);
    for (size_t i = 0; subcommands[i].name; i++)
        fprintf(out, "  %-8s %s\n", subcommands[i].name, subcommands[i].help);
    return 2;
}

const char *bench_text_option(int argc, char **argv, const char *name, const char *fallback)
{
    for (int i = 0; i + 1 < argc; i++) {
        if (!argv[i] || !argv[i + 1] || strcmp(argv[i], name) != 0)
            continue;
        const char *value = argv[i + 1];
        argv[i] = argv[i + 1] = NULL;
        return value;
    }
    return fallback;
}

long bench_option(int argc, char **argv, const char *name, long fallback, long least, long most)
{
    const char *text = bench_text_option(argc, argv, name, NULL);
    if (!text)
        return fallback;
    char *end;
    long value = strtol(text, &end, 10);
    if (*end == '\0' && end != text && value >= least && value <= most)
        return value;
    fprintf(stderr, "mla-bench: %s wants a number from %ld to %ld\n", name, least, most);
    return -1;
}

bool bench_flag(int argc, char **argv, const char *name)
{
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

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    bench_fn run = NULL;
    for (size_t i = 0; subcommands[i].name; i++)
        if (strcmp(argv[1], subcommands[i].name) == 0)
            run = subcommands[i].run;
    if (!run)
        return usage(stderr);

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
    int rc = run(n, argv, &report);
    if (rc != 0)
        return rc == BENCH_SKIPPED ? BENCH_SKIPPED : rc == BENCH_HELPED ? 0 : 2;
    bench_print(&report, stdout);
    if (bench_save(&report) != 0)
        return 2;
    if (check && report.n_bars == 0) {
        fputs("mla-bench: nothing that was measured has a bar\n", stderr);
        return 2;
    }
    return check && !bench_bars_met(&report) ? 1 : 0;
}
