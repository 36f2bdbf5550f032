/* The products of mla1 and what lies between them. */
#ifndef MLA_KERNELS_BASELINE_MLA1_MATH_CUH
#define MLA_KERNELS_BASELINE_MLA1_MATH_CUH

#include "kernels/baseline/mla1_config.cuh"
#include "kernels/baseline/mla1_softmax.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace mla::mla1
{

/* What follows from it is computed where it is used, behind the compiler's back, not kept in registers: O has most of
 * those. */
__device__ __forceinline__ uint32_t thread_of_both()
{
    uint32_t t = threadIdx.x;
    asm volatile("" : "+r"(t));
    return t;
}

__device__ __forceinline__ uint32_t thread_of_group()
{
    return thread_of_both() & 127;
}

__device__ __forceinline__ uint32_t group_of_thread()
{
    return thread_of_both() >> 7;
}

/* A thread has rows row and row + 8 of the CTA's 64, and channels 4 * quad .. 4 * quad + 3 of each 16 of its group's.
 */
__device__ __forceinline__ uint32_t row_of_thread()
{
    uint32_t t = thread_of_group();
    return (t >> 5) * 16 + (t >> 2 & 7);
}

__device__ __forceinline__ uint32_t quad_of_thread()
{
    return thread_of_group() & 3;
}

/* This CTA's 64 rows of Q, swizzled as K is; missing rows are zeros. 256 threads. */
__device__ __forceinline__ void load_q(const mla_sm90_unit &u, uint32_t q)
{
    uint32_t tid = thread_of_both(), r = tid >> 2, in_unit = rank_of_cta() * kRows + r;
    uint32_t row = u.row0 + in_unit, token = row / u.heads;
    int64_t head = row - token * u.heads;
    uint32_t bytes = in_unit < u.rows ? 16 : 0;
    uint64_t nope = bytes ? u.q + static_cast<uint64_t>(token * u.q_token + head * u.q_head) : u.q;
    uint64_t rope = bytes ? u.q_rope + static_cast<uint64_t>(token * u.q_rope_token + head * u.q_rope_head) : u.q_rope;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t c = 4 * i + (tid & 3);
        cp_async_16(q + (c >> 3) * kBox + r * 128 + (((c & 7) ^ (r & 7)) << 4),
                    reinterpret_cast<const void *>(nope + c * 16), bytes);
    }
    uint32_t c = tid & 3;
    cp_async_16(q + kRope + r * 64 + ((c ^ (r >> 1 & 3)) << 4), reinterpret_cast<const void *>(rope + c * 16), bytes);
    cp_async_commit();
    cp_async_wait_all();
    fence_async_proxy();
}

/* S = Q K^T of a page, complete. */
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
    wgmma_wait<0>();
}

/* O += P V of a pair of pages. The tensor cores sum at most 128 keys by themselves. */
__device__ __forceinline__ void products(float (&o)[4][32], uint32_t p, uint32_t v)
{
    float part[32];
#pragma unroll
    for (int m = 0; m < 4; m++) {
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
            wgmma_m64n64k32_ss(
                part, wgmma_descriptor(p + (k >> 1) * kPBytes + (k & 1) * 32, 512, WGMMA_SWIZZLE_64),
                wgmma_descriptor(v + (k >> 1) * kVBytes + m * 4096 + (k & 1) * 32, 512, WGMMA_SWIZZLE_64), k > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[m][i] += part[i];
    }
}

__device__ __forceinline__ void rescale(float (&o)[4][32], const float (&factor)[2])
{
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[m][i] *= factor[i >> 1 & 1];
}

/* References follow the maxima of both pages when those are more than kLag ahead; what is summed already follows. */
__device__ __forceinline__ void raise_references(uint32_t s, const float (&top)[2], float scale, RowState &state,
                                                 float (&o)[4][32])
{
    float factor[2];
    bool changed = false;
    uint32_t others = s + smem::maxima + ((group_of_thread() ^ 1) * kRows + row_of_thread()) * 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = fmaxf(top[r], load_shared_f32(others + 32 * r)) * scale, old = state.reference[r];
        float next = most > old + kLag ? most : old;
        changed = changed || next != old;
        factor[r] = ex2(old - next);
        state.rounded[r] *= factor[r];
        state.exact[r] *= factor[r];
        state.reference[r] = next;
    }
    if (__any_sync(~0u, changed))
        rescale(o, factor);
}

__device__ __forceinline__ void store_p(uint32_t s, const uint32_t (&w0)[4], const uint32_t (&w1)[4])
{
    uint32_t t = thread_of_group(), chunk = t >> 3 & 3, row = (t >> 5) * 16 + (t & 7);
    uint32_t block = s + smem::p + group_of_thread() * kPBytes;
    stmatrix_x4(block + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4), w0);
    row += 8;
    stmatrix_x4(block + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4), w1);
    fence_async_proxy();
}

/* Of a unit, in shared memory for the sake of registers; pages by their number in the stream. */
struct UnitPages {
    uint32_t first;
    uint32_t end;
    uint32_t mask_from;
    float scale; /* of scores, to log2 units */
};

__device__ __forceinline__ void store_unit(uint32_t s, const mla_sm90_unit &u, uint32_t first)
{
    store_shared_16(s + smem::unit, first, first + u.n_pages, first + u.mask_from, __float_as_uint(u.score_scale));
}

__device__ __forceinline__ UnitPages load_unit(uint32_t s)
{
    uint32_t v[4];
    load_shared_16(s + smem::unit, v);
    return {v[0], v[1], v[2], __uint_as_float(v[3])};
}

/* Keys of the item that a row sees end before this. */
__device__ __forceinline__ int limit_of_row(const mla_sm90_unit &u, uint32_t in_unit)
{
    if (in_unit >= u.rows)
        return 0;
    uint32_t limit = reinterpret_cast<const uint32_t *>(u.limits)[(u.row0 + in_unit) / u.heads];
    return static_cast<int>(limit) - static_cast<int>(u.first_page * kPage);
}

/* What is not seen of page j of the unit. A group that has no page there sees nothing of it. */
__device__ __forceinline__ void mask(const mla_sm90_unit &u, uint32_t j, bool there, float (&S)[32])
{
    int past = static_cast<int>(j * kPage), most = there ? static_cast<int>(kPage) : 0;
    uint32_t in_unit = rank_of_cta() * kRows + row_of_thread();
    mask_scores(S, min(limit_of_row(u, in_unit) - past, most), min(limit_of_row(u, in_unit + 8) - past, most),
                static_cast<int>(quad_of_thread()));
}

/* This group's page of a pair: page g of the stream, or none when the unit ends before it. */
__device__ __forceinline__ void score_page(uint32_t s, const mla_sm90_unit &u, const UnitPages &pages, uint32_t g,
                                           float (&S)[32])
{
    bool there = g < pages.end;
    if (there) {
        wait_for_page(s, g);
        scores(S, s + smem::q, s + smem::k + g % kStages * kKBytes);
        if (thread_of_group() < 2)
            release_page(s, g, thread_of_group());
    }
    if (pages.scale < 0) /* the maximum is of S */
#pragma unroll
        for (int i = 0; i < 32; i++)
            S[i] = -S[i];
    if (!there || g >= pages.mask_from)
        mask(u, g - pages.first, there, S);
}

/* Pages g and g + 1 of the stream. Returns where the unit's pages end. */
__device__ __forceinline__ uint32_t pair_of_pages(uint32_t s, const mla_sm90_unit &u, uint32_t g, uint32_t pair,
                                                  RowState &state, float (&o)[4][32])
{
    float S[32], top[2];
    named_sync(kBarMath, 256);
    const UnitPages pages = load_unit(s);
    score_page(s, u, pages, g + group_of_thread(), S);
    row_maxima(S, top);
    if (quad_of_thread() == 0) {
        uint32_t at = s + smem::maxima + (group_of_thread() * kRows + row_of_thread()) * 4;
        store_shared_f32(at, top[0]);
        store_shared_f32(at + 32, top[1]);
    }
    named_sync(kBarMath, 256);
    raise_references(s, top, fabsf(pages.scale), state, o);
    float offset[2] = {kHeadroom - state.reference[0], kHeadroom - state.reference[1]};
    uint32_t w0[4], w1[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        exponentials(S, fabsf(pages.scale), offset, state, i, w0[i], w1[i]);
    store_p(s, w0, w1);
    named_sync(kBarMath, 256);
    mbarrier_wait(s + smem::v_full, pair & 1);
    products(o, s + smem::p, s + smem::v + group_of_thread() * (kVBytes / 2));
    if (thread_of_group() == 0)
        mbarrier_arrive(s + smem::v_empty);
    return load_unit(s).end;
}

template <uint32_t type> __device__ __forceinline__ void store_four(uint64_t to, float a, float b, float c, float d)
{
    if (type == MLA_ABI_OUT_F32) {
        *reinterpret_cast<float4 *>(to) = make_float4(a, b, c, d);
    } else if (type == MLA_SM90_OUT_PARTIAL) {
        uint32_t low, high;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b), "f"(a));
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(d), "f"(c));
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
    } else if (type == MLA_ABI_OUT_BF16) {
        uint32_t low, high;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b), "f"(a));
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(d), "f"(c));
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
    } else {
        *reinterpret_cast<uint32_t *>(to) = e4m3x4_of(a, b, c, d);
    }
}

/* Two rows of a thread; row[r] 0: not there. */
template <uint32_t type>
__device__ __forceinline__ void write_rows(const float (&o)[4][32], const uint64_t (&row)[2], const float (&f)[2])
{
    constexpr uint32_t width = type == MLA_ABI_OUT_F32 ? 4 : type == MLA_ABI_OUT_E4M3 ? 1 : 2;
    uint32_t channel = group_of_thread() * 256 + quad_of_thread() * 4;
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (row[r] != 0)
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float *even = &o[m][8 * c + 2 * r], *odd = even + 4;
                    store_four<type>(row[r] + (channel + m * 64 + c * 16) * width, even[0] * f[r], odd[0] * f[r],
                                     even[1] * f[r], odd[1] * f[r]);
                }
}

/* Sums of both warpgroups' pages: what O is multiplied by, and the LSE. */
__device__ __forceinline__ void finish_rows(uint32_t s, const mla_sm90_unit &u, RowState &state, float (&f)[2])
{
    uint32_t row = row_of_thread(), first = s + smem::sums + row * 4;
    bool leads = quad_of_thread() == 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            state.rounded[r] += __shfl_xor_sync(~0u, state.rounded[r], step);
            state.exact[r] += __shfl_xor_sync(~0u, state.exact[r], step);
        }
        if (leads) {
            uint32_t at = first + 32 * r + group_of_thread() * 512;
            store_shared_f32(at, state.rounded[r]);
            store_shared_f32(at + 256, state.exact[r]);
        }
    }
    named_sync(kBarMath, 256);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t at = first + 32 * r, in_unit = rank_of_cta() * kRows + row + 8 * r;
        float rounded = load_shared_f32(at) + load_shared_f32(at + 512);
        float exact = load_shared_f32(at + 256) + load_shared_f32(at + 768);
        f[r] = exact == 0 ? 0.0f : u.out_scale / rounded;
        if (group_of_thread() == 0 && leads && u.lse != 0 && in_unit < u.rows) {
            uint32_t of_seq = u.row0 + in_unit, token = of_seq / u.heads;
            int64_t to = token * u.lse_token + static_cast<int64_t>(of_seq - token * u.heads) * u.lse_head;
            float lse = fmaf(state.reference[r], 0.6931471805599453f, logf(exact * kSumUnit));
            *reinterpret_cast<float *>(u.lse + static_cast<uint64_t>(to)) = exact == 0 ? -INFINITY : lse;
        }
    }
}

__device__ __forceinline__ void write_unit(uint32_t s, const mla_sm90_unit &u, RowState &state, const float (&o)[4][32])
{
    float f[2];
    uint64_t to[2];
    finish_rows(s, u, state, f);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t in_unit = rank_of_cta() * kRows + row_of_thread() + 8 * r, row = u.row0 + in_unit;
        uint32_t token = row / u.heads;
        int64_t at = token * u.out_token + static_cast<int64_t>(row - token * u.heads) * u.out_head;
        to[r] = in_unit < u.rows ? u.out + static_cast<uint64_t>(at) : 0;
    }
    if (u.out_type == MLA_SM90_OUT_PARTIAL)
        write_rows<MLA_SM90_OUT_PARTIAL>(o, to, f);
    else if (u.out_type == MLA_ABI_OUT_F32)
        write_rows<MLA_ABI_OUT_F32>(o, to, f);
    else if (u.out_type == MLA_ABI_OUT_BF16)
        write_rows<MLA_ABI_OUT_BF16>(o, to, f);
    else
        write_rows<MLA_ABI_OUT_E4M3>(o, to, f);
}

__device__ __forceinline__ void math_role(const mla_sm90_launch &launch, uint32_t s)
{
    uint32_t g = 0, pair = 0;
#pragma unroll 1
    for (uint32_t unit = first_unit(launch, 0); unit != first_unit(launch, 1); unit++) {
        /* All have left the last unit's pages: its sums were waited for. */
        load_q(unit_at(launch, unit), s + smem::q);
        if (threadIdx.x == 0)
            store_unit(s, unit_at(launch, unit), g);
        RowState state;
        reset(state);
        float o[4][32];
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                o[m][i] = 0;
        uint32_t end;
#pragma unroll 1
        do {
            end = pair_of_pages(s, unit_at(launch, unit), g, pair++, state, o);
            g += 2;
        } while (g < end);
        g = end;
        write_unit(s, unit_at(launch, unit), state, o);
    }
}

} // namespace mla::mla1

#endif
