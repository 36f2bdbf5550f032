/* What the products of mla1 are fed with: K by the copy engine, V^T by a warpgroup of its own. */
#ifndef MLA_KERNELS_BASELINE_MLA1_FEED_CUH
#define MLA_KERNELS_BASELINE_MLA1_FEED_CUH

#include "kernels/baseline/mla1_config.cuh"
#include "kernels/device/numbers.h"
#include "kernels/ptx/mma.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"

namespace mla::mla1
{

/* One thread: page g of the stream, when its stage is free. Each CTA fetches half, for both. */
__device__ __forceinline__ void load_page(uint32_t s, uint64_t map, uint32_t g, int page)
{
    uint32_t stage = g % kStages, full = s + smem::k_full + 8 * stage, to = s + smem::k + stage * kKBytes;
    int rank = static_cast<int>(rank_of_cta());
    mbarrier_wait(s + smem::k_empty + 8 * stage, (g / kStages & 1) ^ 1);
    mbarrier_arrive_expect(full, kKBytes);
    tma_load_3d_multicast(to + 2 * rank * kBox, map, 256 * rank, 0, page, full, 3);
    tma_load_3d_multicast(to + (2 * rank + 1) * kBox, map, 256 * rank + 128, 0, page, full, 3);
    tma_load_3d_multicast(to + kRope + rank * 2048, map + 128, 512, 32 * rank, page, full, 3);
}

__device__ __forceinline__ uint32_t page_id(const mla_sm90_unit &u, uint32_t j)
{
    return u.pages != 0 && j < u.n_pages ? reinterpret_cast<const uint32_t *>(u.pages)[j] : u.beyond;
}

/* One warp. Lanes hold the ids of 32 pages, those of the next 32 are on their way. */
__device__ __forceinline__ void load_role(const mla_sm90_launch &launch, uint32_t s)
{
    uint32_t lane = threadIdx.x & 31, g = 0;
    uint64_t map = 0;
    for (uint32_t unit = first_unit(launch, 0); unit != first_unit(launch, 1); unit++) {
        const mla_sm90_unit &u = unit_at(launch, unit);
        if (map != u.map) {
            map = u.map;
            tensormap_acquire(map);
            tensormap_acquire(map + 128);
        }
        uint32_t n = u.n_pages, next = page_id(u, lane);
#pragma unroll 1
        for (uint32_t j = 0; j < n; j += 32) {
            uint32_t now = next, end = min(n - j, 32u);
            next = page_id(u, j + 32 + lane);
#pragma unroll 1
            for (uint32_t i = 0; i < end; i++, g++) {
                int page = static_cast<int>(__shfl_sync(~0u, now, static_cast<int>(i)));
                if (lane == 0)
                    load_page(s, map, g, page);
                __syncwarp();
            }
        }
    }
}

/* A page's V^T. 16 channels of 64 keys at a time: transposed as pairs of bytes, which are then sorted: row j of the 16
 * is channel 2 j, row 8 + j channel 2 j + 1. Keys stand in the order in which the scores' accumulators hold them. NaN
 * codes of masked pages become 0: a row that sees such a key is NaN by its P, one that does not must not be. */
__device__ __forceinline__ void transpose(uint32_t k, uint32_t v, bool masked)
{
    uint32_t t = threadIdx.x & 127, lane = t & 31, warp = t >> 5, matrix = lane >> 3;
#pragma unroll 1
    for (uint32_t box = 0; box < 4; box++) {
        uint32_t r[2][2][4];
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
#pragma unroll
            for (uint32_t ks = 0; ks < 2; ks++)
                ldmatrix_x4_trans(r[c][ks],
                                  k + box * kBox + ks * 4096 + lane * 128 + (((warp + 4 * c) ^ (lane & 7)) << 4));
#pragma unroll
        for (uint32_t c = 0; c < 2; c++)
#pragma unroll
            for (uint32_t ks = 0; ks < 2; ks++) {
                uint32_t a[4] = {prmt(r[c][ks][0], r[c][ks][1], 0x6420), prmt(r[c][ks][0], r[c][ks][1], 0x7531),
                                 prmt(r[c][ks][2], r[c][ks][3], 0x6420), prmt(r[c][ks][2], r[c][ks][3], 0x7531)};
                if (masked)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        a[i] = e4m3_without_nan(a[i], e4m3_nan_bits(a[i]));
                uint32_t row = box * 128 + (warp + 4 * c) * 16 + (lane & 7) + 8 * (matrix & 1);
                uint32_t chunk = ks * 2 + (matrix >> 1);
                stmatrix_x4(v + row * 64 + ((chunk ^ (row >> 1 & 3)) << 4), a);
            }
    }
}

/* In place of a page that is not there, since P = 0 times what an earlier page left may be NaN. */
__device__ __forceinline__ void clear(uint32_t v)
{
#pragma unroll 1
    for (uint32_t at = (threadIdx.x & 127) * 16; at < kVBytes; at += 2048)
        store_shared_16(v + at, 0, 0, 0, 0);
}

__device__ __forceinline__ void transpose_role(const mla_sm90_launch &launch, uint32_t s)
{
    uint32_t lane = threadIdx.x & 31, g = 0, pair = 0;
    for (uint32_t unit = first_unit(launch, 0); unit != first_unit(launch, 1); unit++) {
        const mla_sm90_unit &u = unit_at(launch, unit);
        uint32_t n = u.n_pages, mask_from = u.mask_from;
#pragma unroll 1
        for (uint32_t j = 0; j < n; j++, g++) {
            uint32_t of_pair = j & 1;
            if (of_pair == 0)
                mbarrier_wait(s + smem::v_empty, (pair & 1) ^ 1);
            wait_for_page(s, g);
            transpose(s + smem::k + g % kStages * kKBytes, s + smem::v + of_pair * kVBytes, j >= mask_from);
            if (of_pair == 0 && j + 1 == n)
                clear(s + smem::v + kVBytes);
            fence_async_proxy();
            __syncwarp(); /* all lanes' reads are behind their stores */
            if (lane < 2)
                release_page(s, g, lane);
            if (of_pair == 1 || j + 1 == n) {
                mbarrier_arrive(s + smem::v_full);
                pair++;
            }
        }
    }
}

} // namespace mla::mla1

#endif
