#include "tests/soak/hist.h"

/* Below HIST_STEPS each value is a bucket; above, the top five bits behind the first one choose. */
static unsigned bucket_of(uint64_t us)
{
    if (us < HIST_STEPS)
        return (unsigned)us;
    unsigned octave = 63u - (unsigned)__builtin_clzll(us) - 5u;
    unsigned at = (octave + 1) * HIST_STEPS + (unsigned)((us >> octave) - HIST_STEPS);
    return at < HIST_BUCKETS ? at : HIST_BUCKETS - 1;
}

static double upper_end(unsigned bucket)
{
    if (bucket < HIST_STEPS)
        return bucket;
    unsigned octave = bucket / HIST_STEPS - 1;
    return (double)(((uint64_t)(bucket % HIST_STEPS + HIST_STEPS + 1) << octave) - 1);
}

void hist_add(struct hist *h, uint64_t us)
{
    __atomic_add_fetch(&h->counts[bucket_of(us)], 1, __ATOMIC_RELAXED);
}

void hist_add_difference(struct hist *sum, const struct hist *now, const struct hist *before)
{
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        sum->counts[i] += now->counts[i] - before->counts[i];
}

uint64_t hist_count(const struct hist *h)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++)
        n += h->counts[i];
    return n;
}

double hist_percentile(const struct hist *h, double p)
{
    uint64_t n = hist_count(h), below = 0;
    if (n == 0)
        return 0;
    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        below += h->counts[i];
        if ((double)below >= p * (double)n)
            return upper_end(i);
    }
    return upper_end(HIST_BUCKETS - 1);
}
