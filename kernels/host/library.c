#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/host/internal.h"
#include "kernels/sm90/launch.h"

#define RESIDENT_UNITS_MAX 65536u

struct opening {
    struct mla_kernels *k;
    char directory[PATH_MAX];
    char *why;
    size_t why_bytes;
};

static int driver_refuses(const struct opening *o, const char *call, CUresult result)
{
    snprintf(o->why, o->why_bytes, "%s: %s", call, cuda_driver_error(o->k->driver, result));
    return -EIO;
}

static void format_uuid(const CUuuid *uuid, char *out, size_t out_bytes)
{
    size_t at = (size_t)snprintf(out, out_bytes, "GPU-");
    for (size_t i = 0; i < sizeof uuid->bytes && at < out_bytes; i++) {
        const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += (size_t)snprintf(out + at, out_bytes - at, "%s%02x", dash, (unsigned char)uuid->bytes[i]);
    }
}

/* What the device is; its number of SMs and most shared memory per CTA. */
static int ask_device(const struct opening *o, int *shared_bytes)
{
    const struct cuda_driver *d = o->k->driver;
    struct mla_kernels_facts *facts = &o->k->facts;
    CUdevice device;
    CUuuid uuid;
    int major;
    int minor;
    int sms;
    CUresult result = d->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetAttribute(shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetName(facts->device_name, sizeof facts->device_name, device);
    if (result == CUDA_SUCCESS)
        result = d->cuDeviceGetUuid(&uuid, device);
    if (result != CUDA_SUCCESS)
        return driver_refuses(o, "asking for the current context's device", result);
    format_uuid(&uuid, facts->gpu_uuid, sizeof facts->gpu_uuid);
    facts->compute_capability = 10 * major + minor;
    facts->device.sms = (uint32_t)sms;
    return 0;
}

static bool fits(const struct kernels_section *section, int compute_capability, int shared_bytes)
{
    return (int)section->min_compute_capability <= compute_capability &&
           compute_capability <= (int)section->max_compute_capability &&
           section->decode_shared_bytes <= (uint32_t)shared_bytes;
}

/* The next section from *at on that fits. */
static bool choose(const struct opening *o, const struct kernels_manifest *manifest, const char *variant,
                   int shared_bytes, uint32_t *at)
{
    int cc = o->k->facts.compute_capability;
    while (*at < manifest->n_sections) {
        const struct kernels_section *section = &manifest->sections[(*at)++];
        if (variant ? strcmp(variant, section->name) != 0 : section->by_name_only)
            continue;
        if (fits(section, cc, shared_bytes)) {
            o->k->section = *section;
            memcpy(o->k->facts.variant, section->name, sizeof section->name);
            return true;
        }
    }
    return false;
}

static int lacks(const struct opening *o, const char *path, const char *entry, CUresult result)
{
    snprintf(o->why, o->why_bytes, "%s of [%s] has no %s: %s", path, o->k->section.name, entry,
             cuda_driver_error(o->k->driver, result));
    return -EIO;
}

static int load(const struct opening *o, const char *file, const char *entry, CUmodule *module, CUfunction *function,
                char *path, size_t path_bytes)
{
    char log[1024] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    size_t bytes;
    if ((size_t)snprintf(path, path_bytes, "%s/%s", o->directory, file) >= path_bytes) {
        snprintf(o->why, o->why_bytes, "the name of %s in %s is too long", file, o->directory);
        return -EINVAL;
    }
    char *image = kernels_read_file(path, &bytes);
    if (!image) {
        snprintf(o->why, o->why_bytes, "%s of [%s]: %s", path, o->k->section.name, strerror(errno));
        return -ENOENT;
    }
    CUresult result = o->k->driver->cuModuleLoadDataEx(module, image, 2, options, values);
    free(image);
    if (result != CUDA_SUCCESS) {
        snprintf(o->why, o->why_bytes, "%s of [%s] does not load: %s %.300s", path, o->k->section.name,
                 cuda_driver_error(o->k->driver, result), log);
        return -EIO;
    }
    result = o->k->driver->cuModuleGetFunction(function, *module, entry);
    return result == CUDA_SUCCESS ? 0 : lacks(o, path, entry, result);
}

/* Units that run at the same time; 0 where a cluster does not fit. */
static CUresult ask_occupancy(const struct mla_kernels *k, uint64_t *units)
{
    const struct kernels_section *s = &k->section;
    int n = 0;
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                 .value.clusterDim = {.x = s->ctas_per_unit, .y = 1, .z = 1}};
    CUlaunchConfig config = {.gridDimX = s->ctas_per_unit * k->facts.device.sms,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = s->decode_threads,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .sharedMemBytes = s->decode_shared_bytes,
                             .attrs = &cluster,
                             .numAttrs = 1};
    CUresult result;
    if (kernels_have_units(k) && s->ctas_per_unit > 1) {
        result = k->driver->cuOccupancyMaxActiveClusters(&n, k->decode, &config);
        *units = (uint64_t)n;
        return result;
    }
    result = k->driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, k->decode, (int)s->decode_threads,
                                                                    s->decode_shared_bytes);
    *units = (uint64_t)n * k->facts.device.sms / s->ctas_per_unit;
    return result;
}

static CUresult ask_reduce_occupancy(struct mla_kernels *k)
{
    int n = 0;
    CUresult result =
        k->driver->cuOccupancyMaxActiveBlocksPerMultiprocessor(&n, k->reduce, (int)k->section.reduce_threads, 0);
    k->reduce_ctas = n > 0 ? (uint32_t)n * k->facts.device.sms : 1;
    return result;
}

/* Shared memory and how many units run at the same time. */
static int fit_device(const struct opening *o)
{
    const struct cuda_driver *d = o->k->driver;
    const struct kernels_section *s = &o->k->section;
    struct plan_device *device = &o->k->facts.device;
    uint64_t units = 0;
    CUresult result = d->cuFuncSetAttribute(o->k->decode, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            (int)s->decode_shared_bytes);
    if (result != CUDA_SUCCESS)
        return driver_refuses(o, "setting the kernel's shared memory", result);
    result = ask_occupancy(o->k, &units);
    if (result == CUDA_SUCCESS)
        result = ask_reduce_occupancy(o->k);
    if (result != CUDA_SUCCESS)
        return driver_refuses(o, "asking for the kernels' occupancy", result);
    uint32_t of_tile = kernels_units_of_rows(o->k, s->tile_rows);
    if (units < of_tile) {
        snprintf(o->why, o->why_bytes, "[%s] needs %u units for a tile, %s runs %u at a time", s->name, of_tile,
                 o->k->facts.device_name, (unsigned)units);
        return -ENOTSUP;
    }
    device->resident_units = units < RESIDENT_UNITS_MAX ? (uint32_t)units : RESIDENT_UNITS_MAX;
    device->ctas_per_unit = s->ctas_per_unit;
    device->rows_per_unit = s->rows_per_unit;
    device->min_pages_per_split = s->min_pages_per_split;
    device->max_pages_per_item = s->max_pages_per_item;
    o->k->facts.costs = s->costs;
    o->k->facts.tile_rows = s->tile_rows;
    o->k->facts.scratch = kernels_have_units(o->k);
    return 0;
}

static void unload(struct mla_kernels *k)
{
    CUmodule *modules[] = {&k->prepare_module, &k->decode_module, &k->reduce_module};
    for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++) {
        if (*modules[i])
            k->driver->cuModuleUnload(*modules[i]);
        *modules[i] = NULL;
    }
}

/* Of the prepare kernel's module. */
static int find_prepare(const struct opening *o, const char *path, const char *suffix, CUfunction *function)
{
    struct mla_kernels *k = o->k;
    char entry[sizeof k->section.prepare_entry + 16];
    snprintf(entry, sizeof entry, "%s_%s", k->section.prepare_entry, suffix);
    CUresult result = k->driver->cuModuleGetFunction(function, k->prepare_module, entry);
    return result == CUDA_SUCCESS ? 0 : lacks(o, path, entry, result);
}

static int open_section(const struct opening *o)
{
    struct mla_kernels *k = o->k;
    const struct kernels_section *s = &k->section;
    char path[PATH_MAX + 16];
    int rc = load(o, s->reduce_file, s->reduce_entry, &k->reduce_module, &k->reduce, path, sizeof path);
    if (rc == 0 && kernels_have_units(k))
        rc = load(o, s->prepare_file, s->prepare_entry, &k->prepare_module, &k->prepare, path, sizeof path);
    if (rc == 0 && kernels_have_units(k))
        rc = find_prepare(o, path, "inline", &k->prepare_inline);
    if (rc == 0 && kernels_have_units(k))
        rc = find_prepare(o, path, "fetch", &k->prepare_fetch);
    if (rc == 0)
        rc = load(o, s->decode_file, s->decode_entry, &k->decode_module, &k->decode, k->facts.file,
                  sizeof k->facts.file);
    if (rc == 0)
        rc = fit_device(o);
    if (rc != 0)
        unload(k);
    return rc;
}

static struct mla_kernels *new_kernels(const struct cuda_driver *driver, bool programmatic)
{
    struct mla_kernels *k = calloc(1, sizeof *k);
    if (!k)
        return NULL;
    k->driver = driver;
    k->programmatic = programmatic;
    pthread_mutex_init(&k->maps.lock, NULL);
    return k;
}

static void free_kernels(struct mla_kernels *k)
{
    unload(k);
    pthread_mutex_destroy(&k->maps.lock);
    free(k);
}

static int open_kind(const struct opening *of, const struct kernels_section *section, struct mla_kernels **out)
{
    struct opening o = *of;
    o.k = new_kernels(of->k->driver, of->k->programmatic);
    if (!o.k) {
        snprintf(o.why, o.why_bytes, "no memory");
        return -ENOMEM;
    }
    o.k->section = *section;
    o.k->facts = of->k->facts;
    memcpy(o.k->facts.variant, section->name, sizeof section->name);
    int rc = open_section(&o);
    if (rc != 0) {
        free_kernels(o.k);
        return rc;
    }
    *out = o.k;
    return 0;
}

/* The section's few_rows, and theirs. Those that the device cannot run leave their launches to the others. */
static int open_few_rows(const struct opening *of, const struct kernels_manifest *manifest, int shared_bytes)
{
    const struct kernels_section *section = &of->k->section;
    struct mla_kernels **to = &of->k->few_rows;
    while (section->few_rows[0] != '\0') {
        section = kernels_manifest_find(manifest, section->few_rows);
        int rc = fits(section, of->k->facts.compute_capability, shared_bytes) ? open_kind(of, section, to) : -ENOTSUP;
        if (rc == 0)
            to = &(*to)->few_rows;
        else if (rc != -ENOTSUP)
            return rc;
    }
    return 0;
}

static int open_in(struct opening *o, const struct mla_kernels_options *options)
{
    struct kernels_manifest manifest;
    const char *variant = options ? options->variant : NULL;
    char path[PATH_MAX + 16];
    int shared_bytes = 0;
    uint32_t at = 0;
    int rc = kernels_find_directory(options, o->directory, sizeof o->directory, o->why, o->why_bytes);
    if (rc != 0)
        return rc;
    snprintf(path, sizeof path, "%s/%s", o->directory, KERNELS_MANIFEST_NAME);
    rc = kernels_manifest_read(path, &manifest, o->why, o->why_bytes);
    if (rc == 0)
        rc = ask_device(o, &shared_bytes);
    if (rc != 0)
        return rc;
    int cc = o->k->facts.compute_capability;
    snprintf(o->why, o->why_bytes, "%s/%s: %s%s fits %s (compute capability %d.%d)", o->directory,
             KERNELS_MANIFEST_NAME, variant ? "no section " : "no section", variant ? variant : "",
             o->k->facts.device_name, cc / 10, cc % 10);
    /* A section whose units do not fit (clusters, under MPS or MIG) leaves the device to the next one. */
    rc = -ENOTSUP;
    while (rc == -ENOTSUP && choose(o, &manifest, variant, shared_bytes, &at))
        rc = open_section(o);
    return rc != 0 ? rc : open_few_rows(o, &manifest, shared_bytes);
}

int mla_kernels_open(const struct cuda_driver *driver, const struct mla_kernels_options *options,
                     struct mla_kernels **out, char *why, size_t why_bytes)
{
    *out = NULL;
    if (options && options->size < sizeof *options) {
        snprintf(why, why_bytes, "options of %zu bytes are not of this version", options->size);
        return -EINVAL;
    }
    struct opening o = {.k = new_kernels(driver, options && options->programmatic), .why = why, .why_bytes = why_bytes};
    if (!o.k) {
        snprintf(why, why_bytes, "no memory");
        return -ENOMEM;
    }
    int rc = open_in(&o, options);
    if (rc != 0) {
        mla_kernels_close(o.k);
        return rc;
    }
    *out = o.k;
    return 0;
}

void mla_kernels_close(struct mla_kernels *kernels)
{
    while (kernels) {
        struct mla_kernels *few_rows = kernels->few_rows;
        free_kernels(kernels);
        kernels = few_rows;
    }
}

const struct mla_kernels_facts *mla_kernels_facts(const struct mla_kernels *kernels)
{
    return &kernels->facts;
}
