/* Clock, power and what holds the clock back, from libnvidia-ml.so.1, opened at run time. Where it is not there, or
 * does not tell, a load stays without samples.
 */
#ifndef MLA_TESTS_BENCH_GPU_NVML_H
#define MLA_TESTS_BENCH_GPU_NVML_H

#include <stdbool.h>
#include <stdint.h>

struct nvml;

/* Samples summed up. */
struct nvml_load {
    unsigned samples;
    double sm_mhz, sm_mhz_least; /* sum, least */
    double watts, watts_most;
    uint64_t throttle; /* reasons of all samples, or'ed: 0x4 is the power cap, 0x1 idle */
};

/* NULL: not here. */
struct nvml *nvml_open(const char *gpu_uuid);
void nvml_close(struct nvml *nvml);

/* Adds a sample; nothing for NULL. */
void nvml_sample(struct nvml *nvml, struct nvml_load *load);

/* NaN without samples. */
double nvml_mean_mhz(const struct nvml_load *load);
double nvml_mean_watts(const struct nvml_load *load);

#endif
