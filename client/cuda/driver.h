/* What the sources of libmla-cuda share: the driver, and errors. */
#ifndef MLA_CLIENT_CUDA_DRIVER_H
#define MLA_CLIENT_CUDA_DRIVER_H

#include <mla/cuda.h>

#include "kernels/host/cuda_driver.h"

/* The process's driver, opened by the first call and never closed; NULL with UNSUPPORTED in the thread's last error. */
const struct cuda_driver *mlacu_driver(void);

/* The driver, when a context is current too. NULL: the thread's last error says why. */
const struct cuda_driver *mlacu_ready(void);

/* Sets the thread's last error, and returns its status. */
enum mla_status mlacu_fail(enum mla_status status, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
enum mla_status mlacu_out_of_range(const char *field, uint64_t value, uint64_t limit, const char *text);
/* call failed: OUT_OF_MEMORY or SYSTEM_ERROR. */
enum mla_status mlacu_driver_error(const struct cuda_driver *cu, CUresult result, const char *call);

/* The thread's last error becomes the client's. Returns its status. */
enum mla_status mlacu_tell(struct mla_client *client);

#endif
