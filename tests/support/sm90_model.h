/* What the Hopper kernel makes of a row, by a model of the tensor cores' accumulators and with the numbers of
 * kernels/sm90/precision.h: for K13b and K13c without a GPU, and as the emulation that K13c compares with. One thread;
 * 32 of the 512 channels. Left out: that partials are f16 (2^-12 of each at most), and rounding of f32.
 *
 * The model of a product of 32 keys, or of 32 elements of Q and K: all exponents are brought to that of the largest of
 * its products (by the operands' exponents) and of the accumulator, each term is cut off towards zero 13 bits below it,
 * the sum is exact, and cut off to 13 bits. Scores are 18 such products, the last two of them of the rope part.
 *
 * Beside K13c on an H200 (16 rows of 4 x 96, so 47 or 64 pages a unit, or all): within 0.013 points in all eight cells
 * for each of three kinds of sm90; kernels/NOTES.md has the numbers. */
#ifndef MLA_TESTS_SM90_MODEL_H
#define MLA_TESTS_SM90_MODEL_H

#include <stdint.h>

#include "tests/support/reference.h"

#define SM90_MODEL_CHANNELS 32u

/* How references follow the maximum of a row, in octaves: see precision.h. */
struct sm90_model_references {
    float lag, above, headroom;
};
extern const struct sm90_model_references sm90_model_kernel;
/* Always the maximum of what has been seen; P of the maximum is 2^8, or 2^8.75, or 2^5. */
#define SM90_MODEL_EXACT 3
extern const struct sm90_model_references sm90_model_exact[SM90_MODEL_EXACT];

/* Packed keys without NaN, unit scales. */
struct sm90_model;
struct sm90_model *sm90_model_new(const uint8_t *kv, uint32_t keys); /* NULL: no memory */
void sm90_model_free(struct sm90_model *model);
uint32_t sm90_model_channel(uint32_t c); /* of O */

/* Scores of the first keys of all, in octaves: as the accumulators have them, and as they are. */
void sm90_model_scores(const struct sm90_model *model, uint32_t keys, const double q[REF_QK_DIM], double softmax_scale,
                       float *score);
void sm90_model_exact_scores(const struct sm90_model *model, uint32_t keys, const double q[REF_QK_DIM],
                             double softmax_scale, float *score);

/* o: a row that sees so many keys, its pages cut into units of so many, merged in float64 by their LSEs. */
void sm90_model_decode(const struct sm90_model *model, uint32_t keys, const float *score, uint32_t unit_pages,
                       const struct sm90_model_references *references, double o[SM90_MODEL_CHANNELS]);

/* The same in float64, nothing rounded. */
void sm90_model_exact_row(const struct sm90_model *model, uint32_t keys, const float *score,
                          double o[SM90_MODEL_CHANNELS]);

/* Rounded to f16, to nearest even; infinity beyond its largest number. */
float sm90_model_f16(float x);

#endif
