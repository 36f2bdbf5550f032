/* The PV warpgroups: O^T += V^T P, with V^T from registers, and what becomes of O at the end of a unit. */
#ifndef MLA_KERNELS_SM90_PV_CUH
#define MLA_KERNELS_SM90_PV_CUH

#include "kernels/device/numbers.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"

namespace mla::sm90
{

/* V^T fragments of a page: 32 keys x 16 channels per warp and block, in the key order of P. The result depends on every
 * load: whoever has it knows that the stage has been read. */
__device__ __forceinline__ uint32_t load_v(uint32_t from, uint32_t (&a)[2][2][4])
{
    uint32_t seen = 0;
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t r[4];
            ldmatrix_x4_trans(r, (from + ks * 4096) ^ (m * 64));
            a[ks][m][0] = prmt(r[0], r[1], 0x6420);
            a[ks][m][1] = prmt(r[0], r[1], 0x7531);
            a[ks][m][2] = prmt(r[2], r[3], 0x6420);
            a[ks][m][3] = prmt(r[2], r[3], 0x7531);
            seen ^= r[0];
        }
    return seen;
}

/* NaN codes become 0: a row that sees such a key is NaN by its P, one that does not must not be. */
__device__ __forceinline__ void scrub(uint32_t (&a)[2][2][4])
{
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t nan = __vcmpeq4(a[ks][m][i] & 0x7f7f7f7fu, 0x7f7f7f7fu);
                a[ks][m][i] &= ~nan;
            }
}

/* Of a block of P: its four warps' words. */
__device__ __forceinline__ uint32_t read_flags(uint32_t block)
{
    uint32_t f[4];
    load_shared_16(block + kPFlags, f);
    return f[0] | f[1] | f[2] | f[3];
}

/* Columns (rows of the tile) whose reference rose: a bit of changed is 8 of them. */
__device__ __forceinline__ void rescale(float (&o)[2][64], uint32_t block, uint32_t changed, int first)
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (changed >> i & 1) {
            float x, y;
            load_shared_f32x2(block + kPFactors + i * 32, x, y);
#pragma unroll
            for (int m = 0; m < 2; m++) {
                o[m][4 * (first + i)] *= x;
                o[m][4 * (first + i) + 1] *= y;
                o[m][4 * (first + i) + 2] *= x;
                o[m][4 * (first + i) + 3] *= y;
            }
        }
}

template <uint32_t type> __device__ __forceinline__ void store_pair(uint64_t to, float x, float y)
{
    if (type == MLA_ABI_OUT_F32) {
        asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
    } else if (type == MLA_ABI_OUT_BF16) {
        uint32_t pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
        asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(pair) : "memory");
    } else {
        uint16_t pair;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
        asm volatile("st.global.b16 [%0], %1;" ::"l"(to), "h"(pair) : "memory");
    }
}

/* O of a unit, normalised, to where it goes. A thread has channels c, c + 1 and c + 64, c + 65 of 32 rows; addresses
 * come four at a time from shared memory, since all of them at once do not fit the registers. */
template <uint32_t type>
__device__ __forceinline__ void write_rows(const float (&o)[2][64], float out_scale, uint32_t q, uint32_t channel)
{
    constexpr uint32_t width = type == MLA_ABI_OUT_F32 ? 4 : type == MLA_ABI_OUT_BF16 ? 2 : 1;
    uint32_t rows = window_of_cta() + smem::out_row + q * 16, scales = window_of_cta() + smem::scale + q * 8;
#pragma unroll
    for (int i = 0; i < 16; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint64_t to = load_shared_u64(rows + i * 64 + e * 8);
            float f = load_shared_f32(scales + i * 32 + e * 4) * out_scale;
            if (to != 0) {
                to += channel * width;
                store_pair<type>(to, o[0][4 * i + e] * f, o[0][4 * i + 2 + e] * f);
                store_pair<type>(to + 64 * width, o[1][4 * i + e] * f, o[1][4 * i + 2 + e] * f);
            }
        }
        __syncwarp(); /* loads do not move up across it */
    }
}

/* Where a thread finds its V^T fragments in a stage; its first channel of O. */
template <int wg> __device__ __forceinline__ uint32_t v_of_thread()
{
    uint32_t t = thread_of_group(), lane = t & 31, block = 4 * rank_of_cta() + 2 * wg;
    return (block >> 1) * kBox + lane * 128 + ((((block & 1) * 4 + (t >> 5)) ^ (lane & 7)) << 4);
}

template <int wg> __device__ __forceinline__ uint32_t channel_of_thread()
{
    uint32_t t = thread_of_group();
    return (4 * rank_of_cta() + 2 * wg) * 64 + (t >> 5) * 16 + (t >> 2 & 7) * 2;
}

template <int wg> __device__ __forceinline__ void write_out(const mla_sm90_unit &u, const float (&o)[2][64])
{
    if (wg == 0) {
        uint32_t t = thread_of_group(), row = u.row0 + t, token = row / u.heads;
        int64_t at = token * u.out_token + static_cast<int64_t>(row - token * u.heads) * u.out_head;
        uint64_t address = t < u.rows ? u.out + static_cast<uint64_t>(at) : 0;
        store_shared_u64(window_of_cta() + smem::out_row + t * 8, address);
    }
    named_sync(kBarPvAll, 256);
    uint32_t q = thread_of_group() & 3, channel = channel_of_thread<wg>();
    if (u.out_type == MLA_ABI_OUT_F32)
        write_rows<MLA_ABI_OUT_F32>(o, u.out_scale, q, channel);
    else if (u.out_type == MLA_ABI_OUT_BF16)
        write_rows<MLA_ABI_OUT_BF16>(o, u.out_scale, q, channel);
    else
        write_rows<MLA_ABI_OUT_E4M3>(o, u.out_scale, q, channel);
    named_sync(kBarPvAll, 256);
}

/* What a PV thread keeps from page to page, in one register: the page of the stream (modulo 2^14, which keeps its
 * stage, parity and place in the load ring; never 0 again), and the flags that came with it. */
constexpr uint32_t kCursorPages = 1u << 14;
__device__ __forceinline__ uint32_t page_of(uint32_t cursor)
{
    return cursor & 0xffffu;
}

__device__ __forceinline__ uint32_t with_flags(uint32_t page, uint32_t flags)
{
    return page | flags << 16;
}

__device__ __forceinline__ uint32_t flags_of(uint32_t cursor)
{
    return cursor >> 16;
}

__device__ __forceinline__ uint32_t next_page(uint32_t cursor)
{
    uint32_t page = page_of(cursor) + 1;
    return page == kCursorPages ? kLoadRing : page;
}
static_assert(kCursorPages % kLoadRing == 0 && kLoadRing % (2 * kStages) == 0, "place in the ring, stage and parity");

/* One page: O += V^T P. A product is of 64 channels and 64 rows and starts from nothing, so that what the tensor cores'
 * short accumulator holds is never more than one page; the other group's products run while this one adds. Every other
 * page a thread of the group waits, under the last product, for the stage of the page before, and loads it anew. */
template <int wg>
__device__ __forceinline__ uint32_t pv_page(const mla_sm90_launch &launch, uint32_t window, float (&o)[2][64],
                                            uint32_t cursor)
{
    uint32_t stage = cursor % kStages, parity = cursor / kStages & 1;
    uint32_t a[2][2][4];
    float t[32];
    mbarrier_wait(window + smem::k_full + 8 * stage, parity);
    uint32_t seen = load_v(window + smem::k + v_of_thread<wg>() + stage * kKBytes, a);
    named_sync(kBarPv + wg + (seen & launch.reserved), 128); /* reserved is 0: V is in registers, not on its way */
    arrive_at_both(window + smem::k_empty + 8 * stage);
    mbarrier_wait(window + smem::p_full + 8 * stage, parity);
    uint32_t p = window + smem::p + stage * 2 * kPBlock;
    {
        uint32_t flags0 = read_flags(p), flags1 = read_flags(p + kPBlock);
        if (flags0 & kFlagMasked)
            scrub(a);
        if ((flags0 | flags1) & kFlagChanged) {
            uint32_t pair = (thread_of_group() & 3) * 8;
            rescale(o, p + pair, flags0, 0);
            rescale(o, p + kPBlock + pair, flags1, 8);
        }
        cursor = with_flags(page_of(cursor), flags0);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        wgmma_fence();
        wgmma_m64n64k32_rs(t, a[0][s >> 1], wgmma_descriptor(p + (s & 1) * kPBlock, 512, WGMMA_SWIZZLE_64), 0);
        wgmma_m64n64k32_rs(t, a[1][s >> 1], wgmma_descriptor(p + (s & 1) * kPBlock + 32, 512, WGMMA_SWIZZLE_64), 1);
        wgmma_commit();
        if (s == 3 && (cursor & 1) == wg && page_of(cursor) > 0 && thread_of_group() == 0)
            load_page(window, page_of(cursor) + kStages - 1);
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[s >> 1][32 * (s & 1) + i] += t[i];
    }
    arrive_at_both(window + smem::p_empty + 8 * (cursor % kStages));
    return cursor;
}

/* Registers hold O and little else: which unit it is, and whether there is another, comes with P and the scales. */
template <int wg> __device__ __forceinline__ void pv_role(const mla_sm90_launch &launch)
{
    if (wg == 0 && thread_of_group() == 0)
#pragma unroll 1
        for (uint32_t i = 0; i < kStages; i++)
            load_page(window_of_cta(), i);
    if (cluster_of_cta() >= launch.n_units)
        return;
    uint32_t cursor = 0, unit;
#pragma unroll 1
    do {
        float o[2][64];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 64; i++)
                o[m][i] = 0;
        const uint32_t window = window_of_cta();
        uint32_t flags;
#pragma unroll 1
        do {
            cursor = pv_page<wg>(launch, window, o, cursor);
            flags = flags_of(cursor);
            cursor = next_page(cursor);
        } while (!(flags & kFlagLast));
        mbarrier_wait(window + smem::scale_full, flags & kFlagOdd ? 1 : 0);
        unit = load_shared_u32(window + smem::unit);
        write_out<wg>(unit_at(launch, unit), o);
        arrive_at_both(window_of_cta() + smem::scale_empty);
    } while (unit + clusters() < launch.n_units);
}

} // namespace mla::sm90

#endif
