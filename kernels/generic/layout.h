/* Where the generic kernel keeps things in shared memory, and which lane of a warp holds what. Plain integer functions,
 * compiled as C by the test that runs a page through these maps and the documented fragments of mma and ldmatrix.
 *
 * A CTA has up to 64 rows of one item. Q and the page are raw e4m3, 64 rows of 576 bytes = 36 chunks of 16 bytes.
 * Two rows (1,152 bytes) are a multiple of the 128 bytes of the banks, so chunk c of row r lies at place
 * c ^ (r / 2 % 4) of its group of four: eight rows of one chunk (ldmatrix), and two rows of four chunks (16-byte
 * loads), then cover all banks once.
 */
#ifndef MLA_KERNELS_GENERIC_LAYOUT_H
#define MLA_KERNELS_GENERIC_LAYOUT_H

#include "kernels/device/numbers.h"

#define GENERIC_ROWS      64u
#define GENERIC_THREADS   256u
#define GENERIC_ROW_BYTES 576u
#define GENERIC_CHUNKS    9u   /* groups of four 16-byte chunks per row */
#define GENERIC_P_BYTES   144u /* between rows of P: 64 f16 and 16 bytes against bank conflicts */

/* Byte offset of 16-byte chunk c (0..35) of row r. */
MLA_FN uint32_t generic_chunk(uint32_t r, uint32_t c)
{
    return r * GENERIC_ROW_BYTES + (c ^ (r >> 1 & 3u)) * 16u;
}

/* mma.m16n8k16 of the scores. The order of the 576 elements is free as long as Q and K agree: lane t of a quad holds
 * chunk 4 * group + t of its row, whose word w is the lane's share of one k16 step (bytes 0, 2 as k 2t, 2t + 1; bytes
 * 1, 3 as k 2t + 8, 2t + 9). The rows are lane / 4 and, for Q, 8 more. */
MLA_FN uint32_t generic_score_offset(uint32_t lane)
{
    return generic_chunk(lane >> 2, lane & 3u);
}

/* ldmatrix.x4 of P (64 x 64 f16): the row that this lane's address names, for rows 16 * tile ... and keys 16 * step ...
 * Matrices: rows 0-7 and 8-15 of keys 0-7, then of keys 8-15, which is mma's order of A. */
MLA_FN uint32_t generic_p_offset(uint32_t lane)
{
    return (lane & 15u) * GENERIC_P_BYTES + (lane >> 4) * 16u;
}

/* Offset in P of the pair (row, key), (row, key + 1). */
MLA_FN uint32_t generic_p_pair(uint32_t row, uint32_t key)
{
    return row * GENERIC_P_BYTES + key * 2u;
}

/* ldmatrix.x4.trans of V, as pairs of columns: chunk pair c (0, 1) of the 64 columns that begin at a group of four
 * chunks, keys 16 * step ...: matrices are keys 0-7 and 8-15 of chunk 2c, then of chunk 2c + 1. A lane gets, from each,
 * columns 2g and 2g + 1 (g = lane / 4) of keys 2t and 2t + 1 (t = lane % 4): bytes 0 and 2 are B of the even columns,
 * bytes 1 and 3 of the odd ones. */
MLA_FN uint32_t generic_v_offset(uint32_t lane, uint32_t c)
{
    uint32_t key = (lane >> 3 & 1u) * 8u + (lane & 7u);
    return generic_chunk(key, 2u * c + (lane >> 4));
}

#endif
