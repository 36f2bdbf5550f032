/* The tuned split-KV kernel of Hopper. See config.cuh for its shape, kernels/NOTES.md for its figures. */
#include "kernels/device/numbers.h"
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sm90/launch.h"
#include "kernels/sm90/softmax.cuh"

namespace mla::sm90
{

/* Units cluster, cluster + clusters, ... of the launch are this cluster's. Read anew where they are needed: registers
 * are scarcer than special ones. */
__device__ __forceinline__ uint32_t cluster_of_cta()
{
    return blockIdx.x >> 1;
}

__device__ __forceinline__ uint32_t rank_of_cta()
{
    return blockIdx.x & 1;
}

/* Shared addresses are those of the cluster's window, in which CTA r's memory begins at r << 24. */
__device__ __forceinline__ uint32_t own(uint32_t place)
{
    return place | (blockIdx.x & 1) << 24;
}

__device__ __forceinline__ uint32_t clusters()
{
    return gridDim.x >> 1;
}

__device__ __forceinline__ const mla_sm90_unit &unit_at(const mla_sm90_launch &launch, uint32_t unit)
{
    return reinterpret_cast<const mla_sm90_unit *>(launch.units)[unit];
}

/* Of its warpgroup. */
__device__ __forceinline__ uint32_t thread_of_group()
{
    uint32_t t;
    t = threadIdx.x;
    asm volatile("" : "+r"(t)); /* what follows from it is computed where it is used, not kept */
    return t & 127;
}

__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t d;
    asm volatile("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

__device__ __forceinline__ void store_shared_16(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ void load_shared_16(uint32_t from, uint32_t (&v)[4])
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ float load_shared_f32(uint32_t from)
{
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ void store_shared_f32(uint32_t to, float v)
{
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

__device__ __forceinline__ void stmatrix_x4(uint32_t to, const uint32_t (&r)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

/* ---- loads ahead ---- */

/* Walks the pages of the cluster's units, one after the other; after the last page all entries are invalid. One thread
 * uses it, and keeps it in shared memory: registers are scarce. */
struct Cursor {
    uint64_t map;
    uint64_t ids;
    uint32_t unit;
    uint32_t left;   /* pages of the unit not yet handed out */
    uint32_t beyond; /* page id past the plane */
    uint32_t reserved;
};
static_assert(sizeof(Cursor) == smem::cursor_bytes, "place");

__device__ __forceinline__ void enter(const mla_sm90_launch &launch, Cursor &c)
{
    if (c.unit >= launch.n_units)
        return;
    const mla_sm90_unit &u = unit_at(launch, c.unit);
    c.left = u.n_pages;
    c.ids = u.pages;
    c.beyond = u.reserved;
    if (c.map != u.map) {
        c.map = u.map;
        tensormap_acquire(c.map);
        tensormap_acquire(c.map + 128);
    }
}

/* One warp: the next kRefill pages, from page g of the stream on; ids come by asynchronous copies, so that nobody waits
 * for them. They are seen by the loader behind the P of a page at least kRefill further on. */
__device__ __forceinline__ void refill(const mla_sm90_launch &launch, Cursor &c, uint32_t g, uint32_t lane)
{
    cp_async_wait_all();
    uint32_t done = 0;
    while (done < kRefill) {
        uint32_t take = kRefill - done;
        bool over = c.unit >= launch.n_units;
        if (!over)
            take = min(take, c.left);
        if (lane >= done && lane < done + take) {
            uint32_t entry = own(smem::loads) + (g + lane) % kLoadRing * 16;
            store_shared_16(entry, static_cast<uint32_t>(c.map), static_cast<uint32_t>(c.map >> 32), c.beyond,
                            over ? 0 : 1);
            if (!over && c.ids != 0)
                cp_async_4(entry + 8, reinterpret_cast<const void *>(c.ids + (lane - done) * 4));
        }
        __syncwarp();
        done += take;
        if (!over && lane == 0) {
            c.left -= take;
            if (c.ids != 0)
                c.ids += take * 4;
            if (c.left == 0) {
                c.unit += clusters();
                enter(launch, c);
            }
        }
        __syncwarp();
    }
}

/* One thread: page g into its stage, when that is free. */
__device__ __forceinline__ void load_page(uint32_t g)
{
    uint32_t rank = rank_of_cta();
    uint32_t entry[4];
    load_shared_16(own(smem::loads) + g % kLoadRing * 16, entry);
    if (entry[3] == 0)
        return;
    uint64_t map = static_cast<uint64_t>(entry[1]) << 32 | entry[0];
    int page = static_cast<int>(entry[2]);
    uint32_t stage = g % kStages;
    uint32_t full = own(smem::k_full) + 8 * stage;
    uint32_t to = own(smem::k) + stage * kKBytes;
    mbarrier_wait(own(smem::k_empty) + 8 * stage, (g / kStages & 1) ^ 1);
    mbarrier_arrive_expect(full, kKBytes);
    tma_load_3d_multicast(to + 2 * rank * kBox, map, 256 * static_cast<int>(rank), 0, page, full, 3);
    tma_load_3d_multicast(to + (2 * rank + 1) * kBox, map, 256 * static_cast<int>(rank) + 128, 0, page, full, 3);
    tma_load_3d_multicast(to + kRope + rank * 2048, map + 128, 512, 32 * static_cast<int>(rank), page, full, 3);
}

/* ---- PV ---- */

/* V^T fragments of a page: 32 keys x 16 channels per warp and block, in the key order of P. */
__device__ __forceinline__ void load_v(uint32_t from, uint32_t (&a)[2][2][4])
{
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
        }
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
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(x), "=f"(y)
                         : "r"(block + kPFactors + i * 32)
                         : "memory");
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
 * come one by one from shared memory, since 32 of them at once do not fit the registers. */
template <uint32_t type>
__device__ __forceinline__ void write_rows(const float (&o)[2][64], float out_scale, uint32_t q, uint32_t channel)
{
    constexpr uint32_t width = type == MLA_ABI_OUT_F32 ? 4 : type == MLA_ABI_OUT_BF16 ? 2 : 1;
    uint32_t rows = own(smem::out_row) + q * 16, scales = own(smem::scale) + q * 8;
#pragma unroll
    for (int i = 0; i < 16; i++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            uint64_t to;
            float f;
            asm volatile("ld.shared.b64 %0, [%1];\n\tadd.u32 %1, %1, 8;" : "=l"(to), "+r"(rows)::"memory");
            asm volatile("ld.shared.f32 %0, [%1];\n\tadd.u32 %1, %1, 4;" : "=f"(f), "+r"(scales)::"memory");
            if (e == 1) {
                rows += 48;
                scales += 24;
            }
            f *= out_scale;
            if (to != 0) {
                to += channel * width;
                store_pair<type>(to, o[0][4 * i + e] * f, o[0][4 * i + 2 + e] * f);
                store_pair<type>(to + 64 * width, o[1][4 * i + e] * f, o[1][4 * i + 2 + e] * f);
            }
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
        asm volatile("st.shared.b64 [%0], %1;" ::"r"(own(smem::out_row) + t * 8), "l"(address) : "memory");
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

__device__ __forceinline__ void arrive_at_both(uint32_t barrier)
{
    uint32_t t = thread_of_group();
    if (t < 2)
        mbarrier_arrive_cluster(map_shared(barrier, t));
}

/* One page: O += V^T P. A product is of 64 channels and 64 rows and starts from nothing, so that what the tensor cores'
 * short accumulator holds is never more than one page; the other group's products run while this one adds. */
template <int wg> __device__ __forceinline__ uint32_t pv_page(float (&o)[2][64], uint32_t g)
{
    uint32_t stage = g % kStages, parity = g / kStages & 1;
    uint32_t a[2][2][4];
    float t[32];
    mbarrier_wait(own(smem::k_full) + 8 * stage, parity);
    load_v(own(smem::k) + v_of_thread<wg>() + stage * kKBytes, a);
    named_sync(kBarPv + wg, 128);
    arrive_at_both(own(smem::k_empty) + 8 * stage);
    mbarrier_wait(own(smem::p_full) + 8 * stage, parity);
    uint32_t p = own(smem::p) + stage * 2 * kPBlock;
    uint32_t flags0 = read_flags(p), flags1 = read_flags(p + kPBlock);
    if (flags0 & kFlagMasked)
        scrub(a);
    if ((flags0 | flags1) & kFlagChanged) {
        uint32_t pair = (thread_of_group() & 3) * 8;
        rescale(o, p + pair, flags0, 0);
        rescale(o, p + kPBlock + pair, flags1, 8);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        wgmma_fence();
        wgmma_m64n64k32_rs(t, a[0][s >> 1], wgmma_descriptor(p + (s & 1) * kPBlock, 512, WGMMA_SWIZZLE_64), 0);
        wgmma_m64n64k32_rs(t, a[1][s >> 1], wgmma_descriptor(p + (s & 1) * kPBlock + 32, 512, WGMMA_SWIZZLE_64), 1);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++)
            o[s >> 1][32 * (s & 1) + i] += t[i];
    }
    if ((g & 1) == wg && g > 0 && thread_of_group() == 0)
        load_page(g + kStages - 1);
    flags0 = read_flags(p); /* again: a register that is not held meanwhile */
    arrive_at_both(own(smem::p_empty) + 8 * stage);
    return flags0;
}

/* Registers hold O and little else: which unit it is, and whether there is another, comes with P and the scales. */
template <int wg> __device__ __forceinline__ void pv_role(const mla_sm90_launch &launch)
{
    if (wg == 0 && thread_of_group() == 0)
#pragma unroll 1
        for (uint32_t i = 0; i < kStages; i++)
            load_page(i);
    if (cluster_of_cta() >= launch.n_units)
        return;
    uint32_t g = 0, unit;
#pragma unroll 1
    do {
        float o[2][64];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < 64; i++)
                o[m][i] = 0;
        uint32_t flags;
#pragma unroll 1
        do
            flags = pv_page<wg>(o, g++);
        while (!(flags & kFlagLast));
        mbarrier_wait(own(smem::scale_full), flags & kFlagOdd ? 1 : 0);
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(unit) : "r"(own(smem::unit)) : "memory");
        write_out<wg>(unit_at(launch, unit), o);
        arrive_at_both(own(smem::scale_empty));
    } while (unit + clusters() < launch.n_units);
}

/* ---- QK and softmax ---- */

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
        cp_async_16(own(smem::q) + (c >> 3) * kBox + r * 128 + (((c & 7) ^ (r & 7)) << 4),
                    reinterpret_cast<const void *>(nope + c * 16), bytes);
    }
    uint32_t c = tid & 3;
    cp_async_16(own(smem::q) + kRope + r * 64 + ((c ^ (r >> 1 & 3)) << 4),
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

/* Sums of both groups, for the PV groups of both CTAs and for the LSE. One row a thread. */
__device__ __forceinline__ void finish_rows(const mla_sm90_unit &u, uint32_t unit, uint32_t rank, uint32_t k,
                                            uint32_t t)
{
    if (t < kRows) {
        uint32_t at = own(smem::sums) + t * 4;
        float l0 = load_shared_f32(at), x0 = load_shared_f32(at + 256), r0 = load_shared_f32(at + 512);
        float l1 = load_shared_f32(at + 768), x1 = load_shared_f32(at + 1024), r1 = load_shared_f32(at + 1280);
        float top = fmaxf(r0, r1), f0 = ex2(r0 - top), f1 = ex2(r1 - top);
        float rounded = l0 * f0 + l1 * f1, exact = x0 * f0 + x1 * f1;
        mbarrier_wait(own(smem::scale_empty), (k & 1) ^ 1);
        store_shared_f32(own(smem::scale) + (rank * kRows + t) * 4, exact == 0 ? 0.0f : 1.0f / rounded);
        if (t == 0)
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(own(smem::unit)), "r"(unit) : "memory");
        uint32_t in_unit = rank * kRows + t;
        if (u.lse != 0 && in_unit < u.rows) {
            uint32_t row = u.row0 + in_unit, token = row / u.heads;
            int64_t to = token * u.lse_token + static_cast<int64_t>(row - token * u.heads) * u.lse_head;
            float lse = exact == 0 ? -INFINITY : (top - kHeadroom + log2f(exact)) * 0.6931471805599453f;
            *reinterpret_cast<float *>(u.lse + static_cast<uint64_t>(to)) = lse;
        }
    }
    fence_async_proxy();
    named_sync(kBarQk, 128);
    if (t == 0) {
        uint32_t full = own(smem::scale_full), at = own(smem::scale) + rank * kRows * 4;
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
__device__ __forceinline__ void raise_references(const float (&top)[2], float scale, float (&old)[2], float (&next)[2])
{
    uint32_t t = thread_of_group();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t at = own(smem::reference) + ((t >> 5) * 16 + (t >> 2 & 7) + 8 * r) * 4;
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
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(block + kPFlags + warp * 4), "r"(flags) : "memory");
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

template <int wg> __device__ __forceinline__ void qk_role(const mla_sm90_launch &launch, Cursor &cursor)
{
    uint32_t first = 0, k = 0; /* page of the stream that the unit begins with; units so far */
    if (wg == 1)
        named_arrive(kBarTurn, 256);
    for (uint32_t unit = cluster_of_cta(); unit < launch.n_units; unit += clusters(), k++) {
        uint32_t end, mask_from;
        int limit[2];
        float c;
        {
            const mla_sm90_unit &u = unit_at(launch, unit);
            uint32_t t = thread_of_group();
            load_q(u, rank_of_cta(), wg * 128 + t);
            if (wg == 0 && t < kRows)
                store_shared_f32(own(smem::reference) + t * 4, kNoReference);
            uint32_t row = rank_of_cta() * kRows + (t >> 5) * 16 + (t >> 2 & 7);
            limit[0] = limit_of_row(u, row, first);
            limit[1] = limit_of_row(u, row + 8, first);
            c = u.score_scale;
            mask_from = first + u.mask_from;
            end = first + u.n_pages;
        }
        RowState state;
        reset(state);
        named_sync(kBarQkAll, 256);
#pragma unroll 1
        for (uint32_t g = first + ((first ^ wg) & 1); static_cast<int32_t>(end - g) > 0; g += 2) {
            uint32_t stage = g % kStages, parity = g / kStages & 1;
            float S[32];
            if (wg == 0 && g % kRefill == 0 && thread_of_group() < 32)
                refill(launch, cursor, g + 2 * kRefill, thread_of_group());
            mbarrier_wait(own(smem::k_full) + 8 * stage, parity);
            scores(S, own(smem::q), own(smem::k) + stage * kKBytes);
            wgmma_wait<0>();
            {
                uint32_t t = thread_of_group();
                if (t < 2)
                    mbarrier_arrive_cluster(map_shared(own(smem::k_empty) + 8 * stage, t));
            }
            if (c < 0) /* the maximum below is of S */
#pragma unroll
                for (int i = 0; i < 32; i++)
                    S[i] = -S[i];
            if (g >= mask_from) {
                int past = static_cast<int>(g * kPage);
                mask_scores(S, limit[0] - past, limit[1] - past, thread_of_group() & 3);
            }
            float factor[2], top[2], old[2], next[2];
            row_maxima(S, top);
            named_sync(kBarTurn + wg, 256);
            raise_references(top, fabsf(c), old, next);
            named_arrive(kBarTurn + (wg ^ 1), 256);
            uint32_t flags = follow(old, next, state, factor);
            flags |= (g >= mask_from ? kFlagMasked : 0) | (g + 1 == end ? kFlagLast : 0) | (k & 1 ? kFlagOdd : 0);
            float offset[2] = {kHeadroom - state.reference[0], kHeadroom - state.reference[1]};
            uint32_t w0[4], w1[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                exponentials(S, fabsf(c), offset, state, i, w0[i], w1[i]);
            mbarrier_wait(own(smem::p_empty) + 8 * stage, parity ^ 1);
            uint32_t rank = rank_of_cta();
            uint32_t block = own(smem::p) + stage * 2 * kPBlock + rank * kPBlock;
            store_p(block, w0, w1, factor, flags);
            named_sync(kBarQk + wg, 128);
            if (thread_of_group() == 0) {
                uint32_t full = own(smem::p_full) + 8 * stage;
                mbarrier_arrive_expect(full, kPSent);
                bulk_copy_to_peer(map_shared(block, rank ^ 1), block, kPSent, map_shared(full, rank ^ 1));
            }
        }
        store_sums(state, own(smem::sums) + wg * 768);
        named_sync(kBarQkAll, 256);
        if (wg == 0)
            finish_rows(unit_at(launch, unit), unit, rank_of_cta(), k, thread_of_group());
        first = end;
    }
    if ((first & 1) == wg) /* the turn that was given and will not be used */
        named_sync(kBarTurn + wg, 256);
}

} // namespace mla::sm90

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(512, 1)
    mla_decode_sm90(const __grid_constant__ mla_sm90_launch launch)
{
    using namespace mla;
    using namespace mla::sm90;
    extern __shared__ uint8_t raw[];
    if ((shared_address(raw) & 0xffffffu) != smem::base)
        __trap();
    int tid = threadIdx.x;
    if (tid == 0) {
        for (uint32_t s = 0; s < kStages; s++) {
            mbarrier_init(own(smem::k_full) + 8 * s, 1);
            mbarrier_init(own(smem::k_empty) + 8 * s, 6); /* in each CTA: a QK thread and both PV groups */
            mbarrier_init(own(smem::p_full) + 8 * s, 1);
            mbarrier_init(own(smem::p_empty) + 8 * s, 4);
        }
        mbarrier_init(own(smem::scale_full), 1);
        mbarrier_init(own(smem::scale_empty), 4);
        mbarrier_init_fence();
    }
    Cursor &cursor = *reinterpret_cast<Cursor *>(raw + (smem::cursor - smem::base));
    if (tid == 256) {
        cursor.map = 0;
        cursor.unit = cluster_of_cta();
        enter(launch, cursor);
    }
    if (tid >= 256 && tid < 288) {
        __syncwarp();
        refill(launch, cursor, 0, tid - 256);
        refill(launch, cursor, kRefill, tid - 256);
        cp_async_wait_all();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    if (tid < 256) {
        registers_grow<kRegistersPv>();
        if (tid < 128)
            pv_role<0>(launch);
        else
            pv_role<1>(launch);
    } else {
        registers_shrink<kRegistersQk>();
        if (tid < 384)
            qk_role<0>(launch, cursor);
        else
            qk_role<1>(launch, cursor);
    }
    __syncwarp();
    cluster_arrive();
    cluster_wait();
}
