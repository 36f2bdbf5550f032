/* gpu_race: which orders of stores and loads in shared memory does compute-sanitizer's racecheck understand? A line of
 * result for each kernel; run.sh, section race, runs them plainly and under the tool.
 *
 *   gpu_race           all of them
 *   gpu_race NAME...   these
 *   gpu_race --list    names, and what is to be expected of racecheck:
 *     clean      ordered, and to be found so; the controls of those below
 *     reported   a race, to be reported
 *     either     ordered by the PTX manual's letter ("synchronizes with" of barriers, release and acquire of mbarriers,
 *                and causality order, which is transitive): a report is false, and some releases make it
 *
 * Exit 0, 1 when a kernel that is ordered read a wrong value, 2 for an error, 77 where there is no GPU of the kernels'
 * architecture. */
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/cuda_driver.h"
#include "kernels/host/internal.h"
#include "tests/gpu/race/race.h"

static const struct race {
    const char *name, *racecheck;
} races[] = {
    {"turn", "either"},              /* a turn is given by bar.arrive and taken by bar.sync */
    {"turn_sync", "clean"},          /* the same, given by bar.sync as well */
    {"turn_race", "reported"},       /* no barriers */
    {"page_full", "either"},         /* one writer arrives at the readers' mbarrier, behind bar.sync of the writers */
    {"page_empty", "either"},        /* one reader arrives at the writers' mbarrier, behind bar.sync of the readers */
    {"page_every", "clean"},         /* all writers and all readers arrive at those mbarriers */
    {"page_race_full", "reported"},  /* bar.sync in front of the stores */
    {"page_race_empty", "reported"}, /* bar.sync in front of the loads */
};
#define N_RACES (sizeof races / sizeof races[0])

static struct cuda_driver driver;

#define MUST(call) must(driver.call, #call)
static void must(CUresult result, const char *call)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "gpu_race: %s: %s\n", call, cuda_driver_error(&driver, result));
    exit(2);
}

static CUmodule load(void)
{
    char directory[PATH_MAX], path[PATH_MAX + sizeof RACE_FILE + 1], why[1024] = "";
    size_t bytes;
    CUmodule module;
    if (kernels_find_directory(NULL, directory, sizeof directory, why, sizeof why) != 0) {
        fprintf(stderr, "gpu_race: %s\n", why);
        exit(2);
    }
    snprintf(path, sizeof path, "%s/%s", directory, RACE_FILE);
    char *image = kernels_read_file(path, &bytes);
    if (!image) {
        fprintf(stderr, "gpu_race: %s: %s\n", path, strerror(errno));
        exit(2);
    }
    CUresult result = driver.cuModuleLoadData(&module, image);
    free(image);
    if (result == CUDA_ERROR_NO_BINARY_FOR_GPU) {
        puts("skipped: not a GPU of these kernels");
        exit(77);
    }
    must(result, "cuModuleLoadData");
    return module;
}

/* Whether all was read that had to be, or it is a race, whose values may be any. */
static bool run(CUmodule module, const struct race *race)
{
    static uint32_t wrong_of_thread[RACE_THREADS];
    char entry[64];
    CUfunction function;
    CUdeviceptr out = 0;
    unsigned wrong = 0;
    snprintf(entry, sizeof entry, RACE_PREFIX "%s", race->name);
    MUST(cuModuleGetFunction(&function, module, entry));
    MUST(cuMemAlloc(&out, sizeof wrong_of_thread));
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = RACE_THREADS, .blockDimY = 1, .blockDimZ = 1};
    void *parameters[] = {&out};
    MUST(cuLaunchKernelEx(&config, function, parameters, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(wrong_of_thread, out, sizeof wrong_of_thread));
    MUST(cuMemFree(out));
    for (unsigned t = 0; t < RACE_THREADS; t++)
        wrong += wrong_of_thread[t];
    printf("%s: %u wrong values\n", race->name, wrong);
    return wrong == 0 || strcmp(race->racecheck, "reported") == 0;
}

static bool named(int argc, char **argv, const char *name)
{
    bool is = argc == 1;
    for (int i = 1; i < argc; i++)
        is |= strcmp(argv[i], name) == 0;
    return is;
}

int main(int argc, char **argv)
{
    char why[512] = "";
    CUdevice device;
    CUcontext context;
    int known = 0;
    bool right = true;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < N_RACES; i++)
            printf("%s %s\n", races[i].name, races[i].racecheck);
        return 0;
    }
    for (size_t i = 0; i < N_RACES; i++)
        known += argc > 1 && named(argc, argv, races[i].name);
    if (known != argc - 1) {
        fputs("usage: gpu_race [--list | NAME...]\n", stderr);
        return 2;
    }
    if (cuda_driver_open(NULL, &driver, why, sizeof why) != 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    CUmodule module = load();
    for (size_t i = 0; i < N_RACES; i++)
        if (named(argc, argv, races[i].name))
            right &= run(module, &races[i]);
    MUST(cuModuleUnload(module));
    MUST(cuDevicePrimaryCtxRelease(device));
    return right ? 0 : 1;
}
