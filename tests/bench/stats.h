/* Order statistics of a sample. */
#ifndef MLA_TESTS_BENCH_STATS_H
#define MLA_TESTS_BENCH_STATS_H

#include <stddef.h>

struct bench_stats {
    double min, q1, median, q3, max, mean;
};

/* Sorts sample; n >= 1. */
struct bench_stats bench_stats(double *sample, size_t n);

/* Of a sorted sample, p in 0..100, linear between neighbours. */
double bench_percentile(const double *sorted, size_t n, double p);

#endif
