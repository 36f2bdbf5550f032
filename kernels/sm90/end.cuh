/* One warp behind all kernels of a launch, which writes the words that tell its end. The stream could do that, too, but
 * a kernel only begins before its predecessor has quite ended where that is a kernel, and the prepare kernel of the
 * next launch is to. */
#ifndef MLA_KERNELS_SM90_END_CUH
#define MLA_KERNELS_SM90_END_CUH

#include "kernels/ptx/grid.cuh"
#include "kernels/ptx/word.cuh"
#include "kernels/sm90/launch.h"

/* What the launch wrote is there for whoever sees one of the words, as each is a release; so are the others for whoever
 * sees the last. */
extern "C" __global__ void __launch_bounds__(32) mla_prepare_sm90_end(const __grid_constant__ mla_sm90_end end)
{
    using namespace mla;
    grid_launch_dependents();
    grid_wait();
    if (threadIdx.x < end.n_words)
        system_store(end.words[threadIdx.x].address, end.words[threadIdx.x].value);
    __syncwarp();
    if (threadIdx.x == 0)
        system_store(end.last.address, end.last.value);
}

#endif
