/* Whether a figure that was sampled all along stayed flat: the median of the first fifth of the samples after warming
 * up against the median of the last fifth. */
#ifndef MLA_TESTS_SOAK_JUDGE_H
#define MLA_TESTS_SOAK_JUDGE_H

#include <stdbool.h>
#include <stddef.h>

#define JUDGE_LEAST 10 /* samples after warming up */

struct judge_bound {
    const char *name;
    double ratio, slack; /* the last is at most first * ratio + slack; at least first * ratio - slack when falls */
    bool falls;          /* what must not happen: it falls. Else: it grows */
};

struct judge_verdict {
    double first, last, limit;
    double per_hour; /* by least squares over all samples after warming up: for people, not judged */
    bool flat;       /* false also with fewer than JUDGE_LEAST samples */
};

/* samples[n] at times_s[n], ascending; those before warm_s do not count. Without memory: not flat. */
struct judge_verdict judge(const struct judge_bound *bound, const double *times_s, const double *samples, size_t n,
                           double warm_s);

#endif
