/* The QK warpgroups: Q, scores, P, and the sums of the rows. */
#ifndef MLA_KERNELS_SM90_QK_CUH
#define MLA_KERNELS_SM90_QK_CUH

#include "kernels/sm90/loads.cuh"
#if MLA_SM90_ROWS == 32
#include "kernels/sm90/softmax_few.cuh"
#else
#include "kernels/sm90/softmax.cuh"
#endif

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

/* Sums of both groups, for the PV groups of both CTAs and for the LSE. One row a thread. odd: the cluster's second
 * unit, fourth, ...; last: its last. */
__device__ __forceinline__ void finish_rows(const mla_sm90_launch &launch, uint32_t unit, uint32_t odd, bool last)
{
    uint32_t rank = rank_of_cta(), window = window_of_cta();
    uint32_t t = thread_of_group();
    const mla_sm90_unit &u = unit_at(launch, unit);
    if (t < kRows) {
        const RowSums sums = row_sums(window, t);
        mbarrier_wait(window + smem::scale_empty, odd ^ 1);
        store_shared_f32(window + smem::scale + (rank * kRows + t) * 4, sums.exact == 0 ? 0.0f : 1.0f / sums.rounded);
        if (t == 0) {
            store_shared_u32(window + smem::unit, unit);
            store_shared_u32(window + smem::unit + 4, last);
        }
        uint32_t in_unit = rank * kRows + t;
        if (u.lse != 0 && in_unit < u.rows) {
            uint32_t row = u.row0 + in_unit, token = row / u.heads;
            int64_t to = token * u.lse_token + static_cast<int64_t>(row - token * u.heads) * u.lse_head;
            float lse = fmaf(sums.reference, 0.6931471805599453f, logf(sums.exact * kSumUnit));
            if (sums.exact == 0)
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
        begin_row(window, t);
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
        Queries a;
        RowState state;
        reset(state);
        named_sync(kBarQkAll, 256);
        take_q(a);
#pragma unroll 1
        for (uint32_t g = first + ((first ^ group()) & 1); static_cast<int32_t>(end - g) > 0; g += 2) {
            /* Half a kRefill late: the first page waits for nothing that it does not need. */
            if (group() == 0 && g % kRefill == kRefill / 2 && thread_of_group() < 32)
                refill(launch, cursor, g + kRefill * 3 / 2, kRefill, thread_of_group());
            bool masked = g >= mask_from;
            uint32_t flags = of_unit | (masked ? kFlagMasked : 0) | (g + 1 == end ? kFlagLast : 0);
            qk_page(window, a, {g, masked, flags}, c, state);
        }
        store_sums(window, state);
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
