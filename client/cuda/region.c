/* Regions from device pointers. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/memory.h"

#include "daemon/util/list.h"

/* Freed by done(): memory of allocations that can be exported again is registered again after a reconnect, and then its
 * descriptors are asked for anew. An IPC handle is good as long as its allocation. */
struct target {
    struct mla_region_desc desc;
    struct mlacu_memory memory;
    char gpu[48];
};

static void done(void *memory)
{
    mlacu_memory_free(memory);
    free(list_entry(memory, struct target, memory));
}

/* Everything about the memory, to be ended by done(); NULL: the client's last error is set. */
static struct target *prepare(struct mla_client *client, uint64_t address, uint64_t bytes)
{
    const struct cuda_driver *cu = mlacu_ready();
    if (!cu) {
        mlacu_tell(client);
        return NULL;
    }
    struct target *t = calloc(1, sizeof(*t));
    if (!t) {
        mlacu_fail(MLA_OUT_OF_MEMORY, NULL, "no memory for a region");
        mlacu_tell(client);
        return NULL;
    }
    enum mla_status status = mlacu_memory_find(cu, address, bytes, &t->memory);
    if (status == MLA_OK)
        status = mlacu_memory_gpu(cu, address, t->gpu);
    if (status == MLA_OK && strcmp(t->gpu, mla_server(client)->gpu_uuid) != 0)
        status = mlacu_fail(MLA_WRONG_DEVICE, "address",
                            "the memory lives on %s and the daemon serves %s; allocate it there, or talk to that GPU's "
                            "daemon",
                            t->gpu, mla_server(client)->gpu_uuid);
    if (status != MLA_OK) {
        mlacu_tell(client);
        done(&t->memory);
        return NULL;
    }
    mla_region_desc_init(&t->desc);
    t->desc.kind = t->memory.kind;
    t->desc.bytes = bytes;
    t->desc.gpu_uuid = t->gpu;
    t->desc.open_user = &t->memory;
    t->desc.open_done = done;
    if (t->memory.kind == MLA_REGION_CUDA_IPC) {
        t->desc.offset = t->memory.offset;
        t->desc.ipc_handle = (const uint8_t *)&t->memory.handle;
        t->desc.block_bytes = t->memory.block_bytes;
    } else {
        t->desc.parts = t->memory.parts;
        t->desc.n_parts = t->memory.n_parts;
        t->desc.open_part = mlacu_memory_open;
    }
    return t;
}

/* What libmla calls a system error is, when a part could not be opened, an error of the driver. */
static enum mla_status finish(struct mla_client *client, enum mla_status status)
{
    if (status == MLA_SYSTEM_ERROR && strcmp(mla_last_error(client)->field, "parts") == 0)
        return mlacu_tell(client);
    return status;
}

enum mla_status mla_cuda_region_register(struct mla_client *client, uint64_t address, uint64_t bytes,
                                         enum mla_access access, const char *label, uint64_t timeout_us,
                                         mla_region_id *out)
{
    if (!client || !out) {
        mlacu_fail(MLA_INVALID_ARGUMENT, client ? "out" : "client", "an argument is missing");
        return mlacu_tell(client);
    }
    struct target *t = prepare(client, address, bytes);
    if (!t)
        return mla_last_error(client)->status;
    t->desc.access = access;
    t->desc.label = label;
    return finish(client, mla_region_register(client, &t->desc, timeout_us, out));
}

enum mla_status mla_cuda_region_resume(struct mla_client *client, mla_region_id region, uint64_t address,
                                       uint64_t bytes, uint64_t timeout_us)
{
    if (!client) {
        mlacu_fail(MLA_INVALID_ARGUMENT, "client", "an argument is missing");
        return MLA_INVALID_ARGUMENT;
    }
    struct target *t = prepare(client, address, bytes);
    if (!t)
        return mla_last_error(client)->status;
    return finish(client, mla_region_resume(client, region, &t->desc, timeout_us));
}
