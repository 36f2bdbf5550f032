/* The PV warpgroups: O^T += V^T P, with V^T from registers, and what becomes of O at the end of a unit. */
#ifndef MLA_KERNELS_SM90_PV_CUH
#define MLA_KERNELS_SM90_PV_CUH

#include "kernels/device/numbers.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/loads.cuh"
#include "kernels/sm90/promote.cuh"

namespace mla::sm90
{

/* V^T fragments of kAtOnce blocks of 64 channels of a page: 32 keys x 16 channels per warp, block and k-step. */
typedef uint32_t Fragments[kAtOnce][2][4];

/* As they lie. */
__device__ __forceinline__ void load_v(uint32_t from, Fragments &a)
{
#pragma unroll
    for (int m = 0; m < kAtOnce; m++)
#pragma unroll
        for (int ks = 0; ks < 2; ks++)
            ldmatrix_x4_trans(a[m][ks], (from + m / 2 * kBox + ks * 4096) ^ (m % 2 * 64));
}

/* Bytes of two words of a fragment, keys 2 q, 2 q + 1 and the same + 8, in the key order of P: of one channel, and of
 * the next. */
constexpr uint32_t kEven = kFew ? 0x6240 : 0x6420, kOdd = kFew ? 0x7351 : 0x7531;

/* The same in the key order of P. The result depends on every load: whoever has it knows that they have been read. */
__device__ __forceinline__ uint32_t permute(Fragments &a)
{
    uint32_t seen = 0;
#pragma unroll
    for (int m = 0; m < kAtOnce; m++)
#pragma unroll
        for (int ks = 0; ks < 2; ks++) {
            uint32_t(&r)[4] = a[m][ks];
            uint32_t a0 = prmt(r[0], r[1], kEven), a2 = prmt(r[2], r[3], kEven);
            r[1] = prmt(r[0], r[1], kOdd);
            r[3] = prmt(r[2], r[3], kOdd);
            r[0] = a0;
            r[2] = a2;
            seen ^= a0;
        }
    return seen;
}

/* NaN codes become 0: a row that sees such a key is NaN by its P, one that does not must not be. */
__device__ __forceinline__ void scrub(Fragments &a)
{
#pragma unroll
    for (int m = 0; m < kAtOnce; m++)
#pragma unroll
        for (int ks = 0; ks < 2; ks++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t nan = __vcmpeq4(a[m][ks][i] & 0x7f7f7f7fu, 0x7f7f7f7fu);
                a[m][ks][i] &= ~nan;
            }
}

/* Flags of a stage: those of the first block, and what changed in the second moved up by 5. */
__device__ __forceinline__ uint32_t read_flags(uint32_t p)
{
    uint32_t flags = load_shared_u32(p + p_flags(0));
    if (kCtas == 2)
        flags |= (load_shared_u32(p + p_flags(1)) & kFlagsChanged) << 5;
    return flags;
}

/* Columns (rows of the tile) whose reference rose, of a CTA's blocks of 8 from block `first` on. */
__device__ __forceinline__ void rescale(float (&o)[kBlocks][kValues], uint32_t factors, uint32_t changed, int first)
{
#pragma unroll
    for (int i = 0; i < static_cast<int>(kRows) / 8; i++)
        if (changed >> ((i >> 1) * 8 + (i & 1)) & 1) {
            float x, y;
            load_shared_f32x2(factors + i * 32, x, y);
#pragma unroll
            for (int m = 0; m < kBlocks; m++) {
                o[m][4 * (first + i)] *= x;
                o[m][4 * (first + i) + 1] *= y;
                o[m][4 * (first + i) + 2] *= x;
                o[m][4 * (first + i) + 3] *= y;
            }
        }
}

/* Where a thread finds its V^T fragments in a stage; its first channel of O. */
__device__ __forceinline__ uint32_t v_of_thread()
{
    uint32_t t = thread_of_group(), lane = t & 31, block = (2 * rank_of_cta() + group()) * kBlocks;
    return (block >> 1) * kBox + lane * 128 + ((((block & 1) * 4 + (t >> 5)) ^ (lane & 7)) << 4);
}

__device__ __forceinline__ uint32_t channel_of_thread()
{
    uint32_t t = thread_of_group();
    return (2 * rank_of_cta() + group()) * kBlocks * 64 + (t >> 5) * 16 + (t >> 2 & 7) * 2;
}

template <uint32_t type> __device__ __forceinline__ void store_pair(uint64_t to, float x, float y)
{
    if (type == MLA_ABI_OUT_F32) {
        asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
    } else if (type == MLA_SM90_OUT_PARTIAL) {
        asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(f16x2_of(x, y)) : "memory");
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

/* O of a unit, normalised, to where it goes. A thread has channels c and c + 1 of each of its blocks, for a quarter of
 * the rows; addresses come a few at a time from shared memory, since all of them at once do not fit the registers. */
template <uint32_t type> __device__ __forceinline__ void write_rows(const float (&o)[kBlocks][kValues], float out_scale)
{
    const uint32_t q = thread_of_group() & 3, channel = channel_of_thread();
    constexpr uint32_t width = type == MLA_ABI_OUT_F32 ? 4 : type == MLA_ABI_OUT_E4M3 ? 1 : 2;
    uint32_t rows = window_of_cta() + smem::out_row + q * 16, scales = window_of_cta() + smem::scale + q * 8;
#pragma unroll
    for (int i = 0; i < kValues / 4; i++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint64_t to = load_shared_u64(rows + i * 64 + e * 8);
            float f = load_shared_f32(scales + i * 32 + e * 4) * out_scale;
            if (to != 0) {
                to += channel * width;
#pragma unroll
                for (int m = 0; m < kBlocks; m++)
                    store_pair<type>(to + m * 64 * width, o[m][4 * i + e] * f, o[m][4 * i + 2 + e] * f);
            }
        }
        __syncwarp(); /* loads do not move up across it */
    }
}

/* Whether it was the cluster's last. */
__device__ __forceinline__ bool write_out(const mla_sm90_unit &u, const float (&o)[kBlocks][kValues])
{
    if (group() == 0) {
        uint32_t t = thread_of_group(), row = u.row0 + t, token = row / u.heads;
        int64_t at = token * u.out_token + static_cast<int64_t>(row - token * u.heads) * u.out_head;
        uint64_t address = t < u.rows ? u.out + static_cast<uint64_t>(at) : 0;
        store_shared_u64(window_of_cta() + smem::out_row + t * 8, address);
    }
    named_sync(kBarPvAll, 256);
    if (u.out_type == MLA_SM90_OUT_PARTIAL)
        write_rows<MLA_SM90_OUT_PARTIAL>(o, u.out_scale);
    else if (u.out_type == MLA_ABI_OUT_F32)
        write_rows<MLA_ABI_OUT_F32>(o, u.out_scale);
    else if (u.out_type == MLA_ABI_OUT_BF16)
        write_rows<MLA_ABI_OUT_BF16>(o, u.out_scale);
    else
        write_rows<MLA_ABI_OUT_E4M3>(o, u.out_scale);
    const uint32_t last = load_shared_u32(window_of_cta() + smem::unit + 4);
    named_sync(kBarPvAll, 256); /* scales and this have been read by all */
    return last != 0;
}

/* The page of the stream that a PV thread is at, modulo 2^14, which keeps stage, parity and place in the load ring;
 * never 0 again. */
constexpr uint32_t kCursorPages = 1u << 14;
__device__ __forceinline__ uint32_t next_page(uint32_t cursor)
{
    return cursor + 1 == kCursorPages ? kLoadRing : cursor + 1;
}
static_assert(kCursorPages % kLoadRing == 0 && kLoadRing % (2 * kStages) == 0, "place in the ring, stage and parity");

__device__ __forceinline__ void multiply(float (&o)[64], const uint32_t (&a)[4], uint64_t p)
{
    wgmma_m64n128k32_rs(o, a, p, 1);
}

__device__ __forceinline__ void multiply(float (&o)[48], const uint32_t (&a)[4], uint64_t p)
{
    wgmma_m64n96k32_rs(o, a, p, 1);
}

__device__ __forceinline__ void multiply(float (&o)[32], const uint32_t (&a)[4], uint64_t p)
{
    wgmma_m64n64k32_rs(o, a, p, 1);
}

__device__ __forceinline__ void multiply(float (&o)[24], const uint32_t (&a)[4], uint64_t p)
{
    wgmma_m64n48k32_rs(o, a, p, 1);
}

__device__ __forceinline__ void multiply(float (&o)[16], const uint32_t (&a)[4], uint64_t p)
{
    wgmma_m64n32k32_rs(o, a, p, 1);
}

/* O += V^T P of kAtOnce blocks of a page: 64 channels x all rows x 32 keys at a time, since each instruction waits for
 * those of the other groups, however small it is. */
template <int first>
__device__ __forceinline__ void products(float (&o)[kBlocks][kValues], const Fragments &a, uint32_t p)
{
    constexpr uint64_t layout = wgmma_layout(512, WGMMA_SWIZZLE_64);
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 2; ks++)
#pragma unroll
        for (int m = 0; m < kAtOnce; m++)
            multiply(o[first + m], a[m][ks], layout | (p + 2 * ks));
    wgmma_commit();
    __syncwarp(); /* what follows does not move up between the products */
}

/* What a PV thread knows of its unit. */
struct Progress {
    uint32_t v; /* address of the thread's fragments in the first stage */
    uint32_t cursor;
    uint32_t flags; /* of the last page */
    uint32_t done;  /* pages */
    uint32_t p;     /* place of the page's P, uniform */
};

__device__ __forceinline__ uint32_t p_of_page(uint32_t cursor)
{
    return window_of_cta() + smem::p + cursor % kStages * kPStage;
}

__device__ __forceinline__ uint32_t v_of_page(const Progress &at)
{
    return at.v + at.cursor % kStages * kKBytes;
}

/* seen: of permute(). */
__device__ __forceinline__ void give_back_k(const mla_sm90_launch &launch, uint32_t cursor, uint32_t seen)
{
    named_sync(kBarPv + group() + (seen & launch.reserved), 128); /* reserved is 0: V is in registers, not on its way */
    arrive_at_all(window_of_cta() + smem::k_empty + 8 * (cursor % kStages));
}

/* Up to P: K is given back when V is in registers, before P is waited for. */
template <int v>
__device__ __forceinline__ void begin_page(const mla_sm90_launch &launch, float (&o)[kBlocks][kValues], Fragments &a,
                                           Progress &at)
{
    const uint32_t window = window_of_cta();
    uint32_t stage = at.cursor % kStages, parity = at.cursor / kStages & 1;
    mbarrier_wait(window + smem::k_full + 8 * stage, parity);
    load_v(v_of_page(at), a);
    uint32_t seen = permute(a);
    if (kAtOnce == kBlocks)
        give_back_k(launch, at.cursor, seen);
    at.p = uniform(wgmma_place(smem::p + kPData + stage * kPStage)); /* now: with P there, products begin at once */
    if (kPromotion)
        promote<v>(launch, o, at.done);
    at.done++;
    mbarrier_wait(window + smem::p_full + 8 * stage, parity);
    at.flags = read_flags(p_of_page(at.cursor));
}

/* What few pages need. */
constexpr uint32_t kFlagsRare = kFlagsChanged | kFlagsChanged << 5 | kFlagMasked;
__device__ __forceinline__ void rare_page(const mla_sm90_launch &launch, float (&o)[kBlocks][kValues], Fragments &a,
                                          const Progress &at)
{
    if (at.flags & kFlagMasked)
        scrub(a);
    if (at.flags & (kFlagsChanged | kFlagsChanged << 5)) {
        uint32_t p = p_of_page(at.cursor) + (thread_of_group() & 3) * 8;
        rescale(o, p + p_factors(0), at.flags, 0);
        if (kCtas == 2)
            rescale(o, p + p_factors(1), at.flags >> 5, kRows / 8);
        if (kPromotion && at.done > 1) { /* else all of it is zeros */
            rescale_sums(sums_of_thread(launch), at.done, p + p_factors(0), at.flags, 0);
            if (kCtas == 2)
                rescale_sums(sums_of_thread(launch), at.done, p + p_factors(1), at.flags >> 5, kRows / 8);
        }
    }
}

/* The other half of a group's blocks, where there are no registers for V of all. It comes under the products of the
 * first. */
__device__ __forceinline__ void second_half(const mla_sm90_launch &launch, float (&o)[kBlocks][kValues], Fragments &a,
                                            const Progress &at)
{
    Fragments b;
    load_v(v_of_page(at) + kBox, b);
    wgmma_wait<0>();
    uint32_t seen = permute(b);
#pragma unroll
    for (int i = 0; i < 8 * kAtOnce; i++)
        a[i / 8][i / 4 % 2][i % 4] = b[i / 8][i / 4 % 2][i % 4];
    give_back_k(launch, at.cursor, seen);
    if (at.flags & kFlagMasked)
        scrub(a);
    products<kBlocks - kAtOnce>(o, a, at.p);
}

/* Under the products of every other page the group's leader waits for the stage of this page to be given back by all,
 * and loads it anew. */
__device__ __forceinline__ void end_page(const mla_sm90_launch &launch, float (&o)[kBlocks][kValues], Fragments &a,
                                         Progress &at)
{
    products<0>(o, a, at.p);
    const uint32_t window = window_of_cta(); /* read before, it would delay them */
    if (kAtOnce != kBlocks)
        second_half(launch, o, a, at);
    if ((at.cursor & 1) == group() && thread_of_group() < 32 && elect_one())
        load_page(window, at.cursor + kStages);
    /* For all of the group: products end for its four warps together, and factors and flags of the stage, read before,
     * were needed to begin them. */
    wgmma_wait<0>();
    arrive_at_all(window + smem::p_empty + 8 * (at.cursor % kStages));
    at.cursor = next_page(at.cursor);
}

/* Page v of a window. Unrolled by hand, since registers are chosen by v, and with jumps, so that the code of a window
 * is short and in a line: in a new launch it comes from memory. */
#define MLA_SM90_PAGE(v)                                                                                               \
    begin_page<v>(launch, o, a, at);                                                                                   \
    if (at.flags & kFlagsRare)                                                                                         \
        goto rare;                                                                                                     \
    page_##v : end_page(launch, o, a, at);                                                                             \
    if (at.flags & kFlagLast)                                                                                          \
        goto end;

/* Registers hold O and little else: which unit it is, and whether there is another, comes with P and the scales. */
__device__ __forceinline__ void pv_role(const mla_sm90_launch &launch)
{
    if (first_unit(launch, 0) == first_unit(launch, 1))
        return;
    Progress at = {window_of_cta() + smem::k + v_of_thread(), 0, 0, 0, 0};
    asm volatile("" : "+r"(at.v)); /* else it is computed anew on every page */
    bool last;
#pragma unroll 1
    do {
        float o[kBlocks][kValues];
#pragma unroll
        for (int m = 0; m < kBlocks; m++)
#pragma unroll
            for (int i = 0; i < kValues; i++)
                o[m][i] = 0;
        Fragments a;
        at.done = 0;
#pragma unroll 1
        for (;;) {
            MLA_SM90_PAGE(0)
            MLA_SM90_PAGE(1)
            MLA_SM90_PAGE(2)
            MLA_SM90_PAGE(3)
            MLA_SM90_PAGE(4)
            MLA_SM90_PAGE(5)
            MLA_SM90_PAGE(6)
            MLA_SM90_PAGE(7)
        }
    rare:
        rare_page(launch, o, a, at);
        switch (at.done % kWindow) {
        case 1:
            goto page_0;
        case 2:
            goto page_1;
        case 3:
            goto page_2;
        case 4:
            goto page_3;
        case 5:
            goto page_4;
        case 6:
            goto page_5;
        case 7:
            goto page_6;
        default:
            goto page_7;
        }
    end:
        if (kPromotion)
            collect(o, sums_of_thread(launch), at.done);
        mbarrier_wait(window_of_cta() + smem::scale_full, at.flags & kFlagOdd ? 1 : 0);
        uint32_t unit = load_shared_u32(window_of_cta() + smem::unit);
        last = write_out(unit_at(launch, unit), o);
        arrive_at_all(window_of_cta() + smem::scale_empty);
    } while (!last);
}

} // namespace mla::sm90

#endif
