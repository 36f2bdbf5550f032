#include "tests/bench/gpu/tap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/machine.h"

#define FUNCTIONS_MAX 256

static struct {
    const struct cuda_driver *real;
    struct cuda_driver table;
    struct {
        CUfunction function;
        enum tap_part part;
    } functions[FUNCTIONS_MAX];
    size_t n_functions;
    unsigned let;
    unsigned launches[TAP_PARTS];
    uint64_t *ns;
} tap;

static enum tap_part part_of_name(const char *name)
{
    return strstr(name, "prepare")  ? TAP_PREPARE
           : strstr(name, "reduce") ? TAP_REDUCE
           : strstr(name, "decode") ? TAP_DECODE
                                    : TAP_OTHER;
}

static CUresult get_function(CUfunction *out, CUmodule module, const char *name)
{
    CUresult result = tap.real->cuModuleGetFunction(out, module, name);
    if (result != CUDA_SUCCESS)
        return result;
    size_t i = 0;
    while (i < tap.n_functions && tap.functions[i].function != *out)
        i++;
    if (i == FUNCTIONS_MAX) {
        fprintf(stderr, "mla-bench: more than %d kernels\n", FUNCTIONS_MAX);
        exit(2);
    }
    tap.functions[i].function = *out; /* handles of unloaded modules come again */
    tap.functions[i].part = part_of_name(name);
    if (i == tap.n_functions)
        tap.n_functions++;
    return result;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    enum tap_part part = TAP_OTHER;
    for (size_t i = 0; i < tap.n_functions; i++)
        if (tap.functions[i].function == function)
            part = tap.functions[i].part;
    if (!(tap.let >> part & 1u))
        return CUDA_SUCCESS;
    tap.launches[part]++;
    if (!tap.ns)
        return tap.real->cuLaunchKernelEx(config, function, parameters, extra);
    uint64_t from = bench_now_ns();
    CUresult result = tap.real->cuLaunchKernelEx(config, function, parameters, extra);
    tap.ns[part] += bench_now_ns() - from;
    return result;
}

const struct cuda_driver *tap_open(const struct cuda_driver *real)
{
    memset(&tap, 0, sizeof tap);
    tap.real = real;
    tap.table = *real;
    tap.table.cuModuleGetFunction = get_function;
    tap.table.cuLaunchKernelEx = launch;
    tap.let = TAP_ALL;
    return &tap.table;
}

void tap_let(unsigned parts)
{
    tap.let = parts;
    memset(tap.launches, 0, sizeof tap.launches);
}

void tap_time(uint64_t *ns)
{
    tap.ns = ns;
}

unsigned tap_launches(enum tap_part part)
{
    return tap.launches[part];
}
