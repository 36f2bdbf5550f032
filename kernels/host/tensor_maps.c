#include <errno.h>
#include <string.h>

#include "kernels/host/internal.h"

_Static_assert(sizeof(CUtensorMap) == MAP_BYTES, "cuda.h");

/* Elements, keys, pages; what is past the last page is zeros. */
static CUresult encode(const struct mla_kernels *k, const struct map_entry *key, uint32_t box_bytes, uint32_t box_keys,
                       CUtensorMapSwizzle swizzle, unsigned char *to)
{
    /* Aligned by hand: sanitizers do not honour an alignment of 128 on the stack. */
    unsigned char space[sizeof(CUtensorMap) + _Alignof(CUtensorMap)];
    CUtensorMap *map = (CUtensorMap *)(void *)(space + (-(uintptr_t)space & (_Alignof(CUtensorMap) - 1)));
    const cuuint64_t sizes[3] = {MLA_ABI_QK_DIM, MLA_ABI_PAGE_TOKENS, key->num_pages};
    const cuuint64_t strides[2] = {key->row_stride, key->page_stride};
    const cuuint32_t box[3] = {box_bytes, box_keys, 1};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUresult result = k->driver->cuTensorMapEncodeTiled(
        map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, (void *)(uintptr_t)key->kv, sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS)
        memcpy(to, map, sizeof *map);
    return result;
}

static struct map_entry *entry_of(struct map_cache *cache, const struct map_entry *key)
{
    uint64_t h = (key->kv ^ key->page_stride << 32 ^ (uint64_t)key->row_stride << 48 ^ key->num_pages) *
                 UINT64_C(0x9e3779b97f4a7c15);
    return &cache->entries[h >> 32 & (MAP_CACHE_ENTRIES - 1)];
}

int kernels_tensor_maps(struct mla_kernels *k, const struct mla_abi_job *job, uint64_t absent, void *to)
{
    struct map_entry made = {.kv = job->num_pages != 0 ? job->kv : absent,
                             .page_stride = job->page_stride,
                             .row_stride = job->row_stride,
                             .num_pages = job->num_pages != 0 ? job->num_pages : 1};
    struct map_entry *entry = entry_of(&k->maps, &made);
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&k->maps.lock);
    bool found = entry->kv == made.kv && entry->page_stride == made.page_stride &&
                 entry->row_stride == made.row_stride && entry->num_pages == made.num_pages;
    if (!found) {
        result = encode(k, &made, 128, MLA_ABI_PAGE_TOKENS, CU_TENSOR_MAP_SWIZZLE_128B, made.maps);
        if (result == CUDA_SUCCESS)
            result = encode(k, &made, 64, MLA_ABI_PAGE_TOKENS / 2, CU_TENSOR_MAP_SWIZZLE_64B, made.maps + MAP_BYTES);
        if (result == CUDA_SUCCESS)
            *entry = made;
    }
    if (result == CUDA_SUCCESS)
        memcpy(to, entry->maps, sizeof entry->maps);
    pthread_mutex_unlock(&k->maps.lock);
    return result == CUDA_SUCCESS ? 0 : -EINVAL;
}
