#include "deploy/quickstart/memory.h"

#include <stdio.h>

static int create(uint64_t bytes, struct shared *memory)
{
    memory->device = 0;
    if (mla_memory_create(bytes, 0, &memory->host) == MLA_OK)
        return 0;
    perror("mla_memory_create");
    return -1;
}

static enum mla_status share(struct mla_client *client, const struct shared *memory, enum mla_access access,
                             const char *label, uint64_t timeout_us, mla_region_id *region)
{
    return mla_memory_register(client, &memory->host, access, label, timeout_us, region);
}

static int same(const struct shared *memory)
{
    (void)memory;
    return 0;
}

static void drop(struct shared *memory)
{
    if (memory->host.addr != NULL)
        mla_memory_free(&memory->host);
}

const struct memory memory_memfd = {
    .name = "memfd", .accuracy = 2e-5, .create = create, .share = share, .push = same, .pull = same, .drop = drop};
