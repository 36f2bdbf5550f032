#include "tests/bench/stats.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(const double *sorted, size_t n, double p)
{
    double at = p / 100.0 * (double)(n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= n)
        return sorted[n - 1];
    return sorted[below] + (at - (double)below) * (sorted[below + 1] - sorted[below]);
}

struct bench_stats bench_stats(double *sample, size_t n)
{
    qsort(sample, n, sizeof *sample, by_value);
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += sample[i];
    return (struct bench_stats){
        .min = sample[0],
        .q1 = bench_percentile(sample, n, 25),
        .median = bench_percentile(sample, n, 50),
        .q3 = bench_percentile(sample, n, 75),
        .max = sample[n - 1],
        .mean = sum / (double)n,
    };
}
