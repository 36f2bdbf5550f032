/* Common to the tests of the CUDA backend. */
#ifndef MLA_TEST_BE_CUDA_H
#define MLA_TEST_BE_CUDA_H

#include <stdbool.h>

#include "tests/support/cuda_exporter.h"
#include "tests/support/fake_cuda/fake_cuda.h"
#include "tests/support/rig.h"

/* Opens the CUDA backend on the machine's driver: the real one, or the fake that $MLA_CUDA_DRIVER names. */
struct rig cuda_rig(void);
struct rig cuda_rig_of(const char *variant); /* a section of kernels.ini; NULL: the first that fits */

/* A sealed page of words; the caller's descriptor. */
struct be_region cuda_sync_region(void);

/* A region of all of what an exporter gave. */
struct be_region cuda_region(const struct exported *memory, size_t bytes, enum mla_access access);
void cuda_close_parts(const struct exported *memory);

/* MAP or UNMAP with its error. */
struct mla_error cuda_ask(struct rig *rig, enum be_op op, struct be_region *region);

/* Of the fake driver; false, and nothing written, when the driver is a real one. */
bool cuda_fake_report(struct mla_fake_report *report);
bool cuda_fake_rules(const char *text);

#endif
