/* Where rows are in memory, and how results are written there. */
#ifndef MLA_DAEMON_BACKEND_CPU_OUTPUT_H
#define MLA_DAEMON_BACKEND_CPU_OUTPUT_H

#include <stdint.h>

#include "kernels/abi/abi.h"

/* Address of element 0 of (sequence of the job, token, head); first_token as in struct mla_abi_seq. */
void *cpu_tensor_row(const struct mla_abi_tensor *tensor, uint32_t seq_of_job, uint32_t first_token, uint32_t token,
                     uint32_t head);

/* Writes row `row` of a sequence: o[512], normalised, is scaled by kv_scale (and inv_out_scale) in place, then rounded
 * to out_type; lse when the job has it. */
void cpu_output_row(const struct mla_abi_job *job, const struct mla_abi_seq *seq, uint32_t seq_of_job, uint32_t row,
                    float *o, float lse);

#endif
