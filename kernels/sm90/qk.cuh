/* The QK warpgroups: Q, scores, P, and the sums of the rows. */
#ifndef MLA_KERNELS_SM90_QK_CUH
#define MLA_KERNELS_SM90_QK_CUH

#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"
#include "kernels/sm90/softmax.cuh"

namespace mla::sm90
{

/* This CTA's 64 rows of Q, swizzled as K is; missing rows are zeros. */
__device__ __forceinline__ void load_q(const mla_sm90_unit &u, uint32_t rank, uint32_t tid)
{
    uint32_t r = tid >> 2, in_unit = rank * kRows + r;
    uint32_t row = u.row0 + in_unit, token = row / u.heads;
    int64_t head = row - token * u.heads;
    uint32_t bytes = in_unit < u.rows ? 16 : 0;
    uint64_t nope = bytes ? u.q + static_cast<uint64_t>(token * u.q_token + head * u.q_head) : u.q;
    uint64_t rope = bytes ? u.q_rope + static_cast<uint64_t>(token * u.q_rope_token + head * u.q_rope_head) : u.q_rope;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t c = 4 * i + (tid & 3);
        cp_async_16(window_of_cta() + smem::q + (c >> 3) * kBox + r * 128 + (((c & 7) ^ (r & 7)) << 4),
                    reinterpret_cast<const void *>(nope + c * 16), bytes);
    }
    uint32_t c = tid & 3;
    cp_async_16(window_of_cta() + smem::q + kRope + r * 64 + ((c ^ (r >> 1 & 3)) << 4),
                reinterpret_cast<const void *>(rope + c * 16), bytes);
    cp_async_commit();
    cp_async_wait_all();
    fence_async_proxy();
}

__device__ __forceinline__ void scores(float (&S)[32], uint32_t q, uint32_t k)
{
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 16; ks++) {
        uint32_t at = (ks >> 2) * kBox + (ks & 3) * 32;
        wgmma_m64n64k32_ss(S, wgmma_descriptor(q + at, 1024, WGMMA_SWIZZLE_128),
                           wgmma_descriptor(k + at, 1024, WGMMA_SWIZZLE_128), ks > 0);
    }
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
        wgmma_m64n64k32_ss(S, wgmma_descriptor(q + kRope + ks * 32, 512, WGMMA_SWIZZLE_64),
                           wgmma_descriptor(k + kRope + ks * 32, 512, WGMMA_SWIZZLE_64), 1);
    wgmma_commit();
}

/* Sums of both groups, for the PV groups of both CTAs and for the LSE. One row a thread. k: units of this cluster
 * before this one. */
__device__ __forceinline__ void finish_rows(const mla_sm90_launch &launch, uint32_t k)
{
    uint32_t unit = cluster_of_cta() + k * clusters(), rank = rank_of_cta(), window = window_of_cta();
    uint32_t t = thread_of_group();
    const mla_sm90_unit &u = unit_at(launch, unit);
    if (t < kRows) {
        uint32_t at = window + smem::sums + t * 4;
        float l0 = load_shared_f32(at), x0 = load_shared_f32(at + 256), r0 = load_shared_f32(at + 512);
        float l1 = load_shared_f32(at + 768), x1 = load_shared_f32(at + 1024), r1 = load_shared_f32(at + 1280);
        float top = fmaxf(r0, r1), f0 = ex2(r0 - top), f1 = ex2(r1 - top);
        float rounded = l0 * f0 + l1 * f1, exact = x0 * f0 + x1 * f1;
        mbarrier_wait(window + smem::scale_empty, (k & 1) ^ 1);
        store_shared_f32(window + smem::scale + (rank * kRows + t) * 4, exact == 0 ? 0.0f : 1.0f / rounded);
        if (t == 0)
            store_shared_u32(window + smem::unit, unit);
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
        mbarrier_arrive_expect(full, kRows * 4);
        bulk_copy_to_peer(map_shared(at, rank ^ 1), at, kRows * 4, map_shared(full, rank ^ 1));
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

/* The reference of the group's rows moves on to this page; bits of the blocks of 8 rows in which it did. factor is what
 * older sums are to be multiplied by. */
__device__ __forceinline__ void raise_references(uint32_t window, const float (&top)[2], float scale, float (&old)[2],
                                                 float (&next)[2])
{
    uint32_t t = thread_of_group();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t at = window + smem::reference + ((t >> 5) * 16 + (t >> 2 & 7) + 8 * r) * 4;
        old[r] = load_shared_f32(at);
        next[r] = top[r] * scale > old[r] + kLag ? top[r] * scale : old[r];
        __syncwarp();
        if (next[r] != old[r] && (t & 3) == 0)
            store_shared_f32(at, next[r]);
    }
}

__device__ __forceinline__ uint32_t follow(const float (&old)[2], const float (&next)[2], RowState &state,
                                           float (&factor)[2])
{
    uint32_t changed = 0, warp = thread_of_group() >> 5;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (__any_sync(~0u, next[r] != old[r]))
            changed |= 1u << (2 * warp + r);
        factor[r] = ex2(old[r] - next[r]);
        float mine = ex2(state.reference[r] - next[r]);
        state.rounded[r] *= mine;
        state.exact[r] *= mine;
        state.reference[r] = next[r];
    }
    return changed;
}

/* P, factors and flags into this CTA's block of the stage. */
__device__ __forceinline__ void store_p(uint32_t block, const uint32_t (&w0)[4], const uint32_t (&w1)[4],
                                        const float (&factor)[2], uint32_t flags)
{
    uint32_t t = thread_of_group(), lane = t & 31, warp = t >> 5;
    uint32_t row = warp * 16 + (lane & 7);
    uint32_t to = block + row * 64 + (((lane >> 3) ^ (row >> 1 & 3)) << 4);
    stmatrix_x4(to, w0);
    row += 8;
    to = block + row * 64 + (((lane >> 3) ^ (row >> 1 & 3)) << 4);
    stmatrix_x4(to, w1);
    if ((lane & 3) == 0) {
        uint32_t at = block + kPFactors + (warp * 16 + (lane >> 2)) * 4;
        store_shared_f32(at, factor[0]);
        store_shared_f32(at + 32, factor[1]);
    }
    if (lane == 0)
        store_shared_u32(block + kPFlags + warp * 4, flags);
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
            uint32_t at = to + ((t >> 5) * 16 + (t >> 2 & 7) + 8 * r) * 4;
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

template <int wg>
__device__ __forceinline__ void qk_page(uint32_t window, const PageOfUnit &page, float c, RowState &state)
{
    uint32_t stage = page.g % kStages, parity = page.g / kStages & 1;
    float S[32];
    mbarrier_wait(window + smem::k_full + 8 * stage, parity);
    scores(S, smem::q, smem::k + stage * kKBytes);
    wgmma_wait<0>();
    arrive_at_both(window + smem::k_empty + 8 * stage);
    if (c < 0) /* the maximum below is of S */
#pragma unroll
        for (int i = 0; i < 32; i++)
            S[i] = -S[i];
    if (page.masked) {
        uint32_t t = thread_of_group();
        uint32_t at = window + smem::limit + ((t >> 5) * 16 + (t >> 2 & 7)) * 4;
        int past = static_cast<int>(page.g * kPage);
        mask_scores(S, static_cast<int>(load_shared_u32(at)) - past, static_cast<int>(load_shared_u32(at + 32)) - past,
                    t & 3);
    }
    float factor[2], top[2], old[2], next[2];
    row_maxima(S, top);
    named_sync(kBarTurn + wg, 256);
    raise_references(window, top, fabsf(c), old, next);
    named_arrive(kBarTurn + (wg ^ 1), 256);
    uint32_t flags = follow(old, next, state, factor) | page.flags;
    float offset[2] = {kHeadroom - state.reference[0], kHeadroom - state.reference[1]};
    uint32_t w0[4], w1[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        exponentials(S, fabsf(c), offset, state, i, w0[i], w1[i]);
    mbarrier_wait(window + smem::p_empty + 8 * stage, parity ^ 1);
    uint32_t rank = window >> 24;
    uint32_t block = window + smem::p + (2 * stage + rank) * kPBlock;
    store_p(block, w0, w1, factor, flags);
    named_sync(kBarQk + wg, 128);
    if (thread_of_group() == 0) {
        uint32_t full = window + smem::p_full + 8 * stage;
        mbarrier_arrive_expect(full, kPSent);
        bulk_copy_to_peer(map_shared(block, rank ^ 1), block, kPSent, map_shared(full, rank ^ 1));
    }
}

/* Q and what the rows begin with. Returns what a score is to be multiplied by. */
template <int wg> __device__ __forceinline__ float begin_unit(const mla_sm90_unit &u, uint32_t first)
{
    uint32_t t = thread_of_group(), window = window_of_cta();
    load_q(u, rank_of_cta(), wg * 128 + t);
    if (wg == 0 && t < kRows) {
        store_shared_f32(window + smem::reference + t * 4, kNoReference);
        int limit = limit_of_row(u, rank_of_cta() * kRows + t, first);
        store_shared_u32(window + smem::limit + t * 4, static_cast<uint32_t>(limit));
    }
    return u.score_scale;
}

template <int wg> __device__ __forceinline__ void qk_role(const mla_sm90_launch &launch, Cursor &cursor)
{
    uint32_t first = 0, k = 0; /* page of the stream that the unit begins with; units so far */
    if (wg == 1)
        named_arrive(kBarTurn, 256);
    for (;; k++) {
        uint32_t unit = cluster_of_cta() + k * clusters();
        if (unit >= launch.n_units)
            break;
        float c = begin_unit<wg>(unit_at(launch, unit), first);
        uint32_t mask_from = first + unit_at(launch, unit).mask_from;
        uint32_t end = first + unit_at(launch, unit).n_pages;
        RowState state;
        reset(state);
        named_sync(kBarQkAll, 256);
        const uint32_t window = window_of_cta();
#pragma unroll 1
        for (uint32_t g = first + ((first ^ wg) & 1); static_cast<int32_t>(end - g) > 0; g += 2) {
            if (wg == 0 && g % kRefill == 0 && thread_of_group() < 32)
                refill(launch, cursor, g + 2 * kRefill, thread_of_group());
            bool masked = g >= mask_from;
            uint32_t flags = (masked ? kFlagMasked : 0) | (g + 1 == end ? kFlagLast : 0) | (k & 1 ? kFlagOdd : 0);
            qk_page<wg>(window, {g, masked, flags}, c, state);
        }
        store_sums(state, window_of_cta() + smem::sums + wg * 768);
        named_sync(kBarQkAll, 256);
        if (wg == 0)
            finish_rows(launch, k);
        first = end;
    }
    if ((first & 1) == wg) /* the turn that was given and will not be used */
        named_sync(kBarTurn + wg, 256);
}

} // namespace mla::sm90

#endif
