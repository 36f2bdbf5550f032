#include "tests/bench/gpu/nvml.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY   "libnvidia-ml.so.1"
#define CLOCK_SM  1
#define NVML_FINE 0

struct nvml {
    void *library;
    void *device;
    int (*shutdown)(void);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    int (*reasons)(void *device, unsigned long long *bits);
};

/* POSIX gives functions as pointers to void. */
static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

struct nvml *nvml_open(const char *gpu_uuid)
{
    int (*init)(void) = NULL;
    int (*by_uuid)(const char *uuid, void **device) = NULL;
    struct nvml *nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return NULL;
    nvml->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library) {
        find(nvml->library, "nvmlInit_v2", &init);
        find(nvml->library, "nvmlShutdown", &nvml->shutdown);
        find(nvml->library, "nvmlDeviceGetHandleByUUID", &by_uuid);
        find(nvml->library, "nvmlDeviceGetClockInfo", &nvml->clock);
        find(nvml->library, "nvmlDeviceGetPowerUsage", &nvml->power);
        find(nvml->library, "nvmlDeviceGetCurrentClocksThrottleReasons", &nvml->reasons);
        bool all = init && nvml->shutdown && by_uuid && nvml->clock && nvml->power && nvml->reasons;
        if (all && init() == NVML_FINE) {
            if (by_uuid(gpu_uuid, &nvml->device) == NVML_FINE)
                return nvml;
            nvml->shutdown();
        }
        dlclose(nvml->library);
    }
    free(nvml);
    return NULL;
}

void nvml_close(struct nvml *nvml)
{
    if (!nvml)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    free(nvml);
}

void nvml_sample(struct nvml *nvml, struct nvml_load *load)
{
    unsigned mhz = 0, milliwatts = 0;
    unsigned long long reasons = 0;
    if (!nvml || nvml->clock(nvml->device, CLOCK_SM, &mhz) != NVML_FINE ||
        nvml->power(nvml->device, &milliwatts) != NVML_FINE || nvml->reasons(nvml->device, &reasons) != NVML_FINE)
        return;
    load->sm_mhz_least = load->samples == 0 || mhz < load->sm_mhz_least ? mhz : load->sm_mhz_least;
    load->watts_most = fmax(load->watts_most, 1e-3 * milliwatts);
    load->sm_mhz += mhz;
    load->watts += 1e-3 * milliwatts;
    load->throttle |= reasons;
    load->samples++;
}

double nvml_mean_mhz(const struct nvml_load *load)
{
    return load->samples != 0 ? load->sm_mhz / load->samples : (double)NAN;
}

double nvml_mean_watts(const struct nvml_load *load)
{
    return load->samples != 0 ? load->watts / load->samples : (double)NAN;
}
