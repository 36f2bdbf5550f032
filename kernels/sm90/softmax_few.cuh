/* The QK warpgroups: scores, the running reference, P, where a CTA has 32 rows: they are the products' columns, of
 * which there may be so few, and keys the rows. A thread has two keys (g and g + 8 of its warp's 16) of rows 8 j + 2 q
 * and 8 j + 2 q + 1. Scores are in log2 units.
 *
 * All four warps of a group have keys of each row, so its maximum is theirs together. It is seldom needed: a vote tells
 * whether some score is more than LAG octaves above its row's reference. That is asked before it is the group's turn,
 * by the references of its last page, since they only rise.
 */
#ifndef MLA_KERNELS_SM90_SOFTMAX_FEW_CUH
#define MLA_KERNELS_SM90_SOFTMAX_FEW_CUH

#include "kernels/device/output.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"

namespace mla::sm90
{

static_assert(kRows == 32, "a warp has a lane for each, products of scores so many columns");
static_assert(kCtas == 1, "P goes to nobody else");
constexpr int kBlocksOf8 = static_cast<int>(kRows) / 8; /* rows */

/* Q is read from shared memory. */
struct Queries {
};

__device__ __forceinline__ void take_q(Queries &)
{
}

struct RowState {
    float rounded[kBlocksOf8][2]; /* sums of P as rounded to e4m3, of this thread's keys: what O is divided by */
    float exact[kBlocksOf8][2];   /* and before rounding: what the LSE is made of */
    uint32_t raises;              /* that the group's own references know of */
};

/* Places: what a thread has of an array of kRows floats, rows 2 q and 2 q + 1 of each 8. */
__device__ __forceinline__ uint32_t place_of_column(uint32_t array)
{
    return array + (thread_of_group() & 3) * 8;
}

/* The references that the group's sums and P are in: those of all rows, but for what the other group has raised
 * since. */
__device__ __forceinline__ uint32_t own_references(uint32_t window, uint32_t of_group)
{
    return window + smem::own + of_group * kRows * 4;
}

/* Sums of a unit's rows, by warp; before that the maxima of a page. */
__device__ __forceinline__ uint32_t sums_of_warp(uint32_t window, uint32_t of_group, uint32_t exact, uint32_t warp)
{
    return window + smem::sums + ((of_group * 2 + exact) * 4 + warp) * kRows * 4;
}

__device__ __forceinline__ void reset(RowState &s)
{
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++) {
        s.rounded[j][0] = s.rounded[j][1] = 0;
        s.exact[j][0] = s.exact[j][1] = 0;
    }
    s.raises = ~0u; /* none of this unit's */
}

/* Of one row, in front of its first page. */
__device__ __forceinline__ void begin_row(uint32_t window, uint32_t row)
{
    store_shared_f32(window + smem::reference + row * 4, kNoReference);
    store_shared_f32(own_references(window, 0) + row * 4, kNoReference);
    store_shared_f32(own_references(window, 1) + row * 4, kNoReference);
}

typedef float Scores[4 * kBlocksOf8];

/* k: place of the page's first box, uniform. */
__device__ __forceinline__ void scores(Scores &S, uint32_t k)
{
    constexpr uint64_t wide = wgmma_layout(1024, WGMMA_SWIZZLE_128), narrow = wgmma_layout(512, WGMMA_SWIZZLE_64);
    constexpr uint32_t q = wgmma_place(smem::q);
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 16; ks++)
        wgmma_m64n32k32_ss(S, wide | (k + ((ks >> 2) * kBox + (ks & 3) * 32) / 16),
                           wide | (q + ((ks >> 2) * kQBox + (ks & 3) * 32) / 16), ks > 0);
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
        wgmma_m64n32k32_ss(S, narrow | (k + (kRope + ks * 32) / 16), narrow | (q + (kQRope + ks * 32) / 16), 1);
    wgmma_commit();
    __syncwarp(); /* what follows does not move up between the products */
}

/* S holds scores up to their scale; the sign of c goes into them, so that maxima are those of the scores. Keys at or
 * past a row's limit are not seen: -inf whatever was computed for them. */
__device__ __forceinline__ void finish_scores(Scores &S, uint32_t window, const PageOfUnit &page, float c)
{
    if (c < 0)
#pragma unroll
        for (int i = 0; i < 4 * kBlocksOf8; i++)
            S[i] = -S[i];
    if (!page.masked)
        return;
    const uint32_t t = thread_of_group(), at = place_of_column(window + smem::limit);
    const int key = static_cast<int>(page.g * kPage + (t >> 5) * 16 + (t >> 2 & 7));
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int limit = static_cast<int>(load_shared_u32(at + j * 32 + e * 4));
            if (key >= limit)
                S[4 * j + e] = -INFINITY;
            if (key + 8 >= limit)
                S[4 * j + 2 + e] = -INFINITY;
        }
}

/* Whether some score of the group's page is too far above the group's own reference of its row. For all of the group
 * alike. */
__device__ __forceinline__ bool any_above(uint32_t window, const Scores &S, float c)
{
    const uint32_t own = place_of_column(own_references(window, group()));
    float over = -INFINITY;
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++) {
        float r0, r1;
        load_shared_f32x2(own + j * 32, r0, r1);
        over = fmaxf(over, fmaf(fmaxf(S[4 * j], S[4 * j + 2]), c, -r0));
        over = fmaxf(over, fmaf(fmaxf(S[4 * j + 1], S[4 * j + 3]), c, -r1));
        if (j % 2)
            __syncwarp(); /* loads do not move up across it: registers are scarce */
    }
    return named_sync_or(kBarQk + group(), 128, over > kLag);
}

/* References of rows whose maximum is too far above them rise; what older sums are to be multiplied by goes into the
 * stage, for PV, and which rows of these had one into the group's word, as bits of flags. It is the group's turn. */
__device__ __forceinline__ void raise_references(uint32_t window, uint32_t factors, const Scores &S, float c)
{
    const uint32_t t = thread_of_group(), warp = t >> 5, maxima = sums_of_warp(window, group(), 0, 0);
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float top = fmaxf(S[4 * j + e], S[4 * j + 2 + e]) * c;
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 4));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
            if ((t & 31) < 4)
                store_shared_f32(maxima + (warp * kRows + 8 * j + 2 * (t & 3) + e) * 4, top);
        }
    named_sync(kBarQk + group(), 128);
    if (warp != 0)
        return;
    float top = load_shared_f32(maxima + t * 4);
#pragma unroll
    for (uint32_t w = 1; w < 4; w++)
        top = fmaxf(top, load_shared_f32(maxima + (w * kRows + t) * 4));
    float before = load_shared_f32(window + smem::reference + t * 4);
    float next = top > before + kLag ? top + kAbove : before;
    store_shared_f32(window + smem::reference + t * 4, next);
    store_shared_f32(factors + t * 4, ex2(before - next));
    uint32_t rows = __ballot_sync(~0u, next != before && before != kNoReference), bits = 0;
#pragma unroll
    for (uint32_t block = 0; block < 4; block++)
        if (rows >> 8 * block & 0xff)
            bits |= 1u << ((block >> 1) * 8 + (block & 1));
    if (t == 0) {
        store_shared_u32(window + smem::raised + group() * 4, bits);
        store_shared_u32(window + smem::raises, load_shared_u32(window + smem::raises) + 1);
    }
}

/* The group's sums and its own references in terms of those of all. */
__device__ __forceinline__ void follow(uint32_t window, RowState &state)
{
    const uint32_t t = thread_of_group(), own = place_of_column(own_references(window, group()));
    const uint32_t references = place_of_column(window + smem::reference);
    named_sync(kBarQk + group(), 128);
    state.raises = load_shared_u32(window + smem::raises);
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++) {
        float from[2], to[2];
        load_shared_f32x2(own + j * 32, from[0], from[1]);
        load_shared_f32x2(references + j * 32, to[0], to[1]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float factor = ex2(from[e] - to[e]);
            state.rounded[j][e] *= factor;
            state.exact[j][e] *= factor;
        }
    }
    named_sync(kBarQk + group(), 128);
    if (t < kRows)
        store_shared_f32(own_references(window, group()) + t * 4, load_shared_f32(window + smem::reference + t * 4));
    named_sync(kBarQk + group(), 128);
}

/* Sums of rounded P, of two keys of two rows. They fit f16 (at most 448 each), and what rounding them costs is as often
 * up as down. */
__device__ __forceinline__ void add_codes(uint32_t codes, float (&rounded)[2])
{
    float s0, s1;
    asm("{.reg .b16 l, h, a, b;\n.reg .b32 x, y;\n"
        "mov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 x, l;\ncvt.rn.f16x2.e4m3x2 y, h;\nadd.rn.f16x2 x, x, y;\n"
        "mov.b32 {a, b}, x;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;}"
        : "=f"(s0), "=f"(s1)
        : "r"(codes));
    rounded[0] += s0;
    rounded[1] += s1;
}

/* P of the thread's keys: of each 8 rows a word, two keys of one row, two of the next. */
__device__ __forceinline__ void exponentials(uint32_t window, const Scores &S, float c, RowState &state,
                                             uint32_t (&P)[kBlocksOf8])
{
    const uint32_t own = place_of_column(own_references(window, group()));
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++) {
        float offset[2], p[4];
        load_shared_f32x2(own + j * 32, offset[0], offset[1]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[i] = ex2(fmaf(S[4 * j + i], c, kHeadroom - offset[i & 1]));
        state.exact[j][0] += p[0] + p[2];
        state.exact[j][1] += p[1] + p[3];
        uint32_t codes = e4m3x4_of(p[0], p[1], p[2], p[3]);
        add_codes(codes, state.rounded[j]);
        P[j] = prmt(codes, codes, 0x3120);
        if (j % 2)
            __syncwarp();
    }
}

/* P and flags into the stage: keys g and g + 8 beside each other. */
__device__ __forceinline__ void store_p(uint32_t stage, const uint32_t (&P)[kBlocksOf8], uint32_t flags)
{
    const uint32_t t = thread_of_group(), lane = t & 31, warp = t >> 5;
    stmatrix_x4_trans(stage + kPData + lane * 64 + ((warp ^ (lane >> 1 & 3)) << 4), P);
    if (lane == 0)
        store_shared_u8(stage + p_flags(0) + warp, flags);
    fence_async_proxy();
}

/* The group's sums of a unit's rows, for row_sums(). */
__device__ __forceinline__ void store_sums(uint32_t window, RowState &state)
{
    const uint32_t t = thread_of_group(), warp = t >> 5;
#pragma unroll
    for (int j = 0; j < kBlocksOf8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float x[2] = {state.rounded[j][e], state.exact[j][e]};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                x[k] += __shfl_xor_sync(~0u, x[k], 4);
                x[k] += __shfl_xor_sync(~0u, x[k], 8);
                x[k] += __shfl_xor_sync(~0u, x[k], 16);
                if ((t & 31) < 4)
                    store_shared_f32(sums_of_warp(window, group(), k, warp) + (8 * j + 2 * (t & 3) + e) * 4, x[k]);
            }
        }
}

__device__ __forceinline__ float sum_of_warps(uint32_t window, uint32_t of_group, uint32_t exact, uint32_t row)
{
    float sum = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < 4; warp++)
        sum += load_shared_f32(sums_of_warp(window, of_group, exact, warp) + row * 4);
    return sum;
}

/* Of one row of the CTA, when both groups' are stored. */
__device__ __forceinline__ RowSums row_sums(uint32_t window, uint32_t row)
{
    float r0 = load_shared_f32(own_references(window, 0) + row * 4);
    float r1 = load_shared_f32(own_references(window, 1) + row * 4);
    float top = fmaxf(r0, r1), f0 = ex2(r0 - top), f1 = ex2(r1 - top);
    return {sum_of_warps(window, 0, 0, row) * f0 + sum_of_warps(window, 1, 0, row) * f1,
            sum_of_warps(window, 0, 1, row) * f0 + sum_of_warps(window, 1, 1, row) * f1, top};
}

__device__ __forceinline__ void qk_page(uint32_t window, const Queries &, const PageOfUnit &page, float c,
                                        RowState &state)
{
    uint32_t stage = page.g % kStages, parity = page.g / kStages & 1;
    uint32_t p = window + smem::p + stage * kPStage;
    Scores S;
    mbarrier_wait(window + smem::k_full + 8 * stage, parity);
    scores(S, uniform(wgmma_place(smem::k + stage * kKBytes)));
    mbarrier_wait(window + smem::p_empty + 8 * stage, parity ^ 1); /* under the products */
    wgmma_wait<0>();
    arrive_at_all(window + smem::k_empty + 8 * stage);
    finish_scores(S, window, page, c);
    c = fabsf(c);
    const bool above = any_above(window, S, c);
    uint32_t flags = page.flags;
    named_sync(kBarTurn + group(), 256);
    if (above || load_shared_u32(window + smem::raises) != state.raises) {
        if (above)
            raise_references(window, p + p_factors(0), S, c);
        follow(window, state);
        if (above)
            flags |= load_shared_u8(window + smem::raised + group() * 4 + (thread_of_group() >> 5));
    }
    named_arrive(kBarTurn + (group() ^ 1), 256);
    __syncwarp();
    uint32_t codes[kBlocksOf8];
    exponentials(window, S, c, state, codes);
    store_p(p, codes, flags);
    named_sync(kBarQk + group(), 128);
    if (thread_of_group() < 32 && elect_one())
        mbarrier_arrive(window + smem::p_full + 8 * stage);
}

} // namespace mla::sm90

#endif
