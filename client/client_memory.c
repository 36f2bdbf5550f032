/* Memory that both sides map. */
#include "client/client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/util/cleanup.h"

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
