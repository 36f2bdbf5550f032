/* Latencies as counts: buckets that are 1/32 of an octave wide, so that a percentile is at most 3 % off and a whole run
 * needs no memory but this. Counted by one process, read by another. */
#ifndef MLA_TESTS_SOAK_HIST_H
#define MLA_TESTS_SOAK_HIST_H

#include <stdint.h>

#define HIST_STEPS   32u
#define HIST_BUCKETS (HIST_STEPS * 28u) /* up to 2^32 us */

struct hist {
    uint64_t counts[HIST_BUCKETS];
};

void hist_add(struct hist *h, uint64_t us);
/* sum += now - before. */
void hist_add_difference(struct hist *sum, const struct hist *now, const struct hist *before);
uint64_t hist_count(const struct hist *h);
/* The value that a share p in 0..1 of what was counted is not above, in us: the upper end of its bucket; 0 of none. */
double hist_percentile(const struct hist *h, double p);

#endif
