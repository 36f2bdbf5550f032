/* float64 attention of some rows of one long sequence, by all processors: what ref_decode() gives, for contexts and
 * numbers of rows that it would take minutes for. Unit scales but for the softmax's, packed pages, no NaN. Beside O it
 * gives what P rounded to e4m3 would make of it: the error that a kernel which does that cannot avoid.
 */
#ifndef MLA_TESTS_SAMPLED_H
#define MLA_TESTS_SAMPLED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/support/reference.h"

#define SAMPLED_ROUNDINGS 3

/* P = e4m3(2^(8 - shift) * exp(score - maximum)): the maximum is a number of e4m3, or between two of them, or three
 * octaves lower as well, where small weights run out of bits. O is divided by the sum of the rounded weights. */
extern const double sampled_shift[SAMPLED_ROUNDINGS]; /* 0, 0.4, 2.6 */

struct sampled_row {
    uint32_t keys; /* that it sees; at least 1 */
    double q[REF_QK_DIM];
    /* filled: */
    double lse;
    double o[REF_V_DIM];
    double rounded[SAMPLED_ROUNDINGS][REF_V_DIM]; /* when asked for, else 0 */
};

/* table: a page id per 64 keys. Aborts the process when there is no memory or no thread. */
void sampled_decode(const uint8_t *kv, const int32_t *table, double softmax_scale, bool roundings,
                    struct sampled_row *rows, size_t n_rows);

#endif
