/* Records that a plan, the host and every kernel share. Plain C11 without includes beyond stdint, so that device code
 * compiles it too. Sizes and offsets are fixed (static asserts below); addresses are 64-bit addresses in the address
 * space of whoever runs the items: device addresses for a GPU, pointers for the CPU backend.
 *
 * Words: a row is one (query token, head) pair of one sequence, row r = token r / heads, head r % heads. A tile is up
 * to tile_rows consecutive rows of one sequence. A page is 64 tokens. An item is a tile and a range of pages.
 */
#ifndef MLA_KERNELS_ABI_H
#define MLA_KERNELS_ABI_H

#include <stdint.h>

#define MLA_ABI_VERSION     1u
#define MLA_ABI_PAGE_TOKENS 64u
#define MLA_ABI_QK_DIM      576u /* elements of a K row: 512 latent, 64 rope */
#define MLA_ABI_V_DIM       512u /* V is the first 512 elements of the same row */
#define MLA_ABI_NO_PARTIAL  0xffffffffu
#define MLA_ABI_TILE_ROWS   256u /* the most rows of a tile */

/* Same numbers as proto/enums.h (a test compares them). */
#define MLA_ABI_OUT_E4M3     1u
#define MLA_ABI_OUT_BF16     2u
#define MLA_ABI_OUT_F32      3u
#define MLA_ABI_MASK_NONE    1u
#define MLA_ABI_MASK_CAUSAL  2u
#define MLA_ABI_MASK_VISIBLE 3u

/* A strided tensor [sequence][token][head][element]; strides in bytes. Address of the first element of (s, t, h):
 *   compact == 0: base + s * seq_stride + t * token_stride + h * head_stride       s counts within the job
 *   compact == 1: base + (first_token(s) + t) * token_stride + h * head_stride      first_token: struct mla_abi_seq */
struct mla_abi_tensor {
    uint64_t base; /* 0: absent */
    int64_t seq_stride;
    int64_t token_stride;
    int64_t head_stride;
    uint32_t compact;
    uint32_t reserved;
};

/* One job of a launch. Scores are score_scale * dot(q, k), score_scale = softmax_scale * q_scale * kv_scale;
 * O = kv_scale * sum(p * v) / sum(p), and for e4m3 output that times inv_out_scale, rounded to nearest even, saturated.
 */
struct mla_abi_job {
    struct mla_abi_tensor q;      /* e4m3: 576 elements per row, or the 512 latent ones when q_rope is present */
    struct mla_abi_tensor q_rope; /* e4m3: 64 elements per row */
    struct mla_abi_tensor o;      /* 512 elements of out_type per row */
    struct mla_abi_tensor lse;    /* f32 */
    uint64_t kv;                  /* page 0 of the plane; e4m3 FN */
    uint64_t page_stride;         /* bytes */
    uint64_t table;               /* int32 entries; entry e of sequence s at table_first(s) + e */
    uint64_t kv_len;              /* int32 per sequence, or 0: kv_len_max is the length */
    uint64_t visible;             /* mask VISIBLE: int32 per query token, at first_token(s) + t; else 0 */
    uint64_t status;              /* uint64 per sequence, code << 32 | index, 0 = fine; written by the daemon first */
    uint64_t user_status;         /* the same, in the caller's memory, or 0; complete when the launch has ended */
    uint32_t row_stride;          /* bytes between the rows of a page */
    uint32_t num_pages;           /* 64-token pages of the plane */
    uint32_t pages_per_entry;     /* table entry e names pages e * pages_per_entry ... */
    uint32_t heads;
    uint32_t first_seq; /* of this job in the launch's sequences */
    uint32_t n_seqs;
    uint32_t mask;
    uint32_t out_type;
    float score_scale;
    float kv_scale;
    float inv_out_scale;
    uint32_t reserved;
};

/* One sequence of a launch. */
struct mla_abi_seq {
    uint32_t job;
    uint32_t q_len;
    uint32_t kv_len_max;
    uint32_t first_token; /* sum of the q_len of the job's sequences before this one */
    uint64_t table_first; /* index of its first table entry */
};

/* Rows [first_row, first_row + rows) of a sequence. Its n_items items, which cut pages [0, pages) in order, are the
 * first ones of this tile from first_item on; between them lie, as evenly, those of neighbours that are cut alike.
 * pages is what its last row may see at kv_len_max; 0: the tile has one item with no page, which writes O = 0 and LSE =
 * -inf. */
struct mla_abi_tile {
    uint32_t seq;
    uint32_t first_row;
    uint32_t rows;
    uint32_t pages;
    uint32_t first_item;
    uint32_t n_items;
};

/* Pages [page_begin, page_end) of a tile. partial_row: its first row in the workspace, or MLA_ABI_NO_PARTIAL when the
 * tile has this one item, which then writes O and LSE itself. The items of a tile have consecutive partials:
 * item k of a tile starts at the first one's partial_row + k * rows. */
struct mla_abi_item {
    uint32_t tile;
    uint32_t page_begin;
    uint32_t page_end;
    uint32_t partial_row;
};

/* Combines the n_partials partials of a tile. */
struct mla_abi_reduce {
    uint32_t tile;
    uint32_t partial_row;
    uint32_t n_partials;
    uint32_t rows;
};

/* Workspace of R partial rows: float O[R][512], each row normalised by its own sum, then float LSE[R] (natural log of
 * the unrounded sum, -inf for a row that saw no key). The reducer weights partial i of a row by exp(lse_i - max lse).
 */
#define MLA_ABI_PARTIAL_ROW_BYTES (MLA_ABI_V_DIM * 4u + 4u)

/* Some job has a user_status: the status words of all its sequences, those with q_len 0 too, are copied there in the
 * launch. Kernels with a prepare kernel (sm90) do it there, before the decode; others (generic) in the reducer's
 * launch, which is then made even when no tile is split. Only when the launch has ended may a reader count on all of
 * them. */
#define MLA_ABI_LAUNCH_USER_STATUS 1u

/* The one parameter of every kernel, by value. */
struct mla_abi_launch {
    uint64_t jobs; /* addresses of the records above */
    uint64_t seqs;
    uint64_t tiles;
    uint64_t items;
    uint64_t reduces;
    uint64_t partial_o; /* float [partial_rows][512], or f16 in the first half of it: as the variant's kernels agree */
    uint64_t partial_lse; /* float [partial_rows] */
    uint32_t n_items;
    uint32_t n_reduces;
    uint32_t n_jobs;
    uint32_t n_seqs;
    uint32_t flags; /* MLA_ABI_LAUNCH_* */
    uint32_t reserved;
};

#ifndef __cplusplus
_Static_assert(sizeof(struct mla_abi_launch) == 80, "abi");
_Static_assert(sizeof(struct mla_abi_tensor) == 40, "abi");
_Static_assert(sizeof(struct mla_abi_job) == 264, "abi");
_Static_assert(sizeof(struct mla_abi_seq) == 24, "abi");
_Static_assert(sizeof(struct mla_abi_tile) == 24, "abi");
_Static_assert(sizeof(struct mla_abi_item) == 16, "abi");
_Static_assert(sizeof(struct mla_abi_reduce) == 16, "abi");
#endif

#endif
