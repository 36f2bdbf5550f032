/* The shape of the baseline mla1: a cluster of two CTAs for 128 rows, 64 rows and all 512 channels to a CTA; scores and
 * output products take turns and never overlap in a CTA.
 *
 *   warps  0- 7  two warpgroups; each has O of 64 rows and 256 channels in registers
 *   warps  8-11  transposes V
 *   warp  12     loads K; 13-15 have nothing to do
 *
 * Pages are taken in pairs, of one page where a unit has an odd number. A pair:
 *   1. barrier of both warpgroups: no product of the last pair is running
 *   2. warpgroup b: scores of page b, their maxima to shared memory; meanwhile warps 8-11 write V^T of both pages
 *   3. barrier: the maxima of both are there, each warpgroup moves the same references in the same way
 *   4. P of page b to shared memory, O rescaled where references moved
 *   5. barrier: P of both is there; wait for V^T; 64 x 64 products of at most 128 keys, added to O in f32
 *
 * Barriers in shared memory. g counts pages and p pairs of the cluster over all its units; both CTAs and all roles walk
 * the same list of units. "Empty" waits use the parity that a fresh barrier counts as ended.
 *   k_full[g % 3]   phase g / 3. 1 arrival: the CTA's own loader, which expects 36,864 bytes; half of them are sent by
 *                   the peer. The peer sends only when k_empty of phase g / 3 - 1 has ended in its own CTA, to which
 *                   this CTA's readers of the stage have arrived, so that bytes never meet an earlier phase.
 *   k_empty[g % 3]  phase g / 3. 10 arrivals: of each CTA the warpgroup that had the page, once, and 4 warps of the
 *                   transposer; every one of them arrives in both CTAs.
 *   v_full          phase p. 128 arrivals: the transposer's threads.
 *   v_empty         phase p. 2 arrivals: a thread of each warpgroup when its products are done.
 * A waiter never lags a phase behind: stages are refilled only after it has arrived. It never looks a phase ahead
 * either: page g + 3 is in a later pair than page g, and a pair begins when the one before it has ended.
 * The end: each role leaves its loop having waited for all that is sent to it; then both CTAs meet, so that arrivals
 * sent to the peer find it there.
 */
#ifndef MLA_KERNELS_BASELINE_MLA1_CONFIG_CUH
#define MLA_KERNELS_BASELINE_MLA1_CONFIG_CUH

#include <stdint.h>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/sm90/launch.h"

namespace mla::mla1
{

constexpr uint32_t kThreads = 512;
constexpr uint32_t kRegistersMath = 216;
constexpr uint32_t kRegistersTranspose = 48;
constexpr uint32_t kRegistersLoad = 32;

constexpr uint32_t kPage = 64; /* keys */
constexpr uint32_t kRows = 64; /* of a CTA */
constexpr uint32_t kStages = 3;

/* A page of K, and Q: four boxes of 64 x 128 bytes (128-byte swizzle), one of 64 x 64 (64-byte swizzle). */
constexpr uint32_t kBox = 8192;
constexpr uint32_t kRope = 4 * kBox;
constexpr uint32_t kKBytes = kRope + 4096;
constexpr uint32_t kVBytes = 512 * kPage;   /* V^T of a page: 512 rows of 64 keys (64-byte swizzle) */
constexpr uint32_t kPBytes = kRows * kPage; /* P of a page: 64 rows of 64 keys (64-byte swizzle) */

/* Bytes from the beginning of dynamic shared memory, which is aligned to 1,024. */
namespace smem
{
constexpr uint32_t k = 0;
constexpr uint32_t q = k + kStages * kKBytes;
constexpr uint32_t v = q + kKBytes;
constexpr uint32_t p = v + 2 * kVBytes;
constexpr uint32_t maxima = p + 2 * kPBytes; /* float [2 pages][64] */
constexpr uint32_t sums = maxima + 512;      /* float [2 warpgroups][2: rounded, exact][64] */
constexpr uint32_t unit = sums + 1024;       /* struct UnitPages of mla1_math.cuh */
constexpr uint32_t k_full = unit + 16;
constexpr uint32_t k_empty = k_full + 8 * kStages;
constexpr uint32_t v_full = k_empty + 8 * kStages;
constexpr uint32_t v_empty = v_full + 8;
constexpr uint32_t dynamic = v_empty + 8;
} // namespace smem
static_assert(smem::dynamic <= 232448 - 1024, "shared memory of an SM");
static_assert(smem::q % 1024 == 0 && smem::v % 1024 == 0 && smem::p % 1024 == 0 && smem::k_full % 8 == 0, "alignment");

constexpr int kBarMath = 1; /* the only named barrier: 256 threads */

/* P = 2^(score - reference + kHeadroom): at most 2^8, as the reference may lag kLag octaves behind the maximum. */
constexpr float kLag = 3.0f;
constexpr float kHeadroom = 5.0f;
constexpr float kSumUnit = 1.0f / 32; /* 2^-kHeadroom */

/* Read anew by every caller, behind the compiler's back: what it hoists out of the loops it has to spill. */
__device__ __forceinline__ uint32_t cta()
{
    uint32_t c;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(c));
    return c;
}

__device__ __forceinline__ uint32_t rank_of_cta()
{
    return cta() & 1;
}

/* Units lists[cluster] to lists[cluster + 1] of the launch are this cluster's. */
__device__ __forceinline__ uint32_t cluster_of_cta()
{
    return cta() >> 1;
}

/* The first unit of cluster_of_cta() + next. */
__device__ __forceinline__ uint32_t first_unit(const mla_sm90_launch &launch, uint32_t next)
{
    return reinterpret_cast<const uint32_t *>(launch.lists)[cluster_of_cta() + next];
}

__device__ __forceinline__ const mla_sm90_unit &unit_at(const mla_sm90_launch &launch, uint32_t unit)
{
    return reinterpret_cast<const mla_sm90_unit *>(launch.units)[unit];
}

__device__ __forceinline__ void wait_for_page(uint32_t s, uint32_t g)
{
    mbarrier_wait(s + smem::k_full + 8 * (g % kStages), g / kStages & 1);
}

/* By two threads, who = 0 and 1: the page's stage has been read, here, as seen by both CTAs. */
__device__ __forceinline__ void release_page(uint32_t s, uint32_t g, uint32_t who)
{
    mbarrier_arrive_cluster(map_shared(s + smem::k_empty + 8 * (g % kStages), who));
}

} // namespace mla::mla1

#endif
