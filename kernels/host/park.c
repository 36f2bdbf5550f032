#include "kernels/host/park.h"

#include <errno.h>
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/sm90/launch.h"

#define PARK_THREADS 32u

bool kernels_can_park(const struct mla_kernels *kernels)
{
    return kernels->park != NULL;
}

int kernels_launch_park(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                        const struct kernels_park *park, CUresult *result)
{
    struct mla_sm90_launch units;
    if (!k->park)
        return -ENOTSUP;
    memcpy(&units, launch, sizeof units);
    if (launch->abi.jobs == 0 || launch->abi.seqs == 0 || units.seqs == 0)
        return -EINVAL;
    struct mla_sm90_park parameter = {
        .jobs = launch->abi.jobs,
        .abi_seqs = launch->abi.seqs,
        .seqs = units.seqs,
        .order = park->order,
        .verdict = park->verdict,
        .ready = park->ready,
        .ready_value = park->ready_value,
        .number = park->number,
        .out = park->out,
        .most_ns = park->most_ns,
        .n_jobs = launch->abi.n_jobs,
        .n_seqs = launch->abi.n_seqs,
    };
    void *parameters[] = {&parameter};
    CUlaunchConfig config = {.gridDimX = 1,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = PARK_THREADS,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    CUresult r = k->driver->cuLaunchKernelEx(&config, k->park, parameters, NULL);
    if (result)
        *result = r;
    return r == CUDA_SUCCESS ? 0 : -EIO;
}

int kernels_launch_parked(const struct mla_kernels *k, CUstream stream, const struct mla_kernels_launch *launch,
                          const struct kernels_park *park, CUresult *result)
{
    int rc = kernels_launch_park(k, stream, launch, park, result);
    return rc != 0 ? rc
                   : mla_kernels_launch_some(
                         k, stream, launch,
                         MLA_KERNELS_PREPARE | MLA_KERNELS_DECODE | MLA_KERNELS_REDUCE | KERNELS_BEHIND_PARK, result);
}
