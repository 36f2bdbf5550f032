/* Combines the partials of a split tile. */
#ifndef MLA_DAEMON_BACKEND_CPU_REDUCE_H
#define MLA_DAEMON_BACKEND_CPU_REDUCE_H

#include <stdint.h>

#include "daemon/backend/cpu/launch.h"

/* Rows [first_row, first_row + CPU_REDUCE_CHUNK_ROWS) of a reduction, as far as it has them, partials in order. o:
 * working memory of 512 floats. Rows of a sequence that has faulted are left alone. */
void cpu_reduce_run(const struct cpu_launch *launch, const struct mla_abi_reduce *reduce, uint32_t first_row, float *o);

#endif
