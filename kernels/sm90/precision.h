/* The numbers that decide how exact the kernel's results are. Of C and CUDA C alike: tests/support/sm90_model.h
 * computes with them what tests/unit/test_sm90_precision.c holds them to.
 *
 * P = 2^(score - reference + HEADROOM), rounded to e4m3: at most 2^8.75, which is below its largest number (448), when
 * a score may be LAG octaves above the reference. A reference is ABOVE octaves above the maximum that it was taken
 * from: that maximum's P is a power of two, so exact, and a later one seldom needs another reference.
 *
 * Every WINDOW pages (1 + CARRY) times what an accumulator holds moves to f16 sums, and CARRY times it stays behind
 * with the opposite sign, so that the accumulator swings around zero. What it cuts off, it cuts off towards zero: of a
 * window 0.15 to 0.35 % where values have a mean and weights differ, nothing where all weights are one power of two. */
#ifndef MLA_KERNELS_SM90_PRECISION_H
#define MLA_KERNELS_SM90_PRECISION_H

#define MLA_SM90_LAG      3.0f /* octaves, as the next two */
#define MLA_SM90_HEADROOM (8.75f - MLA_SM90_LAG)
#define MLA_SM90_ABOVE    0.75f
#define MLA_SM90_WINDOW   8 /* pages of 64 keys */
#define MLA_SM90_CARRY    0.5f

/* Of the sums: they fit f16 by this, whatever the data are, up to 2^19 keys. Units are shorter by far
 * (max_pages_per_item of the manifest). */
#define MLA_SM90_SUM_SCALE (1.0f / (1 << 22))

#endif
