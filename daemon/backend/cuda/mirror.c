/* Copies for the loop from pinned memory, where kernels would read it over the bus at every launch, to device memory.
 * They are on a stream that no launch waits for. There is one at a time, so it has ended when that stream has nothing:
 * a call to begin it, and none but that question until it has ended. */
#include "daemon/backend/cuda/gpu.h"

CUresult cu_mirror_open(struct backend *be, const char **call)
{
    *call = "cuStreamCreate";
    CUresult r = be->cu.cuStreamCreate(&be->mirrors, CU_STREAM_NON_BLOCKING);
    if (r != CUDA_SUCCESS)
        return r;
    *call = "cuMemAlloc";
    r = be->cu.cuMemAlloc(&be->mirror_memory, CU_MIRROR_BYTES);
    if (r == CUDA_SUCCESS)
        cu_device_arena_init(&be->device_arena, be->mirror_memory);
    return r;
}

void cu_mirror_close(struct backend *be)
{
    if (be->mirrors && !be->lost) /* an exit that nobody waits for any longer leaves one under way */
        cu_ok(be, be->cu.cuStreamSynchronize(be->mirrors), "cuStreamSynchronize");
    if (be->mirror_memory && !be->lost)
        cu_ok(be, be->cu.cuMemFree(be->mirror_memory), "cuMemFree");
    if (be->mirrors && !be->lost)
        cu_ok(be, be->cu.cuStreamDestroy(be->mirrors), "cuStreamDestroy");
}

/* A call that fails has begun nothing. */
void cu_mirror_begin(struct backend *be, struct be_request *request)
{
    struct mla_error error = {.code = MLA_OK};
    if (be->mirroring) {
        mla_error_set(&error, MLA_BUSY, NULL, "another copy is under way");
    } else {
        CUresult r =
            be->cu.cuMemcpyHtoDAsync(request->mirror.to, request->mirror.from, request->mirror.bytes, be->mirrors);
        if (r == CUDA_SUCCESS) {
            be->mirroring = request;
            return;
        }
        cu_refuse(be, &error, r, "cuMemcpyHtoDAsync", MLA_INTERNAL, NULL, "the copy does not begin");
    }
    if (!be->lost)
        be_port_done(&be->port, request, &error);
}

void cu_mirror_look(struct backend *be)
{
    CUresult r = be->mirroring && !be->lost ? be->cu.cuStreamQuery(be->mirrors) : CUDA_ERROR_NOT_READY;
    if (r == CUDA_ERROR_NOT_READY || !cu_call_ok(be, r, "cuStreamQuery"))
        return;
    struct be_request *request = be->mirroring;
    be->mirroring = NULL;
    be_port_done(&be->port, request, NULL);
}

bool cu_mirror_has(const struct backend *be, uint64_t address)
{
    return address - be->mirror_memory < CU_MIRROR_BYTES;
}
