/* Regions from device pointers. */
#include "client/cuda/memory.h"

struct target {
    struct mla_region_desc desc;
    struct mlacu_memory memory;
    char gpu[48];
};

/* Everything about the memory; the client's last error is set otherwise. */
static enum mla_status prepare(struct mla_client *client, uint64_t address, uint64_t bytes, struct target *t)
{
    const struct cuda_driver *cu = mlacu_ready();
    if (!cu)
        return mlacu_tell(client);
    enum mla_status status = mlacu_memory_find(cu, address, bytes, &t->memory);
    if (status == MLA_OK)
        status = mlacu_memory_gpu(cu, address, t->gpu);
    if (status == MLA_OK && strcmp(t->gpu, mla_server(client)->gpu_uuid) != 0)
        status = mlacu_fail(MLA_WRONG_DEVICE, "address",
                            "the memory lives on %s and the daemon serves %s; allocate it there, or talk to that GPU's "
                            "daemon",
                            t->gpu, mla_server(client)->gpu_uuid);
    if (status != MLA_OK) {
        mlacu_memory_free(&t->memory);
        return mlacu_tell(client);
    }
    mla_region_desc_init(&t->desc);
    t->desc.kind = t->memory.kind;
    t->desc.bytes = bytes;
    t->desc.gpu_uuid = t->gpu;
    if (t->memory.kind == MLA_REGION_CUDA_IPC) {
        t->desc.offset = t->memory.offset;
        t->desc.ipc_handle = (const uint8_t *)&t->memory.handle;
        t->desc.block_bytes = t->memory.block_bytes;
    } else {
        t->desc.parts = t->memory.parts;
        t->desc.n_parts = t->memory.n_parts;
        t->desc.open_part = mlacu_memory_open;
        t->desc.open_user = &t->memory;
    }
    return MLA_OK;
}

/* What libmla calls a system error is, when a part could not be opened, an error of the driver. */
static enum mla_status finish(struct mla_client *client, struct target *t, enum mla_status status)
{
    mlacu_memory_free(&t->memory);
    if (status == MLA_SYSTEM_ERROR && strcmp(mla_last_error(client)->field, "parts") == 0)
        return mlacu_tell(client);
    return status;
}

enum mla_status mla_cuda_region_register(struct mla_client *client, uint64_t address, uint64_t bytes,
                                         enum mla_access access, const char *label, uint64_t timeout_us,
                                         mla_region_id *out)
{
    struct target t;
    if (!client || !out) {
        mlacu_fail(MLA_INVALID_ARGUMENT, client ? "out" : "client", "an argument is missing");
        return mlacu_tell(client);
    }
    enum mla_status status = prepare(client, address, bytes, &t);
    if (status != MLA_OK)
        return status;
    t.desc.access = access;
    t.desc.label = label;
    return finish(client, &t, mla_region_register(client, &t.desc, timeout_us, out));
}

enum mla_status mla_cuda_region_resume(struct mla_client *client, mla_region_id region, uint64_t address,
                                       uint64_t bytes, uint64_t timeout_us)
{
    struct target t;
    if (!client) {
        mlacu_fail(MLA_INVALID_ARGUMENT, "client", "an argument is missing");
        return MLA_INVALID_ARGUMENT;
    }
    enum mla_status status = prepare(client, address, bytes, &t);
    if (status != MLA_OK)
        return status;
    return finish(client, &t, mla_region_resume(client, region, &t.desc, timeout_us));
}
