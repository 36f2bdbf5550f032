/* Every cap of the protocol and of a connection, in one place. Quotas that an operator sets are in the configuration;
 * these are what no configuration goes beyond. */
#ifndef MLA_PROTO_LIMITS_H
#define MLA_PROTO_LIMITS_H

/* Frames. */
#define MLA_CAP_CONTROL_BYTES (4u << 10) /* body of a control request */
#define MLA_CAP_TABLE_BYTES   (8u << 20) /* body of PUT_TABLE_SET, DECODE and TEMPLATE_OPEN */
#define MLA_CAP_REPLY_BYTES   (8u << 20) /* body of any reply or notice */
#define MLA_MAX_FDS_PER_FRAME 16u
#define MLA_MAX_FDS_PENDING   64u /* received, not yet claimed by a frame */

/* Fields. */
#define MLA_MAX_NAME_BYTES   64u /* cache and client names, without the terminating zero */
#define MLA_MAX_TEXT_BYTES   256u
#define MLA_MAX_GIDS         16u
#define MLA_MAX_REGION_PARTS 4096u /* VMM allocations that make one region */

/* Shapes. */
#define MLA_HEADS_MAX            128u
#define MLA_Q_LEN_MAX            4096u
#define MLA_KV_LEN_MAX           (1u << 24) /* tokens of one sequence */
#define MLA_SEQS_PER_JOB_MAX     16384u
#define MLA_ROWS_PER_JOB_MAX     (1u << 22) /* q_len * heads summed over the job */
#define MLA_PLANES_MAX           512u
#define MLA_LAYER_SEQS_MAX       (1u << 20) /* layers of a template times sequences of its table set */
#define MLA_TOKENS_PER_ENTRY_MAX 4096u

/* Bytes and alignment of the one cache layout, E4M3_576. */
#define MLA_PAGE_TOKENS 64u
#define MLA_QK_DIM      576u
#define MLA_V_DIM       512u
#define MLA_ROPE_DIM    64u
#define MLA_ALIGN_BYTES 16u

#endif
