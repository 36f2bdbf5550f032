/* The QK warpgroups: Q, scores, P, and the sums of the rows. */
#ifndef MLA_KERNELS_SM90_QK_CUH
#define MLA_KERNELS_SM90_QK_CUH

#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"
#include "kernels/sm90/softmax.cuh"

namespace mla::sm90
{

/* This CTA's rows of Q, swizzled as K is; missing rows are zeros. */
__device__ __forceinline__ void load_q(const mla_sm90_unit &u, uint32_t rank, uint32_t tid)
{
    uint32_t r = tid >> 2, in_unit = rank * kRows + r;
    if (r >= kRows)
        return;
    uint32_t row = u.row0 + in_unit, token = row / u.heads;
    int64_t head = row - token * u.heads;
    uint32_t bytes = in_unit < u.rows ? 16 : 0;
    uint64_t nope = bytes ? u.q + static_cast<uint64_t>(token * u.q_token + head * u.q_head) : u.q;
    uint64_t rope = bytes ? u.q_rope + static_cast<uint64_t>(token * u.q_rope_token + head * u.q_rope_head) : u.q_rope;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t c = 4 * i + (tid & 3);
        cp_async_16(window_of_cta() + smem::q + (c >> 3) * kQBox + r * 128 + (((c & 7) ^ (r & 7)) << 4),
                    reinterpret_cast<const void *>(nope + c * 16), bytes);
    }
    uint32_t c = tid & 3;
    cp_async_16(window_of_cta() + smem::q + kQRope + r * 64 + ((c ^ (r >> 1 & 3)) << 4),
                reinterpret_cast<const void *>(rope + c * 16), bytes);
    cp_async_commit();
}

/* A fragments of the first k-steps, which then cost no reads of shared memory: its bandwidth is what scores wait for.
 */
__device__ __forceinline__ void take_q(uint32_t (&a)[kQSteps][4])
{
    uint32_t t = thread_of_group(), lane = t & 31, r = (t >> 5) * 16 + (lane & 15), half = lane >> 4;
#pragma unroll
    for (uint32_t ks = 0; ks < kQSteps; ks++)
        ldmatrix_x4(a[ks],
                    window_of_cta() + smem::q + (ks >> 2) * kQBox + r * 128 + ((((ks & 3) * 2 + half) ^ (r & 7)) << 4));
}

/* k: place of the page's first box, uniform. */
__device__ __forceinline__ void scores(float (&S)[32], const uint32_t (&a)[kQSteps][4], uint32_t k)
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

/* Sums of both groups, for the PV groups of both CTAs and for the LSE. One row a thread. odd: the cluster's second
 * unit, fourth, ...; last: its last. */
__device__ __forceinline__ void finish_rows(const mla_sm90_launch &launch, uint32_t unit, uint32_t odd, bool last)
{
    uint32_t rank = rank_of_cta(), window = window_of_cta();
    uint32_t t = thread_of_group();
    const mla_sm90_unit &u = unit_at(launch, unit);
    if (t < kRows) {
        uint32_t at = window + smem::sums + t * 4;
        float l0 = load_shared_f32(at), x0 = load_shared_f32(at + 256), r0 = load_shared_f32(at + 512);
        float l1 = load_shared_f32(at + 768), x1 = load_shared_f32(at + 1024), r1 = load_shared_f32(at + 1280);
        float top = fmaxf(r0, r1), f0 = ex2(r0 - top), f1 = ex2(r1 - top);
        float rounded = l0 * f0 + l1 * f1, exact = x0 * f0 + x1 * f1;
        mbarrier_wait(window + smem::scale_empty, odd ^ 1);
        store_shared_f32(window + smem::scale + (rank * kRows + t) * 4, exact == 0 ? 0.0f : 1.0f / rounded);
        if (t == 0) {
            store_shared_u32(window + smem::unit, unit);
            store_shared_u32(window + smem::unit + 4, last);
        }
        uint32_t in_unit = rank * kRows + t;
        if (u.lse != 0 && in_unit < u.rows) {
            uint32_t row = u.row0 + in_unit, token = row / u.heads;
            int64_t to = token * u.lse_token + static_cast<int64_t>(row - token * u.heads) * u.lse_head;
            float lse = fmaf(top, 0.6931471805599453f, logf(exact * kSumUnit));
            if (exact == 0)
                lse = -INFINITY;
            *reinterpret_cast<float *>(u.lse + static_cast<uint64_t>(to)) = lse;
        }
    }
    fence_async_proxy();
    named_sync(kBarQk, 128);
    if (t == 0) {
        uint32_t full = window + smem::scale_full, at = window + smem::scale + rank * kRows * 4;
        mbarrier_arrive_expect(full, (kCtas - 1) * kRows * 4);
        if (kCtas == 2)
            bulk_copy_to_peer(map_shared(at, rank ^ 1), at, kRows * 4, map_shared(full, rank ^ 1));
    }
}

/* References of rows whose maximum is too far above them; bits of the blocks of 8 rows with such rows. What older sums
 * are to be multiplied by goes into the stage, for PV. */
__device__ __forceinline__ uint32_t raise_references(uint32_t references, uint32_t factors, float (&top)[2],
                                                     float (&reference)[2])
{
    row_maxima(top);
    __syncwarp(); /* all lanes of a row have read its reference */
    uint32_t changed = 0, at = place_of_row(references), to = place_of_row(factors);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float next = top[r] > reference[r] + kLag ? top[r] + kAbove : reference[r];
        if (__any_sync(~0u, next != reference[r]))
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

/* The group's sums of an item's rows, for finish_rows(). */
__device__ __forceinline__ void store_sums(RowState &state, uint32_t to)
{
    uint32_t t = thread_of_group();
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

/* A page of the stream: its scores, P into both CTAs' blocks. */
struct PageOfUnit {
    uint32_t g;
    bool masked;
    uint32_t flags;
};

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

__device__ __forceinline__ void qk_page(uint32_t window, const uint32_t (&a)[kQSteps][4], const PageOfUnit &page,
                                        float c, RowState &state)
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
    named_sync(kBarTurn + group(), 256);
    reference[0] = load_shared_f32(at);
    reference[1] = load_shared_f32(at + 32);
    if (__any_sync(~0u, top[0] > reference[0] + kLag || top[1] > reference[1] + kLag))
        flags |= raise_references(window + smem::reference, p + (rank ? p_factors(1) : p_factors(0)), top, reference);
    named_arrive(kBarTurn + (group() ^ 1), 256);
    __syncwarp();
    follow(reference, state);
    float offset[2] = {kHeadroom - state.reference[0], kHeadroom - state.reference[1]};
#pragma unroll
    for (int i = 0; i < 4; i++)
        exponentials(S, c, offset, state, i);
    store_p(p, rank, state, flags);
    named_sync(kBarQk + group(), 128);
    if (thread_of_group() < 32 && elect_one()) {
        uint32_t full = window + smem::p_full + 8 * stage, piece = p + (rank ? p_piece(1) : p_piece(0));
        mbarrier_arrive_expect(full, (kCtas - 1) * kPSent);
        if (kCtas == 2)
            bulk_copy_to_peer(map_shared(piece, rank ^ 1), piece, kPSent, map_shared(full, rank ^ 1));
    }
}

/* Keys of the stream (64 to a page, over all units) that a row sees end before this. */
__device__ __forceinline__ int limit_of_row(const mla_sm90_unit &u, uint32_t in_unit, uint32_t first)
{
    int limit = 0;
    if (in_unit < u.rows)
        limit = static_cast<int>(reinterpret_cast<const uint32_t *>(u.limits)[(u.row0 + in_unit) / u.heads]);
    return limit + static_cast<int>((first - u.first_page) * kPage);
}

/* Q and what the rows begin with. All that comes from memory is on its way at the same time; Q is there behind
 * cp_async_wait_all(). The cluster's first unit begins before the two CTAs meet. */
__device__ __forceinline__ void begin_unit(const mla_sm90_unit &u, uint32_t first)
{
    uint32_t t = thread_of_group(), window = window_of_cta();
    load_q(u, rank_of_cta(), group() * 128 + t);
    if (group() == 0 && t < kQRows) {
        store_shared_f32(window + smem::reference + t * 4, kNoReference);
        int limit = limit_of_row(u, t < kRows ? rank_of_cta() * kRows + t : u.rows, first);
        store_shared_u32(window + smem::limit + t * 4, static_cast<uint32_t>(limit));
    }
}

__device__ __forceinline__ void qk_role(const mla_sm90_launch &launch, Cursor &cursor)
{
    const uint32_t window = window_of_cta();
    uint32_t first = 0, odd = 0; /* page of the stream that the unit begins with */
    if (group() == 1)
        named_arrive(kBarTurn, 256);
#pragma unroll 1
    for (uint32_t unit = first_unit(launch, 0); unit != first_unit(launch, 1); unit++, odd ^= 1) {
        const mla_sm90_unit &u = unit_at(launch, unit);
        if (first != 0)
            begin_unit(u, first);
        cp_async_wait_all();
        fence_async_proxy();
        float c = u.score_scale;
        uint32_t mask_from = first + u.mask_from, end = first + u.n_pages;
        uint32_t of_unit = odd ? kFlagOdd : 0;
        uint32_t a[kQSteps][4];
        RowState state;
        reset(state);
        named_sync(kBarQkAll, 256);
        take_q(a);
#pragma unroll 1
        for (uint32_t g = first + ((first ^ group()) & 1); static_cast<int32_t>(end - g) > 0; g += 2) {
            if (group() == 0 && g % kRefill == 0 && thread_of_group() < 32)
                refill(launch, cursor, g + 2 * kRefill, kRefill, thread_of_group());
            bool masked = g >= mask_from;
            uint32_t flags = of_unit | (masked ? kFlagMasked : 0) | (g + 1 == end ? kFlagLast : 0);
            qk_page(window, a, {g, masked, flags}, c, state);
        }
        add_codes(state);
        store_sums(state, window + smem::sums + group() * 768);
        named_sync(kBarQkAll, 256);
        if (group() == 0)
            finish_rows(launch, unit, odd, unit + 1 == first_unit(launch, 1));
        first = end;
    }
    if ((first & 1) == group()) /* the turn that was given and will not be used */
        named_sync(kBarTurn + group(), 256);
}

} // namespace mla::sm90

#endif
