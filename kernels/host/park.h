/* Launches that wait on the device for a word: for callers in this tree. */
#ifndef MLA_KERNELS_HOST_PARK_H
#define MLA_KERNELS_HOST_PARK_H

#include "kernels/host/mla_kernels.h"
#include "kernels/sm90/park.h"

/* Addresses and words as of struct mla_sm90_park. */
struct kernels_park {
    uint64_t order;
    uint64_t verdict;
    uint64_t ready;
    uint64_t ready_value;
    uint64_t number;
    uint64_t out;
    uint64_t most_ns;
};

/* Kernels with a park kernel. */
bool kernels_can_park(const struct mla_kernels *kernels);

/* mla_kernels_launch() behind the park kernel: nothing of it begins before the verdict. The blob is in device memory of
 * the caller's, and is no more what was written there once the verdict is LEAVE. Work of other streams goes on
 * meanwhile, one warp aside; all of this stream stands still. Results as of mla_kernels_launch(); -ENOTSUP: cannot
 * park. */
int kernels_launch_parked(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                          const struct kernels_park *park, CUresult *result);

/* The park kernel alone, for a caller that puts the launch behind it as it likes. */
int kernels_launch_park(const struct mla_kernels *kernels, CUstream stream, const struct mla_kernels_launch *launch,
                        const struct kernels_park *park, CUresult *result);

#endif
