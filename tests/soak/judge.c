#include "tests/soak/judge.h"

#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n)
{
    qsort(v, n, sizeof(*v), ascending);
    return n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double slope(const double *x, const double *y, size_t n)
{
    double mean_x = 0, mean_y = 0, above = 0, below = 0;
    for (size_t i = 0; i < n; i++) {
        mean_x += x[i] / (double)n;
        mean_y += y[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        above += (x[i] - mean_x) * (y[i] - mean_y);
        below += (x[i] - mean_x) * (x[i] - mean_x);
    }
    return below > 0 ? above / below : 0;
}

struct judge_verdict judge(const struct judge_bound *bound, const double *times_s, const double *samples, size_t n,
                           double warm_s)
{
    struct judge_verdict v = {0};
    size_t begin = 0;
    while (begin < n && times_s[begin] < warm_s)
        begin++;
    size_t left = n - begin, fifth = left / 5;
    double *copy = left < JUDGE_LEAST ? NULL : malloc(fifth * sizeof(*copy));
    if (!copy)
        return v;
    memcpy(copy, samples + begin, fifth * sizeof(*copy));
    v.first = median(copy, fifth);
    memcpy(copy, samples + n - fifth, fifth * sizeof(*copy));
    v.last = median(copy, fifth);
    free(copy);
    v.per_hour = slope(times_s + begin, samples + begin, left) * 3600;
    v.limit = v.first * bound->ratio + (bound->falls ? -bound->slack : bound->slack);
    v.flat = bound->falls ? v.last >= v.limit : v.last <= v.limit;
    return v;
}
