/* What the Hopper kernels need beside the records of abi.h. Host and device; plain C11.
 *
 * unit: up to 128 rows of one item, worked on by one cluster. The prepare kernel resolves, once per launch, all that
 * the callers' device memory decides (lengths, visible counts, page ids) into the scratch arrays, checks it, and makes
 * one flat record per unit, so that what the two CTAs of a cluster do can never come apart, whatever is written there
 * meanwhile.
 */
#ifndef MLA_KERNELS_SM90_LAUNCH_H
#define MLA_KERNELS_SM90_LAUNCH_H

#include "kernels/abi/abi.h"

#define MLA_SM90_UNIT_ROWS 128u

/* 160 bytes, read as 16-byte vectors. Row r below counts within the sequence: token r / heads, head r % heads. */
struct mla_sm90_unit {
    uint64_t map;    /* pair of tensor maps of the plane: latent boxes, rope boxes */
    uint64_t pages;  /* uint32 page ids of this item, from its first page on; `beyond` stands for a bad one */
    uint64_t limits; /* uint32 per query token of the sequence: keys that it sees */
    uint64_t q;      /* token 0, head 0 of the sequence */
    int64_t q_token;
    int64_t q_head;
    uint64_t q_rope; /* of the 64 rope elements */
    int64_t q_rope_token;
    int64_t q_rope_head;
    uint64_t out; /* row r at out + token * out_token + head * out_head; partials lie so too */
    int64_t out_token;
    int64_t out_head;
    uint64_t lse; /* 0: none */
    int64_t lse_token;
    int64_t lse_head;
    uint32_t n_pages; /* at least 1: an item that sees nothing has one page that nobody sees */
    uint32_t first_page;
    uint32_t mask_from; /* pages of the item from here on are masked for some row */
    uint32_t row0;      /* first row of the unit */
    uint32_t rows;      /* 1..128 */
    uint32_t heads;
    uint32_t out_type; /* MLA_ABI_OUT_*; F32 for partials */
    float score_scale; /* times log2(e) */
    float out_scale;   /* kv_scale, and inv_out_scale for e4m3; 1 for partials */
    uint32_t beyond;   /* a page id that is past the plane */
};

struct mla_sm90_launch {
    struct mla_abi_launch abi;
    uint64_t seq_tiles;  /* uint32 [n_seqs + 1]: first tile of each sequence */
    uint64_t item_units; /* uint32 [n_items]: first unit of each item */
    uint64_t seq_pages;  /* uint32 [n_seqs]: place of its page ids */
    uint64_t seq_tokens; /* uint32 [n_seqs]: place of its limits */
    uint64_t maps;       /* per job: two CUtensorMap of 128 bytes, latent boxes and rope boxes */
    uint64_t map_copies; /* scratch: the same in device memory, where the copy engine reads them */
    uint64_t units;      /* scratch: struct mla_sm90_unit [n_units] */
    uint64_t page_ids;   /* scratch: uint32 */
    uint64_t limits;     /* scratch: uint32 */
    uint32_t n_units;
    uint32_t reserved; /* 0; the kernel has uses for a zero that the compiler does not know */
};

#endif
