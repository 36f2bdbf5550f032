#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "daemon/backend/cuda/gpu.h"

static void uuid_text(const CUuuid *uuid, char out[48])
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

int cu_device_attribute(struct backend *be, CUdevice_attribute attribute)
{
    int value = 0;
    return cu_ok(be, be->cu.cuDeviceGetAttribute(&value, attribute, be->device), "cuDeviceGetAttribute") ? value : 0;
}

/* Index, or the UUID's text, with "MIG-" for an instance as with "GPU-". */
static bool selects(const char *selector, int index, const char *uuid)
{
    char *end;
    long number = strtol(selector, &end, 10);
    if (*selector != '\0' && *end == '\0')
        return number == index;
    if (strncasecmp(selector, "MIG-", 4) == 0)
        return strcasecmp(selector + 4, uuid + 4) == 0;
    return strcasecmp(selector, uuid) == 0;
}

static int no_such_gpu(struct backend *be, int count, struct mla_error *err)
{
    char list[MLA_MAX_TEXT_BYTES] = "";
    size_t used = 0;
    for (int i = 0; i < count && used + 64 < sizeof list; i++) {
        CUdevice device;
        CUuuid uuid;
        char text[48];
        if (be->cu.cuDeviceGet(&device, i) != CUDA_SUCCESS || be->cu.cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS)
            continue;
        uuid_text(&uuid, text);
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%d = %s", used == 0 ? "" : ", ", i, text);
    }
    return mla_error_set(err, MLA_WRONG_DEVICE, "gpu", "there is no GPU '%s' here; there are: %s", be->options.gpu,
                         list);
}

int cu_device_choose(struct backend *be, struct mla_error *err)
{
    int count = 0;
    CUresult r = be->cu.cuDeviceGetCount(&count);
    if (r != CUDA_SUCCESS || count == 0)
        return cu_refuse(be, err, r == CUDA_SUCCESS ? CUDA_ERROR_NO_DEVICE : r, "cuDeviceGetCount", MLA_UNSUPPORTED,
                         "gpu", "this machine shows no GPU");
    for (int i = 0; i < count; i++) {
        CUuuid uuid;
        char text[48];
        r = be->cu.cuDeviceGet(&be->device, i);
        if (r == CUDA_SUCCESS)
            r = be->cu.cuDeviceGetUuid(&uuid, be->device);
        if (r != CUDA_SUCCESS)
            return cu_refuse(be, err, r, "cuDeviceGetUuid", MLA_UNSUPPORTED, "gpu", "a GPU does not say who it is");
        uuid_text(&uuid, text);
        if (selects(be->options.gpu, i, text))
            return 0;
    }
    return no_such_gpu(be, count, err);
}

/* Contexts of a device behind an MPS server share one address translation and one fate. The attribute says so; drivers
 * that do not know it are asked the way they decide themselves: is a control daemon listening? */
static bool behind_mps(struct backend *be)
{
    int enabled = 0;
    if (be->cu.cuDeviceGetAttribute(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, be->device) == CUDA_SUCCESS)
        return enabled != 0;
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[4096];
    snprintf(path, sizeof path, "%s/control", directory && *directory ? directory : "/tmp/nvidia-mps");
    return access(path, F_OK) == 0;
}

void cu_device_facts(struct backend *be)
{
    const struct mla_kernels_facts *k = mla_kernels_facts(be->kernels);
    struct be_facts *f = &be->facts;
    f->name = "cuda";
    snprintf(f->gpu_uuid, sizeof f->gpu_uuid, "%s", k->gpu_uuid);
    snprintf(f->device_name, sizeof f->device_name, "%s", k->device_name);
    f->isolation = behind_mps(be) ? "shared" : "isolated";
    f->device = k->device;
    f->costs = be->options.own_costs ? be->options.costs : k->costs;
    f->tile_rows = k->tile_rows;
    f->workspace_bytes = be->options.workspace_bytes;
    f->scratch_bytes = CU_SCRATCH_BYTES;
    f->features = MLA_FEATURE_DECODE | MLA_FEATURE_SYNC | MLA_FEATURE_SUSPEND | MLA_FEATURE_PUBLISH | MLA_FEATURE_STEP;
    if (cu_device_attribute(be, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED))
        f->features |= MLA_FEATURE_CUDA_IPC;
    if (cu_device_attribute(be, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
        cu_device_attribute(be, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        f->features |= MLA_FEATURE_CUDA_VMM;
}
