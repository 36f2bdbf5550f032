/* Regions, sync pages and caches. */
#include "proto/codec_table.h"

#include "proto/mla.pb-c.h"

#define SYNC_BYTES_MAX (1u << 20)
#define SYNC_MULTIPLE  4096u /* the smallest page size; where pages are larger, mapping refuses */

#define T struct mla_region_part
static const struct mla_field region_part_fields[] = {
    MLA_X(offset, 0, .multiple = MLA_ALIGN_BYTES),
    MLA_X(size, MLA_F_REQUIRED, .min = 1),
    MLA_X(allocation_size, 0),
};
#undef T
static int region_part_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_region_part *p = plain;
    if (p->size > UINT64_MAX - p->offset)
        return mla_refuse(err, MLA_OUT_OF_BOUNDS, "size", 0, p->size, UINT64_MAX - p->offset, "and offset pass 2^64");
    if (p->allocation_size > 0 && p->allocation_size < p->offset + p->size)
        return mla_refuse(err, MLA_OUT_OF_BOUNDS, "allocation_size", 0, p->allocation_size, p->offset + p->size,
                          "is less than offset + size");
    return 0;
}
static MLA_BODY_OF(region_part, region_part_check);

#define T struct mla_register_region_request
static const struct mla_field register_region_request_fields[] = {
    MLA_ENUM_X(kind, MLA_F_REQUIRED, MLA_REGION_CUDA_VMM),
    MLA_ENUM_X(access, MLA_F_REQUIRED, MLA_ACCESS_READ_WRITE),
    MLA_X(size, MLA_F_REQUIRED, .min = 1),
    MLA_X(offset, 0, .multiple = MLA_ALIGN_BYTES),
    MLA_TEXT_X(gpu_uuid, MLA_F_ASCII, MLA_MAX_NAME_BYTES),
    MLA_N_X(cuda_ipc, 0, .min = MLA_CUDA_IPC_BYTES, .max = MLA_CUDA_IPC_BYTES),
    MLA_X(block_size, 0),
    MLA_N_X(parts, 0, .sub = &mla_body_region_part, .count_max = MLA_MAX_FDS_PER_FRAME),
    MLA_HAS_X(continues),
    MLA_X(more, 0),
    MLA_TEXT_X(label, 0, MLA_MAX_NAME_BYTES),
};
#undef T

static int ipc_check(const struct mla_register_region_request *r, struct mla_error *err)
{
    if (r->n_cuda_ipc == 0)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "cuda_ipc", 0, 0, MLA_CUDA_IPC_BYTES, "is required of CUDA_IPC");
    if (r->block_size == 0)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "block_size", 0, 0, 0, "is required of CUDA_IPC");
    if (r->offset > r->block_size || r->size > r->block_size - r->offset)
        return mla_refuse(err, MLA_OUT_OF_BOUNDS, "size", 0, r->size, r->block_size, "and offset pass the block's end");
    return 0;
}

static int register_region_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_register_region_request *r = plain;
    const enum mla_status bad = MLA_INVALID_ARGUMENT;

    if (r->size > UINT64_MAX - r->offset)
        return mla_refuse(err, MLA_OUT_OF_BOUNDS, "size", 0, r->size, UINT64_MAX - r->offset, "and offset pass 2^64");
    if (r->kind != MLA_REGION_CUDA_IPC && r->n_cuda_ipc > 0)
        return mla_refuse(err, bad, "cuda_ipc", 0, r->n_cuda_ipc, 0, "belongs to kind CUDA_IPC only");
    if (r->kind != MLA_REGION_CUDA_IPC && r->block_size > 0)
        return mla_refuse(err, bad, "block_size", 0, r->block_size, 0, "belongs to kind CUDA_IPC only");
    if (r->kind != MLA_REGION_CUDA_VMM && r->n_parts > 0)
        return mla_refuse(err, bad, "parts", 0, r->n_parts, 0, "belongs to kind CUDA_VMM only");
    if (r->kind != MLA_REGION_CUDA_VMM && r->has_continues)
        return mla_refuse(err, bad, "continues", 0, r->continues, 0, "belongs to kind CUDA_VMM only");
    if (r->kind != MLA_REGION_CUDA_VMM && r->more)
        return mla_refuse(err, bad, "more", 0, 1, 0, "belongs to kind CUDA_VMM only");
    if (r->kind == MLA_REGION_MEMFD)
        return 0;
    if (r->gpu_uuid[0] == '\0')
        return mla_refuse(err, bad, "gpu_uuid", 0, 0, 0, "is required of CUDA memory");
    if (r->kind == MLA_REGION_CUDA_IPC)
        return ipc_check(r, err);
    if (r->n_parts == 0)
        return mla_refuse(err, bad, "parts", 0, 0, MLA_MAX_FDS_PER_FRAME, "is required of CUDA_VMM");
    return 0;
}
MLA_BODY_OF(register_region_request, register_region_check);

#define T struct mla_register_region_reply
static const struct mla_field register_region_reply_fields[] = {MLA_STATUS_X, MLA_X(region, 0)};
#undef T
MLA_BODY_OF(register_region_reply, NULL);

#define T struct mla_unregister_region_request
static const struct mla_field unregister_region_request_fields[] = {MLA_X(region, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(unregister_region_request, NULL);
MLA_BODY_STATUS_ONLY(unregister_region_reply);

#define T struct mla_suspend_request
static const struct mla_field suspend_request_fields[] = {MLA_X(region, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(suspend_request, NULL);
MLA_BODY_STATUS_ONLY(suspend_reply);

#define T struct mla_resume_request
static const struct mla_field resume_request_fields[] = {
    MLA_X(region, MLA_F_REQUIRED),
    MLA_X(offset, 0, .multiple = MLA_ALIGN_BYTES),
    MLA_N_X(cuda_ipc, 0, .min = MLA_CUDA_IPC_BYTES, .max = MLA_CUDA_IPC_BYTES),
    MLA_X(block_size, 0),
    MLA_N_X(parts, 0, .sub = &mla_body_region_part, .count_max = MLA_MAX_FDS_PER_FRAME),
    MLA_X(more, 0),
};
#undef T
static int resume_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    const struct mla_resume_request *r = plain;
    if (r->n_cuda_ipc > 0 && r->n_parts > 0)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "parts", 0, r->n_parts, 0, "and cuda_ipc exclude each other");
    if (r->more && r->n_parts == 0)
        return mla_refuse(err, MLA_INVALID_ARGUMENT, "more", 0, 1, 0, "needs parts");
    return 0;
}
MLA_BODY_OF(resume_request, resume_check);
MLA_BODY_STATUS_ONLY(resume_reply);

#define T struct mla_register_sync_request
static const struct mla_field register_sync_request_fields[] = {
    MLA_X(size, MLA_F_REQUIRED | MLA_F_CAP, .min = 1, .max = SYNC_BYTES_MAX, .multiple = SYNC_MULTIPLE),
};
#undef T
MLA_BODY_OF(register_sync_request, NULL);

#define T struct mla_register_sync_reply
static const struct mla_field register_sync_reply_fields[] = {MLA_STATUS_X, MLA_X(region, 0)};
#undef T
MLA_BODY_OF(register_sync_reply, NULL);

/* ---- caches ---- */

#define T struct mla_define_cache_request
static const struct mla_field define_cache_request_fields[] = {
    MLA_ENUM_X(layout, MLA_F_REQUIRED, MLA_CACHE_E4M3_512_BF16_64_SCALED),
    MLA_X(region, MLA_F_REQUIRED),
    MLA_X(offset, 0, .multiple = MLA_ALIGN_BYTES),
    MLA_N_X(plane_offset, 0, .multiple = MLA_ALIGN_BYTES, .count_max = MLA_PLANES_MAX),
    MLA_X(num_pages, MLA_F_REQUIRED, .min = 1),
    MLA_X(page_stride, 0, .min = MLA_QK_DIM, .multiple = MLA_ALIGN_BYTES),
    MLA_X(row_stride, 0, .def = MLA_QK_DIM, .min = MLA_QK_DIM, .max = UINT64_MAX / MLA_PAGE_TOKENS,
          .multiple = MLA_ALIGN_BYTES),
    MLA_X(tokens_per_page, 0, .def = MLA_PAGE_TOKENS, .min = MLA_PAGE_TOKENS, .max = MLA_PAGE_TOKENS),
    MLA_X(tokens_per_entry, MLA_F_CAP, .def = MLA_PAGE_TOKENS, .min = MLA_PAGE_TOKENS, .max = MLA_TOKENS_PER_ENTRY_MAX,
          .multiple = MLA_PAGE_TOKENS),
    MLA_TEXT_X(label, 0, MLA_MAX_NAME_BYTES),
};
#undef T
static int define_cache_check(void *plain, uint32_t seen, const char *const *names, struct mla_error *err)
{
    (void)seen;
    (void)names;
    (void)err;
    struct mla_define_cache_request *r = plain;
    if (r->page_stride == 0)
        r->page_stride = MLA_PAGE_TOKENS * r->row_stride;
    return 0;
}
MLA_BODY_OF(define_cache_request, define_cache_check);

#define T struct mla_define_cache_reply
static const struct mla_field define_cache_reply_fields[] = {MLA_STATUS_X, MLA_X(cache, 0)};
#undef T
MLA_BODY_OF(define_cache_reply, NULL);

#define T struct mla_publish_cache_request
static const struct mla_field publish_cache_request_fields[] = {
    MLA_X(cache, MLA_F_REQUIRED),
    MLA_TEXT_X(name, MLA_F_REQUIRED | MLA_F_NAME, MLA_MAX_NAME_BYTES),
    MLA_N_X(gids, 0, .count_max = MLA_MAX_GIDS),
    MLA_X(tag, 0),
};
#undef T
MLA_BODY_OF(publish_cache_request, NULL);
MLA_BODY_STATUS_ONLY(publish_cache_reply);

#define T struct mla_attach_cache_request
static const struct mla_field attach_cache_request_fields[] = {
    MLA_HAS_X(owner_uid),
    MLA_TEXT_X(name, MLA_F_REQUIRED | MLA_F_NAME, MLA_MAX_NAME_BYTES),
    MLA_X(wait_us, 0),
};
#undef T
MLA_BODY_OF(attach_cache_request, NULL);

#define T struct mla_attach_cache_reply
static const struct mla_field attach_cache_reply_fields[] = {
    MLA_STATUS_X,
    MLA_X(cache, 0),
    MLA_X(num_pages, 0),
    MLA_X(planes, 0),
    MLA_X(tokens_per_entry, 0),
    MLA_ENUM_X(layout, 0, MLA_CACHE_E4M3_512_BF16_64_SCALED),
    MLA_X(tag, 0),
};
#undef T
MLA_BODY_OF(attach_cache_reply, NULL);

#define T struct mla_detach_cache_request
static const struct mla_field detach_cache_request_fields[] = {MLA_X(cache, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(detach_cache_request, NULL);
MLA_BODY_STATUS_ONLY(detach_cache_reply);

#define T struct mla_drop_cache_request
static const struct mla_field drop_cache_request_fields[] = {MLA_X(cache, MLA_F_REQUIRED)};
#undef T
MLA_BODY_OF(drop_cache_request, NULL);
MLA_BODY_STATUS_ONLY(drop_cache_reply);
