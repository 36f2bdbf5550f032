/* An answer of the daemon against the same attention in float64. Knows nothing of libmla: what the worker sent is given
 * as plain numbers and pointers. */
#ifndef MLA_QUICKSTART_CHECK_H
#define MLA_QUICKSTART_CHECK_H

#include <stdbool.h>
#include <stdint.h>

struct check_job {
    uint32_t heads, q_len, n_seqs;
    const uint32_t *kv_len;  /* [n_seqs] */
    const uint32_t *entries; /* page ids, sequence s from s * entries_per_seq */
    uint32_t entries_per_seq, num_pages;
    const uint8_t *kv;       /* pages of the layer, one behind the other */
    const void *q, *o, *lse; /* [n_seqs * q_len][heads][576, 512, 1], packed */
    uint32_t out_type;       /* number of enum mla_dtype */
    double q_scale, kv_scale, softmax_scale, out_scale;
    double accuracy; /* of O before it is rounded, in units of the root mean square of its row */
};

struct check_result {
    bool right;
    uint64_t rows;    /* compared */
    double error;     /* of O: sqrt(sum error^2 / sum right^2), the rounding to the output's type included */
    double lse_error; /* largest, relative where |LSE| > 1 */
    char text[160];   /* the first element over its bound */
};

/* 0, or -ENOMEM. An element of O passes when it is within half a unit of its type's last place plus accuracy. */
int check_answer(const struct check_job *job, struct check_result *result);

#endif
