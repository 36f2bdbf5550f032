/* Loads of K ahead of the products: the ring of page ids, and the copies themselves. */
#ifndef MLA_KERNELS_SM90_LOADS_CUH
#define MLA_KERNELS_SM90_LOADS_CUH

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "kernels/ptx/tma.cuh"
#include "kernels/sm90/place.cuh"

namespace mla::sm90
{

/* Walks the pages of the cluster's units, one after the other; after the last page all entries are invalid. One thread
 * at a time uses it: of a PV warp for the first pages, then of a QK warp, which sees it behind the first page of K. It
 * is in shared memory: registers are scarce. */
struct Cursor {
    uint64_t map;
    uint64_t ids;
    uint32_t unit;
    uint32_t left;   /* pages of the unit not yet handed out */
    uint32_t beyond; /* page id past the plane */
    uint32_t end;    /* behind the cluster's last unit */
};
static_assert(sizeof(Cursor) == smem::cursor_bytes, "place");

__device__ __forceinline__ void enter(const mla_sm90_launch &launch, Cursor &c)
{
    if (c.unit == c.end)
        return;
    const mla_sm90_unit &u = unit_at(launch, c.unit);
    c.left = u.n_pages;
    c.ids = u.pages;
    c.beyond = u.beyond;
    if (c.map != u.map) {
        c.map = u.map;
        tensormap_acquire(c.map);
        tensormap_acquire(c.map + 128);
    }
}

/* One warp: the next n pages, from page g of the stream on; ids come by asynchronous copies, so that nobody waits for
 * them. They are seen by the loader behind the P of a page at least kRefill further on. */
__device__ __forceinline__ void refill(const mla_sm90_launch &launch, Cursor &c, uint32_t g, uint32_t n, uint32_t lane)
{
    cp_async_wait_all();
    uint32_t done = 0;
    while (done < n) {
        uint32_t take = n - done;
        bool over = c.unit == c.end;
        if (!over)
            take = min(take, c.left);
        if (lane >= done && lane < done + take) {
            uint32_t entry = window_of_cta() + smem::loads + (g + lane) % kLoadRing * 16;
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
                c.unit++;
                enter(launch, c);
            }
        }
        __syncwarp();
    }
}

static_assert(kRefill / 2 + kRefill - kStages >= kRefill, "refilled half a kRefill behind, needed kStages early");

/* True for one thread of a converged warp. Which is known to the compiler to be one: behind a comparison of thread
 * numbers it issues copies in a loop over the lanes. */
__device__ __forceinline__ bool elect_one()
{
    uint32_t one;
    asm volatile("{.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;}" : "=r"(one));
    return one != 0;
}

/* One thread: page g into its stage, when that is free. */
__device__ __forceinline__ void load_page(uint32_t window, uint32_t g)
{
    uint32_t entry[4];
    load_shared_16(window + smem::loads + g % kLoadRing * 16, entry);
    if (entry[3] == 0)
        return;
    uint64_t map = static_cast<uint64_t>(entry[1]) << 32 | entry[0];
    int page = static_cast<int>(entry[2]);
    uint32_t stage = g % kStages, rank = window >> 24;
    uint32_t full = window + smem::k_full + 8 * stage;
    uint32_t to = window + smem::k + stage * kKBytes;
    mbarrier_wait(window + smem::k_empty + 8 * stage, (g / kStages & 1) ^ 1);
    mbarrier_arrive_expect(full, kKBytes);
    if (kCtas == 1) {
        /* Else K drives the sums of promotion out of L2, which then cost a sixth of memory's time. */
#pragma unroll
        for (int box = 0; box < 4; box++)
            tma_load_3d_once(to + box * kBox, map, 128 * box, 0, page, full);
        tma_load_3d_once(to + kRope, map + 128, 512, 0, page, full);
        tma_load_3d_once(to + kRope + 2048, map + 128, 512, 32, page, full);
        return;
    }
    tma_load_3d_multicast(to + 2 * rank * kBox, map, 256 * static_cast<int>(rank), 0, page, full, 3);
    tma_load_3d_multicast(to + (2 * rank + 1) * kBox, map, 256 * static_cast<int>(rank) + 128, 0, page, full, 3);
    tma_load_3d_multicast(to + kRope + rank * 2048, map + 128, 512, 32 * static_cast<int>(rank), page, full, 3);
}

/* One warp of those that load pages: the cursor, the ring, and the first pages, for which it meets the cluster. */
__device__ __forceinline__ void begin_loads(const mla_sm90_launch &launch, Cursor &c, uint32_t lane)
{
    if (lane == 0) {
        c.unit = first_unit(launch, 0);
        c.end = first_unit(launch, 1);
        c.map = c.unit != c.end ? unit_at(launch, c.unit).map : 0; /* acquired below */
        enter(launch, c);
    }
    __syncwarp();
    const uint64_t map = c.map;
    refill(launch, c, 0, 2 * kRefill, lane);
    if (lane < 2 && map != 0)
        tensormap_acquire(map + lane * 128);
    cp_async_wait_all();
    __syncwarp();
    cluster_wait();
    if (elect_one())
#pragma unroll 1
        for (uint32_t g = 0; g < kStages; g++)
            load_page(window_of_cta(), g);
}

/* One arrival of a warpgroup at an "empty" barrier of all CTAs of the cluster. */
__device__ __forceinline__ void arrive_at_all(uint32_t barrier)
{
    uint32_t t = thread_of_group();
    if (t < kCtas)
        mbarrier_arrive_cluster(map_shared(barrier, t));
}

} // namespace mla::sm90

#endif
