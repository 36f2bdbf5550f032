/* A kernel in front of a stream's wait for a word: for measuring, MLA_CUDA_WAIT=kernel in the environment.
 *
 * A wait of the stream's own that fails at first is looked at again when the device comes back to the stream, some
 * 10 us later. A kernel of one thread sees the word within a microsecond or two. It ends when the word has come and
 * after MLACU_WAIT_NS in any case, and the wait behind it is what counts, so that nothing depends on the kernel: not a
 * worker that is killed, nor a daemon. Where contexts take turns on the GPU it would take turns of those who are waited
 * for, so it is for daemons behind an MPS server. */
#ifndef MLA_CLIENT_CUDA_WAIT_H
#define MLA_CLIENT_CUDA_WAIT_H

#include "client/cuda/driver.h"

#define MLACU_WAIT_NS UINT64_C(5000000)

struct mlacu_wait {
    CUmodule module; /* NULL: no kernel */
    CUfunction function;
};

/* In the current context, when the environment and the client's daemon say so and the driver takes it. */
void mlacu_wait_open(const struct cuda_driver *cu, const struct mla_client *client, struct mlacu_wait *wait);
CUresult mlacu_wait_close(const struct cuda_driver *cu, struct mlacu_wait *wait);
/* Nothing without a kernel. Capturable. */
CUresult mlacu_wait_put(const struct cuda_driver *cu, const struct mlacu_wait *wait, uint64_t word, uint64_t value,
                        CUstream stream);

#endif
