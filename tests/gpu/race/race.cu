/* What the decode kernel of kernels/sm90 does with values in shared memory, each by itself and nothing around it. A
 * thread counts the values that it reads and that are not those which it must read. */
#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/shared.cuh"
#include "tests/gpu/race/race.h"

namespace mla
{

constexpr uint32_t kGroup = RACE_GROUP, kThreads = RACE_THREADS, kRounds = RACE_ROUNDS, kStages = 4;
constexpr int kBarGroup = 1, kBarTurn = 3; /* + group each */
static_assert(kRounds % 2 == 0, "group 1 has the last turn");

__device__ __forceinline__ uint32_t group()
{
    return threadIdx.x / kGroup;
}

__device__ __forceinline__ uint32_t thread_of_group()
{
    return threadIdx.x % kGroup;
}

__device__ __forceinline__ uint32_t place(const void *shared)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

/* ---- two groups take turns at a word for each thread: the running references ---- */

enum Turn {
    kArrive, /* given by bar.arrive, taken by bar.sync: the decode kernel's way */
    kSync,   /* given by bar.sync as well */
    kNever   /* not given: a race */
};

template <Turn how> __device__ __forceinline__ void give_turn(uint32_t to_group)
{
    if (how == kArrive)
        named_arrive(kBarTurn + to_group, kThreads);
    else if (how == kSync)
        named_sync(kBarTurn + to_group, kThreads);
}

template <Turn how> __device__ __forceinline__ void take_turn()
{
    if (how != kNever)
        named_sync(kBarTurn + group(), kThreads);
}

template <Turn how> __device__ __forceinline__ void turns(uint32_t *wrong_of_thread)
{
    __shared__ uint32_t words[kGroup];
    uint32_t word = place(&words[thread_of_group()]), wrong = 0;
    if (group() == 0)
        store_shared_u32(word, 0);
    __syncthreads();
    if (group() == 1)
        give_turn<how>(0);
#pragma unroll 1
    for (uint32_t round = group(); round < kRounds; round += 2) {
        take_turn<how>();
        wrong += load_shared_u32(word) != round;
        store_shared_u32(word, round + 1);
        give_turn<how>(group() ^ 1);
    }
    if (group() == 0) /* the turn that was given and will not be used */
        take_turn<how>();
    wrong_of_thread[threadIdx.x] = wrong;
}

/* ---- group 0 writes, group 1 reads, in a ring of stages with two mbarriers each: factors, flags and scales ---- */

enum Signal {
    kEvery,   /* all threads of the group arrive */
    kMeetOne, /* they meet behind their accesses, then one arrives: the decode kernel's way */
    kTooSoon  /* they meet in front of their accesses, and one arrives when it has made its own: a race */
};

template <Signal how> constexpr uint32_t kArrivals = how == kEvery ? kGroup : 1;

template <Signal how, Signal when> __device__ __forceinline__ void meet()
{
    if (how == when)
        named_sync(kBarGroup + group(), kGroup);
}

template <Signal how> __device__ __forceinline__ void arrive(uint32_t barrier)
{
    if (how == kEvery || thread_of_group() == 0)
        mbarrier_arrive(barrier);
}

template <Signal full_how, Signal empty_how> __device__ __forceinline__ void pages(uint32_t *wrong_of_thread)
{
    __shared__ uint32_t words[kStages][kGroup];
    __shared__ uint64_t full[kStages], empty[kStages];
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < kStages; s++) {
            mbarrier_init(place(&full[s]), kArrivals<full_how>);
            mbarrier_init(place(&empty[s]), kArrivals<empty_how>);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    uint32_t t = thread_of_group(), other = (t + 32) % kGroup, wrong = 0; /* other: of another warp */
#pragma unroll 1
    for (uint32_t page = 0; page < kRounds; page++) {
        uint32_t stage = page % kStages, parity = page / kStages & 1;
        if (group() == 0) {
            mbarrier_wait(place(&empty[stage]), parity ^ 1);
            meet<full_how, kTooSoon>();
            store_shared_u32(place(&words[stage][t]), page * kGroup + t);
            meet<full_how, kMeetOne>();
            arrive<full_how>(place(&full[stage]));
        } else {
            mbarrier_wait(place(&full[stage]), parity);
            meet<empty_how, kTooSoon>();
            wrong += load_shared_u32(place(&words[stage][other])) != page * kGroup + other;
            meet<empty_how, kMeetOne>();
            arrive<empty_how>(place(&empty[stage]));
        }
    }
    wrong_of_thread[threadIdx.x] = wrong;
}

} // namespace mla

#define RACE_KERNEL(name, body)                                                                                        \
    extern "C" __global__ void __launch_bounds__(RACE_THREADS, 1) race_##name(uint32_t *wrong_of_thread)               \
    {                                                                                                                  \
        using namespace mla;                                                                                           \
        body(wrong_of_thread);                                                                                         \
    }
RACE_KERNEL(turn, turns<kArrive>)
RACE_KERNEL(turn_sync, turns<kSync>)
RACE_KERNEL(turn_race, turns<kNever>)
RACE_KERNEL(page_full, (pages<kMeetOne, kEvery>))
RACE_KERNEL(page_empty, (pages<kEvery, kMeetOne>))
RACE_KERNEL(page_every, (pages<kEvery, kEvery>))
RACE_KERNEL(page_race_full, (pages<kTooSoon, kEvery>))
RACE_KERNEL(page_race_empty, (pages<kEvery, kTooSoon>))
