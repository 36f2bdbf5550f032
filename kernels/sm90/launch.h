/* What the Hopper kernels need beside the records of abi.h. Host and device; plain C11.
 *
 * unit: up to rows_per_unit rows (kernels.ini, 128 at most) of one item, worked on by one cluster. The prepare kernel
 * resolves, once per launch, all that the callers' device memory decides (lengths, visible counts, page ids) into the
 * scratch arrays, checks it, and makes one flat record per unit, so that what the two CTAs of a cluster do can never
 * come apart, whatever is written there meanwhile.
 */
#ifndef MLA_KERNELS_SM90_LAUNCH_H
#define MLA_KERNELS_SM90_LAUNCH_H

#include "kernels/abi/abi.h"

#define MLA_SM90_OUT_PARTIAL 4u /* of unit.out_type, beside MLA_ABI_OUT_*: f16, for mla_reduce_f16 */

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
    uint32_t out_type; /* MLA_ABI_OUT_*, or MLA_SM90_OUT_PARTIAL */
    float score_scale; /* times log2(e) */
    float out_scale;   /* kv_scale, and inv_out_scale for e4m3; kPartialScale for partials */
    uint32_t beyond;   /* a page id that is past the plane */
};

/* A unit as it was planned. 32 bytes; those of a sequence lie together. */
struct mla_sm90_part {
    uint32_t unit; /* its record's index */
    uint32_t page_begin;
    uint32_t page_end;
    uint32_t row0;
    uint32_t rows;
    uint32_t split; /* 1: row r of the sequence is partial row partial_row + r; 0: the unit writes O and LSE itself */
    int64_t partial_row; /* 0 unless split */
};

/* What the prepare kernel needs of a sequence, of its job and of its units, written by the host so that one load brings
 * all of it: chains of loads are what that kernel's time is made of. 240 bytes, read as 16-byte vectors. */
struct mla_sm90_seq {
    struct mla_sm90_unit unit; /* of a unit that is not split, but for what parts and device memory decide. pages: room
                                  for the page ids of all pages, limits: for q_len counts, map: for the job's maps */
    uint64_t kv_len;           /* address of its length (int32), or 0: kv_len_max is the length */
    uint64_t table;            /* of its first table entry (int32) */
    uint64_t visible;          /* of its first token's count (int32); 0 unless mask VISIBLE */
    uint64_t status;           /* of its word */
    uint64_t user_status;      /* the same in the caller's memory, or 0 */
    uint64_t maps;             /* of the first sequence of a job: what is copied to unit.map; 0 for the others */
    uint64_t parts;            /* struct mla_sm90_part [n_parts] */
    uint32_t n_parts;
    uint32_t q_len;
    uint32_t kv_len_max;
    uint16_t mask;
    uint16_t flags; /* MLA_SM90_SEQ_* */
    uint32_t pages_per_entry;
    uint32_t num_pages; /* of the plane */
};

/* Not all of the sequence's rows are in this launch: launches before it may have found something wrong with it. */
#define MLA_SM90_SEQ_PART 1u

/* What the reducer needs of a tile that is split, in one load. 96 bytes, read as 16-byte vectors; written by the host.
 */
struct mla_sm90_reduce {
    uint32_t partial_row; /* of row i and partial k: partial_row + k * rows + i */
    uint32_t n_partials;
    uint32_t rows;
    uint32_t first_row; /* of the sequence */
    uint64_t out;       /* as in a unit that is not split */
    int64_t out_token;
    int64_t out_head;
    uint64_t lse; /* 0: none */
    int64_t lse_token;
    int64_t lse_head;
    uint32_t heads;
    uint32_t out_type; /* MLA_ABI_OUT_* */
    float kv_scale;
    float inv_out_scale;
    uint32_t seq; /* of the launch: whose fault is asked for */
    uint32_t reserved[3];
};

struct mla_sm90_launch {
    struct mla_abi_launch abi;
    uint64_t seqs;   /* struct mla_sm90_seq [n_seqs] */
    uint64_t units;  /* scratch: struct mla_sm90_unit [n_units] */
    uint64_t lists;  /* uint32 [clusters + 1]: units lists[c] to lists[c + 1] - 1 are cluster c's, in this order */
    uint64_t sums;   /* scratch: MLA_SM90_SUMS_BYTES of each CTA: f16 sums that have left the tensor cores */
    uint64_t faults; /* scratch: uint64 [n_seqs], what this launch found wrong: status words may lie far away, in host
                        memory, where each row of the reducer would ask for them */
    uint32_t n_units;
    uint32_t reserved;      /* 0; the kernel has uses for a zero that the compiler does not know */
    uint64_t reduces;       /* struct mla_sm90_reduce [abi.n_reduces] */
    uint64_t reserved_more; /* 144 bytes: what lies behind stays aligned to 16 */
};

/* The parameter of PREPARE_fetch, the prepare kernel that brings the blob from where it was written. 160 bytes. */
struct mla_sm90_fetch {
    struct mla_sm90_launch launch; /* abi.jobs: of the blob's first byte in device memory */
    uint64_t from;                 /* where the device reads the blob, 16-byte aligned */
    uint32_t n_vectors;            /* of 16 bytes, of the blob */
    uint32_t first;                /* those from here on the next kernels read: they are copied to device memory */
};

/* The parameter of PREPARE_inline: the same with `from` 0, and the blob behind it. The driver takes all of it whatever
 * is used. Larger ones would do from CUDA 12.1 on; they take longer than PREPARE_fetch does from the host's memory. */
#define MLA_SM90_INLINE_BYTES 4096u

#define MLA_SM90_SUMS_BYTES (64u << 10)
#define MLA_SM90_MAP_BYTES  256u /* of a job: two CUtensorMap of 128 bytes, latent boxes and rope boxes */

#endif
