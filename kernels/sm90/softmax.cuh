/* The QK warpgroups: scores, the running reference, P, where a CTA has 64 rows: they are the products' rows. A thread
 * has two of them (g and g + 8 of its warp's 16) and, of each, the keys 8 i + 2 q and 8 i + 2 q + 1. Scores are in log2
 * units. softmax_few.cuh is the same for 32 rows. */
#ifndef MLA_KERNELS_SM90_SOFTMAX_CUH
#define MLA_KERNELS_SM90_SOFTMAX_CUH

#include "kernels/device/output.cuh"
#include "kernels/ptx/math.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"

namespace mla::sm90
{

struct RowState {
    float reference[2];   /* that the sums are in */
    float rounded[2];     /* sums of P as rounded to e4m3: what O is divided by */
    float exact[2];       /* sums of P before rounding: what the LSE is made of */
    uint32_t codes[2][4]; /* P of the group's last page: added to rounded under the products of its next one */
};

__device__ __forceinline__ void reset(RowState &s)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s.reference[r] = kNoReference;
        s.rounded[r] = 0;
        s.exact[r] = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            s.codes[r][i] = 0;
    }
}

/* Keys at or past a row's limit are not seen: -inf whatever was computed for them. */
__device__ __forceinline__ void mask_scores(float (&S)[32], int limit0, int limit1, int q)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int key = 8 * i + 2 * q + e;
            if (key >= limit0)
                S[4 * i + e] = -INFINITY;
            if (key >= limit1)
                S[4 * i + 2 + e] = -INFINITY;
        }
}

/* Of the keys that this thread has. */
__device__ __forceinline__ void thread_maxima(const float (&S)[32], float (&top)[2])
{
    top[0] = fmaxf(S[0], S[1]);
    top[1] = fmaxf(S[2], S[3]);
#pragma unroll
    for (int i = 1; i < 8; i++) {
        top[0] = fmaxf(top[0], fmaxf(S[4 * i], S[4 * i + 1]));
        top[1] = fmaxf(top[1], fmaxf(S[4 * i + 2], S[4 * i + 3]));
    }
}

/* Of rows, for all threads that have keys of them. */
__device__ __forceinline__ void row_maxima(float (&top)[2])
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
    }
}

__device__ __forceinline__ float sum_of_e4m3x16(const uint32_t (&codes)[4])
{
    float s0, s1;
    asm("{.reg .b16 l, h, a, b;\n.reg .b32 x0, x1, x2, x3, x4, x5, x6, x7;\n"
        "mov.b32 {l, h}, %2;\ncvt.rn.f16x2.e4m3x2 x0, l;\ncvt.rn.f16x2.e4m3x2 x1, h;\n"
        "mov.b32 {l, h}, %3;\ncvt.rn.f16x2.e4m3x2 x2, l;\ncvt.rn.f16x2.e4m3x2 x3, h;\n"
        "mov.b32 {l, h}, %4;\ncvt.rn.f16x2.e4m3x2 x4, l;\ncvt.rn.f16x2.e4m3x2 x5, h;\n"
        "mov.b32 {l, h}, %5;\ncvt.rn.f16x2.e4m3x2 x6, l;\ncvt.rn.f16x2.e4m3x2 x7, h;\n"
        "add.rn.f16x2 x0, x0, x1;\nadd.rn.f16x2 x2, x2, x3;\nadd.rn.f16x2 x4, x4, x5;\nadd.rn.f16x2 x6, x6, x7;\n"
        "add.rn.f16x2 x0, x0, x2;\nadd.rn.f16x2 x4, x4, x6;\nadd.rn.f16x2 x0, x0, x4;\n"
        "mov.b32 {a, b}, x0;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;}"
        : "=f"(s0), "=f"(s1)
        : "r"(codes[0]), "r"(codes[1]), "r"(codes[2]), "r"(codes[3]));
    return s0 + s1;
}

/* 16 keys of two rows: a word of codes of each, in the order that the products expect. */
__device__ __forceinline__ void exponentials(const float (&S)[32], float c, const float (&offset)[2], RowState &state,
                                             int pair)
{
    float p[8];
#pragma unroll
    for (int e = 0; e < 2; e++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            p[e * 4 + k] = ex2(fmaf(S[(2 * pair + e) * 4 + k], c, offset[k >> 1]));
    state.exact[0] += (p[0] + p[1]) + (p[4] + p[5]);
    state.exact[1] += (p[2] + p[3]) + (p[6] + p[7]);
    state.codes[0][pair] = e4m3x4_of(p[0], p[1], p[4], p[5]);
    state.codes[1][pair] = e4m3x4_of(p[2], p[3], p[6], p[7]);
}

/* The last page's codes into the sums of rounded P. Their sums fit f16 (8 keys of at most 448), and what rounding them
 * costs is as often up as down. */
__device__ __forceinline__ void add_codes(RowState &state)
{
#pragma unroll
    for (int r = 0; r < 2; r++)
        state.rounded[r] += sum_of_e4m3x16(state.codes[r]);
}

typedef uint32_t Queries[kQSteps][4];

/* A fragments of the first k-steps, which then cost no reads of shared memory: its bandwidth is what scores wait for.
 */
__device__ __forceinline__ void take_q(Queries &a)
{
    uint32_t t = thread_of_group(), lane = t & 31, r = (t >> 5) * 16 + (lane & 15), half = lane >> 4;
#pragma unroll
    for (uint32_t ks = 0; ks < kQSteps; ks++)
        ldmatrix_x4(a[ks],
                    window_of_cta() + smem::q + (ks >> 2) * kQBox + r * 128 + ((((ks & 3) * 2 + half) ^ (r & 7)) << 4));
}

/* k: place of the page's first box, uniform. */
__device__ __forceinline__ void scores(float (&S)[32], const Queries &a, uint32_t k)
{
    constexpr uint64_t wide = wgmma_layout(1024, WGMMA_SWIZZLE_128), narrow = wgmma_layout(512, WGMMA_SWIZZLE_64);
    constexpr uint32_t q = wgmma_place(smem::q);
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 16; ks++) {
        uint32_t at = ((ks >> 2) * kBox + (ks & 3) * 32) / 16, q_at = ((ks >> 2) * kQBox + (ks & 3) * 32) / 16;
        if (ks < kQSteps)
            wgmma_m64n64k32_rs(S, a[ks < kQSteps ? ks : 0], wide | (k + at), ks > 0);
        else
            wgmma_m64n64k32_ss(S, wide | (q + q_at), wide | (k + at), 1);
    }
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
        wgmma_m64n64k32_ss(S, narrow | (q + (kQRope + ks * 32) / 16), narrow | (k + (kRope + ks * 32) / 16), 1);
    wgmma_commit();
    __syncwarp(); /* what follows does not move up between the products */
}

/* Whether some row of the warp has a maximum too far above its reference. */
__device__ __forceinline__ bool is_above(const float (&top)[2], const float (&reference)[2])
{
    return __any_sync(~0u, top[0] > reference[0] + kLag || top[1] > reference[1] + kLag);
}

/* References of rows whose maximum is too far above them; bits of the blocks of 8 rows with such rows, but for rows
 * that had none: what follows is zeros. What older sums are to be multiplied by goes into the stage, for PV. */
__device__ __forceinline__ uint32_t raise_references(uint32_t references, uint32_t factors, float (&top)[2],
                                                     float (&reference)[2])
{
    row_maxima(top);
    __syncwarp(); /* all lanes of a row have read its reference */
    uint32_t changed = 0, at = place_of_row(references), to = place_of_row(factors);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float next = top[r] > reference[r] + kLag ? top[r] + kAbove : reference[r];
        if (__any_sync(~0u, next != reference[r] && reference[r] != kNoReference))
            changed |= 1u << r;
        if ((thread_of_group() & 3) == 0) {
            store_shared_f32(at + 32 * r, next);
            store_shared_f32(to + 32 * r, ex2(reference[r] - next));
        }
        reference[r] = next;
    }
    return changed;
}

/* The group's sums in terms of references that may have risen, here or in the other group. */
__device__ __forceinline__ void follow(const float (&reference)[2], RowState &state)
{
    if (!__any_sync(~0u, reference[0] != state.reference[0] || reference[1] != state.reference[1]))
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float factor = ex2(state.reference[r] - reference[r]);
        state.rounded[r] *= factor;
        state.exact[r] *= factor;
        state.reference[r] = reference[r];
    }
}

/* The group's codes and flags into this CTA's block of the stage. */
__device__ __forceinline__ void store_p(uint32_t stage, uint32_t rank, const RowState &state, uint32_t flags)
{
    uint32_t t = thread_of_group(), lane = t & 31, warp = t >> 5;
    uint32_t row = warp * 16 + (lane & 7);
    if (kRows == kQRows || warp < kRows / 16) {
        uint32_t to = stage + kPData + rank * kPBlock + row * 64 + (((lane >> 3) ^ (row >> 1 & 3)) << 4);
        stmatrix_x4(to, state.codes[0]);
        stmatrix_x4(to + 8 * 64, state.codes[1]);
    }
    if (lane == 0)
        store_shared_u8(stage + (rank ? p_flags(1) : p_flags(0)) + warp, flags);
    fence_async_proxy();
}

/* The group's sums of a unit's rows, for row_sums(). */
__device__ __forceinline__ void store_sums(uint32_t window, RowState &state)
{
    add_codes(state);
    uint32_t t = thread_of_group(), to = window + smem::sums + group() * 768;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        state.rounded[r] += __shfl_xor_sync(~0u, state.rounded[r], 1);
        state.rounded[r] += __shfl_xor_sync(~0u, state.rounded[r], 2);
        state.exact[r] += __shfl_xor_sync(~0u, state.exact[r], 1);
        state.exact[r] += __shfl_xor_sync(~0u, state.exact[r], 2);
        if ((t & 3) == 0) {
            uint32_t at = place_of_row(to) + 32 * r;
            store_shared_f32(at, state.rounded[r]);
            store_shared_f32(at + 256, state.exact[r]);
            store_shared_f32(at + 512, state.reference[r]);
        }
    }
}

/* Of one row of the CTA, when both groups' are stored. */
__device__ __forceinline__ RowSums row_sums(uint32_t window, uint32_t row)
{
    uint32_t at = window + smem::sums + row * 4;
    float l0 = load_shared_f32(at), x0 = load_shared_f32(at + 256), r0 = load_shared_f32(at + 512);
    float l1 = load_shared_f32(at + 768), x1 = load_shared_f32(at + 1024), r1 = load_shared_f32(at + 1280);
    float top = fmaxf(r0, r1), f0 = ex2(r0 - top), f1 = ex2(r1 - top);
    return {l0 * f0 + l1 * f1, x0 * f0 + x1 * f1, top};
}

/* Of one row, in front of its first page. */
__device__ __forceinline__ void begin_row(uint32_t window, uint32_t row)
{
    store_shared_f32(window + smem::reference + row * 4, kNoReference);
}

/* S holds scores up to their scale; the sign of c goes into them, so that maxima are those of the scores. */
__device__ __forceinline__ void finish_scores(float (&S)[32], uint32_t window, const PageOfUnit &page, float c)
{
    if (c < 0)
#pragma unroll
        for (int i = 0; i < 32; i++)
            S[i] = -S[i];
    if (page.masked) {
        uint32_t at = place_of_row(window + smem::limit);
        int past = static_cast<int>(page.g * kPage);
        mask_scores(S, static_cast<int>(load_shared_u32(at)) - past, static_cast<int>(load_shared_u32(at + 32)) - past,
                    thread_of_group() & 3);
    }
}

__device__ __forceinline__ void qk_page(uint32_t window, const Queries &a, const PageOfUnit &page, float c,
                                        RowState &state)
{
    uint32_t stage = page.g % kStages, parity = page.g / kStages & 1, rank = window >> 24;
    uint32_t p = window + smem::p + stage * kPStage;
    float S[32];
    mbarrier_wait(window + smem::k_full + 8 * stage, parity);
    scores(S, a, uniform(wgmma_place(smem::k + stage * kKBytes)));
    mbarrier_wait(window + smem::p_empty + 8 * stage, parity ^ 1); /* under the products, as is this: */
    add_codes(state);
    wgmma_wait<0>();
    arrive_at_all(window + smem::k_empty + 8 * stage);
    finish_scores(S, window, page, c);
    c = fabsf(c);
    float top[2], reference[2];
    thread_maxima(S, top);
    top[0] *= c;
    top[1] *= c;
    uint32_t flags = page.flags, at = place_of_row(window + smem::reference);
    const bool above = !kAsksAhead || is_above(top, state.reference);
    named_sync(kBarTurn + group(), 256);
    reference[0] = load_shared_f32(at);
    reference[1] = load_shared_f32(at + 32);
    if (above && is_above(top, reference))
        flags |= raise_references(window + smem::reference, p + (rank ? p_factors(1) : p_factors(0)), top, reference);
    follow(reference, state);
    float offset[2] = {kHeadroom - state.reference[0], kHeadroom - state.reference[1]};
#pragma unroll
    for (int i = 0; i < 4; i++)
        exponentials(S, c, offset, state, i);
    store_p(p, rank, state, flags);
    named_sync(kBarQk + group(), 128);
    /* Not before: so one group's exponentials are under the other's products, and never both at the same time. */
    named_arrive(kBarTurn + (group() ^ 1), 256);
    if (thread_of_group() < 32 && elect_one()) {
        uint32_t full = window + smem::p_full + 8 * stage, piece = p + (rank ? p_piece(1) : p_piece(0));
        mbarrier_arrive_expect(full, (kCtas - 1) * kPSent);
        if (kCtas == 2)
            bulk_copy_to_peer(map_shared(piece, rank ^ 1), piece, kPSent, map_shared(full, rank ^ 1));
    }
}

} // namespace mla::sm90

#endif
