#include "daemon/backend/cpu/memory.h"

#include <sys/mman.h>

#include "daemon/backend/memfd.h"

int cpu_map(struct be_region *region, struct mla_error *err)
{
    if (region->kind != MLA_REGION_MEMFD)
        return mla_error_set(err, MLA_UNSUPPORTED, "kind", "the CPU backend maps memfds only");
    void *host;
    int rc = be_memfd_map(region, &host, err);
    if (rc != 0)
        return rc;
    region->host = host;
    region->address = (uint64_t)(uintptr_t)host;
    region->impl = host;
    return 0;
}

void cpu_unmap(struct be_region *region)
{
    if (!region->impl)
        return;
    munmap(region->impl, region->size);
    region->impl = NULL;
    region->host = NULL;
    region->address = 0;
}
