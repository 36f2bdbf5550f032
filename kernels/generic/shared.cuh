/* Shared memory and the view of one CTA of the generic kernel. */
#ifndef MLA_KERNELS_GENERIC_SHARED_CUH
#define MLA_KERNELS_GENERIC_SHARED_CUH

#include "kernels/abi/abi.h"
#include "kernels/generic/layout.h"

/* Set by the build, per variant: pages in flight (1: within 99 KB, which every part from 8.0 on has) and the dynamic
 * shared memory that the manifest announces. */
#if !defined(MLA_GENERIC_STAGES) || !defined(MLA_GENERIC_SHARED_BYTES)
#error "the build defines MLA_GENERIC_STAGES and MLA_GENERIC_SHARED_BYTES"
#endif

namespace mla
{

constexpr uint32_t kStages = MLA_GENERIC_STAGES;
constexpr uint32_t kRows = GENERIC_ROWS;
constexpr uint32_t kThreads = GENERIC_THREADS;
constexpr uint32_t kPageBytes = MLA_ABI_PAGE_TOKENS * GENERIC_ROW_BYTES;
constexpr uint32_t kEntries = 256; /* table entries read ahead */
constexpr uint32_t kNoFault = 0xffffffffu;

struct __align__(16) Shared
{
    uint8_t q[kRows * GENERIC_ROW_BYTES];
    uint8_t k[kStages][kPageBytes];
    uint8_t p[kRows * GENERIC_P_BYTES];
    mla_abi_job job;
    uint64_t out_row[kRows];    /* address of O, of a partial or of nothing (0) */
    float row_max[2][kRows];    /* of each half of a page; in the end [0] is the maximum of all */
    float row_sum[2][2][kRows]; /* of each half: of unrounded and of rounded P */
    float row_scale[kRows];     /* what O of earlier pages is multiplied by; in the end 1 / sum */
    int32_t visible[kRows];     /* keys that a row sees; 0 where there is no row */
    int32_t token_visible[MLA_ABI_TILE_ROWS];
    int32_t entries[kEntries];
    unsigned long long nan_keys[2]; /* by parity of the page: bit k, key k holds a NaN */
    unsigned long long nan_rows;    /* of Q */
    uint32_t fault_index;
    int32_t kv_len;
    int32_t limit; /* the most keys that any row sees */
};

static_assert(sizeof(Shared) <= MLA_GENERIC_SHARED_BYTES, "announced shared memory");
static_assert(kStages > 1 || MLA_GENERIC_SHARED_BYTES <= 99 * 1024, "fits every part");
static_assert(kStages == 1 || kStages == 2, "stages");

struct View {
    mla_abi_item item;
    mla_abi_tile tile;
    mla_abi_seq seq;
    uint32_t seq_of_job;
    uint32_t first; /* of the CTA's rows, in the tile */
    uint32_t rows;
    uint32_t begin; /* pages */
    uint32_t end;
};

} // namespace mla

#endif
