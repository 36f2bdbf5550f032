/* What the pack and unpack kernels of h128 take, by value. Host and device; plain C11. */
#ifndef MLA_KERNELS_BASELINE_H128_ARGS_H
#define MLA_KERNELS_BASELINE_H128_ARGS_H

#include "kernels/abi/abi.h"

#define H128_HEADS  128u
#define H128_TOKENS 4u /* of a request */

/* A query token of the job: its sequence, and which of that sequence's it is. */
struct h128_token {
    uint32_t seq;
    uint32_t token;
};

struct h128_args {
    struct mla_abi_tensor q; /* of the job, as are the next three */
    struct mla_abi_tensor q_rope;
    struct mla_abi_tensor o;
    struct mla_abi_tensor lse;
    uint64_t status;        /* uint64 [n_seqs] */
    uint64_t padded_q;      /* e4m3 [n_tokens][128][576] */
    uint64_t padded_o;      /* [n_tokens][128][512] elements of out_bytes */
    uint64_t padded_lse;    /* float [n_tokens][128]; not read when lse is absent */
    uint64_t padded_status; /* uint64 [n_requests] */
    uint64_t tokens;        /* struct h128_token [n_tokens] */
    uint64_t first_request; /* uint32 [n_seqs + 1]: requests of each sequence */
    uint32_t n_tokens;
    uint32_t n_seqs;
    uint32_t n_requests;
    uint32_t heads; /* of the job */
    uint32_t out_bytes;
    uint32_t reserved;
};

#define H128_PACK_THREADS   288u /* 8 rows of 36 pieces of 16 bytes */
#define H128_PACK_ROWS      8u
#define H128_UNPACK_THREADS 128u

#endif
