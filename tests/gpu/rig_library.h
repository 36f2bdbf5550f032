/* The rig of tests/support/rig.h over libmla-kernels alone: no daemon, no backend. Registered memory is device memory
 * with a copy in this process, the daemon's records are pinned host memory. Each section of the manifest that
 * libmla-kernels may take by itself, first or as few_rows of another, is one "backend", and skipped where it does not
 * fit the device; MLA_TEST_VARIANT=name: only that section, whichever it is. MLA_TEST_PROGRAMMATIC=1 sets
 * mla_kernels_options.programmatic.
 */
#ifndef MLA_TESTS_GPU_RIG_LIBRARY_H
#define MLA_TESTS_GPU_RIG_LIBRARY_H

#include "kernels/host/mla_kernels.h"
#include "tests/support/rig.h"

enum lib_mode {
    LIB_DIRECT,  /* a launch on the stream */
    LIB_CAPTURE, /* the launch is captured into a graph, which is then launched */
    LIB_REPLAY   /* the graph of the last LIB_CAPTURE is launched again, whatever the batch says */
};

/* The one library that is open, after rig_open(). */
struct lib {
    struct cuda_driver driver;
    CUdevice device;
    struct mla_kernels *kernels;
    CUstream stream;
    CUdeviceptr workspace;
    void *blob; /* pinned */
    CUdeviceptr blob_device;
    CUdeviceptr blob_copy; /* in device memory */
    size_t blob_bytes;
    uint32_t n_blobs;
    size_t used_bytes;                                                              /* of blob, by the last batch */
    enum lib_records { LIB_COPIED, LIB_IN_PLACE, LIB_INLINE, LIB_FETCHED } records; /* how it gets there */
    CUgraph graph;
    CUgraphExec exec;
    enum lib_mode mode;
    struct mla_kernels_launch launch; /* the last one */
    uint64_t workspace_bytes;         /* of workspace; facts tell what partials may take of it */
    struct be_facts facts;
};
extern struct lib lib;

/* The section of rig_open()'s index. */
const char *lib_variant(int index);

/* Aborts the test with the driver's words unless the call succeeded. */
#define LIB_OK(call) lib_ok(lib.driver.call, #call)
/* It has arrived when this returns: a copy of the driver's from pageable memory may still be under way then, and lib's
 * stream does not wait for it. */
void lib_upload(CUdeviceptr to, const void *from, size_t bytes);
void lib_ok(CUresult result, const char *call);

/* Opens the driver and a context of device 0 without kernels, for tests of mla_kernels_open() itself. */
void lib_context(void);

/* Exit status of a program that needs a GPU: 0, or 77 with the reason printed. Calls CUDA in a child process only. */
int lib_probe(void);

#endif
