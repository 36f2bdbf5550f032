/* The shape of the Hopper kernels: a cluster of two CTAs for 128 rows, its shared memory, barriers and registers. With
 * MLA_SM90_CLUSTER 1 the same for one CTA, which has all channels of its 64 rows: for sequences with few rows, which
 * such units read twice as fast. With MLA_SM90_ROWS 48 or 32 a CTA has so many rows instead of 64.
 *
 *   warps  0- 7  two PV warpgroups: O^T (256 of 512 channels of this CTA, all rows) in registers
 *   warps  8-15  two QK warpgroups: scores and softmax of this CTA's rows, even and odd pages in turn
 *
 * A page of 64 keys is loaded once per cluster (each CTA fetches half, multicast to both). Each CTA makes P for its own
 * rows and sends it to the other, since each needs all rows for its half of the channels. Rings count pages over all
 * items of the cluster, for ever; so do parities, the turn of the QK groups and the loads ahead.
 */
#ifndef MLA_KERNELS_SM90_CONFIG_CUH
#define MLA_KERNELS_SM90_CONFIG_CUH

#include <stdint.h>

#include "kernels/sm90/precision.h"

namespace mla::sm90
{

#ifndef MLA_SM90_CLUSTER
#define MLA_SM90_CLUSTER 2
#endif
constexpr uint32_t kCtas = MLA_SM90_CLUSTER; /* of a cluster */
static_assert(kCtas == 1 || kCtas == 2, "as P is exchanged");

#ifndef MLA_SM90_ROWS
#define MLA_SM90_ROWS 64
#endif
constexpr uint32_t kRows = MLA_SM90_ROWS; /* of a CTA, of which it makes P */
static_assert(kRows == 64 || kRows == 48 || kRows == 32, "as products are written");

constexpr uint32_t kThreads = 512;
constexpr bool kNarrowPair = MLA_SM90_CLUSTER == 2 && kRows == 48;
constexpr uint32_t kRegistersPv = kRows == 64 ? 184 : kNarrowPair ? 152 : 176; /* a thread */
constexpr uint32_t kRegistersQk = 256 - kRegistersPv;

constexpr uint32_t kPage = 64;                     /* keys */
constexpr uint32_t kStages = 4;                    /* of K and of P */
constexpr uint32_t kQRows = kRows == 32 ? 32 : 64; /* of Q in a product of scores; what lies behind kRows is nobody's */
constexpr uint32_t kRefill = 16; /* entries of the load ring that are written at a time, at least as many pages early */
constexpr uint32_t kLoadRing = 64;

/* O of a PV thread: values of blocks of 64 channels, of which a group has kBlocks, for the rows of a cluster. */
constexpr int kBlocks = 4 / kCtas;
constexpr int kValues = kCtas * kRows / 2;
/* V^T of so many of them at a time is in registers. */
constexpr int kAtOnce = kCtas == 1 && kRows == 64 ? 2 : kBlocks;

/* A stage of P: rows x 64 keys of e4m3 (64-byte swizzle) in a block of kRows for each CTA, with 64 factors and a word
 * of flags: those of block 0 lie before it, those of block 1 behind it, so that a block is sent as one piece. */
constexpr uint32_t kPBlock = kRows * 64;
constexpr uint32_t kPSent = kPBlock + 256 + 16;
constexpr uint32_t kPData = 512; /* of the stage */
constexpr uint32_t kPStage = kPData + kCtas * kPBlock + 512;
__host__ __device__ constexpr uint32_t p_piece(uint32_t block)
{
    return block == 0 ? kPData - 272 : kPData + kPBlock;
}

__host__ __device__ constexpr uint32_t p_factors(uint32_t block)
{
    return block == 0 ? kPData - 272 : kPData + 2 * kPBlock;
}

__host__ __device__ constexpr uint32_t p_flags(uint32_t block)
{
    return p_factors(block) + 256;
}

/* Whether a QK group looks for rows above their references in front of its turn, by those that it knew last, which can
 * only have risen: its maxima are then not computed in its turn. Measured: 0.7 % for 128 rows, -1 % for 96. */
constexpr bool kAsksAhead = kCtas * kRows == 128;

/* k-steps of 32 channels, of 18, for which the QK threads keep Q in registers: as many as there is room for. */
constexpr int kQSteps = kNarrowPair ? 8 : kRows == 48 ? 3 : 2;

/* Pages in which all of O has once left the tensor cores' accumulators, see promote.cuh. With MLA_SM90_PROMOTION 0 it
 * never does, for measuring what that costs. */
#ifndef MLA_SM90_PROMOTION
#define MLA_SM90_PROMOTION 1
#endif
constexpr bool kPromotion = MLA_SM90_PROMOTION != 0;
constexpr uint32_t kWindow = MLA_SM90_WINDOW;

/* Vectors of sums (promote.cuh) that are kept in shared memory, as many as there is room for; the others are in L2. */
#ifndef MLA_SM90_SHARED_SUMS
#define MLA_SM90_SHARED_SUMS 0
#endif
constexpr int kSharedSums = MLA_SM90_SHARED_SUMS;
constexpr uint32_t kSumsVector = 256 * 16; /* bytes: all PV threads' */

/* A page of K: four boxes of 64 x 128 bytes (128-byte swizzle), one of 64 x 64 (64-byte swizzle). Q: boxes of kRows. */
constexpr uint32_t kBox = 8192;
constexpr uint32_t kRope = 4 * kBox;
constexpr uint32_t kKBytes = kRope + 4096;
constexpr uint32_t kQBox = kRows * 128;
constexpr uint32_t kQRope = 4 * kQBox;
constexpr uint32_t kQBytes = kQRope + kQRows * 64;

/* Whether scores have keys for their products' rows: softmax_few.cuh in the place of softmax.cuh. Their sums, in shared
 * memory, are float [2 groups][2][4 warps][kRows], and own references [2 groups][kRows]; else [2 groups][3][64]. */
constexpr bool kFew = kRows == 32;
constexpr uint32_t kSumsBytes = kFew ? 18 * kRows * 4 : 1536;

/* Addresses in the shared window. Dynamic shared memory begins behind the 1,024 bytes that the system keeps; as
 * constants they cost no registers. The kernel checks it when it starts. */
namespace smem
{
constexpr uint32_t base = 1024;
constexpr uint32_t k = base;
constexpr uint32_t q = k + kStages * kKBytes;
constexpr uint32_t p = q + kQBytes;
constexpr uint32_t scale = p + kStages * kPStage; /* float [128]: 1 / sum of each row, at the end of an item */
constexpr uint32_t reference = scale + 512;       /* float [64]: running reference of this CTA's rows, log2 units */
constexpr uint32_t limit = reference + 256;       /* int [64]: keys of the stream that a row sees end before this */
constexpr uint32_t sums = limit + 256;            /* kSumsBytes */
constexpr uint32_t out_row = sums + kSumsBytes;   /* uint64 [128] */
constexpr uint32_t sums_of_o = out_row + 1024;    /* f16 [kSharedSums][256 PV threads][8] */
constexpr uint32_t loads =
    sums_of_o + kSharedSums * kSumsVector; /* struct {uint64 map; int32 page; uint32 valid} [kLoadRing] */
constexpr uint32_t barriers = loads + kLoadRing * 16;
constexpr uint32_t k_full = barriers;
constexpr uint32_t k_empty = k_full + 8 * kStages;
constexpr uint32_t p_full = k_empty + 8 * kStages;
constexpr uint32_t p_empty = p_full + 8 * kStages;
constexpr uint32_t scale_full = p_empty + 8 * kStages;
constexpr uint32_t scale_empty = scale_full + 8;
constexpr uint32_t unit = scale_empty + 8; /* uint32 [2]: whose scales these are; 1: the cluster's last */
constexpr uint32_t cursor = unit + 8;
constexpr uint32_t cursor_bytes = 32;
constexpr uint32_t own = sums + 16 * kRows * 4;
constexpr uint32_t raises = cursor + cursor_bytes; /* uint32, of softmax_few.cuh, as the next: how often some rose */
constexpr uint32_t raised = raises + 4;            /* uint32 [2 groups]: of which rows, in the last such page */
constexpr uint32_t dynamic = raises + (kFew ? 16 : 0) - base;
} // namespace smem
static_assert(smem::dynamic <= 232448, "shared memory of an SM");
static_assert(smem::p % 1024 == 0 && kPStage % 1024 == 0 && smem::barriers % 16 == 0 && smem::sums_of_o % 16 == 0,
              "alignment");

/* Named barriers (0 is __syncthreads). */
constexpr int kBarPv = 1; /* + group */
constexpr int kBarQk = 3; /* + group */
constexpr int kBarPvAll = 5;
constexpr int kBarQkAll = 6;
constexpr int kBarTurn = 8; /* + group: the running reference is this group's, and it may make P (softmax.cuh) */

constexpr float kLag = MLA_SM90_LAG;
constexpr float kHeadroom = MLA_SM90_HEADROOM;
constexpr float kAbove = MLA_SM90_ABOVE;
constexpr float kSumUnit = 0.018581361171917516f; /* 2^-kHeadroom */
static_assert(kHeadroom == 5.75f && kHeadroom - kAbove == 5.0f, "kSumUnit, and a power of two");
constexpr float kNoReference = -1e30f;

/* A block's word of flags: a byte of each warp of its QK group. Bits 0 and 1: the reference of a row rose that
 * had one, of the warp's first 8 rows and of its last; the others are said by all four warps alike. Bits 5 and 6 are
 * used by the readers. */
constexpr uint32_t kFlagsChanged = 0x03030303u >> (64 - kRows) / 16 * 8;
constexpr uint32_t kFlagMasked = 1u << 2;
constexpr uint32_t kFlagLast = 1u << 3; /* of its unit */
constexpr uint32_t kFlagOdd = 1u << 4;  /* the cluster's second unit, fourth, ... */

constexpr float kSumScale = MLA_SM90_SUM_SCALE;

} // namespace mla::sm90

#endif
