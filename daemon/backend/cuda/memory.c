#include <stdlib.h>

#include "daemon/backend/cuda/gpu.h"

int cu_map(struct backend *be, struct be_region *region, struct mla_error *err)
{
    struct cu_mapping *mapping = calloc(1, sizeof *mapping);
    if (!mapping)
        return mla_error_set(err, MLA_OUT_OF_MEMORY, NULL, "no memory for the region");
    mapping->region = region;
    mapping->kind = region->kind;
    int rc;
    switch (region->kind) {
    case MLA_REGION_MEMFD:
        rc = cu_sync_map(be, region, mapping, err);
        break;
    case MLA_REGION_CUDA_IPC:
        rc = cu_ipc_map(be, region, mapping, err);
        break;
    case MLA_REGION_CUDA_VMM:
        rc = cu_vmm_map(be, region, mapping, err);
        break;
    default:
        rc = mla_error_set(err, MLA_UNSUPPORTED, "kind", "regions are CUDA_IPC, CUDA_VMM or, for sync pages, MEMFD");
    }
    if (rc != 0) {
        region->address = 0;
        region->host = NULL;
        free(mapping);
        return rc;
    }
    list_push_back(&be->mappings, &mapping->node);
    region->impl = mapping;
    return 0;
}

static int unmap(struct backend *be, struct cu_mapping *mapping, struct mla_error *err)
{
    list_del(&mapping->node);
    int rc = mapping->kind == MLA_REGION_CUDA_IPC   ? cu_ipc_unmap(be, mapping, err)
             : mapping->kind == MLA_REGION_CUDA_VMM ? cu_vmm_unmap(be, mapping, err)
                                                    : cu_sync_unmap(be, mapping, err);
    free(mapping);
    return rc;
}

int cu_unmap(struct backend *be, struct be_region *region, struct mla_error *err)
{
    struct cu_mapping *mapping = region->impl;
    if (!mapping)
        return 0;
    int rc = unmap(be, mapping, err);
    region->impl = NULL;
    region->host = NULL;
    region->address = 0;
    return rc;
}

void cu_unmap_all(struct backend *be)
{
    /* Regions may be gone; only what is held for them is looked at. */
    struct mla_error err;
    while (!list_empty(&be->mappings))
        unmap(be, list_entry(list_first(&be->mappings), struct cu_mapping, node), &err);
}
