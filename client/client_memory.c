/* Memory that both sides map, and regions. */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/util/cleanup.h"

/* ---- memory of this process ---- */

static enum mla_status from_errno(void)
{
    return errno == ENOMEM ? MLA_OUT_OF_MEMORY : MLA_SYSTEM_ERROR;
}

enum mla_status mla_memory_create(uint64_t size, uint32_t flags, struct mla_memory *out)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!out)
        return MLA_INVALID_ARGUMENT;
    *out = (struct mla_memory){.fd = -1};
    if (!size || flags || size > INT64_MAX - page)
        return MLA_INVALID_ARGUMENT;
    size = (size + page - 1) / page * page;
    MLA_AUTO_FD int fd = memfd_create("mla", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return from_errno();
    if (ftruncate(fd, (off_t)size) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return from_errno();
    void *addr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (addr == MAP_FAILED)
        return from_errno();
    *out = (struct mla_memory){.addr = addr, .size = size, .fd = mla_steal_fd(&fd)};
    return MLA_OK;
}

void mla_memory_free(struct mla_memory *memory)
{
    if (!memory)
        return;
    if (memory->addr)
        munmap(memory->addr, memory->size);
    if (memory->addr && memory->fd >= 0)
        close(memory->fd);
    *memory = (struct mla_memory){.fd = -1};
}

/* ---- regions ---- */

enum mla_status mla_region_register(struct mla_client *client, const struct mla_region_desc *desc, uint64_t timeout_us,
                                    mla_region_id *out)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_region_desc d;
    mla_region_desc_init(&d);
    if (!out || !desc || mlac_copy_in(&d, sizeof(d), desc, MLAC_LEAST(struct mla_region_desc, label)))
        return mlac_fail(client, MLA_INVALID_ARGUMENT, desc && out ? "size" : NULL,
                         "desc or out is missing or too short");
    if (d.kind != MLA_REGION_MEMFD)
        return mlac_fail(client, MLA_UNSUPPORTED, "kind", "this library shares memfds only");
    if (d.fd < 0)
        return mlac_fail(client, MLA_NO_DESCRIPTORS, "fd", "a memfd is needed");

    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_REGISTER_REGION);
    msg.register_region.kind = d.kind;
    msg.register_region.access = d.access;
    msg.register_region.size = d.bytes;
    msg.register_region.offset = d.offset;
    msg.register_region.label = d.label;
    const struct mla_message *reply;
    status = mlac_call(client, &msg, d.fd, 0, timeout_us, &reply);
    if (status == MLA_OK)
        *out = reply->register_region_reply.region;
    return status;
}

enum mla_status mla_memory_register(struct mla_client *client, const struct mla_memory *memory, enum mla_access access,
                                    const char *label, uint64_t timeout_us, mla_region_id *out)
{
    struct mla_region_desc d;
    mla_region_desc_init(&d);
    if (memory) {
        d.fd = memory->fd;
        d.bytes = memory->size;
    }
    d.access = access;
    d.label = label;
    return mla_region_register(client, &d, timeout_us, out);
}

enum mla_status mla_region_unregister(struct mla_client *client, mla_region_id region, uint64_t timeout_us)
{
    enum mla_status status = mlac_begin(client);
    if (status != MLA_OK)
        return status;
    struct mla_message msg;
    mla_message_init(&msg, MLA_MSG_UNREGISTER_REGION);
    msg.unregister_region.region = region;
    return mlac_call(client, &msg, -1, region, timeout_us, NULL);
}
